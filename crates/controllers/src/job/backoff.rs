//! How long a Job waits before it replaces a failed pod (C-112). No I/O.

use super::pods;
use client::ObjectKey;
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
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
    /// The record after these newly finished pods.
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

/// Records of Jobs that exist and have failures. A new Job of the same name has another UID.
#[derive(Default)]
pub(super) struct Records(Mutex<BTreeMap<ObjectKey, (Option<String>, Record)>>);

impl Records {
    fn all(&self) -> MutexGuard<'_, BTreeMap<ObjectKey, (Option<String>, Record)>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(super) fn of(&self, job: &Job) -> Record {
        let all = self.all();
        let found = all.get(&ObjectKey::of(job)).filter(|(uid, _)| *uid == job.metadata.uid);
        found.map(|(_, record)| record.clone()).unwrap_or_default()
    }

    pub(super) fn remember(&self, job: &Job, record: Record) {
        match record == Record::default() {
            true => self.all().remove(&ObjectKey::of(job)),
            false => self.all().insert(ObjectKey::of(job), (job.metadata.uid.clone(), record)),
        };
    }

    pub(super) fn forget(&self, job: &ObjectKey) {
        self.all().remove(job);
    }
}

pub(super) fn remaining(record: &Record, now: Timestamp) -> Option<Duration> {
    left(record.failures, record.last?, now)
}

/// The remaining backoff of an index, from its failed pod (C-117).
pub(super) fn remaining_of(pod: &Pod, now: Timestamp) -> Option<Duration> {
    let index_failures = pods::index_failures(pod);
    let failures = index_failures.failures.saturating_add(index_failures.ignored).saturating_add(1);
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
    fn c_112_t_ctrl_29_backoff_doubles_from_10_seconds_to_10_minutes() {
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

    #[test]
    fn c_112_failures_are_recorded_per_job_uid_until_the_job_is_gone() {
        let job = |uid: &str| -> Job {
            let meta = serde_json::json!({ "namespace": "a", "name": "j", "uid": uid });
            typed::from_value(serde_json::json!({ "metadata": meta })).unwrap()
        };
        let failed = Record { failures: 3, last: None };
        let records = Records::default();
        records.remember(&job("1"), failed.clone());
        assert_eq!(records.of(&job("1")), failed);
        assert_eq!(records.of(&job("2")), Record::default(), "another Job of the same name");
        records.remember(&job("2"), failed);
        assert_eq!(records.all().len(), 1, "one record per name");
        records.forget(&ObjectKey::of(&job("2")));
        assert!(records.all().is_empty());
    }
}
