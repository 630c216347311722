//! How much of each counted resource an object uses.

use super::Counted;
use crate::pod::is_terminal_phase;
use crate::pod::json::{amounts, containers, total_held};
use crate::pod::resources::{Amounts, Side};
use crate::quantity::Quantity;
use crate::value::ValueExt;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Kinds of the core group that are also counted by their plain name.
const PLAIN: [&str; 7] = [
    "pods",
    "services",
    "replicationcontrollers",
    "resourcequotas",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
];
const COMPUTE: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];
/// With a quota on one of these, every container must set it.
const MUST_BE_SET: [&str; 6] =
    ["cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory"];
const STORAGE_CLASS: &str = ".storageclass.storage.k8s.io/";
const DEVICE_CLASS: &str = ".deviceclass.resource.k8s.io/";
/// Maximum number of devices per claim. Upstream: `AllocationResultsMaxSize`.
const DEVICES_MAX: i64 = 32;
/// The annotation for the storage class before there was a field.
const OLD_CLASS: &str = "volume.beta.kubernetes.io/storage-class";

/// Kinds that are never counted: events, and kinds that are not stored (C-157).
const NOT_COUNTED: [(&str, &str); 4] = [
    ("", "events"),
    ("events.k8s.io", "events"),
    ("", "bindings"),
    ("authorization.k8s.io", "localsubjectaccessreviews"),
];

/// Whether objects of this kind count towards this resource.
pub fn counts(kind: Counted<'_>, resource: &str) -> bool {
    if NOT_COUNTED.contains(&(kind.group, kind.plural)) {
        return false;
    }
    if let Some(counted) = resource.strip_prefix("count/") {
        return counted == kind.resource_group();
    }
    if is_device_claim(kind) {
        return resource.split_once(DEVICE_CLASS).is_some_and(|(_, counted)| counted == "devices");
    }
    if !kind.group.is_empty() {
        return false;
    }
    if resource == kind.plural {
        return PLAIN.contains(&resource);
    }
    match kind.plural {
        "pods" => {
            let plain = resource
                .strip_prefix("requests.")
                .or_else(|| resource.strip_prefix("limits."))
                .unwrap_or(resource);
            COMPUTE.contains(&plain)
                || (!resource.starts_with("limits.") && plain.starts_with("hugepages-"))
                || (resource.starts_with("requests.") && is_extended(plain))
        }
        "services" => matches!(resource, "services.nodeports" | "services.loadbalancers"),
        "persistentvolumeclaims" => {
            resource == "requests.storage"
                || resource.split_once(STORAGE_CLASS).is_some_and(|(_, counted)| {
                    matches!(counted, "requests.storage" | "persistentvolumeclaims")
                })
        }
        _ => false,
    }
}

/// An extended resource such as `example.com/gpu`.
fn is_extended(name: &str) -> bool {
    name.split_once('/')
        .is_some_and(|(domain, _)| domain != "kubernetes.io" && !domain.ends_with(".kubernetes.io"))
}

/// The increase in usage. The controller accounts for decreases.
pub fn growth(kind: Counted<'_>, new: &Value, old: Option<&Value>) -> Result<Amounts, String> {
    let mut growth = usage(kind, new);
    let negative: Vec<&str> = growth
        .iter()
        .filter(|(_, amount)| amount.is_negative())
        .map(|(name, _)| name.as_str())
        .collect();
    if !negative.is_empty() {
        return Err(format!("quota usage is negative for resource(s): {}", negative.join(",")));
    }
    if let Some(old) = old {
        for (name, before) in usage(kind, old) {
            if let Some(now) = growth.get_mut(&name) {
                *now = *now - before;
            }
        }
    }
    growth.retain(|_, amount| !amount.is_zero() && !amount.is_negative());
    Ok(growth)
}

/// Usage of one object, by the resource names of quotas.
pub fn usage(kind: Counted<'_>, object: &Value) -> Amounts {
    let mut usage = Amounts::new();
    let mut one = |name: String| {
        usage.insert(name, Quantity::whole(1));
    };
    one(format!("count/{}", kind.resource_group()));
    if !kind.group.is_empty() {
        if is_device_claim(kind) {
            devices(object, &mut usage);
        }
        return usage;
    }
    match kind.plural {
        // A terminal pod uses nothing but its object.
        "pods" if is_terminal_phase(object.text(&["status", "phase"])) => {}
        "pods" => {
            one("pods".into());
            pod(object, &mut usage);
        }
        "services" => {
            one("services".into());
            service(object, &mut usage);
        }
        "persistentvolumeclaims" => {
            one("persistentvolumeclaims".into());
            claim(object, &mut usage);
        }
        plural if PLAIN.contains(&plural) => one(plural.into()),
        _ => {}
    }
    usage
}

fn pod(pod: &Value, usage: &mut Amounts) {
    compute(&total_held(pod, Side::Requests), &total_held(pod, Side::Limits), usage);
}

