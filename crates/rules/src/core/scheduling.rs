//! Scheduling constraints: affinity, tolerations, topology spread, gates.

use super::checks::{self, Duplicates, NOT_POSITIVE};
use crate::label_selector;
use api::field::{At, Errors, Wrong};
use api::names;

const IN_OR_NOT: &str = "must be specified when `operator` is 'In' or 'NotIn'";
const NO_VALUES: &str = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
const NOT_AN_OPERATOR: &str = "not a valid selector operator";
const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

pub(super) fn affinity(affinity: &At, errors: &mut Errors) {
    let node = affinity.field("nodeAffinity");
    if node.field(REQUIRED).is_set() {
        node_selector(&node.field(REQUIRED), errors);
    }
    for term in node.field(PREFERRED).items() {
        weight(&term, errors);
        node_term(&term.field("preference"), false, errors);
    }
    for kind in ["podAffinity", "podAntiAffinity"] {
        let pods = affinity.field(kind);
        pods.field(REQUIRED).items().for_each(|term| pod_term(&term, errors));
        for term in pods.field(PREFERRED).items() {
            weight(&term, errors);
            pod_term(&term.field("podAffinityTerm"), errors);
        }
    }
}

fn weight(term: &At, errors: &mut Errors) {
    let weight = term.field("weight");
    let number = weight.int().unwrap_or_default();
    if !(1..=100).contains(&number) {
        errors.invalid_value(&weight, number, "must be in the range 1-100");
    }
}

/// A NodeSelector, as pods and volumes require it.
pub(super) fn node_selector(selector: &At, errors: &mut Errors) {
    let terms = selector.field("nodeSelectorTerms");
    if terms.is_empty() {
        errors.required(&terms, "must have at least one node selector term");
    }
    terms.items().for_each(|term| node_term(&term, true, errors));
}

fn node_term(term: &At, check_values: bool, errors: &mut Errors) {
    for requirement in term.field("matchExpressions").items() {
        node_requirement(&requirement, check_values, errors);
    }
    for requirement in term.field("matchFields").items() {
        field_requirement(&requirement, errors);
    }
}

fn node_requirement(requirement: &At, check_values: bool, errors: &mut Errors) {
    let (operator, values) = (requirement.field("operator"), requirement.field("values"));
    match operator.text() {
        "In" | "NotIn" if values.is_empty() => errors.required(&values, IN_OR_NOT),
        "Exists" | "DoesNotExist" if !values.is_empty() => errors.forbidden(&values, NO_VALUES),
        "Gt" | "Lt" if values.len() != 1 => errors
            .required(&values, "must be specified single value when `operator` is 'Lt' or 'Gt'"),
        "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
        other => errors.invalid_value(&operator, other, NOT_AN_OPERATOR),
    }
    label_name(&requirement.field("key"), errors);
    if check_values {
        for value in values.items() {
            checks::each(&value, names::label_value(value.text()), errors);
        }
    }
}

fn field_requirement(requirement: &At, errors: &mut Errors) {
    let (operator, values) = (requirement.field("operator"), requirement.field("values"));
    match operator.text() {
        "In" | "NotIn" => {
            if values.len() != 1 {
                errors.required(&values, "must be only one value when `operator` is 'In' or 'NotIn' for node field selector");
            }
        }
        other => errors.invalid_value(&operator, other, NOT_AN_OPERATOR),
    }
    let key = requirement.field("key");
    if key.text() != "metadata.name" {
        errors.invalid_value(&key, key.text(), "not a valid field selector key");
        return;
    }
    for value in values.items() {
        checks::each(&value, names::dns1123_subdomain(value.text()), errors);
    }
}

pub(super) fn label_name(at: &At, errors: &mut Errors) {
    for wrong in names::qualified_name(at.text()) {
        errors.invalid_value(at, at.text(), &wrong);
    }
}

fn pod_term(term: &At, errors: &mut Errors) {
    let selector = term.field("labelSelector");
    label_selector::validate(&selector, errors);
    label_selector::validate(&term.field("namespaceSelector"), errors);
    for namespace in term.field("namespaces").items() {
        for wrong in names::dns1123_label(namespace.text()) {
            errors.invalid_value(&term.field("namespace"), namespace.text(), &wrong);
        }
    }
    let (matching, mismatching) = (term.field("matchLabelKeys"), term.field("mismatchLabelKeys"));
    for keys in [&matching, &mismatching] {
        if !keys.is_empty() && !selector.is_set() {
            errors.forbidden(keys, "must not be specified when labelSelector is not set");
            continue;
        }
        keys.items().for_each(|key| label_name(&key, errors));
    }
    for key in matching.items() {
        if mismatching.items().any(|other| other.text() == key.text()) {
            errors.invalid(&key, "exists in both matchLabelKeys and mismatchLabelKeys");
        }
    }
    let topology = term.field("topologyKey");
    if topology.text().is_empty() {
        errors.required(&topology, "can not be empty");
    }
    label_name(&topology, errors);
}

