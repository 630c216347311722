//! EndpointSlices for Endpoints that users write by hand, for Services without a selector (C-180).

use super::backends::{self, Port};
use super::plan::{Desired, Groups, Plan, plan};
use super::writer::Writer;
use super::{LEADER, MANAGED_BY, SERVICE_NAME, Services, TRIGGER_TIME, is_managed_by};
use crate::start::Cluster;
use crate::workload;
use client::{Next, ObjectKey, Queue, Recorder, reference, run_controller};
use k8s_openapi::api::core::v1::{EndpointAddress, EndpointSubset, Endpoints, Service};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const MANAGER: &str = "endpointslicemirroring-controller.k8s.io";
const SKIP: &str = "endpointslice.kubernetes.io/skip-mirror";
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Upstream: `MirroringMaxEndpointsPerSubset`.
const ADDRESSES_MAX: usize = 1000;

const RETRY_FIRST: Duration = Duration::from_secs(1);

pub(super) async fn run(cluster: &Cluster, services: &Services) {
    let queue = Queue::with_backoff(RETRY_FIRST, client::RETRY_MAX);
    services.endpoints.feed_keys(&queue);
    services.services.feed_keys(&queue);
    services.slices.feed(&queue, |slice| {
        let ours = is_managed_by(slice, MANAGER);
        super::service_of(slice).filter(|_| ours).into_iter().collect()
    });
    services.synced(cluster).await;
    let recorder = Recorder::new(&cluster.client, "endpoint-slice-mirroring-controller", "");
    let writer = Writer::new(|_| ());
    run_controller("endpoint-slice-mirror", &queue, super::WORKERS, |key| {
        reconcile(cluster, services, &recorder, &writer, key)
    })
    .await;
}

async fn reconcile(
    cluster: &Cluster,
    services: &Services,
    recorder: &Recorder,
    writer: &Writer<impl Fn(&'static str)>,
    key: ObjectKey,
) -> client::Result<Next> {
    if !writer.are_cached(services, &key).await {
        return Ok(Next::After(workload::RETRY_DELAY));
    }
    let existing = services.slices_of(&key, MANAGER);
    let service = services.services.get(&key);
    let endpoints = services.endpoints.get(&key);
    let mirrored = endpoints.filter(|endpoints| is_mirrored(endpoints, service.as_deref()));
    let plan = match &mirrored {
        Some(endpoints) => {
            let read = Parsed::of(endpoints);
            for (reason, message) in read.warnings() {
                recorder.warning(&reference(endpoints.as_ref()), reason, message);
            }
            plan_all(endpoints, read, existing)
        }
        None => Plan { delete: existing, ..Plan::default() },
    };
    writer.perform(&cluster.client, services, &key, plan, None).await
}

fn is_mirrored(endpoints: &Endpoints, service: Option<&Service>) -> bool {
    let has = |map: &Option<BTreeMap<String, String>>, key: &str| {
        map.as_ref().and_then(|map| map.get(key)).cloned()
    };
    let meta = &endpoints.metadata;
    let skipped = has(&meta.labels, SKIP).as_deref() == Some("true")
        || has(&meta.annotations, LEADER).is_some()
        || meta.deletion_timestamp.is_some();
    let by_hand = service.is_some_and(|service| {
        let selector = service.spec.as_ref().and_then(|spec| spec.selector.as_ref());
        selector.is_none_or(BTreeMap::is_empty)
    });
    by_hand && !skipped
}

/// The content of an Endpoints object, by address type.
#[derive(Default)]
struct Parsed {
    families: BTreeMap<&'static str, Groups>,
    /// Invalid addresses.
    invalid: usize,
    /// All addresses that are not mirrored, including invalid ones.
    left_out: usize,
}

impl Parsed {
    fn of(endpoints: &Endpoints) -> Parsed {
        let mut read = Parsed::default();
        for subset in endpoints.subsets.iter().flatten() {
            let ports = ports(subset);
            let ready = subset.addresses.iter().flatten().map(|address| (address, true));
            let rest = subset.not_ready_addresses.iter().flatten().map(|address| (address, false));
            let mut room = ADDRESSES_MAX;
            for (address, ready) in ready.chain(rest) {
                let family = backends::family_of(&address.ip).filter(|_| room > 0);
                let Some(family) = family else {
                    read.left_out += 1;
                    read.invalid += usize::from(room > 0);
                    continue;
                };
                room -= 1;
                let groups = read.families.entry(family).or_default();
                groups.add(ports.clone(), endpoint(address, ready));
            }
        }
        read
    }

    /// Reasons and messages of events.
    fn warnings(&self) -> Vec<(&'static str, String)> {
        let invalid = (self.invalid > 0).then(|| {
            let skipped = format!(
                "Skipped {} invalid IP addresses when mirroring to EndpointSlices",
                self.invalid
            );
            ("InvalidIPAddress", skipped)
        });
        let excess = (self.left_out > self.invalid).then(|| {
            let skipped = format!(
                "A max of {ADDRESSES_MAX} addresses can be mirrored to EndpointSlices per Endpoints subset. {} addresses were skipped",
                self.left_out
            );
            ("TooManyAddressesToMirror", skipped)
        });
        invalid.into_iter().chain(excess).collect()
    }
}

fn plan_all(endpoints: &Endpoints, read: Parsed, existing: Vec<Arc<EndpointSlice>>) -> Plan {
    let like = like(endpoints);
    let mut all = Plan::default();
    let mut families = read.families;
    families.entry("IPv4").or_default();
    families.entry("IPv6").or_default();
    for (family, groups) in families {
        let slices = existing.iter().filter(|slice| slice.address_type == family).cloned();
        let wanted =
            Desired { family, groups, slice_max: ADDRESSES_MAX, like: &like, never_none: false };
        let Plan { create, update, delete } = plan(wanted, slices.collect());
        all.create.extend(create);
        all.update.extend(update);
        all.delete.extend(delete);
    }
    all
}

fn ports(subset: &EndpointSubset) -> Vec<Port> {
    let ports = subset.ports.iter().flatten().map(|port| Port {
        name: port.name.clone().unwrap_or_default(),
        port: port.port,
        protocol: port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()),
        app_protocol: port.app_protocol.clone(),
    });
    ports.collect()
}

