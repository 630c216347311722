//! The state of the cluster, optionally with pods added to or removed from one node.
//!
//! Preemption checks whether a pod fits without its victims, and nominated pods count on their node: both use a view
//! with a change.

use crate::affinity_terms::TermGroup;
use crate::cluster_state::ClusterState;
use crate::node::NodeState;
use crate::pod::PodInfo;
use crate::pod_counts::{CountsByNode, PodQuery};
use client::ObjectKey;
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    pub(crate) cluster: &'a ClusterState,
    pub(crate) change: Option<&'a Change>,
}

/// A hypothetical change of one node.
#[derive(Debug, Clone)]
pub(crate) struct Change {
    pub(crate) node: NodeState,
    pub(crate) added: Vec<Arc<PodInfo>>,
    pub(crate) removed: Vec<Arc<PodInfo>>,
}

impl Change {
    pub(crate) fn none(node: &NodeState) -> Change {
        Change { node: node.clone(), added: Vec::new(), removed: Vec::new() }
    }

    pub(crate) fn remove(&mut self, key: &ObjectKey) {
        if let Some(pod) = self.node.remove(key) {
            self.removed.push(pod);
        }
    }

    /// Adds a pod, or restores one that was removed.
    pub(crate) fn add(&mut self, pod: &Arc<PodInfo>) {
        self.node.add(pod.clone());
        match self.removed.iter().position(|removed| removed.is_same_as(pod)) {
            Some(at) => drop(self.removed.swap_remove(at)),
            None => self.added.push(pod.clone()),
        }
    }
}

impl<'a> View<'a> {
    pub(crate) fn of(cluster: &'a ClusterState) -> View<'a> {
        View { cluster, change: None }
    }

    pub(crate) fn with(cluster: &'a ClusterState, change: &'a Change) -> View<'a> {
        View { cluster, change: Some(change) }
    }

    /// All existing nodes.
    pub(crate) fn nodes(self) -> impl Iterator<Item = &'a NodeState> {
        self.cluster.nodes().map(move |node| match self.change {
            Some(change) if change.node.name == node.name => &change.node,
            _ => node,
        })
    }

    pub(crate) fn node(self, name: &str) -> Option<&'a NodeState> {
        match self.change {
            Some(change) if *change.node.name == *name => {
                Some(&change.node).filter(|node| node.info.is_some())
            }
            _ => self.cluster.node(name),
        }
    }

    pub(crate) fn counts(self, query: &PodQuery) -> Arc<CountsByNode> {
        let mut counts = self.cluster.counts(query);
        if let Some(change) = self.change {
            let more = change.added.iter().filter(|pod| query.matches(pod)).count();
            let less = change.removed.iter().filter(|pod| query.matches(pod)).count();
            if more != less {
                let counts = Arc::make_mut(&mut counts);
                let count = counts.entry(change.node.name.clone()).or_default();
                *count = (*count + more).saturating_sub(less);
            }
        }
        counts
    }

    /// The number of pods per node with the term of a group. Copied only if the change affects it.
    pub(crate) fn nodes_of(self, group: &'a TermGroup) -> Cow<'a, HashMap<Arc<str>, usize>> {
        let mut nodes = Cow::Borrowed(&group.nodes);
        if let Some(change) = self.change {
            let has = |pod: &&Arc<PodInfo>| {
                let mut terms = pod.terms.all.iter();
                terms.any(|(role, term)| *role == group.role && *term == group.term)
            };
            let more = change.added.iter().filter(has).count();
            let less = change.removed.iter().filter(has).count();
            if more != less {
                let nodes = nodes.to_mut();
                let count = nodes.entry(change.node.name.clone()).or_default();
                *count = (*count + more).saturating_sub(less);
                nodes.retain(|_, count| *count > 0);
            }
        }
        nodes
    }

    /// The number of pods that use a claim.
    pub(crate) fn claim_users(self, claim: &ObjectKey) -> usize {
        let uses = |pod: &&Arc<PodInfo>| {
            let mut claims = pod.claims.iter();
            pod.namespace() == claim.namespace() && claims.any(|name| name == claim.name())
        };
        let users = self.cluster.claim_users(claim);
        let Some(change) = self.change else {
            return users;
        };
        let more = change.added.iter().filter(uses).count();
        (users + more).saturating_sub(change.removed.iter().filter(uses).count())
    }
}