pub(super) fn tolerations(tolerations: &At, errors: &mut Errors) {
    for toleration in tolerations.items() {
        let (key, operator) = (toleration.field("key"), toleration.field("operator"));
        let (value, effect) = (toleration.field("value"), toleration.field("effect"));
        if !key.text().is_empty() {
            label_name(&key, errors);
        } else if operator.text() != "Exists" {
            errors.invalid_value(&operator, operator.text(), "operator must be Exists when `key` is empty, which means \"match all values and all keys\"");
        }
        if toleration.field("tolerationSeconds").is_set() && effect.text() != "NoExecute" {
            let detail = "effect must be 'NoExecute' when `tolerationSeconds` is set";
            errors.invalid_value(&effect, effect.text(), detail);
        }
        match operator.text() {
            "Equal" | "" => {
                let wrong = names::label_value(value.text());
                if !wrong.is_empty() {
                    errors.invalid_value(&operator, value.text(), &wrong.join(";"));
                }
            }
            "Exists" => {
                if !value.text().is_empty() {
                    let detail = "value must be empty when `operator` is 'Exists'";
                    errors.invalid_value(&operator, value.text(), detail);
                }
            }
            _ => errors.not_supported(&operator, &["Equal", "Exists"]),
        }
        if !effect.text().is_empty() {
            taint_effect(&effect, errors);
        }
    }
}

pub(super) fn taint_effect(effect: &At, errors: &mut Errors) {
    checks::optional_one_of(effect, &["NoSchedule", "PreferNoSchedule", "NoExecute"], errors);
}

pub(super) fn spread(constraints: &At, errors: &mut Errors) {
    let list: Vec<At> = constraints.items().collect();
    for (index, constraint) in list.iter().enumerate() {
        let skew = constraint.field("maxSkew");
        if skew.int().unwrap_or_default() <= 0 {
            errors.invalid_value(&skew, skew.int().unwrap_or_default(), NOT_POSITIVE);
        }
        let topology = constraint.field("topologyKey");
        if topology.text().is_empty() {
            errors.required(&topology, "can not be empty");
        }
        let action = constraint.field("whenUnsatisfiable");
        if !["DoNotSchedule", "ScheduleAnyway"].contains(&action.text()) {
            let detail = "supported values: \"DoNotSchedule\", \"ScheduleAnyway\"";
            errors.push(Wrong::NotSupported, action.path(), Some(&action.text().into()), detail);
        }
        let again = |other: &At| {
            other.field("topologyKey").text() == topology.text()
                && other.field("whenUnsatisfiable").text() == action.text()
        };
        if list[index + 1..].iter().any(again) {
            let pair = format!("{{{}, {}}}", topology.text(), action.text());
            let path = format!("{}.{{topologyKey, whenUnsatisfiable}}", constraint.path());
            errors.push(Wrong::Duplicate, path, Some(&pair.into()), "");
        }
        min_domains(constraint, action.text(), errors);
        for policy in ["nodeAffinityPolicy", "nodeTaintsPolicy"] {
            checks::optional_one_of(&constraint.field(policy), &["Honor", "Ignore"], errors);
        }
        match_label_keys(constraint, errors);
        label_selector::validate(&constraint.field("labelSelector"), errors);
    }
}

fn min_domains(constraint: &At, action: &str, errors: &mut Errors) {
    let domains = constraint.field("minDomains");
    let Some(number) = domains.int() else {
        return;
    };
    if number <= 0 {
        errors.invalid(&domains, NOT_POSITIVE);
    }
    if action != "DoNotSchedule" {
        let detail =
            format!("can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}");
        errors.invalid(&domains, &detail);
    }
}

fn match_label_keys(constraint: &At, errors: &mut Errors) {
    let keys = constraint.field("matchLabelKeys");
    let selector = constraint.field("labelSelector");
    if keys.is_empty() {
        return;
    }
    if !selector.is_set() {
        errors.forbidden(&keys, "must not be specified when labelSelector is not set");
    }
    for key in keys.items() {
        label_name(&key, errors);
        let labels = selector.field("matchLabels");
        let expressions = selector.field("matchExpressions");
        // The server added the key once when it created the pod.
        let named = expressions.items().filter(|e| e.field("key").text() == key.text()).count();
        if named + usize::from(labels.key(key.text()).is_set()) > 1 {
            errors.invalid(&key, "exists in both matchLabelKeys and labelSelector");
        }
    }
}

