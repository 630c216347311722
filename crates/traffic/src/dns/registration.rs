//! Makes the DNS server of this node known: one EndpointSlice per node of the Service kube-system/kube-dns (NET-105).
//!
//! The API server keeps the Service. Each node adds its own server; pods use the one of their node (`PreferSameNode`) and
//! others only if it is missing. The slice belongs to the Node object, so the garbage collector deletes it with the node.

mod plan;

use crate::Watched;
use client::{Client, DeleteOptions, ObjectKey, Queue, run_controller};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use plan::{Change, NAMESPACE, slice_change, slice_name};
use std::net::SocketAddr;
use tokio::task::JoinHandle;

pub use plan::dns_address;

#[derive(Debug, Clone)]
pub struct RegistrationConfig {
    /// The name of this node.
    pub node: String,
    /// Where this node's server answers. Other nodes must be able to reach it.
    pub server: SocketAddr,
}

/// Keeps the slice up to date until it is dropped. The slice stays.
pub struct Registration {
    queue: Queue<Slice>,
    task: JoinHandle<()>,
}

/// The only key: this node's slice.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Slice;

/// Creates this node's EndpointSlice and repairs it after changes.
pub fn register(client: &Client, watched: &Watched, config: RegistrationConfig) -> Registration {
    let queue = Queue::new();
    feed(&queue, watched, &config);
    let (client, watched, keys) = (client.clone(), watched.clone(), queue.clone());
    let task = tokio::spawn(async move {
        watched.synced().await;
        let registrar = Registrar { client, watched, config };
        run_controller("dns-registration", &keys, 1, |Slice| registrar.reconcile()).await;
    });
    Registration { queue, task }
}

/// Only changes of the slice and of the Node object matter.
fn feed(queue: &Queue<Slice>, watched: &Watched, config: &RegistrationConfig) {
    let slice = ObjectKey::new(NAMESPACE, &slice_name(&config.node));
    watched.slices.feed(queue, move |changed| match ObjectKey::of(changed) == slice {
        true => vec![Slice],
        false => Vec::new(),
    });
    let node = config.node.clone();
    // The Node object changes with each heartbeat; only the UID and the zone are of interest.
    watched.nodes.feed_changes(queue, move |before, after| {
        let mut changed = [before, after].into_iter().flatten();
        let mine = changed.any(|changed| changed.metadata.name.as_ref() == Some(&node));
        match mine && plan::owner(before) != plan::owner(after) {
            true => vec![Slice],
            false => Vec::new(),
        }
    });
}

impl Registration {
    /// Ends the repairs. The slice stays, so that pods resolve names while landfall restarts.
    pub async fn stop(mut self) {
        self.queue.shut_down();
        let _ = (&mut self.task).await;
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.queue.shut_down();
        self.task.abort();
    }
}

struct Registrar {
    client: Client,
    watched: Watched,
    config: RegistrationConfig,
}

impl Registrar {
    async fn reconcile(&self) -> client::Result<()> {
        let config = &self.config;
        let Some(node) = self.watched.nodes.get(&ObjectKey::cluster(&config.node)) else {
            // Without the Node object nothing would delete the slice. Its creation leads here again.
            return Ok(());
        };
        let key = ObjectKey::new(NAMESPACE, &slice_name(&config.node));
        let observed = self.watched.slices.get(&key);
        match slice_change(&node, config.server, observed.as_deref()) {
            Change::Nothing => Ok(()),
            Change::Create(slice) => self.client.create::<EndpointSlice>(&slice).await.map(drop),
            Change::Update(slice) => self.client.update::<EndpointSlice>(&slice).await.map(drop),
            // The deletion leads here again.
            Change::Recreate => {
                let options = DeleteOptions::default();
                self.client.delete::<EndpointSlice>(&key, &options).await.map(drop)
            }
        }
    }
}
