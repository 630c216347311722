//! Scores for PreferNoSchedule taints and for preferred node affinity.

use super::{in_proportion, reversed};
use crate::filters::{Cycle, preferred_term_matches, tolerates};
use crate::node::NodeState;

/// TaintToleration: fewer untolerated PreferNoSchedule taints are better.
pub(super) fn taints(cycle: &Cycle, nodes: &[&NodeState]) -> Vec<i64> {
    let count = |node: &&NodeState| {
        let taints = node.info.iter().flat_map(|info| &info.taints);
        let unwelcome = taints
            .filter(|taint| taint.effect == "PreferNoSchedule" && !tolerates(cycle.pod, taint));
        unwelcome.count() as i64
    };
    reversed(nodes.iter().map(count).collect())
}

/// NodeAffinity: the sum of the weights of matching preferred terms.
pub(super) fn preferred_terms(cycle: &Cycle, nodes: &[&NodeState]) -> Vec<i64> {
    let affinity = cycle.pod.pod.spec.as_ref().and_then(|spec| spec.affinity.as_ref());
    let affinity = affinity.and_then(|affinity| affinity.node_affinity.as_ref());
    let terms = affinity.and_then(|affinity| {
        affinity.preferred_during_scheduling_ignored_during_execution.as_ref()
    });
    let Some(terms) = terms else {
        return vec![0; nodes.len()];
    };
    let sum = |node: &&NodeState| {
        let met = terms.iter().filter(|term| preferred_term_matches(&term.preference, node));
        met.map(|term| i64::from(term.weight)).sum()
    };
    in_proportion(nodes.iter().map(sum).collect())
}
