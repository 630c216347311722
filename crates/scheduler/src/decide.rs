//! Chooses a node for a pod: filters, then scores (N-186, N-195). Pure: random numbers are an argument.

#[cfg(test)]
mod tests;

use crate::cluster_state::ClusterState;
use crate::filters::{Cycle, Plugins, Rejection, VolumeChoice, check_single_node};
use crate::node::NodeState;
use crate::pod::PodInfo;
use crate::scores;
use crate::view::{Change, View};
use std::sync::Arc;

/// Up to this many nodes, all are checked.
const ALL_UP_TO: usize = 100;
const PERCENT_LEAST: usize = 5;

#[derive(Debug)]
pub(crate) enum Decision {
    Node { name: Arc<str>, volumes: VolumeChoice },
    Unschedulable(Unschedulable),
}

/// No node can take the pod.
#[derive(Debug, Default)]
pub(crate) struct Unschedulable {
    /// The number of nodes.
    pub(crate) nodes: usize,
    pub(crate) rejected: Vec<(Arc<str>, Rejection)>,
    /// The reason if the pod is rejected for all nodes because of itself.
    pub(crate) by_all: Option<Rejection>,
}

impl Unschedulable {
    pub(crate) fn plugins(&self) -> Plugins {
        let mut plugins = Plugins::default();
        let rejections = self.rejected.iter().map(|(_, rejection)| rejection).chain(&self.by_all);
        rejections.for_each(|rejection| plugins.insert(rejection.plugin));
        plugins
    }
}

/// `start` is the node to begin with; it advances, so that in a large cluster all nodes are used.
pub(crate) fn decide(
    cluster: &ClusterState,
    pod: &PodInfo,
    start: &mut usize,
    mut random: impl FnMut() -> u64,
) -> Decision {
    let nodes = cluster.node_count();
    let cycle = match Cycle::begin(View::of(cluster), pod) {
        Ok(cycle) => cycle,
        Err(rejection) => {
            let by_all = Some(rejection);
            return Decision::Unschedulable(Unschedulable {
                nodes,
                by_all,
                ..Unschedulable::default()
            });
        }
    };
    // Pods were preempted for it on the nominated node: use that node if it fits now.
    let promised = cluster.nominated_to(&pod.key).and_then(|name| cluster.node(name));
    if let Some(node) = promised.filter(|node| fits(&cycle, node).is_ok()) {
        return Decision::Node { name: node.name.clone(), volumes: cycle.volumes_on(node) };
    }
    match feasible(&cycle, nodes, start) {
        Ok(feasible) => {
            let node = scores::best(&cycle, &feasible, &mut random);
            Decision::Node { name: node.name.clone(), volumes: cycle.volumes_on(node) }
        }
        Err(rejected) => Decision::Unschedulable(Unschedulable { nodes, rejected, by_all: None }),
    }
}

type Rejections = Vec<(Arc<str>, Rejection)>;

/// The feasible nodes, at least one, or why there are none.
fn feasible<'a>(
    cycle: &Cycle<'a>,
    nodes: usize,
    start: &mut usize,
) -> Result<Vec<&'a NodeState>, Rejections> {
    let enough = enough(nodes);
    let begin = if nodes > enough { *start % nodes } else { 0 };
    let all = cycle.view.nodes().skip(begin).chain(cycle.view.nodes().take(begin));
    let (mut feasible, mut rejected) = (Vec::new(), Vec::new());
    for node in all {
        let answer = match cycle.is_candidate(&node.name) {
            true => fits(cycle, node),
            false => Err(Cycle::not_a_candidate()),
        };
        match answer {
            Ok(()) => feasible.push(node),
            Err(rejection) => rejected.push((node.name.clone(), rejection)),
        }
        if feasible.len() >= enough {
            break;
        }
    }
    if nodes > enough {
        *start = (begin + feasible.len() + rejected.len()) % nodes;
    }
    if feasible.is_empty() { Err(rejected) } else { Ok(feasible) }
}

/// How many feasible nodes are enough to choose from (N-186).
fn enough(nodes: usize) -> usize {
    if nodes <= ALL_UP_TO {
        return nodes.max(1);
    }
    let percent = 50usize.saturating_sub(nodes / 125).max(PERCENT_LEAST);
    (nodes * percent / 100).max(ALL_UP_TO)
}

/// Checks a node also with the pods of at least the same priority that are nominated for it. They may be placed
/// elsewhere in the end, so the pod must fit without them too (N-200).
pub(crate) fn fits(cycle: &Cycle, node: &NodeState) -> Result<(), Rejection> {
    let (cluster, pod) = (cycle.view.cluster, cycle.pod);
    let mut promised = cluster.nominated(&node.name, pod).filter(|p| p.priority >= pod.priority);
    if let Some(first) = promised.next() {
        let mut change = match cycle.view.change {
            Some(change) if change.node.name == node.name => change.clone(),
            _ => Change::none(node),
        };
        std::iter::once(first).chain(promised).for_each(|pod| change.add(pod));
        // Most fail here, before the more expensive checks of the whole cluster.
        check_single_node(pod, &change.node)?;
        let crowded = Cycle::begin(View::with(cluster, &change), pod)?;
        crowded.check(&change.node)?;
    }
    cycle.check(node)
}
