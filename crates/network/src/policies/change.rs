//! What changes in the policy tables, in terms of policies instead of packets.
//!
//! Everything is valid for both IP families; `write` distributes it over the tables.

use crate::{Cidr, Protocol};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Seen from the pod that a policy isolates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    Ingress,
    Egress,
}

impl Direction {
    pub const BOTH: [Direction; 2] = [Direction::Ingress, Direction::Egress];

    pub fn name(self) -> &'static str {
        match self {
            Direction::Ingress => "ingress",
            Direction::Egress => "egress",
        }
    }
}

/// What the members of a set are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetKind {
    Addresses,
    /// An address and one of its ports.
    NamedPorts,
    AddressRanges,
    PortRanges,
}

/// Ranges include their last value. Ranges of one set neither overlap nor touch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Member {
    Address(IpAddr),
    NamedPort(IpAddr, u16),
    AddressRange(IpAddr, IpAddr),
    PortRange(u16, u16),
}

/// Which packets a rule matches by the other end of the connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Peers {
    Any,
    /// Name of a set of addresses or of address ranges.
    In(String),
}

/// Which packets a rule matches by protocol and destination port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ports {
    Any,
    /// All ports of the protocol.
    All(Protocol),
    /// From the first to the last port.
    Range(Protocol, u16, u16),
    /// Name of a set of port ranges.
    In(Protocol, String),
    /// Name of a set of destination addresses with ports.
    Named(Protocol, String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    Accept,
    /// Name of another policy chain.
    Jump(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyRule {
    pub peers: Peers,
    pub ports: Ports,
    pub target: Target,
}

/// Whether the tables have an object before and after a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    New,
    Kept,
    Deleted,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetChange {
    pub kind: SetKind,
    pub life: Life,
    /// Not in the set yet.
    pub added: BTreeSet<Member>,
    /// In the set now. Only for [`SetKind::Addresses`] and [`SetKind::NamedPorts`].
    pub removed: BTreeSet<Member>,
}

/// A chain with the rules of a policy, or with a part of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainChange {
    pub life: Life,
    pub direction: Direction,
    /// The policy, for people who list the rules.
    pub comment: String,
    /// All rules of the chain after the change.
    pub rules: Vec<PolicyRule>,
}

/// A local pod that is isolated in one direction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodChange {
    pub life: Life,
    /// Chains of the policies that select the pod, after the change. What none of them accepts is dropped.
    pub policies: Vec<String>,
}

/// Changes that are applied together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Change {
    /// By name.
    pub sets: BTreeMap<String, SetChange>,
    /// By name.
    pub chains: BTreeMap<String, ChainChange>,
    /// By direction and by the name of the pod's link.
    pub pods: BTreeMap<(Direction, String), PodChange>,
}

impl Change {
    pub fn is_empty(&self) -> bool {
        self.sets.is_empty() && self.chains.is_empty() && self.pods.is_empty()
    }
}

/// Finds the link of a local pod by its address.
#[derive(Debug, Clone)]
pub struct PodLinks {
    /// As in `PodsConfig`.
    pub link: String,
    /// As in `PodsConfig`.
    pub cidrs: Vec<Cidr>,
}

impl PodLinks {
    /// The name of the node's end of the link of the pod with this address.
    pub fn of(&self, address: IpAddr) -> Option<String> {
        let index = self.cidrs.iter().find_map(|range| range.offset(address))?;
        Some(link_name(&self.link, index))
    }
}

/// Name of the node's end of a pod's link.
pub(crate) fn link_name(link: &str, address_index: u64) -> String {
    format!("{link}p{address_index}")
}
