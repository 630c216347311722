//! How long a Job waits before it replaces a failed pod (C-112). Pure.

use super::pods;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use std::time::Duration;

const FIRST: Duration = Duration::from_secs(10);
const LONGEST: Duration = Duration::from_secs(600);

/// Failures since the last success.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Record {
    failures: u32,
    last: Option<Timestamp>,
}

impl Record {
    /// With these that were not known to have finished.
    pub(super) fn after(&self, succeeded: &[&Pod], failed: &[&Pod]) -> Record {
        let success = succeeded.iter().map(|pod| pods::finished_at(pod)).max();
        let times = failed.iter().map(|pod| pods::finished_at(pod));
        let since: Vec<Timestamp> =
            times.filter(|at| success.is_none_or(|success| *at > success)).collect();
        let before = if success.is_some() { Record::default() } else { self.clone() };
        Record {
            failures: before
                .failures
                .saturating_add(u32::try_from(since.len()).unwrap_or(u32::MAX)),
            last: since.into_iter().chain(before.last).max(),
        }
    }
}

pub(super) fn remaining(record: &Record, now: Timestamp) -> Option<Duration> {
    left(record.failures, record.last?, now)
}

/// As the failed pod of an index tells it (C-117).
pub(super) fn remaining_of(pod: &Pod, now: Timestamp) -> Option<Duration> {
    let tally = pods::tally(pod);
    let failures = tally.failures.saturating_add(tally.ignored).saturating_add(1);
    left(u32::try_from(failures).unwrap_or(1), pods::finished_at(pod), now)
}

fn left(failures: u32, last: Timestamp, now: Timestamp) -> Option<Duration> {
    let doublings = failures.checked_sub(1)?.min(16);
    let delay = FIRST.saturating_mul(1 << doublings).min(LONGEST);
    let passed = Duration::try_from(now.duration_since(last)).unwrap_or_default();
    delay.checked_sub(passed).filter(|left| !left.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c_112_t_ctrl_29_the_wait_doubles_from_ten_seconds_to_ten_minutes() {
        let at: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let expected = [(0, None), (1, Some(10)), (2, Some(20)), (4, Some(80)), (9, Some(600))];
        for (failures, seconds) in expected {
            assert_eq!(left(failures, at, at), seconds.map(Duration::from_secs), "{failures}");
        }
        assert_eq!(
            left(1, at, "2026-01-01T00:00:04Z".parse().unwrap()),
            Some(Duration::from_secs(6))
        );
        assert_eq!(left(1, at, "2026-01-01T00:00:10Z".parse().unwrap()), None);
    }
}
