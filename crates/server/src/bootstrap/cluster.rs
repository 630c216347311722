//! Namespaces, the Service `kubernetes` and its endpoints, priority classes.

use jiff::Timestamp;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

const NAMESPACES: &[&str] = &["default", "kube-system", "kube-public", "kube-node-lease"];

pub(crate) fn namespaces() -> Vec<Value> {
    let namespace = |name: &&str| {
        json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name}},
            "spec": {"finalizers": ["kubernetes"]},
            "status": {"phase": "Active"},
        })
    };
    NAMESPACES.iter().map(namespace).collect()
}

/// Critical for the whole cluster, and critical for one node.
pub(crate) fn priority_classes() -> Vec<Value> {
    let class = |(name, value, description): (&str, i64, &str)| {
        json!({
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
            "metadata": {"name": name},
            "value": value,
            "description": description,
            "preemptionPolicy": "PreemptLowerPriority",
        })
    };
    [
        (
            "system-cluster-critical",
            2_000_000_000,
            "Used for system critical pods that must run in the cluster, but can be moved to \
             another node if necessary.",
        ),
        (
            "system-node-critical",
            2_000_001_000,
            "Used for system critical pods that must not be moved from their current node.",
        ),
    ]
    .map(class)
    .into()
}

/// The Service through which pods reach the API server. `port` is where the server listens.
pub(crate) fn kubernetes_service(cluster_ip: IpAddr, port: u16) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {
            "name": "kubernetes", "namespace": "default",
            "labels": {"component": "apiserver", "provider": "kubernetes"},
        },
        "spec": {
            "type": "ClusterIP",
            "clusterIP": cluster_ip, "clusterIPs": [cluster_ip],
            "ipFamilies": [family(cluster_ip)], "ipFamilyPolicy": "SingleStack",
            "internalTrafficPolicy": "Cluster",
            "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": port}],
            "sessionAffinity": "None",
        },
        "status": {"loadBalancer": {}},
    })
}

/// The Service through which pods reach the DNS server of their node. It has no selector: nodes write its slices.
pub(crate) fn dns_service(cluster_ip: IpAddr) -> Value {
    let port = |name: &str, protocol: &str| json!({"name": name, "port": 53, "protocol": protocol, "targetPort": 53});
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {
            "name": "kube-dns", "namespace": "kube-system",
            "labels": {
                "k8s-app": "kube-dns",
                "kubernetes.io/cluster-service": "true",
                "kubernetes.io/name": "CoreDNS",
            },
        },
        "spec": {
            "type": "ClusterIP",
            "clusterIP": cluster_ip, "clusterIPs": [cluster_ip],
            "ipFamilies": [family(cluster_ip)], "ipFamilyPolicy": "SingleStack",
            "internalTrafficPolicy": "Cluster",
            "trafficDistribution": "PreferSameNode",
            "ports": [port("dns", "UDP"), port("dns-tcp", "TCP")],
            "sessionAffinity": "None",
        },
        "status": {"loadBalancer": {}},
    })
}

/// A slice has one port and one address family, so there may be several: `kubernetes`, `kubernetes-2` and so on.
pub(crate) fn endpoint_slices(servers: &BTreeSet<SocketAddr>) -> Vec<Value> {
    let mut groups: BTreeMap<(&str, u16), Vec<Value>> = BTreeMap::new();
    for server in servers {
        let endpoint = json!({"addresses": [server.ip()], "conditions": {"ready": true}});
        groups.entry((family(server.ip()), server.port())).or_default().push(endpoint);
    }
    let slice = |(number, ((family, port), endpoints)): (usize, (_, Vec<Value>))| {
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "name": name_of_slice(number), "namespace": "default",
                "labels": {"kubernetes.io/service-name": "kubernetes"},
            },
            "addressType": family,
            "endpoints": endpoints,
            "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
        })
    };
    groups.into_iter().enumerate().map(slice).collect()
}

fn name_of_slice(number: usize) -> String {
    match number {
        0 => "kubernetes".to_owned(),
        _ => format!("kubernetes-{}", number + 1),
    }
}

/// The index of the slice with this name among the [`endpoint_slices`].
pub(crate) fn number_of_slice(name: &str) -> Option<usize> {
    // One slice per port and address family: there are never this many.
    (0..100).find(|number| name_of_slice(*number) == name)
}

pub(crate) fn endpoints(servers: &BTreeSet<SocketAddr>) -> Value {
    let mut groups: BTreeMap<u16, Vec<Value>> = BTreeMap::new();
    for server in servers {
        groups.entry(server.port()).or_default().push(json!({"ip": server.ip()}));
    }
    let subset = |(port, addresses): (u16, Vec<Value>)| {
        json!({
            "addresses": addresses,
            "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
        })
    };
    json!({
        "apiVersion": "v1", "kind": "Endpoints",
        "metadata": {
            "name": "kubernetes", "namespace": "default",
            "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"},
        },
        "subsets": groups.into_iter().map(subset).collect::<Vec<_>>(),
    })
}

/// The ranges of cluster IPs: one, or one per IP family.
pub(crate) fn service_cidr(cidrs: &[String], now: Timestamp) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
        "metadata": {"name": "kubernetes"},
        "spec": {"cidrs": cidrs},
        "status": {"conditions": [{
            "type": "Ready", "status": "True", "reason": "",
            "message": "Kubernetes Service CIDR is ready",
            "lastTransitionTime": clock::rfc3339(now),
        }]},
    })
}

/// The CA with which extension API servers verify the same clients.
pub(crate) fn authentication_config_map(ca_certificate: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "extension-apiserver-authentication", "namespace": "kube-system"},
        "data": {"client-ca-file": ca_certificate},
    })
}

fn family(ip: IpAddr) -> &'static str {
    if ip.is_ipv4() { "IPv4" } else { "IPv6" }
}
