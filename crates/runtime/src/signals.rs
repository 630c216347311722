//! Parses signal names of images and pod specs.

use crate::{Error, Result};
use nix::sys::signal::Signal;

/// Accepts `SIGUSR1`, `USR1`, `10` and `SIGRTMIN+3`, which all occur in images.
pub(crate) fn signal_number(name: &str) -> Result<i32> {
    let upper = name.to_ascii_uppercase();
    let plain = upper.strip_prefix("SIG").unwrap_or(&upper);
    let real_time = |base: i32, rest: &str| match rest {
        "" => Some(base),
        rest => rest.parse::<i32>().ok().and_then(|offset| base.checked_add(offset)),
    };
    let found = if let Ok(number) = plain.parse::<i32>() {
        Some(number)
    } else if let Some(rest) = plain.strip_prefix("RTMIN") {
        real_time(libc::SIGRTMIN(), rest)
    } else if let Some(rest) = plain.strip_prefix("RTMAX") {
        real_time(libc::SIGRTMAX(), rest)
    } else {
        format!("SIG{plain}").parse::<Signal>().ok().map(|signal| signal as i32)
    };
    found
        .filter(|number| (1..=libc::SIGRTMAX()).contains(number))
        .ok_or_else(|| Error::Refused(format!("unknown signal {name:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_notations_of_signals_are_parsed() {
        for (name, number) in [("SIGTERM", 15), ("usr1", 10), ("9", 9), ("SIGRTMIN+3", 37)] {
            assert_eq!(signal_number(name).unwrap(), number, "{name}");
        }
        for name in ["SIGNOPE", "0", "99", "RTMIN+x", "SIGRTMIN+2147483647"] {
            assert!(signal_number(name).is_err(), "{name}");
        }
    }
}
