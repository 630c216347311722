//! Decides which Services get which addresses. Pure.

use super::FINALIZER;
use crate::workload::{name, namespace};
use k8s_openapi::api::core::v1::{LoadBalancerIngress, Node, Service, ServicePort};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

/// A node with this label, of any value, gets no traffic from outside.
const EXCLUDED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

/// A status with more addresses would be large and of no use.
const ADDRESSES_MAX: usize = 100;

/// What to do with a Service.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Outcome {
    Nothing,
    /// It gets these addresses.
    Balance(Vec<LoadBalancerIngress>),
    /// It gets no address, for this reason.
    Refuse(String),
    /// It no longer wants a load balancer: its addresses and the finalizer are removed.
    CleanUp,
}

/// Whether the Service has a load balancer of ours, or wants one.
pub(super) fn is_concerned(service: &Service) -> bool {
    has_finalizer(service) || wants_balancer(service)
}

pub(super) fn has_finalizer(service: &Service) -> bool {
    service.metadata.finalizers.iter().flatten().any(|one| one == FINALIZER)
}

fn is_balanced(service: &Service) -> bool {
    service.spec.as_ref().and_then(|spec| spec.type_.as_deref()) == Some("LoadBalancer")
}

fn wants_balancer(service: &Service) -> bool {
    let class = service.spec.as_ref().and_then(|spec| spec.load_balancer_class.as_ref());
    is_balanced(service) && class.is_none() && service.metadata.deletion_timestamp.is_none()
}

/// Upstream: `needsCleanup`. A Service that got a class keeps the finalizer until it is deleted.
fn needs_cleanup(service: &Service) -> bool {
    has_finalizer(service)
        && (service.metadata.deletion_timestamp.is_some() || !is_balanced(service))
}

pub(super) fn ingress(service: &Service) -> Vec<LoadBalancerIngress> {
    let balancer = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    balancer.and_then(|balancer| balancer.ingress.clone()).unwrap_or_default()
}

/// One outcome per Service, in the same order. The oldest Service that wants a port gets it.
pub(super) fn decide(services: &[Arc<Service>], nodes: &[Arc<Node>]) -> Vec<Outcome> {
    let mut nodes: Vec<&Node> = nodes.iter().map(Arc::as_ref).collect();
    nodes.sort_by_key(|node| name(*node));
    let addresses = |six: bool| -> Vec<IpAddr> {
        let mut found: Vec<(bool, IpAddr)> =
            nodes.iter().flat_map(|node| addresses(node)).collect();
        found.retain(|(_, ip)| ip.is_ipv6() == six);
        // A stable sort: external addresses first, then by node.
        found.sort_by_key(|(external, _)| !*external);
        let mut unique = Vec::new();
        for (_, ip) in found {
            if !unique.contains(&ip) && unique.len() < ADDRESSES_MAX {
                unique.push(ip);
            }
        }
        unique
    };
    let families = [addresses(false), addresses(true)];
    let mut by_age: Vec<usize> = (0..services.len()).collect();
    by_age.sort_by_key(|index| age(&services[*index]));
    let mut owners: BTreeMap<(&str, i32), &Service> = BTreeMap::new();
    let mut outcomes = vec![Outcome::Nothing; services.len()];
    for index in by_age {
        let service = services[index].as_ref();
        outcomes[index] = match (wants_balancer(service), needs_cleanup(service)) {
            (false, true) => Outcome::CleanUp,
            (false, false) => Outcome::Nothing,
            (true, _) => match taken(service, &owners) {
                Some(why) => Outcome::Refuse(why),
                None => {
                    owners.extend(ports(service).map(|port| (place(port), service)));
                    Outcome::Balance(ingress_of(service, &families))
                }
            },
        };
    }
    outcomes
}

fn age(service: &Service) -> (Option<jiff::Timestamp>, &str, &str) {
    let created = service.metadata.creation_timestamp.as_ref().map(|time| time.0);
    (created, namespace(service), name(service))
}

