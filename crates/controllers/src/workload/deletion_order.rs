//! Which pods are deleted first when there are too many (T-CTRL-4, T-CTRL-5). Pure.

use super::{is_ready, phase, ready_since, uid};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use std::cmp::{Ordering, Reverse};
use std::sync::Arc;

const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// A pod, and how many related pods (T-CTRL-5) are on the same node.
#[derive(Debug, Clone)]
pub(crate) struct Candidate {
    pub(crate) pod: Arc<Pod>,
    pub(crate) related_on_node: usize,
}

/// Sorts pods so that those to delete first come first.
///
/// In upstream the UID decides as soon as two ages fall into one bucket, which is not a consistent order (three pods
/// can each come before the next); here the UID decides last.
pub(crate) fn sort_for_deletion(pods: &mut [Candidate], now: Timestamp) {
    pods.sort_by(|a, b| compare(a, b, now));
}

/// The order for Jobs: related pods and deletion cost do not count, and younger pods come first (C-105).
pub(crate) fn sort_for_job_deletion(pods: &mut [Arc<Pod>]) {
    pods.sort_by_cached_key(|pod| {
        let created = pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
        (
            (is_assigned(pod), phase_order(pod), is_ready(pod)),
            Reverse(ready_since(pod)),
            Reverse(restarts(pod)),
            Reverse(created),
            uid(pod.as_ref()).to_owned(),
        )
    });
}

fn compare(a: &Candidate, b: &Candidate, now: Timestamp) -> Ordering {
    let key = |candidate: &Candidate| {
        let pod = candidate.pod.as_ref();
        let created = pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
        (
            (is_assigned(pod), phase_order(pod), is_ready(pod), deletion_cost(pod)),
            Reverse(candidate.related_on_node),
            ready_since(pod).map(|since| bucket(since, now)),
            Reverse(restarts(pod)),
            created.map(|since| bucket(since, now)),
        )
    };
    key(a).cmp(&key(b)).then_with(|| uid(a.pod.as_ref()).cmp(uid(b.pod.as_ref())))
}

fn is_assigned(pod: &Pod) -> bool {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    node.is_some_and(|node| !node.is_empty())
}

fn phase_order(pod: &Pod) -> u8 {
    match phase(pod) {
        "" | "Pending" => 0,
        "Unknown" => 1,
        _ => 2,
    }
}

fn deletion_cost(pod: &Pod) -> i32 {
    // The server rejects values that are not numbers; an older one counts as zero.
    super::annotation(pod, DELETION_COST).and_then(|cost| cost.parse().ok()).unwrap_or(0)
}

/// Two ages differ only if one is about twice the other.
fn bucket(since: Timestamp, now: Timestamp) -> i32 {
    let age = now.duration_since(since).as_nanos();
    if age > 0 { age.ilog2() as i32 } else { -1 }
}

