//! When each request is to be sent, fixed in advance.
//!
//! Open loop: a slow or failing server does not slow the load down, as it would if each client waited for its answer.
//! Latency counts from the planned time, so requests that had to wait are not left out (no coordinated omission).

use crate::outcome::ConnectionKind;
use std::time::Duration;

/// The requests of one kind: evenly spaced.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Stream {
    pub(crate) kind: ConnectionKind,
    pub(crate) per_second: f64,
    /// Streams begin at different times, so that their requests do not coincide.
    pub(crate) offset: Duration,
}

/// The share of slow requests, because each is open for long.
const SLOW_SHARE: f64 = 0.1;

/// Splits a rate between kinds of connections.
pub(crate) fn streams(kinds: &[ConnectionKind], rate: f64) -> Vec<Stream> {
    let mut kinds = kinds.to_vec();
    kinds.sort_unstable();
    kinds.dedup();
    let slow = kinds.contains(&ConnectionKind::Slow);
    let others = kinds.iter().filter(|kind| **kind != ConnectionKind::Slow).count();
    let share = |kind| match (kind, slow, others) {
        (ConnectionKind::Slow, _, 0) => 1.0,
        (ConnectionKind::Slow, _, _) => SLOW_SHARE,
        (_, true, others) => (1.0 - SLOW_SHARE) / others as f64,
        (_, false, others) => 1.0 / others as f64,
    };
    let count = kinds.len().max(1) as f64;
    let stream = |(place, kind): (usize, &ConnectionKind)| {
        let per_second = rate * share(*kind);
        let offset = Duration::from_secs_f64(place as f64 / count / per_second);
        Stream { kind: *kind, per_second, offset }
    };
    kinds.iter().enumerate().map(stream).collect()
}

impl Stream {
    /// When request `number` is to be sent, since the start.
    pub(crate) fn due(&self, number: u64) -> Duration {
        self.offset + Duration::from_secs_f64(number as f64 / self.per_second)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ConnectionKind::{Keepalive, New, Slow};

    #[test]
    fn the_rate_is_split_between_the_kinds() {
        for (kinds, expected) in [
            (&[New][..], &[(New, 100.0)][..]),
            (&[Keepalive, New, New], &[(New, 50.0), (Keepalive, 50.0)]),
            (&[New, Keepalive, Slow], &[(New, 45.0), (Keepalive, 45.0), (Slow, 10.0)]),
            (&[Slow], &[(Slow, 100.0)]),
        ] {
            let got: Vec<_> =
                streams(kinds, 100.0).iter().map(|one| (one.kind, one.per_second)).collect();
            assert_eq!(got, expected, "{kinds:?}");
        }
    }

    #[test]
    fn send_times_do_not_depend_on_answers() {
        let both = streams(&[New, Keepalive], 100.0);
        assert_eq!(both[0].due(0), Duration::ZERO);
        assert_eq!(both[0].due(50), Duration::from_secs(1));
        assert_eq!(both[1].due(0), Duration::from_millis(10), "halfway between the others");
        assert_eq!(both[1].due(500), Duration::from_millis(10_010), "they do not drift");
    }
}
