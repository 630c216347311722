//! What a pod asks for and is limited to as a whole: containers side by side, init containers one
//! after another, sidecars beside everything that follows them.

use crate::quantity::Quantity;
use crate::value::ValueExt;
use serde_json::Value;
use std::collections::BTreeMap;

pub type Amounts = BTreeMap<String, Quantity>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Requests,
    Limits,
}

impl Side {
    fn field(self) -> &'static str {
        match self {
            Side::Requests => "requests",
            Side::Limits => "limits",
        }
    }
}

/// A resource list of an object (`requests`, `hard`, `used`, …).
pub fn amounts(list: Option<&Value>) -> Amounts {
    let fields = list.and_then(Value::as_object).into_iter().flatten();
    fields.filter_map(|(name, value)| Some((name.clone(), Quantity::from_value(value)?))).collect()
}

/// The total of a pod without its overhead.
pub fn total(pod: &Value, side: Side) -> Amounts {
    total_by(pod, side, |container| amounts(container.at(&["resources", side.field()])))
}

fn total_by(pod: &Value, side: Side, of: impl Fn(&Value) -> Amounts) -> Amounts {
    let Some(spec) = pod.get("spec") else { return Amounts::new() };
    let mut sum = Amounts::new();
    for container in containers(spec, "containers") {
        add(&mut sum, &of(container));
    }
    let (mut sidecars, mut peak) = (Amounts::new(), Amounts::new());
    for container in containers(spec, "initContainers") {
        let mut own = of(container);
        if container.text(&["restartPolicy"]) == "Always" {
            add(&mut sum, &own);
            add(&mut sidecars, &own);
            own.clone_from(&sidecars);
        } else {
            add(&mut own, &sidecars);
        }
        raise(&mut peak, own);
    }
    raise(&mut sum, peak);
    // What the pod says for itself stands above what its containers add up to.
    for (name, amount) in amounts(spec.at(&["resources", side.field()])) {
        sum.insert(name, amount);
    }
    sum
}

/// The total of a pod with the overhead of its runtime class.
pub fn total_with_overhead(pod: &Value, side: Side) -> Amounts {
    with_overhead(pod, side, total(pod, side))
}

/// The same while a resize is not settled: the most of what each container asks for, was promised and has;
/// what it asks for does not count if it can never be had (N-110).
pub fn total_held(pod: &Value, side: Side) -> Amounts {
    let infeasible = is_infeasible(pod);
    let sum = total_by(pod, side, |container| {
        let asked = amounts(container.at(&["resources", side.field()]));
        let Some(status) = status_of(pod, container) else { return asked };
        let mut held = amounts(status.at(&["resources", side.field()]));
        if side == Side::Requests {
            raise(&mut held, amounts(status.get("allocatedResources")));
        }
        if !infeasible {
            raise(&mut held, asked);
        }
        held
    });
    with_overhead(pod, side, sum)
}

/// What is said of a container that can be resized, once it is said what it has.
fn status_of<'a>(pod: &'a Value, container: &Value) -> Option<&'a Value> {
    let status = pod.get("status")?;
    let name = container.text(&["name"]);
    let mut lists = ["containerStatuses", "initContainerStatuses"]
        .into_iter()
        .flat_map(|list| containers(status, list));
    lists.find(|status| status.text(&["name"]) == name && status.at(&["resources"]).is_some())
}

fn is_infeasible(pod: &Value) -> bool {
    let conditions = pod.at(&["status", "conditions"]).and_then(Value::as_array);
    let mut conditions = conditions.into_iter().flatten();
    let pending = conditions.find(|condition| condition.text(&["type"]) == "PodResizePending");
    pending.is_some_and(|condition| condition.text(&["reason"]) == "Infeasible")
}

fn with_overhead(pod: &Value, side: Side, mut sum: Amounts) -> Amounts {
    for (name, amount) in amounts(pod.at(&["spec", "overhead"])) {
        match (sum.get_mut(&name), side) {
            (Some(own), Side::Requests) => *own = *own + amount,
            (None, Side::Requests) => drop(sum.insert(name, amount)),
            // No limit stays no limit.
            (Some(own), Side::Limits) if !own.is_zero() => *own = *own + amount,
            (_, Side::Limits) => {}
        }
    }
    sum
}

pub fn containers<'a>(spec: &'a Value, list: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    spec.get(list).and_then(Value::as_array).into_iter().flatten()
}

