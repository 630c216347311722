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
    let mut raw = vec![0.0; nodes.len()];
    for wish in &wishes {
        let domains = Domains::of(cycle, wish, nodes, &is_in);
        for (score, node) in raw.iter_mut().zip(nodes).filter(|(_, node)| is_in(node)) {
            *score += domains.score(wish, node);
        }
    }
    let rounded: Vec<i64> = raw.iter().map(|score: &f64| score.round() as i64).collect();
    let inside = || rounded.iter().zip(nodes).filter(|(_, node)| is_in(node)).map(|(s, _)| *s);
    let (least, most) = (inside().min().unwrap_or_default(), inside().max().unwrap_or_default());
    let normal = |score: i64| if most == 0 { BEST } else { BEST * (most + least - score) / most };
    let each = rounded.iter().zip(nodes);
    each.map(|(score, node)| if is_in(node) { normal(*score) } else { 0 }).collect()
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

/// How many such pods are in each domain, and how much that matters.
struct Domains<'a> {
    /// A domain without any is not in it.
    counts: HashMap<&'a str, i64>,
    weight: f64,
}

impl<'a> Domains<'a> {
    /// Looks at the nodes that have such pods, not at all there are.
    fn of(
        cycle: &Cycle<'a>,
        wish: &Wish,
        feasible: &[&NodeState],
        is_in: &impl Fn(&NodeState) -> bool,
    ) -> Domains<'a> {
        let on_nodes = cycle.view.counts(&wish.question);
        let mut counts: HashMap<&str, i64> = HashMap::new();
        for (name, count) in on_nodes.iter() {
            let node = cycle.view.node(name).filter(|node| is_in(node));
            if let Some(domain) = node.and_then(|node| node.label(&wish.key)) {
                *counts.entry(domain).or_default() += *count as i64;
            }
        }
        let domains = feasible.iter().filter(|node| is_in(node));
        let size = match wish.key.as_str() {
            HOSTNAME => domains.count(),
            key => domains.filter_map(|node| node.label(key)).collect::<HashSet<_>>().len(),
        };
        // More domains, more weight: otherwise hostnames would drown out zones. Upstream:
        // `topologyNormalizingWeight`.
        Domains { counts, weight: ((size + 2) as f64).ln() }
    }

    fn score(&self, wish: &Wish, node: &NodeState) -> f64 {
        let Some(domain) = node.label(&wish.key) else {
            return 0.0;
        };
        let count = self.counts.get(domain).copied().unwrap_or_default();
        count as f64 * self.weight + (wish.max_skew - 1) as f64
    }
}