/// Requests and limits by the resource names of quotas.
fn compute(requests: &Amounts, limits: &Amounts, usage: &mut Amounts) {
    for (name, amount) in requests {
        let known = COMPUTE.contains(&name.as_str()) || name.starts_with("hugepages-");
        if known {
            usage.insert(name.clone(), *amount);
        }
        if known || is_extended(name) {
            usage.insert(format!("requests.{name}"), *amount);
        }
    }
    for name in COMPUTE {
        if let Some(amount) = limits.get(name) {
            usage.insert(format!("limits.{name}"), *amount);
        }
    }
}

fn service(service: &Value, usage: &mut Amounts) {
    let ports = service.at(&["spec", "ports"]).and_then(Value::as_array);
    let ports = ports.map(Vec::as_slice).unwrap_or_default();
    let kind = service.text(&["spec", "type"]);
    let allocates =
        service.at(&["spec", "allocateLoadBalancerNodePorts"]) != Some(&Value::Bool(false));
    let node_ports = match kind {
        "NodePort" => ports.len(),
        "LoadBalancer" if allocates => ports.len(),
        "LoadBalancer" => {
            ports.iter().filter(|port| port["nodePort"].as_i64().unwrap_or(0) != 0).count()
        }
        _ => return,
    };
    let node_ports = i64::try_from(node_ports).unwrap_or(i64::MAX);
    usage.insert("services.nodeports".into(), Quantity::whole(node_ports));
    if kind == "LoadBalancer" {
        usage.insert("services.loadbalancers".into(), Quantity::whole(1));
    }
}

/// The storage class of a claim, from the annotation or the field; "" if not set.
pub fn class_of(claim: &Value) -> &str {
    match claim.at(&["metadata", "annotations", OLD_CLASS]) {
        Some(class) => class.as_str().unwrap_or_default(),
        None => claim.text(&["spec", "storageClassName"]),
    }
}

fn claim(claim: &Value, usage: &mut Amounts) {
    let class = class_of(claim);
    if !class.is_empty() {
        let name = format!("{class}{STORAGE_CLASS}persistentvolumeclaims");
        usage.insert(name, Quantity::whole(1));
    }
    let requested = claim.at(&["spec", "resources", "requests", "storage"]);
    // After a failed resize the request shrinks again, but the allocated size still counts.
    let allocated = claim.at(&["status", "allocatedResources", "storage"]);
    let size = [requested, allocated].into_iter().flatten().filter_map(Quantity::from_value).max();
    if let Some(size) = size {
        usage.insert("requests.storage".into(), size);
        if !class.is_empty() {
            usage.insert(format!("{class}{STORAGE_CLASS}requests.storage"), size);
        }
    }
}

fn is_device_claim(kind: Counted<'_>) -> bool {
    (kind.group, kind.plural) == ("resource.k8s.io", "resourceclaims")
}

/// Devices by class. If a request has alternatives, the largest count per class is used.
fn devices(claim: &Value, usage: &mut Amounts) {
    let requests = claim.at(&["spec", "devices", "requests"]).and_then(Value::as_array);
    for request in requests.into_iter().flatten() {
        let choices = containers(request, "firstAvailable").chain(request.get("exactly"));
        let mut most: BTreeMap<&str, i64> = BTreeMap::new();
        for choice in choices {
            let count = match choice.text(&["allocationMode"]) {
                "All" => DEVICES_MAX,
                _ => choice.get("count").and_then(Value::as_i64).unwrap_or(1),
            };
            let known = most.entry(choice.text(&["deviceClassName"])).or_default();
            *known = count.max(*known);
        }
        for (class, count) in most {
            let name = format!("{class}{DEVICE_CLASS}devices");
            let sum = usage.entry(name).or_insert(Quantity::ZERO);
            *sum = *sum + Quantity::whole(count);
        }
    }
}

/// The resources that the quota requires and containers do not set: `cpu for: app,init; memory for: app`.
pub fn unspecified(counted: &[&str], pod: &Value) -> Option<String> {
    let needed: Vec<&str> =
        counted.iter().copied().filter(|name| MUST_BE_SET.contains(name)).collect();
    if needed.is_empty() {
        return None;
    }
    let spec = pod.get("spec")?;
    let names_in = |resources: Option<&Value>| {
        let list = |field: &str| amounts(resources.and_then(|resources| resources.get(field)));
        let mut names = Amounts::new();
        compute(&list("requests"), &list("limits"), &mut names);
        names
    };
    let by_pod = names_in(spec.get("resources"));
    let mut missing: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for container in containers(spec, "containers").chain(containers(spec, "initContainers")) {
        let own = names_in(container.get("resources"));
        for name in &needed {
            if !own.contains_key(*name) && !by_pod.contains_key(*name) {
                missing.entry(name).or_default().insert(container.text(&["name"]));
            }
        }
    }
    let listed: Vec<String> = missing
        .into_iter()
        .map(|(name, containers)| {
            let containers: Vec<&str> = containers.into_iter().collect();
            format!("{name} for: {}", containers.join(","))
        })
        .collect();
    (!listed.is_empty()).then(|| listed.join("; "))
}
