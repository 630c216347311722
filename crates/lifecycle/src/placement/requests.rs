//! What a pod asks of its node as a whole (N-110).

use api::quantity::Quantity as Parsed;
use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use std::collections::BTreeMap;

/// By resource name: cpu in thousandths, everything else in whole units. Rounded up.
pub type Amounts = BTreeMap<String, i64>;

/// What of pod-level resources counts (the rest is not allowed there).
fn may_be_pod_level(resource: &str) -> bool {
    resource == "cpu" || resource == "memory" || resource.starts_with("hugepages-")
}

pub fn requests(pod: &Pod) -> Amounts {
    let mut sum = of(pod, |resources| resources.requests.as_ref());
    add(&mut sum, &overhead(pod));
    sum
}

/// Only of resources that some container limits; whether all do is the caller's question.
pub fn limits(pod: &Pod) -> Amounts {
    let mut sum = of(pod, |resources| resources.limits.as_ref());
    // An overhead on a limit that nobody set would invent one.
    let mut overhead = overhead(pod);
    overhead.retain(|resource, _| sum.contains_key(resource));
    add(&mut sum, &overhead);
    sum
}

type List = BTreeMap<String, Quantity>;

/// max(regular + sidecars, each init container + the sidecars before it), or what the pod as a
/// whole says.
fn of(pod: &Pod, pick: impl Fn(&ResourceRequirements) -> Option<&List>) -> Amounts {
    let Some(spec) = &pod.spec else { return Amounts::new() };
    let of_container = |container: &Container| -> Amounts {
        container.resources.as_ref().and_then(&pick).map(amounts).unwrap_or_default()
    };
    let mut running = Amounts::new();
    for container in &spec.containers {
        add(&mut running, &of_container(container));
    }
    let (mut sidecars, mut starting) = (Amounts::new(), Amounts::new());
    for init in spec.init_containers.iter().flatten() {
        let own = of_container(init);
        if init.restart_policy.as_deref() == Some("Always") {
            add(&mut running, &own);
            add(&mut sidecars, &own);
            raise(&mut starting, &sidecars);
        } else {
            let mut now = own;
            add(&mut now, &sidecars);
            raise(&mut starting, &now);
        }
    }
    raise(&mut running, &starting);
    if let Some(list) = spec.resources.as_ref().and_then(&pick) {
        let pod_level = amounts(list);
        running.extend(pod_level.into_iter().filter(|(resource, _)| may_be_pod_level(resource)));
    }
    running
}

fn overhead(pod: &Pod) -> Amounts {
    pod.spec.as_ref().and_then(|spec| spec.overhead.as_ref()).map(amounts).unwrap_or_default()
}

fn amounts(list: &List) -> Amounts {
    list.iter().map(|(resource, quantity)| (resource.clone(), amount(resource, quantity))).collect()
}

/// cpu in thousandths, anything else in whole units; 0 if it cannot be read.
pub fn amount(resource: &str, quantity: &Quantity) -> i64 {
    let Ok(parsed) = Parsed::parse(&quantity.0) else { return 0 };
    if resource == "cpu" { parsed.milli_value() } else { parsed.value() }
}

fn add(sum: &mut Amounts, more: &Amounts) {
    for (resource, amount) in more {
        let entry = sum.entry(resource.clone()).or_default();
        *entry = entry.saturating_add(*amount);
    }
}

fn raise(to: &mut Amounts, at_least: &Amounts) {
    for (resource, amount) in at_least {
        let entry = to.entry(resource.clone()).or_default();
        *entry = (*entry).max(*amount);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn cpu(milli: i64) -> Value {
        json!({ "requests": { "cpu": format!("{milli}m") } })
    }

    fn asked(spec: Value) -> i64 {
        let pod: Pod = serde_json::from_value(json!({ "spec": spec })).unwrap();
        requests(&pod).get("cpu").copied().unwrap_or_default()
    }

    #[test]
    fn n_110_a_pod_asks_for_the_larger_of_starting_and_running() {
        let regular = |milli| json!({ "name": "c", "resources": cpu(milli) });
        let init = |milli| json!({ "name": "i", "resources": cpu(milli) });
        let sidecar =
            |milli| json!({ "name": "s", "resources": cpu(milli), "restartPolicy": "Always" });
        let rows = [
            (json!({ "containers": [regular(100), regular(200)] }), 300),
            (json!({ "containers": [regular(100)], "initContainers": [init(500)] }), 500),
            (json!({ "containers": [regular(100)], "initContainers": [sidecar(50)] }), 150),
            // Only sidecars declared before an init container run beside it.
            (
                json!({ "containers": [regular(100)], "initContainers": [sidecar(50), init(500)] }),
                550,
            ),
            (
                json!({ "containers": [regular(100)], "initContainers": [init(500), sidecar(50)] }),
                500,
            ),
            (json!({ "containers": [regular(100)], "overhead": { "cpu": "10m" } }), 110),
            (
                json!({ "containers": [regular(100)], "resources": cpu(1000),
                        "overhead": { "cpu": "10m" } }),
                1010,
            ),
        ];
        for (spec, expected) in rows {
            assert_eq!(asked(spec.clone()), expected, "{spec}");
        }
    }

    #[test]
    fn overhead_is_a_request_of_its_own_but_no_limit_of_its_own() {
        let pod: Pod = serde_json::from_value(json!({ "spec": {
            "containers": [{ "name": "c" }], "overhead": { "memory": "1Mi" } } }))
        .unwrap();
        assert_eq!(requests(&pod)["memory"], 1 << 20);
        assert!(limits(&pod).is_empty());
    }
}
