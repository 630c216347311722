//! Which nodes can take a pod (N-189). Each family of rules is a file; here is their order.
//!
//! What a rule needs to know of the whole world is prepared once per pod ([`Cycle::begin`]), so that
//! asking about one node is cheap.

mod affinity;
mod claims;
mod fit;
mod neighbours;
mod ports;
mod spread;
mod taints;

pub(crate) use affinity::wish_met;
pub(crate) use claims::Choice;
pub(crate) use spread::question;
pub(crate) use taints::tolerates;

use crate::node::NodeState;
use crate::pod::PodInfo;
use crate::view::View;
use std::borrow::Cow;
use std::collections::BTreeSet;

/// Upstream's plugins, as far as they reject.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Plugin {
    NodeUnschedulable,
    NodeName,
    TaintToleration,
    NodeAffinity,
    NodePorts,
    NodeResourcesFit,
    VolumeRestrictions,
    NodeVolumeLimits,
    VolumeBinding,
    VolumeZone,
    PodTopologySpread,
    InterPodAffinity,
}

/// A set of plugins.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Plugins(u16);

impl Plugins {
    /// Those that look at one node and the pods on it, and at nothing else.
    pub(crate) const LOCAL: Plugins = Plugins::of(&[
        Plugin::NodeUnschedulable,
        Plugin::NodeName,
        Plugin::TaintToleration,
        Plugin::NodeAffinity,
        Plugin::NodePorts,
        Plugin::NodeResourcesFit,
    ]);

    pub(crate) const VOLUMES: Plugins = Plugins::of(&[
        Plugin::VolumeRestrictions,
        Plugin::NodeVolumeLimits,
        Plugin::VolumeBinding,
        Plugin::VolumeZone,
    ]);

    /// Those that look at the pods of a whole domain.
    pub(crate) const WIDE: Plugins =
        Plugins::of(&[Plugin::PodTopologySpread, Plugin::InterPodAffinity]);

    pub(crate) const fn of(plugins: &[Plugin]) -> Plugins {
        let mut set = 0;
        let mut at = 0;
        while at < plugins.len() {
            set |= 1 << plugins[at] as u8;
            at += 1;
        }
        Plugins(set)
    }

    pub(crate) fn insert(&mut self, plugin: Plugin) {
        self.0 |= Plugins::of(&[plugin]).0;
    }

    pub(crate) fn meets(self, other: Plugins) -> bool {
        self.0 & other.0 != 0
    }

    pub(crate) fn is_within(self, other: Plugins) -> bool {
        self.0 & !other.0 == 0
    }
}

/// Why a node cannot take the pod.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Rejection {
    pub(crate) plugin: Plugin,
    /// As people read them, each counted by itself.
    pub(crate) reasons: Vec<Cow<'static, str>>,
    /// Preemption cannot help.
    pub(crate) hard: bool,
}

impl Rejection {
    fn hard(plugin: Plugin, reason: impl Into<Cow<'static, str>>) -> Rejection {
        Rejection { plugin, reasons: vec![reason.into()], hard: true }
    }

    fn soft(plugin: Plugin, reason: impl Into<Cow<'static, str>>) -> Rejection {
        Rejection { hard: false, ..Rejection::hard(plugin, reason) }
    }
}

/// One pod's turn: what its rules need to know of the world.
pub(crate) struct Cycle<'a> {
    pub(crate) pod: &'a PodInfo,
    pub(crate) view: View<'a>,
    /// The only nodes that its affinity names, if it names any.
    only: Option<BTreeSet<String>>,
    claims: claims::Plan,
    spread: spread::Plan,
    neighbours: neighbours::Plan,
}

impl<'a> Cycle<'a> {
    /// An error is a rejection by all nodes.
    pub(crate) fn begin(view: View<'a>, pod: &'a PodInfo) -> Result<Cycle<'a>, Rejection> {
        Ok(Cycle {
            pod,
            view,
            only: affinity::names(pod),
            claims: claims::Plan::make(view, pod)?,
            spread: spread::Plan::make(view, pod),
            neighbours: neighbours::Plan::make(view, pod),
        })
    }

    /// Whether it is worth asking about a node at all, and if not, why.
    pub(crate) fn is_meant(&self, node: &str) -> bool {
        self.only.as_ref().is_none_or(|only| only.contains(node))
    }

    /// What is said of nodes that are not meant.
    pub(crate) fn not_meant() -> Rejection {
        let reason = "node(s) didn't satisfy plugin(s) [NodeAffinity]";
        Rejection::hard(Plugin::NodeAffinity, reason)
    }

    /// The first rule that rejects the node ends the matter. `node` is one of the view's.
    pub(crate) fn check(&self, node: &NodeState) -> Result<(), Rejection> {
        let pod = self.pod;
        check_alone(pod, node)?;
        self.claims.check(self.view, node)?;
        self.spread.check(pod, node)?;
        self.neighbours.check(node)
    }

    /// Which volumes the pod would get on a node that has passed.
    pub(crate) fn volumes_on(&self, node: &NodeState) -> Choice {
        self.claims.choose(self.view, node).unwrap_or_default()
    }
}

/// The rules that need to know one node only.
pub(crate) fn check_alone(pod: &PodInfo, node: &NodeState) -> Result<(), Rejection> {
    let Some(offer) = &node.offer else {
        return Err(Cycle::not_meant());
    };
    taints::check_unschedulable(pod, offer)?;
    affinity::check_name(pod, node)?;
    taints::check(pod, offer)?;
    affinity::check(pod, node, offer)?;
    ports::check(pod, node)?;
    fit::check(pod, node, offer)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    #[test]
    fn sets_of_plugins_are_sets() {
        let mut some = Plugins::default();
        assert!(some.is_within(Plugins::LOCAL) && !some.meets(Plugins::LOCAL));
        some.insert(Plugin::NodePorts);
        assert!(some.is_within(Plugins::LOCAL) && some.meets(Plugins::LOCAL));
        some.insert(Plugin::InterPodAffinity);
        assert!(!some.is_within(Plugins::LOCAL) && some.meets(Plugins::WIDE));
    }

    /// The reason, with a mark if preemption cannot help.
    pub(crate) fn said(checked: Result<(), Rejection>) -> String {
        match checked {
            Ok(()) => "fits".into(),
            Err(rejection) => {
                let hard = if rejection.hard { " (hard)" } else { "" };
                format!("{}{hard}", rejection.reasons.join(", "))
            }
        }
    }
}
