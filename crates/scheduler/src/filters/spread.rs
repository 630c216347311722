//! PodTopologySpread: hard constraints on spreading pods over zones, hosts or racks (N-192).
//!
//! Not here: soft constraints (`scores`).

use super::{Plugin, Rejection, node_affinity, taints};
use crate::affinity_terms::selector;
use crate::node::NodeState;
use crate::pod::PodInfo;
use crate::pod_counts::PodQuery;
use crate::view::View;
use k8s_openapi::api::core::v1::TopologySpreadConstraint;
use std::collections::HashMap;

const REASON: &str = "node(s) didn't match pod topology spread constraints";
const REASON_LABEL: &str =
    "node(s) didn't match pod topology spread constraints (missing required label)";

pub(super) struct Plan {
    constraints: Vec<Constraint>,
}

struct Constraint {
    key: String,
    max_skew: i64,
    /// The number of matching pods per domain.
    domains: HashMap<String, i64>,
    least: i64,
    /// 1 if the pod itself matches.
    itself: i64,
}

impl Plan {
    pub(super) fn make(view: View, pod: &PodInfo) -> Plan {
        let all = pod.pod.spec.iter().flat_map(|spec| &spec.topology_spread_constraints);
        let hard = all.flatten().filter(|c| c.when_unsatisfiable == "DoNotSchedule");
        let hard: Vec<&TopologySpreadConstraint> = hard.collect();
        let constraints = hard.iter().map(|c| Constraint::make(view, pod, c, &hard)).collect();
        Plan { constraints }
    }

    pub(super) fn check(&self, _: &PodInfo, node: &NodeState) -> Result<(), Rejection> {
        for constraint in &self.constraints {
            let Some(domain) = node.label(&constraint.key) else {
                return Err(Rejection::hard(Plugin::PodTopologySpread, REASON_LABEL));
            };
            let there = constraint.domains.get(domain).copied().unwrap_or_default();
            if there + constraint.itself - constraint.least > constraint.max_skew {
                return Err(Rejection::soft(Plugin::PodTopologySpread, REASON));
            }
        }
        Ok(())
    }
}

impl Constraint {
    fn make(
        view: View,
        pod: &PodInfo,
        constraint: &TopologySpreadConstraint,
        all: &[&TopologySpreadConstraint],
    ) -> Constraint {
        let query = query(pod, constraint);
        let counts = view.counts(&query);
        let key = &constraint.topology_key;
        let mut domains: HashMap<String, i64> = HashMap::new();
        for node in view.nodes() {
            let has_all = all.iter().all(|c| node.label(&c.topology_key).is_some());
            let Some(domain) = node.label(key).filter(|_| has_all) else { continue };
            if counts_nodes_like(pod, constraint, node) {
                let count = counts.get(&node.name).copied().unwrap_or_default() as i64;
                *domains.entry(domain.to_owned()).or_default() += count;
            }
        }
        let few = (domains.len() as i64) < i64::from(constraint.min_domains.unwrap_or(1));
        let least = domains.values().copied().min().unwrap_or_default();
        Constraint {
            key: key.clone(),
            max_skew: constraint.max_skew.into(),
            least: if few { 0 } else { least },
            itself: i64::from(query.matches(pod)),
            domains,
        }
    }
}

/// Whether a node counts: it must match the pod's affinity and, by policy, have no untolerated taints.
fn counts_nodes_like(
    pod: &PodInfo,
    constraint: &TopologySpreadConstraint,
    node: &NodeState,
) -> bool {
    let Some(info) = &node.info else { return false };
    let wanted = constraint.node_affinity_policy.as_deref() == Some("Ignore")
        || node_affinity::matches_node(pod, &node.name, info);
    let tolerated = constraint.node_taints_policy.as_deref() != Some("Honor")
        || taints::check(pod, info).is_ok();
    wanted && tolerated
}

/// The pods that a constraint counts.
pub(crate) fn query(pod: &PodInfo, constraint: &TopologySpreadConstraint) -> PodQuery {
    let mut wanted = constraint.label_selector.clone();
    if let Some(wanted) = &mut wanted {
        for key in constraint.match_label_keys.iter().flatten() {
            if let Some(value) = pod.label(key) {
                let labels = wanted.match_labels.get_or_insert_default();
                labels.insert(key.clone(), value.to_owned());
            }
        }
    }
    let namespaces = Some([pod.namespace().to_owned()].into());
    PodQuery { exclude_terminating: true, ..PodQuery::of(namespaces, selector(wanted.as_ref())) }
}

