//! Gives every node a piece of the range that pods have their addresses from (C-184). Once given it
//! is never changed, and comes back when the node goes: whoever got none waits for that.
//!
//! `pod_cidrs/ledger.rs` knows who has what.

mod ledger;

use crate::start::Cluster;
use client::{Next, ObjectKey, Queue, Recorder, reference, run_controller};
use k8s_openapi::api::core::v1::Node;
use ledger::Ledger;
use serde_json::json;
use std::net::Ipv4Addr;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard};

/// A range of addresses, cut into pieces of one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    base: u32,
    prefix: u8,
    piece: u8,
}

impl Range {
    /// `10.244.0.0/16`, in pieces of `/24`.
    pub fn new(cidr: &str, piece: u8) -> Result<Range, String> {
        let wrong = || format!("{cidr:?} cannot be cut into pieces of /{piece}");
        let (base, prefix) = cidr.split_once('/').ok_or_else(wrong)?;
        let base = u32::from(Ipv4Addr::from_str(base).map_err(|_| wrong())?);
        let prefix: u8 = prefix.parse().map_err(|_| wrong())?;
        let fits = (1..=30).contains(&prefix) && (prefix..=30).contains(&piece);
        let on_border = base.checked_shl(prefix.into()).unwrap_or_default() == 0;
        if fits && on_border { Ok(Range { base, prefix, piece }) } else { Err(wrong()) }
    }

    fn pieces(self) -> u32 {
        1 << (self.piece - self.prefix)
    }

    fn piece(self, number: u32) -> String {
        let address = self.base + (number << (32 - self.piece));
        format!("{}/{}", Ipv4Addr::from(address), self.piece)
    }

    /// The pieces that `cidr` touches, which may be larger than one or outside.
    fn touched(self, cidr: &str) -> std::ops::Range<u32> {
        let parsed = cidr.split_once('/').and_then(|(base, prefix)| {
            let base = u32::from(Ipv4Addr::from_str(base).ok()?);
            let prefix: u32 = prefix.parse().ok().filter(|prefix| *prefix <= 32)?;
            Some((u64::from(base), 1u64 << (32 - prefix)))
        });
        let Some((first, size)) = parsed else {
            return 0..0; // Of another family: none of ours.
        };
        let (ours, step) = (u64::from(self.base), 1u64 << (32 - self.piece));
        let end = ours + step * u64::from(self.pieces());
        let (from, to) = (first.max(ours), (first + size).min(end));
        if from >= to {
            return 0..0;
        }
        ((from - ours) / step) as u32..(to - ours).div_ceil(step) as u32
    }
}

impl Default for Range {
    fn default() -> Self {
        Range { base: u32::from(Ipv4Addr::new(10, 244, 0, 0)), prefix: 16, piece: 24 }
    }
}

pub(crate) async fn run(cluster: &Cluster, range: Range) {
    let queue = Queue::new();
    let ledger = Arc::new(Mutex::new(Ledger::new(range)));
    let written = ledger.clone();
    cluster.nodes.feed_changes(&queue, move |before, after| locked(&written).see(before, after));
    cluster.nodes.synced().await;
    let recorder = Recorder::new(&cluster.client, "cidrAllocator", "");
    // One at a time: what one node gets, the next must not.
    run_controller("pod-cidrs", &queue, 1, |key| {
        reconcile(cluster, &recorder, range, &ledger, key)
    })
    .await;
}

async fn reconcile(
    cluster: &Cluster,
    recorder: &Recorder,
    range: Range,
    ledger: &Mutex<Ledger>,
    key: ObjectKey,
) -> client::Result<Next> {
    let Some(node) = cluster.nodes.get(&key) else {
        locked(ledger).take_back(&key);
        return Ok(Next::Change);
    };
    if cidrs(&node).next().is_some() {
        return Ok(Next::Change);
    }
    // In two steps: no lock is held while somebody is told.
    let number = locked(ledger).give(&key);
    let say = |reason: &str| {
        let message = format!("Node {} status is now: {reason}", key.name());
        recorder.normal(&reference(&*node), reason, message);
    };
    let Some(number) = number else {
        say("CIDRNotAvailable");
        return Ok(Next::Change);
    };
    let cidr = range.piece(number);
    let patch = json!({
        "metadata": { "uid": node.metadata.uid },
        "spec": { "podCIDR": cidr, "podCIDRs": [cidr] },
    });
    match cluster.client.patch_merge::<Node>(&key, &patch).await {
        Err(error) if error.is_not_found() || error.is_conflict() => Ok(Next::Change),
        Err(error) => {
            say("CIDRAssignmentFailed");
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
    fn a_range_is_cut_into_pieces() {
        let range = Range::default();
        assert_eq!(range, Range::new("10.244.0.0/16", 24).unwrap());
        assert_eq!(range.pieces(), 256);
        assert_eq!(range.piece(0), "10.244.0.0/24");
        assert_eq!(range.piece(255), "10.244.255.0/24");
        for (cidr, piece) in
            [("10.244.1.0/16", 24), ("10.244.0.0/24", 16), ("x/16", 24), ("::/16", 24)]
        {
            assert!(Range::new(cidr, piece).is_err(), "{cidr} {piece}");
        }
    }

    #[test]
    fn c_184_a_node_has_every_piece_that_its_range_touches() {
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
            assert_eq!(range.touched(cidr), expected, "{cidr}");
        }
    }
}