fn ports(service: &Service) -> impl Iterator<Item = &ServicePort> {
    service.spec.iter().flat_map(|spec| spec.ports.iter().flatten())
}

fn place(port: &ServicePort) -> (&str, i32) {
    (port.protocol.as_deref().unwrap_or("TCP"), port.port)
}

fn taken(service: &Service, owners: &BTreeMap<(&str, i32), &Service>) -> Option<String> {
    ports(service).find_map(|port| {
        let (protocol, number) = place(port);
        let owner = owners.get(&(protocol, number))?;
        Some(format!(
            "port {number}/{protocol} of the nodes' addresses belongs to Service {}/{}, which is older",
            namespace(*owner),
            name(*owner)
        ))
    })
}

fn ingress_of(service: &Service, [four, six]: &[Vec<IpAddr>; 2]) -> Vec<LoadBalancerIngress> {
    let families = service.spec.iter().flat_map(|spec| spec.ip_families.iter().flatten());
    let of_family = |family: &String| if family == "IPv6" { six } else { four };
    let addresses = families.flat_map(of_family);
    addresses
        .map(|ip| LoadBalancerIngress {
            ip: Some(ip.to_string()),
            ip_mode: Some("VIP".to_owned()),
            ..LoadBalancerIngress::default()
        })
        .collect()
}

