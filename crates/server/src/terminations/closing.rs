//! Closes records that no other component will close.
//!
//! A server that crashes between removing a pod and recording it leaves an open record. Closing it records what is known:
//! the object is gone, and the result of its containers is unknown unless the node has confirmed that no process is left.

use super::append;
use super::deletion_steps::{stamp, step};
use crate::object::{Stored, store_name};
use crate::server::Server;
use api::value::ValueExt;
use jiff::{SignedDuration, Timestamp};
use lifecycle::timeline::{SERVER, StepKind, TerminationRecord};

/// How long after its last step the record of a removed pod is closed. Until then a node without connection can still post
/// its steps.
const CLOSE_AFTER: SignedDuration = SignedDuration::from_mins(10);

/// What to do with an open record.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Open,
    Close,
    Delete,
}

/// The state of the record's pod in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pod {
    /// Removed, or replaced by another one of the same name.
    Gone,
    Deleted,
    Lives,
}

pub(super) fn fate_of(
    server: &Server,
    namespace: &str,
    record: &TerminationRecord,
    oldest: Timestamp,
) -> Fate {
    let pod = server.store().get("pods", &store_name(namespace, &record.pod.name));
    let pod = pod.map(|pod| pod.value());
    let pod = match pod.filter(|pod| pod.text(&["metadata", "uid"]) == record.pod.uid) {
        None => Pod::Gone,
        Some(pod) if pod.at(&["metadata", "deletionTimestamp"]).is_some() => Pod::Deleted,
        Some(_) => Pod::Lives,
    };
    fate(record, pod, clock::now(), oldest)
}

fn fate(record: &TerminationRecord, pod: Pod, now: Timestamp, oldest: Timestamp) -> Fate {
    let last = record.steps.iter().map(|step| step.at).max().unwrap_or(Timestamp::MIN);
    match pod {
        Pod::Gone if now.duration_since(last) >= CLOSE_AFTER => Fate::Close,
        // The node aborted the termination, and the pod still runs.
        Pod::Lives if last < oldest => Fate::Delete,
        Pod::Gone | Pod::Lives | Pod::Deleted => Fate::Open,
    }
}

pub(super) async fn close(server: &Server, namespace: &str, record: &TerminationRecord) {
    let now = stamp();
    let steps = |record: &TerminationRecord| {
        let mut steps = Vec::new();
        let mut add = |what: StepKind, message: &str| {
            let sequence = record.next_sequence(SERVER) + steps.len() as i64;
            let mut step = step(now, sequence, what);
            step.message = message.to_owned();
            steps.push(step);
        };
        if !record.confirmed {
            add(StepKind::Lost, "the node did not report how the containers ended");
        }
        if !record.steps.iter().any(|step| step.what == StepKind::Removed) {
            add(StepKind::Removed, "found to be gone; the time of the removal is not known");
        }
        steps
    };
    if let Err(error) = append(server, namespace, &record.pod, steps).await {
        let (pod, why) = (&record.pod.name, error.to_string());
        tracing::warn!(namespace, pod, why, "closing a termination record failed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lifecycle::timeline::Subject;

    #[test]
    fn a_record_is_closed_when_its_pod_is_gone_and_deleted_when_its_pod_still_runs() {
        let now: Timestamp = "2026-01-02T00:00:00Z".parse().unwrap();
        let oldest = now - SignedDuration::from_hours(24);
        for (pod, minutes, wanted) in [
            (Pod::Gone, 9, Fate::Open),
            (Pod::Gone, 10, Fate::Close),
            (Pod::Gone, 10_000, Fate::Close),
            (Pod::Deleted, 10_000, Fate::Open),
            (Pod::Lives, 24 * 60, Fate::Open),
            (Pod::Lives, 24 * 60 + 1, Fate::Delete),
        ] {
            let subject = Subject { name: "web".into(), uid: "u".into(), ..Subject::default() };
            let mut record = TerminationRecord::new("default", subject, "r", now);
            let mut seen = step(stamp(), 0, StepKind::AgentRestarted);
            seen.at = now - SignedDuration::from_mins(minutes);
            record.append(vec![seen]);
            assert_eq!(fate(&record, pod, now, oldest), wanted, "{pod:?} after {minutes} min");
        }
    }
}
