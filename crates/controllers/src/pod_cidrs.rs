//! Allocates a block of the pod address range to every node (C-184). A block never changes, and is freed when its node
//! is deleted. Nodes without a block wait for a free one.
//!
//! `pod_cidrs/allocations.rs` keeps the allocations.

mod allocations;

use crate::start::Cluster;
use allocations::Allocations;
use client::{Next, ObjectKey, Queue, Recorder, reference, run_controller};
use k8s_openapi::api::core::v1::Node;
use serde_json::json;
use std::net::Ipv4Addr;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard};

/// A range of addresses, divided into blocks of one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    base: u32,
    prefix: u8,
    block: u8,
}

impl Range {
    /// For example `10.244.0.0/16` in blocks of `/24`.
    pub fn new(cidr: &str, block: u8) -> Result<Range, String> {
        let wrong = || format!("{cidr:?} cannot be divided into node blocks of /{block}");
        let (base, prefix) = cidr.split_once('/').ok_or_else(wrong)?;
        let base = u32::from(Ipv4Addr::from_str(base).map_err(|_| wrong())?);
        let prefix: u8 = prefix.parse().map_err(|_| wrong())?;
        let fits = (1..=30).contains(&prefix) && (prefix..=30).contains(&block);
        let on_border = base.checked_shl(prefix.into()).unwrap_or_default() == 0;
        if fits && on_border { Ok(Range { base, prefix, block }) } else { Err(wrong()) }
    }

    fn blocks(self) -> u32 {
        1 << (self.block - self.prefix)
    }

    fn block(self, number: u32) -> String {
        let address = self.base + (number << (32 - self.block));
        format!("{}/{}", Ipv4Addr::from(address), self.block)
    }

    /// The blocks that overlap with `cidr`, which may be larger than a block or outside of the range.
    fn overlapping(self, cidr: &str) -> std::ops::Range<u32> {
        let parsed = cidr.split_once('/').and_then(|(base, prefix)| {
            let base = u32::from(Ipv4Addr::from_str(base).ok()?);
            let prefix: u32 = prefix.parse().ok().filter(|prefix| *prefix <= 32)?;
            Some((u64::from(base), 1u64 << (32 - prefix)))
        });
        let Some((first, size)) = parsed else {
            return 0..0; // Another address family.
        };
        let (ours, step) = (u64::from(self.base), 1u64 << (32 - self.block));
        let end = ours + step * u64::from(self.blocks());
        let (from, to) = (first.max(ours), (first + size).min(end));
        if from >= to {
            return 0..0;
        }
        ((from - ours) / step) as u32..(to - ours).div_ceil(step) as u32
    }
}

impl Default for Range {
    fn default() -> Self {
        Range { base: u32::from(Ipv4Addr::new(10, 244, 0, 0)), prefix: 16, block: 24 }
    }
}

pub(crate) async fn run(cluster: &Cluster, range: Range) {
    let queue = Queue::new();
    let allocations = Arc::new(Mutex::new(Allocations::new(range)));
    let written = allocations.clone();
    cluster.nodes.feed_changes(&queue, move |before, after| locked(&written).update(before, after));
    cluster.nodes.synced().await;
    let recorder = Recorder::new(&cluster.client, "cidrAllocator", "");
    // One at a time, so that no block is allocated twice.
    run_controller("pod-cidrs", &queue, 1, |key| {
        reconcile(cluster, &recorder, range, &allocations, key)
    })
    .await;
}

async fn reconcile(
    cluster: &Cluster,
    recorder: &Recorder,
    range: Range,
    allocations: &Mutex<Allocations>,
    key: ObjectKey,
) -> client::Result<Next> {
    let Some(node) = cluster.nodes.get(&key) else {
        locked(allocations).free_block_of(&key);
        return Ok(Next::Change);
    };
    if cidrs(&node).next().is_some() {
        return Ok(Next::Change);
    }
    // The lock is not held while events are recorded.
    let number = locked(allocations).allocate(&key);
    let record = |reason: &str| {
        let message = format!("Node {} status is now: {reason}", key.name());
        recorder.normal(&reference(&*node), reason, message);
    };
    let Some(number) = number else {
        record("CIDRNotAvailable");
        return Ok(Next::Change);
    };
    let cidr = range.block(number);
    let patch = json!({
        "metadata": { "uid": node.metadata.uid },
        "spec": { "podCIDR": cidr, "podCIDRs": [cidr] },
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
    fn a_range_is_divided_into_blocks() {
        let range = Range::default();
        assert_eq!(range, Range::new("10.244.0.0/16", 24).unwrap());
        assert_eq!(range.blocks(), 256);
        assert_eq!(range.block(0), "10.244.0.0/24");
        assert_eq!(range.block(255), "10.244.255.0/24");
        for (cidr, block) in
            [("10.244.1.0/16", 24), ("10.244.0.0/24", 16), ("x/16", 24), ("::/16", 24)]
        {
            assert!(Range::new(cidr, block).is_err(), "{cidr} {block}");
        }
    }

    #[test]
    fn c_184_a_node_holds_every_block_that_its_cidr_overlaps() {
        let range = Range::default();
        let cases = [
            ("10.244.3.0/24", 3..4),
            ("10.244.4.0/23", 4..6),
            ("10.244.4.128/25", 4..5),
            ("10.0.0.0/8", 0..256),
            ("192.168.0.0/24", 0..0),
            ("fd00::/64", 0..0),
        ];
        for (cidr, expected) in cases {
            assert_eq!(range.overlapping(cidr), expected, "{cidr}");
        }
    }
}
