//! PodTopologySpread: soft constraints of the pod, or the default constraints of every workload (N-192).

use super::BEST;
use crate::filters::{Cycle, query};
use crate::node::NodeState;
use crate::pod_counts::PodQuery;
use std::collections::{HashMap, HashSet};

const HOSTNAME: &str = "kubernetes.io/hostname";
const ZONE: &str = "topology.kubernetes.io/zone";

struct SoftConstraint {
    key: String,
    max_skew: i64,
    query: PodQuery,
}

pub(super) fn score(cycle: &Cycle, nodes: &[&NodeState]) -> Vec<i64> {
    let (constraints, own) = constraints(cycle);
    if constraints.is_empty() {
        return vec![0; nodes.len()];
    }
    // A node without the label of one of the pod's constraints gets the score 0.
    let is_in = |node: &NodeState| !own || constraints.iter().all(|w| node.label(&w.key).is_some());
    let inside: Vec<bool> = nodes.iter().map(|node| is_in(node)).collect();
    let mut raw = vec![0.0; nodes.len()];
    for constraint in &constraints {
        constraint.add(cycle, nodes, &inside, &is_in, &mut raw);
    }
    let rounded: Vec<i64> = raw.iter().map(|score: &f64| score.round() as i64).collect();
    let of_inside = || rounded.iter().zip(&inside).filter(|(_, inside)| **inside).map(|(s, _)| *s);
    let least = of_inside().min().unwrap_or_default();
    let most = of_inside().max().unwrap_or_default();
    let normal = |score: i64| if most == 0 { BEST } else { BEST * (most + least - score) / most };
    let each = rounded.iter().zip(&inside);
    each.map(|(score, inside)| if *inside { normal(*score) } else { 0 }).collect()
}

/// The pod's soft constraints; if it has no constraints at all, the default ones.
fn constraints(cycle: &Cycle) -> (Vec<SoftConstraint>, bool) {
    let pod = cycle.pod;
    let all =
        pod.pod.spec.iter().flat_map(|spec| spec.topology_spread_constraints.iter().flatten());
    let mut all = all.peekable();
    if all.peek().is_some() {
        let soft = all.filter(|constraint| constraint.when_unsatisfiable == "ScheduleAnyway");
        let own = soft.map(|constraint| SoftConstraint {
            key: constraint.topology_key.clone(),
            max_skew: constraint.max_skew.into(),
            query: query(pod, constraint),
        });
        return (own.collect(), true);
    }
    let Some(query) = cycle.view.cluster.workloads.siblings(pod) else {
        return (Vec::new(), false);
    };
    let constraint = |(key, max_skew): (&str, i64)| SoftConstraint {
        key: key.into(),
        max_skew,
        query: query.clone(),
    };
    ([(HOSTNAME, 3), (ZONE, 5)].map(constraint).into(), false)
}

impl SoftConstraint {
    /// Adds the weighted number of matching pods in its domain to each node's score. Visits only nodes that have
    /// matching pods.
    fn add(
        &self,
        cycle: &Cycle,
        nodes: &[&NodeState],
        inside: &[bool],
        is_in: &impl Fn(&NodeState) -> bool,
        scores: &mut [f64],
    ) {
        let on_nodes = cycle.view.counts(&self.query);
        let domains = nodes.iter().map(|node| node.label(&self.key));
        let each = scores.iter_mut().zip(nodes.iter().zip(domains).zip(inside));
        let each = each.filter(|(_, (_, inside))| **inside).map(|(score, (of, _))| (score, of));
        // Each node is its own domain, whatever the value of its hostname label.
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

/// The weight grows with the number of domains; otherwise hostnames would outweigh zones. Upstream:
/// `topologyNormalizingWeight`.
fn weight(domains: usize) -> f64 {
    ((domains + 2) as f64).ln()
}
