//! Grace periods: of a pod, of one container, and until a slow termination is reported.
//!
//! The smallest requested value wins, so a later request can only shorten a termination (T-EDGE-2).

use crate::status::is_static;
use k8s_openapi::api::core::v1 as core;
use std::time::Duration;

/// The smallest grace period on a node: even a forced delete sends a stop signal before the kill (T-NODE-14).
const MIN: i64 = 1;
/// Grace period of a container whose pod has none (T-NODE-18).
const UNSPECIFIED: i64 = 2;
/// A century. Requests may name any number of seconds, and adding it to a time must not overflow.
const MAX: i64 = 100 * 365 * 86_400;

/// The grace period of a whole pod: the smallest one requested, else the pod's own, and at least a second
/// (T-NODE-5). `internal`: requested by eviction or shutdown. `gone`: the pod left its source. For a pod of
/// the API that means a forced delete (T-NODE-14); for a static pod it is the normal way, with the pod's own
/// grace period (T-NODE-89).
pub fn pod_grace(pod: &core::Pod, internal: Option<i64>, gone: bool) -> Duration {
    let forced = (gone && !is_static(pod)).then_some(MIN);
    let requested = [pod.metadata.deletion_grace_period_seconds, internal, forced];
    seconds(requested.into_iter().flatten().min().or(own(pod)).unwrap_or(MIN).max(MIN))
}

/// The grace period of one container that terminates while its pod keeps running (T-NODE-18). `probe`: the one that
/// failed.
pub fn container_grace(pod: &core::Pod, probe: Option<&core::Probe>) -> Duration {
    let requested = pod.metadata.deletion_grace_period_seconds;
    let probes = probe.and_then(|probe| probe.termination_grace_period_seconds);
    seconds(requested.or(probes).or(own(pod)).unwrap_or(UNSPECIFIED))
}

/// When a termination by the node itself (eviction, preemption, shutdown) is reported as slow (T-NODE-84).
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

    /// T-NODE-5, T-NODE-18: huge grace periods are limited, so that no time overflows.
    #[test]
    fn huge_grace_periods_are_limited() {
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
