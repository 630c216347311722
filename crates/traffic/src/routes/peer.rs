//! What a Node object says about routes.

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;
use network::Cidr;
use std::net::IpAddr;

/// A Node with pod ranges.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Peer {
    pub(super) name: String,
    pub(super) created: Option<Timestamp>,
    /// `spec.podCIDRs`, in this order.
    pub(super) ranges: Vec<Cidr>,
    /// Addresses of type InternalIP that packets can be sent to.
    pub(super) addresses: Vec<IpAddr>,
}

impl Peer {
    /// `None` if the Node has no pod ranges yet, or one that cannot be read.
    pub(super) fn of(node: &Node) -> Option<Peer> {
        let spec = node.spec.as_ref()?;
        let texts = match spec.pod_cidrs.as_deref() {
            Some([_, ..]) => spec.pod_cidrs.clone().unwrap_or_default(),
            _ => spec.pod_cidr.iter().cloned().collect(),
        };
        let ranges: Option<Vec<Cidr>> = texts.iter().map(|text| text.parse().ok()).collect();
        Some(Peer {
            name: node.metadata.name.clone()?,
            created: node.metadata.creation_timestamp.as_ref().map(|time| time.0),
            ranges: ranges.filter(|ranges| !ranges.is_empty())?,
            addresses: internal_addresses(node),
        })
    }
}

/// The addresses of type InternalIP, without those that do not identify a host.
pub(super) fn internal_addresses(node: &Node) -> Vec<IpAddr> {
    let all = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
    all.filter(|address| address.type_ == "InternalIP")
        .filter_map(|address| address.address.parse().ok())
        .filter(identifies_a_host)
        .collect()
}

fn identifies_a_host(address: &IpAddr) -> bool {
    let link_local = match address {
        IpAddr::V4(address) => address.is_link_local() || address.is_broadcast(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    !(link_local || address.is_loopback() || address.is_unspecified() || address.is_multicast())
}
