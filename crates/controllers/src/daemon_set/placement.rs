//! Decides which nodes match a DaemonSet, and creates the pod for a node (C-81…C-84, C-86). Pure.

use crate::workload::{annotation, from_template, label, name};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{
    Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod, PodSpec, Toleration,
};
use lifecycle::placement;

pub(super) const HASH: &str = "controller-revision-hash";
const GENERATION: &str = "pod-template-generation";
const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

const NO_SCHEDULE: &str = "NoSchedule";
const NO_EXECUTE: &str = "NoExecute";

/// Key and effect of the taints that every daemon pod tolerates.
const TOLERATED: [(&str, &str); 6] = [
    ("node.kubernetes.io/not-ready", NO_EXECUTE),
    ("node.kubernetes.io/unreachable", NO_EXECUTE),
    ("node.kubernetes.io/disk-pressure", NO_SCHEDULE),
    ("node.kubernetes.io/memory-pressure", NO_SCHEDULE),
    ("node.kubernetes.io/pid-pressure", NO_SCHEDULE),
    ("node.kubernetes.io/unschedulable", NO_SCHEDULE),
];

/// Pods with host network also tolerate this one.
const TOLERATED_ON_HOST: (&str, &str) = ("node.kubernetes.io/network-unavailable", NO_SCHEDULE);

/// Whether a node gets a pod, and whether one that is there may stay (C-83).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Fit {
    pub(super) should_run: bool,
    pub(super) should_continue: bool,
}

/// The template as a pod, to check it against all nodes.
pub(super) fn template_pod(set: &DaemonSet) -> Pod {
    let template = set.spec.as_ref().map(|spec| spec.template.clone()).unwrap_or_default();
    let mut pod = from_template(set, &template);
    tolerate(pod.spec.get_or_insert_default());
    pod
}

pub(super) fn fit(template_pod: &Pod, node: &Node) -> Fit {
    let wanted = template_pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    let named = wanted.is_none_or(|wanted| wanted.is_empty() || wanted == name(node));
    if !named || !placement::wants_node(template_pod, node) {
        return Fit::default();
    }
    let tolerates =
        |effects: &[&str]| placement::untolerated(template_pod, node, effects).is_none();
    Fit {
        should_run: tolerates(&[NO_SCHEDULE, NO_EXECUTE]),
        should_continue: tolerates(&[NO_EXECUTE]),
    }
}

fn tolerate(spec: &mut PodSpec) {
    let on_host = spec.host_network == Some(true);
    let tolerations = spec.tolerations.get_or_insert_default();
    for (key, effect) in TOLERATED.into_iter().chain(on_host.then_some(TOLERATED_ON_HOST)) {
        let wanted = Toleration {
            key: Some(key.to_owned()),
            operator: Some("Exists".to_owned()),
            effect: Some(effect.to_owned()),
            ..Toleration::default()
        };
        let same = |there: &&mut Toleration| {
            there.key == wanted.key
                && there.effect == wanted.effect
                && there.operator == wanted.operator
                && there.value.as_deref().unwrap_or_default().is_empty()
        };
        match tolerations.iter_mut().find(same) {
            Some(there) => *there = wanted,
            None => tolerations.push(wanted),
        }
    }
}

/// The pod for one node. Its node affinity lets the scheduler bind it only to that node.
pub(super) fn make(template_pod: &Pod, set: &DaemonSet, node: &str, hash: &str) -> Pod {
    let mut pod = template_pod.clone();
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.insert(HASH.to_owned(), hash.to_owned());
    if let Some(generation) = annotation(set, TEMPLATE_GENERATION) {
        labels.insert(GENERATION.to_owned(), generation.to_owned());
    }
    let spec = pod.spec.get_or_insert_default();
    let affinity = spec.affinity.get_or_insert_default().node_affinity.get_or_insert_default();
    affinity.required_during_scheduling_ignored_during_execution = Some(NodeSelector {
        node_selector_terms: vec![NodeSelectorTerm {
            match_expressions: None,
            match_fields: Some(vec![NodeSelectorRequirement {
                key: "metadata.name".to_owned(),
                operator: "In".to_owned(),
                values: Some(vec![node.to_owned()]),
            }]),
        }],
    });
    pod
}

/// The node that a pod is bound to or made for (C-82).
pub(super) fn node_of(pod: &Pod) -> Option<&str> {
    let spec = pod.spec.as_ref()?;
    if let Some(node) = spec.node_name.as_deref().filter(|node| !node.is_empty()) {
        return Some(node);
    }
    let affinity = spec.affinity.as_ref()?.node_affinity.as_ref()?;
    let required = affinity.required_during_scheduling_ignored_during_execution.as_ref()?;
    let fields = required.node_selector_terms.iter().flat_map(|t| t.match_fields.iter().flatten());
    let mut named = fields.filter(|field| field.key == "metadata.name" && field.operator == "In");
    match named.next()?.values.as_deref()? {
        [node] => Some(node),
        _ => None,
    }
}

