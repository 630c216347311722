//! Resets the condition DisruptionTarget of pods that still exist two minutes later (T-EVICT-13).

use super::budget::DELETION_MAX;
use crate::pods;
use crate::start::Cluster;
use client::{Next, ObjectKey, Queue, run_controller};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use std::time::Duration;

pub(super) async fn run(cluster: &Cluster) {
    let queue = Queue::new();
    cluster.pods.feed(&queue, |pod| {
        let marked = pods::condition(pod, "DisruptionTarget").is_some();
        marked.then(|| ObjectKey::of(pod)).into_iter().collect()
    });
    run_controller("stale-disruptions", &queue, 1, |key| reconcile(cluster, key)).await;
}

async fn reconcile(cluster: &Cluster, key: ObjectKey) -> client::Result<Next> {
    let pod = cluster.pods.get(&key);
    let Some((pod, left)) = pod.and_then(|pod| left(&pod, clock::now()).map(|left| (pod, left)))
    else {
        return Ok(Next::Change);
    };
    if !left.is_zero() {
        return Ok(Next::After(left));
    }
    let not = json!({
        "type": "DisruptionTarget", "status": "False", "reason": null, "message": null,
        "lastTransitionTime": clock::now_rfc3339(),
    });
    let patch = json!({
        "metadata": { "uid": pod.metadata.uid, "resourceVersion": pod.metadata.resource_version },
        "status": { "conditions": [not] },
    });
    match cluster.client.patch_status::<Pod>(&key, &patch).await {
        Err(error) if error.is_not_found() || error.is_conflict() => Ok(Next::Change),
        patched => patched.map(|_| Next::Change),
    }
}

/// How long the condition may still be true; `None` if it is not set, or cannot become stale.
fn left(pod: &Pod, now: Timestamp) -> Option<Duration> {
    let mark = pods::condition(pod, "DisruptionTarget").filter(|mark| mark.status == "True")?;
    let by_node = mark.reason.as_deref() == Some("TerminationByKubelet");
    if by_node || pods::is_being_deleted(pod) || pods::is_terminal_pod(pod) {
        return None;
    }
    let since = mark.last_transition_time.as_ref().map_or(now, |time| time.0);
    let until = since.saturating_add(DELETION_MAX).ok()?;
    Some(until.duration_since(now).try_into().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t_evict_13_the_condition_is_stale_only_for_running_pods() {
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        let pod = |status: &str, reason: &str, phase: &str, ending: bool| -> Pod {
            typed::from_value(json!({
                "metadata": { "name": "p", "deletionTimestamp": ending.then(|| at(0).to_string()) },
                "status": { "phase": phase, "conditions": [{
                    "type": "DisruptionTarget", "status": status, "reason": reason,
                    "lastTransitionTime": at(0).to_string() }] },
            }))
            .unwrap()
        };
        for (what, pod, now, expected) in [
            ("early", pod("True", "EvictionByEvictionAPI", "Running", false), 20, Some(100)),
            ("late", pod("True", "EvictionByEvictionAPI", "Running", false), 200, Some(0)),
            ("taken back", pod("False", "", "Running", false), 200, None),
            ("by the node", pod("True", "TerminationByKubelet", "Running", false), 200, None),
            ("ending", pod("True", "EvictionByEvictionAPI", "Running", true), 200, None),
            ("ended", pod("True", "EvictionByEvictionAPI", "Failed", false), 200, None),
        ] {
            assert_eq!(left(&pod, at(now)), expected.map(Duration::from_secs), "{what}");
        }
    }
}
