//! What a pod asks of its node as a whole, in the integers that fitting compares (N-110).
//!
//! The sums are `resources`'; here they lose their way of writing.

use crate::resources::{self, counted_requests, pod_limits};
use api::quantity::Quantity as Parsed;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use std::collections::BTreeMap;

/// By resource name: cpu in thousandths, everything else in whole units. Rounded up.
pub type Amounts = BTreeMap<String, i64>;

/// What it takes up, also while a resize is not settled.
pub fn requests(pod: &Pod) -> Amounts {
    rounded(counted_requests(pod))
}

/// Only of resources that some container limits; whether all do is the caller's question.
pub fn limits(pod: &Pod) -> Amounts {
    rounded(pod.spec.as_ref().map(pod_limits).unwrap_or_default())
}

/// cpu in thousandths, anything else in whole units; 0 if it cannot be read.
pub fn amount(resource: &str, quantity: &Quantity) -> i64 {
    Parsed::parse(&quantity.0).map_or(0, |parsed| round(resource, &parsed))
}

fn rounded(exact: resources::Amounts) -> Amounts {
    let round = |(resource, amount): (String, Parsed)| {
        let rounded = round(&resource, &amount);
        (resource, rounded)
    };
    exact.into_iter().map(round).collect()
}

fn round(resource: &str, amount: &Parsed) -> i64 {
    if resource == "cpu" { amount.milli_value() } else { amount.value() }
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
