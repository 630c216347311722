//! Makes the DNS server of this node known: the Service kube-system/kube-dns, and one EndpointSlice per node
//! (NET-105).
//!
//! Several tools look for that Service. Each node adds its own server; pods use the one of their node
//! (`PreferSameNode`) and others only if it is missing. The slice belongs to the Node object, so the garbage collector
//! deletes it with the node.

mod plan;

use crate::Watched;
use client::{Client, ObjectKey, Queue, run_controller};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use plan::{Change, NAME, NAMESPACE, ServicePlan, slice_change, slice_name};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use tokio::task::JoinHandle;

pub use plan::dns_address;

#[derive(Debug, Clone)]
pub struct RegistrationConfig {
    /// The name of this node.
    pub node: String,
    /// Where this node's server answers. Other nodes must be able to reach it.
    pub server: SocketAddr,
    /// The cluster IP of the Service; see [`dns_address`].
    pub cluster_ip: IpAddr,
}

#[derive(Debug, thiserror::Error)]
enum RegistrationError {
    #[error(transparent)]
    Write(#[from] client::Error),
    #[error(
        "the Service {NAMESPACE}/{NAME} has the cluster IP {found:?} instead of {wanted}; delete it to have it recreated"
    )]
    OtherClusterIp { found: String, wanted: IpAddr },
}

/// Keeps the objects up to date until it is dropped. The objects stay.
pub struct Registration {
    queue: Queue<Registered>,
    task: JoinHandle<()>,
}

/// What is kept up to date.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Registered {
    Service,
    Slice,
}

/// Creates the Service and this node's EndpointSlice, and repairs them after changes.
pub fn register(client: &Client, watched: &Watched, config: RegistrationConfig) -> Registration {
    let queue = Queue::new();
    feed(&queue, watched, &config);
    let (client, watched, keys) = (client.clone(), watched.clone(), queue.clone());
    let task = tokio::spawn(async move {
        watched.synced().await;
        let registrar = Arc::new(Registrar { client, watched, config });
        let reconcile = |key: Registered| {
            let registrar = registrar.clone();
            async move {
                match key {
                    Registered::Service => registrar.reconcile_service().await,
                    Registered::Slice => registrar.reconcile_slice().await,
                }
            }
        };
        run_controller("dns-registration", &keys, 1, reconcile).await;
    });
    Registration { queue, task }
}

/// Only changes of these three objects matter.
fn feed(queue: &Queue<Registered>, watched: &Watched, config: &RegistrationConfig) {
    // Also if there is no object at all.
    queue.add(Registered::Service);
    queue.add(Registered::Slice);
    watched.services.feed(queue, |service| {
        let (namespace, name) = (&service.metadata.namespace, &service.metadata.name);
        match namespace.as_deref() == Some(NAMESPACE) && name.as_deref() == Some(NAME) {
            true => vec![Registered::Service],
            false => Vec::new(),
        }
    });
    let slice = slice_name(&config.node);
    watched.slices.feed(queue, move |changed| {
        let metadata = &changed.metadata;
        let mine = metadata.namespace.as_deref() == Some(NAMESPACE)
            && metadata.name.as_ref() == Some(&slice);
        if mine { vec![Registered::Slice] } else { Vec::new() }
    });
    let node = config.node.clone();
    // The Node object changes with each heartbeat; only the UID and the zone are of interest.
    watched.nodes.feed_changes(queue, move |before, after| {
        let mine = [before, after].into_iter().flatten();
        let mine = mine.filter(|changed| changed.metadata.name.as_ref() == Some(&node)).count() > 0;
        match mine && plan::owner(before) != plan::owner(after) {
            true => vec![Registered::Slice],
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
    async fn reconcile_service(&self) -> Result<(), RegistrationError> {
        let observed = self.watched.services.get(&ObjectKey::new(NAMESPACE, NAME));
        let wanted = ServicePlan { cluster_ip: self.config.cluster_ip };
        match wanted.change(observed.as_deref()) {
            Change::Nothing => Ok(()),
            Change::Create(service) => {
                let created = self.client.create::<Service>(&service).await;
                self.ignore_race(created).await
            }
            Change::Update(service) => {
                let updated = self.client.update::<Service>(&service).await;
                self.ignore_race(updated).await
            }
            Change::Impossible(found) => {
                let wanted = self.config.cluster_ip;
                Err(RegistrationError::OtherClusterIp { found, wanted })
            }
        }
    }

    async fn reconcile_slice(&self) -> Result<(), RegistrationError> {
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

    /// All nodes keep the same Service. Another one was faster: its write arrives as a change and is checked again.
    async fn ignore_race(&self, written: client::Result<Service>) -> Result<(), RegistrationError> {
        match written {
            Err(error) if error.is_already_exists() || error.is_conflict() => Ok(()),
            written => written.map(drop).map_err(RegistrationError::Write),
        }
    }
}
