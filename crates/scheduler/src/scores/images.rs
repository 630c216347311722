//! ImageLocality: prefers nodes that have the images. Images that many nodes have count more, so that not all pods of a
//! workload go to the only node with its image.

use super::BEST;
use crate::filters::Cycle;
use crate::node::NodeState;

const MIB: i64 = 1024 * 1024;
/// Image sizes below the first do not count, sizes above the second (per container) count the same.
const LEAST: i64 = 23 * MIB;
const MOST_PER_CONTAINER: i64 = 1000 * MIB;

pub(super) fn score(cycle: &Cycle, nodes: &[&NodeState]) -> Vec<i64> {
    let Some(spec) = &cycle.pod.pod.spec else {
        return vec![0; nodes.len()];
    };
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let images: Vec<&str> = containers.filter_map(|c| c.image.as_deref()).collect();
    let count = images.len() as i64;
    let all = cycle.view.cluster.node_count().max(1) as i64;
    let most = (MOST_PER_CONTAINER * count).max(LEAST + 1);
    let score = |node: &&NodeState| {
        let there = node.info.as_ref().map(|info| &info.images);
        let sizes = images.iter().map(|image| {
            let (name, size) = there.and_then(|there| find(there, image)).unwrap_or_default();
            size * cycle.view.cluster.nodes_with_image(name) as i64 / all
        });
        BEST * (sizes.sum::<i64>().clamp(LEAST, most) - LEAST) / (most - LEAST)
    };
    nodes.iter().map(score).collect()
}

/// Nodes report full image names; the default tag is `latest`.
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
