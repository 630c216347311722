//! What nodes would rather not have, and which nodes a pod would rather have.

use super::{in_proportion, reversed};
use crate::filters::{Cycle, tolerates, wish_met};
use crate::node::NodeState;

/// TaintToleration: fewer taints that are a preference and not tolerated.
pub(super) fn taints(cycle: &Cycle, nodes: &[&NodeState]) -> Vec<i64> {
    let count = |node: &&NodeState| {
        let taints = node.offer.iter().flat_map(|offer| &offer.taints);
        let unwelcome = taints
            .filter(|taint| taint.effect == "PreferNoSchedule" && !tolerates(cycle.pod, taint));
        unwelcome.count() as i64
    };
    reversed(nodes.iter().map(count).collect())
}

/// NodeAffinity: the weights of the preferred terms that are met.
pub(super) fn wishes(cycle: &Cycle, nodes: &[&NodeState]) -> Vec<i64> {
    let affinity = cycle.pod.pod.spec.as_ref().and_then(|spec| spec.affinity.as_ref());
    let affinity = affinity.and_then(|affinity| affinity.node_affinity.as_ref());
    let wishes = affinity.and_then(|affinity| {
        affinity.preferred_during_scheduling_ignored_during_execution.as_ref()
    });
    let Some(wishes) = wishes else {
        return vec![0; nodes.len()];
    };
    let sum = |node: &&NodeState| {
        let met = wishes.iter().filter(|wish| wish_met(&wish.preference, node));
        met.map(|wish| i64::from(wish.weight)).sum()
    };
    in_proportion(nodes.iter().map(sum).collect())
}
