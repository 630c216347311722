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

use crate::addresses::GATEWAY;
use crate::attachments::Inner;
use crate::namespace::Namespace;
use crate::records::check_key;
use crate::{Cidr, Error, Result};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// A device's name has 15 characters; ours is followed by `p` and a place of seven digits.
const LINK_MAX: usize = 7;

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
    /// Ranges of Services' addresses. What pods send there and nobody has taken up is refused: it would
    /// leave by the default route, with whatever it carries, to hosts that are not of the cluster.
    pub service_cidrs: Vec<Cidr>,
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

/// The pods' side of the network on one node.
pub struct Pods {
    inner: Arc<Inner>,
    threads: Semaphore,
}

/// Each attachment being made or taken away has a thread; more than this wait their turn.
const THREADS_MAX: usize = 32;

impl Pods {
    /// Sets up what all pods share, in the network namespace of the calling thread, and adopts
    /// what an earlier process left. Idempotent.
    pub async fn open(config: PodsConfig) -> Result<Pods> {
        check(&config)?;
        let home = Namespace::current()?;
        let inner = home.clone().run(move || Inner::open(config, home)).await?;
        Ok(Pods { inner: Arc::new(inner), threads: Semaphore::new(THREADS_MAX) })
    }

    /// Gives `key` a namespace, a link and addresses. Asked again for the same key, it answers the
    /// same; host ports become those of the last call.
    pub async fn attach(&self, key: &str, ports: &[HostPort]) -> Result<Attachment> {
        check_key(key)?;
        let (key, ports) = (key.to_string(), ports.to_vec());
        self.run(move |inner| inner.attach(&key, ports)).await
    }

    /// Takes everything back. A key that is not attached is fine.
    pub async fn detach(&self, key: &str) -> Result<()> {
        let key = key.to_string();
        self.run(move |inner| inner.detach(&key)).await
    }

    /// Detaches every key but these: what a crash left of pods that are no more.
    pub async fn retain(&self, keys: &BTreeSet<String>) -> Result<()> {
        let known: Vec<String> = self.inner.state().records.keys().cloned().collect();
        for key in known.iter().filter(|key| !keys.contains(*key)) {
            self.detach(key).await?;
        }
        Ok(())
    }

    /// Detaches all and removes what all pods share: nothing of ours is left in the kernel.
    pub async fn remove(&self) -> Result<()> {
        self.retain(&BTreeSet::new()).await?;
        self.run(|inner| inner.remove()).await
    }

    /// What `key` has, if it is attached.
    pub fn find(&self, key: &str) -> Option<Attachment> {
        let state = self.inner.state();
        let record = state.records.get(key).filter(|record| record.complete)?;
        Some(self.inner.attachment(record))
    }

    /// The node's own addresses in the pods' ranges.
    pub fn gateways(&self) -> Vec<IpAddr> {
        self.inner.addresses(GATEWAY)
    }

    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Inner) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let _turn = self.threads.acquire().await;
        let inner = self.inner.clone();
        self.inner.home.run(move || work(&inner)).await
    }
}

fn check(config: &PodsConfig) -> Result<()> {
    let families: BTreeSet<bool> = config.cidrs.iter().map(Cidr::is_ipv4).collect();
    if config.cidrs.is_empty() || families.len() < config.cidrs.len() {
        return Err(Error::Invalid("a node has one range of pod addresses, or two".into()));
    }
    if config.link.is_empty() || config.link.len() > LINK_MAX {
        return Err(Error::Invalid(format!("{:?} cannot name a link", config.link)));
    }
    Ok(())
}
