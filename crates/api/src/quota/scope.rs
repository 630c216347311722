//! Scopes: which objects a quota applies to.

use super::Counted;
use crate::pod::json::qos_class;
use crate::pod::resources::Qos;
use crate::value::ValueExt;
use serde_json::Value;

/// Whether all scopes of a quota match. Scopes are for pods, one is for claims; other objects match none.
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

/// Whether the pod has a deadline, for the scopes Terminating and NotTerminating.
pub fn is_terminating(pod: &Value) -> bool {
    let deadline = pod.at(&["spec", "activeDeadlineSeconds"]).and_then(Value::as_i64);
    deadline.is_some_and(|seconds| seconds >= 0)
}

fn pod_fits(pod: &Value, scope: &str, operator: &str, values: &[&str]) -> bool {
    let terminating = || is_terminating(pod);
    let best_effort = || qos_class(pod) == Qos::BestEffort;
    match scope {
        "Terminating" => terminating(),
        "NotTerminating" => !terminating(),
        "BestEffort" => best_effort(),
        "NotBestEffort" => !best_effort(),
        "CrossNamespacePodAffinity" => has_cross_namespace_affinity(pod),
        "PriorityClass" => selects(pod.text(&["spec", "priorityClassName"]), operator, values),
        _ => false,
    }
}

fn claim_fits(claim: &Value, operator: &str, values: &[&str]) -> bool {
    let requested = claim.text(&["spec", "volumeAttributesClassName"]);
    let current = claim.text(&["status", "currentVolumeAttributesClassName"]);
    // Both the current and the requested class count.
    let names = [requested, current];
    let mut set = names.iter().filter(|name| !name.is_empty()).peekable();
    match set.peek() {
        None => selects("", operator, values),
        Some(_) => set.any(|name| selects(name, operator, values)),
    }
}

/// Applies a selector's operator to a value; "" means not set.
fn selects(value: &str, operator: &str, values: &[&str]) -> bool {
    match operator {
        "Exists" => !value.is_empty(),
        "DoesNotExist" => value.is_empty(),
        "In" => !value.is_empty() && values.contains(&value),
        "NotIn" => !values.contains(&value),
        _ => false,
    }
}

fn has_cross_namespace_affinity(pod: &Value) -> bool {
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