pub(super) fn gates(gates: &At, errors: &mut Errors) {
    let mut seen = Duplicates::default();
    for gate in gates.items() {
        let name = gate.field("name").text();
        for wrong in names::qualified_name(name) {
            errors.invalid_value(&gate, name, &wrong);
        }
        if seen.repeats(name) {
            errors.push(Wrong::Duplicate, gate.path(), Some(&name.into()), "");
        }
    }
}

/// The node affinity of a gated pod may only become more restrictive.
pub(super) fn only_narrowed(new: &At, old: &At, errors: &mut Errors) {
    let (selector, before) = (new.field("nodeSelector"), old.field("nodeSelector"));
    if before.entries().any(|(key, value)| selector.key(key).text() != value.text()) {
        errors.invalid(
            &selector,
            "only additions to spec.nodeSelector are allowed (no mutations or deletions)",
        );
    }
    let terms = |spec: &At| -> Vec<serde_json::Value> {
        let affinity = spec.field("affinity");
        let node = affinity.field("nodeAffinity");
        let required = node.field(REQUIRED);
        required
            .field("nodeSelectorTerms")
            .value()
            .and_then(|v| v.as_array())
            .cloned()
            .unwrap_or_default()
    };
    let (now, before) = (terms(new), terms(old));
    let path = format!("{}.affinity.nodeAffinity.{REQUIRED}.nodeSelectorTerms", new.path());
    if !before.is_empty() && now.len() != before.len() {
        let detail = "no additions/deletions to non-empty NodeSelectorTerms list are allowed";
        errors.push(Wrong::Invalid, path, Some(&now.into()), detail);
        return;
    }
    for (index, (now, before)) in now.iter().zip(&before).enumerate() {
        if !only_additions(now, before) {
            let detail = "only additions are allowed (no mutations or deletions)";
            errors.push(Wrong::Invalid, format!("{path}[{index}]"), Some(now), detail);
        }
    }
}

fn only_additions(now: &serde_json::Value, before: &serde_json::Value) -> bool {
    let list = |term: &serde_json::Value, field: &str| {
        term.get(field).and_then(|v| v.as_array()).cloned().unwrap_or_default()
    };
    let fields = ["matchExpressions", "matchFields"];
    let empty = |term| fields.iter().all(|field| list(term, field).is_empty());
    if empty(before) {
        return empty(now);
    }
    fields.iter().all(|field| list(now, field).starts_with(&list(before, field)))
}

#[cfg(test)]
mod tests {
    use super::super::trial::{NOTHING, create, pod};
    use serde_json::json;

    #[test]
    fn a_92_invalid_scheduling_constraints_are_rejected_with_upstreams_messages() {
        let spread = |more| {
            let mut constraint =
                json!({"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"});
            super::super::trial::merge(&mut constraint, more);
            json!({"topologySpreadConstraints": [constraint]})
        };
        let rows: &[(_, &str)] = &[
            (
                json!({"tolerations": [{"key": "k", "operator": "Exists", "value": "v"}]}),
                "spec.tolerations[0].operator: Invalid value: \"v\": value must be empty when `operator` is 'Exists'",
            ),
            (
                json!({"tolerations": [{"operator": "Exists", "tolerationSeconds": 1}]}),
                "spec.tolerations[0].effect: Invalid value: \"\": effect must be 'NoExecute' when `tolerationSeconds` is set",
            ),
            (
                json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}}}),
                "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms: Required value: must have at least one node selector term",
            ),
            (
                json!({"affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 101, "podAffinityTerm": {"topologyKey": "k"}}]}}}),
                "spec.affinity.podAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight: Invalid value: 101: must be in the range 1-100",
            ),
            (
                spread(json!({"maxSkew": 0})),
                "spec.topologySpreadConstraints[0].maxSkew: Invalid value: 0: must be greater than zero",
            ),
            (
                spread(json!({"minDomains": 2})),
                "spec.topologySpreadConstraints[0].minDomains: Invalid value: 2: can only use minDomains if whenUnsatisfiable=DoNotSchedule, not ScheduleAnyway",
            ),
            (
                json!({"schedulingGates": [{"name": "a"}, {"name": "a"}]}),
                "spec.schedulingGates[1]: Duplicate value: \"a\"",
            ),
        ];
        for (spec, message) in rows {
            assert_eq!(create("Pod", pod(spec.clone())), [*message]);
        }
        assert_eq!(create("Pod", pod(spread(json!({})))), NOTHING);
    }
}
