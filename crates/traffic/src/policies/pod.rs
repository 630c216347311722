//! What policies need to know of a pod.

use super::compile::protocol;
use super::selector::Labels;
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use network::Protocol;
use std::collections::BTreeSet;
use std::net::IpAddr;

/// A pod of the API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PodFacts {
    pub(super) uid: String,
    pub(super) namespace: String,
    pub(super) labels: Labels,
    pub(super) ports: BTreeSet<(String, Protocol, u16)>,
    pub(super) node: String,
    /// From its status.
    pub(super) addresses: Vec<IpAddr>,
    pub(super) host_network: bool,
    /// Succeeded or failed: its address may already belong to another pod (NET-134).
    pub(super) terminal: bool,
}

impl PodFacts {
    pub(super) fn of(pod: &Pod) -> PodFacts {
        let spec = pod.spec.as_ref();
        let status = pod.status.as_ref();
        let phase = status.and_then(|status| status.phase.as_deref()).unwrap_or_default();
        let addresses = status.and_then(|status| status.pod_ips.as_ref());
        PodFacts {
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            namespace: pod.metadata.namespace.clone().unwrap_or_default(),
            labels: pod.metadata.labels.clone().unwrap_or_default(),
            ports: spec.map(named_ports).unwrap_or_default(),
            node: spec.and_then(|spec| spec.node_name.clone()).unwrap_or_default(),
            addresses: addresses
                .into_iter()
                .flatten()
                .filter_map(|address| address.ip.parse().ok())
                .collect(),
            host_network: spec.and_then(|spec| spec.host_network).unwrap_or_default(),
            terminal: api::pod::is_terminal_phase(phase),
        }
    }
}

/// Ports with a name, of containers that run as long as the pod.
fn named_ports(spec: &PodSpec) -> BTreeSet<(String, Protocol, u16)> {
    let sidecars = spec.init_containers.iter().flatten();
    let sidecars =
        sidecars.filter(|container| container.restart_policy.as_deref() == Some("Always"));
    let ports = spec.containers.iter().chain(sidecars).flat_map(|c| c.ports.iter().flatten());
    let named = ports.filter_map(|port| {
        let number = u16::try_from(port.container_port).ok()?;
        Some((port.name.clone()?, protocol(port.protocol.as_deref())?, number))
    });
    named.collect()
}

/// A pod with addresses, or a server of the node that policies treat as a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Instance {
    pub(super) namespace: String,
    pub(super) labels: Labels,
    pub(super) ports: BTreeSet<(String, Protocol, u16)>,
    pub(super) addresses: Vec<IpAddr>,
    /// Whether rules that select it as a peer match its addresses.
    pub(super) is_peer: bool,
    /// The node's end of its link, if policies of this node apply to it.
    pub(super) link: Option<String>,
}