/// The addresses at which a node accepts traffic from outside, and whether each is external. None if it gets no traffic.
pub(super) fn addresses(node: &Node) -> Vec<(bool, IpAddr)> {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let is_ready = conditions
        .into_iter()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True");
    let labels = node.metadata.labels.as_ref();
    let excluded = labels.is_some_and(|labels| labels.contains_key(EXCLUDED));
    if !is_ready || excluded || node.metadata.deletion_timestamp.is_some() {
        return Vec::new();
    }
    let addresses = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
    let known = addresses.filter_map(|address| {
        let external = match address.type_.as_str() {
            "ExternalIP" => true,
            "InternalIP" => false,
            _ => return None,
        };
        Some((external, address.address.parse().ok()?))
    });
    known.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn service(name: &str, second: i64, spec: Value) -> Arc<Service> {
        let created = jiff::Timestamp::from_second(1_800_000_000 + second).unwrap().to_string();
        let mut object = json!({
            "metadata": { "namespace": "default", "name": name, "creationTimestamp": created },
            "spec": { "type": "LoadBalancer", "ipFamilies": ["IPv4"], "ports": [{ "port": 80, "protocol": "TCP" }] },
        });
        for (field, value) in spec.as_object().unwrap() {
            object["spec"][field] = value.clone();
        }
        Arc::new(typed::from_value(object).unwrap())
    }

    fn node(name: &str, ready: &str, addresses: &[(&str, &str)]) -> Arc<Node> {
        let addresses: Vec<Value> = addresses
            .iter()
            .map(|(kind, address)| json!({ "type": kind, "address": address }))
            .collect();
        Arc::new(typed::from_value(json!({
            "metadata": { "name": name },
            "status": { "conditions": [{ "type": "Ready", "status": ready }], "addresses": addresses },
        }))
        .unwrap())
    }

    fn shown(outcomes: &[Outcome]) -> Vec<String> {
        let text = |outcome: &Outcome| match outcome {
            Outcome::Balance(ingress) => {
                let ips = ingress.iter().map(|one| {
                    assert_eq!(one.ip_mode.as_deref(), Some("VIP"));
                    one.ip.clone().unwrap()
                });
                ips.collect::<Vec<_>>().join(" ")
            }
            Outcome::Refuse(why) => format!("refused: {why}"),
            Outcome::CleanUp => "clean up".to_owned(),
            Outcome::Nothing => "nothing".to_owned(),
        };
        outcomes.iter().map(text).collect()
    }

    #[test]
    fn a_service_gets_the_addresses_of_ready_nodes_external_ones_first() {
        let mut excluded = node("n0", "True", &[("InternalIP", "10.0.0.9")]);
        Arc::make_mut(&mut excluded).metadata.labels =
            Some(BTreeMap::from([(EXCLUDED.to_owned(), String::new())]));
        let nodes = [
            node("n2", "True", &[("InternalIP", "10.0.0.2"), ("ExternalIP", "192.0.2.2")]),
            node(
                "n1",
                "True",
                &[("InternalIP", "10.0.0.1"), ("Hostname", "n1"), ("InternalIP", "fd00::1")],
            ),
            node("n3", "False", &[("InternalIP", "10.0.0.3")]),
            node("n4", "Unknown", &[("InternalIP", "10.0.0.4")]),
            excluded,
        ];
        for (spec, expected) in [
            (json!({}), "192.0.2.2 10.0.0.1 10.0.0.2"),
            (json!({ "ipFamilies": ["IPv6"] }), "fd00::1"),
            (json!({ "ipFamilies": ["IPv6", "IPv4"] }), "fd00::1 192.0.2.2 10.0.0.1 10.0.0.2"),
            (json!({ "type": "NodePort" }), "nothing"),
            (json!({ "type": "ClusterIP" }), "nothing"),
            // NET-24: it belongs to another load balancer.
            (json!({ "loadBalancerClass": "example.com/internal-vip" }), "nothing"),
        ] {
            assert_eq!(
                shown(&decide(&[service("s", 0, spec.clone())], &nodes)),
                [expected],
                "{spec}"
            );
        }
        assert_eq!(shown(&decide(&[service("s", 0, json!({}))], &[])), [""]);
    }

    #[test]
    fn the_oldest_service_gets_a_port_and_a_refused_one_takes_none() {
        let nodes = [node("n1", "True", &[("InternalIP", "10.0.0.1")])];
        let port = |number: i32, protocol: &str| json!({ "port": number, "protocol": protocol });
        let ports = |ports: &[Value]| json!({ "ports": ports });
        let services = [
            service("last", 9, ports(&[port(443, "TCP")])),
            service("second", 5, ports(&[port(443, "TCP"), port(80, "TCP")])),
            service("first", 1, ports(&[port(80, "TCP")])),
            service("udp", 7, ports(&[port(80, "UDP")])),
            service("other", 8, json!({ "loadBalancerClass": "a/b" })),
        ];
        let why = "refused: port 80/TCP of the nodes' addresses belongs to Service default/first, which is older";
        assert_eq!(
            shown(&decide(&services, &nodes)),
            ["10.0.0.1", why, "10.0.0.1", "10.0.0.1", "nothing"]
        );
        // Of the same second, the name decides.
        let services = [service("b", 1, json!({})), service("a", 1, json!({}))];
        assert!(shown(&decide(&services, &nodes))[0].contains("default/a"));
    }

    #[test]
    fn the_finalizer_is_removed_when_the_service_is_deleted_or_changes_its_type() {
        let held = |spec: Value, deleted: bool| {
            let mut service = Service::clone(&service("s", 0, spec));
            service.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
            service.metadata.deletion_timestamp =
                deleted.then(|| service.metadata.creation_timestamp.clone().unwrap());
            Arc::new(service)
        };
        let class = json!({ "loadBalancerClass": "a/b" });
        for (service, expected) in [
            (held(json!({}), false), ""),
            (held(json!({}), true), "clean up"),
            (held(json!({ "type": "ClusterIP" }), false), "clean up"),
            (held(json!({ "type": "NodePort" }), true), "clean up"),
            (held(class.clone(), false), "nothing"),
            (held(class, true), "clean up"),
        ] {
            assert_eq!(
                shown(&decide(std::slice::from_ref(&service), &[])),
                [expected],
                "{service:?}"
            );
            assert!(is_concerned(&service));
        }
    }
}
