//! Priority: a pod's class becomes its number.
//!
//! Names and numbers that belong to the system are refused by the rules of PriorityClass.

use super::refuse;
use crate::call::{Call, name_of};
use crate::error::{ApiError, Result};
use crate::object::Stored;
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

/// Writes the class's number and preemption policy into the spec; a pod may only repeat them.
fn resolve(spec: &mut Value, class: Option<&Value>) -> std::result::Result<(), String> {
    let priority = class.and_then(|class| class["value"].as_i64()).unwrap_or(0);
    if let Some(said) = spec.at(&["priority"]).and_then(Value::as_i64).filter(|n| *n != priority) {
        return Err(format!(
            "the integer value of priority ({said}) must not be provided in pod spec; priority admission controller computed {priority} from the given PriorityClass name"
        ));
    }
    let policy = class.map_or("", |class| class.text(&["preemptionPolicy"]));
    let policy = if policy.is_empty() { "PreemptLowerPriority" } else { policy };
    let said = spec.text(&["preemptionPolicy"]);
    if !said.is_empty() && said != policy {
        return Err(format!(
            "the string value of PreemptionPolicy ({said}) must not be provided in pod spec; priority admission controller computed {policy} from the given PriorityClass name"
        ));
    }
    if let Some(class) = class {
        spec["priorityClassName"] = name_of(class).into();
    }
    spec["priority"] = priority.into();
    spec["preemptionPolicy"] = policy.into();
    Ok(())
}

/// A client that leaves out what was computed at creation means to keep it.
pub(super) fn keep(new: &mut Value, old: &Value) {
    for field in ["priority", "preemptionPolicy"] {
        if let Some(value) = old.at(&["spec", field]) {
            new.object("spec").set_default(field, value.clone());
        }
    }
}

/// The class for pods that name none; among several (a race let them in) the least.
fn global_default(call: &Call) -> Option<Value> {
    let (_, classes) = call.store().list(CLASSES, "", None);
    let marked = classes
        .iter()
        // Most classes are not it: a look at the bytes is cheaper than decoding them.
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

/// Pods of the system name these: nobody deletes them.
pub(super) fn check_delete(call: &Call, name: &str) -> Result<()> {
    if *call.kind.storage.collection != *CLASSES || !api::rules::is_system_class(name) {
        return Ok(());
    }
    let why = "this is a system priority class and cannot be deleted";
    Err(ApiError::forbidden(&call.kind, name, why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_154_priority_comes_from_the_class_and_may_only_be_repeated() {
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
    fn a_154_an_update_keeps_the_priority_it_leaves_out() {
        let old = json!({"spec": {"priority": 10, "preemptionPolicy": "Never"}});
        let mut new = json!({"spec": {}});
        keep(&mut new, &old);
        assert_eq!(new, old);
    }
}
