//! InterPodAffinity as a wish: of the pod, and of those that are there already.

use super::BEST;
use crate::census::Question;
use crate::filters::Cycle;
use crate::neighbourhood::Role;
use crate::node::NodeState;
use std::collections::HashMap;

/// What it is worth to those that are there, and require such pods near.
const REQUIRED_WORTH: i64 = 1;

pub(super) fn score(cycle: &Cycle, nodes: &[&NodeState]) -> Vec<i64> {
    let worth = worth(cycle);
    let score = |node: &&NodeState| {
        worth
            .iter()
            .filter_map(|((key, domain), worth)| (node.label(key)? == domain).then_some(*worth))
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

/// What each domain, a key and its value, is worth.
fn worth(cycle: &Cycle) -> HashMap<(String, String), i64> {
    let view = cycle.view;
    let namespaces = &view.world.namespaces;
    let mut worth = HashMap::new();
    let mut add = |key: &str, counts: &HashMap<std::sync::Arc<str>, usize>, weight: i64| {
        for (name, count) in counts.iter().filter(|(_, count)| **count > 0) {
            if let Some(domain) = view.node(name).and_then(|node| node.label(key)) {
                let domain = (key.to_owned(), domain.to_owned());
                *worth.entry(domain).or_default() += weight * *count as i64;
            }
        }
    };
    for (role, term) in &cycle.pod.terms.all {
        if let Role::Wished(weight) = role {
            let question = Question::of(term.namespaces(namespaces), term.selector.clone());
            add(&term.topology_key, &view.counts(&question), i64::from(*weight));
        }
    }
    for group in view.world.groups() {
        let weight = match group.role {
            Role::Near => REQUIRED_WORTH,
            Role::Wished(weight) => i64::from(weight),
            Role::Far => continue,
        };
        if group.term.means(cycle.pod, namespaces) {
            add(&group.term.topology_key, &view.nodes_of(group), weight);
        }
    }
    worth
}
