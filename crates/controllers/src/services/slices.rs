//! EndpointSlices of Services with a selector (T-NET-1 to T-NET-9, C-176 to C-178).
//!
//! A terminating pod stays in its slice with the condition `terminating`, so that it can finish serving requests.

use super::backends::{self, Port};
use super::plan::{Desired, Groups, Plan, plan};
use super::slice_metrics::{SliceMetrics, SyncResult, SyncStats};
use super::writer::{Triggers, Writer};
use super::zone_hints::{self, Report, Reported};
use super::{
    BY_ZONE_HINTS, HEADLESS, MANAGED_BY, SERVICE_NAME, Services, ZONE_HINTS, is_headless,
    is_managed_by, selector,
};
use crate::pods;
use crate::start::Cluster;
use crate::workload;
use client::{Next, ObjectKey, Queue, Recorder, reference, run_controller};
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use k8s_openapi::api::discovery::v1::{
    Endpoint, EndpointConditions, EndpointHints, EndpointSlice, ForNode, ForZone,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use std::sync::Arc;
use std::time::Duration;

const MANAGER: &str = "endpointslice-controller.k8s.io";

pub(super) const TOPOLOGY_MODE: &str = "service.kubernetes.io/topology-mode";
/// The older name of [`TOPOLOGY_MODE`].
pub(super) const TOPOLOGY_HINTS: &str = "service.kubernetes.io/topology-aware-hints";

/// Upstream: `MaxEndpointsPerSlice`.
const SLICE_MAX: usize = 100;

/// Delay before a slice that another client changed is corrected. Upstream: `endpointSliceChangeMinSyncDelay`.
const SLICE_DELAY: Duration = Duration::from_secs(1);

/// Upstream: `endpointSliceMinSyncBackoff`. The maximum is a minute, as for all queues.
const RETRY_FIRST: Duration = Duration::from_secs(1);

pub(super) async fn run(cluster: &Cluster, services: &Services) {
    let queue = Queue::with_backoff(RETRY_FIRST, client::RETRY_MAX);
    services.services.feed_keys(&queue);
    services.slices.feed_after(&queue, SLICE_DELAY, |slice| {
        let ours = is_managed_by(slice, MANAGER);
        super::service_of(slice).filter(|_| ours).into_iter().collect()
    });
    super::feed_backends(cluster, services, &queue);
    feed_zones(cluster, services, &queue);
    services.synced(cluster).await;
    let metrics = SliceMetrics::new(cluster.metrics.registry());
    let slices = Slices {
        cluster,
        services,
        recorder: Recorder::new(&cluster.client, "endpoint-slice-controller", ""),
        triggers: Triggers::default(),
        zone_hints: Reported::default(),
        writer: Writer::new(|operation| metrics.changed(operation)),
        metrics: &metrics,
    };
    run_controller("endpoint-slices", &queue, super::WORKERS, |key| slices.sync(key)).await;
}

/// Queues the Services with zone hints when the CPUs of a zone change.
fn feed_zones(cluster: &Cluster, services: &Services, queue: &Queue<ObjectKey>) {
    let known = services.services.clone();
    cluster.nodes.feed_changes(queue, move |before, after| {
        let [before, after] = [before, after].map(|node| node.and_then(zone_hints::capacity));
        match before == after {
            true => Vec::new(),
            false => {
                let hinted = known.by_index(BY_ZONE_HINTS, ZONE_HINTS);
                hinted.iter().map(|service| ObjectKey::of(service.as_ref())).collect()
            }
        }
    });
}

struct Slices<'a, C> {
    cluster: &'a Cluster,
    services: &'a Services,
    recorder: Recorder,
    triggers: Triggers,
    zone_hints: Reported,
    writer: Writer<C>,
    metrics: &'a SliceMetrics,
}

