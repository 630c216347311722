//! Checks pod ranges: a wrong one must not take packets that are meant for somebody else.

use super::peer::Peer;
use network::Cidr;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

pub(super) struct Ranges {
    /// No two of them overlap.
    accepted: BTreeSet<Cidr>,
    /// Addresses of all nodes.
    addresses: BTreeSet<IpAddr>,
}

impl Ranges {
    /// `own` are the ranges of this node, and `addresses` its addresses.
    pub(super) fn new(
        own: &[Cidr],
        addresses: &[IpAddr],
        peers: &BTreeMap<String, Peer>,
    ) -> Ranges {
        let others = peers.values().flat_map(|peer| &peer.addresses);
        let addresses = addresses.iter().chain(others).copied().collect();
        Ranges { accepted: own.iter().copied().collect(), addresses }
    }

    /// Returns the ranges that can be used, and describes the others in `problems`.
    pub(super) fn accept(&mut self, peer: &Peer, problems: &mut Vec<String>) -> Vec<Cidr> {
        let mut good = Vec::new();
        for range in &peer.ranges {
            match self.check(range) {
                Ok(()) => {
                    self.accepted.insert(*range);
                    good.push(*range);
                }
                Err(why) => problems
                    .push(format!("pods of node {} ({range}) are unreachable: {why}", peer.name)),
            }
        }
        good
    }

    fn check(&self, range: &Cidr) -> Result<(), String> {
        if range.base().is_multicast() || range.base().is_loopback() {
            return Err("the range is not for pods".into());
        }
        let address = self.addresses.range(range.base()..).next();
        if let Some(address) = address.filter(|address| range.contains(**address)) {
            return Err(format!("the range contains the address of a node, {address}"));
        }
        // Accepted ranges are disjoint, so only the closest ones can overlap.
        let (before, after) =
            (self.accepted.range(..=range).next_back(), self.accepted.range(range..).next());
        let overlapping = [before, after].into_iter().flatten().find(|other| other.overlaps(range));
        match overlapping {
            Some(other) => Err(format!("the range overlaps {other} of an earlier node")),
            None => Ok(()),
        }
    }
}