#[cfg(test)]
mod tests {
    use crate::cluster_state::ClusterState;
    use crate::cluster_state::tests::cluster;
    use crate::filters::Cycle;
    use crate::filters::tests::reasons;
    use crate::node::NodeState;
    use crate::node::tests::node;
    use crate::pod::PodInfo;
    use crate::pod::tests::{pod_with, read};
    use crate::view::View;
    use serde_json::{Value, json};

    const NO: &str = "node(s) didn't match pod topology spread constraints";

    fn zoned(name: &str, zone: &str) -> NodeState {
        node(name, json!({ "metadata": { "labels": { "zone": zone } } }))
    }

    fn web(name: &str, node: &str) -> PodInfo {
        pod_with(name, json!({ "app": "web" }), json!({ "nodeName": node }))
    }

    fn spreading(more: Value) -> PodInfo {
        let mut constraint = json!({
            "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": { "matchLabels": { "app": "web" } },
        });
        for (key, value) in more.as_object().unwrap() {
            constraint[key] = value.clone();
        }
        let constraints = json!([constraint]);
        pod_with(
            "p",
            json!({ "app": "web", "hash": "1" }),
            json!({
                "topologySpreadConstraints": constraints, "nodeSelector": { "kind": "worker" },
            }),
        )
    }

    fn checked(cluster: &ClusterState, pod: &PodInfo) -> Vec<String> {
        let cycle = Cycle::begin(View::of(cluster), pod).unwrap();
        cluster.nodes().map(|node| reasons(cycle.spread.check(pod, node))).collect()
    }

    fn worker(name: &str, zone: &str) -> NodeState {
        node(name, json!({ "metadata": { "labels": { "zone": zone, "kind": "worker" } } }))
    }

    #[test]
    fn n_192_a_domain_may_not_exceed_the_maximum_skew() {
        let nodes = || [worker("a", "x"), worker("b", "x"), worker("c", "y"), node("d", json!({}))];
        let missing = format!("{NO} (missing required label) (hard)");
        let two = cluster(nodes(), [web("1", "a"), web("2", "b"), web("3", "c")]);
        assert_eq!(checked(&two, &spreading(json!({}))), [NO, NO, "fits", &missing]);
        assert_eq!(
            checked(&two, &spreading(json!({ "maxSkew": 2 }))),
            ["fits", "fits", "fits", &missing]
        );
        let none = cluster(nodes(), []);
        assert_eq!(checked(&none, &spreading(json!({}))), ["fits", "fits", "fits", &missing]);
    }

    #[test]
    fn n_192_only_nodes_that_match_the_pod_count_as_domains() {
        // Zone z is empty but does not match the pod, so it does not lower the minimum.
        let nodes = [worker("a", "x"), worker("b", "y"), zoned("c", "z")];
        let cluster = cluster(nodes, [web("1", "a"), web("2", "b")]);
        assert_eq!(checked(&cluster, &spreading(json!({})))[..2], ["fits", "fits"]);
        let all = spreading(json!({ "nodeAffinityPolicy": "Ignore" }));
        assert_eq!(checked(&cluster, &all)[..2], [NO, NO]);
    }

    #[test]
    fn n_192_with_too_few_domains_the_minimum_is_zero() {
        let cluster = cluster([worker("a", "x"), worker("b", "y")], [web("1", "a"), web("2", "b")]);
        assert_eq!(checked(&cluster, &spreading(json!({ "minDomains": 2 }))), ["fits", "fits"]);
        assert_eq!(checked(&cluster, &spreading(json!({ "minDomains": 3 }))), [NO, NO]);
    }

    #[test]
    fn n_192_pods_of_other_namespaces_and_terminating_pods_do_not_count() {
        let terminating = read(json!({
            "metadata": { "namespace": "default", "name": "1", "uid": "1", "labels": { "app": "web" },
                          "deletionTimestamp": "2026-01-01T00:00:00Z" },
            "spec": { "nodeName": "a", "containers": [] },
        }));
        let elsewhere = read(json!({
            "metadata": { "namespace": "other", "name": "2", "uid": "2", "labels": { "app": "web" } },
            "spec": { "nodeName": "a", "containers": [] },
        }));
        let cluster = cluster([worker("a", "x"), worker("b", "y")], [terminating, elsewhere]);
        assert_eq!(checked(&cluster, &spreading(json!({}))), ["fits", "fits"]);
    }

    #[test]
    fn n_192_match_label_keys_narrow_the_selector() {
        let older = pod_with("1", json!({ "app": "web", "hash": "0" }), json!({ "nodeName": "a" }));
        let cluster = cluster([worker("a", "x"), worker("b", "y")], [older]);
        assert_eq!(checked(&cluster, &spreading(json!({}))), [NO, "fits"]);
        let keyed = spreading(json!({ "matchLabelKeys": ["hash"] }));
        assert_eq!(checked(&cluster, &keyed), ["fits", "fits"]);
    }
}
