//! The strategic merge patch that turns one status into another. It contains only what differs.

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use lifecycle::status::is_written_by_node;
use serde_json::{Map, Value, json};

/// Lists that strategic merge would merge by key, although the whole list is replaced.
const REPLACED: [&str; 2] = ["podIPs", "hostIPs"];
const CONDITIONS: &str = "conditions";
/// Fields that others write (N-75). The status may have been computed before their last write.
const FOREIGN: [&str; 3] =
    ["nominatedNodeName", "resourceClaimStatuses", "extendedResourceClaimStatus"];

/// None: nothing differs. The UID in the patch protects another pod of the same name.
pub(super) fn between(base: &Pod, status: &PodStatus) -> Option<Value> {
    if base.status.as_ref() == Some(status) {
        return None;
    }
    let before = base.status.as_ref().map(own_part).unwrap_or_default();
    let mut after = own_part(status);
    let mut changed = Map::new();
    for key in before.keys().filter(|key| !after.contains_key(*key)) {
        changed.insert(key.clone(), Value::Null);
    }
    let conditions = (before.get(CONDITIONS), after.remove(CONDITIONS));
    changed.remove(CONDITIONS);
    if let Some(conditions) = differing_conditions(conditions.0, conditions.1.as_ref()) {
        changed.insert(CONDITIONS.into(), conditions);
    }
    for (key, value) in after {
        if before.get(&key) == Some(&value) {
            continue;
        }
        let value = match value {
            Value::Array(mut items) if REPLACED.contains(&key.as_str()) => {
                items.push(json!({"$patch": "replace"}));
                Value::Array(items)
            }
            value => value,
        };
        changed.insert(key, value);
    }
    if changed.is_empty() {
        return None;
    }
    let uid = base.metadata.uid.as_deref().unwrap_or_default();
    Some(json!({"metadata": {"uid": uid}, "status": changed}))
}

/// Only conditions that differ, and none of other writers: conditions that they write meanwhile are kept.
fn differing_conditions(before: Option<&Value>, after: Option<&Value>) -> Option<Value> {
    let list = |conditions: Option<&Value>| {
        conditions.and_then(Value::as_array).cloned().unwrap_or_default()
    };
    let (before, after) = (list(before), list(after));
    let is_in = |list: &[Value], kind: &Value| list.iter().any(|c| &c["type"] == kind);
    let mut differing: Vec<Value> = after.iter().filter(|c| !before.contains(c)).cloned().collect();
    // A field that is gone from a condition has to be named to be removed.
    for condition in &mut differing {
        let old = before.iter().find(|old| old["type"] == condition["type"]);
        let fields = old.and_then(Value::as_object).into_iter().flat_map(Map::keys);
        for field in fields {
            if condition.get(field).is_none() {
                condition[field.as_str()] = Value::Null;
            }
        }
    }
    let gone = before.iter().filter(|c| !is_in(&after, &c["type"]));
    differing.extend(gone.map(|c| json!({"$patch": "delete", "type": c["type"]})));
    (!differing.is_empty()).then_some(Value::Array(differing))
}

/// The fields and conditions that the node writes.
fn own_part(status: &PodStatus) -> Map<String, Value> {
    let mut own = status.clone();
    if let Some(conditions) = &mut own.conditions {
        conditions.retain(is_written_by_node);
    }
    match typed::to_value(&own) {
        Ok(Value::Object(mut fields)) => {
            FOREIGN.iter().for_each(|foreign| drop(fields.remove(*foreign)));
            fields
        }
        _ => Map::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(status: Value) -> Pod {
        typed::from_value(json!({"metadata": {"name": "a", "uid": "u"}, "status": status})).unwrap()
    }

    fn patched(before: Value, after: Value) -> Option<Value> {
        let after: PodStatus = typed::from_value(after).unwrap();
        between(&pod(before), &after).map(|patch| patch["status"].clone())
    }

    #[test]
    fn an_unchanged_status_is_not_sent_n_70() {
        let status =
            json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
        assert_eq!(patched(status.clone(), status), None);
    }

    #[test]
    fn a_patch_has_only_differences_and_null_for_removed_fields() {
        let before = json!({"phase": "Running", "reason": "x", "hostIP": "1.2.3.4"});
        let after = json!({"phase": "Failed", "hostIP": "1.2.3.4"});
        assert_eq!(patched(before, after), Some(json!({"phase": "Failed", "reason": null})));
    }

    #[test]
    fn n_75_foreign_conditions_are_kept_and_own_ones_without_cause_are_deleted() {
        let before = json!({"nominatedNodeName": "n2", "conditions": [
            {"type": "Written meanwhile", "status": "True"},
            {"type": "Gate", "status": "True"},
            {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"},
            {"type": "PodResizePending", "status": "True"},
            {"type": "Ready", "status": "False", "reason": "ContainersNotReady"}]});
        let after = json!({"resourceClaimStatuses": [{"name": "old"}], "conditions": [
            {"type": "Gate", "status": "False"}, {"type": "Ready", "status": "True"}]});
        let wanted = json!({"conditions": [
            {"type": "Ready", "status": "True", "reason": null},
            {"$patch": "delete", "type": "PodResizePending"}]});
        assert_eq!(patched(before, after), Some(wanted));
    }

    #[test]
    fn t_node_58_the_nodes_own_disruption_is_sent_and_replaces_anothers() {
        let before = json!({"phase": "Failed", "conditions": [
            {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]});
        let own = json!({"phase": "Failed", "conditions": [
            {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}]});
        let wanted = json!({"conditions": own["conditions"]});
        assert_eq!(patched(before, own), Some(wanted));
    }

    #[test]
    fn addresses_are_replaced_not_merged() {
        let after = json!({"podIPs": [{"ip": "10.0.0.2"}]});
        let wanted = json!({"podIPs": [{"ip": "10.0.0.2"}, {"$patch": "replace"}]});
        assert_eq!(patched(json!({"podIPs": [{"ip": "10.0.0.9"}]}), after), Some(wanted));
    }

    #[test]
    fn the_uid_is_a_precondition() {
        let after: PodStatus = typed::from_value(json!({"phase": "Running"})).unwrap();
        assert_eq!(between(&pod(json!({})), &after).unwrap()["metadata"]["uid"], "u");
    }
}
