//! The world as it is, or as it would be if pods came to or went from one node.
//!
//! Preemption asks "and without these?", and pods with a nomination are counted where they will be:
//! both are a view with a change.

use crate::census::{Counts, Question};
use crate::neighbourhood::Group;
use crate::node::NodeState;
use crate::pod::PodInfo;
use crate::world::World;
use client::ObjectKey;
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    pub(crate) world: &'a World,
    pub(crate) change: Option<&'a Change>,
}

/// What would be different on one node.
#[derive(Debug, Clone)]
pub(crate) struct Change {
    pub(crate) node: NodeState,
    pub(crate) came: Vec<Arc<PodInfo>>,
    pub(crate) went: Vec<Arc<PodInfo>>,
}

impl Change {
    pub(crate) fn none(node: &NodeState) -> Change {
        Change { node: node.clone(), came: Vec::new(), went: Vec::new() }
    }

    pub(crate) fn remove(&mut self, key: &ObjectKey) {
        if let Some(pod) = self.node.remove(key) {
            self.went.push(pod);
        }
    }

    /// Puts back what was removed, or adds what was never there.
    pub(crate) fn add(&mut self, pod: &Arc<PodInfo>) {
        self.node.add(pod.clone());
        match self.went.iter().position(|went| went.is_same_as(pod)) {
            Some(at) => drop(self.went.swap_remove(at)),
            None => self.came.push(pod.clone()),
        }
    }
}

impl<'a> View<'a> {
    pub(crate) fn of(world: &'a World) -> View<'a> {
        View { world, change: None }
    }

    pub(crate) fn with(world: &'a World, change: &'a Change) -> View<'a> {
        View { world, change: Some(change) }
    }

    /// All nodes that there are.
    pub(crate) fn nodes(self) -> impl Iterator<Item = &'a NodeState> {
        self.world.nodes().map(move |node| match self.change {
            Some(change) if change.node.name == node.name => &change.node,
            _ => node,
        })
    }

    /// One of them.
    pub(crate) fn node(self, name: &str) -> Option<&'a NodeState> {
        match self.change {
            Some(change) if *change.node.name == *name => {
                Some(&change.node).filter(|node| node.offer.is_some())
            }
            _ => self.world.node(name),
        }
    }

    pub(crate) fn counts(self, question: &Question) -> Arc<Counts> {
        let mut counts = self.world.counts(question);
        if let Some(change) = self.change {
            let more = change.came.iter().filter(|pod| question.means(pod)).count();
            let less = change.went.iter().filter(|pod| question.means(pod)).count();
            if more != less {
                let counts = Arc::make_mut(&mut counts);
                let count = counts.entry(change.node.name.clone()).or_default();
                *count = (*count + more).saturating_sub(less);
            }
        }
        counts
    }

    /// On which nodes pods have the terms of a group, and how many. Copied only if it is not as it is kept.
    pub(crate) fn nodes_of(self, group: &'a Group) -> Cow<'a, HashMap<Arc<str>, usize>> {
        let mut nodes = Cow::Borrowed(&group.nodes);
        if let Some(change) = self.change {
            let has = |pod: &&Arc<PodInfo>| {
                let mut terms = pod.terms.all.iter();
                terms.any(|(role, term)| *role == group.role && *term == group.term)
            };
            let more = change.came.iter().filter(has).count();
            let less = change.went.iter().filter(has).count();
            if more != less {
                let nodes = nodes.to_mut();
                let count = nodes.entry(change.node.name.clone()).or_default();
                *count = (*count + more).saturating_sub(less);
                nodes.retain(|_, count| *count > 0);
            }
        }
        nodes
    }

    /// How many pods use a claim.
    pub(crate) fn users(self, claim: &ObjectKey) -> usize {
        let uses = |pod: &&Arc<PodInfo>| {
            let mut claims = pod.claims.iter();
            pod.namespace() == claim.namespace() && claims.any(|name| name == claim.name())
        };
        let users = self.world.users(claim);
        let Some(change) = self.change else {
            return users;
        };
        let more = change.came.iter().filter(uses).count();
        (users + more).saturating_sub(change.went.iter().filter(uses).count())
    }
}
