//! Services, endpoints, ingresses, network policies and addresses.

use super::column::{AGE, NAME, Printed, name, text};
use super::subject::{NONE, Subject, UNKNOWN, UNSET, join, join_first, or, plain};
use crate::value::ValueExt as _;
use serde_json::Value;
use std::collections::BTreeSet;

/// A cell lists this many endpoints, ports or hosts, then the number of further ones.
const SHOWN: usize = 3;

pub(super) const SERVICE: &[Printed] = &[
    NAME,
    text("Type", "How the service is made reachable.", |o| o.text("spec.type").into()),
    text("Cluster-IP", "Its address inside the cluster.", |o| {
        let first = o.list("spec.clusterIPs").first().and_then(Value::as_str);
        first.unwrap_or(o.text_or("spec.clusterIP", NONE)).into()
    }),
    text("External-IP", "Its addresses for the outside.", |o| external_ip(o).into()),
    text("Port(s)", "Its ports, each with the node's port if it has one.", |o| {
        or(&join(o.list("spec.ports").iter().map(service_port), ","), NONE).into()
    }),
    AGE,
    text("Selector", "Which pods serve it.", |o| o.labels("spec.selector").into()).wide(),
];

fn external_ip(o: &Subject) -> String {
    let external = o.list("spec.externalIPs").iter().filter_map(Value::as_str);
    match o.text("spec.type") {
        "ClusterIP" | "NodePort" => or(&join(external, ","), NONE).to_owned(),
        "LoadBalancer" => {
            or(&join(balancers(o).into_iter().chain(external), ","), "<pending>").to_owned()
        }
        "ExternalName" => o.text("spec.externalName").to_owned(),
        _ => UNKNOWN.to_owned(),
    }
}

/// Addresses or names of the load balancers in the status, sorted.
fn balancers<'v>(o: &Subject<'v>) -> BTreeSet<&'v str> {
    let balancers = o.list("status.loadBalancer.ingress").iter();
    balancers
        .map(|balancer| or(balancer.text(&["ip"]), balancer.text(&["hostname"])))
        .filter(|address| !address.is_empty())
        .collect()
}

/// `80/TCP` or `80:30080/TCP`
fn service_port(port: &Value) -> String {
    let number = port["port"].as_i64().unwrap_or_default();
    let protocol = port.text(&["protocol"]);
    match port["nodePort"].as_i64().unwrap_or_default() {
        0 => format!("{number}/{protocol}"),
        node => format!("{number}:{node}/{protocol}"),
    }
}

pub(super) const ENDPOINTS: &[Printed] = &[
    NAME,
    text("Endpoints", "The first addresses behind the service.", |o| {
        if o.list("subsets").is_empty() { NONE.into() } else { endpoints(o).into() }
    }),
    AGE,
];

fn endpoints(o: &Subject) -> String {
    let mut shown = Vec::new();
    for subset in o.list("subsets") {
        let addresses = subset["addresses"].as_array().map_or(&[][..], Vec::as_slice);
        let addresses = addresses.iter().map(|address| address.text(&["ip"]));
        match subset["ports"].as_array().map_or(&[][..], Vec::as_slice) {
            // Headless services may have no ports.
            [] => shown.extend(addresses.map(str::to_owned)),
            ports => shown.extend(ports.iter().flat_map(|port| {
                let port = port["port"].as_i64().unwrap_or_default();
                addresses.clone().map(move |address| host_port(address, port))
            })),
        }
    }
    join_first(&shown, SHOWN, ",")
}

fn host_port(address: &str, port: i64) -> String {
    if address.contains(':') { format!("[{address}]:{port}") } else { format!("{address}:{port}") }
}

