//! Endpoints of Services with a selector, for clients that do not use slices (T-NET-10 to T-NET-12, C-179). They do not
//! contain terminating pods.

use super::backends::{self, Port};
use super::writer::Triggers;
use super::{HEADLESS, LEADER, Services, TRIGGER_TIME, is_headless, selector};
use crate::pods;
use crate::start::Cluster;
use crate::workload;
use client::{DeleteOptions, Next, ObjectKey, Queue, Recorder, reference, run_controller};
use k8s_openapi::api::core::v1::{
    EndpointAddress, EndpointPort, EndpointSubset, Endpoints, Pod, Service,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const MANAGED_BY: &str = "endpoints.kubernetes.io/managed-by";
const MANAGER: &str = "endpoint-controller";
const OVER_CAPACITY: &str = "endpoints.kubernetes.io/over-capacity";

/// Upstream: `maxCapacity`.
const ADDRESSES_MAX: usize = 1000;

/// Endpoints without a Service are checked this long after the start, when the cache also has Services that were
/// created during the first list.
const LEFTOVERS_AFTER: Duration = Duration::from_secs(5);

pub(super) async fn run(cluster: &Cluster, services: &Services) {
    let queue = Queue::new();
    services.services.feed_keys(&queue);
    services.endpoints.feed(&queue, |endpoints| {
        let labels = endpoints.metadata.labels.as_ref();
        let ours = labels.and_then(|labels| labels.get(MANAGED_BY)).is_some_and(|by| by == MANAGER);
        (ours && !is_lock(endpoints)).then(|| ObjectKey::of(endpoints)).into_iter().collect()
    });
    super::feed_backends(cluster, services, &queue);
    services.synced(cluster).await;
    // Upstream: `checkLeftoverEndpoints`.
    for endpoints in services.endpoints.list().iter().filter(|endpoints| !is_lock(endpoints)) {
        queue.add_after(ObjectKey::of(endpoints.as_ref()), LEFTOVERS_AFTER);
    }
    let recorder = Recorder::new(&cluster.client, "endpoint-controller", "");
    let triggers = Triggers::default();
    run_controller("endpoints", &queue, super::WORKERS, |key| {
        reconcile(cluster, services, &recorder, &triggers, key)
    })
    .await;
}

fn is_lock(endpoints: &Endpoints) -> bool {
    let annotations = endpoints.metadata.annotations.as_ref();
    annotations.is_some_and(|annotations| annotations.contains_key(LEADER))
}

async fn reconcile(
    cluster: &Cluster,
    services: &Services,
    recorder: &Recorder,
    triggers: &Triggers,
    key: ObjectKey,
) -> client::Result<Next> {
    let there = services.endpoints.get(&key);
    let Some(service) = services.services.get(&key) else {
        triggers.forget(&key);
        if let Some(there) = there {
            remove(cluster, &key, &there).await?;
        }
        return Ok(Next::Change);
    };
    if selector(&service).is_none() {
        return Ok(Next::Change);
    }
    let pods = backends::selected(&cluster.pods, &service);
    let trigger = triggers.since(&key, &service, &pods);
    let Some(mut wanted) = plan(&service, &pods, there.as_deref()) else {
        return Ok(Next::Change);
    };
    let annotations = wanted.metadata.annotations.get_or_insert_default();
    match trigger {
        Some(time) => annotations.insert(TRIGGER_TIME.to_owned(), clock::rfc3339(time)),
        None => annotations.remove(TRIGGER_TIME),
    };
    let (verb, reason, written) = match there {
        Some(_) => ("update", "FailedToUpdateEndpoint", cluster.client.update(&wanted).await),
        None => ("create", "FailedToCreateEndpoint", cluster.client.create(&wanted).await),
    };
    match written {
        Ok(written) => match services.endpoints.caught_up_with_all([&written]).await {
            true => Ok(Next::Change),
            false => Ok(Next::After(workload::RETRY_DELAY)),
        },
        Err(error) if error.is_namespace_terminating() => Ok(Next::Change),
        Err(error) => {
            let message = format!("Failed to {verb} endpoint for service {key}: {error}");
            recorder.warning(&reference(&wanted), reason, message);
            Err(error)
        }
    }
}

/// Deletes the Endpoints of a deleted Service (T-NET-12).
async fn remove(cluster: &Cluster, key: &ObjectKey, there: &Endpoints) -> client::Result<()> {
    match cluster.client.delete::<Endpoints>(key, &DeleteOptions::only(there)).await {
        Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
        deleted => deleted.map(drop),
    }
}

/// The new object, if it differs.
fn plan(service: &Service, pods: &[Arc<Pod>], there: Option<&Endpoints>) -> Option<Endpoints> {
    let mut subsets = subsets(service, pods);
    let truncated = truncate(&mut subsets);
    let mut metadata = there.map(|there| there.metadata.clone()).unwrap_or_else(|| ObjectMeta {
        name: service.metadata.name.clone(),
        namespace: service.metadata.namespace.clone(),
        ..ObjectMeta::default()
    });
    let mut labels = service.metadata.labels.clone().unwrap_or_default();
    labels.remove(HEADLESS);
    labels.insert(MANAGED_BY.to_owned(), MANAGER.to_owned());
    if is_headless(service) {
        labels.insert(HEADLESS.to_owned(), String::new());
    }
    metadata.labels = Some(labels);
    let annotations = metadata.annotations.get_or_insert_default();
    match truncated {
        true => annotations.insert(OVER_CAPACITY.to_owned(), "truncated".to_owned()),
        false => annotations.remove(OVER_CAPACITY),
    };
    metadata.annotations.take_if(|annotations| annotations.is_empty());
    let same = there.is_some_and(|there| {
        let before = there.subsets.as_deref().unwrap_or_default();
        is_alike(before, &subsets) && there.metadata == metadata
    });
    (!same).then_some(Endpoints { metadata, subsets: Some(subsets) })
}

/// Whether the subsets are equal apart from resource versions of pods.
fn is_alike(before: &[EndpointSubset], after: &[EndpointSubset]) -> bool {
    let plain = || -> Vec<EndpointSubset> {
        let mut subsets = before.to_vec();
        let lists = subsets.iter_mut().flat_map(|s| [&mut s.addresses, &mut s.not_ready_addresses]);
        let targets = lists.flatten().flatten().filter_map(|address| address.target_ref.as_mut());
        targets.for_each(|target| target.resource_version = None);
        subsets
    };
    before == after || plain() == after
}

/// Addresses with the same ports form one subset; everything is sorted.
fn subsets(service: &Service, pods: &[Arc<Pod>]) -> Vec<EndpointSubset> {
    let publishes = backends::publishes_not_ready(service);
    let family = backends::families(service).swap_remove(0);
    let mut by_ports: BTreeMap<Vec<Port>, (Vec<EndpointAddress>, Vec<EndpointAddress>)> =
        BTreeMap::new();
    for pod in pods {
        let listed = !pods::is_terminal_pod(pod) && (publishes || !pods::is_being_deleted(pod));
        let Some(address) = backends::address(pod, &family).filter(|_| listed) else { continue };
        let mut ports = backends::ports(service, pod);
        ports.sort();
        let portless =
            service.spec.as_ref().is_none_or(|s| s.ports.iter().flatten().next().is_none());
        if ports.is_empty() && !portless {
            continue; // The pod has none of the named ports.
        }
        let (ready, not_ready) = by_ports.entry(ports).or_default();
        let list = if publishes || pods::is_ready(pod) { ready } else { not_ready };
        list.push(EndpointAddress {
            ip: address,
            hostname: backends::hostname(service, pod),
            node_name: pods::node_name(pod).map(str::to_owned),
            target_ref: Some(backends::target_ref(pod)),
        });
    }
    let sorted = |mut all: Vec<EndpointAddress>| {
        let uid =
            |address: &EndpointAddress| address.target_ref.as_ref().and_then(|t| t.uid.clone());
        all.sort_by_cached_key(|address| (address.ip.clone(), uid(address)));
        (!all.is_empty()).then_some(all)
    };
    let subset = |(ports, (ready, not_ready)): (Vec<Port>, (Vec<_>, Vec<_>))| EndpointSubset {
        addresses: sorted(ready),
        not_ready_addresses: sorted(not_ready),
        ports: (!ports.is_empty()).then(|| ports.into_iter().map(endpoint_port).collect()),
    };
    by_ports.into_iter().map(subset).collect()
}

fn endpoint_port(port: Port) -> EndpointPort {
    EndpointPort {
        name: (!port.name.is_empty()).then_some(port.name),
        port: port.port,
        protocol: Some(port.protocol),
        app_protocol: port.app_protocol,
    }
}

/// Keeps at most 1000 addresses, ready ones first. Returns whether some were dropped.
fn truncate(subsets: &mut Vec<EndpointSubset>) -> bool {
    let count = |list: &Option<Vec<EndpointAddress>>| list.as_ref().map_or(0, Vec::len);
    let ready: usize = subsets.iter().map(|subset| count(&subset.addresses)).sum();
    let rest: usize = subsets.iter().map(|subset| count(&subset.not_ready_addresses)).sum();
    if ready + rest <= ADDRESSES_MAX {
        return false;
    }
    cut(subsets.iter_mut().map(|subset| &mut subset.addresses), ready, ADDRESSES_MAX);
    let room = ADDRESSES_MAX.saturating_sub(ready);
    cut(subsets.iter_mut().map(|subset| &mut subset.not_ready_addresses), rest, room);
    subsets.retain(|s| s.addresses.is_some() || s.not_ready_addresses.is_some());
    true
}

/// Keeps `room` of all addresses: each list keeps its share, rounded up while there is room.
fn cut<'a>(
    lists: impl Iterator<Item = &'a mut Option<Vec<EndpointAddress>>>,
    all: usize,
    room: usize,
) {
    let mut left = room;
    for list in lists {
        let Some(addresses) = list else { continue };
        let share = (addresses.len() * room).div_ceil(all.max(1));
        addresses.truncate(share.min(left));
        left -= addresses.len();
        list.take_if(|addresses| addresses.is_empty());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(number: usize, phase: &str, ready: bool, ending: bool) -> Arc<Pod> {
        let pod = json!({
            "metadata": { "name": format!("p{number}"), "uid": format!("u{number}"),
                          "deletionTimestamp": ending.then_some("2026-01-01T00:00:00Z") },
            "spec": { "nodeName": "n", "containers": [] },
            "status": { "phase": phase, "podIP": format!("10.0.{}.{}", number / 250, number % 250),
                        "conditions": [{ "type": "Ready", "status": if ready { "True" } else { "False" } }] },
        });
        Arc::new(typed::from_value(pod).unwrap())
    }

    fn service(publishes: bool) -> Service {
        let spec = json!({ "selector": { "a": "b" }, "clusterIP": "10.96.0.9", "ports": [{ "port": 80 }],
                           "publishNotReadyAddresses": publishes });
        let meta = json!({ "name": "web", "labels": { "team": "x" } });
        typed::from_value(json!({ "metadata": meta, "spec": spec })).unwrap()
    }

    fn listed(service: &Service, pod: Arc<Pod>) -> &'static str {
        match subsets(service, &[pod]).as_slice() {
            [] => "nowhere",
            [subset] if subset.addresses.is_some() => "addresses",
            [_] => "notReadyAddresses",
            _ => "twice",
        }
    }

    #[test]
    fn t_net_10_t_net_11_w_13_terminating_pods_are_not_in_the_endpoints() {
        for (what, publishes, pod, expected) in [
            ("ready", false, pod(1, "Running", true, false), "addresses"),
            ("not ready", false, pod(1, "Running", false, false), "notReadyAddresses"),
            ("T-NET-10 ending", false, pod(1, "Running", true, true), "nowhere"),
            ("T-NET-11 ending, published", true, pod(1, "Running", false, true), "addresses"),
            ("terminal", true, pod(1, "Succeeded", false, true), "nowhere"),
        ] {
            assert_eq!(listed(&service(publishes), pod), expected, "{what}");
        }
    }

    /// NET-89: each Service with a selector has Endpoints.
    #[test]
    fn net_89_endpoints_have_the_first_family_and_the_labels_of_the_service() {
        let mut pod = Arc::unwrap_or_clone(pod(1, "Running", true, false));
        pod.metadata.namespace = Some("ns".into());
        pod.metadata.resource_version = Some("7".into());
        let spec = pod.spec.as_mut().unwrap();
        (spec.hostname, spec.subdomain) = (Some("h".into()), Some("web".into()));
        let ips = json!([{ "ip": "10.0.0.1" }, { "ip": "fd00::1" }]);
        pod.status.as_mut().unwrap().pod_ips = serde_json::from_value(ips).unwrap();
        let mut service = service(false);
        let made = |service: &Service| {
            let made = plan(service, &[Arc::new(pod.clone())], None).unwrap();
            serde_json::to_value(made).unwrap()
        };
        let expected = json!({
            "apiVersion": "v1", "kind": "Endpoints",
            "metadata": { "name": "web", "labels": {
                "team": "x", "endpoints.kubernetes.io/managed-by": "endpoint-controller" } },
            "subsets": [{
                "addresses": [{
                    "ip": "10.0.0.1", "hostname": "h", "nodeName": "n",
                    "targetRef": { "kind": "Pod", "namespace": "ns", "name": "p1", "uid": "u1" },
                }],
                "ports": [{ "port": 80, "protocol": "TCP" }],
            }],
        });
        assert_eq!(made(&service), expected);
        let spec = service.spec.as_mut().unwrap();
        spec.ip_families = Some(vec!["IPv6".into(), "IPv4".into()]);
        spec.cluster_ip = Some("None".into());
        let other = made(&service);
        assert_eq!(other["subsets"][0]["addresses"][0]["ip"], "fd00::1");
        assert_eq!(other["subsets"][0]["addresses"].as_array().unwrap().len(), 1);
        assert_eq!(other["metadata"]["labels"][HEADLESS], "");
    }

    /// NET-90: a pod is in one state, so there are no conflicts between subsets.
    #[test]
    fn net_90_addresses_with_the_same_ports_share_a_sorted_subset() {
        let ports = json!([
            { "name": "ops", "port": 90, "targetPort": 9090 },
            { "name": "http", "port": 80, "targetPort": "web" },
        ]);
        let named = |number: usize, ready: bool, port: i32| {
            let mut pod = Arc::unwrap_or_clone(pod(number, "Running", ready, false));
            let ports =
                json!([{ "name": "c", "ports": [{ "name": "web", "containerPort": port }] }]);
            pod.spec.as_mut().unwrap().containers = serde_json::from_value(ports).unwrap();
            Arc::new(pod)
        };
        let mut pods = vec![
            named(4, true, 3001),
            named(3, true, 3000),
            named(2, false, 3000),
            named(1, true, 3000),
            pod(5, "Running", true, false), // It has no port of that name.
        ];
        let listed = |service: &Service, pods: &[Arc<Pod>]| -> Vec<String> {
            let text = |subset: &EndpointSubset| {
                let list = |list: &Option<Vec<EndpointAddress>>| -> Vec<String> {
                    list.iter().flatten().map(|address| address.ip.clone()).collect()
                };
                let ports = subset.ports.iter().flatten().map(|port| {
                    format!("{} {}", port.name.as_deref().unwrap_or_default(), port.port)
                });
                let ports: Vec<String> = ports.collect();
                let (ready, rest) = (list(&subset.addresses), list(&subset.not_ready_addresses));
                format!("{} not {}: {}", ready.join(" "), rest.join(" "), ports.join(", "))
            };
            subsets(service, pods).iter().map(text).collect()
        };
        let mut service = service(false);
        service.spec.as_mut().unwrap().ports = serde_json::from_value(ports).unwrap();
        let expected = [
            "10.0.0.1 10.0.0.3 not 10.0.0.2: http 3000, ops 9090",
            "10.0.0.4 not : http 3001, ops 9090",
            "10.0.0.5 not : ops 9090",
        ];
        assert_eq!(listed(&service, &pods), expected);
        pods.reverse();
        service.spec.as_mut().unwrap().ports.as_mut().unwrap().reverse();
        assert_eq!(listed(&service, &pods), expected, "in any order");
        service.spec.as_mut().unwrap().publish_not_ready_addresses = Some(true);
        let all = "10.0.0.1 10.0.0.2 10.0.0.3 not : http 3000, ops 9090";
        assert_eq!(listed(&service, &pods)[0], all);
    }

    /// NET-92: another resource version of a pod is no difference.
    #[test]
    fn net_92_c_179_unchanged_endpoints_are_not_written() {
        let pods = [pod(2, "Running", true, false), pod(1, "Running", true, false)];
        let made = plan(&service(false), &pods, None).unwrap();
        let expected: Value =
            json!({ "team": "x", "endpoints.kubernetes.io/managed-by": "endpoint-controller" });
        assert_eq!(serde_json::to_value(&made.metadata.labels).unwrap(), expected);
        let ips: Vec<&str> = made.subsets.as_ref().unwrap()[0]
            .addresses
            .as_ref()
            .unwrap()
            .iter()
            .map(|a| a.ip.as_str())
            .collect();
        assert_eq!(ips, ["10.0.0.1", "10.0.0.2"]);
        let other_order = [pods[1].clone(), pods[0].clone()];
        assert_eq!(plan(&service(false), &other_order, Some(&made)), None);
        let mut elder = made.clone();
        for address in elder.subsets.as_mut().unwrap()[0].addresses.iter_mut().flatten() {
            address.target_ref.as_mut().unwrap().resource_version = Some("7".into());
        }
        assert_eq!(plan(&service(false), &pods, Some(&elder)), None);
        let empty = plan(&service(false), &[], None).unwrap();
        assert_eq!(empty.subsets, Some(vec![]), "created even when empty");
    }

    /// NET-91: each subset keeps its share, rounded up; the last subsets get the rest.
    #[test]
    fn net_91_ready_addresses_come_first_and_each_subset_keeps_its_share() {
        let addresses = |number: usize| -> Option<Vec<EndpointAddress>> {
            (number > 0).then(|| vec![EndpointAddress::default(); number])
        };
        /// Ready and not ready addresses of each subset.
        type Sizes = [(usize, usize)];
        let cases: &[(&Sizes, &Sizes)] = &[
            (&[(600, 400)], &[(600, 400)]),
            (&[(600, 401)], &[(600, 400)]),
            (&[(1200, 5), (300, 5)], &[(800, 0), (200, 0)]),
            (&[(500, 0), (500, 0), (500, 0)], &[(334, 0), (334, 0), (332, 0)]),
            (&[(100, 900), (100, 900)], &[(100, 400), (100, 400)]),
            (&[(1000, 0), (0, 7)], &[(1000, 0)]),
            (&[(998, 1), (0, 1), (0, 1), (1, 0)], &[(998, 1), (1, 0)]),
        ];
        for (before, after) in cases {
            let subset = |&(ready, rest): &(usize, usize)| EndpointSubset {
                addresses: addresses(ready),
                not_ready_addresses: addresses(rest),
                ports: None,
            };
            let mut subsets: Vec<_> = before.iter().map(subset).collect();
            assert_eq!(truncate(&mut subsets), before != after, "{before:?}");
            assert_eq!(subsets, after.iter().map(subset).collect::<Vec<_>>(), "{before:?}");
        }
    }

    /// NET-91: at most 1000 addresses.
    #[test]
    fn net_91_c_179_more_than_a_thousand_addresses_are_truncated_and_annotated() {
        let pods: Vec<_> = (0..1002).map(|n| pod(n, "Running", n != 0, false)).collect();
        let made = plan(&service(false), &pods, None).unwrap();
        let subsets = made.subsets.as_ref().unwrap();
        assert_eq!(subsets[0].addresses.as_ref().unwrap().len(), ADDRESSES_MAX);
        assert_eq!(subsets[0].not_ready_addresses, None);
        assert_eq!(made.metadata.annotations.as_ref().unwrap()[OVER_CAPACITY], "truncated");
        let fewer = plan(&service(false), &pods[..2], Some(&made)).unwrap();
        assert_eq!(fewer.metadata.annotations, None);
    }
}
