//! What has to be in force everywhere before a terminating pod gets no new connections. Pure.
//!
//! The EndpointSlices of a Service show a pod that terminates as `terminating`. Their resource version is what all
//! participants have to commit. A slice that does not list the pod proves nothing: the controller may not have processed the
//! pod yet.

use k8s_openapi::api::core::v1::{Pod, Service, ServiceSpec};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use std::sync::Arc;

/// A Service that may send connections to the pod, and its slices.
pub(crate) struct Selected {
    pub(crate) service: Arc<Service>,
    pub(crate) slices: Vec<Arc<EndpointSlice>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Requirement {
    /// This version of the slices shows that the pod terminates, and proxies that have it use other endpoints.
    Committed(u64),
    /// The slices of these Services do not show yet that the pod terminates.
    NotMarked(Vec<String>),
    /// These Services have no ready endpoint, so proxies keep using those that terminate (T-NET-14).
    LastEndpoint(Vec<String>),
}

/// Whether the Service sends connections to the pod. One that publishes addresses of pods that are not ready keeps doing so
/// while they terminate, so that nothing could be waited for.
pub(crate) fn selects(service: &Service, pod: &Pod) -> bool {
    let Some(spec) = &service.spec else { return false };
    let Some(selector) = spec.selector.as_ref().filter(|selector| !selector.is_empty()) else {
        return false;
    };
    let labels = pod.metadata.labels.as_ref();
    spec.type_.as_deref() != Some("ExternalName")
        && spec.publish_not_ready_addresses != Some(true)
        && has_address_of_family(spec, pod)
        && service.metadata.namespace == pod.metadata.namespace
        && selector.iter().all(|(key, value)| {
            labels.and_then(|labels| labels.get(key)).is_some_and(|found| found == value)
        })
}

/// Slices list a pod only with addresses of the families of their Service. A pod without any address yet counts.
fn has_address_of_family(spec: &ServiceSpec, pod: &Pod) -> bool {
    let addresses = pod.status.as_ref().and_then(|status| status.pod_ips.as_ref());
    let mut addresses = addresses.into_iter().flatten().peekable();
    let Some(families) = &spec.ip_families else { return true };
    let family = |ip: &str| if ip.contains(':') { "IPv6" } else { "IPv4" };
    addresses.peek().is_none()
        || addresses.any(|address| families.iter().any(|wanted| wanted == family(&address.ip)))
}

/// `namespace/name`
pub(crate) fn name(service: &Service) -> String {
    let metadata = &service.metadata;
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    format!("{namespace}/{}", metadata.name.as_deref().unwrap_or_default())
}

/// `node` is the pod's.
pub(crate) fn requirement(pod: &Pod, node: &str, selected: &[Selected]) -> Requirement {
    let names = |wanted: &dyn Fn(&Selected) -> bool| -> Vec<String> {
        let found = selected.iter().filter(|selected| wanted(selected));
        found.map(|selected| name(&selected.service)).collect()
    };
    let not_marked = names(&|selected| !is_marked(pod, selected));
    if !not_marked.is_empty() {
        return Requirement::NotMarked(not_marked);
    }
    let last = names(&|selected| lists(pod, selected) && is_last(selected, node));
    if !last.is_empty() {
        return Requirement::LastEndpoint(last);
    }
    Requirement::Committed(newest(selected))
}

/// The newest version among the slices. Zero if no Service selects the pod.
pub(crate) fn newest(selected: &[Selected]) -> u64 {
    let slices = selected.iter().flat_map(|selected| &selected.slices);
    let versions = slices.filter_map(|slice| slice.metadata.resource_version.as_deref());
    versions.filter_map(|version| version.parse().ok()).max().unwrap_or_default()
}

/// Some slice lists the pod, and none lists it as not terminating. A Service that no longer selects the pod need not list it.
fn is_marked(pod: &Pod, selected: &Selected) -> bool {
    match lists(pod, selected) {
        true => of_pod(pod, selected).all(is_terminating),
        false => !selects(&selected.service, pod),
    }
}

/// Whether some slice lists the pod.
pub(crate) fn lists(pod: &Pod, selected: &Selected) -> bool {
    of_pod(pod, selected).next().is_some()
}

fn of_pod<'a>(pod: &'a Pod, selected: &'a Selected) -> impl Iterator<Item = &'a Endpoint> {
    endpoints(selected).filter(|endpoint| uid(endpoint) == pod.metadata.uid.as_deref())
}

/// Some connections are sent only to pods on their own node.
fn is_local(service: &Service) -> bool {
    let is_local = |policy: Option<&String>| policy.is_some_and(|policy| policy == "Local");
    service.spec.as_ref().is_some_and(|spec| {
        is_local(spec.internal_traffic_policy.as_ref())
            || is_local(spec.external_traffic_policy.as_ref())
    })
}

/// No endpoint is ready; with a Local policy, none on the pod's node.
fn is_last(selected: &Selected, node: &str) -> bool {
    let local = is_local(&selected.service);
    let mut ready = endpoints(selected).filter(|endpoint| is_ready(endpoint));
    !ready.any(|endpoint| !local || endpoint.node_name.as_deref() == Some(node))
}

fn endpoints(selected: &Selected) -> impl Iterator<Item = &Endpoint> {
    selected.slices.iter().flat_map(|slice| slice.endpoints.iter().flatten())
}

/// Missing conditions mean ready and not terminating (T-NET-13).
fn is_ready(endpoint: &Endpoint) -> bool {
    let conditions = endpoint.conditions.as_ref();
    conditions.and_then(|conditions| conditions.ready).unwrap_or(true)
}

fn is_terminating(endpoint: &Endpoint) -> bool {
    let conditions = endpoint.conditions.as_ref();
    conditions.and_then(|conditions| conditions.terminating).unwrap_or(false)
}

/// The pod will become an endpoint of the Service, with a Local policy one on this node. A pod that is ready may not be in the
/// slices yet.
pub(crate) fn is_coming(selected: &Selected, pod: &Pod, node: &str) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let pod_node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    selects(&selected.service, pod)
        && pod.metadata.deletion_timestamp.is_none()
        && !matches!(phase, Some("Succeeded" | "Failed"))
        && (!is_local(&selected.service) || pod_node.is_none_or(|it| it == node))
        && !of_pod(pod, selected).any(is_ready)
}

