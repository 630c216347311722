//! InterPodAffinity: preferred terms of the pod, and terms of the pods that are already on nodes.

use super::BEST;
use crate::affinity_terms::Role;
use crate::filters::Cycle;
use crate::node::NodeState;
use crate::pod_counts::PodQuery;
use std::collections::HashMap;

/// The weight of required affinity terms of existing pods.
const REQUIRED_WEIGHT: i64 = 1;

pub(super) fn score(cycle: &Cycle, nodes: &[&NodeState]) -> Vec<i64> {
    let scores = domain_scores(cycle);
    let score = |node: &&NodeState| {
        scores
            .iter()
            .filter_map(|((key, domain), score)| (node.label(key)? == domain).then_some(*score))
            .sum()
    };
    let raw: Vec<i64> = nodes.iter().map(score).collect();
    let least = raw.iter().copied().min().unwrap_or_default();
    let most = raw.iter().copied().max().unwrap_or_default();
    match most - least {
        0 => vec![0; raw.len()],
        range => raw.iter().map(|score| BEST * (score - least) / range).collect(),
    }
}

/// The score of each domain (topology key and value).
fn domain_scores(cycle: &Cycle) -> HashMap<(String, String), i64> {
    let view = cycle.view;
    let namespaces = &view.cluster.namespaces;
    let mut scores = HashMap::new();
    let mut add = |key: &str, counts: &HashMap<std::sync::Arc<str>, usize>, weight: i64| {
        for (name, count) in counts.iter().filter(|(_, count)| **count > 0) {
            if let Some(domain) = view.node(name).and_then(|node| node.label(key)) {
                let domain = (key.to_owned(), domain.to_owned());
                *scores.entry(domain).or_default() += weight * *count as i64;
            }
        }
    };
    for (role, term) in &cycle.pod.terms.all {
        if let Role::Preferred(weight) = role {
            let query = PodQuery::of(term.namespaces(namespaces), term.selector.clone());
            add(&term.topology_key, &view.counts(&query), i64::from(*weight));
        }
    }
    for group in view.cluster.groups() {
        let weight = match group.role {
            Role::RequiredAffinity => REQUIRED_WEIGHT,
            Role::Preferred(weight) => i64::from(weight),
            Role::RequiredAntiAffinity => continue,
        };
        if group.term.matches(cycle.pod, namespaces) {
            add(&group.term.topology_key, &view.nodes_of(group), weight);
        }
    }
    scores
}
