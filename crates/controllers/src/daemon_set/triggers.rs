//! Decides which changes of nodes and revisions queue a set (C-85, C-91).

use super::placement::{self, Fit};
use crate::workload::{controller_ref, owner_keys, uid};
use client::{Cache, ObjectKey, Queue};
use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet};
use k8s_openapi::api::core::v1::Node;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

/// Queues sets when a node starts or stops matching them. Heartbeats of nodes queue nothing.
pub(super) fn of_nodes(nodes: &Cache<Node>, sets: &Cache<DaemonSet>, queue: &Queue<ObjectKey>) {
    let (there, sets) = (nodes.clone(), sets.clone());
    let known: Mutex<BTreeMap<ObjectKey, Arc<Node>>> = Mutex::default();
    nodes.feed(queue, move |node| {
        let key = ObjectKey::of(node);
        let now = there.get(&key);
        let mut known = known.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let before = match &now {
            Some(now) => known.insert(key, now.clone()),
            None => known.remove(&key),
        };
        drop(known);
        if same_shape(before.as_deref(), now.as_deref()) {
            return Vec::new();
        }
        let differs = |set: &&Arc<DaemonSet>| {
            let template_pod = placement::template_pod(set);
            let fit = |node: Option<&Node>| {
                node.map_or(Fit::default(), |node| placement::fit(&template_pod, node))
            };
            fit(before.as_deref()) != fit(now.as_deref())
        };
        sets.list().iter().filter(differs).map(|set| ObjectKey::of(set.as_ref())).collect()
    });
}

fn same_shape(before: Option<&Node>, now: Option<&Node>) -> bool {
    let shape = |node: &Node| {
        let taints = node.spec.as_ref().and_then(|spec| spec.taints.clone());
        (node.metadata.uid.clone(), node.metadata.labels.clone(), taints)
    };
    before.map(shape) == now.map(shape)
}

/// A new revision with an owner queues nothing; changing or deleting it queues the owner.
pub(super) fn of_revisions(
    revisions: &Cache<ControllerRevision>,
    sets: &Cache<DaemonSet>,
    queue: &Queue<ObjectKey>,
) {
    let (there, sets) = (revisions.clone(), sets.clone());
    let known: Mutex<BTreeSet<String>> = Mutex::default();
    revisions.feed(queue, move |revision| {
        let mut known = known.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let gone = there.get(&ObjectKey::of(revision)).is_none();
        let new = match gone {
            true => !known.remove(uid(revision)),
            false => known.insert(uid(revision).to_owned()),
        };
        drop(known);
        if new && controller_ref(revision).is_some() {
            return Vec::new();
        }
        owner_keys(&sets, revision)
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn c_85_labels_and_taints_queue_sets_and_heartbeats_do_not() {
        let node = |uid: &str, labels: Value, taints: Value, beat: &str| -> Node {
            typed::from_value(json!({
                "metadata": { "name": "n", "uid": uid, "labels": labels, "resourceVersion": beat },
                "spec": { "taints": taints, "podCIDR": beat },
                "status": { "conditions": [{ "type": "Ready", "status": "True",
                                             "lastHeartbeatTime": beat }] },
            }))
            .unwrap()
        };
        let (noon, later) = ("2026-01-01T12:00:00Z", "2026-01-01T12:05:00Z");
        let taint = json!([{ "key": "x", "effect": "NoExecute" }]);
        let before = node("u", json!({ "a": "b" }), json!([]), noon);
        let cases = [
            ("a heartbeat", Some(node("u", json!({ "a": "b" }), json!([]), later)), true),
            ("a label", Some(node("u", json!({ "a": "c" }), json!([]), noon)), false),
            ("a taint", Some(node("u", json!({ "a": "b" }), taint, noon)), false),
            ("another node", Some(node("v", json!({ "a": "b" }), json!([]), noon)), false),
            ("no node", None, false),
        ];
        for (what, now, same) in cases {
            assert_eq!(same_shape(Some(&before), now.as_ref()), same, "{what}");
            assert_eq!(same_shape(now.as_ref(), Some(&before)), same, "{what}, back");
        }
    }
}
