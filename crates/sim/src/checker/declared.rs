//! What Services and EndpointSlices declare, read from lines of the watch: which endpoints a node has to use at each
//! address of a Service.
//!
//! It decides on its own, from the rules (T-NET-14 to T-NET-16), and shares no code with the proxy.

use crate::event_log::Name;
use network::{Frontend, Protocol, ServiceRules};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};

const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// The endpoints that new connections get, by the address to which clients connect.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Endpoints(BTreeMap<Frontend, Targets>);

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Targets {
    endpoints: BTreeSet<SocketAddr>,
    /// With `externalTrafficPolicy: Local`, those for clients outside the cluster.
    outside: Option<BTreeSet<SocketAddr>>,
}

/// A node, as far as rules depend on it.
#[derive(Debug, Clone)]
pub(super) struct NodeAddress {
    pub(super) name: Name,
    pub(super) addresses: Vec<IpAddr>,
}

pub(super) enum Change {
    Service(Name, Option<Service>),
    /// `namespace/name` of the slice, and the slice with `namespace/name` of its Service.
    Slice(Name, Option<(Name, Slice)>),
    /// Whether it is ready.
    Node(Name, bool),
}

#[derive(Deserialize)]
struct Line {
    #[serde(rename = "type")]
    kind: String,
    object: Object,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Object {
    kind: String,
    metadata: Metadata,
    spec: Service,
    status: Status,
    #[serde(flatten)]
    slice: Slice,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Status {
    conditions: Vec<NodeCondition>,
}

#[derive(Deserialize)]
struct NodeCondition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Metadata {
    namespace: String,
    name: String,
    labels: BTreeMap<String, String>,
}

#[derive(Deserialize, Clone, Default)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Service {
    #[serde(rename = "clusterIP")]
    cluster_ip: String,
    internal_traffic_policy: String,
    external_traffic_policy: String,
    ports: Vec<Port>,
}

#[derive(Deserialize, Clone, Default)]
#[serde(default, rename_all = "camelCase")]
struct Port {
    name: String,
    protocol: String,
    port: u16,
    node_port: u16,
}

#[derive(Deserialize, Clone, Default)]
#[serde(default)]
pub(super) struct Slice {
    endpoints: Option<Vec<Endpoint>>,
    ports: Option<Vec<Port>>,
}

#[derive(Deserialize, Clone, Default)]
#[serde(default, rename_all = "camelCase")]
struct Endpoint {
    addresses: Vec<String>,
    conditions: Conditions,
    node_name: String,
}

#[derive(Deserialize, Clone, Copy, Default)]
#[serde(default)]
struct Conditions {
    ready: Option<bool>,
    serving: Option<bool>,
    terminating: Option<bool>,
}

impl Change {
    /// None: a bookmark or an error.
    pub(super) fn read(line: &[u8]) -> Option<Change> {
        let line: Line = serde_json::from_slice(line).ok()?;
        let object = line.object;
        let exists = match line.kind.as_str() {
            "ADDED" | "MODIFIED" => true,
            "DELETED" => false,
            _ => return None,
        };
        let namespace = &object.metadata.namespace;
        let name: Name = format!("{namespace}/{}", object.metadata.name).into();
        match object.kind.as_str() {
            "Service" => Some(Change::Service(name, exists.then_some(object.spec))),
            "EndpointSlice" => {
                let service = object.metadata.labels.get(SERVICE_NAME);
                let service = service.map(|service| Name::from(format!("{namespace}/{service}")));
                let slice = service.filter(|_| exists).map(|service| (service, object.slice));
                Some(Change::Slice(name, slice))
            }
            "Node" => {
                let is_ready = |it: &NodeCondition| it.kind == "Ready" && it.status == "True";
                let ready = exists && object.status.conditions.iter().any(is_ready);
                Some(Change::Node(object.metadata.name.into(), ready))
            }
            _ => None,
        }
    }
}

impl Endpoints {
    /// What this node has to do for a Service.
    pub(super) fn declared(service: &Service, slices: &[&Slice], node: &NodeAddress) -> Endpoints {
        let mut all = BTreeMap::new();
        let Ok(cluster_ip) = service.cluster_ip.parse::<IpAddr>() else {
            return Endpoints::default();
        };
        for port in &service.ports {
            let Some(protocol) = protocol(&port.protocol) else { continue };
            let listed: Vec<(SocketAddr, &Endpoint)> =
                slices.iter().flat_map(|slice| slice.of_port(port)).collect();
            let own = |(_, endpoint): &&(SocketAddr, &Endpoint)| *endpoint.node_name == *node.name;
            let local: Vec<_> = listed.iter().filter(own).copied().collect();
            let (anywhere, here) = (usable(&listed), usable(&local));
            let inside = if service.internal_traffic_policy == "Local" { &here } else { &anywhere };
            let targets = Targets { endpoints: inside.clone(), outside: None };
            all.insert(Frontend { address: cluster_ip, protocol, port: port.port }, targets);
            if port.node_port == 0 {
                continue;
            }
            let outside = (service.external_traffic_policy == "Local").then(|| here.clone());
            for address in node.addresses.iter().filter(|ip| ip.is_ipv4() == cluster_ip.is_ipv4()) {
                let targets = Targets { endpoints: anywhere.clone(), outside: outside.clone() };
                let frontend = Frontend { address: *address, protocol, port: port.node_port };
                all.insert(frontend, targets);
            }
        }
        Endpoints(all)
    }

