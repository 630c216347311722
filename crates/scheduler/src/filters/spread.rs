//! PodTopologySpread: pods of a sort are to be spread over zones, hosts, racks (N-192).
//!
//! Not here: constraints that are wishes (`scores`).

use super::{Plugin, Rejection, affinity, taints};
use crate::census::Question;
use crate::neighbourhood::selector;
use crate::node::NodeState;
use crate::pod::PodInfo;
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
    /// How many are in each domain.
    domains: HashMap<String, i64>,
    least: i64,
    /// The pod itself counts.
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
        let question = question(pod, constraint);
        let counts = view.counts(&question);
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
            itself: i64::from(question.means(pod)),
            domains,
        }
    }
}

/// Which nodes make up the domains: those that the pod wants and, if asked for, tolerates.
fn counts_nodes_like(
    pod: &PodInfo,
    constraint: &TopologySpreadConstraint,
    node: &NodeState,
) -> bool {
    let Some(offer) = &node.offer else { return false };
    let wanted = constraint.node_affinity_policy.as_deref() == Some("Ignore")
        || affinity::wants(pod, &node.name, offer);
    let tolerated = constraint.node_taints_policy.as_deref() != Some("Honor")
        || taints::check(pod, offer).is_ok();
    wanted && tolerated
}

/// Which pods a constraint counts.
pub(crate) fn question(pod: &PodInfo, constraint: &TopologySpreadConstraint) -> Question {
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
    Question { staying: true, ..Question::of(namespaces, selector(wanted.as_ref())) }
}

#[cfg(test)]
mod tests {
    use crate::filters::Cycle;
    use crate::filters::tests::said;
    use crate::node::NodeState;
    use crate::node::tests::node;
    use crate::pod::PodInfo;
    use crate::pod::tests::{pod_with, read};
    use crate::view::View;
    use crate::world::World;
    use crate::world::tests::world;
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

    fn checked(world: &World, pod: &PodInfo) -> Vec<String> {
        let cycle = Cycle::begin(View::of(world), pod).unwrap();
        world.nodes().map(|node| said(cycle.spread.check(pod, node))).collect()
    }

    fn worker(name: &str, zone: &str) -> NodeState {
        node(name, json!({ "metadata": { "labels": { "zone": zone, "kind": "worker" } } }))
    }

    #[test]
    fn n_192_a_domain_may_not_be_ahead_by_more_than_the_skew() {
        let nodes = || [worker("a", "x"), worker("b", "x"), worker("c", "y"), node("d", json!({}))];
        let missing = format!("{NO} (missing required label) (hard)");
        let two = world(nodes(), [web("1", "a"), web("2", "b"), web("3", "c")]);
        assert_eq!(checked(&two, &spreading(json!({}))), [NO, NO, "fits", &missing]);
        assert_eq!(
            checked(&two, &spreading(json!({ "maxSkew": 2 }))),
            ["fits", "fits", "fits", &missing]
        );
        let none = world(nodes(), []);
        assert_eq!(checked(&none, &spreading(json!({}))), ["fits", "fits", "fits", &missing]);
    }

    #[test]
    fn n_192_only_nodes_that_the_pod_wants_make_up_domains() {
        // Zone z is empty but not for this pod, so it does not hold the minimum down.
        let nodes = [worker("a", "x"), worker("b", "y"), zoned("c", "z")];
        let world = world(nodes, [web("1", "a"), web("2", "b")]);
        assert_eq!(checked(&world, &spreading(json!({})))[..2], ["fits", "fits"]);
        let all = spreading(json!({ "nodeAffinityPolicy": "Ignore" }));
        assert_eq!(checked(&world, &all)[..2], [NO, NO]);
    }

    #[test]
    fn n_192_with_too_few_domains_the_minimum_is_nothing() {
        let world = world([worker("a", "x"), worker("b", "y")], [web("1", "a"), web("2", "b")]);
        assert_eq!(checked(&world, &spreading(json!({ "minDomains": 2 }))), ["fits", "fits"]);
        assert_eq!(checked(&world, &spreading(json!({ "minDomains": 3 }))), [NO, NO]);
    }

    #[test]
    fn n_192_pods_of_others_and_those_that_are_going_are_not_counted() {
        let going = read(json!({
            "metadata": { "namespace": "default", "name": "1", "uid": "1", "labels": { "app": "web" },
                          "deletionTimestamp": "2026-01-01T00:00:00Z" },
            "spec": { "nodeName": "a", "containers": [] },
        }));
        let elsewhere = read(json!({
            "metadata": { "namespace": "other", "name": "2", "uid": "2", "labels": { "app": "web" } },
            "spec": { "nodeName": "a", "containers": [] },
        }));
        let world = world([worker("a", "x"), worker("b", "y")], [going, elsewhere]);
        assert_eq!(checked(&world, &spreading(json!({}))), ["fits", "fits"]);
    }

    #[test]
    fn n_192_match_label_keys_narrow_the_selector() {
        let older = pod_with("1", json!({ "app": "web", "hash": "0" }), json!({ "nodeName": "a" }));
        let world = world([worker("a", "x"), worker("b", "y")], [older]);
        assert_eq!(checked(&world, &spreading(json!({}))), [NO, "fits"]);
        let keyed = spreading(json!({ "matchLabelKeys": ["hash"] }));
        assert_eq!(checked(&world, &keyed), ["fits", "fits"]);
    }
}
