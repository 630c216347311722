//! Who has which piece. Kept as nodes come, change and go, so that to give one costs the same however
//! many have one. Pure.

use super::{Range, cidrs};
use client::ObjectKey;
use k8s_openapi::api::core::v1::Node;
use std::collections::{BTreeMap, BTreeSet};

type Pieces = std::ops::Range<u32>;

pub(super) struct Ledger {
    range: Range,
    /// What was given, and has not been seen in a node yet.
    given: BTreeMap<ObjectKey, u32>,
    /// What nodes have, as seen.
    held: BTreeMap<ObjectKey, Vec<Pieces>>,
    /// How many have a piece, if anybody has.
    taken: BTreeMap<u32, usize>,
    /// Somebody gave these to a node by hand: more than a piece, perhaps all there are.
    wide: Vec<Pieces>,
    /// All before this one are taken.
    next: u32,
    /// Nodes for which there was nothing left.
    hungry: BTreeSet<ObjectKey>,
}

impl Ledger {
    pub(super) fn new(range: Range) -> Ledger {
        Ledger {
            range,
            given: BTreeMap::new(),
            held: BTreeMap::new(),
            taken: BTreeMap::new(),
            wide: Vec::new(),
            next: 0,
            hungry: BTreeSet::new(),
        }
    }

    /// A node came, changed or went. Returns which must be looked at: itself, and as many hungry ones as
    /// there are pieces free now.
    pub(super) fn see(&mut self, before: Option<&Node>, after: Option<&Node>) -> Vec<ObjectKey> {
        let said = |node: &Node| -> (_, BTreeSet<String>) {
            (node.metadata.uid.clone(), cidrs(node).map(str::to_owned).collect())
        };
        let (was, is) = (before.map(said), after.map(said));
        let Some(key) = after.or(before).map(ObjectKey::of).filter(|_| was != is) else {
            return Vec::new();
        };
        let has = is.into_iter().flat_map(|(_, cidrs)| cidrs);
        let has: Vec<Pieces> = has.map(|cidr| self.range.touched(&cidr)).collect();
        let had = self.held.remove(&key).unwrap_or_default();
        // Before anything comes back, so that what stays is never free.
        has.iter().for_each(|pieces| self.take(pieces));
        let mut unseen = 0;
        if after.is_none_or(|node| cidrs(node).next().is_some()) {
            unseen = usize::from(self.given.contains_key(&key) && after.is_none());
            self.take_back(&key);
        }
        had.iter().for_each(|pieces| self.release(pieces));
        if !has.is_empty() {
            self.held.insert(key.clone(), has);
        }
        let freed: usize = had.iter().map(ExactSizeIterator::len).sum();
        std::iter::once(key).chain(self.hungry.iter().take(freed + unseen).cloned()).collect()
    }

    /// What this node was given before, or else the first piece that no node has.
    pub(super) fn give(&mut self, key: &ObjectKey) -> Option<u32> {
        if let Some(number) = self.given.get(key) {
            return Some(*number);
        }
        let Some(number) = self.free() else {
            self.hungry.insert(key.clone());
            return None;
        };
        self.hungry.remove(key);
        self.given.insert(key.clone(), number);
        self.take(&(number..number + 1));
        self.next = number + 1;
        Some(number)
    }

    /// The node is not there: nobody has what it was given.
    pub(super) fn take_back(&mut self, key: &ObjectKey) {
        self.hungry.remove(key);
        if let Some(number) = self.given.remove(key) {
            self.release(&(number..number + 1));
        }
    }

