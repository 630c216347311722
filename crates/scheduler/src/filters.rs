//! Filters: which nodes are feasible for a pod (N-189). Each family of rules is a file; this file has their order.
//!
//! Data about the whole cluster is prepared once per pod ([`Cycle::begin`]), so that checking one node is cheap.

mod claims;
mod fit;
mod node_affinity;
mod pod_affinity;
mod ports;
mod spread;
mod taints;

pub(crate) use claims::VolumeChoice;
pub(crate) use node_affinity::preferred_term_matches;
pub(crate) use spread::query;
pub(crate) use taints::tolerates;

use crate::node::NodeState;
use crate::pod::PodInfo;
use crate::view::View;
use std::borrow::Cow;
use std::collections::BTreeSet;

/// Upstream's plugins that can reject a node.
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
    /// Plugins that depend only on one node and its pods.
    pub(crate) const SINGLE_NODE: Plugins = Plugins::of(&[
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

    /// Plugins that depend on the pods of a whole topology domain.
    pub(crate) const TOPOLOGY: Plugins =
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

    pub(crate) fn intersects(self, other: Plugins) -> bool {
        self.0 & other.0 != 0
    }

    pub(crate) fn is_subset_of(self, other: Plugins) -> bool {
        self.0 & !other.0 == 0
    }
}

/// Why a node is not feasible.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Rejection {
    pub(crate) plugin: Plugin,
    /// Messages for users; each is counted separately.
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

/// One scheduling cycle of a pod: the data that its rules need.
pub(crate) struct Cycle<'a> {
    pub(crate) pod: &'a PodInfo,
    pub(crate) view: View<'a>,
    /// The nodes that its affinity names, if it names some.
    only: Option<BTreeSet<String>>,
    claims: claims::Plan,
    spread: spread::Plan,
    pod_affinity: pod_affinity::Plan,
}

impl<'a> Cycle<'a> {
    /// An error rejects all nodes.
    pub(crate) fn begin(view: View<'a>, pod: &'a PodInfo) -> Result<Cycle<'a>, Rejection> {
        Ok(Cycle {
            pod,
            view,
            only: node_affinity::names(pod),
            claims: claims::Plan::make(view, pod)?,
            spread: spread::Plan::make(view, pod),
            pod_affinity: pod_affinity::Plan::make(view, pod),
        })
    }

    /// Whether the pod's affinity allows the node by name.
    pub(crate) fn is_candidate(&self, node: &str) -> bool {
        self.only.as_ref().is_none_or(|only| only.contains(node))
    }

    /// The rejection of nodes that are no candidates.
    pub(crate) fn not_a_candidate() -> Rejection {
        let reason = "node(s) didn't satisfy plugin(s) [NodeAffinity]";
        Rejection::hard(Plugin::NodeAffinity, reason)
    }

    /// Returns the first rejection. `node` is one of the view's.
    pub(crate) fn check(&self, node: &NodeState) -> Result<(), Rejection> {
        let pod = self.pod;
        check_single_node(pod, node)?;
        self.claims.check(self.view, node)?;
        self.spread.check(pod, node)?;
        self.pod_affinity.check(node)
    }

    /// The volumes for the pod on a feasible node.
    pub(crate) fn volumes_on(&self, node: &NodeState) -> VolumeChoice {
        self.claims.choose(self.view, node).unwrap_or_default()
    }
}

/// The rules that depend only on one node and its pods.
pub(crate) fn check_single_node(pod: &PodInfo, node: &NodeState) -> Result<(), Rejection> {
    let Some(info) = &node.info else {
        return Err(Cycle::not_a_candidate());
    };
    taints::check_unschedulable(pod, info)?;
    node_affinity::check_name(pod, node)?;
    taints::check(pod, info)?;
    node_affinity::check(pod, node, info)?;
    ports::check(pod, node)?;
    fit::check(pod, node, info)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    #[test]
    fn sets_of_plugins_are_sets() {
        let mut some = Plugins::default();
        assert!(some.is_subset_of(Plugins::SINGLE_NODE) && !some.intersects(Plugins::SINGLE_NODE));
        some.insert(Plugin::NodePorts);
        assert!(some.is_subset_of(Plugins::SINGLE_NODE) && some.intersects(Plugins::SINGLE_NODE));
        some.insert(Plugin::InterPodAffinity);
        assert!(!some.is_subset_of(Plugins::SINGLE_NODE) && some.intersects(Plugins::TOPOLOGY));
    }

    /// The reasons, followed by "(hard)" if preemption cannot help.
    pub(crate) fn reasons(checked: Result<(), Rejection>) -> String {
        match checked {
            Ok(()) => "fits".into(),
            Err(rejection) => {
                let hard = if rejection.hard { " (hard)" } else { "" };
                format!("{}{hard}", rejection.reasons.join(", "))
            }
        }
    }
}
