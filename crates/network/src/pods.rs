//! Gives every pod of this node its own network namespace, link and addresses.
//!
//!     pod's namespace             this node's namespace
//!     eth0  10.244.3.17/32  ────  lf0p17   route 10.244.3.17/32
//!     default via 10.244.3.1      lf0      10.244.3.1/32
//!
//! Pods are routed, not bridged: a packet from one pod to its neighbour passes the same hooks as any
//! other, so that Services, host ports and policies hold between neighbours too, without
//! `br_netfilter` (NET-6), and a packet may go back to where it came from (NET-7).
//! Not here: routes to other nodes, Services, policies.

use crate::{Cidr, Result};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;

#[derive(Debug, Clone)]
pub struct PodsConfig {
    /// Records of who has which address: must survive a crash, need not survive a reboot.
    pub state_dir: PathBuf,
    /// Where the pods' namespaces can be opened by name.
    pub netns_dir: PathBuf,
    /// The device that holds the node's own address in the pods' range; at most seven characters.
    /// Pods' links are called after it.
    pub link: String,
    /// This node's ranges: one, or one of each family.
    pub cidrs: Vec<Cidr>,
    /// Ranges that pods reach with their own address: those of all the cluster's pods. This node's
    /// own are always among them.
    pub cluster_cidrs: Vec<Cidr>,
    /// Name of our packet rules' table, in family `ip` and `ip6`. It belongs to us whole.
    pub table: String,
    pub mtu: u32,
}

#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
pub enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

/// A port of the node that leads to a port of the pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct HostPort {
    pub protocol: Protocol,
    /// None, `0.0.0.0` or `::`: every address of the node.
    pub host_ip: Option<IpAddr>,
    pub host_port: u16,
    pub container_port: u16,
}

/// What a pod has while it is attached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment {
    /// A file that is the network namespace; it can be opened and entered.
    pub netns: PathBuf,
    /// At most one of each family, in the order of the node's ranges.
    pub addresses: Vec<IpAddr>,
}

/// The pods' side of the network on one node. Cheap to share behind an `Arc`.
pub struct Pods {}

impl Pods {
    /// Sets up what all pods share and adopts what an earlier process left. Idempotent.
    pub async fn open(_config: PodsConfig) -> Result<Pods> {
        Ok(Pods {})
    }

    /// Gives `key` a namespace, a link and addresses. Asked again for the same key, it answers the
    /// same; host ports become those of the last call.
    pub async fn attach(&self, _key: &str, _ports: &[HostPort]) -> Result<Attachment> {
        Err(crate::Error::Invalid("not yet".into()))
    }

    /// Takes everything back. A key that is not attached is fine.
    pub async fn detach(&self, _key: &str) -> Result<()> {
        Ok(())
    }

    /// Detaches every key but these: what a crash left of pods that are no more.
    pub async fn retain(&self, _keys: &BTreeSet<String>) -> Result<()> {
        Ok(())
    }

    /// Detaches all and removes what all pods share: nothing of ours is left in the kernel.
    pub async fn remove(&self) -> Result<()> {
        Ok(())
    }

    /// What `key` has, if it is attached.
    pub fn find(&self, _key: &str) -> Option<Attachment> {
        None
    }
}
