//! RuntimeClass: adds the overhead and the scheduling constraints of a pod's runtime class.

use super::refuse;
use crate::object::Stored;
use crate::request::call::Call;
use crate::response::error::Result;
use api::value::ValueExt;
use serde_json::Value;

const MISMATCH: &str = "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead";

pub(super) fn admit(call: &Call, pod: &mut Value) -> Result<()> {
    let Some(class) = class(call, pod)? else { return Ok(()) };
    apply(&class, pod.object("spec")).map_err(|why| refuse(call, pod, why))
}

pub(super) fn check(call: &Call, pod: &Value) -> Result<()> {
    let own = pod.at(&["spec", "overhead"]).filter(|overhead| !is_empty(overhead));
    if own.is_none() && pod.at(&["spec", "runtimeClassName"]).is_none() {
        return Ok(());
    }
    let class = class(call, pod)?;
    match class.as_ref().and_then(|class| class.at(&["overhead", "podFixed"])) {
        Some(overhead) if Some(overhead) != own => Err(refuse(call, pod, MISMATCH)),
        None if own.is_some() => Err(refuse(
            call,
            pod,
            "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead",
        )),
        _ => Ok(()),
    }
}

fn class(call: &Call, pod: &Value) -> Result<Option<Value>> {
    let Some(name) = pod.at(&["spec", "runtimeClassName"]).and_then(Value::as_str) else {
        return Ok(None);
    };
    match call.store().get("node.k8s.io/runtimeclasses", name) {
        Some(class) => Ok(Some(class.value())),
        None => Err(refuse(call, pod, format!("pod rejected: RuntimeClass {name:?} not found"))),
    }
}

fn is_empty(value: &Value) -> bool {
    value.as_object().is_none_or(serde_json::Map::is_empty)
}

fn apply(class: &Value, spec: &mut Value) -> std::result::Result<(), String> {
    if let Some(overhead) = class.at(&["overhead", "podFixed"]) {
        if spec.at(&["overhead"]).is_some_and(|own| own != overhead) {
            return Err(MISMATCH.into());
        }
        spec["overhead"] = overhead.clone();
    }
    if let Some(Value::Object(wanted)) = class.at(&["scheduling", "nodeSelector"]) {
        let selector = spec.object("nodeSelector").map();
        for (key, value) in wanted {
            match selector.get(key) {
                Some(own) if own != value => {
                    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                    return Err(format!(
                        "conflict: runtimeClass.scheduling.nodeSelector[{key}] = {}; pod.spec.nodeSelector[{key}] = {}",
                        text(value),
                        text(own)
                    ));
                }
                _ => drop(selector.insert(key.clone(), value.clone())),
            }
        }
    }
    if let Some(Value::Array(more)) = class.at(&["scheduling", "tolerations"]) {
        let own = spec.get("tolerations").and_then(Value::as_array).cloned().unwrap_or_default();
        spec["tolerations"] = merge(own, more).into();
    }
    Ok(())
}

/// Both lists, without tolerations that another one covers.
fn merge(mut all: Vec<Value>, more: &[Value]) -> Vec<Value> {
    all.extend(more.iter().cloned());
    let mut merged: Vec<Value> = Vec::new();
    for (at, toleration) in all.iter().enumerate() {
        let included = merged.iter().any(|kept| includes(kept, toleration))
            || all[at + 1..].iter().any(|later| later != toleration && includes(later, toleration));
        if !included {
            merged.push(toleration.clone());
        }
    }
    merged
}

fn includes(wide: &Value, narrow: &Value) -> bool {
    if wide == narrow {
        return true;
    }
    let text = |value: &Value, field: &str| value.text(&[field]).to_owned();
    let exists = text(wide, "operator") == "Exists";
    let keys = text(wide, "key") == text(narrow, "key") || (text(wide, "key").is_empty() && exists);
    let effect = text(wide, "effect");
    let effects = effect.is_empty() || effect == text(narrow, "effect");
    let seconds = |value: &Value| value.get("tolerationSeconds").and_then(Value::as_i64);
    let as_long = match seconds(wide) {
        Some(limit) if effect == "NoExecute" => seconds(narrow).is_some_and(|own| own <= limit),
        _ => true,
    };
    let operator = text(narrow, "operator");
    let equal = operator == "Equal" || operator.is_empty();
    let values = exists || (equal && wide.get("value") == narrow.get("value"));
    keys && effects && as_long && values
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_154_a_runtime_class_adds_overhead_and_scheduling() {
        let class = json!({
            "overhead": {"podFixed": {"memory": "64Mi"}},
            "scheduling": {
                "nodeSelector": {"vm": "yes"},
                "tolerations": [{"key": "vm", "operator": "Exists"}],
            },
        });
        let mut spec = json!({"nodeSelector": {"disk": "ssd"}});
        apply(&class, &mut spec).unwrap();
        assert_eq!(
            spec,
            json!({
                "overhead": {"memory": "64Mi"},
                "nodeSelector": {"disk": "ssd", "vm": "yes"},
                "tolerations": [{"key": "vm", "operator": "Exists"}],
            })
        );
        for (spec, message) in [
            (json!({"overhead": {"memory": "1Mi"}}), MISMATCH),
            (
                json!({"nodeSelector": {"vm": "no"}}),
                "conflict: runtimeClass.scheduling.nodeSelector[vm] = yes; pod.spec.nodeSelector[vm] = no",
            ),
        ] {
            assert_eq!(apply(&class, &mut spec.clone()).unwrap_err(), message);
        }
    }

    #[test]
    fn a_154_a_toleration_that_another_covers_is_dropped() {
        let own = vec![json!({"key": "a", "operator": "Equal", "value": "1"})];
        let wide = [json!({"key": "a", "operator": "Exists"})];
        assert_eq!(merge(own.clone(), &wide), wide);
        let other = [json!({"key": "b", "operator": "Exists"})];
        assert_eq!(merge(own.clone(), &other).len(), 2);
        assert_eq!(merge(own.clone(), &own), own);
    }
}