fn add(sum: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        let own = sum.entry(name.clone()).or_insert(Quantity::ZERO);
        *own = *own + *amount;
    }
}

fn raise(sum: &mut Amounts, least: Amounts) {
    for (name, amount) in least {
        match sum.get_mut(&name) {
            Some(own) if *own >= amount => {}
            _ => drop(sum.insert(name, amount)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn cpu(amount: &str) -> Value {
        json!({"resources": {"requests": {"cpu": amount}}})
    }

    fn sidecar(amount: &str) -> Value {
        let mut container = cpu(amount);
        container["restartPolicy"] = "Always".into();
        container
    }

    #[test]
    fn a_pod_asks_for_its_containers_together_or_its_hungriest_start() {
        for (why, containers, init, total_wanted) in [
            ("side by side", vec![cpu("1"), cpu("500m")], vec![], "1500m"),
            ("init is larger", vec![cpu("1")], vec![cpu("3"), cpu("2")], "3"),
            ("init is smaller", vec![cpu("1")], vec![cpu("500m")], "1"),
            ("sidecar stays", vec![cpu("1")], vec![sidecar("500m")], "1500m"),
            ("init beside sidecar", vec![cpu("1")], vec![sidecar("500m"), cpu("2")], "2500m"),
        ] {
            let pod = json!({"spec": {"containers": containers, "initContainers": init}});
            assert_eq!(total(&pod, Side::Requests)["cpu"].to_string(), total_wanted, "{why}");
        }
    }

    #[test]
    fn overhead_counts_for_requests_and_for_limits_that_are_there() {
        let pod = json!({"spec": {
            "containers": [{"resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}}],
            "overhead": {"cpu": "250m", "memory": "1Mi"},
        }});
        let said = |side| {
            let total = total_with_overhead(&pod, side);
            total.iter().map(|(name, amount)| format!("{name}={amount}")).collect::<Vec<_>>()
        };
        assert_eq!(said(Side::Requests), ["cpu=1250m", "memory=1Mi"]);
        assert_eq!(said(Side::Limits), ["cpu=2250m"]);
    }

    /// C-157, N-110: what is promised or in use counts until it is given back.
    #[test]
    fn n_110_what_a_pod_holds_counts_until_a_resize_is_settled() {
        let of = |amount: &str| json!({"requests": {"cpu": amount}, "limits": {"cpu": amount}});
        let pod = |asked: &str, promised: &str, has: &str, reason: &str| {
            let status = |name: &str| json!({"name": name, "allocatedResources": {"cpu": promised}, "resources": of(has)});
            let condition = json!({"type": "PodResizePending", "status": "True", "reason": reason});
            json!({
                "spec": {
                    "containers": [{"name": "a", "resources": of(asked)}],
                    "initContainers": [
                        {"name": "s", "restartPolicy": "Always", "resources": of(asked)},
                    ],
                },
                "status": {
                    "containerStatuses": [status("a")], "initContainerStatuses": [status("s")],
                    "conditions": if reason.is_empty() { json!([]) } else { json!([condition]) },
                },
            })
        };
        for (why, pod, requests, limits) in [
            ("settled", pod("1", "1", "1", ""), "2", "2"),
            ("smaller is asked for", pod("1", "1", "3", ""), "6", "6"),
            ("larger is asked for", pod("3", "1", "1", ""), "6", "6"),
            ("promised and not had", pod("1", "4", "1", ""), "8", "2"),
            ("deferred", pod("3", "1", "1", "Deferred"), "6", "6"),
            ("never", pod("3", "1", "1", "Infeasible"), "2", "2"),
        ] {
            assert_eq!(total_held(&pod, Side::Requests)["cpu"].to_string(), requests, "{why}");
            assert_eq!(total_held(&pod, Side::Limits)["cpu"].to_string(), limits, "{why}");
        }
        let silent =
            json!({"spec": {"containers": [cpu("2")]}, "status": {"containerStatuses": []}});
        assert_eq!(total_held(&silent, Side::Requests)["cpu"].to_string(), "2");
    }

    #[test]
    fn what_a_pod_says_for_itself_stands_above_its_containers() {
        let pod =
            json!({"spec": {"containers": [cpu("1")], "resources": {"requests": {"cpu": "4"}}}});
        assert_eq!(total(&pod, Side::Requests)["cpu"].to_string(), "4");
    }
}
