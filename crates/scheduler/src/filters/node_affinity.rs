//! NodeName and NodeAffinity: selects nodes by name, label or field.

use super::{Plugin, Rejection};
use crate::node::{NodeInfo, NodeState};
use crate::pod::PodInfo;
use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};
use std::collections::BTreeSet;

pub(super) fn check_name(pod: &PodInfo, node: &NodeState) -> Result<(), Rejection> {
    match &pod.node {
        Some(name) if *name != node.name => {
            Err(Rejection::hard(Plugin::NodeName, "node(s) didn't match the requested node name"))
        }
        _ => Ok(()),
    }
}

pub(super) fn check(pod: &PodInfo, node: &NodeState, info: &NodeInfo) -> Result<(), Rejection> {
    match matches_node(pod, &node.name, info) {
        true => Ok(()),
        false => Err(Rejection::hard(
            Plugin::NodeAffinity,
            "node(s) didn't match Pod's node affinity/selector",
        )),
    }
}

/// Whether the node matches all labels of the pod's node selector and any of its required terms.
pub(crate) fn matches_node(pod: &PodInfo, name: &str, info: &NodeInfo) -> bool {
    let Some(spec) = &pod.pod.spec else {
        return true;
    };
    let mut labels = spec.node_selector.iter().flatten();
    labels.all(|(key, value)| info.label(key) == Some(value))
        && required(pod).is_none_or(|terms| selects(terms, name, info))
}

fn required(pod: &PodInfo) -> Option<&NodeSelector> {
    let affinity = pod.pod.spec.as_ref()?.affinity.as_ref()?;
    affinity.node_affinity.as_ref()?.required_during_scheduling_ignored_during_execution.as_ref()
}

fn selects(selector: &NodeSelector, name: &str, info: &NodeInfo) -> bool {
    selector.node_selector_terms.iter().any(|term| fits(term, name, info))
}

/// Whether a volume's or a pod's selector selects a node.
pub(crate) fn meets(selector: &NodeSelector, node: &NodeState) -> bool {
    node.info.as_ref().is_some_and(|info| selects(selector, &node.name, info))
}

/// Whether a preferred term matches. Unlike a required term, an empty one matches.
pub(crate) fn preferred_term_matches(term: &NodeSelectorTerm, node: &NodeState) -> bool {
    node.info.as_ref().is_some_and(|info| is_empty(term) || fits(term, &node.name, info))
}

fn is_empty(term: &NodeSelectorTerm) -> bool {
    let mut all = [&term.match_expressions, &term.match_fields].into_iter().flatten();
    all.all(Vec::is_empty)
}

fn fits(term: &NodeSelectorTerm, name: &str, info: &NodeInfo) -> bool {
    let field = |key: &str| (key == "metadata.name").then_some(name);
    !is_empty(term)
        && term.match_expressions.iter().flatten().all(|rule| holds(rule, info.label(&rule.key)))
        && term.match_fields.iter().flatten().all(|rule| holds(rule, field(&rule.key)))
}

fn holds(rule: &NodeSelectorRequirement, actual: Option<&str>) -> bool {
    let values = rule.values.as_deref().unwrap_or_default();
    let among = |actual: &str| values.iter().any(|value| value == actual);
    let compared = |wanted: fn(&i64, &i64) -> bool| {
        let actual: Option<i64> = actual.and_then(|actual| actual.parse().ok());
        let limit: Option<i64> = values.first().and_then(|value| value.parse().ok());
        values.len() == 1
            && actual.zip(limit).is_some_and(|(actual, limit)| wanted(&actual, &limit))
    };
    match rule.operator.as_str() {
        "In" => actual.is_some_and(among),
        "NotIn" => !actual.is_some_and(among),
        "Exists" => actual.is_some(),
        "DoesNotExist" => actual.is_none(),
        "Gt" => compared(i64::gt),
        "Lt" => compared(i64::lt),
        _ => false,
    }
}

