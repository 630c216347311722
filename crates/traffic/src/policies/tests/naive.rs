//! Evaluates policies straight from the objects, for every packet anew. Slow and simple.

use super::Packet;
use k8s_openapi::api::networking::v1::{NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use network::{Cidr, Protocol};
use std::collections::BTreeMap;
use std::net::IpAddr;

type Labels = BTreeMap<String, String>;

#[derive(Debug, Clone)]
pub(crate) struct NaivePod {
    pub(crate) namespace: String,
    pub(crate) labels: Labels,
    pub(crate) address: IpAddr,
    pub(crate) ports: Vec<(String, Protocol, u16)>,
    pub(crate) is_local: bool,
    pub(crate) is_peer: bool,
}

#[derive(Debug, Default)]
pub(crate) struct World {
    pub(crate) namespaces: BTreeMap<String, Labels>,
    pub(crate) pods: Vec<NaivePod>,
    pub(crate) policies: Vec<NetworkPolicy>,
}

impl World {
    pub(crate) fn allows(&self, packet: &Packet) -> bool {
        packet.source == packet.destination
            || (self.permits("Egress", packet.source, packet.destination, packet)
                && self.permits("Ingress", packet.destination, packet.source, packet))
    }

    fn permits(&self, kind: &str, subject: IpAddr, peer: IpAddr, packet: &Packet) -> bool {
        let subject = self.pods.iter().find(|pod| pod.is_local && pod.address == subject);
        let Some(subject) = subject else { return true };
        let selecting = self.policies.iter().filter(|policy| {
            let spec = policy.spec.as_ref().unwrap();
            policy.metadata.namespace.as_ref() == Some(&subject.namespace)
                && spec.policy_types.as_ref().unwrap().iter().any(|found| found == kind)
                && matches(spec.pod_selector.as_ref(), &subject.labels)
        });
        let selecting: Vec<&NetworkPolicy> = selecting.collect();
        selecting.is_empty()
            || selecting.iter().any(|policy| self.policy_permits(policy, kind, peer, packet))
    }

    fn policy_permits(
        &self,
        policy: &NetworkPolicy,
        kind: &str,
        peer: IpAddr,
        packet: &Packet,
    ) -> bool {
        let spec = policy.spec.as_ref().unwrap();
        let namespace = policy.metadata.namespace.as_deref().unwrap();
        let check = |peers: &Option<Vec<NetworkPolicyPeer>>,
                     ports: &Option<Vec<NetworkPolicyPort>>| {
            let peers = peers.as_deref().unwrap_or_default();
            let ports = ports.as_deref().unwrap_or_default();
            (peers.is_empty() || peers.iter().any(|p| self.peer_is(namespace, p, peer)))
                && (ports.is_empty() || ports.iter().any(|port| self.port_is(port, packet)))
        };
        match kind {
            "Ingress" => spec.ingress.iter().flatten().any(|rule| check(&rule.from, &rule.ports)),
            _ => spec.egress.iter().flatten().any(|rule| check(&rule.to, &rule.ports)),
        }
    }

    fn peer_is(&self, namespace: &str, peer: &NetworkPolicyPeer, address: IpAddr) -> bool {
        if let Some(block) = &peer.ip_block {
            let inside = |text: &String| text.parse::<Cidr>().unwrap().contains(address);
            return inside(&block.cidr) && !block.except.iter().flatten().any(inside);
        }
        let mut pods = self.pods.iter().filter(|pod| pod.is_peer && pod.address == address);
        pods.any(|pod| {
            let in_namespace = match &peer.namespace_selector {
                None => pod.namespace == namespace,
                Some(selector) => self
                    .namespaces
                    .get(&pod.namespace)
                    .is_some_and(|labels| matches(Some(selector), labels)),
            };
            in_namespace && matches(peer.pod_selector.as_ref(), &pod.labels)
        })
    }

    fn port_is(&self, port: &NetworkPolicyPort, packet: &Packet) -> bool {
        let protocol = match port.protocol.as_deref() {
            None | Some("TCP") => Protocol::Tcp,
            Some("UDP") => Protocol::Udp,
            _ => Protocol::Sctp,
        };
        protocol == packet.protocol
            && match &port.port {
                None => true,
                Some(IntOrString::Int(first)) => {
                    let last = port.end_port.unwrap_or(*first);
                    (*first..=last).contains(&i32::from(packet.port))
                }
                Some(IntOrString::String(name)) => self.pods.iter().any(|pod| {
                    pod.is_peer
                        && pod.address == packet.destination
                        && pod.ports.contains(&(name.clone(), protocol, packet.port))
                }),
            }
    }
}

fn matches(selector: Option<&LabelSelector>, labels: &Labels) -> bool {
    let Some(selector) = selector else { return true };
    let exact =
        selector.match_labels.iter().flatten().all(|(key, value)| labels.get(key) == Some(value));
    let expressions = selector.match_expressions.iter().flatten().all(|expression| {
        let values = expression.values.clone().unwrap_or_default();
        let label = labels.get(&expression.key);
        match expression.operator.as_str() {
            "In" => label.is_some_and(|label| values.contains(label)),
            "NotIn" => label.is_none_or(|label| !values.contains(label)),
            "Exists" => label.is_some(),
            _ => label.is_none(),
        }
    });
    exact && expressions
}