    /// Whether new connections may get to this address.
    pub(super) fn use_address(&self, address: IpAddr) -> bool {
        let all = |targets: &Targets| -> Vec<SocketAddr> {
            targets.endpoints.iter().chain(targets.outside.iter().flatten()).copied().collect()
        };
        self.0.values().flat_map(all).any(|endpoint| endpoint.ip() == address)
    }

    pub(super) fn in_rules(rules: &ServiceRules) -> Endpoints {
        let targets = |entry: &network::ServiceEntry| Targets {
            endpoints: entry.endpoints.iter().copied().collect(),
            outside: entry.outside.as_ref().map(|outside| outside.iter().copied().collect()),
        };
        let entries = rules.entries.iter();
        Endpoints(entries.map(|(frontend, entry)| (*frontend, targets(entry))).collect())
    }
}

impl Slice {
    /// Whether the slice says that the endpoint with this address does not terminate.
    pub(super) fn lists_as_living(&self, address: IpAddr) -> bool {
        let text = address.to_string();
        self.endpoints.iter().flatten().any(|endpoint| {
            endpoint.addresses.contains(&text) && endpoint.conditions.terminating != Some(true)
        })
    }

    fn of_port(&self, port: &Port) -> Vec<(SocketAddr, &Endpoint)> {
        let same = |other: &&Port| {
            other.name == port.name && protocol(&other.protocol) == protocol(&port.protocol)
        };
        let Some(number) = self.ports.iter().flatten().find(same).map(|port| port.port) else {
            return Vec::new();
        };
        let address = |endpoint: &Endpoint| endpoint.addresses.first()?.parse::<IpAddr>().ok();
        let all = self.endpoints.iter().flatten();
        all.filter_map(|endpoint| Some((SocketAddr::new(address(endpoint)?, number), endpoint)))
            .collect()
    }
}

/// Ready endpoints; if there is none, those that still serve while they terminate.
fn usable(listed: &[(SocketAddr, &Endpoint)]) -> BTreeSet<SocketAddr> {
    let select = |wanted: fn(&Conditions) -> bool| -> BTreeSet<SocketAddr> {
        let wanted = listed.iter().filter(|(_, endpoint)| wanted(&endpoint.conditions));
        wanted.map(|(address, _)| *address).collect()
    };
    let ready = select(|conditions| conditions.ready != Some(false));
    if !ready.is_empty() {
        return ready;
    }
    select(|it| it.serving.or(it.ready) != Some(false) && it.terminating == Some(true))
}

fn protocol(name: &str) -> Option<Protocol> {
    match name {
        "" | "TCP" => Some(Protocol::Tcp),
        "UDP" => Some(Protocol::Udp),
        "SCTP" => Some(Protocol::Sctp),
        _ => None,
    }
}

impl fmt::Display for Endpoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("nothing");
        }
        for (number, (to, targets)) in self.0.iter().enumerate() {
            let comma = if number == 0 { "" } else { "; " };
            write!(f, "{comma}{}:{}/{:?} to ", to.address, to.port, to.protocol)?;
            f.debug_set().entries(&targets.endpoints).finish()?;
            if let Some(outside) = &targets.outside {
                f.write_str(" and from outside to ")?;
                f.debug_set().entries(outside).finish()?;
            }
        }
        Ok(())
    }
}