pub(super) const ENDPOINT_SLICE: &[Printed] = &[
    NAME,
    text("AddressType", "What kind of addresses these are.", |o| o.text("addressType").into()),
    text("Ports", "The first ports.", |o| {
        let ports: Vec<String> = o.list("ports").iter().map(slice_port).collect();
        or(&join_first(&ports, SHOWN, ","), UNSET).into()
    }),
    text("Endpoints", "The first addresses.", |o| {
        let addresses = o.list("endpoints").iter().flat_map(|e| e["addresses"].as_array());
        let addresses: Vec<String> = addresses.flatten().map(plain).collect();
        or(&join_first(&addresses, SHOWN, ","), UNSET).into()
    }),
    AGE,
];

/// The port's number, else its name; a port with neither means all ports.
fn slice_port(port: &Value) -> String {
    match port["port"].as_i64() {
        Some(number) => number.to_string(),
        None => port["name"].as_str().unwrap_or("*").to_owned(),
    }
}

pub(super) const INGRESS: &[Printed] = &[
    NAME,
    text("Class", "Who serves it.", |o| o.text_or("spec.ingressClassName", NONE).into()),
    text("Hosts", "The first hosts it answers for.", |o| hosts(o.list("spec.rules")).into()),
    text("Address", "Where it is reached.", |o| join(balancers(o), ",").into()),
    text("Ports", "Its ports.", |o| {
        if o.list("spec.tls").is_empty() { "80" } else { "80, 443" }.into()
    }),
    AGE,
];

fn hosts(rules: &[Value]) -> String {
    let hosts = rules.iter().enumerate().filter(|(_, rule)| !rule.text(&["host"]).is_empty());
    let hosts: Vec<(usize, &str)> =
        hosts.take(SHOWN).map(|(i, rule)| (i, rule.text(&["host"]))).collect();
    let shown = join(hosts.iter().map(|(_, host)| host), ",");
    // As in upstream, every rule after the last listed host counts as "more".
    let more = hosts.get(SHOWN - 1).is_some_and(|(last, _)| last + 1 < rules.len());
    match shown.as_str() {
        "" => "*".to_owned(),
        _ if more => format!("{shown} + {} more...", rules.len() - SHOWN),
        _ => shown,
    }
}

pub(super) const INGRESS_CLASS: &[Printed] = &[
    name(|o| {
        let is_default = o.annotation("ingressclass.kubernetes.io/is-default-class") == "true";
        let mark = if is_default { " (default)" } else { "" };
        format!("{}{mark}", o.text("metadata.name")).into()
    }),
    text("Controller", "Who serves ingresses of this class.", |o| o.text("spec.controller").into()),
    text("Parameters", "The object with further settings.", |o| parameters(o).into()),
    AGE,
];

/// `Kind.group/name`
fn parameters(o: &Subject) -> String {
    let Some(parameters) = o.get("spec.parameters") else {
        return NONE.to_owned();
    };
    let (kind, name) = (parameters.text(&["kind"]), parameters.text(&["name"]));
    match parameters.text(&["apiGroup"]) {
        "" => format!("{kind}/{name}"),
        group => format!("{kind}.{group}/{name}"),
    }
}

pub(super) const NETWORK_POLICY: &[Printed] = &[
    NAME,
    text("Pod-Selector", "Which pods it protects.", |o| o.selector("spec.podSelector").into()),
    AGE,
];

pub(super) const SERVICE_CIDR: &[Printed] = &[
    NAME,
    text("CIDRs", "The ranges that services get addresses from.", |o| {
        join(o.list("spec.cidrs").iter().filter_map(Value::as_str), ",").into()
    }),
    AGE,
];

pub(super) const IP_ADDRESS: &[Printed] =
    &[NAME, text("ParentRef", "Who uses it.", |o| parent(o).into()), AGE];

/// `services/default/web`
fn parent(o: &Subject) -> String {
    let Some(parent) = o.get("spec.parentRef") else {
        return NONE.to_owned();
    };
    let parts = ["group", "resource", "namespace", "name"].map(|field| parent.text(&[field]));
    let [group, resource, namespace, name] = parts;
    let resource =
        if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") };
    let parts = [resource.as_str(), namespace, name];
    join(parts.into_iter().filter(|part| !part.is_empty()), "/")
}
