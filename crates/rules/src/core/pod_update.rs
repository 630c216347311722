//! Validation of pod updates: most fields are immutable.

use super::{checks, container, scheduling};
use api::field::{At, Errors};
use api::metadata::same;
use api::value::ValueExt;
use serde_json::Value;

const CONTAINER_LISTS: &[&str] = &["containers", "initContainers"];
const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";
pub(super) const MIRROR: &str = "kubernetes.io/config.mirror";
/// Upstream's message for a change of an immutable field.
const UPDATABLE: &str = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

pub(super) fn validate(new: &At, old: &At, errors: &mut Errors) {
    annotation_changes(new, old, errors);
    let (new, old) = (new.field("spec"), old.field("spec"));
    for list in CONTAINER_LISTS {
        if new.field(list).len() != old.field(list).len() {
            let detail = "pod updates may not add or remove containers";
            errors.forbidden(&new.field(list), detail);
            return;
        }
        for container in new.field(list).items() {
            checks::required(&container.field("image"), errors);
            container::image_whitespace(&container, errors);
        }
    }
    if !deadline_change(&new, &old, errors) {
        return;
    }
    toleration_changes(&new, &old, errors);
    gate_changes(&new, &old, errors);
    let gated = !old.field("schedulingGates").is_empty();
    if gated {
        scheduling::only_narrowed(&new, &old, errors);
    }
    let (Some(now), Some(before)) = (new.value(), old.value()) else {
        return;
    };
    let munged = with_old_updatable(now, before, gated);
    if !same(Some(&munged), Some(before)) {
        let detail = format!("{UPDATABLE}\n{}", differences(&munged, before));
        errors.forbidden(&new, &detail);
    }
}

/// The new spec with the old values of all mutable fields.
fn with_old_updatable(new: &Value, old: &Value, gated: bool) -> Value {
    let mut munged = new.clone();
    for list in CONTAINER_LISTS {
        let before = old.get(list).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        for (container, before) in munged.list_mut(list).zip(before) {
            restore(container, before, "image");
        }
    }
    let mut fields = vec!["activeDeadlineSeconds", "tolerations", "schedulingGates"];
    let seconds = |spec: &Value| {
        spec.get("terminationGracePeriodSeconds").and_then(Value::as_i64).unwrap_or_default()
    };
    if seconds(old) < 0 && seconds(new) == 1 {
        fields.push("terminationGracePeriodSeconds");
    }
    if gated {
        fields.push("nodeSelector");
        let before = old.get("affinity").cloned().unwrap_or_default();
        restore(munged.object("affinity"), &before, "nodeAffinity");
    }
    fields.iter().for_each(|field| restore(&mut munged, old, field));
    munged
}

pub(super) fn restore(new: &mut Value, old: &Value, field: &str) {
    match old.get(field) {
        Some(value) => new.map().insert(field.into(), value.clone()),
        None => new.remove(field),
    };
}

/// One line per field that differs.
fn differences(new: &Value, old: &Value) -> String {
    let empty = serde_json::Map::new();
    let (new, old) = (new.as_object().unwrap_or(&empty), old.as_object().unwrap_or(&empty));
    let show = |value: Option<&Value>| value.map_or("nothing".to_owned(), Value::to_string);
    let mut fields: Vec<&String> = new.keys().chain(old.keys()).collect();
    fields.sort_unstable();
    fields.dedup();
    fields
        .into_iter()
        .filter(|field| !same(new.get(*field), old.get(*field)))
        .map(|f| format!("  spec.{f}:\n- {}\n+ {}\n", show(old.get(f)), show(new.get(f))))
        .collect()
}

pub(super) fn annotation_changes(new: &At, old: &At, errors: &mut Errors) {
    let (new, old) = (new.field("metadata"), old.field("metadata"));
    let (new, old) = (new.field("annotations"), old.field("annotations"));
    for (key, before) in old.entries() {
        if new.key(key).str() == before.str() {
            continue;
        }
        if key.starts_with(APP_ARMOR) {
            errors.forbidden(&new.key(key), "may not remove or update AppArmor annotations");
        }
        if key == MIRROR {
            errors.forbidden(&new.key(key), "may not remove or update mirror pod annotation");
        }
    }
    for (key, at) in new.entries().filter(|(key, _)| !old.key(key).is_set()) {
        if key.starts_with(APP_ARMOR) {
            errors.forbidden(&at, "may not add AppArmor annotations");
        }
        if key == MIRROR {
            errors.forbidden(&at, "may not add mirror pod annotation");
        }
    }
}

/// A deadline may be set or shortened. Returns false if no further checks are useful.
fn deadline_change(new: &At, old: &At, errors: &mut Errors) -> bool {
    let (new, old) = (new.field("activeDeadlineSeconds"), old.field("activeDeadlineSeconds"));
    match (new.int(), old.int()) {
        (Some(now), before) => {
            if !(0..=i64::from(i32::MAX)).contains(&now) {
                checks::in_range(&new, 0, i32::MAX.into(), errors);
                return false;
            }
            if before.is_some_and(|before| before < now) {
                errors.invalid(&new, "must be less than or equal to previous value");
                return false;
            }
        }
        (None, Some(_)) => {
            errors.invalid(&new, "must not update from a positive integer to nil value");
        }
        (None, None) => {}
    }
    true
}