/// Of the pod that the endpoint stands for.
fn uid(endpoint: &Endpoint) -> Option<&str> {
    endpoint.target_ref.as_ref()?.uid.as_deref()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(labels: Value) -> Pod {
        let metadata = json!({ "name": "web-1", "namespace": "d", "uid": "u1", "labels": labels });
        typed::from_value(json!({ "metadata": metadata })).unwrap()
    }

    fn service(spec: Value) -> Arc<Service> {
        let metadata = json!({ "name": "web", "namespace": "d" });
        Arc::new(typed::from_value(json!({ "metadata": metadata, "spec": spec })).unwrap())
    }

    /// Endpoints as pod, node and conditions: `r` ready, `t` terminating.
    fn slice(version: u64, endpoints: &[(&str, &str, &str)]) -> Arc<EndpointSlice> {
        let endpoint = |(uid, node, conditions): &(&str, &str, &str)| {
            json!({ "addresses": ["10.0.0.1"], "nodeName": node,
                "conditions": { "ready": conditions.contains('r'), "terminating": conditions.contains('t') },
                "targetRef": { "kind": "Pod", "namespace": "d", "name": uid, "uid": uid } })
        };
        let endpoints: Vec<Value> = endpoints.iter().map(endpoint).collect();
        let metadata =
            json!({ "name": "web-x", "namespace": "d", "resourceVersion": version.to_string() });
        let slice = json!({ "metadata": metadata, "addressType": "IPv4", "endpoints": endpoints });
        Arc::new(typed::from_value(slice).unwrap())
    }

    #[test]
    fn only_services_that_send_connections_to_the_pod_count() {
        let pod = pod(json!({ "app": "web", "tier": "front" }));
        for (spec, expected) in [
            (json!({ "selector": { "app": "web" } }), true),
            (json!({ "selector": { "app": "web", "tier": "back" } }), false),
            (json!({ "selector": {} }), false),
            (json!({}), false),
            (json!({ "selector": { "app": "web" }, "type": "ExternalName" }), false),
            (json!({ "selector": { "app": "web" }, "publishNotReadyAddresses": true }), false),
        ] {
            assert_eq!(selects(&service(spec.clone()), &pod), expected, "{spec}");
        }
    }

    #[test]
    fn the_slices_have_to_show_that_the_pod_terminates() {
        let web = || vec!["d/web".to_owned()];
        let local = json!({ "selector": { "app": "web" }, "internalTrafficPolicy": "Local" });
        let cluster = json!({ "selector": { "app": "web" } });
        for (spec, slices, expected) in [
            (&cluster, vec![], Requirement::NotMarked(web())),
            (&cluster, vec![slice(5, &[("u2", "n1", "r")])], Requirement::NotMarked(web())),
            (&cluster, vec![slice(5, &[("u1", "n1", "r")])], Requirement::NotMarked(web())),
            (&cluster, vec![slice(6, &[("u1", "n1", "t")])], Requirement::LastEndpoint(web())),
            (
                &cluster,
                vec![slice(6, &[("u1", "n1", "t"), ("u2", "n2", "r")])],
                Requirement::Committed(6),
            ),
            (
                &cluster,
                vec![slice(6, &[("u1", "n1", "t")]), slice(9, &[("u2", "n2", "r")])],
                Requirement::Committed(9),
            ),
            (
                &local,
                vec![slice(6, &[("u1", "n1", "t"), ("u2", "n2", "r")])],
                Requirement::LastEndpoint(web()),
            ),
            (
                &local,
                vec![slice(6, &[("u1", "n1", "t"), ("u2", "n1", "r")])],
                Requirement::Committed(6),
            ),
        ] {
            let selected = [Selected { service: service(spec.clone()), slices }];
            let found = requirement(&pod(json!({ "app": "web" })), "n1", &selected);
            assert_eq!(found, expected, "{spec}");
        }
        assert_eq!(requirement(&pod(json!({})), "n1", &[]), Requirement::Committed(0));
    }

    #[test]
    fn a_service_that_no_longer_selects_the_pod_need_not_list_it() {
        let other = || service(json!({ "selector": { "app": "green" } }));
        let found = |slices| {
            let selected = [Selected { service: other(), slices }];
            requirement(&pod(json!({ "app": "web" })), "n1", &selected)
        };
        let ready = [("u1", "n1", "r"), ("u2", "n1", "r")];
        assert_eq!(found(vec![slice(5, &ready)]), Requirement::NotMarked(vec!["d/web".into()]));
        assert_eq!(found(vec![slice(6, &ready[1..])]), Requirement::Committed(6));
        assert_eq!(found(vec![slice(6, &[])]), Requirement::Committed(6));
    }

    #[test]
    fn services_of_another_ip_family_do_not_count() {
        let mut pod = pod(json!({ "app": "web" }));
        let status = json!({ "podIPs": [{ "ip": "10.0.0.1" }] });
        pod.status = Some(serde_json::from_value(status).unwrap());
        for (families, expected) in
            [(json!(["IPv4"]), true), (json!(["IPv6"]), false), (json!(["IPv6", "IPv4"]), true)]
        {
            let spec = json!({ "selector": { "app": "web" }, "ipFamilies": families });
            assert_eq!(selects(&service(spec), &pod), expected, "{families}");
        }
    }

    #[test]
    fn with_a_local_policy_only_pods_on_this_node_are_coming() {
        let local = json!({ "selector": { "app": "web" }, "internalTrafficPolicy": "Local" });
        let selected = Selected { service: service(local), slices: Vec::new() };
        for (node, expected) in [(json!("n1"), true), (json!("n2"), false), (json!(null), true)] {
            let mut pod = pod(json!({ "app": "web" }));
            let spec = json!({ "nodeName": node, "containers": [] });
            pod.spec = Some(serde_json::from_value(spec).unwrap());
            assert_eq!(is_coming(&selected, &pod, "n1"), expected, "{node}");
        }
    }

    #[test]
    fn a_pod_is_coming_until_the_slices_list_it_as_ready() {
        let selector = json!({ "selector": { "app": "web" } });
        let new = |labels: Value, phase: &str| {
            let metadata =
                json!({ "name": "web-2", "namespace": "d", "uid": "u2", "labels": labels });
            typed::from_value::<Pod>(json!({ "metadata": metadata, "status": { "phase": phase } }))
        };
        for (labels, phase, listed, expected) in [
            (json!({ "app": "web" }), "Pending", None, true),
            (json!({ "app": "web" }), "Running", None, true),
            (json!({ "app": "web" }), "Running", Some(""), true),
            (json!({ "app": "web" }), "Running", Some("r"), false),
            (json!({ "app": "web" }), "Failed", None, false),
            (json!({ "app": "other" }), "Pending", None, false),
        ] {
            let slices = listed.map(|conditions| slice(5, &[("u2", "n1", conditions)]));
            let slices = slices.into_iter().collect();
            let selected = Selected { service: service(selector.clone()), slices };
            let pod = new(labels, phase).unwrap();
            assert_eq!(is_coming(&selected, &pod, "n1"), expected, "{pod:?} {listed:?}");
        }
    }
}
