//! The endpoints of one Service port, as its EndpointSlices list them, and which of them get new connections.

use k8s_openapi::api::core::v1::ServicePort;
use k8s_openapi::api::discovery::v1::{Endpoint as SliceEndpoint, EndpointSlice};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// A slice with this label is not for the proxy (NET-24).
const HEADLESS: &str = "service.kubernetes.io/headless";

/// What matters of an endpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Endpoint {
    pub(super) ready: bool,
    pub(super) serving: bool,
    pub(super) terminating: bool,
    /// It is on this node.
    pub(super) local: bool,
    for_nodes: Vec<String>,
    for_zones: Vec<String>,
}

/// This node, as far as the choice of endpoints depends on it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeView {
    pub name: String,
    /// Label `topology.kubernetes.io/zone`.
    pub zone: Option<String>,
    /// The addresses at which node ports are served (NET-35).
    pub addresses: Vec<IpAddr>,
}

/// By address: an address in two slices is one endpoint.
pub(super) type Endpoints = BTreeMap<SocketAddr, Endpoint>;

/// The endpoints of `port` in one IP family, joined by port name and protocol (NET-21, NET-24).
pub(super) fn of_port(
    port: &ServicePort,
    slices: &[Arc<EndpointSlice>],
    ipv4: bool,
    node: &NodeView,
) -> Endpoints {
    let mut all = Endpoints::new();
    let family = if ipv4 { "IPv4" } else { "IPv6" };
    for slice in slices.iter().filter(|slice| slice.address_type == family && !is_headless(slice)) {
        let numbers = slice.ports.iter().flatten().filter(|candidate| {
            candidate.name.as_deref() == Some(port.name.as_deref().unwrap_or_default())
                && protocol(candidate.protocol.as_deref()) == protocol(port.protocol.as_deref())
        });
        let numbers = numbers.filter_map(|port| u16::try_from(port.port?).ok());
        for number in numbers.filter(|number| *number > 0) {
            for endpoint in slice.endpoints.iter().flatten() {
                add(&mut all, endpoint, number, node);
            }
        }
    }
    all
}

fn is_headless(slice: &EndpointSlice) -> bool {
    slice.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(HEADLESS))
}

fn protocol(name: Option<&str>) -> &str {
    name.unwrap_or("TCP")
}

/// Only the first address of an endpoint is used (NET-51). If two endpoints share an address and a port, the one that
/// is not terminating wins: the address was given to a new pod (T-NET-21).
fn add(all: &mut Endpoints, endpoint: &SliceEndpoint, port: u16, node: &NodeView) {
    let address = endpoint.addresses.first().and_then(|text| text.parse::<IpAddr>().ok());
    let Some(address) = address else { return };
    let conditions = endpoint.conditions.clone().unwrap_or_default();
    // Missing conditions mean ready, serving and not terminating (T-NET-13).
    let ready = conditions.ready.unwrap_or(true);
    let names = |hints: Option<Vec<String>>| hints.unwrap_or_default();
    let hints = endpoint.hints.clone().unwrap_or_default();
    let new = Endpoint {
        ready,
        serving: conditions.serving.unwrap_or(ready),
        terminating: conditions.terminating.unwrap_or(false),
        local: endpoint.node_name.as_deref() == Some(&node.name),
        for_nodes: names(hints.for_nodes.map(|all| all.into_iter().map(|one| one.name).collect())),
        for_zones: names(hints.for_zones.map(|all| all.into_iter().map(|one| one.name).collect())),
    };
    let known = all.entry(SocketAddr::new(address, port)).or_insert_with(|| new.clone());
    if known.terminating && !new.terminating {
        *known = new;
    }
}

/// Which endpoints get new connections.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Usable {
    /// From all nodes.
    pub(super) cluster: Vec<SocketAddr>,
    /// From this node.
    pub(super) local: Vec<SocketAddr>,
}

/// Ready endpoints, limited by hints; if there is none, those that still serve while they terminate (T-NET-14). The same
/// decision is made among the endpoints of this node, on its own (T-NET-15). Endpoints that are neither are never used
/// (T-NET-16).
pub(super) fn usable(endpoints: &Endpoints, node: &NodeView) -> Usable {
    let all: Vec<(&SocketAddr, &Endpoint)> = endpoints.iter().collect();
    let local: Vec<_> = all.iter().copied().filter(|(_, endpoint)| endpoint.local).collect();
    let mut cluster = ready_or_serving(&all);
    if let Some(preferred) = preferred(&all, node) {
        cluster.retain(|address| preferred.contains(address));
    }
    Usable { cluster, local: ready_or_serving(&local) }
}

fn ready_or_serving(endpoints: &[(&SocketAddr, &Endpoint)]) -> Vec<SocketAddr> {
    let select = |wanted: fn(&Endpoint) -> bool| -> Vec<SocketAddr> {
        let selected = endpoints.iter().filter(|(_, endpoint)| wanted(endpoint));
        selected.map(|(address, _)| **address).collect()
    };
    let ready = select(|endpoint| endpoint.ready);
    match ready.is_empty() {
        false => ready,
        true => select(|endpoint| endpoint.serving && endpoint.terminating),
    }
}

/// The ready endpoints that hints assign to this node, or else to its zone (NET-25). `None`: hints are not used, because
/// some ready endpoint has none, or none names us.
fn preferred(endpoints: &[(&SocketAddr, &Endpoint)], node: &NodeView) -> Option<Vec<SocketAddr>> {
    let ready: Vec<_> = endpoints.iter().filter(|(_, endpoint)| endpoint.ready).collect();
    let by = |hints: fn(&Endpoint) -> &Vec<String>, name: &str| -> Option<Vec<SocketAddr>> {
        if ready.iter().any(|(_, endpoint)| hints(endpoint).is_empty()) {
            return None;
        }
        let ours = ready.iter().filter(|(_, endpoint)| hints(endpoint).iter().any(|n| n == name));
        let ours: Vec<SocketAddr> = ours.map(|(address, _)| **address).collect();
        (!ours.is_empty()).then_some(ours)
    };
    let zone = || by(|endpoint| &endpoint.for_zones, node.zone.as_deref()?);
    by(|endpoint| &endpoint.for_nodes, &node.name).or_else(zone)
}
