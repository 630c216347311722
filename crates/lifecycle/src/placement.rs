//! Which nodes a pod may run on: node selectors, taints, host ports. The scheduler filters by it, and the node checks
//! again.
//!
//! Not here: how much a pod needs (`resources`), which node is best, and messages (`scheduler`).

mod ports;

pub use ports::{HostPort, host_ports, ports_conflict};

use k8s_openapi::api::core::v1::{
    Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod, Taint, Toleration,
};
use std::collections::BTreeMap;

/// The node has every label of `nodeSelector` and matches the required node affinity.
pub fn wants_node(pod: &Pod, node: &Node) -> bool {
    let Some(spec) = &pod.spec else { return true };
    let labels = node.metadata.labels.as_ref();
    let has = |(key, value)| labels.and_then(|labels| labels.get(key)) == Some(value);
    let selected = spec.node_selector.iter().flatten().all(has);
    let affinity = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let required =
        affinity.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
    selected && required.is_none_or(|selector| selector_matches(selector, node))
}

/// One of the terms matches. Without terms nothing matches.
pub fn selector_matches(selector: &NodeSelector, node: &Node) -> bool {
    selector.node_selector_terms.iter().any(|term| term_matches(term, node))
}

/// All expressions over labels and all over fields hold. An empty term matches nothing.
pub fn term_matches(term: &NodeSelectorTerm, node: &Node) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    if expressions.is_empty() && fields.is_empty() {
        return false;
    }
    let none = BTreeMap::new();
    let labels = node.metadata.labels.as_ref().unwrap_or(&none);
    let name = node.metadata.name.as_deref().unwrap_or_default();
    expressions.iter().all(|wanted| holds(wanted, labels.get(&wanted.key).map(String::as_str)))
        && fields.iter().all(|wanted| field_holds(wanted, name))
}

fn holds(wanted: &NodeSelectorRequirement, found: Option<&str>) -> bool {
    let values = wanted.values.as_deref().unwrap_or_default();
    let among = || found.is_some_and(|found| values.iter().any(|value| value == found));
    let numbers = || Some((found?.parse::<i64>().ok()?, values.first()?.parse::<i64>().ok()?));
    match wanted.operator.as_str() {
        "In" => among(),
        "NotIn" => !among(),
        "Exists" => found.is_some(),
        "DoesNotExist" => found.is_none(),
        "Gt" => numbers().is_some_and(|(found, bound)| found > bound),
        "Lt" => numbers().is_some_and(|(found, bound)| found < bound),
        _ => false,
    }
}

/// `metadata.name` is the only supported field.
fn field_holds(wanted: &NodeSelectorRequirement, name: &str) -> bool {
    let values = wanted.values.as_deref().unwrap_or_default();
    match (wanted.key.as_str(), wanted.operator.as_str(), values) {
        ("metadata.name", "In", [value]) => value == name,
        ("metadata.name", "NotIn", [value]) => value != name,
        _ => false,
    }
}

/// Whether the toleration covers the taint (N-190).
pub fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    let (effect, key) = (text(&toleration.effect), text(&toleration.key));
    if !effect.is_empty() && effect != taint.effect || !key.is_empty() && key != taint.key {
        return false;
    }
    match text(&toleration.operator).as_str() {
        "Exists" => true,
        // Equal needs a key; validation rejects this as well.
        "" | "Equal" => !key.is_empty() && text(&toleration.value) == text(&taint.value),
        _ => false,
    }
}

