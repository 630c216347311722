//! Typed values that JSON writes as strings: times, bytes, durations.
//!
//! Each function returns the canonical text, or upstream's error message (A-28).

use base64::{DecodeError, Engine as _, engine::general_purpose::STANDARD};
use jiff::Timestamp;

const RFC3339: &str = "2006-01-02T15:04:05Z07:00";
const RFC3339_MICRO: &str = "2006-01-02T15:04:05.000000Z07:00";

/// `2026-01-02T03:04:05Z` from any RFC 3339 time; fractions of a second are cut off.
pub(super) fn time(text: &str) -> Result<String, String> {
    Ok(parse(text, RFC3339)?.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
}

/// The same with exactly six decimals, in and out.
pub(super) fn micro_time(text: &str) -> Result<String, String> {
    Ok(parse(text, RFC3339_MICRO)?.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string())
}

/// Go's zero time in canonical form. It means "not set", and Go writes it as null.
pub(super) fn is_zero_time(canonical: &str) -> bool {
    matches!(canonical, "0001-01-01T00:00:00Z" | "0001-01-01T00:00:00.000000Z")
}

/// Parses the layout part by part, so that the error can name the part that does not fit.
fn parse(text: &str, layout: &str) -> Result<Timestamp, String> {
    let fail = |rest: &str, piece: &str| {
        format!("parsing time {text:?} as {layout:?}: cannot parse {rest:?} as {piece:?}")
    };
    let mut rest = text;
    for piece in ["2006", "-", "01", "-", "02", "T", "15", ":", "04", ":", "05"] {
        let head = rest.get(..piece.len()).ok_or_else(|| fail(rest, piece))?;
        let fits = if piece.as_bytes()[0].is_ascii_digit() {
            head.bytes().all(|byte| byte.is_ascii_digit())
        } else {
            head == piece
        };
        if !fits {
            return Err(fail(rest, piece));
        }
        rest = &rest[piece.len()..];
    }
    let decimals = match rest.strip_prefix('.') {
        Some(tail) => tail.bytes().take_while(u8::is_ascii_digit).count(),
        None => 0,
    };
    if layout == RFC3339_MICRO && decimals != 6 {
        return Err(fail(rest, ".000000"));
    }
    if decimals > 0 {
        rest = &rest[1 + decimals..];
    }
    if !is_zone(rest) {
        return Err(fail(rest, "Z07:00"));
    }
    // More than nine decimals are valid; we ignore them.
    let text_end = text.len() - rest.len();
    let cut = text_end - decimals.saturating_sub(9);
    let exact = format!("{}{rest}", &text[..cut]);
    exact
        .parse()
        .map_err(|_| format!("parsing time {text:?}: {} out of range", part_out_of_range(text)))
}

fn is_zone(text: &str) -> bool {
    let digits = |at: usize| text.as_bytes()[at..at + 2].iter().all(u8::is_ascii_digit);
    text == "Z"
        || (text.len() == 6
            && text.is_ascii()
            && text.starts_with(['+', '-'])
            && digits(1)
            && text.as_bytes()[3] == b':'
            && digits(4))
}

/// Which part of a well-formed time is out of range.
fn part_out_of_range(text: &str) -> &'static str {
    let number =
        |from: usize| text.get(from..from + 2).and_then(|t| t.parse().ok()).unwrap_or(0u32);
    match (number(5), number(11), number(14), number(17)) {
        (0 | 13.., ..) => "month",
        (_, 24.., ..) => "hour",
        (_, _, 60.., _) => "minute",
        (_, _, _, 60..) => "second",
        _ => "day",
    }
}

/// Base64 as Go reads it (line breaks are skipped), written without them.
pub(super) fn bytes(text: &str) -> Result<String, String> {
    let plain: String = text.chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
    match STANDARD.decode(&plain) {
        Ok(_) => Ok(plain),
        Err(error) => {
            let at = match error {
                DecodeError::InvalidByte(at, _) | DecodeError::InvalidLastSymbol(at, _) => at,
                DecodeError::InvalidLength(_) | DecodeError::InvalidPadding => plain.len(),
            };
            Err(format!("illegal base64 data at input byte {at}"))
        }
    }
}

/// The seconds of a Go duration such as `1h30m` or `-1.5s`.
pub fn duration(text: &str) -> Result<f64, String> {
    let wrong = || format!("time: invalid duration {text:?}");
    let mut rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    let mut seconds = 0.0;
    if rest == "0" {
        return Ok(seconds);
    }
    if rest.is_empty() {
        return Err(wrong());
    }
    while !rest.is_empty() {
        let number = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (digits, tail) = rest.split_at(number);
        if !digits.bytes().any(|b| b.is_ascii_digit()) || digits.matches('.').count() > 1 {
            return Err(wrong());
        }
        let unit = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let long = match &tail[..unit] {
            "ns" => 1e-9,
            "us" | "µs" | "μs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            "" => return Err(format!("time: missing unit in duration {text:?}")),
            unit => return Err(format!("time: unknown unit {unit:?} in duration {text:?}")),
        };
        seconds += long * digits.parse::<f64>().map_err(|_| wrong())?;
        rest = &tail[unit..];
    }
    Ok(if text.starts_with('-') { -seconds } else { seconds })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_28_times_become_utc_seconds() {
        assert_eq!(time("2026-01-02T03:04:05Z").unwrap(), "2026-01-02T03:04:05Z");
        assert_eq!(time("2026-01-02T03:04:05.999+02:00").unwrap(), "2026-01-02T01:04:05Z");
        assert_eq!(time("2026-01-02T03:04:05.12345678901Z").unwrap(), "2026-01-02T03:04:05Z");
        assert_eq!(
            time("tomorrow").unwrap_err(),
            r#"parsing time "tomorrow" as "2006-01-02T15:04:05Z07:00": cannot parse "tomorrow" as "2006""#
        );
        assert_eq!(
            time("2026-13-02T03:04:05Z").unwrap_err(),
            r#"parsing time "2026-13-02T03:04:05Z": month out of range"#
        );
        for wrong in ["", "2026-01-02", "2026-01-02 03:04:05Z", "2026-01-02T03:04:05", "é026-"] {
            assert!(time(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_28_micro_times_have_six_decimals() {
        let six = "2026-01-02T03:04:05.000006Z";
        assert_eq!(micro_time(six).unwrap(), six);
        assert!(micro_time("2026-01-02T03:04:05Z").unwrap_err().contains(r#""Z" as ".000000""#));
    }

    #[test]
    fn bytes_are_checked_and_lose_their_line_breaks() {
        assert_eq!(bytes("aGVs\nbG8=").unwrap(), "aGVsbG8=");
        assert_eq!(bytes("a$==").unwrap_err(), "illegal base64 data at input byte 1");
    }

    #[test]
    fn durations_are_those_of_go() {
        for (good, seconds) in [("0", 0.0), ("1h30m", 5400.0), ("-1.5s", -1.5), ("100ms", 0.1)] {
            assert_eq!(duration(good), Ok(seconds), "{good}");
        }
        assert_eq!(duration("5").unwrap_err(), r#"time: missing unit in duration "5""#);
        assert!(duration("x").is_err());
    }
}
