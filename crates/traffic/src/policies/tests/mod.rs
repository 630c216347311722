//! Tests of the engine without a kernel: `kernel` interprets the changes, `naive` evaluates policies from the objects.

mod kernel;
mod naive;
mod property;
mod scale;
mod semantics;

use super::compile::compile;
use super::engine::Engine;
use super::pod::PodFacts;
use client::ObjectKey;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kernel::Kernel;
use network::Protocol;
use network::policies::PodLinks;
use serde_json::{Value, json};
use std::net::IpAddr;

pub(super) const NODE: &str = "n1";

pub(super) fn links() -> PodLinks {
    let cidrs = vec!["10.77.3.0/24".parse().unwrap(), "fd77:3::/64".parse().unwrap()];
    PodLinks { link: "lf0".into(), cidrs }
}

/// The first packet of a connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Packet {
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
    pub(super) protocol: Protocol,
    pub(super) port: u16,
}

/// An engine and the tables that result from its changes.
pub(super) struct Node {
    pub(super) engine: Engine,
    pub(super) kernel: Kernel,
}

impl Node {
    pub(super) fn new() -> Node {
        Node { engine: Engine::new(NODE, links()), kernel: Kernel::default() }
    }

    pub(super) fn commit(&mut self) {
        self.kernel.apply(self.engine.take_changes());
    }

    pub(super) fn namespace(&mut self, name: &str, labels: Value) {
        let labels = serde_json::from_value(labels).unwrap();
        self.engine.namespace_changed(name, labels);
        self.commit();
    }

    pub(super) fn pod(&mut self, pod: &Pod) {
        self.engine.pod_changed(&ObjectKey::of(pod), Some(PodFacts::of(pod)));
        self.commit();
    }

    pub(super) fn delete_pod(&mut self, pod: &Pod) {
        self.engine.pod_changed(&ObjectKey::of(pod), None);
        self.commit();
    }

    pub(super) fn attach(&mut self, pod: &Pod, addresses: &[&str]) {
        let addresses: Vec<IpAddr> = addresses.iter().map(|text| text.parse().unwrap()).collect();
        self.engine.attached(PodFacts::of(pod), &addresses);
        self.commit();
    }

    pub(super) fn policy(&mut self, policy: &NetworkPolicy) {
        self.engine.policy_changed(&ObjectKey::of(policy), Some(compile(policy)));
        self.commit();
    }

    pub(super) fn delete_policy(&mut self, policy: &NetworkPolicy) {
        self.engine.policy_changed(&ObjectKey::of(policy), None);
        self.commit();
    }

    pub(super) fn tcp(&self, from: &str, to: &str, port: u16) -> bool {
        self.allows(from, to, Protocol::Tcp, port)
    }

    pub(super) fn allows(&self, from: &str, to: &str, protocol: Protocol, port: u16) -> bool {
        let (source, destination) = (from.parse().unwrap(), to.parse().unwrap());
        self.kernel.allows(&Packet { source, destination, protocol, port })
    }
}

pub(super) fn pod(key: &str, uid: &str, labels: Value, node: &str, addresses: &[&str]) -> Pod {
    let (namespace, name) = key.split_once('/').unwrap();
    let addresses: Vec<Value> = addresses.iter().map(|ip| json!({ "ip": ip })).collect();
    typed::from_value(json!({
        "metadata": { "namespace": namespace, "name": name, "uid": uid, "labels": labels },
        "spec": { "nodeName": node, "containers": [] },
        "status": { "phase": "Running", "podIPs": addresses },
    }))
    .unwrap()
}

pub(super) fn with_ports(mut pod: Pod, ports: Value) -> Pod {
    let container = json!({ "name": "c", "ports": ports });
    let spec = pod.spec.as_mut().unwrap();
    spec.containers = vec![serde_json::from_value(container).unwrap()];
    pod
}

pub(super) fn policy(key: &str, spec: Value) -> NetworkPolicy {
    let (namespace, name) = key.split_once('/').unwrap();
    let metadata = json!({ "namespace": namespace, "name": name });
    typed::from_value(json!({ "metadata": metadata, "spec": spec })).unwrap()
}
