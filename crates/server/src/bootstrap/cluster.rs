//! Namespaces, the API server's own Service, priority classes.

use jiff::Timestamp;
use serde_json::{Value, json};
use std::net::IpAddr;

const NAMESPACES: &[&str] = &["default", "kube-system", "kube-public", "kube-node-lease"];

pub fn namespaces() -> Vec<Value> {
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
pub fn priority_classes() -> Vec<Value> {
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
pub fn kubernetes_service(cluster_ip: IpAddr, port: u16) -> Value {
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

pub fn endpoint_slice(servers: &[IpAddr], port: u16) -> Value {
    let family = servers.first().map_or("IPv4", |&ip| family(ip));
    let endpoints: Vec<Value> = servers
        .iter()
        .map(|ip| json!({"addresses": [ip], "conditions": {"ready": true}}))
        .collect();
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "name": "kubernetes", "namespace": "default",
            "labels": {"kubernetes.io/service-name": "kubernetes"},
        },
        "addressType": family,
        "endpoints": endpoints,
        "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
    })
}

pub fn endpoints(servers: &[IpAddr], port: u16) -> Value {
    let addresses: Vec<Value> = servers.iter().map(|ip| json!({"ip": ip})).collect();
    json!({
        "apiVersion": "v1", "kind": "Endpoints",
        "metadata": {
            "name": "kubernetes", "namespace": "default",
            "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"},
        },
        "subsets": [{
            "addresses": addresses,
            "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
        }],
    })
}

/// The range that Services get their addresses from.
pub fn service_cidr(cidrs: &[&str], now: Timestamp) -> Value {
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

/// What extension API servers need to know to trust the same clients.
pub fn authentication_config_map(ca_certificate: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "extension-apiserver-authentication", "namespace": "kube-system"},
        "data": {"client-ca-file": ca_certificate},
    })
}

fn family(ip: IpAddr) -> &'static str {
    if ip.is_ipv4() { "IPv4" } else { "IPv6" }
}
