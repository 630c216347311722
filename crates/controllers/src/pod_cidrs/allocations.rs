//! Which node has which block. Updated with every change of a node, so that the cost of an allocation does not depend
//! on the number of nodes. Pure.

use super::{Range, cidrs};
use client::ObjectKey;
use k8s_openapi::api::core::v1::Node;
use std::collections::{BTreeMap, BTreeSet};

type Blocks = std::ops::Range<u32>;

pub(super) struct Allocations {
    range: Range,
    /// Allocated blocks that the cache does not show in their node yet.
    allocated: BTreeMap<ObjectKey, u32>,
    /// The blocks of nodes in the cache.
    held: BTreeMap<ObjectKey, Vec<Blocks>>,
    /// The number of nodes that have a block, if any has.
    taken: BTreeMap<u32, usize>,
    /// CIDRs larger than a block that somebody assigned to a node by hand.
    wide: Vec<Blocks>,
    /// All blocks before this one are taken.
    next: u32,
    /// Nodes that got no block.
    waiting: BTreeSet<ObjectKey>,
}

impl Allocations {
    pub(super) fn new(range: Range) -> Allocations {
        Allocations {
            range,
            allocated: BTreeMap::new(),
            held: BTreeMap::new(),
            taken: BTreeMap::new(),
            wide: Vec::new(),
            next: 0,
            waiting: BTreeSet::new(),
        }
    }

    /// Updates the allocations after a change of a node. Returns the nodes to reconcile: the node itself, and as many
    /// waiting nodes as there are newly free blocks.
    pub(super) fn update(&mut self, before: Option<&Node>, after: Option<&Node>) -> Vec<ObjectKey> {
        let uid_and_cidrs = |node: &Node| -> (_, BTreeSet<String>) {
            (node.metadata.uid.clone(), cidrs(node).map(str::to_owned).collect())
        };
        let (was, is) = (before.map(uid_and_cidrs), after.map(uid_and_cidrs));
        let Some(key) = after.or(before).map(ObjectKey::of).filter(|_| was != is) else {
            return Vec::new();
        };
        let has = is.into_iter().flat_map(|(_, cidrs)| cidrs);
        // A node of a dual-stack cluster also has a range of the other family, which overlaps nothing here.
        let has = has.map(|cidr| self.range.overlapping(&cidr));
        let has: Vec<Blocks> = has.filter(|blocks| !blocks.is_empty()).collect();
        let had = self.held.remove(&key).unwrap_or_default();
        // Take before releasing, so that blocks that the node keeps are never free.
        has.iter().for_each(|blocks| self.take(blocks));
        let mut uncached = 0;
        if after.is_none_or(|node| cidrs(node).next().is_some()) {
            uncached = usize::from(self.allocated.contains_key(&key) && after.is_none());
            self.free_block_of(&key);
        }
        had.iter().for_each(|blocks| self.release(blocks));
        if !has.is_empty() {
            self.held.insert(key.clone(), has);
        }
        let freed: usize = had.iter().map(ExactSizeIterator::len).sum();
        std::iter::once(key).chain(self.waiting.iter().take(freed + uncached).cloned()).collect()
    }

    /// The block that this node was allocated before, or else the first free block.
    fn allocate(&mut self, key: &ObjectKey) -> Option<u32> {
        if let Some(number) = self.allocated.get(key) {
            return Some(*number);
        }
        let Some(number) = self.free() else {
            self.waiting.insert(key.clone());
            return None;
        };
        self.waiting.remove(key);
        self.allocated.insert(key.clone(), number);
        self.take(&(number..number + 1));
        self.next = number + 1;
        Some(number)
    }

    /// Like [`Allocations::allocate`], as text.
    pub(super) fn allocate_block(&mut self, key: &ObjectKey) -> Option<String> {
        let number = self.allocate(key)?;
        Some(self.range.block(number))
    }

    /// Frees the block of a node that does not exist.
    pub(super) fn free_block_of(&mut self, key: &ObjectKey) {
        self.waiting.remove(key);
        if let Some(number) = self.allocated.remove(key) {
            self.release(&(number..number + 1));
        }
    }

    fn free(&self) -> Option<u32> {
        let mut number = self.next;
        while number < self.range.blocks() {
            if let Some(wide) = self.wide.iter().find(|wide| wide.contains(&number)) {
                number = wide.end;
            } else if self.taken.contains_key(&number) {
                number += 1;
            } else {
                return Some(number);
            }
        }
        None
    }

    fn take(&mut self, blocks: &Blocks) {
        match blocks.len() {
            0 => (),
            1 => *self.taken.entry(blocks.start).or_default() += 1,
            _ => self.wide.push(blocks.clone()),
        }
    }

