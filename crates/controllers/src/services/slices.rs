//! The EndpointSlices of Services with a selector (T-NET-1 to T-NET-9, C-176 to C-178).
//!
//! A pod that is ending stays in its slice, marked: who still has to be served can be.

use super::backends::{self, Port};
use super::plan::{Groups, Plan, Wanted, plan};
use super::write::{LOOK_AGAIN, Triggers, Writer};
use super::{HEADLESS, MANAGED_BY, SERVICE_NAME, Services, is_headless, is_managed_by, selector};
use crate::pods;
use crate::start::Cluster;
use client::{Cache, Next, ObjectKey, Queue, Recorder, reference, run_controller};
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use k8s_openapi::api::discovery::v1::{
    Endpoint, EndpointConditions, EndpointHints, EndpointSlice, ForNode, ForZone,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use std::sync::Arc;
use std::time::Duration;

const MANAGER: &str = "endpointslice-controller.k8s.io";

const TOPOLOGY_MODE: &str = "service.kubernetes.io/topology-mode";
/// The name that it had before.
const TOPOLOGY_HINTS: &str = "service.kubernetes.io/topology-aware-hints";

/// Upstream: `MaxEndpointsPerSlice`.
const SLICE_MAX: usize = 100;

/// How long a slice may stay as somebody else left it, at least. Upstream: `endpointSliceChangeMinSyncDelay`.
const SLICE_DELAY: Duration = Duration::from_secs(1);

/// Upstream: `endpointSliceMinSyncBackoff` and its maximum, here a minute as everywhere.
const RETRY_FIRST: Duration = Duration::from_secs(1);

pub(super) async fn run(cluster: &Cluster, services: &Services) {
    let queue = Queue::with_backoff(RETRY_FIRST, client::RETRY_MAX);
    services.services.feed_keys(&queue);
    services.slices.feed_after(&queue, SLICE_DELAY, |slice| {
        let ours = is_managed_by(slice, MANAGER);
        super::service_of(slice).filter(|_| ours).into_iter().collect()
    });
    super::feed_backends(cluster, services, &queue);
    services.synced(cluster).await;
    let recorder = Recorder::new(&cluster.client, "endpoint-slice-controller", "");
    let (triggers, writer) = (Triggers::default(), Writer::default());
    run_controller("endpoint-slices", &queue, super::WORKERS, |key| {
        reconcile(cluster, services, &recorder, (&triggers, &writer), key)
    })
    .await;
}

async fn reconcile(
    cluster: &Cluster,
    services: &Services,
    recorder: &Recorder,
    (triggers, writer): (&Triggers, &Writer),
    key: ObjectKey,
) -> client::Result<Next> {
    if !writer.has_seen(services, &key).await {
        return Ok(Next::After(LOOK_AGAIN));
    }
    let managed = services.services.get(&key).filter(|service| selector(service).is_some());
    let Some(service) = managed else {
        triggers.forget(&key);
        return Ok(Next::Change); // What was its, the garbage collector takes.
    };
    let pods = backends::selected(&cluster.pods, &service);
    let existing = services.slices_of(&key, MANAGER);

    let mut plan = plan_all(&service, &pods, &cluster.nodes, existing);
    if service.metadata.deletion_timestamp.is_some() {
        // The slices of a Service that goes are kept right as long as somebody holds it. New ones would be
        // made against the garbage collector, which takes them.
        plan.create.clear();
    }

    let trigger = triggers.since(&key, &service, &pods);
    let written = writer.carry_out(&cluster.client, services, &key, plan, trigger).await;
    if let Err(error) = written.as_ref().map_err(|error| error.to_string()) {
        let message = format!("Error updating Endpoint Slices for Service {key}: {error}");
        recorder.warning(&reference(service.as_ref()), "FailedToUpdateEndpointSlices", message);
    }
    written
}

fn plan_all(
    service: &Service,
    pods: &[Arc<Pod>],
    nodes: &Cache<Node>,
    existing: Vec<Arc<EndpointSlice>>,
) -> Plan {
    let like = like(service);
    let families = backends::families(service);
    let mut all = Plan::default();
    let (mut known, strange): (Vec<_>, Vec<_>) =
        existing.into_iter().partition(|slice| families.contains(&slice.address_type));
    all.delete.extend(strange);
    for family in &families {
        let mut groups = Groups::default();
        for pod in pods {
            let node = pods::node_name(pod).and_then(|name| nodes.get(&ObjectKey::cluster(name)));
            if let Some((ports, endpoint)) = entry(service, pod, node.as_deref(), family) {
                groups.add(ports, endpoint);
            }
        }
        let (slices, others) = known.into_iter().partition(|slice| slice.address_type == *family);
        known = others;
        let wanted = Wanted { family, groups, slice_max: SLICE_MAX, like: &like, never_none: true };
        let Plan { create, update, delete } = plan(wanted, slices);
        all.create.extend(create);
        all.update.extend(update);
        all.delete.extend(delete);
    }
    all
}

/// How a pod is listed, if it is.
fn entry(
    service: &Service,
    pod: &Pod,
    node: Option<&Node>,
    family: &str,
) -> Option<(Vec<Port>, Endpoint)> {
    let publishes = backends::publishes_not_ready(service);
    if pods::is_terminal(pod) || (node.is_none() && !publishes) {
        return None; // T-NET-3, T-NET-6. The node may still come, and brings the pod here again.
    }
    let address = backends::address(pod, family)?;
    let (serving, terminating) = (pods::is_ready(pod), pods::is_ending(pod));
    let ready = publishes || (serving && !terminating);
    let zone = node.and_then(backends::zone).map(str::to_owned);
    let node_name = pods::node_name(pod).map(str::to_owned);
    let endpoint = Endpoint {
        addresses: vec![address.to_owned()],
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

/// Where an endpoint is best used from (C-178).
fn hints(
    service: &Service,
    ready: bool,
    zone: Option<&str>,
    node: Option<&str>,
) -> Option<EndpointHints> {
    let wish = traffic_distribution(service).filter(|_| ready)?;
    let for_zones = zone.map(|name| vec![ForZone { name: name.to_owned() }]);
    let node = node.filter(|_| wish == "PreferSameNode");
    let for_nodes = node.map(|name| vec![ForNode { name: name.to_owned() }]);
    let any = for_zones.is_some() || for_nodes.is_some();
    any.then_some(EndpointHints { for_zones, for_nodes })
}

/// Which wish of a Service about where its traffic goes is heard. Who asks for the older way of hints by an
/// annotation gets none of these.
fn traffic_distribution(service: &Service) -> Option<&str> {
    let wish = service.spec.as_ref()?.traffic_distribution.as_deref()?;
    let annotations = service.metadata.annotations.as_ref();
    let annotation = |key| annotations.and_then(|annotations| annotations.get(key));
    let mode = annotation(TOPOLOGY_HINTS).or_else(|| annotation(TOPOLOGY_MODE));
    let older = mode.is_some_and(|mode| mode == "Auto" || mode == "auto");
    let known = matches!(wish, "PreferClose" | "PreferSameZone" | "PreferSameNode");
    (known && !older).then_some(wish)
}

/// What all slices of the Service have in common.
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
        serde_json::from_value(json!({ "metadata": { "name": "web" }, "spec": spec })).unwrap()
    }

    fn pod(phase: &str, ready: bool, ending: bool, ip: Option<&str>) -> Pod {
        serde_json::from_value(json!({
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
        serde_json::from_value(json!({ "metadata": { "name": "n", "labels": labels } })).unwrap()
    }

    /// T-EDGE-32: an ending pod serves for as long as it is ready, and says that it ends.
    #[test]
    fn t_net_1_to_5_ready_serving_and_terminating_tell_the_truth() {
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
                let said = |condition: Option<bool>| condition.expect("always written");
                (said(conditions.ready), said(conditions.serving), said(conditions.terminating))
            });
            assert_eq!(found, expected, "{what}");
        }
    }

    #[test]
    fn t_net_6_a_pod_on_a_node_that_is_not_there_waits_unless_published() {
        let pod = pod("Running", true, false, Some("10.0.0.1"));
        assert!(entry(&service(json!({})), &pod, None, "IPv4").is_none());
        let all = service(json!({ "publishNotReadyAddresses": true }));
        assert!(entry(&all, &pod, None, "IPv4").is_some());
        assert!(entry(&all, &pod, None, "IPv6").is_none(), "it has no such address");
    }

    #[test]
    fn c_176_an_endpoint_says_who_and_where_it_is() {
        let mut pod = pod("Running", true, false, Some("10.0.0.1"));
        let spec = pod.spec.as_mut().unwrap();
        (spec.hostname, spec.subdomain) = (Some("h".into()), Some("web".into()));
        let close = service(json!({ "trafficDistribution": "PreferSameNode" }));
        let (ports, endpoint) = entry(&close, &pod, Some(&node()), "IPv4").unwrap();
        assert_eq!(ports[0].port, 80);
        let expected = json!({
            "addresses": ["10.0.0.1"],
            "conditions": { "ready": true, "serving": true, "terminating": false },
            "hints": { "forNodes": [{ "name": "n" }], "forZones": [{ "name": "z1" }] },
            "hostname": "h", "nodeName": "n", "zone": "z1",
            "targetRef": { "kind": "Pod", "name": "p", "uid": "u" },
        });
        assert_eq!(serde_json::to_value(endpoint).unwrap(), expected);
    }

    /// NET-85: PreferClose is PreferSameZone; the older annotations turn both off.
    #[test]
    fn net_85_c_178_ready_endpoints_say_where_they_are_best_used_from() {
        let (mode, hints) =
            ("service.kubernetes.io/topology-mode", "service.kubernetes.io/topology-aware-hints");
        let zone = json!({ "forZones": [{ "name": "z1" }] });
        let node = json!({ "forNodes": [{ "name": "n" }] });
        let both = json!({ "forNodes": [{ "name": "n" }], "forZones": [{ "name": "z1" }] });
        for (wish, annotations, ready, in_zone, expected) in [
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
            let what = format!("{wish} {annotations} {ready} {in_zone}");
            let mut service = service(json!({ "trafficDistribution": wish }));
            service.metadata.annotations = serde_json::from_value(annotations).unwrap();
            let mut node = self::node();
            node.metadata.labels.take_if(|_| !in_zone);
            let pod = pod("Running", ready, false, Some("10.0.0.1"));
            let (_, endpoint) = entry(&service, &pod, Some(&node), "IPv4").unwrap();
            assert_eq!(serde_json::to_value(endpoint.hints).unwrap(), *expected, "{what}");
        }
    }
}
