//! NetworkPolicies: which new connections of the pods of this node are allowed.
//!
//! `engine` computes what the kernel's tables have to contain and what changes when an object changes; `driver` follows
//! the API and the agent and commits the changes. `compile` says what a policy means.
//!
//! What the API leaves open:
//! - A policy decides about new connections. Established ones continue until they end, whatever changes (NET-133).
//! - Pods in the network of their node are neither subject nor peer (NET-132); an ipBlock covers them.
//! - Connections from a pod to its own node need egress permission, connections from the node to its pods need none
//!   (NET-131). Servers of the node that stand for pods of an ordinary cluster, such as DNS, can be selected like
//!   pods ([`LocalServer`]).
//! - Rules with ports are for TCP, UDP and SCTP. Other protocols pass if a rule without ports allows the peer.
//!   Neighbour discovery and ICMP errors about allowed connections always pass (NET-135).

mod compile;
mod contents;
mod driver;
mod engine;
mod pod;
mod presence;
mod ranges;
mod selector;
mod sets;
#[cfg(test)]
mod tests;

use crate::Watched;
use client::{Cache, Client};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use network::policies::{PodLinks, PolicyConfig, PolicyTables};
use network::{Cidr, Protocol};
use pod::{Instance, PodFacts};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

/// Announcements of the agent that wait for the driver. Further ones wait in their callers.
const ANNOUNCEMENTS_MAX: usize = 256;

/// How long a caller waits until the kernel has the rules of a pod. The first time includes listing all pods.
const WAIT_MAX: Duration = Duration::from_secs(30);

#[derive(Debug, Clone)]
pub struct Config {
    /// Name of the nftables tables, which no other program may use: the pods' table with the suffix `-policies`.
    pub table: String,
    /// As in `network::PodsConfig`.
    pub link: String,
    /// As in `network::PodsConfig`.
    pub cidrs: Vec<Cidr>,
    pub node_name: String,
    pub servers: Vec<LocalServer>,
}

impl Config {
    /// For the pods of this network.
    pub fn new(pods: &network::PodsConfig, node_name: &str) -> Config {
        Config {
            table: format!("{}-policies", pods.table),
            link: pods.link.clone(),
            cidrs: pods.cidrs.clone(),
            node_name: node_name.to_owned(),
            servers: Vec::new(),
        }
    }
}

/// A server of this node that policies treat as a pod, because in an ordinary cluster it is one.
#[derive(Debug, Clone)]
pub struct LocalServer {
    pub namespace: String,
    pub labels: BTreeMap<String, String>,
    /// As the packets of its clients have them after address translation.
    pub addresses: Vec<IpAddr>,
    /// Names of ports.
    pub ports: Vec<(String, Protocol, u16)>,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Network(#[from] network::Error),
    /// The rules are in place later, or not at all if the API server stays out of reach.
    #[error("the node's network policies are not ready after {} s", WAIT_MAX.as_secs())]
    NotReady,
    #[error("the node's network policies could not be written: {0}")]
    Failed(String),
    #[error("network policies are stopped")]
    Stopped,
}

/// Enforces policies until it is dropped. The rules stay in the kernel after that.
pub struct Running {
    policies: Policies,
    driver: JoinHandle<()>,
}

impl Running {
    /// For the agent to announce its pods.
    pub fn policies(&self) -> Policies {
        self.policies.clone()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Starts to enforce policies in the network namespace of the calling thread. Rules of an earlier process stay in
/// force until all objects are known; the new rules then replace them in one transaction.
pub async fn start(client: &Client, watched: &Watched, config: Config) -> Result<Running, Error> {
    let Config { table, link, cidrs, node_name, servers } = config;
    let tables = PolicyConfig { table, link: link.clone(), cidrs: cidrs.clone() };
    let tables = PolicyTables::open(tables).await?;
    let mut engine = engine::Engine::new(&node_name, PodLinks { link, cidrs });
    for (i, server) in servers.into_iter().enumerate() {
        engine.add_server(&format!("server {i}"), Instance::from(server));
    }
    let (sender, announcements) = mpsc::channel(ANNOUNCEMENTS_MAX);
    let caches = driver::Caches {
        pods: watched.pods.clone(),
        namespaces: watched.namespaces.clone(),
        policies: Cache::<NetworkPolicy>::start(client),
    };
    let driver = tokio::spawn(driver::run(caches, engine, tables, announcements));
    Ok(Running { policies: Policies { announcements: sender }, driver })
}

/// A handle for the agent. Cheap to clone.
#[derive(Clone)]
pub struct Policies {
    announcements: mpsc::Sender<Announcement>,
}

enum Announcement {
    Attached { pod: Box<PodFacts>, addresses: Vec<IpAddr>, done: oneshot::Sender<Done> },
    Detached { uid: String, done: oneshot::Sender<Done> },
}

type Done = Result<(), String>;

impl Policies {
    /// To be called when the pod has its addresses and before its first container starts. Returns when the kernel has
    /// the rules of all policies that this node knows (NET-134). Idempotent; a second call replaces the addresses.
    pub async fn pod_attached(&self, pod: &Pod, addresses: &[IpAddr]) -> Result<(), Error> {
        let pod = Box::new(PodFacts::of(pod));
        if pod.host_network {
            return Ok(());
        }
        let addresses = addresses.to_vec();
        self.announce(|done| Announcement::Attached { pod, addresses, done }).await
    }

    /// To be called when no process of the pod is left, before its addresses are released: afterwards no rule contains
    /// them. Does not wait for the API server.
    pub async fn pod_detached(&self, uid: &str) -> Result<(), Error> {
        let uid = uid.to_owned();
        self.announce(|done| Announcement::Detached { uid, done }).await
    }

    async fn announce(
        &self,
        announcement: impl FnOnce(oneshot::Sender<Done>) -> Announcement,
    ) -> Result<(), Error> {
        let (done, result) = oneshot::channel();
        let wait = async {
            let sent = self.announcements.send(announcement(done)).await;
            sent.map_err(|_| Error::Stopped)?;
            result.await.map_err(|_| Error::Stopped)?.map_err(Error::Failed)
        };
        tokio::time::timeout(WAIT_MAX, wait).await.unwrap_or(Err(Error::NotReady))
    }
}

impl From<LocalServer> for Instance {
    fn from(server: LocalServer) -> Instance {
        Instance {
            namespace: server.namespace,
            labels: server.labels,
            ports: server.ports.into_iter().collect::<BTreeSet<_>>(),
            addresses: server.addresses,
            is_peer: true,
            link: None,
        }
    }
}
