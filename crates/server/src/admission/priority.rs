//! Priority: sets a pod's priority from its class.
//!
//! Not here: reserved names and values (the rules of PriorityClass).

use super::refuse;
use crate::object::Stored;
use crate::request::call::{Call, name_of};
use crate::response::error::{ApiError, Result};
use api::value::ValueExt;
use serde_json::{Value, json};

const CLASSES: &str = "scheduling.k8s.io/priorityclasses";

pub(super) fn admit(call: &Call, pod: &mut Value) -> Result<()> {
    let name = pod.text(&["spec", "priorityClassName"]).to_owned();
    let class = if name.is_empty() {
        global_default(call)
    } else {
        let Some(class) = call.store().get(CLASSES, &name) else {
            return Err(refuse(call, pod, format!("no PriorityClass with name {name} was found")));
        };
        Some(class.value())
    };
    resolve(pod.object("spec"), class.as_ref()).map_err(|why| refuse(call, pod, why))
}

/// Writes the class's value and preemption policy into the spec. A pod may contain only the same values.
fn resolve(spec: &mut Value, class: Option<&Value>) -> std::result::Result<(), String> {
    let priority = class.and_then(|class| class["value"].as_i64()).unwrap_or(0);
    if let Some(given) = spec.at(&["priority"]).and_then(Value::as_i64).filter(|n| *n != priority) {
        return Err(format!(
            "the integer value of priority ({given}) must not be provided in pod spec; priority admission controller computed {priority} from the given PriorityClass name"
        ));
    }
    let policy = class.map_or("", |class| class.text(&["preemptionPolicy"]));
    let policy = if policy.is_empty() { "PreemptLowerPriority" } else { policy };
    let given = spec.text(&["preemptionPolicy"]);
    if !given.is_empty() && given != policy {
        return Err(format!(
            "the string value of PreemptionPolicy ({given}) must not be provided in pod spec; priority admission controller computed {policy} from the given PriorityClass name"
        ));
    }
    if let Some(class) = class {
        spec["priorityClassName"] = name_of(class).into();
    }
    spec["priority"] = priority.into();
    spec["preemptionPolicy"] = policy.into();
    Ok(())
}

/// An update that omits the computed values keeps them.
pub(super) fn keep(new: &mut Value, old: &Value) {
    for field in ["priority", "preemptionPolicy"] {
        if let Some(value) = old.at(&["spec", field]) {
            new.object("spec").set_default(field, value.clone());
        }
    }
}

/// The class of pods that name none. If a race created several, the one with the lowest value.
fn global_default(call: &Call) -> Option<Value> {
    let (_, classes) = call.store().list(CLASSES, "", None);
    let marked = classes
        .iter()
        // Most classes are not the default, and searching the bytes is cheaper than decoding them.
        .filter(|class| contains(class.as_slice(), b"\"globalDefault\":true"))
        .map(|class| class.value())
        .filter(|class| class["globalDefault"] == json!(true));
    marked.min_by_key(|class| class["value"].as_i64().unwrap_or(0))
}

fn contains(bytes: &[u8], wanted: &[u8]) -> bool {
    bytes.windows(wanted.len()).any(|window| window == wanted)
}

/// Only one class may be the default.
pub(super) fn check_class(call: &Call, class: &Value, creating: bool) -> Result<()> {
    if class["globalDefault"] != json!(true) {
        return Ok(());
    }
    match global_default(call) {
        Some(default) if creating || name_of(&default) != name_of(class) => Err(refuse(
            call,
            class,
            format!(
                "PriorityClass {} is already marked as default. Only one default can exist",
                name_of(&default)
            ),
        )),
        _ => Ok(()),
    }
}

/// System pods use these classes, so they cannot be deleted.
pub(super) fn check_delete(call: &Call, name: &str) -> Result<()> {
    if *call.kind.storage.collection != *CLASSES || !rules::is_system_class(name) {
        return Ok(());
    }
    let why = "this is a system priority class and cannot be deleted";
    Err(ApiError::forbidden(&call.kind, name, why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_154_priority_comes_from_the_class_and_no_other_value_is_allowed() {
        let high = json!({"metadata": {"name": "high"}, "value": 10, "preemptionPolicy": "Never"});
        for (spec, class, outcome) in [
            (json!({}), None, Ok(("", 0, "PreemptLowerPriority"))),
            (json!({}), Some(&high), Ok(("high", 10, "Never"))),
            (
                json!({"priorityClassName": "high", "priority": 10}),
                Some(&high),
                Ok(("high", 10, "Never")),
            ),
            (
                json!({"priority": 7}),
                Some(&high),
                Err(
                    "the integer value of priority (7) must not be provided in pod spec; priority admission controller computed 10 from the given PriorityClass name",
                ),
            ),
            (
                json!({"preemptionPolicy": "Never"}),
                None,
                Err(
                    "the string value of PreemptionPolicy (Never) must not be provided in pod spec; priority admission controller computed PreemptLowerPriority from the given PriorityClass name",
                ),
            ),
        ] {
            let mut spec = spec;
            let got = resolve(&mut spec, class);
            let got = got.as_ref().map_err(String::as_str).map(|()| {
                (
                    spec.text(&["priorityClassName"]),
                    spec["priority"].as_i64().unwrap_or(-1),
                    spec.text(&["preemptionPolicy"]),
                )
            });
            assert_eq!(got, outcome);
        }
    }

    #[test]
    fn a_154_an_update_without_priority_keeps_it() {
        let old = json!({"spec": {"priority": 10, "preemptionPolicy": "Never"}});
        let mut new = json!({"spec": {}});
        keep(&mut new, &old);
        assert_eq!(new, old);
    }
}