impl<C: Fn(&'static str)> Slices<'_, C> {
    async fn sync(&self, key: ObjectKey) -> client::Result<Next> {
        if !self.writer.are_cached(self.services, &key).await {
            self.metrics.ended(SyncResult::Stale);
            return Ok(Next::After(workload::RETRY_DELAY));
        }
        let result = self.reconcile(key).await;
        self.metrics.ended(if result.is_ok() { SyncResult::Success } else { SyncResult::Error });
        result
    }

    async fn reconcile(&self, key: ObjectKey) -> client::Result<Next> {
        let service = self.services.services.get(&key);
        let Some(service) = service.filter(|service| selector(service).is_some()) else {
            self.triggers.forget(&key);
            self.metrics.forget(&key);
            self.zone_hints.forget(&key);
            return Ok(Next::Change); // The garbage collector deletes its slices.
        };
        let pods = backends::selected(&self.cluster.pods, &service);
        let existing = self.services.slices_of(&key, MANAGER);

        let node = |name: &str| self.cluster.nodes.get(&ObjectKey::cluster(name));
        let mut hint = |family: &str, endpoints: &mut [(Vec<Port>, Endpoint)]| {
            self.hint_zones(&service, family, endpoints);
        };
        let mut plan = plan_all(&service, &pods, node, existing.clone(), &mut hint);
        if service.metadata.deletion_timestamp.is_some() {
            // Slices of a Service that is being deleted are still updated, but new ones would be deleted again by
            // the garbage collector.
            plan.create.clear();
        }
        let stats = SyncStats::of(&existing, &plan, SLICE_MAX);

        let trigger = self.triggers.since(&key, &service, &pods);
        let client = &self.cluster.client;
        let written = self.writer.perform(client, self.services, &key, plan, trigger).await;
        match &written {
            Ok(_) => self.metrics.record(&key, stats, traffic_distribution(&service)),
            Err(error) => {
                let message = format!("Error updating Endpoint Slices for Service {key}: {error}");
                let on = reference(service.as_ref());
                self.recorder.warning(&on, "FailedToUpdateEndpointSlices", message);
            }
        }
        written
    }

    /// Sets the hints of a Service that asks for zone hints, and records whether it gets them (NET-86).
    fn hint_zones(&self, service: &Service, family: &str, all: &mut [(Vec<Port>, Endpoint)]) {
        let outcome = zone_hints::is_enabled(service).then(|| {
            let shares = zone_hints::shares(&self.cluster.nodes.list());
            let mut endpoints: Vec<&mut Endpoint> = all.iter_mut().map(|(_, one)| one).collect();
            zone_hints::assign(&mut endpoints, &shares)
        });
        let report = self.zone_hints.change(&ObjectKey::of(service), family, outcome);
        let Some(Report { warning, reason, message }) = report else { return };
        match warning {
            true => self.recorder.warning(&reference(service), reason, message),
            false => self.recorder.normal(&reference(service), reason, message),
        }
    }
}

/// Called with the endpoints of one address family, to change their hints.
type Hint<'a> = dyn FnMut(&str, &mut [(Vec<Port>, Endpoint)]) + 'a;

fn plan_all(
    service: &Service,
    pods: &[Arc<Pod>],
    node: impl Fn(&str) -> Option<Arc<Node>>,
    existing: Vec<Arc<EndpointSlice>>,
    hint: &mut Hint,
) -> Plan {
    let like = like(service);
    let families = backends::families(service);
    let mut all = Plan::default();
    let (mut known, strange): (Vec<_>, Vec<_>) =
        existing.into_iter().partition(|slice| families.contains(&slice.address_type));
    all.delete.extend(strange);
    for family in &families {
        let entries = pods.iter().filter_map(|pod| {
            let node = pods::node_name(pod).and_then(&node);
            entry(service, pod, node.as_deref(), family)
        });
        let mut entries: Vec<(Vec<Port>, Endpoint)> = entries.collect();
        hint(family, &mut entries);
        let mut groups = Groups::default();
        entries.into_iter().for_each(|(ports, endpoint)| groups.add(ports, endpoint));
        let (slices, others) = known.into_iter().partition(|slice| slice.address_type == *family);
        known = others;
        let wanted =
            Desired { family, groups, slice_max: SLICE_MAX, like: &like, never_none: true };
        let Plan { create, update, delete } = plan(wanted, slices);
        all.create.extend(create);
        all.update.extend(update);
        all.delete.extend(delete);
    }
    all
}

/// The endpoint of a pod, if it has one.
fn entry(
    service: &Service,
    pod: &Pod,
    node: Option<&Node>,
    family: &str,
) -> Option<(Vec<Port>, Endpoint)> {
    let publishes = backends::publishes_not_ready(service);
    if pods::is_terminal_pod(pod) || (node.is_none() && !publishes) {
        return None; // T-NET-3, T-NET-6: no terminal pods, none without a node. A new node queues the Service again.
    }
    let address = backends::address(pod, family)?;
    let (serving, terminating) = (pods::is_ready(pod), pods::is_being_deleted(pod));
    let ready = publishes || (serving && !terminating);
    let zone = node.and_then(backends::zone).map(str::to_owned);
    let node_name = pods::node_name(pod).map(str::to_owned);
    let endpoint = Endpoint {
        addresses: vec![address],
        conditions: Some(EndpointConditions {
            ready: Some(ready),
            serving: Some(serving),
            terminating: Some(terminating),
        }),
        hints: hints(service, ready, zone.as_deref(), node_name.as_deref()),
        hostname: backends::hostname(service, pod),
        node_name,
        target_ref: Some(backends::target_ref(pod)),
        zone,
        deprecated_topology: None,
    };
    Some((backends::ports(service, pod), endpoint))
}

/// The zones and nodes that should prefer the endpoint (C-178).
fn hints(
    service: &Service,
    ready: bool,
    zone: Option<&str>,
    node: Option<&str>,
) -> Option<EndpointHints> {
    let distribution = traffic_distribution(service).filter(|_| ready)?;
    let for_zones = zone.map(|name| vec![ForZone { name: name.to_owned() }]);
    let node = node.filter(|_| distribution == "PreferSameNode");
    let for_nodes = node.map(|name| vec![ForNode { name: name.to_owned() }]);
    let any = for_zones.is_some() || for_nodes.is_some();
    any.then_some(EndpointHints { for_zones, for_nodes })
}

/// The traffic distribution that applies. The older annotation for topology hints disables it.
fn traffic_distribution(service: &Service) -> Option<&str> {
    let distribution = service.spec.as_ref()?.traffic_distribution.as_deref()?;
    let known = matches!(distribution, "PreferClose" | "PreferSameZone" | "PreferSameNode");
    (known && !zone_hints::is_enabled(service)).then_some(distribution)
}

/// The metadata that all slices of the Service share.
fn like(service: &Service) -> ObjectMeta {
    let name = service.metadata.name.clone().unwrap_or_default();
    let mut labels = service.metadata.labels.clone().unwrap_or_default();
    labels.remove(HEADLESS);
    labels.insert(SERVICE_NAME.to_owned(), name.clone());
    labels.insert(MANAGED_BY.to_owned(), MANAGER.to_owned());
    if is_headless(service) {
        labels.insert(HEADLESS.to_owned(), String::new());
    }
    ObjectMeta {
        generate_name: Some(format!("{name}-")),
        namespace: service.metadata.namespace.clone(),
        labels: Some(labels),
        owner_references: Some(vec![OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Service".to_owned(),
            name,
            uid: service.metadata.uid.clone().unwrap_or_default(),
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

    fn service(more: Value) -> Service {
        let mut spec = json!({ "selector": { "app": "web" }, "ports": [{ "port": 80 }] });
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        typed::from_value(json!({ "metadata": { "name": "web" }, "spec": spec })).unwrap()
    }

    fn pod(phase: &str, ready: bool, ending: bool, ip: Option<&str>) -> Pod {
        typed::from_value(json!({
            "metadata": { "name": "p", "uid": "u",
                          "deletionTimestamp": ending.then_some("2026-01-01T00:00:00Z") },
            "spec": { "nodeName": "n", "containers": [] },
            "status": { "phase": phase, "podIP": ip,
                        "conditions": [{ "type": "Ready", "status": if ready { "True" } else { "False" } }] },
        }))
        .unwrap()
    }

    fn node() -> Node {
        let labels = json!({ "topology.kubernetes.io/zone": "z1" });
        typed::from_value(json!({ "metadata": { "name": "n", "labels": labels } })).unwrap()
    }

    /// T-EDGE-32: a terminating pod is serving while it is ready.
    #[test]
    fn t_net_1_to_5_conditions_ready_serving_and_terminating() {
        let ip = Some("10.0.0.1");
        let plain = || service(json!({}));
        let all = || service(json!({ "publishNotReadyAddresses": true }));
        let cases = [
            ("T-NET-1 ready", plain(), pod("Running", true, false, ip), Some((true, true, false))),
            ("T-NET-1 ending", plain(), pod("Running", true, true, ip), Some((false, true, true))),
            ("not ready", plain(), pod("Running", false, false, ip), Some((false, false, false))),
            ("T-NET-5", plain(), pod("Running", false, true, ip), Some((false, false, true))),
            ("T-NET-4", all(), pod("Running", false, true, ip), Some((true, false, true))),
            ("T-NET-3 succeeded", plain(), pod("Succeeded", true, true, ip), None),
            ("T-NET-3 failed", all(), pod("Failed", false, true, ip), None),
            ("T-NET-6 no address", all(), pod("Pending", false, false, None), None),
        ];
        for (what, service, pod, expected) in cases {
            let found = entry(&service, &pod, Some(&node()), "IPv4").map(|(_, endpoint)| {
                let conditions = endpoint.conditions.unwrap();
                let known = |condition: Option<bool>| condition.expect("always written");
                (known(conditions.ready), known(conditions.serving), known(conditions.terminating))
            });
            assert_eq!(found, expected, "{what}");
        }
    }

    #[test]
    fn t_net_6_a_pod_without_its_node_is_listed_only_if_not_ready_addresses_are_published() {
        let pod = pod("Running", true, false, Some("10.0.0.1"));
        assert!(entry(&service(json!({})), &pod, None, "IPv4").is_none());
        let all = service(json!({ "publishNotReadyAddresses": true }));
        assert!(entry(&all, &pod, None, "IPv4").is_some());
        assert!(entry(&all, &pod, None, "IPv6").is_none(), "it has no IPv6 address");
    }

    /// NET-77: the fields of an endpoint. NET-100: which pods have a name of their own.
    #[test]
    fn net_77_c_176_an_endpoint_names_its_pod_node_and_zone() {
        let mut pod = pod("Running", true, false, Some("10.0.0.1"));
        pod.metadata.namespace = Some("ns".into());
        pod.metadata.resource_version = Some("7".into());
        let entry = |pod: &Pod, node: &Node| {
            let found = entry(&service(json!({})), pod, Some(node), "IPv4");
            serde_json::to_value(found.unwrap().1).unwrap()
        };
        let mut expected = json!({
            "addresses": ["10.0.0.1"],
            "conditions": { "ready": true, "serving": true, "terminating": false },
            "nodeName": "n", "zone": "z1",
            "targetRef": { "kind": "Pod", "namespace": "ns", "name": "p", "uid": "u" },
        });
        assert_eq!(entry(&pod, &node()), expected);
        for (what, hostname, subdomain, shown) in [
            ("both", Some("h"), Some("web"), Some("h")),
            ("of another Service", Some("h"), Some("db"), None),
            ("no subdomain", Some("h"), None, None),
            ("no hostname", None, Some("web"), None),
            ("an empty one", Some(""), Some("web"), None),
        ] {
            let spec = pod.spec.as_mut().unwrap();
            (spec.hostname, spec.subdomain) = (hostname.map(Into::into), subdomain.map(Into::into));
            assert_eq!(
                entry(&pod, &node()).get("hostname"),
                shown.map(Value::from).as_ref(),
                "{what}"
            );
        }
        let mut nowhere = node();
        nowhere.metadata.labels =
            Some([("topology.kubernetes.io/zone".into(), String::new())].into());
        expected.as_object_mut().unwrap().remove("zone");
        (pod.spec.as_mut().unwrap().hostname, pod.spec.as_mut().unwrap().subdomain) = (None, None);
        assert_eq!(entry(&pod, &nowhere), expected, "an empty zone is no zone");
    }

    /// NET-85: PreferClose is PreferSameZone; the older annotations disable both.
    #[test]
    fn net_85_c_178_ready_endpoints_have_hints() {
        let (mode, hints) =
            ("service.kubernetes.io/topology-mode", "service.kubernetes.io/topology-aware-hints");
        let zone = json!({ "forZones": [{ "name": "z1" }] });
        let node = json!({ "forNodes": [{ "name": "n" }] });
        let both = json!({ "forNodes": [{ "name": "n" }], "forZones": [{ "name": "z1" }] });
        for (distribution, annotations, ready, in_zone, expected) in [
            (json!("PreferClose"), json!({}), true, true, &zone),
            (json!("PreferSameZone"), json!({}), true, true, &zone),
            (json!("PreferSameNode"), json!({}), true, true, &both),
            (json!("PreferSameZone"), json!({}), true, false, &Value::Null),
            (json!("PreferSameNode"), json!({}), true, false, &node),
            (json!("PreferSameNode"), json!({}), false, true, &Value::Null),
            (json!("SomethingElse"), json!({}), true, true, &Value::Null),
            (Value::Null, json!({}), true, true, &Value::Null),
            (json!("PreferClose"), json!({ mode: "Auto" }), true, true, &Value::Null),
            (json!("PreferClose"), json!({ mode: "auto" }), true, true, &Value::Null),
            (json!("PreferClose"), json!({ mode: "Disabled" }), true, true, &zone),
            (json!("PreferClose"), json!({ hints: "Auto" }), true, true, &Value::Null),
            (json!("PreferClose"), json!({ mode: "Auto", hints: "Disabled" }), true, true, &zone),
        ] {
            let what = format!("{distribution} {annotations} {ready} {in_zone}");
            let mut service = service(json!({ "trafficDistribution": distribution }));
            service.metadata.annotations = serde_json::from_value(annotations).unwrap();
            let mut node = self::node();
            node.metadata.labels.take_if(|_| !in_zone);
            let pod = pod("Running", ready, false, Some("10.0.0.1"));
            let (_, endpoint) = entry(&service, &pod, Some(&node), "IPv4").unwrap();
            assert_eq!(serde_json::to_value(endpoint.hints).unwrap(), *expected, "{what}");
        }
    }

    /// A planned slice as an existing one.
    fn there(number: usize, mut slice: EndpointSlice) -> Arc<EndpointSlice> {
        slice.metadata.name = Some(format!("web-{number}"));
        Arc::new(slice)
    }

    /// NET-85: hints for traffic distribution.
    #[test]
    fn net_85_hints_follow_the_traffic_distribution() {
        let pods = [Arc::new(pod("Running", true, false, Some("10.0.0.1")))];
        let plan = |service: &Service, existing| {
            plan_all(service, &pods, |_| Some(Arc::new(node())), existing, &mut |_, _| ())
        };
        let hinted = |slice: &EndpointSlice| slice.endpoints.as_ref().unwrap()[0].hints.is_some();
        let made = plan(&service(json!({ "trafficDistribution": "PreferClose" })), Vec::new());
        assert!(hinted(&made.create[0]));
        let slice = there(0, made.create[0].clone());
        let after = plan(&service(json!({})), vec![slice]);
        assert_eq!((after.create.len(), after.update.len(), after.delete.len()), (0, 1, 0));
        assert!(!hinted(&after.update[0]));
    }

    /// NET-75, NET-81: each family has at least one slice; slices of other families are deleted.
    #[test]
    fn net_75_net_81_each_family_of_a_service_has_its_slices() {
        let of = |families: Value| service(json!({ "ipFamilies": families }));
        let kinds = |slices: &[EndpointSlice]| -> Vec<(String, Vec<String>)> {
            let each = slices.iter().map(|slice| {
                let endpoints = slice.endpoints.iter().flatten();
                (slice.address_type.clone(), endpoints.flat_map(|e| e.addresses.clone()).collect())
            });
            each.collect()
        };
        let listed = |family: &str, addresses: &[&str]| {
            (family.to_owned(), addresses.iter().map(|&address| address.to_owned()).collect())
        };
        let mut pod = pod("Running", true, false, Some("10.0.0.1"));
        let plan = |service: &Service, pod: &Pod, existing| {
            plan_all(
                service,
                &[Arc::new(pod.clone())],
                |_| Some(Arc::new(node())),
                existing,
                &mut |_, _| (),
            )
        };
        let both = of(json!(["IPv4", "IPv6"]));
        let made = plan(&both, &pod, Vec::new()).create;
        assert_eq!(kinds(&made), [listed("IPv4", &["10.0.0.1"]), listed("IPv6", &[])]);
        assert_eq!(made[1].ports, None, "a placeholder has no ports");
        let slices: Vec<_> =
            made.into_iter().enumerate().map(|(n, slice)| there(n, slice)).collect();
        assert_eq!(plan(&both, &pod, slices.clone()), Plan::default(), "unchanged");

        let ips = json!([{ "ip": "10.0.0.1" }, { "ip": "fd00::1" }]);
        pod.status.as_mut().unwrap().pod_ips = serde_json::from_value(ips).unwrap();
        let more = plan(&both, &pod, slices.clone());
        assert_eq!(kinds(&more.update), [listed("IPv6", &["fd00::1"])]);
        assert_eq!((more.create.len(), more.delete.len()), (0, 0));

        let less = plan(&of(json!(["IPv4"])), &pod, slices.clone());
        assert_eq!((less.create.len(), less.update.len()), (0, 0));
        assert_eq!(less.delete, slices[1..], "slices of a removed family");
    }

    /// NET-75: slices of an older Service of the same name are deleted, not reused.
    #[test]
    fn net_75_slices_belong_to_one_service_not_to_its_name() {
        let of = |uid: &str| {
            let mut service = service(json!({}));
            service.metadata.uid = Some(uid.to_owned());
            service
        };
        let pods = [Arc::new(pod("Running", true, false, Some("10.0.0.1")))];
        let plan = |service: &Service, existing| {
            plan_all(service, &pods, |_| Some(Arc::new(node())), existing, &mut |_, _| ())
        };
        let old = there(0, plan(&of("1"), Vec::new()).create.remove(0));
        let new = plan(&of("2"), vec![old.clone()]);
        assert_eq!(new.delete, [old]);
        assert_eq!((new.create.len(), new.update.len()), (1, 0));
    }

    /// NET-76: names, owner and labels of a slice.
    #[test]
    fn net_76_slices_have_the_labels_of_their_service_and_it_as_owner() {
        let labelled = |cluster_ip: &str| {
            let mut service = service(json!({ "clusterIP": cluster_ip }));
            let labels =
                [("team", "x"), (SERVICE_NAME, "lie"), (MANAGED_BY, "lie"), (HEADLESS, "lie")];
            service.metadata.labels =
                Some(labels.map(|(k, v)| (k.to_owned(), v.to_owned())).into());
            service.metadata.uid = Some("u1".into());
            service.metadata.namespace = Some("ns".into());
            service
        };
        let meta = |service: &Service| serde_json::to_value(like(service)).unwrap();
        let mut expected = json!({
            "generateName": "web-", "namespace": "ns",
            "labels": {
                "team": "x", "kubernetes.io/service-name": "web",
                "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
            },
            "ownerReferences": [{
                "apiVersion": "v1", "kind": "Service", "name": "web", "uid": "u1",
                "controller": true, "blockOwnerDeletion": true,
            }],
        });
        assert_eq!(meta(&labelled("10.96.0.9")), expected);
        expected["labels"]["service.kubernetes.io/headless"] = json!("");
        assert_eq!(meta(&labelled("None")), expected);

        let before = labelled("None");
        let plan = |service: &Service, existing| {
            plan_all(service, &[], |_| Some(Arc::new(node())), existing, &mut |_, _| ())
        };
        let slice = there(0, plan(&before, Vec::new()).create.remove(0));
        let mut after = before.clone();
        after.metadata.labels.as_mut().unwrap().insert("team".into(), "y".into());
        let plan = plan(&after, vec![slice]);
        assert_eq!((plan.create.len(), plan.update.len(), plan.delete.len()), (0, 1, 0));
        assert_eq!(plan.update[0].metadata.labels.as_ref().unwrap()["team"], "y", "propagated");
    }

    /// NET-78: a named port may be another number in each pod; a Service may be headless and have no ports.
    #[test]
    fn net_78_pods_share_a_slice_if_they_share_all_ports() {
        let named = |name: &str, ip: &str, number: i32| {
            let mut pod = pod("Running", true, false, Some(ip));
            pod.metadata.name = Some(name.to_owned());
            let ports =
                json!([{ "name": "c", "ports": [{ "name": "web", "containerPort": number }] }]);
            pod.spec.as_mut().unwrap().containers = serde_json::from_value(ports).unwrap();
            Arc::new(pod)
        };
        let pods = [
            named("a", "10.0.0.1", 3000),
            named("b", "10.0.0.2", 3001),
            named("c", "10.0.0.3", 3000),
        ];
        let listed = |service: &Service| -> Vec<Value> {
            let plan =
                plan_all(service, &pods, |_| Some(Arc::new(node())), Vec::new(), &mut |_, _| ());
            let each = plan.create.iter().map(|slice| {
                let addresses: Vec<_> =
                    slice.endpoints.iter().flatten().map(|e| &e.addresses[0]).collect();
                json!({ "ports": slice.ports, "addresses": addresses })
            });
            each.collect()
        };
        let port = |number: i32| {
            json!([{ "name": "http", "port": number, "protocol": "TCP", "appProtocol": "h2c" },
                   { "name": "ops", "port": 9090, "protocol": "UDP" }])
        };
        let ports = json!([
            { "name": "http", "port": 80, "targetPort": "web", "appProtocol": "h2c" },
            { "name": "ops", "port": 90, "targetPort": 9090, "protocol": "UDP" },
        ]);
        let expected = [
            json!({ "ports": port(3000), "addresses": ["10.0.0.1", "10.0.0.3"] }),
            json!({ "ports": port(3001), "addresses": ["10.0.0.2"] }),
        ];
        assert_eq!(listed(&service(json!({ "ports": ports }))), expected);
        let bare = service(json!({ "ports": null, "clusterIP": "None" }));
        let all = ["10.0.0.1", "10.0.0.2", "10.0.0.3"];
        assert_eq!(listed(&bare), [json!({ "ports": null, "addresses": all })]);
    }
}
