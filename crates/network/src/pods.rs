//! Gives each pod on this node its own network namespace, link and addresses.
//!
//!     pod's namespace             this node's namespace
//!     eth0  10.244.3.17/32  ────  lf0p17   route 10.244.3.17/32
//!     default via 10.244.3.1      lf0      10.244.3.1/32
//!
//! Pods are routed, not bridged: a packet between two pods of this node passes the same netfilter hooks as
//! any other packet. Services, host ports and policies therefore apply without `br_netfilter` (NET-6), and
//! a pod can reach itself through a Service (NET-7).
//! Not here: which routes to other nodes there are, Services, policies.

use crate::address_pool::GATEWAY;
use crate::attachments::Inner;
use crate::census::{self, Census};
use crate::namespace::{Namespace, UserRange};
use crate::records::check_key;
use crate::{Cidr, Error, OverlayState, Reach, Result, Routes};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::{Semaphore, oneshot};

/// Device names have at most 15 characters. The name of a pod's link is this name, `p` and up to seven digits.
const LINK_NAME_MAX: usize = 7;

#[derive(Debug, Clone)]
pub struct PodsConfig {
    /// Directory for records of pod addresses. It must survive a crash but need not survive a reboot.
    pub state_dir: PathBuf,
    /// Directory with one file per pod network namespace.
    pub netns_dir: PathBuf,
    /// Name of the device with the node's own address in the pod range, at most seven characters.
    /// Names of pod links start with it.
    pub link: String,
    /// This node's pod ranges: one, or one per IP family.
    pub cidrs: Vec<Cidr>,
    /// Ranges that pods reach without masquerading, as well as `cidrs` and [`Pods::set_cluster_ranges`].
    pub cluster_cidrs: Vec<Cidr>,
    /// Name of our nftables table in the families `ip` and `ip6`. No other program may use it.
    pub table: String,
    /// MTU of pods; see [`crate::pod_mtu`].
    pub mtu: u32,
}

#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
pub enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

/// Forwards a port of the node to a port of the pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct HostPort {
    pub protocol: Protocol,
    /// `None`, `0.0.0.0` and `::` mean every address of the node.
    pub host_ip: Option<IpAddr>,
    pub host_port: u16,
    pub container_port: u16,
}

/// The network of an attached pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment {
    /// File that refers to the network namespace, for `setns`.
    pub netns: PathBuf,
    /// At most one per IP family, in the order of the node's ranges.
    pub addresses: Vec<IpAddr>,
}

/// The pod network of one node.
pub struct Pods {
    inner: Arc<Inner>,
    threads: Arc<Semaphore>,
}

/// Each attach and detach call runs in its own thread. Calls beyond this number wait.
const THREADS_MAX: usize = 32;

impl Pods {
    /// Sets up the device, routes and rules that all pods share, in the network namespace of the calling
    /// thread, and takes over attachments of an earlier process. Idempotent.
    pub async fn open(config: PodsConfig) -> Result<Pods> {
        check(&config)?;
        let node = Namespace::current()?;
        let inner = node.clone().run(move || Inner::open(config, node)).await?;
        Ok(Pods { inner: Arc::new(inner), threads: Arc::new(Semaphore::new(THREADS_MAX)) })
    }

    /// Gives `key` a namespace, a link and addresses. A second call for the same key returns the same
    /// attachment and replaces its host ports.
    pub async fn attach(&self, key: &str, ports: &[HostPort]) -> Result<Attachment> {
        self.attach_for(key, ports, None).await
    }

    /// Like [`Pods::attach`], but the network namespace belongs to a new user namespace with these users.
    pub async fn attach_for(
        &self,
        key: &str,
        ports: &[HostPort],
        users: Option<UserRange>,
    ) -> Result<Attachment> {
        check_key(key)?;
        let (key, ports) = (key.to_string(), ports.to_vec());
        self.run(move |inner| inner.attach(&key, ports, users)).await
    }

    /// Removes the attachment of `key`, if there is one.
    pub async fn detach(&self, key: &str) -> Result<()> {
        let key = key.to_string();
        self.run(move |inner| inner.detach(&key)).await
    }