fn toleration_changes(new: &At, old: &At, errors: &mut Errors) {
    let (new, old) = (new.field("tolerations"), old.field("tolerations"));
    let timeless = |toleration: &At| {
        let mut value = toleration.value().cloned().unwrap_or_default();
        value.remove("tolerationSeconds");
        value
    };
    let kept: Vec<Value> = new.items().map(|toleration| timeless(&toleration)).collect();
    let lost = |before: At| {
        let before = timeless(&before);
        !kept.iter().any(|now| same(Some(now), Some(&before)))
    };
    if old.items().any(lost) {
        let detail = "existing toleration can not be modified except its tolerationSeconds";
        errors.forbidden(&new, detail);
        return;
    }
    scheduling::tolerations(&new, errors);
}

fn gate_changes(new: &At, old: &At, errors: &mut Errors) {
    let old = old.field("schedulingGates");
    for gate in new.field("schedulingGates").items() {
        let name = gate.field("name");
        if !old.items().any(|before| before.field("name").text() == name.text()) {
            let detail = format!(
                "only deletion is allowed, but found new scheduling gate '{}'",
                name.text()
            );
            errors.forbidden(&name, &detail);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::trial::{NOTHING, created, merge, pod, update};
    use super::UPDATABLE;
    use serde_json::{Value, json};

    fn stored(more: Value) -> Value {
        let mut object = pod(json!({"serviceAccountName": "default"}));
        merge(&mut object["spec"], more);
        created("Pod", object)
    }

    fn change(old: &Value, spec: Value) -> Vec<String> {
        update("Pod", old, json!({ "spec": spec }))
    }

    #[test]
    fn a_77_images_tolerations_and_deadlines_may_change() {
        let old =
            stored(json!({"activeDeadlineSeconds": 60, "tolerations": [{"operator": "Exists"}]}));
        let container = |image| {
            let mut containers = old["spec"]["containers"].clone();
            containers[0]["image"] = Value::from(image);
            containers
        };
        for spec in [
            json!({}),
            json!({"containers": container("nginx:1.28")}),
            json!({"activeDeadlineSeconds": 30}),
            json!({"tolerations": [{"operator": "Exists"}, {"key": "k", "operator": "Exists"}]}),
        ] {
            assert_eq!(change(&old, spec), NOTHING);
        }
        assert_eq!(
            change(&old, json!({"activeDeadlineSeconds": 90})),
            [
                "spec.activeDeadlineSeconds: Invalid value: 90: must be less than or equal to previous value"
            ]
        );
        assert_eq!(
            change(&old, json!({"tolerations": [{"key": "k", "operator": "Exists"}]})),
            [
                "spec.tolerations: Forbidden: existing toleration can not be modified except its tolerationSeconds"
            ]
        );
        assert_eq!(
            change(
                &old,
                json!({"containers": [old["spec"]["containers"][0], {"name": "b", "image": "b"}]})
            ),
            ["spec.containers: Forbidden: pod updates may not add or remove containers"]
        );
    }

    #[test]
    fn a_77_other_fields_are_immutable() {
        let old = stored(json!({}));
        let messages = change(&old, json!({"terminationGracePeriodSeconds": 5}));
        assert_eq!(messages.len(), 1);
        assert!(
            messages[0].starts_with(&format!("spec: Forbidden: {UPDATABLE}\n")),
            "{messages:?}"
        );
    }

    #[test]
    fn a_77_gates_can_only_be_removed_and_node_affinity_only_narrowed() {
        let gated = stored(
            json!({"schedulingGates": [{"name": "a"}, {"name": "b"}], "nodeSelector": {"x": "y"}}),
        );
        assert_eq!(change(&gated, json!({"schedulingGates": [{"name": "a"}]})), NOTHING);
        assert_eq!(change(&gated, json!({"nodeSelector": {"z": "z"}})), NOTHING);
        assert_eq!(
            change(&gated, json!({"schedulingGates": [{"name": "c"}]})),
            [
                "spec.schedulingGates[0].name: Forbidden: only deletion is allowed, but found new scheduling gate 'c'"
            ]
        );
        assert_eq!(
            change(&gated, json!({"nodeSelector": {"x": "z"}})),
            [
                "spec.nodeSelector: Invalid value: {\"x\":\"z\"}: only additions to spec.nodeSelector are allowed (no mutations or deletions)"
            ]
        );
        let free = stored(json!({"nodeSelector": {"x": "y"}}));
        assert_eq!(change(&free, json!({"nodeSelector": {"z": "z"}})).len(), 1);
    }
}
