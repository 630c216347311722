//! Pod affinity and anti-affinity terms: those of one pod, and the terms of all pods on nodes, grouped so that the pods
//! of one workload are one entry.

use crate::pod::PodInfo;
use crate::pod_counts::Namespaces;
use api::selector::LabelSelector;
use k8s_openapi::api::core::v1::{Affinity, Pod, PodAffinityTerm};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Labels of all namespaces.
pub(crate) type NamespaceLabels = BTreeMap<String, BTreeMap<String, String>>;

/// One term: matching pods within one topology domain.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct AffinityTerm {
    pub(crate) topology_key: String,
    pub(crate) selector: LabelSelector,
    namespaces: Vec<String>,
    namespace_selector: Option<LabelSelector>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Role {
    RequiredAffinity,
    RequiredAntiAffinity,
    /// The weight is negative for anti-affinity.
    Preferred(i32),
}

/// All terms of a pod.
#[derive(Debug, Default)]
pub(crate) struct AffinityTerms {
    pub(crate) all: Vec<(Role, Arc<AffinityTerm>)>,
}

impl AffinityTerms {
    pub(crate) fn read(pod: &Pod) -> AffinityTerms {
        let own = pod.metadata.namespace.as_deref().unwrap_or_default();
        let mut terms = AffinityTerms::default();
        let affinity = pod.spec.as_ref().and_then(|spec| spec.affinity.as_ref());
        let Some(Affinity { pod_affinity, pod_anti_affinity, .. }) = affinity else {
            return terms;
        };
        let mut add = |role, term: &PodAffinityTerm| {
            terms.all.push((role, Arc::new(AffinityTerm::read(term, own))));
        };
        if let Some(near) = pod_affinity {
            let required = near.required_during_scheduling_ignored_during_execution.iter();
            required.flatten().for_each(|term| add(Role::RequiredAffinity, term));
            let preferred =
                near.preferred_during_scheduling_ignored_during_execution.iter().flatten();
            preferred.for_each(|term| add(Role::Preferred(term.weight), &term.pod_affinity_term));
        }
        if let Some(far) = pod_anti_affinity {
            let required = far.required_during_scheduling_ignored_during_execution.iter();
            required.flatten().for_each(|term| add(Role::RequiredAntiAffinity, term));
            let preferred =
                far.preferred_during_scheduling_ignored_during_execution.iter().flatten();
            preferred.for_each(|term| add(Role::Preferred(-term.weight), &term.pod_affinity_term));
        }
        terms
    }

    pub(crate) fn with(&self, role: Role) -> impl Iterator<Item = &Arc<AffinityTerm>> {
        self.all.iter().filter(move |(other, _)| *other == role).map(|(_, term)| term)
    }
}

impl AffinityTerm {
    fn read(term: &PodAffinityTerm, own: &str) -> AffinityTerm {
        let namespaces = term.namespaces.clone().unwrap_or_default();
        let namespace_selector = term.namespace_selector.as_ref().map(|s| selector(Some(s)));
        let neither = namespaces.is_empty() && namespace_selector.is_none();
        AffinityTerm {
            topology_key: term.topology_key.clone(),
            selector: selector(term.label_selector.as_ref()),
            namespaces: if neither { vec![own.to_owned()] } else { namespaces },
            namespace_selector,
        }
    }

    pub(crate) fn matches(&self, pod: &PodInfo, namespaces: &NamespaceLabels) -> bool {
        let own = pod.namespace();
        let by_label = |selector: &LabelSelector| {
            let labels = namespaces.get(own);
            selector.matches(|key| labels?.get(key).map(String::as_str))
        };
        let there = self.namespaces.iter().any(|name| name == own)
            || self.namespace_selector.as_ref().is_some_and(by_label);
        there && self.selector.matches(|key| pod.label(key))
    }

    pub(crate) fn namespaces(&self, all: &NamespaceLabels) -> Namespaces {
        let Some(selector) = &self.namespace_selector else {
            return Some(self.namespaces.iter().cloned().collect());
        };
        if selector.is_everything() {
            return None;
        }
        let meant = |(_, labels): &(&String, &BTreeMap<String, String>)| {
            selector.matches(|key| labels.get(key).map(String::as_str))
        };
        let by_label = all.iter().filter(meant).map(|(name, _)| name);
        Some(self.namespaces.iter().chain(by_label).cloned().collect())
    }

    fn text(&self) -> String {
        format!("{self:?}")
    }
}

/// Converts a typed selector. An absent one selects nothing.
pub(crate) fn selector(
    selector: Option<&k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector>,
) -> LabelSelector {
    let value = selector.and_then(|selector| typed::to_value(selector).ok()).unwrap_or_default();
    // The API rejects invalid selectors; here they select nothing.
    LabelSelector::from_object(&value).unwrap_or_else(|_| nothing())
}

fn nothing() -> LabelSelector {
    LabelSelector::from_object(&serde_json::Value::Null).unwrap_or_default()
}

/// The terms of all pods on nodes. Equal terms are one group with the number of pods per node.
#[derive(Debug, Default)]
pub(crate) struct TermGroups {
    by_text: HashMap<(Role, String), TermGroup>,
}

#[derive(Debug)]
pub(crate) struct TermGroup {
    pub(crate) role: Role,
    pub(crate) term: Arc<AffinityTerm>,
    pub(crate) nodes: HashMap<Arc<str>, usize>,
}

impl TermGroups {
    pub(crate) fn add(&mut self, pod: &PodInfo) {
        let Some(node) = &pod.node else { return };
        for (role, term) in &pod.terms.all {
            let new = || TermGroup { role: *role, term: term.clone(), nodes: HashMap::new() };
            let group = self.by_text.entry((*role, term.text())).or_insert_with(new);
            *group.nodes.entry(node.clone()).or_default() += 1;
        }
    }

    pub(crate) fn remove(&mut self, pod: &PodInfo) {
        let Some(node) = &pod.node else { return };
        for (role, term) in &pod.terms.all {
            let key = (*role, term.text());
            let Some(group) = self.by_text.get_mut(&key) else { continue };
            if let Some(count) = group.nodes.get_mut(node) {
                *count = count.saturating_sub(1);
                if *count == 0 {
                    group.nodes.remove(node);
                }
            }
            if group.nodes.is_empty() {
                self.by_text.remove(&key);
            }
        }
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &TermGroup> {
        self.by_text.values()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_text.is_empty()
    }
}
