//! Resources of pods that are JSON, as the server has them. `lifecycle::resources` reads typed pods.

use super::resources::{
    Amounts, InitContainer, PodAmounts, Qos, Side, during_resize, is_pod_level,
};
use crate::quantity::Quantity;
use crate::value::ValueExt;
use serde_json::Value;

/// A resource list of an object (`requests`, `hard`, `used`, …). Skips malformed quantities.
pub fn amounts(list: Option<&Value>) -> Amounts {
    let fields = list.and_then(Value::as_object).into_iter().flatten();
    fields.filter_map(|(name, value)| Some((name.clone(), Quantity::from_value(value)?))).collect()
}

pub fn containers<'a>(spec: &'a Value, list: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    spec.get(list).and_then(Value::as_array).into_iter().flatten()
}

/// The requests that all containers of a pod's spec need at the same time, without pod-level requests.
pub fn container_requests(spec: &Value) -> Amounts {
    declared(spec, Side::Requests).containers_total()
}

/// The total of a pod without its overhead.
pub fn total(pod: &Value, side: Side) -> Amounts {
    pod.get("spec").map(|spec| declared(spec, side).total()).unwrap_or_default()
}

/// The total of a pod with the overhead of its runtime class.
pub fn total_with_overhead(pod: &Value, side: Side) -> Amounts {
    pod.get("spec").map(|spec| declared(spec, side).total_with_overhead(side)).unwrap_or_default()
}

/// The same while a resize may be in progress (N-110): allocated and actual amounts count as well.
pub fn total_held(pod: &Value, side: Side) -> Amounts {
    let Some(spec) = pod.get("spec") else { return Amounts::new() };
    let is_infeasible = is_infeasible(pod);
    let held = read(spec, side, |container| {
        let requested = amounts(container.at(&["resources", field(side)]));
        let Some(status) = reported_resources(pod, container) else { return requested };
        let allocated = match side {
            Side::Requests => amounts(status.get("allocatedResources")),
            Side::Limits => Amounts::new(),
        };
        let actual = amounts(status.at(&["resources", field(side)]));
        during_resize(requested, &allocated, actual, is_infeasible)
    });
    held.total_with_overhead(side)
}

/// The QoS class of a pod (N-87).
pub fn qos_class(pod: &Value) -> Qos {
    let Some(spec) = pod.get("spec") else { return Qos::BestEffort };
    let of = |part: &Value| {
        let side = |name: &str| amounts(part.at(&["resources", name]));
        (side("requests"), side("limits"))
    };
    let (requests, limits) = of(spec);
    if requests.keys().chain(limits.keys()).any(|name| is_pod_level(name)) {
        return Qos::of(std::iter::once((requests, limits)));
    }
    Qos::of(containers(spec, "containers").chain(containers(spec, "initContainers")).map(of))
}

fn declared(spec: &Value, side: Side) -> PodAmounts {
    read(spec, side, |container| amounts(container.at(&["resources", field(side)])))
}

fn read(spec: &Value, side: Side, of: impl Fn(&Value) -> Amounts) -> PodAmounts {
    let init_container = |container: &Value| InitContainer {
        amounts: of(container),
        is_sidecar: container.text(&["restartPolicy"]) == "Always",
    };
    PodAmounts {
        containers: containers(spec, "containers").map(&of).collect(),
        init_containers: containers(spec, "initContainers").map(init_container).collect(),
        pod_level: amounts(spec.at(&["resources", field(side)])),
        overhead: amounts(spec.get("overhead")),
    }
}

fn field(side: Side) -> &'static str {
    match side {
        Side::Requests => "requests",
        Side::Limits => "limits",
    }
}

