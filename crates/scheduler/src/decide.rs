//! Which node for this pod: filters, then scores (N-186, N-195). Pure: chance is an argument.

#[cfg(test)]
mod tests;

use crate::filters::{Choice, Cycle, Plugins, Rejection, check_alone};
use crate::node::NodeState;
use crate::pod::PodInfo;
use crate::scores;
use crate::view::{Change, View};
use crate::world::World;
use std::sync::Arc;

/// Up to so many nodes all are looked at.
const ALL_UP_TO: usize = 100;
const PERCENT_LEAST: usize = 5;

#[derive(Debug)]
pub(crate) enum Decision {
    Node { name: Arc<str>, volumes: Choice },
    Unfit(Unfit),
}

/// No node can take the pod.
#[derive(Debug, Default)]
pub(crate) struct Unfit {
    /// How many nodes there are.
    pub(crate) nodes: usize,
    pub(crate) rejected: Vec<(Arc<str>, Rejection)>,
    /// Something about the pod itself rejects it everywhere.
    pub(crate) by_all: Option<Rejection>,
}

impl Unfit {
    pub(crate) fn plugins(&self) -> Plugins {
        let mut plugins = Plugins::default();
        let rejections = self.rejected.iter().map(|(_, rejection)| rejection).chain(&self.by_all);
        rejections.for_each(|rejection| plugins.insert(rejection.plugin));
        plugins
    }
}

/// `start` is the node to begin with, so that in a large cluster all nodes have their turn.
pub(crate) fn decide(
    world: &World,
    pod: &PodInfo,
    start: &mut usize,
    mut chance: impl FnMut() -> u64,
) -> Decision {
    let nodes = world.node_count();
    let cycle = match Cycle::begin(View::of(world), pod) {
        Ok(cycle) => cycle,
        Err(rejection) => {
            let by_all = Some(rejection);
            return Decision::Unfit(Unfit { nodes, by_all, ..Unfit::default() });
        }
    };
    // Room was made for it there: if it fits now, that is the place.
    let promised = world.nominated_to(&pod.key).and_then(|name| world.node(name));
    if let Some(node) = promised.filter(|node| fits(&cycle, node).is_ok()) {
        return Decision::Node { name: node.name.clone(), volumes: cycle.volumes_on(node) };
    }
    match feasible(&cycle, nodes, start) {
        Ok(feasible) => {
            let node = scores::best(&cycle, &feasible, &mut chance);
            Decision::Node { name: node.name.clone(), volumes: cycle.volumes_on(node) }
        }
        Err(rejected) => Decision::Unfit(Unfit { nodes, rejected, by_all: None }),
    }
}

type Rejections = Vec<(Arc<str>, Rejection)>;

/// At least one node that can take the pod, or why none of them can.
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
        let answer = match cycle.is_meant(&node.name) {
            true => fits(cycle, node),
            false => Err(Cycle::not_meant()),
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

/// Also with those that were promised room there and are at least as important: they may go
/// elsewhere in the end, so it must fit without them too (N-200).
pub(crate) fn fits(cycle: &Cycle, node: &NodeState) -> Result<(), Rejection> {
    let (world, pod) = (cycle.view.world, cycle.pod);
    let mut promised = world.nominated(&node.name, pod).filter(|p| p.priority >= pod.priority);
    if let Some(first) = promised.next() {
        let mut change = match cycle.view.change {
            Some(change) if change.node.name == node.name => change.clone(),
            _ => Change::none(node),
        };
        std::iter::once(first).chain(promised).for_each(|pod| change.add(pod));
        // Most fail here, before anything is asked about the whole world.
        check_alone(pod, &change.node)?;
        let crowded = Cycle::begin(View::with(world, &change), pod)?;
        crowded.check(&change.node)?;
    }
    cycle.check(node)
}
