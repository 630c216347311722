//! What the EndpointSlice looks like, and how it differs from what there is. Pure.

use crate::watched::SERVICE_NAME;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::discovery::v1::{
    Endpoint, EndpointConditions, EndpointHints, EndpointPort, EndpointSlice, ForNode, ForZone,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use network::Cidr;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

pub(super) const NAMESPACE: &str = "kube-system";
pub(super) const NAME: &str = "kube-dns";

/// Name and protocol of the ports of the Service.
const PORTS: [(&str, &str); 2] = [("dns", "UDP"), ("dns-tcp", "TCP")];

/// Says who writes the slices, so that the controllers leave them alone.
const MANAGED_BY: (&str, &str) = ("endpointslice.kubernetes.io/managed-by", "dns.landfall.dev");

const ZONE: &str = "topology.kubernetes.io/zone";

/// The cluster IP of the DNS Service: the tenth address of the range of Services, as kubeadm has it. `None` if the
/// range is too small.
pub fn dns_address(service_range: Cidr) -> Option<IpAddr> {
    service_range.nth(10)
}

/// The slice of a node's server.
pub(super) fn slice_name(node: &str) -> String {
    format!("{NAME}-{node}")
}

/// What to write.
#[derive(Debug, PartialEq)]
pub(super) enum Change<K> {
    Nothing,
    Create(Box<K>),
    Update(Box<K>),
    /// The object must be deleted first: its address type cannot be changed.
    Recreate,
}

impl<K: Clone + PartialEq> Change<K> {
    fn between(observed: Option<&K>, wanted: K) -> Change<K> {
        match observed {
            None => Change::Create(Box::new(wanted)),
            Some(observed) if *observed == wanted => Change::Nothing,
            Some(_) => Change::Update(Box::new(wanted)),
        }
    }
}

/// The fields of the Node object that the slice depends on: UID and zone.
pub(super) fn owner(node: Option<&Node>) -> Option<(Option<&str>, Option<&str>)> {
    let metadata = &node?.metadata;
    Some((metadata.uid.as_deref(), zone(metadata)))
}

fn zone(node: &ObjectMeta) -> Option<&str> {
    let zone = node.labels.as_ref()?.get(ZONE)?;
    Some(zone.as_str()).filter(|zone| !zone.is_empty())
}

/// The slice with the one endpoint of `node`.
pub(super) fn slice_change(
    node: &Node,
    server: SocketAddr,
    observed: Option<&EndpointSlice>,
) -> Change<EndpointSlice> {
    let name = node.metadata.name.as_deref().unwrap_or_default();
    let mut wanted = observed.cloned().unwrap_or_default();
    wanted.metadata.namespace = Some(NAMESPACE.into());
    wanted.metadata.name = Some(slice_name(name));
    set_labels(&mut wanted.metadata, &[(SERVICE_NAME, NAME), MANAGED_BY]);
    wanted.metadata.owner_references = Some(vec![OwnerReference {
        api_version: "v1".into(),
        kind: "Node".into(),
        name: name.into(),
        uid: node.metadata.uid.clone().unwrap_or_default(),
        ..OwnerReference::default()
    }]);
    let family = if server.is_ipv4() { "IPv4" } else { "IPv6" };
    if observed.is_some_and(|observed| observed.address_type != family) {
        return Change::Recreate;
    }
    wanted.address_type = family.into();
    wanted.endpoints = Some(vec![endpoint(name, zone(&node.metadata), server.ip())]);
    let port = i32::from(server.port());
    wanted.ports = Some(PORTS.map(|(name, protocol)| endpoint_port(name, protocol, port)).into());
    Change::between(observed, wanted)
}

fn endpoint(node: &str, zone: Option<&str>, address: IpAddr) -> Endpoint {
    let for_zones = zone.map(|zone| vec![ForZone { name: zone.into() }]);
    Endpoint {
        addresses: vec![address.to_string()],
        conditions: Some(EndpointConditions {
            ready: Some(true),
            serving: Some(true),
            terminating: Some(false),
        }),
        hints: Some(EndpointHints {
            for_nodes: Some(vec![ForNode { name: node.into() }]),
            for_zones,
        }),
        node_name: Some(node.into()),
        zone: zone.map(str::to_owned),
        ..Endpoint::default()
    }
}

fn endpoint_port(name: &str, protocol: &str, port: i32) -> EndpointPort {
    EndpointPort {
        name: Some(name.into()),
        protocol: Some(protocol.into()),
        port: Some(port),
        ..EndpointPort::default()
    }
}

fn set_labels(metadata: &mut ObjectMeta, labels: &[(&str, &str)]) {
    let all = metadata.labels.get_or_insert_with(BTreeMap::new);
    all.extend(labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn node(zone: Option<&str>) -> Node {
        let labels = zone.map(|zone| json!({ ZONE: zone }));
        let node = json!({ "metadata": { "name": "n1", "uid": "u1", "labels": labels } });
        typed::from_value(node).unwrap()
    }

    fn written<K>(change: Change<K>) -> K {
        match change {
            Change::Create(object) | Change::Update(object) => *object,
            Change::Nothing | Change::Recreate => panic!("nothing is written"),
        }
    }

    #[test]
    fn net_105_dns_address_is_the_tenth_of_the_range() {
        for (range, expected) in [
            ("10.96.0.0/16", Some("10.96.0.10")),
            ("10.96.0.0/12", Some("10.96.0.10")),
            ("192.168.4.16/28", Some("192.168.4.26")),
            ("192.168.4.16/29", None),
            ("fd00:96::/112", Some("fd00:96::a")),
            ("0.0.0.0/0", Some("0.0.0.10")),
        ] {
            let found = dns_address(range.parse().unwrap()).map(|address| address.to_string());
            assert_eq!(found.as_deref(), expected, "{range}");
        }
    }

    #[test]
    fn net_105_slice_names_its_node_and_zone_and_belongs_to_the_node() {
        let server = "192.168.1.5:1053".parse().unwrap();
        let slice = written(slice_change(&node(Some("z1")), server, None));
        assert_eq!(slice_change(&node(Some("z1")), server, Some(&slice)), Change::Nothing);
        let endpoint = &slice.endpoints.as_ref().unwrap()[0];
        assert_eq!(endpoint.addresses, ["192.168.1.5"]);
        let hints = endpoint.hints.as_ref().unwrap();
        assert_eq!(hints.for_nodes.as_ref().unwrap()[0].name, "n1");
        assert_eq!(hints.for_zones.as_ref().unwrap()[0].name, "z1");
        assert_eq!(slice.metadata.owner_references.as_ref().unwrap()[0].uid, "u1");
        let ports = slice.ports.as_ref().unwrap();
        assert!(ports.iter().all(|port| port.port == Some(1053)));

        let unzoned = written(slice_change(&node(None), server, Some(&slice)));
        let hints = unzoned.endpoints.as_ref().unwrap()[0].hints.as_ref().unwrap();
        assert_eq!(hints.for_zones, None);
    }
}
