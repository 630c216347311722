//! Acknowledged drain: a terminating pod waits until nothing sends it new connections.
//!
//!     the pod's node                                 every other participant
//!     EndpointSlices show the pod as terminating
//!     awaits: 1234 ──▶ its DrainParticipant ──watch──▶ commits 1234
//!     all have committed 1234 ◀──watch── its DrainParticipant ◀── committed: 1234
//!
//! Participants are the proxies of all ready nodes, and load balancers that have registered. `requirement.rs` says which
//! version has to be committed, `acknowledgement.rs` writes this node's object, `wait.rs` waits for one pod.
//! Not here: what the node does with the answer (`node`).

mod acknowledgement;
mod participant;
mod requirement;
mod settings;
mod wait;

pub use participant::{DrainParticipant, Spec, Status};
pub use settings::Drain;

use crate::Watched;
use acknowledgement::Acknowledger;
use client::{Cache, Client, ObjectKey};
use k8s_openapi::api::core::v1::Pod;
use lifecycle::drain::DrainUpdate;
use settings::settings;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use wait::Wait;

#[derive(Debug, Clone)]
pub struct Config {
    pub node_name: String,
    /// For pods without an annotation.
    pub default: Drain,
}

/// Acknowledges for this node and waits for its pods. Dropping it stops both.
pub struct Running {
    drains: Drains,
    task: JoinHandle<()>,
}

/// A handle; clones share everything.
#[derive(Clone)]
pub struct Drains {
    client: Client,
    config: Config,
    watched: Watched,
    participants: Cache<DrainParticipant>,
    committed: watch::Receiver<u64>,
    awaits: watch::Sender<u64>,
}

/// `committed` is what this node's proxy has committed ([`crate::services::Running::committed`]).
pub fn start(
    client: &Client,
    watched: &Watched,
    committed: watch::Receiver<u64>,
    config: Config,
) -> Running {
    let drains = Drains {
        client: client.clone(),
        watched: watched.clone(),
        participants: Cache::start(client),
        committed,
        awaits: watch::Sender::new(0),
        config,
    };
    let acknowledger = Acknowledger {
        client: client.clone(),
        node: drains.config.node_name.clone(),
        watched: watched.clone(),
        participants: drains.participants.clone(),
        committed: drains.committed.clone(),
        awaits: drains.awaits.subscribe(),
    };
    Running { drains, task: tokio::spawn(acknowledger.run()) }
}

impl Running {
    pub fn drains(&self) -> Drains {
        self.drains.clone()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Drains {
    /// Waits until nothing sends new connections to this terminating pod. None: the pod does not have acknowledged drain, or
    /// nothing can send connections to it.
    pub fn wait(&self, pod: &Pod) -> Option<mpsc::Receiver<DrainUpdate>> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let namespace = self.watched.namespaces.get(&ObjectKey::cluster(namespace));
        let settings = settings(pod, namespace.as_deref(), self.config.default)?;
        let has_address = pod.status.as_ref().is_some_and(|status| status.pod_ip.is_some());
        if pod.metadata.deletion_timestamp.is_none() || !has_address {
            return None; // The EndpointSlices do not list it, or do not show that it terminates.
        }
        Some(Wait::new(self.clone(), pod.clone(), settings).updates())
    }
}
