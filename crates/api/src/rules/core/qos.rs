//! How much a pod's containers ask for in all, and the quality of service that follows.

use crate::quantity::Quantity;
use crate::value::ValueExt;
use serde_json::Value;
use std::collections::BTreeMap;

type Amounts = BTreeMap<String, Quantity>;

/// `Guaranteed`, `Burstable` or `BestEffort`, from the resources of a pod.
pub fn qos_class(pod: &Value) -> &'static str {
    let Some(spec) = pod.get("spec") else {
        return "BestEffort";
    };
    let whole = spec.get("resources").filter(|resources| {
        resources.at(&["requests"]).is_some() || resources.at(&["limits"]).is_some()
    });
    let owners: Vec<&Value> = match whole {
        Some(_) => vec![spec],
        None => ["containers", "initContainers"]
            .iter()
            .filter_map(|list| spec.get(list).and_then(Value::as_array))
            .flatten()
            .collect(),
    };
    let (mut requests, mut limits) = (Amounts::new(), Amounts::new());
    let mut all_limited = true;
    for owner in owners {
        let own_limits = compute(owner, "limits");
        all_limited &= own_limits.len() == 2;
        add(&mut requests, compute(owner, "requests"));
        add(&mut limits, own_limits);
    }
    if requests.is_empty() && limits.is_empty() {
        return "BestEffort";
    }
    if all_limited && requests == limits {
        return "Guaranteed";
    }
    "Burstable"
}

/// CPU and memory only, and only if more than none.
fn compute(owner: &Value, field: &str) -> Amounts {
    let mut amounts = listed(owner, field);
    amounts.retain(|name, amount| {
        (name == "cpu" || name == "memory") && !amount.is_zero() && !amount.is_negative()
    });
    amounts
}

/// What all containers of a pod's spec need at once: the plain ones and the sidecars together, or the hungriest
/// moment of its initialisation.
pub(super) fn container_requests(spec: &Value) -> BTreeMap<String, Quantity> {
    let list = |name: &str| spec.get(name).and_then(Value::as_array).into_iter().flatten();
    let mut sum = Amounts::new();
    for container in list("containers") {
        add(&mut sum, listed(container, "requests"));
    }
    let (mut sidecars, mut peak) = (Amounts::new(), Amounts::new());
    for container in list("initContainers") {
        let own = listed(container, "requests");
        if container.text(&["restartPolicy"]) == "Always" {
            add(&mut sum, own.clone());
            add(&mut sidecars, own);
            raise(&mut peak, sidecars.clone());
        } else {
            let mut now = sidecars.clone();
            add(&mut now, own);
            raise(&mut peak, now);
        }
    }
    raise(&mut sum, peak);
    sum
}

fn listed(owner: &Value, field: &str) -> Amounts {
    let list = owner.at(&["resources", field]).and_then(Value::as_object);
    list.into_iter()
        .flatten()
        .filter_map(|(name, value)| Some((name.clone(), Quantity::from_value(value)?)))
        .collect()
}

fn add(sum: &mut Amounts, more: Amounts) {
    for (name, amount) in more {
        let entry = sum.entry(name).or_insert(Quantity::ZERO);
        *entry = *entry + amount;
    }
}

fn raise(most: &mut Amounts, other: Amounts) {
    for (name, amount) in other {
        let entry = most.entry(name).or_insert(amount);
        *entry = (*entry).max(amount);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    ///
    #[test]
    fn a_147_quality_of_service_follows_from_requests_and_limits() {
        let both = json!({"cpu": "1", "memory": "1Gi"});
        let same = json!({"cpu": "1000m", "memory": "1024Mi"});
        for (resources, class) in [
            (json!([{}]), "BestEffort"),
            (json!([{"requests": {"ephemeral-storage": "1Gi"}}]), "BestEffort"),
            (json!([{"requests": {"cpu": "0"}}]), "BestEffort"),
            (json!([{"requests": {"cpu": "1"}}]), "Burstable"),
            (json!([{"limits": {"memory": "1Gi"}, "requests": {"memory": "1Gi"}}]), "Burstable"),
            (json!([{"limits": both, "requests": same}]), "Guaranteed"),
            (json!([{"limits": both, "requests": same}, {}]), "Burstable"),
            (json!([{"limits": both, "requests": {"cpu": "1", "memory": "1Mi"}}]), "Burstable"),
        ] {
            let containers: Vec<Value> =
                resources.as_array().unwrap().iter().map(|r| json!({"resources": r})).collect();
            assert_eq!(qos_class(&json!({"spec": {"containers": containers}})), class);
        }
    }

    #[test]
    fn initialisation_counts_only_if_it_needs_more() {
        let spec = json!({
            "containers": [{"resources": {"requests": {"cpu": "1"}}}],
            "initContainers": [
                {"resources": {"requests": {"cpu": "100m"}}, "restartPolicy": "Always"},
                {"resources": {"requests": {"cpu": "3"}}},
            ],
        });
        assert_eq!(container_requests(&spec)["cpu"].to_string(), "3100m");
    }
}