/// The first taint with one of these effects that the pod does not tolerate.
pub fn untolerated<'n>(pod: &Pod, node: &'n Node, effects: &[&str]) -> Option<&'n Taint> {
    let tolerations = pod.spec.as_ref().and_then(|spec| spec.tolerations.as_deref());
    let tolerations = tolerations.unwrap_or_default();
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    taints
        .iter()
        .filter(|taint| effects.contains(&taint.effect.as_str()))
        .find(|taint| !tolerations.iter().any(|toleration| tolerates(toleration, taint)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn node(labels: Value) -> Node {
        typed::from_value(json!({ "metadata": { "name": "n1", "labels": labels } })).unwrap()
    }

    fn wants(spec: Value, labels: Value) -> bool {
        let mut spec = spec;
        spec["containers"] = json!([]);
        let pod: Pod = typed::from_value(json!({ "spec": spec })).unwrap();
        wants_node(&pod, &node(labels))
    }

    fn required(terms: Value) -> Value {
        json!({ "affinity": { "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": terms } } } })
    }

    #[test]
    fn a_node_must_have_every_label_of_the_selector() {
        let selector = json!({ "nodeSelector": { "disk": "ssd", "zone": "a" } });
        assert!(wants(selector.clone(), json!({ "disk": "ssd", "zone": "a", "x": "y" })));
        assert!(!wants(selector.clone(), json!({ "disk": "ssd" })));
        assert!(!wants(selector, json!({ "disk": "ssd", "zone": "b" })));
        assert!(wants(json!({}), json!({})));
    }

    #[test]
    fn each_operator_matches_as_documented() {
        let rows = [
            (json!({ "key": "k", "operator": "In", "values": ["a", "b"] }), Some("b"), true),
            (json!({ "key": "k", "operator": "In", "values": ["a"] }), Some("b"), false),
            (json!({ "key": "k", "operator": "In", "values": ["a"] }), None, false),
            (json!({ "key": "k", "operator": "NotIn", "values": ["a"] }), Some("a"), false),
            (json!({ "key": "k", "operator": "NotIn", "values": ["a"] }), None, true),
            (json!({ "key": "k", "operator": "Exists" }), Some(""), true),
            (json!({ "key": "k", "operator": "Exists" }), None, false),
            (json!({ "key": "k", "operator": "DoesNotExist" }), None, true),
            (json!({ "key": "k", "operator": "Gt", "values": ["5"] }), Some("6"), true),
            (json!({ "key": "k", "operator": "Gt", "values": ["5"] }), Some("5"), false),
            (json!({ "key": "k", "operator": "Gt", "values": ["5"] }), Some("six"), false),
            (json!({ "key": "k", "operator": "Lt", "values": ["5"] }), Some("-4"), true),
            (json!({ "key": "k", "operator": "Lt", "values": ["5"] }), None, false),
        ];
        for (expression, label, expected) in rows {
            let labels = label.map_or(json!({}), |label| json!({ "k": label }));
            let spec = required(json!([{ "matchExpressions": [expression] }]));
            assert_eq!(wants(spec.clone(), labels.clone()), expected, "{spec} on {labels}");
        }
    }

    #[test]
    fn one_term_is_enough_and_all_of_its_expressions_are_needed() {
        let a = json!({ "key": "a", "operator": "Exists" });
        let b = json!({ "key": "b", "operator": "Exists" });
        let both = required(json!([{ "matchExpressions": [a, b] }]));
        let either = required(json!([{ "matchExpressions": [a] }, { "matchExpressions": [b] }]));
        assert!(!wants(both, json!({ "a": "" })));
        assert!(wants(either, json!({ "b": "" })));
    }

    #[test]
    fn an_empty_term_and_no_terms_match_nothing() {
        assert!(!wants(required(json!([{}])), json!({})));
        assert!(!wants(required(json!([])), json!({})));
    }

    #[test]
    fn match_fields_compares_the_name_of_the_node() {
        let named = |operator: &str, name: &str| {
            required(json!([{ "matchFields": [
                { "key": "metadata.name", "operator": operator, "values": [name] }] }]))
        };
        assert!(wants(named("In", "n1"), json!({})));
        assert!(!wants(named("In", "n2"), json!({})));
        assert!(wants(named("NotIn", "n2"), json!({})));
    }

    #[test]
    fn n_190_a_toleration_matches_by_effect_key_and_value() {
        let taint: Taint =
            serde_json::from_value(json!({ "key": "k", "value": "v", "effect": "NoSchedule" }))
                .unwrap();
        let rows = [
            (
                json!({ "key": "k", "operator": "Equal", "value": "v", "effect": "NoSchedule" }),
                true,
            ),
            (json!({ "key": "k", "value": "v" }), true),
            (json!({ "key": "k", "value": "w" }), false),
            (json!({ "key": "k", "operator": "Exists" }), true),
            (json!({ "key": "k", "operator": "Exists", "effect": "NoExecute" }), false),
            (json!({ "operator": "Exists" }), true),
            (json!({ "key": "x", "operator": "Exists" }), false),
            (json!({ "operator": "Equal", "value": "v" }), false),
        ];
        for (toleration, expected) in rows {
            let parsed: Toleration = serde_json::from_value(toleration.clone()).unwrap();
            assert_eq!(tolerates(&parsed, &taint), expected, "{toleration}");
        }
    }

    #[test]
    fn taints_with_other_effects_are_ignored() {
        let node: Node = typed::from_value(json!({ "spec": { "taints": [
            { "key": "a", "effect": "NoSchedule" }, { "key": "b", "effect": "NoExecute" } ] } }))
        .unwrap();
        let pod = Pod::default();
        assert_eq!(untolerated(&pod, &node, &["NoExecute"]).unwrap().key, "b");
        assert!(untolerated(&pod, &node, &["PreferNoSchedule"]).is_none());
    }
}
