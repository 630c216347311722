//! InterPodAffinity: which pods must be near and which far, asked by the pod and by those that are
//! there already (N-193).

use super::{Plugin, Rejection};
use crate::census::Question;
use crate::neighbourhood::{Role, Term};
use crate::node::NodeState;
use crate::pod::PodInfo;
use crate::view::View;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

const NOT_NEAR: &str = "node(s) didn't match pod affinity rules";
const NOT_FAR: &str = "node(s) didn't match pod anti-affinity rules";
const UNWANTED: &str = "node(s) didn't satisfy existing pods anti-affinity rules";

/// Values of a topology key.
type Domains = HashSet<String>;

pub(super) struct Plan {
    /// For each required term: where such pods are.
    near: Vec<(String, Domains)>,
    /// No such pod is anywhere, and the pod would be the first of them.
    first: bool,
    far: Vec<(String, Domains)>,
    /// Where pods are that do not want this one near.
    unwanted: Vec<(String, Domains)>,
}

impl Plan {
    pub(super) fn make(view: View, pod: &PodInfo) -> Plan {
        let near: Vec<&Arc<Term>> = pod.terms.with(Role::Near).collect();
        let near_domains = near_domains(view, &near);
        let nowhere = near_domains.iter().all(|(_, domains)| domains.is_empty());
        let namespaces = &view.world.namespaces;
        let far = pod.terms.with(Role::Far).map(|term| {
            let question = Question::of(term.namespaces(namespaces), term.selector.clone());
            (term.topology_key.clone(), domains(view, &view.counts(&question), &term.topology_key))
        });
        Plan {
            first: nowhere && near.iter().all(|term| term.means(pod, namespaces)),
            near: near_domains,
            far: far.collect(),
            unwanted: unwanted(view, pod),
        }
    }

    pub(super) fn check(&self, node: &NodeState) -> Result<(), Rejection> {
        let mut satisfied = true;
        for (key, domains) in &self.near {
            let Some(domain) = node.label(key) else {
                return Err(Rejection::hard(Plugin::InterPodAffinity, NOT_NEAR));
            };
            satisfied &= domains.contains(domain);
        }
        if !satisfied && !self.first {
            return Err(Rejection::hard(Plugin::InterPodAffinity, NOT_NEAR));
        }
        let is_in = |(key, domains): &(String, Domains)| {
            node.label(key).is_some_and(|domain| domains.contains(domain))
        };
        if self.far.iter().any(is_in) {
            return Err(Rejection::soft(Plugin::InterPodAffinity, NOT_FAR));
        }
        if self.unwanted.iter().any(is_in) {
            return Err(Rejection::soft(Plugin::InterPodAffinity, UNWANTED));
        }
        Ok(())
    }
}

/// A pod counts for the terms only if it is meant by all of them.
fn near_domains(view: View, terms: &[&Arc<Term>]) -> Vec<(String, Domains)> {
    if terms.is_empty() {
        return Vec::new();
    }
    let namespaces = &view.world.namespaces;
    let all = terms.iter().map(|term| (term.namespaces(namespaces), term.selector.clone()));
    let counts = view.counts(&Question { all: all.collect(), staying: false });
    let domains_of =
        |term: &&Arc<Term>| (term.topology_key.clone(), domains(view, &counts, &term.topology_key));
    terms.iter().map(domains_of).collect()
}

fn unwanted(view: View, pod: &PodInfo) -> Vec<(String, Domains)> {
    if !view.world.has_groups() && view.change.is_none() {
        return Vec::new();
    }
    let namespaces = &view.world.namespaces;
    let mut unwanted = Vec::new();
    for (group, nodes) in view.groups().filter(|(group, _)| group.role == Role::Far) {
        if group.term.means(pod, namespaces) {
            let key = &group.term.topology_key;
            unwanted.push((key.clone(), domains(view, &nodes, key)));
        }
    }
    // Those that would come may be the first with their terms.
    if let Some(change) = view.change {
        for came in &change.came {
            for term in came.terms.with(Role::Far).filter(|term| term.means(pod, namespaces)) {
                let domain = change.node.label(&term.topology_key).map(str::to_owned);
                unwanted.push((term.topology_key.clone(), domain.into_iter().collect()));
            }
        }
    }
    unwanted
}

/// The domains of the nodes with a count.
fn domains(view: View, counts: &HashMap<Arc<str>, usize>, key: &str) -> Domains {
    if counts.is_empty() {
        return Domains::new();
    }
    let there = |node: &&NodeState| counts.get(&node.name).is_some_and(|count| *count > 0);
    let there = view.nodes().filter(there);
    there.filter_map(|node| node.label(key).map(str::to_owned)).collect()
}
