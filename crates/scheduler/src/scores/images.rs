//! ImageLocality: images that are there need no pull; those that many nodes have count more, so that
//! not all pods of a workload go to the one node that has its image.

use super::BEST;
use crate::filters::Cycle;
use crate::node::NodeState;

const MIB: i64 = 1024 * 1024;
/// Below this a pull is nothing, above this (per container) more does not matter.
const LEAST: i64 = 23 * MIB;
const MOST_PER_CONTAINER: i64 = 1000 * MIB;

pub(super) fn score(cycle: &Cycle, nodes: &[&NodeState]) -> Vec<i64> {
    let Some(spec) = &cycle.pod.pod.spec else {
        return vec![0; nodes.len()];
    };
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let images: Vec<&str> = containers.filter_map(|c| c.image.as_deref()).collect();
    let count = images.len() as i64;
    let all = cycle.view.world.node_count().max(1) as i64;
    let most = (MOST_PER_CONTAINER * count).max(LEAST + 1);
    let score = |node: &&NodeState| {
        let there = node.offer.as_ref().map(|offer| &offer.images);
        let sizes = images.iter().map(|image| {
            let (name, size) = there.and_then(|there| find(there, image)).unwrap_or_default();
            size * cycle.view.world.nodes_with_image(name) as i64 / all
        });
        BEST * (sizes.sum::<i64>().clamp(LEAST, most) - LEAST) / (most - LEAST)
    };
    nodes.iter().map(score).collect()
}

/// Nodes name images in full; a tag that is not said is `latest`.
fn find<'a>(
    images: &'a std::collections::HashMap<String, i64>,
    image: &str,
) -> Option<(&'a str, i64)> {
    let entry = |name: &str| images.get_key_value(name).map(|(name, size)| (name.as_str(), *size));
    let last = image.rsplit('/').next().unwrap_or_default();
    match last.contains([':', '@']) {
        true => entry(image),
        false => entry(&format!("{image}:latest")),
    }
}
