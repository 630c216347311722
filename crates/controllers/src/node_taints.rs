//! Updates a node's NoSchedule taints by its conditions and by cordoning (N-6, C-185), and records events when nodes
//! are added and removed (C-187).
//!
//! Not here: NoExecute taints (`node_lost`), and setting conditions to Unknown (`node_leases`).

use crate::start::Cluster;
use client::{ObjectKey, Queue, reference, run_controller};
use k8s_openapi::api::core::v1::{Node, ObjectReference, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Mutex;

const WORKERS: usize = 4;

const NO_SCHEDULE: &str = "NoSchedule";
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

/// Condition, status, and the taint for it. Upstream: `nodeConditionToTaintKeyStatusMap`.
const BY_CONDITION: [(&str, &str, &str); 6] = [
    ("Ready", "False", "node.kubernetes.io/not-ready"),
    ("Ready", "Unknown", "node.kubernetes.io/unreachable"),
    ("MemoryPressure", "True", "node.kubernetes.io/memory-pressure"),
    ("DiskPressure", "True", "node.kubernetes.io/disk-pressure"),
    ("PIDPressure", "True", "node.kubernetes.io/pid-pressure"),
    ("NetworkUnavailable", "True", "node.kubernetes.io/network-unavailable"),
];

pub(crate) async fn run(cluster: &Cluster) {
    let queue = Queue::new();
    cluster.nodes.feed_keys(&queue);
    cluster.nodes.synced().await;
    let known = Mutex::default();
    run_controller("node-taints", &queue, WORKERS, |key| reconcile(cluster, &known, key)).await;
}

/// Nodes whose registration was recorded.
type Registered = Mutex<BTreeMap<ObjectKey, ObjectReference>>;

async fn reconcile(cluster: &Cluster, known: &Registered, key: ObjectKey) -> client::Result<()> {
    let node = cluster.nodes.get(&key);
    announce(cluster, known, &key, node.as_deref());
    let Some(node) = node else {
        return Ok(());
    };
    let Some(taints) = plan(&node, clock::now()) else {
        return Ok(());
    };
    // The patch replaces the whole list, so it applies only to the observed version.
    let version = &node.metadata.resource_version;
    let patch = json!({ "metadata": { "resourceVersion": version }, "spec": { "taints": taints } });
    match cluster.client.patch_merge::<Node>(&key, &patch).await {
        Err(error) if error.is_not_found() => Ok(()),
        // The watch brings the new version and queues the node again.
        Err(error) if error.is_conflict() => Ok(()),
        patched => patched.map(drop),
    }
}

fn announce(cluster: &Cluster, known: &Registered, key: &ObjectKey, node: Option<&Node>) {
    let mut known = known.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let before = known.get(key);
    if before.map(|before| &before.uid) == node.map(|node| &node.metadata.uid) {
        return;
    }
    let name = key.name();
    if let Some(before) = known.remove(key) {
        let message = format!("Node {name} event: Removing Node {name} from Controller");
        cluster.recorder.normal(&before, "RemovingNode", message);
    }
    if let Some(node) = node {
        let on = reference(node);
        let message = format!("Node {name} event: Registered Node {name} in Controller");
        cluster.recorder.normal(&on, "RegisteredNode", message);
        known.insert(key.clone(), on);
    }
}

/// The new taints, if they differ. Other taints stay in their order.
fn plan(node: &Node, now: jiff::Timestamp) -> Option<Vec<Taint>> {
    let spec = node.spec.as_ref();
    let there = spec.and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    let wanted = wanted(node);
    let is_ours = |taint: &Taint| {
        let key = taint.key.as_str();
        let known = key == UNSCHEDULABLE || BY_CONDITION.iter().any(|row| row.2 == key);
        taint.effect == NO_SCHEDULE && known
    };
    let stays = |taint: &&Taint| !is_ours(taint) || wanted.contains(&taint.key.as_str());
    let mut taints: Vec<Taint> = there.iter().filter(stays).cloned().collect();
    let is_there = |key: &str| there.iter().any(|taint| is_ours(taint) && taint.key == key);
    taints.extend(wanted.iter().filter(|key| !is_there(key)).map(|key| Taint {
        key: (*key).to_owned(),
        effect: NO_SCHEDULE.to_owned(),
        time_added: Some(Time(now)),
        value: None,
    }));
    (taints != there).then_some(taints)
}

fn wanted(node: &Node) -> Vec<&'static str> {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref());
    let is = |type_: &str, status: &str| {
        let mut conditions = conditions.unwrap_or_default().iter();
        conditions.any(|condition| condition.type_ == type_ && condition.status == status)
    };
    let by_condition = BY_CONDITION.iter().filter(|(type_, status, _)| is(type_, status));
    let cordoned = node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true);
    let mut wanted: Vec<&str> = by_condition.map(|(_, _, key)| *key).collect();
    wanted.extend(cordoned.then_some(UNSCHEDULABLE));
    // A node that has never posted a status is not ready, as in admission.
    let silent = !conditions.unwrap_or_default().iter().any(|c| c.type_ == "Ready");
    wanted.extend(silent.then_some(BY_CONDITION[0].2));
    wanted
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn planned(conditions: Value, unschedulable: bool, taints: Value) -> Option<Vec<String>> {
        let node: Node = typed::from_value(json!({
            "metadata": { "name": "n" },
            "spec": { "unschedulable": unschedulable, "taints": taints },
            "status": { "conditions": conditions },
        }))
        .unwrap();
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        let text = |taint: Taint| format!("{}:{}", taint.key, taint.effect);
        plan(&node, now).map(|taints| taints.into_iter().map(text).collect())
    }

    fn is(type_: &str, status: &str) -> Value {
        json!({ "type": type_, "status": status })
    }

    fn taint(key: &str, effect: &str) -> Value {
        json!({ "key": key, "effect": effect })
    }

    /// C-185, NET-15: NoSchedule taints follow the node conditions.
    #[test]
    fn n_6_taints_follow_conditions_and_cordoning() {
        let not_ready = taint("node.kubernetes.io/not-ready", "NoSchedule");
        let own = taint("own", "NoSchedule");
        let ready = is("Ready", "True");
        let cases = [
            ("ready", json!([ready]), false, json!([not_ready]), Some(vec![])),
            ("ready and nothing to do", json!([ready]), false, json!([]), None),
            ("silent", json!([]), false, json!([not_ready]), None),
            (
                "not ready",
                json!([is("Ready", "False")]),
                false,
                json!([]),
                Some(vec!["node.kubernetes.io/not-ready:NoSchedule"]),
            ),
            (
                "unreachable",
                json!([is("Ready", "Unknown")]),
                false,
                json!([not_ready, own]),
                Some(vec!["own:NoSchedule", "node.kubernetes.io/unreachable:NoSchedule"]),
            ),
            (
                "pressure",
                json!([
                    ready,
                    is("MemoryPressure", "True"),
                    is("DiskPressure", "True"),
                    is("PIDPressure", "True"),
                    is("NetworkUnavailable", "True")
                ]),
                false,
                json!([]),
                Some(vec![
                    "node.kubernetes.io/memory-pressure:NoSchedule",
                    "node.kubernetes.io/disk-pressure:NoSchedule",
                    "node.kubernetes.io/pid-pressure:NoSchedule",
                    "node.kubernetes.io/network-unavailable:NoSchedule",
                ]),
            ),
            (
                "no pressure",
                json!([ready, is("MemoryPressure", "False")]),
                false,
                json!([own]),
                None,
            ),
            (
                "cordoned",
                json!([ready]),
                true,
                json!([own]),
                Some(vec!["own:NoSchedule", "node.kubernetes.io/unschedulable:NoSchedule"]),
            ),
            (
                "uncordoned",
                json!([ready]),
                false,
                json!([taint("node.kubernetes.io/unschedulable", "NoSchedule"), own]),
                Some(vec!["own:NoSchedule"]),
            ),
            (
                "other effects are left alone",
                json!([ready]),
                false,
                json!([taint("node.kubernetes.io/not-ready", "NoExecute")]),
                None,
            ),
        ];
        for (what, conditions, cordoned, taints, expected) in cases {
            let expected: Option<Vec<String>> =
                expected.map(|all| all.into_iter().map(str::to_owned).collect());
            assert_eq!(planned(conditions, cordoned, taints), expected, "{what}");
        }
    }
}