/// The highest restart count of regular containers, and of sidecars.
fn restarts(pod: &Pod) -> (i32, i32) {
    let Some(status) = &pod.status else { return (0, 0) };
    let regular = status.container_statuses.iter().flatten().map(|c| c.restart_count);
    let inits = pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten());
    let sidecars: Vec<&str> = inits
        .filter(|container| container.restart_policy.as_deref() == Some("Always"))
        .map(|container| container.name.as_str())
        .collect();
    let of_sidecars = status.init_container_statuses.iter().flatten();
    let of_sidecars = of_sidecars
        .filter(|status| sidecars.contains(&status.name.as_str()))
        .map(|status| status.restart_count);
    (regular.max().unwrap_or(0), of_sidecars.max().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(name: &str, related_on_node: usize, change: Value) -> Candidate {
        let mut pod = json!({
            "metadata": { "name": name, "uid": name, "creationTimestamp": "2026-01-01T00:00:00Z" },
            "spec": { "nodeName": "n", "containers": [] },
            "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "True",
                        "lastTransitionTime": "2026-01-01T00:00:10Z" }] },
        });
        json_patch(&mut pod, change);
        Candidate { pod: Arc::new(typed::from_value(pod).unwrap()), related_on_node }
    }

    fn json_patch(into: &mut Value, change: Value) {
        match (into, change) {
            (Value::Object(into), Value::Object(change)) => {
                for (key, value) in change {
                    json_patch(into.entry(key).or_insert(Value::Null), value);
                }
            }
            (into, change) => *into = change,
        }
    }

    #[test]
    fn t_ctrl_4_the_first_difference_decides_which_pod_is_deleted_first() {
        let ready_at = |at: &str| {
            json!({ "status": { "conditions": [{ "type": "Ready", "status": "True",
                    "lastTransitionTime": at }] } })
        };
        let cost = |cost: &str| json!({ "metadata": { "annotations": { DELETION_COST: cost } } });
        let restarted = |times: i32| {
            json!({ "status": { "containerStatuses": [{ "name": "c", "image": "", "imageID": "",
                    "ready": true, "restartCount": times }] } })
        };
        let plain = || pod("z", 0, json!({}));
        let not_ready =
            json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }] } });
        let cases = [
            ("unscheduled", pod("a", 0, json!({ "spec": { "nodeName": "" } })), plain()),
            ("pending", pod("a", 0, json!({ "status": { "phase": "Pending" } })), plain()),
            ("unknown", pod("a", 0, json!({ "status": { "phase": "Unknown" } })), plain()),
            ("not ready", pod("a", 0, not_ready.clone()), plain()),
            ("not ready before cheap", pod("a", 0, not_ready), pod("z", 0, cost("-5"))),
            ("cheap", pod("z", 0, cost("-5")), pod("a", 3, json!({}))),
            ("expensive", pod("z", 9, json!({})), pod("a", 9, cost("7"))),
            ("more related pods on the node", pod("z", 2, json!({})), pod("a", 1, json!({}))),
            (
                "ready for shorter",
                pod("z", 0, ready_at("2026-01-01T01:30:00Z")),
                pod("a", 0, json!({})),
            ),
            ("restarts", pod("z", 0, restarted(3)), pod("a", 0, restarted(2))),
            (
                "younger",
                pod("z", 0, json!({ "metadata": { "creationTimestamp": "2026-01-01T01:30:00Z" } })),
                pod("a", 0, json!({})),
            ),
            (
                "only the UID differs",
                pod("a", 0, json!({})),
                pod("z", 0, ready_at("2026-01-01T00:00:11Z")),
            ),
        ];
        let now = "2026-01-01T02:00:00Z".parse().unwrap();
        for (what, first, second) in cases {
            let mut pods = [second, first.clone()];
            sort_for_deletion(&mut pods, now);
            assert_eq!(uid(pods[0].pod.as_ref()), uid(first.pod.as_ref()), "{what}");
        }
    }

    #[test]
    fn c_105_a_job_deletes_pods_that_have_done_least_first() {
        let ready = |since: &str| json!([{ "type": "Ready", "status": "True", "lastTransitionTime": since }]);
        let restarted = json!([{ "name": "c", "image": "", "imageID": "", "ready": true,
                                 "restartCount": 3 }]);
        let running = |more: Value| {
            let mut status = json!({ "phase": "Running" });
            status.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            status
        };
        let early = "2026-01-01T00:00:00Z";
        let late = "2026-01-01T00:00:30Z";
        // In the order of deletion.
        let rows = [
            ("unscheduled", "", early, json!({ "phase": "Pending" })),
            ("pending", "n", early, json!({ "phase": "Pending" })),
            ("not ready", "n", early, running(json!({}))),
            ("ready for shorter", "n", early, running(json!({ "conditions": ready(late) }))),
            (
                "restarted more",
                "n",
                early,
                running(json!({ "conditions": ready(early), "containerStatuses": restarted })),
            ),
            ("younger", "n", late, running(json!({ "conditions": ready(early) }))),
            ("older", "n", early, running(json!({ "conditions": ready(early) }))),
        ];
        let mut all: Vec<Arc<Pod>> = rows
            .iter()
            .map(|(name, node, created, status)| {
                let cost = json!({ "controller.kubernetes.io/pod-deletion-cost":
                                   if *name == "older" { "-100" } else { "0" } });
                let meta = json!({ "name": name, "uid": name, "creationTimestamp": created,
                                   "annotations": cost });
                let pod = json!({ "metadata": meta, "status": status,
                                  "spec": { "nodeName": node, "containers": [] } });
                Arc::new(typed::from_value(pod).unwrap())
            })
            .collect();
        all.reverse();
        sort_for_job_deletion(&mut all);
        let names: Vec<&str> =
            all.iter().map(|pod| pod.metadata.name.as_deref().unwrap()).collect();
        assert_eq!(names, rows.map(|row| row.0), "the deletion cost does not count");
    }
}
