//! Formats durations, sizes and errors for messages.

use runtime::Error;
use std::time::Duration;

/// As Go formats it, truncated to milliseconds: `1m2.5s`, `823ms`, `0s`.
pub(super) fn duration(duration: Duration) -> String {
    let milliseconds = duration.as_millis();
    if milliseconds == 0 {
        return "0s".to_owned();
    }
    if milliseconds < 1000 {
        return format!("{milliseconds}ms");
    }
    let (minutes, rest) = (milliseconds / 60_000, milliseconds % 60_000);
    let fraction = format!("{:03}", rest % 1000);
    let fraction = fraction.trim_end_matches('0');
    let point = if fraction.is_empty() { "" } else { "." };
    let seconds = format!("{}{point}{fraction}s", rest / 1000);
    match (minutes / 60, minutes % 60) {
        (0, 0) => seconds,
        (0, minutes) => format!("{minutes}m{seconds}"),
        (hours, minutes) => format!("{hours}h{minutes}m{seconds}"),
    }
}

/// `100.0 GiB`
pub(super) fn size(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", units[unit]) }
}

/// Joins several errors to `[a, b]`, each text once. One error stays as it is.
pub(super) fn joined(mut errors: Vec<Error>) -> Error {
    if errors.len() == 1
        && let Some(error) = errors.pop()
    {
        return error;
    }
    let unavailable = errors.iter().all(|error| matches!(error, Error::RegistryUnavailable(_)));
    let mut texts = Vec::new();
    for text in errors.iter().map(|error| causes(error)) {
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
    let text = match texts.as_slice() {
        [one] => one.clone(),
        all => format!("[{}]", all.join(", ")),
    };
    if unavailable { Error::RegistryUnavailable(text) } else { Error::Pull(text) }
}

/// The error with all its causes: that a disk is full is only in those.
pub(super) fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_formatted_as_go_does() {
        for (milliseconds, text) in [
            (0, "0s"),
            (823, "823ms"),
            (1000, "1s"),
            (1234, "1.234s"),
            (1500, "1.5s"),
            (62_500, "1m2.5s"),
            (60_000, "1m0s"),
            (3_600_000, "1h0m0s"),
            (3_723_040, "1h2m3.04s"),
        ] {
            assert_eq!(duration(Duration::from_millis(milliseconds)), text);
        }
    }

    #[test]
    fn sizes_are_in_powers_of_two() {
        assert_eq!(size(512), "512 B");
        assert_eq!(size(100 << 30), "100.0 GiB");
        assert_eq!(size(1536), "1.5 KiB");
    }

    #[test]
    fn n_175_several_errors_are_joined_without_duplicates() {
        let pull = |text: &str| Error::Pull(text.to_owned());
        assert_eq!(joined(vec![pull("a")]).to_string(), "a");
        assert_eq!(joined(vec![pull("a"), pull("b"), pull("a")]).to_string(), "[a, b]");
        assert_eq!(joined(vec![pull("a"), pull("a")]).to_string(), "a");
        let gone = || Error::RegistryUnavailable("gone".to_owned());
        assert!(matches!(joined(vec![gone(), gone()]), Error::RegistryUnavailable(_)));
        assert!(matches!(joined(vec![gone(), pull("a")]), Error::Pull(_)));
    }
}
