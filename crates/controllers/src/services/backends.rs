//! The pods of a Service, with their addresses and ports.

use super::selector;
use crate::pods;
use client::Cache;
use k8s_openapi::api::core::v1::{Node, ObjectReference, Pod, Service, ServicePort};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

const ZONE: &str = "topology.kubernetes.io/zone";

/// A port of a pod, as a Service sees it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Port {
    pub(super) name: String,
    pub(super) port: i32,
    pub(super) protocol: String,
    pub(super) app_protocol: Option<String>,
}

/// All pods that the Service selects, whatever their state.
pub(super) fn selected(pods: &Cache<Pod>, service: &Service) -> Vec<Arc<Pod>> {
    let namespace = service.metadata.namespace.as_deref().unwrap_or_default();
    let Some(selector) = selector(service) else { return Vec::new() };
    // Search by the rarest label of the selector.
    let labels = selector.iter().map(|(key, value)| pods::label(namespace, key, value));
    let rarest = labels.min_by_key(|label| pods.count(pods::BY_LABEL, label));
    let mut found = pods.by_index(pods::BY_LABEL, &rarest.unwrap_or_default());
    found.retain(|pod| {
        let labels = pod.metadata.labels.iter();
        labels.into_iter().any(|labels| selector.iter().all(|(k, v)| labels.get(k) == Some(v)))
    });
    found
}

pub(super) fn publishes_not_ready(service: &Service) -> bool {
    service.spec.as_ref().and_then(|spec| spec.publish_not_ready_addresses) == Some(true)
}

/// Address families of a Service, in order.
pub(super) fn families(service: &Service) -> Vec<String> {
    let families = service.spec.as_ref().and_then(|spec| spec.ip_families.clone());
    families.filter(|families| !families.is_empty()).unwrap_or_else(|| vec!["IPv4".to_owned()])
}

/// The pod's address of one family in canonical form.
pub(super) fn address(pod: &Pod, family: &str) -> Option<String> {
    let status = pod.status.as_ref()?;
    let all = status.pod_ips.iter().flatten().map(|ip| ip.ip.as_str());
    let mut all = all.chain(status.pod_ip.as_deref()).filter_map(|ip| IpAddr::from_str(ip).ok());
    all.find(|ip| family_name(*ip) == family).map(|ip| ip.to_string())
}

pub(super) fn family_of(address: &str) -> Option<&'static str> {
    IpAddr::from_str(address).ok().map(family_name)
}

fn family_name(address: IpAddr) -> &'static str {
    if address.is_ipv4() { "IPv4" } else { "IPv6" }
}

/// The Service's ports on this pod, without named ports that the pod does not have.
pub(super) fn ports(service: &Service, pod: &Pod) -> Vec<Port> {
    let ports = service.spec.iter().flat_map(|spec| spec.ports.iter().flatten());
    ports
        .filter_map(|port| {
            Some(Port {
                name: port.name.clone().unwrap_or_default(),
                port: target(port, pod)?,
                protocol: protocol(port.protocol.as_deref()),
                app_protocol: port.app_protocol.clone(),
            })
        })
        .collect()
}

fn protocol(protocol: Option<&str>) -> String {
    protocol.unwrap_or("TCP").to_owned()
}

/// Upstream: `FindPort`.
fn target(port: &ServicePort, pod: &Pod) -> Option<i32> {
    let name = match &port.target_port {
        None => return Some(port.port),
        Some(IntOrString::Int(0)) => return Some(port.port),
        Some(IntOrString::Int(number)) => return Some(*number),
        Some(IntOrString::String(name)) => name,
    };
    let spec = pod.spec.as_ref()?;
    let sidecars =
        spec.init_containers.iter().flatten().filter(|c| lifecycle::containers::is_sidecar(c));
    let mut known = spec
        .containers
        .iter()
        .chain(sidecars)
        .flat_map(|container| container.ports.iter().flatten());
    let wanted = protocol(port.protocol.as_deref());
    let found = known.find(|port| {
        port.name.as_ref() == Some(name) && protocol(port.protocol.as_deref()) == wanted
    });
    found.map(|port| port.container_port)
}

/// The host name of a pod in the Service's domain, if it has one.
pub(super) fn hostname(service: &Service, pod: &Pod) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    let hostname = spec.hostname.clone().filter(|name| !name.is_empty())?;
    (spec.subdomain.is_some() && spec.subdomain == service.metadata.name).then_some(hostname)
}

pub(super) fn target_ref(pod: &Pod) -> ObjectReference {
    ObjectReference {
        kind: Some("Pod".to_owned()),
        namespace: pod.metadata.namespace.clone(),
        name: pod.metadata.name.clone(),
        uid: pod.metadata.uid.clone(),
        ..ObjectReference::default()
    }
}

pub(super) fn zone(node: &Node) -> Option<&str> {
    let zone = node.metadata.labels.as_ref()?.get(ZONE)?;
    (!zone.is_empty()).then_some(zone.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod() -> Pod {
        typed::from_value(json!({
            "metadata": { "name": "p" },
            "spec": {
                "containers": [{ "name": "c", "ports": [
                    { "name": "web", "containerPort": 8080 },
                    { "name": "dns", "containerPort": 53, "protocol": "UDP" },
                ] }],
                "initContainers": [
                    { "name": "side", "restartPolicy": "Always",
                      "ports": [{ "name": "metrics", "containerPort": 9090 }] },
                    { "name": "init", "ports": [{ "name": "never", "containerPort": 1 }] },
                ],
            },
            "status": { "podIP": "10.0.0.1", "podIPs": [{ "ip": "10.0.0.1" }, { "ip": "FD00:0:0::1" }] },
        }))
        .unwrap()
    }

    #[test]
    fn c_176_named_ports_are_resolved_in_the_pod() {
        for (what, port, expected) in [
            ("itself", json!({ "port": 80 }), Some(80)),
            ("a number", json!({ "port": 80, "targetPort": 81 }), Some(81)),
            ("a name", json!({ "port": 80, "targetPort": "web" }), Some(8080)),
            ("of a sidecar", json!({ "port": 80, "targetPort": "metrics" }), Some(9090)),
            ("of another protocol", json!({ "port": 80, "targetPort": "dns" }), None),
            ("UDP", json!({ "port": 53, "protocol": "UDP", "targetPort": "dns" }), Some(53)),
            ("of an init container", json!({ "port": 80, "targetPort": "never" }), None),
            ("unknown", json!({ "port": 80, "targetPort": "none" }), None),
        ] {
            let service: Value = json!({ "metadata": {}, "spec": { "ports": [port] } });
            let service: Service = typed::from_value(service).unwrap();
            let found: Vec<i32> = ports(&service, &pod()).iter().map(|port| port.port).collect();
            assert_eq!(found, expected.into_iter().collect::<Vec<_>>(), "{what}");
        }
    }

    #[test]
    fn a_pod_has_one_address_per_family() {
        assert_eq!(address(&pod(), "IPv4").as_deref(), Some("10.0.0.1"));
        assert_eq!(address(&pod(), "IPv6").as_deref(), Some("fd00::1"), "NET-77: canonical");
        assert_eq!(address(&Pod::default(), "IPv4"), None);
    }
}