/// Rules in short, for the trace.
pub(crate) fn rules_in_short(rules: &ServiceRules) -> String {
    Endpoints::in_rules(rules).to_string()
}

/// A line of the watch in short, for the trace.
pub(crate) fn change_in_short(line: &[u8]) -> String {
    match Change::read(line) {
        None => "API: neither a Service nor a slice nor a node".to_owned(),
        Some(Change::Node(name, ready)) => format!("API: node {name} is ready: {ready}"),
        Some(Change::Service(name, None)) => format!("API: Service {name} is removed"),
        Some(Change::Service(name, Some(service))) => {
            format!("API: Service {name} at {}", service.cluster_ip)
        }
        Some(Change::Slice(name, None)) => format!("API: slice {name} is removed"),
        Some(Change::Slice(name, Some((_, slice)))) => {
            let all: Vec<String> =
                slice.endpoints.iter().flatten().map(Endpoint::in_short).collect();
            format!("API: slice {name}: {}", all.join(", "))
        }
    }
}

impl Endpoint {
    fn in_short(&self) -> String {
        let is = |condition: Option<bool>, word| condition.filter(|it| *it).map_or("", |_| word);
        let Conditions { ready, serving, terminating } = self.conditions;
        let serving = serving.filter(|_| ready != Some(true));
        let state = [is(ready, " ready"), is(serving, " serving"), is(terminating, " terminating")];
        format!("{}{}", self.addresses.join("+"), state.concat())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const NODE: &str = "n1";

    fn endpoint(address: &str, conditions: &Value, node: &str) -> Value {
        json!({ "addresses": [address], "conditions": conditions, "nodeName": node })
    }

    fn declared(service: Value, endpoints: &[Value]) -> String {
        let service: Service = serde_json::from_value(service).unwrap();
        let slice = json!({ "endpoints": endpoints, "ports": [{ "name": "", "port": 8080 }] });
        let slice: Slice = serde_json::from_value(slice).unwrap();
        let addresses = vec!["192.0.2.1".parse().unwrap()];
        let node = NodeAddress { name: NODE.into(), addresses };
        Endpoints::declared(&service, &[&slice], &node).to_string()
    }

    /// T-NET-14, T-NET-15, T-NET-16: ready endpoints, or else those that serve while they terminate; with a Local policy
    /// the same among those of this node.
    #[test]
    fn ready_endpoints_are_declared_or_else_serving_ones_that_terminate() {
        let ready = json!({ "ready": true, "serving": true, "terminating": false });
        let serving = json!({ "ready": false, "serving": true, "terminating": true });
        let dying = json!({ "ready": false, "serving": false, "terminating": true });
        let starting = json!({ "ready": false, "serving": false, "terminating": false });
        let plain = json!({ "clusterIP": "10.96.0.1", "ports": [{ "port": 80 }] });
        let at = |conditions, node| endpoint("10.1.0.1", conditions, node);
        let other = |conditions, node| endpoint("10.2.0.2", conditions, node);
        for (endpoints, wanted) in [
            (vec![at(&ready, NODE), other(&starting, "n2")], "{10.1.0.1:8080}"),
            (vec![at(&serving, NODE), other(&ready, "n2")], "{10.2.0.2:8080}"),
            (vec![at(&serving, NODE), other(&starting, "n2")], "{10.1.0.1:8080}"),
            (vec![at(&dying, NODE), other(&starting, "n2")], "{}"),
        ] {
            let all = declared(plain.clone(), &endpoints);
            assert_eq!(all, format!("10.96.0.1:80/Tcp to {wanted}"));
        }
        let local = json!({ "clusterIP": "10.96.0.1", "ports": [{ "port": 80, "nodePort": 30000 }],
            "internalTrafficPolicy": "Local", "externalTrafficPolicy": "Local" });
        assert_eq!(
            declared(local, &[at(&serving, NODE), other(&ready, "n2")]),
            "10.96.0.1:80/Tcp to {10.1.0.1:8080}; 192.0.2.1:30000/Tcp to {10.2.0.2:8080} \
             and from outside to {10.1.0.1:8080}",
        );
        let headless = json!({ "clusterIP": "None", "ports": [{ "port": 80 }] });
        assert_eq!(declared(headless, &[at(&ready, NODE)]), "nothing");
    }
}
