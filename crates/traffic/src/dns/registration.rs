//! Makes the DNS server of this node known: an EndpointSlice of the Service kube-system/kube-dns, which the API server
//! creates (NET-105).
//!
//! Several tools look for that Service. Each node adds its own server; pods use the one of their node
//! (`PreferSameNode`) and others only if it is missing. The slice belongs to the Node object, so the garbage collector
//! deletes it with the node.

mod plan;

use crate::Watched;
use client::{Client, ObjectKey, Queue, run_controller};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use plan::{Change, NAMESPACE, slice_change, slice_name};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::task::JoinHandle;

pub use plan::dns_address;

#[derive(Debug, Clone)]
pub struct RegistrationConfig {
    /// The name of this node.
    pub node: String,
    /// Where this node's server answers. Other nodes must be able to reach it.
    pub server: SocketAddr,
}

/// Keeps the objects up to date until it is dropped. The objects stay.
pub struct Registration {
    queue: Queue<()>,
    task: JoinHandle<()>,
}

/// Creates this node's EndpointSlice, and repairs it after changes.
pub fn register(client: &Client, watched: &Watched, config: RegistrationConfig) -> Registration {
    let queue = Queue::new();
    feed(&queue, watched, &config);
    let (client, watched, keys) = (client.clone(), watched.clone(), queue.clone());
    let task = tokio::spawn(async move {
        watched.synced().await;
        let registrar = Arc::new(Registrar { client, watched, config });
        let reconcile = |()| {
            let registrar = registrar.clone();
            async move { registrar.reconcile_slice().await }
        };
        run_controller("dns-registration", &keys, 1, reconcile).await;
    });
    Registration { queue, task }
}

/// Only changes of the slice and of the Node object matter.
fn feed(queue: &Queue<()>, watched: &Watched, config: &RegistrationConfig) {
    // Also if there is no object at all.
    queue.add(());
    let slice = slice_name(&config.node);
    watched.slices.feed(queue, move |changed| {
        let metadata = &changed.metadata;
        let mine = metadata.namespace.as_deref() == Some(NAMESPACE)
            && metadata.name.as_ref() == Some(&slice);
        if mine { vec![()] } else { Vec::new() }
    });
    let node = config.node.clone();
    // The Node object changes with each heartbeat; only the UID and the zone are of interest.
    watched.nodes.feed_changes(queue, move |before, after| {
        let mine = [before, after].into_iter().flatten();
        let mine = mine.filter(|changed| changed.metadata.name.as_ref() == Some(&node)).count() > 0;
        match mine && plan::owner(before) != plan::owner(after) {
            true => vec![()],
            false => Vec::new(),
        }
    });
}

impl Registration {
    /// Ends the repairs. The objects stay, so that pods resolve names while landfall restarts.
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
    async fn reconcile_slice(&self) -> client::Result<()> {
        let config = &self.config;
        let Some(node) = self.watched.nodes.get(&ObjectKey::cluster(&config.node)) else {
            // Without the Node object nothing would delete the slice. Its creation leads here again.
            return Ok(());
        };
        let key = ObjectKey::new(NAMESPACE, &slice_name(&config.node));
        let observed = self.watched.slices.get(&key);
        match slice_change(&node, config.server, observed.as_deref()) {
            Change::Nothing | Change::Impossible(_) => Ok(()),
            Change::Create(slice) => {
                self.client.create::<EndpointSlice>(&slice).await?;
                Ok(())
            }
            Change::Update(slice) => {
                self.client.update::<EndpointSlice>(&slice).await?;
                Ok(())
            }
        }
    }
}
