//! Keeps the routes of this node to the pods of all other nodes (NET-2, NET-3, NET-4).
//!
//!     Nodes ──▶ peer ──▶ plan (pure) ──▶ network::Pods::set_cluster_ranges, set_routes
//!                          ▲
//!     network::Pods::reach ┘
//!
//! Nothing is removed from the kernel before the list of Nodes is complete, and nothing while the API server is
//! unreachable: the cache then keeps its objects.

mod peer;
mod plan;
mod ranges;

use crate::Watched;
use client::{Cache, ObjectKey};
use k8s_openapi::api::core::v1::Node;
use network::{Overlay, OverlayState, Pods};
use peer::{Peer, internal_addresses};
use plan::{Plan, ThisNode, addresses_of, plan};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

/// The kernel deletes routes when a device goes down, and a subnet may change. No Node object shows that, so
/// routes are compared this often.
const RESYNC: Duration = Duration::from_secs(10);
const RETRY_FIRST: Duration = Duration::from_millis(200);
const RETRY_MAX: Duration = Duration::from_secs(10);

#[derive(Debug, Clone)]
pub struct Config {
    pub node_name: String,
    /// Addresses of this node. Those of its Node object take precedence.
    pub node_ips: Vec<IpAddr>,
    /// VXLAN network identifier, the same on all nodes.
    pub vni: u32,
    /// UDP port of the overlay, the same on all nodes.
    pub port: u16,
    /// Send packets for pods of neighbours directly. False if the network drops packets with pod addresses, as
    /// networks of cloud providers do: everything then goes through the overlay.
    pub direct: bool,
}

impl Config {
    pub fn new(node_name: impl Into<String>, node_ips: &[IpAddr]) -> Config {
        Config {
            node_name: node_name.into(),
            node_ips: node_ips.to_vec(),
            vni: Overlay::VNI,
            port: Overlay::PORT,
            direct: true,
        }
    }
}

/// How far the routes are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    /// The kernel has the routes to all nodes of a complete list.
    pub ready: bool,
    /// How often the routes have changed since the start.
    pub changes: u64,
    /// Message for the Node condition NetworkUnavailable: setting the routes fails, or some nodes are reachable only
    /// through the overlay, and this kernel has none.
    pub network_unavailable: Option<String>,
    /// Nodes whose pods are not reachable, and why.
    pub problems: Vec<String>,
}

impl Status {
    /// Whether this node can reach the pods of all other nodes. None until it is known.
    pub fn reachable(&self) -> Option<Result<(), String>> {
        match &self.network_unavailable {
            Some(why) => Some(Err(why.clone())),
            None => self.ready.then_some(Ok(())),
        }
    }
}

/// The task that keeps the routes. It ends when this is dropped; the routes stay.
pub struct Running {
    status: watch::Receiver<Status>,
    task: JoinHandle<()>,
    /// Closed to stop the task.
    stop: oneshot::Sender<()>,
}

impl Running {
    pub fn status(&self) -> watch::Receiver<Status> {
        self.status.clone()
    }

    /// Stops the task and waits until it no longer changes anything. The routes stay.
    pub async fn stop(self) {
        drop(self.stop);
        let _ = self.task.await;
    }
}

/// Starts the task that keeps the routes to other nodes. Needs a tokio runtime.
pub fn start(watched: Watched, pods: Arc<Pods>, config: Config) -> Running {
    let (sender, status) = watch::channel(Status::default());
    let keeper = Keeper {
        nodes: watched.nodes,
        addresses: config.node_ips.clone(),
        pods,
        config,
        peers: BTreeMap::new(),
        applied: None,
        status: sender,
    };
    let (stop, stopped) = oneshot::channel();
    Running { status, task: tokio::spawn(keeper.run(stopped)), stop }
}

struct Keeper {
    nodes: Cache<Node>,
    pods: Arc<Pods>,
    config: Config,
    /// Addresses of this node.
    addresses: Vec<IpAddr>,
    /// The other nodes, by name.
    peers: BTreeMap<String, Peer>,
    /// What was applied last without an error.
    applied: Option<Plan>,
    status: watch::Sender<Status>,
}

