//! What a DELETE means for an object: its grace period, its deletion fields, and when it may be removed.
//!
//! The server reads the object, calls this, and writes the result. It depends only on the few fields that matter.

use jiff::{SignedDuration, Timestamp};

/// Grace period of a pod whose spec has none; stored pods always have one (T-API-1).
pub const POD_GRACE_DEFAULT: i64 = 30;

/// What the grace period of a pod depends on.
#[derive(Debug, Clone, Copy)]
pub struct Pod {
    /// `spec.terminationGracePeriodSeconds`
    pub grace: Option<i64>,
    /// It has a node, so there may be processes.
    pub scheduled: bool,
    /// Its phase is Succeeded or Failed.
    pub finished: bool,
}

impl Pod {
    /// The grace period of the first delete (T-API-1 to T-API-6). The order of the checks is upstream's: an
    /// unscheduled pod goes at once even if a negative grace period was requested, which means one second.
    pub fn grace(self, requested: Option<i64>) -> i64 {
        let asked = requested.or(self.grace).unwrap_or(POD_GRACE_DEFAULT);
        if !self.scheduled || self.finished {
            return 0;
        }
        if asked < 0 { 1 } else { asked }
    }
}

/// The two deletion fields of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// When the grace period ends; in the future until then (T-API-11).
    pub deletion_timestamp: Timestamp,
    pub grace_seconds: i64,
}

impl Mark {
    /// The fields after the first delete.
    pub fn first(now: Timestamp, grace_seconds: i64) -> Mark {
        Mark { deletion_timestamp: later(now, grace_seconds), grace_seconds }
    }

    /// The fields after a later delete; None if it changes nothing (T-API-16 to T-API-20).
    ///
    /// A later delete can only shorten the grace period. It counts from the first delete, and a time in the past
    /// becomes now. Unless 0 was requested, one second remains, so that the termination stays graceful.
    pub fn again(self, now: Timestamp, requested: Option<i64>) -> Option<Mark> {
        let asked = match requested? {
            negative if negative < 0 => 1,
            asked => asked,
        };
        if asked >= self.grace_seconds {
            return None;
        }
        let deleted_at = later(self.deletion_timestamp, -self.grace_seconds);
        let due = later(deleted_at, asked);
        if due >= now {
            return Some(Mark { deletion_timestamp: due, grace_seconds: asked });
        }
        Some(Mark { deletion_timestamp: now, grace_seconds: asked.min(1) })
    }
}

/// Whether a deleted object may be removed now: it has no finalizer, and its grace period is zero (T-API-37,
/// T-API-38).
pub fn may_go(mark_grace: Option<i64>, finalizers: usize) -> bool {
    finalizers == 0 && mark_grace.unwrap_or(0) == 0
}

fn later(at: Timestamp, seconds: i64) -> Timestamp {
    at.saturating_add(SignedDuration::from_secs(seconds)).unwrap_or(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUNNING: Pod = Pod { grace: Some(30), scheduled: true, finished: false };

    fn at(second: i64) -> Timestamp {
        Timestamp::new(1_000_000 + second, 0).unwrap()
    }

    #[test]
    fn t_api_1_to_6_grace_is_resolved_in_upstreams_order() {
        let unscheduled = Pod { scheduled: false, ..RUNNING };
        let finished = Pod { finished: true, ..RUNNING };
        for (rule, pod, requested, wanted) in [
            ("T-API-1", RUNNING, None, 30),
            ("T-API-1", Pod { grace: None, ..RUNNING }, None, 30),
            ("T-API-2", RUNNING, Some(120), 120),
            ("T-API-2", RUNNING, Some(5), 5),
            ("T-API-3", unscheduled, Some(60), 0),
            ("T-API-4", finished, Some(60), 0),
            ("T-API-5", unscheduled, Some(-5), 0),
            ("T-API-6", RUNNING, Some(-1), 1),
        ] {
            assert_eq!(pod.grace(requested), wanted, "{rule}");
        }
    }

    #[test]
    fn t_api_11_the_deletion_timestamp_is_in_the_future() {
        assert_eq!(Mark::first(at(0), 30).deletion_timestamp, at(30));
    }

    #[test]
    fn t_api_16_to_20_a_later_delete_can_only_shorten() {
        let mark = Mark::first(at(0), 30);
        let due =
            |second, grace_seconds| Some(Mark { deletion_timestamp: at(second), grace_seconds });
        for (rule, now, requested, wanted) in [
            ("T-API-16", 5, None, None),
            ("T-API-17", 5, Some(30), None),
            ("T-API-17", 5, Some(60), None),
            ("T-API-18", 5, Some(10), due(10, 10)),
            ("T-API-19", 20, Some(10), due(20, 1)),
            ("T-API-20", 5, Some(0), due(5, 0)),
        ] {
            assert_eq!(mark.again(at(now), requested), wanted, "{rule} at {now}");
        }
    }

    #[test]
    fn t_api_37_and_38_an_object_is_removed_without_finalizers_and_grace_period() {
        assert!(may_go(None, 0));
        assert!(may_go(Some(0), 0));
        assert!(!may_go(Some(0), 1));
        assert!(!may_go(Some(30), 0), "T-API-38: the node has not finished");
    }
}