    fn free(&self) -> Option<u32> {
        let mut number = self.next;
        while number < self.range.pieces() {
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

    fn take(&mut self, pieces: &Pieces) {
        match pieces.len() {
            0 => (),
            1 => *self.taken.entry(pieces.start).or_default() += 1,
            _ => self.wide.push(pieces.clone()),
        }
    }

    fn release(&mut self, pieces: &Pieces) {
        if pieces.len() > 1 {
            if let Some(at) = self.wide.iter().position(|wide| wide == pieces) {
                self.wide.swap_remove(at);
            }
        } else if let Some(count) = self.taken.get_mut(&pieces.start) {
            *count -= 1;
            if *count == 0 {
                self.taken.remove(&pieces.start);
            }
        }
        if !pieces.is_empty() {
            self.next = self.next.min(pieces.start);
        }
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

    fn ledger() -> Ledger {
        Ledger::new(Range::new("10.244.0.0/22", 24).unwrap())
    }

    #[test]
    fn c_184_who_got_nothing_is_looked_at_when_something_comes_back() {
        let mut ledger = ledger();
        for (nth, name) in ["a", "b", "c", "d"].into_iter().enumerate() {
            assert_eq!(ledger.see(None, Some(&node(name, &[]))), [key(name)]);
            assert_eq!(ledger.give(&key(name)), Some(nth as u32));
            assert_eq!(ledger.give(&key(name)), Some(nth as u32), "asked twice, given once");
        }
        assert_eq!(ledger.give(&key("e")), None);
        assert_eq!(ledger.give(&key("f")), None);
        let has = node("b", &["10.244.1.0/24"]);
        assert_eq!(ledger.see(Some(&node("b", &[])), Some(&has)), [key("b")]);
        assert_eq!(ledger.see(Some(&has), Some(&has)), [], "a heartbeat is nobody's business");
        assert_eq!(ledger.give(&key("e")), None, "what is seen is not free");
        assert_eq!(ledger.see(Some(&has), None), [key("b"), key("e")], "one piece, one node");
        assert_eq!(ledger.give(&key("e")), Some(1));
    }

    #[test]
    fn what_was_given_to_a_node_that_went_before_it_was_seen_comes_back() {
        let mut ledger = ledger();
        assert_eq!(ledger.give(&key("a")), Some(0));
        ledger.take_back(&key("a"));
        assert_eq!(ledger.give(&key("b")), Some(0));
    }

    #[test]
    fn c_184_what_a_node_has_is_not_given_again_whatever_its_size() {
        let mut ledger = ledger();
        let large = node("large", &["10.244.0.0/23"]);
        ledger.see(None, Some(&large));
        assert_eq!(ledger.give(&key("a")), Some(2));
        let all = node("all", &["0.0.0.0/0"]);
        ledger.see(None, Some(&all));
        assert_eq!(ledger.give(&key("b")), None);
        ledger.see(Some(&all), None);
        assert_eq!(ledger.give(&key("b")), Some(3));
        assert_eq!(ledger.see(Some(&large), None).len(), 1);
        assert_eq!(ledger.give(&key("c")), Some(0));
    }

    /// However nodes come and go, what is given is the first that nobody has.
    #[test]
    fn what_is_given_is_what_a_look_at_all_nodes_would_find() {
        let range = ledger().range;
        for seed in 0..200_u64 {
            let mut ledger = ledger();
            // What each node has, and whether that has been seen.
            let mut nodes: BTreeMap<String, (u32, bool)> = BTreeMap::new();
            let mut chance = seed;
            for _ in 0..60 {
                chance = chance.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let name = format!("n{}", (chance >> 33) % 6);
                let with = |piece: u32| node(&name, &[range.piece(piece).as_str()]);
                match (nodes.get(&name).copied(), (chance >> 40) % 2) {
                    (None, _) => {
                        ledger.see(None, Some(&node(&name, &[])));
                        let first = (0..4).find(|n| nodes.values().all(|(has, _)| has != n));
                        assert_eq!(ledger.give(&key(&name)), first, "{seed}: {nodes:?}");
                        if let Some(first) = first {
                            nodes.insert(name, (first, false));
                        }
                    }
                    (Some((piece, false)), 0) => {
                        ledger.see(Some(&node(&name, &[])), Some(&with(piece)));
                        nodes.insert(name, (piece, true));
                    }
                    (Some((piece, seen)), _) => {
                        let was = if seen { with(piece) } else { node(&name, &[]) };
                        ledger.see(Some(&was), None);
                        nodes.remove(&name);
                    }
                }
            }
        }
    }
}
