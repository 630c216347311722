//! Which pods go first when there are too many (T-CTRL-4, T-CTRL-5). Pure.

use super::{is_ready, phase, ready_since, uid};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use std::cmp::{Ordering, Reverse};
use std::sync::Arc;

const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// A pod, and how many of its kin are on the same node.
#[derive(Debug, Clone)]
pub(crate) struct Ranked {
    pub(crate) pod: Arc<Pod>,
    pub(crate) company: usize,
}

/// Those that go first stand first.
///
/// Upstream lets the UID decide as soon as two ages fall into one bucket, which is no order (three
/// pods can each go before the next); here the UID decides last.
pub(crate) fn rank_victims(pods: &mut [Ranked], now: Timestamp) {
    pods.sort_by(|a, b| compare(a, b, now));
}

/// As a Job chooses: without company and cost, and the youngest first (C-105).
pub(crate) fn rank_for_removal(pods: &mut [Arc<Pod>]) {
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

fn compare(a: &Ranked, b: &Ranked, now: Timestamp) -> Ordering {
    let key = |ranked: &Ranked| {
        let pod = ranked.pod.as_ref();
        let created = pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
        (
            (is_assigned(pod), phase_order(pod), is_ready(pod), deletion_cost(pod)),
            Reverse(ranked.company),
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
    // A value that is no number is refused by the server; one from before counts as none.
    super::annotation(pod, DELETION_COST).and_then(|cost| cost.parse().ok()).unwrap_or(0)
}

/// Ages are told apart only if one is about twice the other.
fn bucket(since: Timestamp, now: Timestamp) -> i32 {
    let age = now.duration_since(since).as_nanos();
    if age > 0 { age.ilog2() as i32 } else { -1 }
}

/// Of the containers that restart most: the regular ones, then the sidecars.
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

    fn pod(name: &str, company: usize, change: Value) -> Ranked {
        let mut pod = json!({
            "metadata": { "name": name, "uid": name, "creationTimestamp": "2026-01-01T00:00:00Z" },
            "spec": { "nodeName": "n", "containers": [] },
            "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "True",
                        "lastTransitionTime": "2026-01-01T00:00:10Z" }] },
        });
        json_patch(&mut pod, change);
        Ranked { pod: Arc::new(typed::from_value(pod).unwrap()), company }
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
    fn t_ctrl_4_the_first_difference_decides_who_goes_first() {
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
            ("dear", pod("z", 9, json!({})), pod("a", 9, cost("7"))),
            ("company", pod("z", 2, json!({})), pod("a", 1, json!({}))),
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
                "nothing but the uid",
                pod("a", 0, json!({})),
                pod("z", 0, ready_at("2026-01-01T00:00:11Z")),
            ),
        ];
        let now = "2026-01-01T02:00:00Z".parse().unwrap();
        for (what, first, second) in cases {
            let mut pods = [second, first.clone()];
            rank_victims(&mut pods, now);
            assert_eq!(uid(pods[0].pod.as_ref()), uid(first.pod.as_ref()), "{what}");
        }
    }

    #[test]
    fn c_105_a_job_lets_go_of_those_that_have_done_least() {
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
        // In the order in which they go.
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
        rank_for_removal(&mut all);
        let names: Vec<&str> =
            all.iter().map(|pod| pod.metadata.name.as_deref().unwrap()).collect();
        assert_eq!(names, rows.map(|row| row.0), "and the cost of a deletion is not asked");
    }
}
