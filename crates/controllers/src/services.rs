//! Publishes the pods of Services: as EndpointSlices, as Endpoints for old clients, and as EndpointSlices for Endpoints
//! that users write by hand.
//!
//!     pods, nodes, Services ──▶ backends ──▶ slices ──▶ plan ──▶ EndpointSlices
//!                                  └───────▶ endpoints ────────▶ Endpoints ──▶ mirror
//!
//! `backends` finds pods, addresses and ports; `zone_hints` prefers endpoints of the own zone; `plan` distributes
//! endpoints to slices with few writes; `slice_metrics` counts the changes. Not here: forwarding packets (`network`).

mod backends;
mod endpoints;
mod mirror;
mod plan;
mod slice_metrics;
mod slices;
mod writer;
mod zone_hints;

pub(crate) use slice_metrics::CATALOGUE;

use crate::load_balancer;
use crate::pods;
use crate::service_addresses;
use crate::start::Cluster;
use client::{Cache, ObjectKey};
use k8s_openapi::api::core::v1::{Endpoints, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use std::collections::BTreeMap;
use std::sync::Arc;

const WORKERS: usize = 5;

const SERVICE_NAME: &str = "kubernetes.io/service-name";
const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
const HEADLESS: &str = "service.kubernetes.io/headless";
/// Marks Endpoints that are used as a lock for leader election.
const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";
const TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// Services by one label of their selector. A selected pod has all of them, so it has this one.
const BY_SELECTOR: &str = "selector";
const BY_SERVICE: &str = "service";
/// Services that ask for zone hints, all under one key.
const BY_ZONE_HINTS: &str = "zone-hints";
const ZONE_HINTS: &str = "yes";

struct Services {
    services: Cache<Service>,
    slices: Cache<EndpointSlice>,
    endpoints: Cache<Endpoints>,
}

/// The cache that [`run`] needs; `service_addresses` and `load_balancer` share it.
pub(crate) fn services(client: &client::Client) -> Cache<Service> {
    Cache::builder(client)
        .index(BY_SELECTOR, |service: &Service| {
            let namespace = service.metadata.namespace.as_deref().unwrap_or_default();
            let first = selector(service).and_then(|selector| selector.iter().next());
            first.map(|(key, value)| pods::label(namespace, key, value)).into_iter().collect()
        })
        .index(service_addresses::BY_ADDRESS, service_addresses::addresses)
        .index(load_balancer::INDEX, load_balancer::index)
        .index(BY_ZONE_HINTS, |service: &Service| {
            let hinted = zone_hints::is_enabled(service) && selector(service).is_some();
            if hinted { vec![ZONE_HINTS.to_owned()] } else { Vec::new() }
        })
        .start()
}

pub(crate) async fn run(cluster: &Cluster, services: Cache<Service>) {
    let services = Services {
        services,
        slices: Cache::builder(&cluster.client)
            .index(BY_SERVICE, |slice: &EndpointSlice| {
                service_of(slice).map(|key| key.to_string()).into_iter().collect()
            })
            .start(),
        endpoints: Cache::start(&cluster.client),
    };
    let [slices, endpoints, mirror] =
        ["endpointslice-controller", "endpoint-controller", "endpointslicemirroring-controller"]
            .map(|account| cluster.with_account(account));
    tokio::join!(
        slices::run(&slices, &services),
        endpoints::run(&endpoints, &services),
        mirror::run(&mirror, &services),
    );
}

/// The selector; `None` if another client manages the endpoints (T-NET-7).
fn selector(service: &Service) -> Option<&BTreeMap<String, String>> {
    let spec = service.spec.as_ref()?;
    let selector = spec.selector.as_ref().filter(|selector| !selector.is_empty())?;
    (spec.type_.as_deref() != Some("ExternalName")).then_some(selector)
}

fn is_headless(service: &Service) -> bool {
    let address = service.spec.as_ref().and_then(|spec| spec.cluster_ip.as_deref());
    matches!(address.unwrap_or_default(), "" | "None")
}

/// The Service that a slice belongs to.
fn service_of(slice: &EndpointSlice) -> Option<ObjectKey> {
    let name = slice.metadata.labels.as_ref()?.get(SERVICE_NAME)?;
    Some(ObjectKey::new(slice.metadata.namespace.as_deref().unwrap_or_default(), name))
}

fn is_managed_by(slice: &EndpointSlice, manager: &str) -> bool {
    let labels = slice.metadata.labels.as_ref();
    labels.and_then(|labels| labels.get(MANAGED_BY)).is_some_and(|there| there == manager)
}

impl Services {
    async fn synced(&self, cluster: &Cluster) {
        self.services.synced().await;
        self.slices.synced().await;
        self.endpoints.synced().await;
        cluster.pods.synced().await;
        cluster.nodes.synced().await;
    }

    /// The slices of a Service that `manager` manages, without those that are being deleted.
    fn slices_of(&self, service: &ObjectKey, manager: &str) -> Vec<Arc<EndpointSlice>> {
        let mut slices = self.slices.by_index(BY_SERVICE, &service.to_string());
        slices.retain(|slice| {
            slice.metadata.deletion_timestamp.is_none() && is_managed_by(slice, manager)
        });
        slices
    }
}

/// The Services that select a pod. The cost depends on the number of labels of the pod.
fn selecting(services: &Cache<Service>, pod: &Pod) -> Vec<ObjectKey> {
    let namespace = pods::namespace(pod);
    let Some(labels) = &pod.metadata.labels else { return Vec::new() };
    let mut found = Vec::new();
    for (key, value) in labels {
        for service in services.by_index(BY_SELECTOR, &pods::label(namespace, key, value)) {
            let selects = selector(&service)
                .is_some_and(|wanted| wanted.iter().all(|(k, v)| labels.get(k) == Some(v)));
            if selects {
                found.push(ObjectKey::of(service.as_ref()));
            }
        }
    }
    found
}

/// Whether two versions of a pod give the same endpoint. Hostname and subdomain matter too, but cannot change.
fn has_same_endpoint(before: &Pod, after: &Pod) -> bool {
    let addresses = |pod: &Pod| pod.status.as_ref().map(|s| (s.pod_ip.clone(), s.pod_ips.clone()));
    let ready = |pod: &Pod| {
        let ready = pods::condition(pod, "Ready");
        ready.map(|ready| (ready.status == "True", ready.last_transition_time.clone()))
    };
    before.metadata.uid == after.metadata.uid
        && before.metadata.labels == after.metadata.labels
        && pods::is_being_deleted(before) == pods::is_being_deleted(after)
        && pods::is_terminal(before) == pods::is_terminal(after)
        && pods::node_name(before) == pods::node_name(after)
        && ready(before) == ready(after)
        && addresses(before) == addresses(after)
}

/// Queues the Services that a change of pods or nodes affects.
fn feed_backends(cluster: &Cluster, services: &Services, queue: &client::Queue<ObjectKey>) {
    let known = services.services.clone();
    cluster.pods.feed_changes(queue, move |before, after| match (before, after) {
        (Some(before), Some(after)) if has_same_endpoint(before, after) => Vec::new(),
        _ => [before, after].into_iter().flatten().flat_map(|pod| selecting(&known, pod)).collect(),
    });
    let (known, pods) = (services.services.clone(), cluster.pods.clone());
    cluster.nodes.feed_changes(queue, move |before, after| {
        let place =
            |node: &k8s_openapi::api::core::v1::Node| backends::zone(node).map(str::to_owned);
        // Only the zone and the existence of a node matter.
        if before.is_some() && before.map(place) == after.map(place) {
            return Vec::new();
        }
        let name = after.or(before).and_then(|node| node.metadata.name.as_deref());
        let there = pods.by_index(pods::BY_NODE, name.unwrap_or_default());
        there.iter().flat_map(|pod| selecting(&known, pod)).collect()
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(change: Value) -> Pod {
        let pod = json!({
            "metadata": { "name": "p", "uid": "u", "labels": { "app": "web" } },
            "spec": { "nodeName": "n", "containers": [{ "name": "c", "image": "i" }] },
            "status": { "phase": "Running", "podIP": "10.0.0.1", "podIPs": [{ "ip": "10.0.0.1" }],
                        "conditions": [{ "type": "Ready", "status": "True",
                                         "lastTransitionTime": "2026-01-01T00:00:00Z" }] },
        });
        typed::from_value(api::patch::merge(&pod, &change).unwrap()).unwrap()
    }

    /// NET-80: when two endpoints are the same.
    #[test]
    fn net_80_only_changes_of_the_endpoint_queue_the_services_of_a_pod() {
        let ready = |status: &str, reason: &str| {
            json!([{ "type": "Ready", "status": status, "reason": reason,
                     "lastTransitionTime": "2026-01-01T00:00:00Z" }])
        };
        for (what, change, alike) in [
            ("nothing", json!({}), true),
            ("an annotation", json!({ "metadata": { "annotations": { "a": "b" } } }), true),
            ("a finalizer", json!({ "metadata": { "finalizers": ["example.com/f"] } }), true),
            ("its version", json!({ "metadata": { "resourceVersion": "7" } }), true),
            (
                "its image",
                json!({ "spec": { "containers": [{ "name": "c", "image": "j" }] } }),
                true,
            ),
            ("why it is ready", json!({ "status": { "conditions": ready("True", "x") } }), true),
            ("its containers", json!({ "status": { "containerStatuses": [] } }), true),
            ("its labels", json!({ "metadata": { "labels": { "app": "x" } } }), false),
            ("its addresses", json!({ "status": { "podIPs": [{ "ip": "10.0.0.2" }] } }), false),
            ("readiness", json!({ "status": { "conditions": ready("False", "") } }), false),
            (
                "deletion",
                json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } }),
                false,
            ),
            ("its phase", json!({ "status": { "phase": "Failed" } }), false),
            ("another pod of the same name", json!({ "metadata": { "uid": "v" } }), false),
        ] {
            assert_eq!(has_same_endpoint(&pod(json!({})), &pod(change)), alike, "{what}");
        }
    }
}
