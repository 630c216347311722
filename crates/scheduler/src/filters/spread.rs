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
