//! Which of the objects a quota could count it is meant for.

use super::Counted;
use crate::value::ValueExt;
use serde_json::Value;

/// All of a quota's scopes must fit. Scopes are about pods, one about claims; other objects fit none.
pub fn matches(kind: Counted<'_>, quota: &Value, object: &Value) -> bool {
    let list = |path: &[&str]| quota.at(path).and_then(Value::as_array).into_iter().flatten();
    let fits = |scope: &str, operator: &str, values: &[&str]| {
        if kind.is_core("pods") {
            pod_fits(object, scope, operator, values)
        } else if kind.is_core("persistentvolumeclaims") && scope == "VolumeAttributesClass" {
            claim_fits(object, operator, values)
        } else {
            false
        }
    };
    list(&["spec", "scopes"]).all(|scope| fits(scope.as_str().unwrap_or_default(), "Exists", &[]))
        && list(&["spec", "scopeSelector", "matchExpressions"]).all(|expression| {
            let values = expression.get("values").and_then(Value::as_array).into_iter().flatten();
            let values: Vec<&str> = values.filter_map(Value::as_str).collect();
            fits(expression.text(&["scopeName"]), expression.text(&["operator"]), &values)
        })
}

fn pod_fits(pod: &Value, scope: &str, operator: &str, values: &[&str]) -> bool {
    let terminating = || {
        let deadline = pod.at(&["spec", "activeDeadlineSeconds"]).and_then(Value::as_i64);
        deadline.is_some_and(|seconds| seconds >= 0)
    };
    let best_effort = || crate::rules::core::qos::qos_class(pod) == "BestEffort";
    match scope {
        "Terminating" => terminating(),
        "NotTerminating" => !terminating(),
        "BestEffort" => best_effort(),
        "NotBestEffort" => !best_effort(),
        "CrossNamespacePodAffinity" => looks_across_namespaces(pod),
        "PriorityClass" => selects(pod.text(&["spec", "priorityClassName"]), operator, values),
        _ => false,
    }
}

fn claim_fits(claim: &Value, operator: &str, values: &[&str]) -> bool {
    let wanted = claim.text(&["spec", "volumeAttributesClassName"]);
    let current = claim.text(&["status", "currentVolumeAttributesClassName"]);
    // Both the class it has and the one it asks for count.
    let names = [wanted, current];
    let mut set = names.iter().filter(|name| !name.is_empty()).peekable();
    match set.peek() {
        None => selects("", operator, values),
        Some(_) => set.any(|name| selects(name, operator, values)),
    }
}

/// A selector's operator on one value, "" standing for none.
fn selects(value: &str, operator: &str, values: &[&str]) -> bool {
    match operator {
        "Exists" => !value.is_empty(),
        "DoesNotExist" => value.is_empty(),
        "In" => !value.is_empty() && values.contains(&value),
        "NotIn" => !values.contains(&value),
        _ => false,
    }
}

fn looks_across_namespaces(pod: &Value) -> bool {
    let terms = |affinity: &str| {
        let of = |field: &str| {
            let list = pod.at(&["spec", "affinity", affinity, field]).and_then(Value::as_array);
            list.into_iter().flatten()
        };
        let preferred = of("preferredDuringSchedulingIgnoredDuringExecution")
            .filter_map(|term| term.get("podAffinityTerm"));
        of("requiredDuringSchedulingIgnoredDuringExecution").chain(preferred).any(|term| {
            let named = term.get("namespaces").and_then(Value::as_array);
            named.is_some_and(|list| !list.is_empty()) || term.at(&["namespaceSelector"]).is_some()
        })
    };
    terms("podAffinity") || terms("podAntiAffinity")
}
