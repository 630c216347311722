//! `format`: which strings are a date, an address, a colour. Formats that upstream does not know are
//! ignored.

use crate::names;
use crate::quantity::Quantity;
use regex::Regex;
use serde_json::Value;
use std::net::IpAddr;
use std::sync::LazyLock;

#[derive(Debug, Clone)]
pub(super) enum Format {
    Text {
        /// As the schema spells it: `date-time` and `datetime` are the same format.
        name: String,
        fits: fn(&str) -> bool,
    },
    Int32,
    Int64,
    Float,
    Double,
}

impl Format {
    /// The format of that name for values of these types.
    pub(super) fn named(types: &[String], name: &str) -> Option<Format> {
        match types {
            [] => text(name),
            [only] => match (only.as_str(), name) {
                ("string", name) => text(name),
                ("integer", "int32") => Some(Format::Int32),
                ("integer", "int64") => Some(Format::Int64),
                ("number", "float") => Some(Format::Float),
                ("number", "double") => Some(Format::Double),
                _ => None,
            },
            _ => None,
        }
    }

    pub(super) fn name(&self) -> &str {
        match self {
            Format::Text { name, .. } => name,
            Format::Int32 => "int32",
            Format::Int64 => "int64",
            Format::Float => "float",
            Format::Double => "double",
        }
    }

    /// Whether a number is within the format's range.
    pub(super) fn holds(&self, value: &Value) -> bool {
        let number = value.as_f64().unwrap_or_default();
        match self {
            Format::Int32 => number.abs() <= f64::from(i32::MAX) || number == f64::from(i32::MIN),
            Format::Int64 => value.is_i64() || number.abs() < 9.223_372_036_854_775e18,
            Format::Float => number.abs() <= f64::from(f32::MAX),
            Format::Text { .. } | Format::Double => true,
        }
    }
}

fn text(name: &str) -> Option<Format> {
    let fits: fn(&str) -> bool = match name.replace('-', "").as_str() {
        "bsonobjectid" => |text| text.len() == 24 && is_hex(text),
        "uri" => is_uri,
        "email" => is_email,
        "hostname" => is_hostname,
        "ipv4" => |text| text.contains('.') && text.parse::<IpAddr>().is_ok(),
        "ipv6" => |text| text.contains(':') && text.parse::<IpAddr>().is_ok(),
        "cidr" => is_cidr,
        "mac" => is_mac,
        "uuid" => |text| is_uuid(text, None, false),
        "uuid3" => |text| is_uuid(text, Some('3'), false),
        "uuid4" => |text| is_uuid(text, Some('4'), true),
        "uuid5" => |text| is_uuid(text, Some('5'), true),
        "isbn" => |text| is_isbn10(text) || is_isbn13(text),
        "isbn10" => is_isbn10,
        "isbn13" => is_isbn13,
        "creditcard" => is_credit_card,
        "ssn" => |text| SSN.is_match(text),
        "hexcolor" => |text| {
            let digits = text.strip_prefix('#').unwrap_or(text);
            matches!(digits.len(), 3 | 6) && is_hex(digits)
        },
        "rgbcolor" => |text| RGB.is_match(text),
        "byte" => |text| BASE64.is_match(text),
        "password" => |_| true,
        "date" => is_date,
        "duration" => |text| DURATION.is_match(text),
        "datetime" => is_date_time,
        "quantity" => |text| Quantity::parse(text).is_ok(),
        "k8sshortname" => |text| names::dns1123_label(text).is_empty(),
        "k8slongname" => |text| names::dns1123_subdomain(text).is_empty(),
        _ => return None,
    };
    Some(Format::Text { name: name.into(), fits })
}

fn regex(pattern: &str) -> Regex {
    Regex::new(pattern).expect("a pattern of ours")
}

static SSN: LazyLock<Regex> = LazyLock::new(|| regex("^[0-9]{3}[- ]?[0-9]{2}[- ]?[0-9]{4}$"));
static BASE64: LazyLock<Regex> = LazyLock::new(|| {
    regex("^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{4})$")
});
static RGB: LazyLock<Regex> = LazyLock::new(|| {
    let part = " *(?:0|[1-9][0-9]?|1[0-9]{2}|2[0-4][0-9]|25[0-5]) *";
    regex(&format!(r"^rgb\({part},{part},{part}\)$"))
});
static CARD: LazyLock<Regex> = LazyLock::new(|| {
    regex(concat!(
        "^(?:4[0-9]{12}(?:[0-9]{3})?|5[1-5][0-9]{14}|6(?:011|5[0-9]{2})[0-9]{12}|3[47][0-9]{13}",
        "|3(?:0[0-5]|[68][0-9])[0-9]{11}|(?:2131|1800|35[0-9]{3})[0-9]{11})$"
    ))
});
/// Such as `1h30m` or `2 weeks`.
static DURATION: LazyLock<Regex> = LazyLock::new(|| {
    let long = "nano(?:second)?s?|micro(?:second)?s?|milli(?:second)?s?|sec(?:ond)?s?|min(?:ute)?s?\
                |hours?|hrs?|days?|weeks?|wks?";
    let unit = format!("(?:{long}|ns|us|µs|μs|ms|s|m|h|d|w)");
    regex(&format!(r"^[+-]?(?:0|(?:\s*(?:[0-9]+\.?[0-9]*|\.[0-9]+)\s*{unit}\s*)+)$"))
});

