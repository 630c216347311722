//! A simple load balancer: every Service of type LoadBalancer gets the addresses of the ready nodes, where the Service
//! proxy of each node accepts its connections.
//!
//!     Services, nodes ──▶ plan ──▶ status.loadBalancer, finalizer
//!
//! All Services are planned together, because two of them cannot have the same port of the same addresses. Services with
//! a loadBalancerClass belong to another load balancer and are not touched (NET-24). Not here: forwarding packets
//! (`traffic`).

mod plan;

use crate::start::Cluster;
use client::{Cache, Next, ObjectKey, Queue, Recorder, reference, run_controller};
use k8s_openapi::api::core::v1::{LoadBalancerIngress, Node, Service};
use plan::{Outcome, is_concerned};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

/// Keeps a deleted Service until its load balancer is gone. Upstream: `LoadBalancerCleanupFinalizer`.
const FINALIZER: &str = "service.kubernetes.io/load-balancer-cleanup";

/// Index of the Services that have a load balancer of ours, or want one.
pub(crate) const INDEX: &str = "load-balancer";
/// The one key of the queue and of the index.
const ALL: &str = "all";

/// The index that [`run`] needs.
pub(crate) fn index(service: &Service) -> Vec<String> {
    if is_concerned(service) { vec![ALL.to_owned()] } else { Vec::new() }
}

/// `services` is the cache with the index.
pub(crate) async fn run(cluster: &Cluster, services: Cache<Service>) {
    let queue = Queue::new();
    services.feed_changes(&queue, |before, after| {
        let concerned = before.is_some_and(is_concerned) || after.is_some_and(is_concerned);
        if concerned { vec![ALL.to_owned()] } else { Vec::new() }
    });
    cluster.nodes.feed_changes(&queue, |before, after| {
        let used = |node: Option<&Node>| node.map(plan::addresses);
        if used(before) == used(after) { Vec::new() } else { vec![ALL.to_owned()] }
    });
    services.synced().await;
    cluster.nodes.synced().await;
    let recorder = Recorder::new(&cluster.client, "service-controller", "");
    let controller = Controller { cluster, services, recorder, refused: Mutex::default() };
    run_controller("load-balancer", &queue, 1, |_| controller.reconcile()).await;
}

struct Controller<'a> {
    cluster: &'a Cluster,
    services: Cache<Service>,
    recorder: Recorder,
    /// Why Services got no address, as recorded in an event, so that no event is recorded twice.
    refused: Mutex<BTreeMap<ObjectKey, String>>,
}

impl Controller<'_> {
    async fn reconcile(&self) -> client::Result<Next> {
        let services = self.services.by_index(INDEX, ALL);
        let nodes = self.cluster.nodes.list();
        let outcomes = plan::decide(&services, &nodes);
        let keys: Vec<ObjectKey> = services.iter().map(|one| ObjectKey::of(one.as_ref())).collect();
        self.refused().retain(|key, _| keys.contains(key));
        // A Service that cannot be written must not keep others from their addresses.
        let mut result = Ok(Next::Change);
        for (service, outcome) in services.iter().zip(outcomes) {
            match self.perform(service, outcome).await {
                // It has changed, so there will be another reconcile.
                Err(error) if error.is_conflict() || error.is_not_found() => {}
                Err(error) => result = Err(error),
                Ok(()) => {}
            }
        }
        result
    }

    async fn perform(&self, service: &Service, outcome: Outcome) -> client::Result<()> {
        let (on, key) = (reference(service), ObjectKey::of(service));
        let current = plan::ingress(service);
        match outcome {
            Outcome::Nothing => Ok(()),
            Outcome::Balance(ingress) => {
                self.refused().remove(&key);
                if ingress.is_empty() && !current.is_empty() {
                    let message = "There are no available nodes for LoadBalancer";
                    self.recorder.warning(&on, "UnAvailableLoadBalancer", message);
                }
                if plan::has_finalizer(service) && ingress == current {
                    return Ok(());
                }
                let is_new = current.is_empty();
                if is_new {
                    self.recorder.normal(&on, "EnsuringLoadBalancer", "Ensuring load balancer");
                }
                self.write(service, &ingress, true).await?;
                match is_new {
                    true => {
                        self.recorder.normal(&on, "EnsuredLoadBalancer", "Ensured load balancer")
                    }
                    false => self.recorder.normal(
                        &on,
                        "UpdatedLoadBalancer",
                        "Updated load balancer with new hosts",
                    ),
                }
                Ok(())
            }
            Outcome::Refuse(why) => {
                if self.refused().insert(key, why.clone()).as_ref() != Some(&why) {
                    self.recorder.warning(&on, "SyncLoadBalancerFailed", why);
                }
                match plan::has_finalizer(service) && current.is_empty() {
                    true => Ok(()),
                    false => self.write(service, &[], true).await,
                }
            }
            Outcome::CleanUp => {
                self.refused().remove(&key);
                self.recorder.normal(&on, "DeletingLoadBalancer", "Deleting load balancer");
                self.write(service, &[], false).await?;
                self.recorder.normal(&on, "DeletedLoadBalancer", "Deleted load balancer");
                Ok(())
            }
        }
    }

    /// Writes addresses and finalizer in one request. Fails with a conflict if the Service has changed.
    async fn write(
        &self,
        service: &Service,
        ingress: &[LoadBalancerIngress],
        keep: bool,
    ) -> client::Result<()> {
        let finalizers = match keep {
            true => "finalizers",
            false => "$deleteFromPrimitiveList/finalizers",
        };
        let ingress = if ingress.is_empty() { Value::Null } else { json!(ingress) };
        let patch = json!({
            "metadata": {
                "resourceVersion": service.metadata.resource_version,
                finalizers: [FINALIZER],
            },
            "status": { "loadBalancer": { "ingress": ingress } },
        });
        let key = ObjectKey::of(service);
        self.cluster.client.patch_status::<Service>(&key, &patch).await.map(drop)
    }

    fn refused(&self) -> MutexGuard<'_, BTreeMap<ObjectKey, String>> {
        self.refused.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
