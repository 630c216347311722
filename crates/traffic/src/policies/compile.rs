//! What a NetworkPolicy allows, as sets and ranges. Pure.

use super::ranges::{AddressRanges, merged_ports};
use super::selector::{PodPeers, Scope, Selector};
use k8s_openapi::api::networking::v1::{
    NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort, NetworkPolicySpec,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use network::policies::Direction;
use network::{Cidr, Protocol};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Identifies a set by what it contains, so that all rules with the same selector share it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SetKey {
    /// Addresses of pods.
    Pods(PodPeers),
    /// Addresses of all pods that have a port of this name, with its number (NET-129).
    NamedPort(Protocol, String),
    AddressRanges(Vec<(IpAddr, IpAddr)>),
    PortRanges(Vec<(u16, u16)>),
}

/// The peers or ports of a rule; `None` is no restriction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AllowRule {
    pub(super) peers: Option<Vec<SetKey>>,
    pub(super) ports: Option<Vec<AllowedPorts>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum AllowedPorts {
    All(Protocol),
    Range(Protocol, u16, u16),
    In(Protocol, SetKey),
    Named(Protocol, SetKey),
}

/// A policy: which pods it isolates in which direction, and what it allows there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CompiledPolicy {
    pub(super) pods: Selector,
    /// `None` if the policy does not apply to the direction.
    pub(super) ingress: Option<Vec<AllowRule>>,
    pub(super) egress: Option<Vec<AllowRule>>,
}

impl CompiledPolicy {
    pub(super) fn rules(&self, direction: Direction) -> Option<&[AllowRule]> {
        match direction {
            Direction::Ingress => self.ingress.as_deref(),
            Direction::Egress => self.egress.as_deref(),
        }
    }
}

pub(super) fn compile(policy: &NetworkPolicy) -> CompiledPolicy {
    let empty = NetworkPolicySpec::default();
    let spec = policy.spec.as_ref().unwrap_or(&empty);
    let namespace = policy.metadata.namespace.as_deref().unwrap_or_default();
    let ingress = spec.ingress.iter().flatten();
    let ingress = ingress.map(|rule| allow_rule(namespace, &rule.from, &rule.ports));
    let egress = spec.egress.iter().flatten();
    let egress = egress.map(|rule| allow_rule(namespace, &rule.to, &rule.ports));
    CompiledPolicy {
        pods: Selector::new(spec.pod_selector.as_ref()),
        ingress: applies(spec, Direction::Ingress).then(|| ingress.collect()),
        egress: applies(spec, Direction::Egress).then(|| egress.collect()),
    }
}

/// Without types, a policy is for ingress, and for egress if it has egress rules (NET-122).
fn applies(spec: &NetworkPolicySpec, direction: Direction) -> bool {
    let types = spec.policy_types.as_deref().unwrap_or_default();
    match direction {
        Direction::Ingress => types.is_empty() || types.iter().any(|kind| kind == "Ingress"),
        Direction::Egress if types.is_empty() => spec.egress.iter().flatten().next().is_some(),
        Direction::Egress => types.iter().any(|kind| kind == "Egress"),
    }
}

/// An empty or missing list is no restriction (NET-127).
fn allow_rule(
    namespace: &str,
    peers: &Option<Vec<NetworkPolicyPeer>>,
    ports: &Option<Vec<NetworkPolicyPort>>,
) -> AllowRule {
    let peers = peers.as_deref().filter(|peers| !peers.is_empty());
    let ports = ports.as_deref().filter(|ports| !ports.is_empty());
    AllowRule {
        peers: peers.map(|peers| compile_peers(namespace, peers)),
        ports: ports.map(compile_ports),
    }
}

fn compile_peers(namespace: &str, peers: &[NetworkPolicyPeer]) -> Vec<SetKey> {
    let mut pods = BTreeSet::new();
    let mut ranges = AddressRanges::default();
    for peer in peers {
        if let Some(block) = &peer.ip_block {
            let except = block.except.iter().flatten().filter_map(|text| text.parse().ok());
            if let Ok(range) = block.cidr.parse::<Cidr>() {
                ranges.add(&range, &except.collect::<Vec<Cidr>>());
            }
            continue;
        }
        let scope = match &peer.namespace_selector {
            Some(selector) => Scope::Matching(Selector::new(Some(selector))),
            None if peer.pod_selector.is_none() => continue, // A peer without any field is nobody.
            None => Scope::One(namespace.to_owned()),
        };
        pods.insert(SetKey::Pods(PodPeers {
            scope,
            pods: Selector::new(peer.pod_selector.as_ref()),
        }));
    }
    let ranges = Some(ranges.into_list()).filter(|ranges| !ranges.is_empty());
    pods.into_iter().chain(ranges.map(SetKey::AddressRanges)).collect()
}

fn compile_ports(ports: &[NetworkPolicyPort]) -> Vec<AllowedPorts> {
    let mut whole = BTreeSet::new();
    let mut numbers: BTreeMap<Protocol, Vec<(u16, u16)>> = BTreeMap::new();
    let mut names = BTreeSet::new();
    for port in ports {
        let Some(protocol) = protocol(port.protocol.as_deref()) else { continue };
        match &port.port {
            None => drop(whole.insert(protocol)),
            Some(IntOrString::String(name)) => drop(names.insert((protocol, name.clone()))),
            Some(IntOrString::Int(first)) => {
                let last = port.end_port.unwrap_or(*first);
                if let (Ok(first), Ok(last)) = (u16::try_from(*first), u16::try_from(last)) {
                    numbers.entry(protocol).or_default().push((first, last));
                }
            }
        }
    }
    numbers.retain(|protocol, _| !whole.contains(protocol));
    let mut result: Vec<AllowedPorts> = whole.into_iter().map(AllowedPorts::All).collect();
    for (protocol, ranges) in numbers {
        let ranges = merged_ports(ranges);
        match ranges.as_slice() {
            [] => {}
            [(first, last)] => result.push(AllowedPorts::Range(protocol, *first, *last)),
            _ => result.push(AllowedPorts::In(protocol, SetKey::PortRanges(ranges))),
        }
    }
    result.extend(
        names.into_iter().map(|(protocol, name)| {
            AllowedPorts::Named(protocol, SetKey::NamedPort(protocol, name))
        }),
    );
    result
}

/// The API's name of a protocol; TCP if missing. `None` if there is no such protocol.
pub(super) fn protocol(name: Option<&str>) -> Option<Protocol> {
    match name.unwrap_or("TCP") {
        "TCP" => Some(Protocol::Tcp),
        "UDP" => Some(Protocol::Udp),
        "SCTP" => Some(Protocol::Sctp),
        _ => None,
    }
}