/// Whether the pod has the current template, by hash or by generation (C-92).
pub(super) fn is_updated(set: &DaemonSet, pod: &Pod, hash: &str) -> bool {
    let generation = annotation(set, TEMPLATE_GENERATION);
    label(pod, HASH) == Some(hash) || generation.is_some() && label(pod, GENERATION) == generation
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn set(spec: Value) -> DaemonSet {
        let mut spec = spec;
        spec["containers"] = json!([]);
        typed::from_value(json!({
            "metadata": { "namespace": "a", "name": "d", "uid": "u",
                "annotations": { TEMPLATE_GENERATION: "3" } },
            "spec": { "selector": {}, "template": { "spec": spec } },
        }))
        .unwrap()
    }

    fn node(labels: Value, taints: Value) -> Node {
        typed::from_value(json!({ "metadata": { "name": "n1", "labels": labels },
            "spec": { "taints": taints } }))
        .unwrap()
    }

    #[test]
    fn c_83_c_84_t_ctrl_32_only_selectors_and_taints_decide_about_nodes() {
        let taint = |key: &str, effect: &str| json!([{ "key": key, "effect": effect }]);
        let affinity = json!({ "affinity": { "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [
                { "matchExpressions": [{ "key": "disk", "operator": "Exists" }] }] } } } });
        let cases = [
            ("any", json!({}), json!({}), json!([]), (true, true)),
            (
                "label",
                json!({ "nodeSelector": { "a": "b" } }),
                json!({ "a": "b" }),
                json!([]),
                (true, true),
            ),
            (
                "no label",
                json!({ "nodeSelector": { "a": "b" } }),
                json!({}),
                json!([]),
                (false, false),
            ),
            ("affinity", affinity.clone(), json!({ "disk": "" }), json!([]), (true, true)),
            ("no affinity", affinity, json!({}), json!([]), (false, false)),
            ("named", json!({ "nodeName": "n1" }), json!({}), json!([]), (true, true)),
            (
                "another node is named",
                json!({ "nodeName": "n2" }),
                json!({}),
                json!([]),
                (false, false),
            ),
            (
                "untolerated NoSchedule",
                json!({}),
                json!({}),
                taint("x", "NoSchedule"),
                (false, true),
            ),
            (
                "untolerated NoExecute",
                json!({}),
                json!({}),
                taint("x", "NoExecute"),
                (false, false),
            ),
            (
                "cordoned",
                json!({}),
                json!({}),
                taint("node.kubernetes.io/unschedulable", "NoSchedule"),
                (true, true),
            ),
            (
                "unreachable",
                json!({}),
                json!({}),
                taint("node.kubernetes.io/unreachable", "NoExecute"),
                (true, true),
            ),
            (
                "no network",
                json!({}),
                json!({}),
                taint("node.kubernetes.io/network-unavailable", "NoSchedule"),
                (false, true),
            ),
            (
                "no network needed",
                json!({ "hostNetwork": true }),
                json!({}),
                taint("node.kubernetes.io/network-unavailable", "NoSchedule"),
                (true, true),
            ),
        ];
        for (what, spec, labels, taints, (should_run, should_continue)) in cases {
            let found = fit(&template_pod(&set(spec)), &node(labels, taints));
            assert_eq!(found, Fit { should_run, should_continue }, "{what}");
        }
    }

    /// A toleration of the user stays unless it differs only in `tolerationSeconds`.
    #[test]
    fn c_84_daemon_pods_tolerate_node_problems() {
        let users = json!([
            { "key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute",
              "tolerationSeconds": 5 },
            { "key": "node.kubernetes.io/unreachable", "operator": "Equal", "value": "v",
              "effect": "NoExecute", "tolerationSeconds": 5 },
            { "key": "mine", "operator": "Exists" },
        ]);
        let tolerations = |host_network: bool| {
            let set = set(json!({ "tolerations": users, "hostNetwork": host_network }));
            let pod = template_pod(&set);
            let mut all: Vec<String> = pod
                .spec
                .unwrap()
                .tolerations
                .unwrap()
                .iter()
                .map(|one| {
                    let text = |field: &Option<String>| field.clone().unwrap_or_default();
                    let key = text(&one.key).replace("node.kubernetes.io/", "");
                    let seconds = one.toleration_seconds.map_or(String::new(), |s| format!(" {s}"));
                    format!("{key} {} {}{seconds}", text(&one.operator), text(&one.effect))
                })
                .collect();
            all.sort();
            all
        };
        let wanted = [
            "disk-pressure Exists NoSchedule",
            "memory-pressure Exists NoSchedule",
            "mine Exists ",
            "not-ready Exists NoExecute",
            "pid-pressure Exists NoSchedule",
            "unreachable Equal NoExecute 5",
            "unreachable Exists NoExecute",
            "unschedulable Exists NoSchedule",
        ];
        assert_eq!(tolerations(false), wanted);
        let mut with_network = wanted.to_vec();
        with_network.push("network-unavailable Exists NoSchedule");
        with_network.sort_unstable();
        assert_eq!(tolerations(true), with_network);
    }

    #[test]
    fn c_81_c_82_c_86_a_pod_names_its_node_in_its_affinity() {
        let set = set(json!({}));
        let pod = make(&template_pod(&set), &set, "n7", "abc");
        assert_eq!(node_of(&pod), Some("n7"));
        assert_eq!(label(&pod, HASH), Some("abc"));
        assert_eq!(label(&pod, GENERATION), Some("3"));
        assert!(is_updated(&set, &pod, "abc") && is_updated(&set, &pod, "other"), "C-92");
    }
}