fn is_hex(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn is_date(text: &str) -> bool {
    text.len() == 10 && text.is_ascii() && text.parse::<jiff::civil::Date>().is_ok()
}

fn is_date_time(text: &str) -> bool {
    let Some((date, time)) = text.split_once(['T', 't']) else { return false };
    // hh:mm:ss, an optional fraction, and a zone.
    let (Some(clock), Some(rest)) = (time.get(..8), time.get(8..)) else { return false };
    let number = |from: usize| clock.get(from..from + 2).and_then(|t| t.parse::<u8>().ok());
    let colons = clock.as_bytes()[2] == b':' && clock.as_bytes()[5] == b':';
    let in_range = number(0).is_some_and(|hour| hour < 24)
        && number(3).is_some_and(|minute| minute < 60)
        && number(6).is_some_and(|second| second < 60);
    let zone = match rest.strip_prefix('.') {
        Some(fraction) => {
            let zone = fraction.trim_start_matches(|c: char| c.is_ascii_digit());
            if zone.len() == fraction.len() {
                return false;
            }
            zone
        }
        None => rest,
    };
    is_date(date) && clock.is_ascii() && colons && in_range && is_zone(zone)
}

fn is_zone(text: &str) -> bool {
    match text.as_bytes() {
        [b'Z' | b'z'] => true,
        [b'+' | b'-', a, b, b':', c, d] => [a, b, c, d].iter().all(|byte| byte.is_ascii_digit()),
        _ => false,
    }
}

fn is_uuid(text: &str, version: Option<char>, variant: bool) -> bool {
    // Each hyphen is optional.
    let mut rest = text;
    let mut digits = String::with_capacity(32);
    for (group, length) in [8, 4, 4, 4, 12].into_iter().enumerate() {
        if group > 0 {
            rest = rest.strip_prefix('-').unwrap_or(rest);
        }
        let Some(head) = rest.get(..length).filter(|head| is_hex(head)) else { return false };
        digits.push_str(head);
        rest = &rest[length..];
    }
    let at = |place: usize| digits.as_bytes()[place].to_ascii_lowercase() as char;
    rest.is_empty()
        && version.is_none_or(|version| at(12) == version)
        && (!variant || matches!(at(16), '8' | '9' | 'a' | 'b'))
}

fn is_cidr(text: &str) -> bool {
    let Some((address, length)) = text.split_once('/') else { return false };
    let max = match address.parse::<IpAddr>() {
        Ok(IpAddr::V4(_)) => 32,
        Ok(IpAddr::V6(_)) => 128,
        Err(_) => return false,
    };
    length.bytes().all(|byte| byte.is_ascii_digit())
        && length.parse::<u8>().is_ok_and(|length| length <= max)
}

fn is_mac(text: &str) -> bool {
    let grouped = |by: char, size: usize, counts: &[usize]| {
        let groups: Vec<&str> = text.split(by).collect();
        counts.contains(&groups.len())
            && groups.iter().all(|group| group.len() == size && is_hex(group))
    };
    grouped(':', 2, &[6, 8, 20]) || grouped('-', 2, &[6, 8, 20]) || grouped('.', 4, &[3, 4, 10])
}

/// An absolute URI, or a path.
fn is_uri(text: &str) -> bool {
    if text.bytes().any(|byte| byte <= b' ' || byte == 0x7f) {
        return false;
    }
    if text.starts_with('/') {
        return true;
    }
    let Some((scheme, rest)) = text.split_once(':') else { return false };
    scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
        && !rest.is_empty()
}

/// `a@b`, or with a name: `Jo <a@b>`.
fn is_email(text: &str) -> bool {
    let text = text.trim();
    let address = match text.strip_suffix('>').and_then(|text| text.rsplit_once('<')) {
        Some((_, address)) => address,
        None => text,
    };
    let Some((local, domain)) = address.rsplit_once('@') else { return false };
    let odd = |c: char| c.is_whitespace() || c.is_control() || "()<>,;:\\\"[]@".contains(c);
    let dotted = |part: &str| part.split('.').all(|piece| !piece.is_empty());
    let quoted = local.len() > 2 && local.starts_with('"') && local.ends_with('"');
    !domain.contains(odd) && dotted(domain) && (quoted || (!local.contains(odd) && dotted(local)))
}

fn is_hostname(text: &str) -> bool {
    let labels: Vec<&str> = text.split('.').collect();
    let letter = |c: char| c.is_ascii_alphanumeric() || (!c.is_ascii() && !c.is_whitespace());
    let fits = |label: &&str| {
        let ends = label.starts_with(letter) && label.ends_with(letter);
        ends && label.len() <= 63 && label.chars().all(|c| letter(c) || c == '-')
    };
    let top_level = labels.len() == 1 || labels.last().is_some_and(|last| last.len() > 1);
    text.len() <= 255 && labels.iter().all(fits) && top_level
}

fn is_isbn10(text: &str) -> bool {
    let digits: Vec<char> = text.chars().filter(|c| !matches!(c, '-' | ' ')).collect();
    if digits.len() != 10 {
        return false;
    }
    let worth = |(place, c): (usize, &char)| match c {
        'X' if place == 9 => Some(10 * 10),
        c => c.to_digit(10).map(|digit| digit * (place as u32 + 1)),
    };
    let sum: Option<u32> = digits.iter().enumerate().map(worth).sum();
    sum.is_some_and(|sum| sum.is_multiple_of(11))
}

fn is_isbn13(text: &str) -> bool {
    let digits: Vec<char> = text.chars().filter(|c| !matches!(c, '-' | ' ')).collect();
    if digits.len() != 13 {
        return false;
    }
    let worth = |(place, c): (usize, &char)| Some(c.to_digit(10)? * [1, 3][place % 2]);
    let sum: Option<u32> = digits.iter().enumerate().map(worth).sum();
    sum.is_some_and(|sum| sum.is_multiple_of(10))
}

fn is_credit_card(text: &str) -> bool {
    let digits: String = text.chars().filter(char::is_ascii_digit).collect();
    let worth = |(place, digit): (usize, u8)| {
        let digit = u32::from(digit - b'0') * (1 + place as u32 % 2);
        if digit > 9 { digit - 9 } else { digit }
    };
    let sum: u32 = digits.bytes().rev().enumerate().map(worth).sum();
    CARD.is_match(&digits) && sum.is_multiple_of(10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_212_string_formats_are_checked() {
        for (name, good, bad) in [
            ("date-time", "2026-01-02T03:04:05.123+02:00", "2026-01-02 03:04:05"),
            ("datetime", "2026-01-02t03:04:05z", "2026-13-02T03:04:05Z"),
            ("date", "2024-02-29", "2023-02-29"),
            ("duration", "1h30m", "soon"),
            ("duration", "2 weeks", "2"),
            ("ipv4", "10.0.0.1", "10.0.0.256"),
            ("ipv6", "::1", "10.0.0.1"),
            ("cidr", "10.0.0.0/8", "10.0.0.0/33"),
            ("mac", "01:23:45:67:89:ab", "01:23:45:67:89"),
            ("uuid", "123e4567-E89B-12d3-a456-426614174000", "123e4567-e89b-12d3-a456-42661417400"),
            (
                "uuid4",
                "123e4567-e89b-42d3-a456-426614174000",
                "123e4567-e89b-12d3-a456-426614174000",
            ),
            ("uri", "https://example.com/a", "example"),
            ("email", "a.b@example.com", "a@b@"),
            ("hostname", "a-1.example.com", "-a.example.com"),
            ("isbn10", "0321751043", "0321751044"),
            ("isbn13", "978-0321751041", "978-0321751042"),
            ("creditcard", "4111-1111-1111-1111", "4111-1111-1111-1112"),
            ("ssn", "123-45-6789", "123-456-789"),
            ("hexcolor", "#fff", "#ff"),
            ("rgbcolor", "rgb(1, 2, 255)", "rgb(1,2,256)"),
            ("byte", "aGVsbG8=", "a$=="),
            ("bsonobjectid", "507f1f77bcf86cd799439011", "507f"),
            ("quantity", "10Gi", "lots"),
            ("k8s-short-name", "a-b", "A"),
            ("k8s-long-name", "a.b", "a..b"),
        ] {
            let Some(Format::Text { fits, .. }) = text(name) else { panic!("{name}") };
            assert!(fits(good), "{name} {good}");
            assert!(!fits(bad), "{name} {bad}");
        }
    }

    #[test]
    fn unknown_formats_are_ignored() {
        assert!(Format::named(&["string".into()], "shoe-size").is_none());
        assert!(Format::named(&["integer".into()], "date").is_none());
    }
}
