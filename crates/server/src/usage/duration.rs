//! Durations in Go's format, as clients expect in `window`.

use jiff::SignedDuration;

/// `15.012s`, `1m0.5s`, `500ms`. In whole milliseconds, at least zero.
pub(super) fn text(span: SignedDuration) -> String {
    let millis = u64::try_from(span.as_millis()).unwrap_or(0);
    if millis == 0 {
        return "0s".to_owned();
    }
    if millis < 1000 {
        return format!("{millis}ms");
    }
    let (hours, minutes) = (millis / 3_600_000, millis / 60_000 % 60);
    let seconds = format!("{}.{:03}", millis / 1000 % 60, millis % 1000);
    let seconds = seconds.trim_end_matches('0').trim_end_matches('.');
    match (hours, minutes) {
        (0, 0) => format!("{seconds}s"),
        (0, _) => format!("{minutes}m{seconds}s"),
        _ => format!("{hours}h{minutes}m{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_the_format_of_go() {
        for (millis, expected) in [
            (0, "0s"),
            (-5, "0s"),
            (500, "500ms"),
            (15_000, "15s"),
            (15_012, "15.012s"),
            (10_500, "10.5s"),
            (60_000, "1m0s"),
            (90_500, "1m30.5s"),
            (3_600_000, "1h0m0s"),
        ] {
            assert_eq!(text(SignedDuration::from_millis(millis)), expected);
        }
    }
}