    /// Like [`Pods::detach`], but returns as soon as no packet reaches the pod any more. The kernel takes tens of
    /// milliseconds to remove a device and a namespace; the address is not used again before that is done. If it fails,
    /// the next [`Pods::open`] repeats it.
    pub async fn disconnect(&self, key: &str) -> Result<()> {
        let (sender, disconnected) = oneshot::channel();
        let (key, inner) = (key.to_string(), self.inner.clone());
        let permit = self.threads.clone().acquire_owned().await;
        let node = inner.node.clone();
        let detached = tokio::spawn(async move {
            let _permit = permit;
            let done = move || {
                let _ = sender.send(());
            };
            node.run(move || inner.detach_in_two_steps(&key, done)).await
        });
        // Without a message there was nothing to disconnect, or it failed.
        match disconnected.await {
            Ok(()) => Ok(()),
            Err(_) => detached.await.map_err(|error| Error::Thread(error.to_string()))?,
        }
    }

    /// The pod's open TCP connections. `None` if `key` is not attached: pods with host network never are.
    pub async fn census(&self, key: &str) -> Result<Option<Census>> {
        let (inner, key) = (self.inner.clone(), key.to_string());
        census::run_blocking(move || inner.census(&key)).await
    }

    /// Detaches all keys except these, such as pods that were deleted while the agent was down.
    pub async fn retain(&self, keys: &BTreeSet<String>) -> Result<()> {
        let known: Vec<String> = self.inner.state().records.keys().cloned().collect();
        for key in known.iter().filter(|key| !keys.contains(*key)) {
            self.detach(key).await?;
        }
        Ok(())
    }

    /// Detaches all pods and removes everything that this crate created in the kernel.
    pub async fn remove(&self) -> Result<()> {
        self.retain(&BTreeSet::new()).await?;
        self.run(|inner| inner.remove()).await
    }

    /// The attachment of `key`, if it is complete.
    pub fn find(&self, key: &str) -> Option<Attachment> {
        let state = self.inner.state();
        let record = state.records.get(key).filter(|record| record.complete)?;
        Some(self.inner.attachment(record))
    }

    pub fn config(&self) -> &PodsConfig {
        self.inner.config()
    }

    /// The node's pod ranges, and its own address in each.
    pub fn gateways(&self) -> Vec<(Cidr, IpAddr)> {
        let ranges = self.inner.ranges().iter();
        ranges.filter_map(|range| Some((*range, range.nth(GATEWAY)?))).collect()
    }

    /// Replaces the pod ranges of other nodes. Pods reach these without masquerading (NET-5). Until the first
    /// call these are the ranges that the kernel has routes to.
    pub async fn set_cluster_ranges(&self, ranges: &[Cidr]) -> Result<()> {
        let ranges = ranges.to_vec();
        self.run(move |inner| inner.rules().set_cluster_ranges(&ranges)).await
    }

    /// How the kernel reaches each of these addresses.
    pub async fn reach(&self, addresses: &[IpAddr]) -> Result<BTreeMap<IpAddr, Reach>> {
        let addresses = addresses.to_vec();
        self.run(move |inner| inner.reach(&addresses)).await
    }

    /// Lets this node itself send to Service addresses for which it has no route, such as a default route of IPv6.
    pub async fn add_service_routes(&self, ranges: &[Cidr]) -> Result<()> {
        let ranges = ranges.to_vec();
        self.run(move |inner| inner.add_service_routes(&ranges)).await
    }

    /// Makes the routes to pods of other nodes equal to these. Idempotent; changes only what is different.
    pub async fn set_routes(&self, routes: &Routes) -> Result<OverlayState> {
        let routes = routes.clone();
        self.run(move |inner| inner.set_routes(&routes)).await
    }

    /// This node's pod ranges.
    pub fn ranges(&self) -> &[Cidr] {
        &self.inner.config.cidrs
    }

    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Inner) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let _permit = self.threads.acquire().await;
        let inner = self.inner.clone();
        self.inner.node.run(move || work(&inner)).await
    }
}

fn check(config: &PodsConfig) -> Result<()> {
    let families: BTreeSet<bool> = config.cidrs.iter().map(Cidr::is_ipv4).collect();
    if config.cidrs.is_empty() || families.len() < config.cidrs.len() {
        return Err(Error::Invalid(
            "a node needs one pod address range, or one per IP family".into(),
        ));
    }
    if config.link.is_empty() || config.link.len() > LINK_NAME_MAX {
        return Err(Error::Invalid(format!(
            "{:?} is not a valid link name: use 1 to {LINK_NAME_MAX} characters",
            config.link
        )));
    }
    Ok(())
}