impl Keeper {
    async fn run(mut self, mut stopped: oneshot::Receiver<()>) {
        tokio::select! {
            () = self.nodes.synced() => {}
            _ = &mut stopped => return,
        }
        let mut changes = self.nodes.subscribe();
        let mut retry = RETRY_FIRST;
        loop {
            while let Some(key) = changes.try_next() {
                self.update(&key);
            }
            let pause = match self.reconcile().await {
                Ok(()) => {
                    retry = RETRY_FIRST;
                    RESYNC
                }
                Err(error) => {
                    // A device may go down for a moment. An error that remains is reported.
                    if retry > RETRY_FIRST {
                        self.report_failure(&error);
                    }
                    let pause = retry;
                    retry = (retry * 2).min(RETRY_MAX);
                    tracing::warn!(%error, retry_in = ?pause, "setting routes to other nodes failed");
                    pause
                }
            };
            // Only waiting is interrupted: a change of the kernel's state runs to its end.
            tokio::select! {
                () = self.wait(&mut changes, pause) => {}
                _ = &mut stopped => return,
            }
        }
    }

    /// Waits until a Node has changed in a way that matters, at most for `pause`.
    async fn wait(&mut self, changes: &mut client::Changes, pause: Duration) {
        let change = async {
            loop {
                let key = changes.next().await;
                if self.update(&key) {
                    return;
                }
            }
        };
        let _ = tokio::time::timeout(pause, change).await;
    }

    /// Reads a Node again. Whether it has changed in a way that matters: most changes of a Node are heartbeats.
    fn update(&mut self, key: &ObjectKey) -> bool {
        let node = self.nodes.get(key);
        if key.name() == self.config.node_name {
            let known = node.map(|node| internal_addresses(&node)).unwrap_or_default();
            let new = if known.is_empty() { self.config.node_ips.clone() } else { known };
            let changed = new != self.addresses;
            self.addresses = new;
            return changed;
        }
        match node.and_then(|node| Peer::of(&node)) {
            Some(peer) => self.peers.insert(key.name().to_owned(), peer.clone()) != Some(peer),
            None => self.peers.remove(key.name()).is_some(),
        }
    }

    /// Safe to call at any time, for any reason, twice.
    async fn reconcile(&mut self) -> Result<(), network::Error> {
        let this = ThisNode {
            ranges: self.pods.ranges().to_vec(),
            addresses: self.addresses.clone(),
            vni: self.config.vni,
            port: self.config.port,
            direct: self.config.direct,
        };
        let reach = self.pods.reach(&addresses_of(&self.peers)).await?;
        let plan = plan(&this, &self.peers, &reach);
        // Ranges first: a connection to a pod that was masqueraded stays so.
        self.pods.set_cluster_ranges(&plan.cluster_ranges).await?;
        let overlay = self.pods.set_routes(&plan.routes).await?;
        self.report(plan, overlay);
        Ok(())
    }

    fn report_failure(&self, error: &network::Error) {
        let why = format!("setting routes to other nodes failed: {error}");
        self.status.send_if_modified(|status| {
            let changed = status.network_unavailable.as_ref() != Some(&why);
            status.network_unavailable = Some(why);
            changed
        });
    }

    fn report(&mut self, plan: Plan, overlay: OverlayState) {
        let network_unavailable = match overlay {
            OverlayState::Unsupported(why) if !plan.overlay_nodes.is_empty() => {
                let nodes = plan.overlay_nodes.join(", ");
                Some(format!("no VXLAN, so pods of these nodes are unreachable: {nodes}: {why}"))
            }
            OverlayState::Unsupported(_) | OverlayState::Unused | OverlayState::Ready => None,
        };
        let mut changes = self.status.borrow().changes;
        if self.applied.as_ref() != Some(&plan) {
            changes += 1;
            let routes = &plan.routes;
            let tunnelled: usize = routes.tunnels.iter().map(|tunnel| tunnel.ranges.len()).sum();
            let direct = routes.direct.len();
            tracing::info!(
                nodes = self.peers.len(),
                direct,
                tunnelled,
                "routes to other nodes set"
            );
        }
        let problems = plan.problems.clone();
        let status = Status { ready: true, changes, network_unavailable, problems };
        self.status.send_if_modified(|current| {
            if *current == status {
                return false;
            }
            for problem in status.problems.iter().filter(|new| !current.problems.contains(new)) {
                tracing::warn!("{problem}");
            }
            if let Some(why) = status
                .network_unavailable
                .as_ref()
                .filter(|_| current.network_unavailable.is_none())
            {
                tracing::error!("{why}");
            }
            *current = status.clone();
            true
        });
        self.applied = Some(plan);
    }
}
