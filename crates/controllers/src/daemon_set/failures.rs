//! Backoff for replacing failed pods, per set and node (C-87). Each set has its own entries, so that one set cannot
//! push out those of another.

use client::ObjectKey;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::DaemonSet;
use lifecycle::backoff::{Backoffs, Pace};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

const PACE: Pace = Pace {
    first: SignedDuration::from_secs(1),
    longest: SignedDuration::from_mins(15),
    forgotten_after: SignedDuration::from_mins(30),
};

/// Backoffs by set. A new set of the same name has another UID and starts from the beginning.
#[derive(Default)]
pub(super) struct Failures(Mutex<BTreeMap<ObjectKey, (Option<String>, Backoffs)>>);

impl Failures {
    fn all(&self) -> MutexGuard<'_, BTreeMap<ObjectKey, (Option<String>, Backoffs)>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// How long to wait before the failed pod of a node is replaced. If there is no wait, this counts a failure.
    /// A new generation of the spec starts from the beginning.
    pub(super) fn wait(
        &self,
        set: &DaemonSet,
        nodes: usize,
        node: &str,
        now: Timestamp,
    ) -> Option<Duration> {
        let generation = set.status.as_ref().and_then(|status| status.observed_generation);
        let of = &format!("{}/{node}", generation.unwrap_or(0));
        let fresh = || (set.metadata.uid.clone(), Backoffs::new(PACE));
        let mut all = self.all();
        let (uid, backoffs) = all.entry(ObjectKey::of(set)).or_insert_with(fresh);
        if *uid != set.metadata.uid {
            (*uid, *backoffs) = fresh();
        }
        backoffs.remember(nodes);
        if let Some(remaining) = backoffs.waiting_since_told(of, now) {
            return Duration::try_from(remaining.until.duration_since(now)).ok();
        }
        backoffs.failed(of, now, now);
        None
    }

    pub(super) fn forget(&self, set: &ObjectKey) {
        self.all().remove(set);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::apps::v1::DaemonSetStatus;
    use serde_json::json;

    fn set(name: &str, uid: &str) -> DaemonSet {
        let meta = json!({ "namespace": "a", "name": name, "uid": uid });
        typed::from_value(json!({ "metadata": meta })).unwrap()
    }

    #[test]
    fn c_87_sets_and_nodes_do_not_push_out_each_others_backoffs() {
        let (failures, now) = (Failures::default(), "2026-01-01T00:00:00Z".parse().unwrap());
        let (one, other) = (set("one", "1"), set("other", "2"));
        assert_eq!(failures.wait(&one, 3000, "first", now), None);
        for node in 0..2999 {
            failures.wait(&one, 3000, &format!("n{node}"), now);
            failures.wait(&other, 3000, &format!("n{node}"), now);
        }
        assert_eq!(failures.wait(&one, 3000, "first", now), Some(Duration::from_secs(1)));
        assert_eq!(failures.wait(&set("one", "3"), 3000, "first", now), None, "a new set");
    }

    /// T-CTRL-31: the pod fails each time it is created.
    #[test]
    fn c_87_t_ctrl_31_waits_double_from_1_second_to_15_minutes() {
        let failures = Failures::default();
        let mut one = set("one", "1");
        let mut now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let mut gaps = Vec::new();
        for _ in 0..12 {
            assert_eq!(failures.wait(&one, 1, "n", now), None);
            let gap = failures.wait(&one, 1, "n", now).unwrap();
            now += gap;
            gaps.push(gap.as_secs());
        }
        assert_eq!(gaps, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 900, 900]);
        assert!(failures.wait(&one, 1, "n", now).is_none());
        one.status = Some(DaemonSetStatus { observed_generation: Some(2), ..Default::default() });
        assert_eq!(failures.wait(&one, 1, "n", now), None, "another spec");
    }

    #[test]
    fn c_87_backoffs_of_a_deleted_set_are_dropped() {
        let (failures, now) = (Failures::default(), "2026-01-01T00:00:00Z".parse().unwrap());
        let set = set("one", "1");
        failures.wait(&set, 1, "n", now);
        failures.forget(&ObjectKey::of(&set));
        assert!(failures.all().is_empty());
    }
}