fn endpoint(address: &EndpointAddress, ready: bool) -> Endpoint {
    Endpoint {
        addresses: vec![address.ip.clone()],
        conditions: Some(EndpointConditions {
            ready: Some(ready),
            ..EndpointConditions::default()
        }),
        hostname: address.hostname.clone().filter(|name| !name.is_empty()),
        node_name: address.node_name.clone(),
        target_ref: address.target_ref.clone(),
        ..Endpoint::default()
    }
}

fn like(endpoints: &Endpoints) -> ObjectMeta {
    let name = endpoints.metadata.name.clone().unwrap_or_default();
    let mut labels = endpoints.metadata.labels.clone().unwrap_or_default();
    labels.insert(SERVICE_NAME.to_owned(), name.clone());
    labels.insert(MANAGED_BY.to_owned(), MANAGER.to_owned());
    let mut annotations = endpoints.metadata.annotations.clone().unwrap_or_default();
    annotations.retain(|key, _| key != LAST_APPLIED && key != TRIGGER_TIME);
    ObjectMeta {
        generate_name: Some(format!("{name}-")),
        namespace: endpoints.metadata.namespace.clone(),
        labels: Some(labels),
        annotations: Some(annotations),
        owner_references: Some(vec![OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Endpoints".to_owned(),
            name,
            uid: endpoints.metadata.uid.clone().unwrap_or_default(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        }]),
        ..ObjectMeta::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn read<T: client::Object>(value: Value) -> T {
        typed::from_value(value).unwrap()
    }

    /// NET-94: which Endpoints are not mirrored.
    #[test]
    fn net_94_c_180_only_endpoints_of_services_without_a_selector_are_mirrored() {
        let endpoints = |labels: Value, annotations: Value| -> Endpoints {
            read(
                json!({ "metadata": { "name": "e", "labels": labels, "annotations": annotations } }),
            )
        };
        let service = |selector: Value| -> Service {
            read(json!({ "metadata": { "name": "e" }, "spec": { "selector": selector } }))
        };
        let plain = || endpoints(json!({}), json!({}));
        let (bare, selecting) = (service(Value::Null), service(json!({ "a": "b" })));
        assert!(is_mirrored(&plain(), Some(&bare)));
        assert!(!is_mirrored(&plain(), Some(&selecting)));
        assert!(!is_mirrored(&plain(), None));
        assert!(!is_mirrored(&endpoints(json!({ SKIP: "true" }), json!({})), Some(&bare)));
        assert!(is_mirrored(&endpoints(json!({ SKIP: "no" }), json!({})), Some(&bare)));
        assert!(!is_mirrored(&endpoints(json!({}), json!({ LEADER: "{}" })), Some(&bare)));
    }

    /// NET-93: Endpoints of users are mirrored into slices.
    #[test]
    fn net_93_c_180_one_slice_per_family_and_ports() {
        let endpoints: Endpoints = read(json!({
            "metadata": { "namespace": "ns", "name": "e", "uid": "u", "labels": { "l": "1" },
                          "annotations": { "a": "1", LAST_APPLIED: "x", TRIGGER_TIME: "y" } },
            "subsets": [
                {
                    "addresses": [{ "ip": "10.0.0.1", "hostname": "h", "nodeName": "n" }, { "ip": "fd00::1" }],
                    "notReadyAddresses": [{ "ip": "10.0.0.2" }],
                    "ports": [{ "port": 80 }],
                },
                { "addresses": [{ "ip": "10.0.0.3" }],
                  "ports": [{ "name": "a", "port": 1 }, { "name": "b", "port": 2, "protocol": "UDP" }] },
                { "addresses": [{ "ip": "10.0.0.4" }],
                  "ports": [{ "name": "b", "port": 2, "protocol": "UDP" }, { "name": "a", "port": 1 }] },
            ],
        }));
        let plan = plan_all(&endpoints, Parsed::of(&endpoints), Vec::new());
        let text = |slice: &EndpointSlice| {
            let each = slice.endpoints.iter().flatten();
            let each = each.map(|endpoint| endpoint.addresses[0].clone()).collect::<Vec<_>>();
            format!("{} {}", slice.address_type, each.join(" "))
        };
        let made: Vec<String> = plan.create.iter().map(text).collect();
        assert_eq!(made, ["IPv4 10.0.0.1 10.0.0.2", "IPv4 10.0.0.3 10.0.0.4", "IPv6 fd00::1"]);
        let first = serde_json::to_value(&plan.create[0]).unwrap();
        let expected = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "generateName": "e-", "namespace": "ns", "annotations": { "a": "1" },
                "labels": { "l": "1", "kubernetes.io/service-name": "e",
                            "endpointslice.kubernetes.io/managed-by": "endpointslicemirroring-controller.k8s.io" },
                "ownerReferences": [{ "apiVersion": "v1", "kind": "Endpoints", "name": "e", "uid": "u",
                                      "controller": true, "blockOwnerDeletion": true }],
            },
            "addressType": "IPv4",
            "endpoints": [
                { "addresses": ["10.0.0.1"], "conditions": { "ready": true }, "hostname": "h", "nodeName": "n" },
                { "addresses": ["10.0.0.2"], "conditions": { "ready": false } },
            ],
            "ports": [{ "name": "", "port": 80, "protocol": "TCP" }],
        });
        assert_eq!(first, expected);
    }

    /// NET-93, NET-94: a thousand addresses of a subset are mirrored, ready ones first; an event reports the rest.
    #[test]
    fn net_93_net_94_a_thousand_addresses_of_a_subset_are_mirrored_and_the_rest_reported() {
        let addresses = |of: std::ops::Range<usize>| -> Vec<Value> {
            of.map(|n| json!({ "ip": format!("10.0.{}.{}", n / 250, n % 250) })).collect()
        };
        let nonsense = vec![json!({ "ip": "nonsense" })];
        let too_many = |skipped: usize| {
            let max =
                "A max of 1000 addresses can be mirrored to EndpointSlices per Endpoints subset.";
            ("TooManyAddressesToMirror", format!("{max} {skipped} addresses were skipped"))
        };
        let invalid = |number: usize| {
            let text =
                format!("Skipped {number} invalid IP addresses when mirroring to EndpointSlices");
            ("InvalidIPAddress", text)
        };
        for (what, ready, rest, (mirrored, of_them_ready), warnings) in [
            ("all", addresses(0..900), addresses(900..1000), (1000, 900), vec![]),
            (
                "ready first",
                addresses(0..999),
                addresses(999..1009),
                (1000, 999),
                vec![too_many(9)],
            ),
            ("many", addresses(0..1200), addresses(1200..1300), (1000, 1000), vec![too_many(300)]),
            ("no address", nonsense.clone(), addresses(0..1000), (1000, 0), vec![invalid(1)]),
            ("both", nonsense, addresses(0..1001), (1000, 0), vec![invalid(1), too_many(2)]),
        ] {
            let subset =
                json!({ "addresses": ready, "notReadyAddresses": rest, "ports": [{ "port": 80 }] });
            let endpoints = read(json!({ "metadata": { "name": "e" }, "subsets": [subset] }));
            let read = Parsed::of(&endpoints);
            assert_eq!(read.warnings(), warnings, "{what}");
            let plan = plan_all(&endpoints, read, Vec::new());
            assert_eq!(plan.create.len(), 1, "{what}: one slice");
            let all = plan.create[0].endpoints.as_ref().unwrap();
            let is_ready = |e: &&Endpoint| e.conditions.as_ref().unwrap().ready == Some(true);
            assert_eq!(
                (all.len(), all.iter().filter(is_ready).count()),
                (mirrored, of_them_ready),
                "{what}"
            );
        }
    }
}
