//! Annotates every node with how long its kubelet may cache Secrets and ConfigMaps: the more nodes, the longer (C-153).
//! landfall's own agents watch and do not need this; other kubelets read it.

use crate::start::Cluster;
use client::{Next, ObjectKey, Queue, run_controller};
use k8s_openapi::api::core::v1::Node;
use serde_json::json;
use std::sync::Mutex;

const TTL: &str = "node.alpha.kubernetes.io/ttl";

/// Minimum and maximum number of nodes, and the TTL in seconds. The ranges overlap, so that adding and removing one
/// node does not change the TTL each time. Upstream: `ttlBoundaries`.
const STEPS: [(usize, usize, u32); 5] =
    [(0, 100, 0), (90, 500, 15), (450, 1000, 30), (900, 2000, 60), (1800, usize::MAX, 300)];

pub(crate) async fn run(cluster: &Cluster) {
    let queue = Queue::new();
    cluster.nodes.feed_keys(&queue);
    cluster.nodes.synced().await;
    let step = Mutex::new(0);
    run_controller("node-ttl", &queue, 1, |key| reconcile(cluster, &queue, &step, key)).await;
}

async fn reconcile(
    cluster: &Cluster,
    queue: &Queue<ObjectKey>,
    step: &Mutex<usize>,
    key: ObjectKey,
) -> client::Result<Next> {
    let (before, now) = {
        let mut step = step.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let before = *step;
        *step = next(before, cluster.nodes.len());
        (before, *step)
    };
    if before != now {
        cluster.nodes.list().iter().for_each(|node| queue.add(ObjectKey::of(node.as_ref())));
    }
    let Some(node) = cluster.nodes.get(&key) else { return Ok(Next::Change) };
    let seconds = STEPS[now].2.to_string();
    let current = node.metadata.annotations.as_ref().and_then(|all| all.get(TTL));
    if current == Some(&seconds) {
        return Ok(Next::Change);
    }
    let patch = json!({ "metadata": { "annotations": { TTL: seconds } } });
    match cluster.client.patch_merge::<Node>(&key, &patch).await {
        Err(error) if error.is_not_found() => Ok(Next::Change),
        patched => patched.map(|_| Next::Change),
    }
}

/// The step for this number of nodes, starting from the current step.
fn next(mut step: usize, nodes: usize) -> usize {
    while nodes > STEPS[step].1 {
        step += 1;
    }
    while nodes < STEPS[step].0 {
        step -= 1;
    }
    step
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c_153_the_step_follows_the_number_of_nodes_with_hysteresis() {
        let mut step = 0;
        for (nodes, seconds) in [
            (1, 0),
            (100, 0),
            (101, 15),
            (95, 15),
            (90, 15),
            (89, 0),
            (501, 30),
            (450, 30),
            (449, 15),
            (1001, 60),
            (900, 60),
            (2001, 300),
            (1800, 300),
            (1799, 60),
            (5000, 300),
            (0, 0),
        ] {
            step = next(step, nodes);
            assert_eq!(STEPS[step].2, seconds, "{nodes}");
        }
    }
}
