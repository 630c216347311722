//! Adds NoExecute taints to nodes that are not ready or unreachable, at a limited rate and not if all nodes are lost
//! (T-CTRL-40), and keeps the deprecated labels of nodes (C-186).
//!
//! If most nodes of a zone fail at once, the network or this process is the more likely cause, and pods should stay
//! where they are. Not here: NoSchedule taints (`node_taints`), setting conditions to Unknown (`node_leases`), and
//! deleting pods (`taint_eviction`).

mod zones;

use crate::start::Cluster;
use client::{Next, ObjectKey, Queue, run_controller};
use k8s_openapi::api::core::v1::{Node, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::json;
use std::sync::{Mutex, MutexGuard};
use tokio::time::Instant;
use zones::{Turn, Zones};

const NO_EXECUTE: &str = "NoExecute";
const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

/// Deprecated label, and the label that it repeats.
const OLD_LABELS: [(&str, &str); 2] = [
    ("beta.kubernetes.io/os", "kubernetes.io/os"),
    ("beta.kubernetes.io/arch", "kubernetes.io/arch"),
];

pub(crate) async fn run(cluster: &Cluster) {
    let queue = Queue::new();
    cluster.nodes.feed_keys(&queue);
    cluster.nodes.synced().await;
    let zones = Mutex::new(Zones::default());
    // Count all nodes before the first decision about a zone.
    for node in cluster.nodes.list() {
        locked(&zones).update(&ObjectKey::of(node.as_ref()), Some(&node));
    }
    // One at a time, so that the rate limit is exact.
    run_controller("node-lost", &queue, 1, |key| reconcile(cluster, &queue, &zones, key)).await;
}

async fn reconcile(
    cluster: &Cluster,
    queue: &Queue<ObjectKey>,
    zones: &Mutex<Zones>,
    key: ObjectKey,
) -> client::Result<Next> {
    let node = cluster.nodes.get(&key);
    // A change of the mode affects every node.
    if locked(zones).update(&key, node.as_deref()) {
        cluster.nodes.list().iter().for_each(|node| queue.add(ObjectKey::of(node.as_ref())));
    }
    let Some(node) = node else { return Ok(Next::Change) };
    label(cluster, &key, &node).await?;
    let wanted = if locked(zones).all_lost() { None } else { wanted(&node) };
    let Some(taints) = plan(&node, wanted, clock::now()) else {
        return Ok(Next::Change);
    };
    // Removing or replacing a taint is not rate limited.
    let new = wanted.is_some() && ours(&node).next().is_none();
    if new && let Turn::Later(after) = locked(zones).turn(&key, Instant::now()) {
        return Ok(after.map_or(Next::Change, Next::After));
    }
    let version = &node.metadata.resource_version;
    let patch = json!({ "metadata": { "resourceVersion": version }, "spec": { "taints": taints } });
    match cluster.client.patch_merge::<Node>(&key, &patch).await {
        Err(error) if error.is_not_found() || error.is_conflict() => Ok(Next::Change),
        patched => patched.map(|_| Next::Change),
    }
}

fn locked(zones: &Mutex<Zones>) -> MutexGuard<'_, Zones> {
    zones.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn ready(node: &Node) -> Option<&str> {
    let mut conditions = node.status.as_ref()?.conditions.iter().flatten();
    conditions.find(|c| c.type_ == "Ready").map(|ready| ready.status.as_str())
}

fn wanted(node: &Node) -> Option<&'static str> {
    match ready(node) {
        Some("False") => Some(NOT_READY),
        Some("Unknown") => Some(UNREACHABLE),
        _ => None,
    }
}

fn is_ours(taint: &Taint) -> bool {
    taint.effect == NO_EXECUTE && matches!(taint.key.as_str(), NOT_READY | UNREACHABLE)
}

fn ours(node: &Node) -> impl Iterator<Item = &Taint> {
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    taints.filter(|taint| is_ours(taint))
}

/// The new taints, if they differ. Other taints stay in their order.
fn plan(node: &Node, wanted: Option<&str>, now: jiff::Timestamp) -> Option<Vec<Taint>> {
    let spec = node.spec.as_ref();
    let there = spec.and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    let stays = |taint: &&Taint| !is_ours(taint) || Some(taint.key.as_str()) == wanted;
    let mut taints: Vec<Taint> = there.iter().filter(stays).cloned().collect();
    if let Some(key) = wanted.filter(|key| !taints.iter().any(|t| is_ours(t) && t.key == *key)) {
        taints.push(Taint {
            key: key.to_owned(),
            effect: NO_EXECUTE.to_owned(),
            time_added: Some(Time(now)),
            value: None,
        });
    }
    (taints != there).then_some(taints)
}

/// Keeps the beta labels of a node equal to the current ones (C-186).
async fn label(cluster: &Cluster, key: &ObjectKey, node: &Node) -> client::Result<()> {
    let labels = node.metadata.labels.clone().unwrap_or_default();
    let differing = OLD_LABELS.iter().filter_map(|(old, new)| {
        let value = labels.get(*new)?;
        (labels.get(*old) != Some(value)).then(|| ((*old).to_owned(), json!(value)))
    });
    let differing: serde_json::Map<_, _> = differing.collect();
    if differing.is_empty() {
        return Ok(());
    }
    let patch = json!({ "metadata": { "labels": differing } });
    match cluster.client.patch_merge::<Node>(key, &patch).await {
        Err(error) if error.is_not_found() => Ok(()),
        patched => patched.map(drop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn t_ctrl_40_one_taint_per_state_and_never_both() {
        let taint = |key: &str, effect: &str| json!({ "key": key, "effect": effect });
        let own = taint("own", NO_EXECUTE);
        let other_effect = taint(NOT_READY, "NoSchedule");
        let cases: [(&str, &str, Value, Option<Vec<&str>>); 6] = [
            ("ready", "True", json!([own]), None),
            ("not ready", "False", json!([own]), Some(vec!["own", NOT_READY])),
            ("unreachable", "Unknown", json!([other_effect]), Some(vec![NOT_READY, UNREACHABLE])),
            ("still", "Unknown", json!([taint(UNREACHABLE, NO_EXECUTE)]), None),
            (
                "swapped",
                "Unknown",
                json!([taint(NOT_READY, NO_EXECUTE), own]),
                Some(vec!["own", UNREACHABLE]),
            ),
            (
                "ready again",
                "True",
                json!([taint(UNREACHABLE, NO_EXECUTE), other_effect]),
                Some(vec![NOT_READY]),
            ),
        ];
        for (what, ready, taints, expected) in cases {
            let node: Node = typed::from_value(json!({
                "metadata": { "name": "n" }, "spec": { "taints": taints },
                "status": { "conditions": [{ "type": "Ready", "status": ready }] },
            }))
            .unwrap();
            let planned = plan(&node, wanted(&node), jiff::Timestamp::UNIX_EPOCH);
            let keys = planned.as_ref().map(|all| all.iter().map(|t| t.key.as_str()).collect());
            assert_eq!(keys, expected, "{what}");
        }
    }
}