/// The status of a container, if the node reports the container's resources.
fn reported_resources<'a>(pod: &'a Value, container: &Value) -> Option<&'a Value> {
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
    fn n_110_a_pod_requests_the_sum_of_its_containers_or_the_peak_of_its_initialization() {
        for (case, containers, init, expected) in [
            ("two containers", vec![cpu("1"), cpu("500m")], vec![], "1500m"),
            ("init is larger", vec![cpu("1")], vec![cpu("3"), cpu("2")], "3"),
            ("init is smaller", vec![cpu("1")], vec![cpu("500m")], "1"),
            ("sidecar", vec![cpu("1")], vec![sidecar("500m")], "1500m"),
            ("init beside sidecar", vec![cpu("1")], vec![sidecar("500m"), cpu("2")], "2500m"),
            ("init beside small sidecar", vec![cpu("1")], vec![sidecar("100m"), cpu("3")], "3100m"),
        ] {
            let pod = json!({"spec": {"containers": containers, "initContainers": init}});
            assert_eq!(total(&pod, Side::Requests)["cpu"].to_string(), expected, "{case}");
            assert_eq!(container_requests(&pod["spec"])["cpu"].to_string(), expected, "{case}");
        }
    }

    #[test]
    fn n_110_overhead_counts_for_requests_and_for_existing_limits() {
        let pod = json!({"spec": {
            "containers": [{"resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2", "memory": "0"}}}],
            "overhead": {"cpu": "250m", "memory": "1Mi", "ephemeral-storage": "1Mi"},
        }});
        let listed = |side| {
            let total = total_with_overhead(&pod, side);
            total.iter().map(|(name, amount)| format!("{name}={amount}")).collect::<Vec<_>>()
        };
        assert_eq!(listed(Side::Requests), ["cpu=1250m", "ephemeral-storage=1Mi", "memory=1Mi"]);
        assert_eq!(listed(Side::Limits), ["cpu=2250m", "memory=0"]);
    }

    /// C-157, N-110: allocated and actual resources count until a resize is complete.
    #[test]
    fn n_110_allocated_and_actual_resources_count_during_a_resize() {
        let of = |amount: &str| json!({"requests": {"cpu": amount}, "limits": {"cpu": amount}});
        let pod = |requested: &str, allocated: &str, actual: &str, reason: &str| {
            let status = |name: &str| json!({"name": name, "allocatedResources": {"cpu": allocated}, "resources": of(actual)});
            let condition = json!({"type": "PodResizePending", "status": "True", "reason": reason});
            json!({
                "spec": {
                    "containers": [{"name": "a", "resources": of(requested)}],
                    "initContainers": [
                        {"name": "s", "restartPolicy": "Always", "resources": of(requested)},
                    ],
                },
                "status": {
                    "containerStatuses": [status("a")], "initContainerStatuses": [status("s")],
                    "conditions": if reason.is_empty() { json!([]) } else { json!([condition]) },
                },
            })
        };
        for (case, pod, requests, limits) in [
            ("complete", pod("1", "1", "1", ""), "2", "2"),
            ("shrinking", pod("1", "1", "3", ""), "6", "6"),
            ("growing", pod("3", "1", "1", ""), "6", "6"),
            ("allocated but not actual", pod("1", "4", "1", ""), "8", "2"),
            ("deferred", pod("3", "1", "1", "Deferred"), "6", "6"),
            ("infeasible", pod("3", "1", "1", "Infeasible"), "2", "2"),
        ] {
            assert_eq!(total_held(&pod, Side::Requests)["cpu"].to_string(), requests, "{case}");
            assert_eq!(total_held(&pod, Side::Limits)["cpu"].to_string(), limits, "{case}");
        }
        let without_report =
            json!({"spec": {"containers": [cpu("2")]}, "status": {"containerStatuses": []}});
        assert_eq!(total_held(&without_report, Side::Requests)["cpu"].to_string(), "2");
    }

    #[test]
    fn n_110_pod_level_resources_replace_the_sum_of_the_containers() {
        let pod =
            json!({"spec": {"containers": [cpu("1")], "resources": {"requests": {"cpu": "4"}}}});
        assert_eq!(total(&pod, Side::Requests)["cpu"].to_string(), "4");
        assert_eq!(container_requests(&pod["spec"])["cpu"].to_string(), "1");
    }

    #[test]
    fn a_147_the_qos_class_follows_from_requests_and_limits() {
        let both = json!({"cpu": "1", "memory": "1Gi"});
        let same = json!({"cpu": "1000m", "memory": "1024Mi"});
        for (resources, class) in [
            (json!([{}]), Qos::BestEffort),
            (json!([{"requests": {"ephemeral-storage": "1Gi"}}]), Qos::BestEffort),
            (json!([{"requests": {"cpu": "0"}}]), Qos::BestEffort),
            (json!([{"requests": {"cpu": "1"}}]), Qos::Burstable),
            (json!([{"limits": {"memory": "1Gi"}, "requests": {"memory": "1Gi"}}]), Qos::Burstable),
            (json!([{"limits": both, "requests": same}]), Qos::Guaranteed),
            (json!([{"limits": both, "requests": same}, {}]), Qos::Burstable),
            (json!([{"limits": both, "requests": {"cpu": "1", "memory": "1Mi"}}]), Qos::Burstable),
        ] {
            let containers: Vec<Value> =
                resources.as_array().unwrap().iter().map(|r| json!({"resources": r})).collect();
            assert_eq!(qos_class(&json!({"spec": {"containers": containers}})), class);
        }
    }
}
