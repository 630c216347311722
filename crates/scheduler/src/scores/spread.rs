//! PodTopologySpread as a wish: own soft constraints, or those that every workload has (N-192).

use super::BEST;
use crate::census::Question;
use crate::filters::{Cycle, question};
use crate::node::NodeState;
use std::collections::{HashMap, HashSet};

const HOSTNAME: &str = "kubernetes.io/hostname";
const ZONE: &str = "topology.kubernetes.io/zone";

struct Wish {
    key: String,
    max_skew: i64,
    question: Question,
}

pub(super) fn score(cycle: &Cycle, nodes: &[&NodeState]) -> Vec<i64> {
    let (wishes, own) = wishes(cycle);
    if wishes.is_empty() {
        return vec![0; nodes.len()];
    }
    // A node without the label of an own constraint has no place in the order.
    let is_in = |node: &NodeState| !own || wishes.iter().all(|w| node.label(&w.key).is_some());
    let inside: Vec<bool> = nodes.iter().map(|node| is_in(node)).collect();
    let mut raw = vec![0.0; nodes.len()];
    for wish in &wishes {
        wish.add(cycle, nodes, &inside, &is_in, &mut raw);
    }
    let rounded: Vec<i64> = raw.iter().map(|score: &f64| score.round() as i64).collect();
    let of_inside = || rounded.iter().zip(&inside).filter(|(_, inside)| **inside).map(|(s, _)| *s);
    let least = of_inside().min().unwrap_or_default();
    let most = of_inside().max().unwrap_or_default();
    let normal = |score: i64| if most == 0 { BEST } else { BEST * (most + least - score) / most };
    let each = rounded.iter().zip(&inside);
    each.map(|(score, inside)| if *inside { normal(*score) } else { 0 }).collect()
}

/// The pod's own soft constraints; if it has no constraints at all, those that all siblings have.
fn wishes(cycle: &Cycle) -> (Vec<Wish>, bool) {
    let pod = cycle.pod;
    let all =
        pod.pod.spec.iter().flat_map(|spec| spec.topology_spread_constraints.iter().flatten());
    let mut all = all.peekable();
    if all.peek().is_some() {
        let soft = all.filter(|constraint| constraint.when_unsatisfiable == "ScheduleAnyway");
        let own = soft.map(|constraint| Wish {
            key: constraint.topology_key.clone(),
            max_skew: constraint.max_skew.into(),
            question: question(pod, constraint),
        });
        return (own.collect(), true);
    }
    let Some(question) = cycle.view.world.workloads.siblings(pod) else {
        return (Vec::new(), false);
    };
    let wish = |(key, max_skew): (&str, i64)| Wish {
        key: key.into(),
        max_skew,
        question: question.clone(),
    };
    ([(HOSTNAME, 3), (ZONE, 5)].map(wish).into(), false)
}

impl Wish {
    /// Adds to each node's score how many such pods are in its domain, and how much that matters. Of all
    /// nodes, only those that have such pods are looked at.
    fn add(
        &self,
        cycle: &Cycle,
        nodes: &[&NodeState],
        inside: &[bool],
        is_in: &impl Fn(&NodeState) -> bool,
        scores: &mut [f64],
    ) {
        let on_nodes = cycle.view.counts(&self.question);
        let domains = nodes.iter().map(|node| node.label(&self.key));
        let each = scores.iter_mut().zip(nodes.iter().zip(domains).zip(inside));
        let each = each.filter(|(_, (_, inside))| **inside).map(|(score, (of, _))| (score, of));
        // A node is a domain of its own, whatever name it goes by.
        if self.key == HOSTNAME {
            let weight = weight(inside.iter().filter(|inside| **inside).count());
            for (score, (node, domain)) in each {
                let count = on_nodes.get(&node.name).copied().unwrap_or_default();
                *score += domain.map_or(0.0, |_| self.score(count, weight));
            }
            return;
        }
        let each: Vec<_> = each.filter_map(|(score, (_, domain))| Some((score, domain?))).collect();
        if each.is_empty() {
            return;
        }
        let weight = weight(each.iter().map(|(_, domain)| domain).collect::<HashSet<_>>().len());
        let mut counts: HashMap<&str, usize> = HashMap::new();
        for (name, count) in on_nodes.iter() {
            let node = cycle.view.node(name).filter(|node| is_in(node));
            if let Some(domain) = node.and_then(|node| node.label(&self.key)) {
                *counts.entry(domain).or_default() += count;
            }
        }
        for (score, domain) in each {
            *score += self.score(counts.get(domain).copied().unwrap_or_default(), weight);
        }
    }

    fn score(&self, count: usize, weight: f64) -> f64 {
        count as f64 * weight + (self.max_skew - 1) as f64
    }
}

/// More domains, more weight: otherwise hostnames would drown out zones. Upstream:
/// `topologyNormalizingWeight`.
fn weight(domains: usize) -> f64 {
    ((domains + 2) as f64).ln()
}