    fn release(&mut self, blocks: &Blocks) {
        if blocks.is_empty() {
            return;
        }
        if blocks.len() > 1 {
            if let Some(at) = self.wide.iter().position(|wide| wide == blocks) {
                self.wide.swap_remove(at);
            }
        } else if let Some(count) = self.taken.get_mut(&blocks.start) {
            *count -= 1;
            if *count == 0 {
                self.taken.remove(&blocks.start);
            }
        }
        self.next = self.next.min(blocks.start);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn node(name: &str, cidrs: &[&str]) -> Node {
        let metadata = json!({ "name": name, "uid": name });
        typed::from_value(json!({ "metadata": metadata, "spec": { "podCIDRs": cidrs } })).unwrap()
    }

    fn key(name: &str) -> ObjectKey {
        ObjectKey::new("", name)
    }

    fn allocations() -> Allocations {
        Allocations::new(Range::new("10.244.0.0/22", 24).unwrap())
    }

    #[test]
    fn c_184_waiting_nodes_are_reconciled_when_a_block_becomes_free() {
        let mut allocations = allocations();
        for (nth, name) in ["a", "b", "c", "d"].into_iter().enumerate() {
            assert_eq!(allocations.update(None, Some(&node(name, &[]))), [key(name)]);
            assert_eq!(allocations.allocate(&key(name)), Some(nth as u32));
            assert_eq!(
                allocations.allocate(&key(name)),
                Some(nth as u32),
                "a second call returns the same block"
            );
        }
        assert_eq!(allocations.allocate(&key("e")), None);
        assert_eq!(allocations.allocate(&key("f")), None);
        let has = node("b", &["10.244.1.0/24"]);
        assert_eq!(allocations.update(Some(&node("b", &[])), Some(&has)), [key("b")]);
        assert_eq!(allocations.update(Some(&has), Some(&has)), [], "heartbeats queue no node");
        assert_eq!(allocations.allocate(&key("e")), None, "blocks of nodes are not free");
        assert_eq!(
            allocations.update(Some(&has), None),
            [key("b"), key("e")],
            "one free block, one waiting node"
        );
        assert_eq!(allocations.allocate(&key("e")), Some(1));
    }

    /// The range of another family that a node has is not the first block of this family.
    #[test]
    fn deleting_a_dual_stack_node_frees_only_its_own_block() {
        let mut allocations = allocations();
        let a = node("a", &["10.244.0.0/24", "fd00::/64"]);
        let b = node("b", &["10.244.1.0/24", "fd00:0:0:1::/64"]);
        allocations.update(None, Some(&a));
        allocations.update(None, Some(&b));
        allocations.update(Some(&b), None);
        assert_eq!(allocations.allocate(&key("c")), Some(1));
    }

    #[test]
    fn block_of_a_node_deleted_before_it_was_cached_becomes_free() {
        let mut allocations = allocations();
        assert_eq!(allocations.allocate(&key("a")), Some(0));
        allocations.free_block_of(&key("a"));
        assert_eq!(allocations.allocate(&key("b")), Some(0));
    }

    #[test]
    fn c_184_cidrs_of_nodes_are_not_allocated_again_whatever_their_size() {
        let mut allocations = allocations();
        let large = node("large", &["10.244.0.0/23"]);
        allocations.update(None, Some(&large));
        assert_eq!(allocations.allocate(&key("a")), Some(2));
        let all = node("all", &["0.0.0.0/0"]);
        allocations.update(None, Some(&all));
        assert_eq!(allocations.allocate(&key("b")), None);
        allocations.update(Some(&all), None);
        assert_eq!(allocations.allocate(&key("b")), Some(3));
        assert_eq!(allocations.update(Some(&large), None).len(), 1);
        assert_eq!(allocations.allocate(&key("c")), Some(0));
    }

    /// After any sequence of changes, the first free block is allocated.
    #[test]
    fn allocations_agree_with_a_search_over_all_nodes() {
        let range = allocations().range;
        for seed in 0..200_u64 {
            let mut allocations = allocations();
            // The block of each node, and whether the cache shows it.
            let mut nodes: BTreeMap<String, (u32, bool)> = BTreeMap::new();
            let mut chance = seed;
            for _ in 0..60 {
                chance = chance.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let name = format!("n{}", (chance >> 33) % 6);
                let with = |block: u32| node(&name, &[range.block(block).as_str()]);
                match (nodes.get(&name).copied(), (chance >> 40) % 2) {
                    (None, _) => {
                        allocations.update(None, Some(&node(&name, &[])));
                        let first = (0..4).find(|n| nodes.values().all(|(has, _)| has != n));
                        assert_eq!(allocations.allocate(&key(&name)), first, "{seed}: {nodes:?}");
                        if let Some(first) = first {
                            nodes.insert(name, (first, false));
                        }
                    }
                    (Some((block, false)), 0) => {
                        allocations.update(Some(&node(&name, &[])), Some(&with(block)));
                        nodes.insert(name, (block, true));
                    }
                    (Some((block, seen)), _) => {
                        let was = if seen { with(block) } else { node(&name, &[]) };
                        allocations.update(Some(&was), None);
                        nodes.remove(&name);
                    }
                }
            }
        }
    }
}
