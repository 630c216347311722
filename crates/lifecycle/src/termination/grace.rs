//! How long an ending may take: of a pod, of one container, and before somebody is told that it hangs.
//!
//! Everything that asks for an end is counted, and the smallest wins; so a later request can only
//! hurry an ending that is under way (T-EDGE-2).

use crate::status::is_static;
use k8s_openapi::api::core::v1 as core;
use std::time::Duration;

/// What the node gives at least: also a forced delete asks before it kills (T-NODE-14).
const MIN: i64 = 1;
/// T-NODE-18: of a container whose pod says nothing.
const UNSAID: i64 = 2;
/// A century. Any number of seconds can be asked for, and no clock can count up to all of them.
const MAX: i64 = 100 * 365 * 86_400;

/// T-NODE-5: the grace of a whole pod that ends on the node: the smallest of what was asked for, else
/// the pod's own, and at least a second. `internal`: eviction, shutdown. `gone`: the pod has left its
/// source. For a pod of the API that means that it was forced (T-NODE-14); a static pod has no other way
/// to be deleted, and ends with its own grace (T-NODE-89).
pub fn pod_grace(pod: &core::Pod, internal: Option<i64>, gone: bool) -> Duration {
    let forced = (gone && !is_static(pod)).then_some(MIN);
    let asked = [pod.metadata.deletion_grace_period_seconds, internal, forced];
    seconds(asked.into_iter().flatten().min().or(own(pod)).unwrap_or(MIN).max(MIN))
}

/// T-NODE-18: the grace of one container that ends while its pod goes on; `probe`: the one that failed.
pub fn container_grace(pod: &core::Pod, probe: Option<&core::Probe>) -> Duration {
    let asked = pod.metadata.deletion_grace_period_seconds;
    let probes = probe.and_then(|probe| probe.termination_grace_period_seconds);
    seconds(asked.or(probes).or(own(pod)).unwrap_or(UNSAID))
}

/// T-NODE-84: what the node itself ends (eviction, preemption, shutdown) and what is not gone after this
/// is worth a warning.
pub fn reported_after(grace: Duration) -> Duration {
    grace.mul_f64(1.5).max(Duration::from_secs(10))
}

fn own(pod: &core::Pod) -> Option<i64> {
    pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds)
}

fn seconds(amount: i64) -> Duration {
    Duration::from_secs(u64::try_from(amount.min(MAX)).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// T-NODE-5, T-NODE-18: a grace is as long as a clock can count, whoever asked for how much.
    #[test]
    fn no_grace_is_too_long_for_a_clock() {
        let pod: core::Pod = typed::from_value(json!({
            "metadata": { "deletionGracePeriodSeconds": i64::MAX },
            "spec": { "containers": [], "terminationGracePeriodSeconds": i64::MAX },
        }))
        .unwrap();
        let own = core::Pod { metadata: Default::default(), ..pod.clone() };
        let century = Duration::from_secs(MAX as u64);
        for grace in [
            pod_grace(&pod, None, false),
            pod_grace(&own, Some(i64::MAX), false),
            container_grace(&own, None),
        ] {
            assert_eq!(grace, century);
            assert_eq!(reported_after(grace), century * 3 / 2);
        }
        assert_eq!(pod_grace(&own, Some(7), false), Duration::from_secs(7));
    }
}
