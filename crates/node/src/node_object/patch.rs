//! The patch that updates a Node, and whether there is a change to write (N-2, N-17).

use api::quantity::Quantity;
use k8s_openapi::api::core::v1::Node;
use serde_json::{Map, Value, json};

/// Fields of status that are maps from resource names to quantities.
const QUANTITIES: &[&str] = &["capacity", "allocatable"];

/// A strategic merge patch for `/status`, which also accepts labels and annotations. None if
/// nothing differs.
pub(super) fn patch(before: &Node, after: &Node) -> Option<Value> {
    let (before, after) = (typed::to_value(before).ok()?, typed::to_value(after).ok()?);
    let mut metadata = Map::new();
    for field in ["labels", "annotations"] {
        let changed = map_changes(&before["metadata"][field], &after["metadata"][field], false);
        metadata.extend(changed.map(|changed| (field.to_owned(), changed)));
    }
    let mut status = Map::new();
    for (field, new) in after["status"].as_object().into_iter().flatten() {
        let old = &before["status"][field];
        let changed = match field.as_str() {
            "addresses" => (old != new).then(|| replacement(new)),
            "conditions" => (old != new).then(|| new.clone()),
            quantities if QUANTITIES.contains(&quantities) => map_changes(old, new, true),
            _ if new.is_object() => map_changes(old, new, false),
            _ => (old != new).then(|| new.clone()),
        };
        status.extend(changed.map(|changed| (field.clone(), changed)));
    }
    let mut patch = Map::new();
    if !metadata.is_empty() {
        patch.insert("metadata".to_owned(), metadata.into());
    }
    if !status.is_empty() {
        patch.insert("status".to_owned(), status.into());
    }
    (!patch.is_empty()).then_some(Value::Object(patch))
}

/// Whether something besides the heartbeat times differs.
pub(super) fn differs(before: &Node, after: &Node) -> bool {
    let without_heartbeats = |node: &Node| {
        let mut node = node.clone();
        let status = node.status.as_mut();
        for condition in status.and_then(|status| status.conditions.as_mut()).into_iter().flatten()
        {
            condition.last_heartbeat_time = None;
        }
        node
    };
    let (before, after) = (without_heartbeats(before), without_heartbeats(after));
    // They are usually equal, and this runs every ten seconds.
    before != after && patch(&before, &after).is_some()
}

/// New and changed keys with their values, removed keys with null.
fn map_changes(old: &Value, new: &Value, quantities: bool) -> Option<Value> {
    let same = |a: &Value, b: &Value| {
        let amounts = || Some((Quantity::from_value(a)?, Quantity::from_value(b)?));
        // The server normalizes quantities.
        a == b || quantities && amounts().is_some_and(|(a, b)| a.milli_value() == b.milli_value())
    };
    let mut changes = Map::new();
    for (key, value) in new.as_object()? {
        if !old.get(key).is_some_and(|old| same(old, value)) {
            changes.insert(key.clone(), value.clone());
        }
    }
    for key in old.as_object().into_iter().flat_map(|old| old.keys()) {
        if new.get(key).is_none() {
            changes.insert(key.clone(), Value::Null);
        }
    }
    (!changes.is_empty()).then_some(Value::Object(changes))
}

/// Replaces the list: merging addresses by type would keep one per type, and old ones (N-2).
fn replacement(list: &Value) -> Value {
    let mut items = vec![json!({ "$patch": "replace" })];
    items.extend(list.as_array().into_iter().flatten().cloned());
    Value::Array(items)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(value: Value) -> Node {
        typed::from_value(value).unwrap()
    }

    fn between(before: Value, after: Value) -> Option<Value> {
        patch(&node(before), &node(after))
    }

    #[test]
    fn n_2_only_changes_are_sent_and_addresses_are_replaced() {
        let before = json!({
            "metadata": { "labels": { "a": "1", "b": "2" } },
            "status": { "capacity": { "cpu": "2", "memory": "1024Ki", "old": "1" },
                        "addresses": [{ "type": "InternalIP", "address": "10.0.0.1" }],
                        "images": [{ "names": ["x"] }] },
        });
        let after = json!({
            "metadata": { "labels": { "a": "1", "b": "3" } },
            "status": { "capacity": { "cpu": "4", "memory": "1Mi" },
                        "addresses": [{ "type": "InternalIP", "address": "10.0.0.2" }],
                        "images": [{ "names": ["x"] }] },
        });
        let expected = json!({
            "metadata": { "labels": { "b": "3" } },
            "status": { "capacity": { "cpu": "4", "old": null },
                        "addresses": [{ "$patch": "replace" },
                                      { "type": "InternalIP", "address": "10.0.0.2" }] },
        });
        assert_eq!(between(before.clone(), after), Some(expected));
        assert_eq!(between(before.clone(), before), None);
    }

    #[test]
    fn n_17_a_new_heartbeat_time_alone_is_no_difference() {
        let at = |time: &str, status: &str| {
            node(json!({ "status": { "conditions": [
                { "type": "Ready", "status": status, "lastHeartbeatTime": time }] } }))
        };
        let (early, late) = ("2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z");
        assert!(!differs(&at(early, "True"), &at(late, "True")));
        assert!(differs(&at(early, "True"), &at(early, "False")));
        assert!(patch(&at(early, "True"), &at(late, "True")).is_some());
    }
}