/// The nodes that the required terms name, if each of them names some, as in pods of DaemonSets.
pub(super) fn names(pod: &PodInfo) -> Option<BTreeSet<String>> {
    let terms = &required(pod)?.node_selector_terms;
    let mut all = BTreeSet::new();
    for term in terms {
        let mut fields = term.match_fields.iter().flatten();
        let named =
            |rule: &&NodeSelectorRequirement| rule.key == "metadata.name" && rule.operator == "In";
        all.extend(fields.find(named)?.values.iter().flatten().cloned());
    }
    (!terms.is_empty()).then_some(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filters::check_single_node;
    use crate::filters::tests::reasons;
    use crate::node::tests::node;
    use crate::pod::tests::pod;
    use serde_json::{Value, json};

    fn requiring(terms: Value) -> PodInfo {
        pod(
            "p",
            json!({ "affinity": { "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": terms },
            } } }),
        )
    }

    fn rule(key: &str, operator: &str, values: &[&str]) -> Value {
        json!({ "matchExpressions": [{ "key": key, "operator": operator, "values": values }] })
    }

    #[test]
    fn n_189_any_required_term_must_match_with_all_its_rules() {
        let n = node("n", json!({ "metadata": { "labels": { "zone": "a", "cpus": "8" } } }));
        let name = |operator: &str, name: &str| json!({ "matchFields": [{ "key": "metadata.name", "operator": operator, "values": [name] }] });
        let both = |value: &str| {
            json!({ "matchExpressions": [{ "key": "zone", "operator": "Exists" },
                                         { "key": "cpus", "operator": "Gt", "values": [value] }] })
        };
        let cases = [
            (json!([rule("zone", "In", &["a", "b"])]), true),
            (json!([rule("zone", "In", &["b"])]), false),
            (json!([rule("zone", "NotIn", &["b"])]), true),
            (json!([rule("rack", "NotIn", &["b"])]), true),
            (json!([rule("rack", "Exists", &[])]), false),
            (json!([rule("rack", "DoesNotExist", &[])]), true),
            (json!([rule("cpus", "Gt", &["7"])]), true),
            (json!([rule("cpus", "Lt", &["8"])]), false),
            (json!([rule("zone", "Gt", &["7"])]), false),
            (json!([rule("zone", "In", &["b"]), rule("cpus", "Exists", &[])]), true),
            (json!([both("7")]), true),
            (json!([both("9")]), false),
            (json!([name("In", "n")]), true),
            (json!([name("NotIn", "n")]), false),
            (json!([{}]), false),
            (json!([]), false),
        ];
        for (terms, fits) in cases {
            let expected = if fits {
                "fits"
            } else {
                "node(s) didn't match Pod's node affinity/selector (hard)"
            };
            assert_eq!(
                reasons(check_single_node(&requiring(terms.clone()), &n)),
                expected,
                "{terms}"
            );
        }
    }

    #[test]
    fn n_189_all_labels_of_a_node_selector_must_match() {
        let n = node("n", json!({ "metadata": { "labels": { "a": "1", "b": "2" } } }));
        let check = |labels: Value| {
            reasons(check_single_node(&pod("p", json!({ "nodeSelector": labels })), &n))
        };
        assert_eq!(check(json!({ "a": "1", "b": "2" })), "fits");
        assert_ne!(check(json!({ "a": "1", "b": "3" })), "fits");
        assert_ne!(check(json!({ "c": "" })), "fits");
    }

    #[test]
    fn named_nodes_are_known_only_if_every_term_names_some() {
        let named = |names: &[&str]| json!({ "matchFields": [{ "key": "metadata.name", "operator": "In", "values": names }] });
        let both = requiring(json!([named(&["a"]), named(&["b"])]));
        assert_eq!(names(&both), Some(["a".to_owned(), "b".to_owned()].into()));
        assert_eq!(names(&requiring(json!([named(&["a"]), rule("x", "Exists", &[])]))), None);
        assert_eq!(names(&pod("p", json!({}))), None);
    }
}
