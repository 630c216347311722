//! Short durations for people: `5m30s`, `3d4h`.

use jiff::SignedDuration;

const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;
const YEAR: i64 = 365 * DAY;

/// `45s`, `5m30s`, `47h`, `3d4h`, `2y10d`. Clocks may disagree by a second; beyond that a time in
/// the future is `<invalid>`.
pub fn human(duration: SignedDuration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        ..-1 => "<invalid>".to_owned(),
        -1 => "0s".to_owned(),
        0..120 => format!("{seconds}s"),
        120..600 => two(seconds, (MINUTE, "m"), (1, "s")),
        600..10_800 => format!("{}m", seconds / MINUTE),
        10_800..28_800 => two(seconds, (HOUR, "h"), (MINUTE, "m")),
        28_800..172_800 => format!("{}h", seconds / HOUR),
        172_800..691_200 => two(seconds, (DAY, "d"), (HOUR, "h")),
        691_200..63_072_000 => format!("{}d", seconds / DAY),
        63_072_000..252_288_000 => two(seconds, (YEAR, "y"), (DAY, "d")),
        _ => format!("{}y", seconds / YEAR),
    }
}

/// The larger unit, then the smaller one unless it is zero.
fn two(seconds: i64, large: (i64, &str), small: (i64, &str)) -> String {
    let rest = seconds % large.0 / small.0;
    let large = format!("{}{}", seconds / large.0, large.1);
    if rest == 0 { large } else { format!("{large}{rest}{}", small.1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_195_t_cli_27_ages_are_printed_as_upstream_prints_them() {
        for (seconds, text) in [
            (-2, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (599, "9m59s"),
            (600, "10m"),
            (3 * HOUR - 1, "179m"),
            (3 * HOUR, "3h"),
            (3 * HOUR + 61, "3h1m"),
            (8 * HOUR - 1, "7h59m"),
            (8 * HOUR, "8h"),
            (47 * HOUR + 59, "47h"),
            (2 * DAY, "2d"),
            (2 * DAY + HOUR, "2d1h"),
            (8 * DAY - 1, "7d23h"),
            (8 * DAY, "8d"),
            (2 * YEAR - 1, "729d"),
            (2 * YEAR, "2y"),
            (2 * YEAR + DAY, "2y1d"),
            (8 * YEAR - 1, "7y364d"),
            (8 * YEAR, "8y"),
        ] {
            assert_eq!(human(SignedDuration::from_secs(seconds)), text, "{seconds}");
        }
        assert_eq!(human(SignedDuration::from_millis(-1_900)), "0s");
        assert_eq!(human(SignedDuration::MAX), "292471208677y");
        assert_eq!(human(SignedDuration::MIN), "<invalid>");
    }
}
