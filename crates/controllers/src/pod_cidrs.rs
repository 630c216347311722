//! Allocates a block of each pod address range to every node: one, or one per IP family (C-184, NET-14). Blocks never
//! change, and are freed when their node is deleted. Nodes without blocks wait for free ones.
//!
//! `pod_cidrs/range.rs` divides a range into blocks, `pod_cidrs/allocations.rs` keeps the allocations.

mod allocations;
mod range;

pub use range::{Range, Ranges};

use crate::start::Cluster;
use allocations::Allocations;
use client::{Next, ObjectKey, Queue, Recorder, reference, run_controller};
use k8s_openapi::api::core::v1::Node;
use serde_json::json;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard};

/// The allocations of each range.
struct Pools(Vec<Allocations>);

impl Pools {
    fn new(ranges: &Ranges) -> Pools {
        Pools(ranges.iter().map(Allocations::new).collect())
    }

    /// The nodes to reconcile after a change of a node.
    fn update(&mut self, before: Option<&Node>, after: Option<&Node>) -> Vec<ObjectKey> {
        let keys = self.0.iter_mut().flat_map(|pool| pool.update(before, after));
        keys.collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// A block of each range. `None` if one of them has no free block: the node waits for it, and keeps the others.
    fn allocate(&mut self, key: &ObjectKey) -> Option<Vec<String>> {
        let blocks: Vec<Option<String>> =
            self.0.iter_mut().map(|pool| pool.allocate_block(key)).collect();
        blocks.into_iter().collect()
    }

    fn free_blocks_of(&mut self, key: &ObjectKey) {
        self.0.iter_mut().for_each(|pool| pool.free_block_of(key));
    }
}

pub(crate) async fn run(cluster: &Cluster, ranges: Ranges) {
    let queue = Queue::new();
    let allocations = Arc::new(Mutex::new(Pools::new(&ranges)));
    let written = allocations.clone();
    cluster.nodes.feed_changes(&queue, move |before, after| locked(&written).update(before, after));
    cluster.nodes.synced().await;
    let recorder = Recorder::new(&cluster.client, "cidrAllocator", "");
    // One at a time, so that no block is allocated twice.
    run_controller("pod-cidrs", &queue, 1, |key| reconcile(cluster, &recorder, &allocations, key))
        .await;
}

async fn reconcile(
    cluster: &Cluster,
    recorder: &Recorder,
    allocations: &Mutex<Pools>,
    key: ObjectKey,
) -> client::Result<Next> {
    let Some(node) = cluster.nodes.get(&key) else {
        locked(allocations).free_blocks_of(&key);
        return Ok(Next::Change);
    };
    if cidrs(&node).next().is_some() {
        return Ok(Next::Change);
    }
    // The lock is not held while events are recorded.
    let blocks = locked(allocations).allocate(&key);
    let record = |reason: &str| {
        let message = format!("Node {} status is now: {reason}", key.name());
        recorder.normal(&reference(&*node), reason, message);
    };
    let Some(blocks) = blocks else {
        record("CIDRNotAvailable");
        return Ok(Next::Change);
    };
    let patch = json!({
        "metadata": { "uid": node.metadata.uid },
        "spec": { "podCIDR": blocks.first(), "podCIDRs": blocks },
    });
    match cluster.client.patch_merge::<Node>(&key, &patch).await {
        Err(error) if error.is_not_found() || error.is_conflict() => Ok(Next::Change),
        Err(error) => {
            record("CIDRAssignmentFailed");
            Err(error)
        }
        Ok(_) => Ok(Next::Change),
    }
}

fn cidrs(node: &Node) -> impl Iterator<Item = &str> {
    let spec = node.spec.iter();
    spec.flat_map(|spec| spec.pod_cidr.iter().chain(spec.pod_cidrs.iter().flatten()))
        .map(String::as_str)
        .filter(|cidr| !cidr.is_empty())
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn net_14_a_node_gets_a_block_of_each_range_or_waits_for_both() {
        let ranges = Ranges::new("10.9.0.0/23,fd00:9::/64").unwrap();
        let mut pools = Pools::new(&ranges);
        let key = |name: &str| ObjectKey::new("", name);
        let both = vec!["10.9.0.0/24".to_owned(), "fd00:9::/64".to_owned()];
        assert_eq!(pools.allocate(&key("a")), Some(both.clone()));
        assert_eq!(pools.allocate(&key("b")), None, "there is one block of IPv6");
        let node = |name: &str, cidrs: &[String]| -> Node {
            let metadata = json!({ "name": name, "uid": name });
            typed::from_value(json!({ "metadata": metadata, "spec": { "podCIDRs": cidrs } }))
                .unwrap()
        };
        let has = node("a", &both);
        assert_eq!(pools.update(Some(&node("a", &[])), Some(&has)), [key("a")]);
        assert_eq!(pools.update(Some(&has), None), [key("a"), key("b")], "one free, one waiting");
        let next = vec!["10.9.1.0/24".to_owned(), "fd00:9::/64".to_owned()];
        assert_eq!(pools.allocate(&key("b")), Some(next));
        pools.free_blocks_of(&key("b"));
        assert_eq!(pools.allocate(&key("c")), Some(both));
    }
}
