//! The order in which pods are evicted, and the message about it (T-NODE-78, T-NODE-80). Pure.

use super::thresholds::{MetThreshold, Signal};
use super::usage::PodUsage;
use api::quantity::Quantity;
use k8s_openapi::api::core::v1::{Container, Pod};
use lifecycle::resources::pod_requests;
use std::cmp::Reverse;

/// Pods that exceed their requests first, then by lower priority, then by larger excess. There are
/// no requests for processes: for them by priority, then by their number.
pub(super) fn ranked(signal: Signal, usage: &[PodUsage]) -> Vec<&PodUsage> {
    let mut order: Vec<&PodUsage> = usage.iter().collect();
    let priority = |usage: &PodUsage| priority(&usage.pod);
    match signal {
        Signal::PidAvailable => {
            order.sort_by_key(|usage| (priority(usage), Reverse(usage.processes)));
        }
        _ => order.sort_by_key(|usage| {
            let excess = excess(signal, usage);
            (excess <= 0, priority(usage), Reverse(excess))
        }),
    }
    order
}

fn priority(pod: &Pod) -> i32 {
    pod.spec.as_ref().and_then(|spec| spec.priority).unwrap_or_default()
}

/// Usage above the request. There are no requests for inodes.
fn excess(signal: Signal, usage: &PodUsage) -> i64 {
    let requests = usage.pod.spec.as_ref().map(pod_requests).unwrap_or_default();
    let requested = |name: &str| requests.get(name).map_or(0, Quantity::value);
    let (used, requested) = match signal {
        Signal::MemoryAvailable => (usage.memory(), requested("memory")),
        Signal::NodefsAvailable | Signal::ImagefsAvailable => {
            (usage.disk(), requested("ephemeral-storage"))
        }
        Signal::NodefsInodesFree | Signal::ImagefsInodesFree => (usage.inodes, 0),
        Signal::PidAvailable => (usage.processes, 0),
    };
    i64::try_from(used).unwrap_or(i64::MAX).saturating_sub(requested)
}

/// Names what the node was short of, and the containers that exceeded their requests.
pub(super) fn message(met: &MetThreshold, victim: &PodUsage) -> String {
    let resource = met.signal.resource();
    let amount = |number: u64| match resource {
        "inodes" | "pids" => number.to_string(),
        _ => bytes(number),
    };
    let mut message = format!(
        "The node was low on resource: {resource}. Threshold quantity: {}, available: {}. ",
        amount(met.threshold),
        amount(met.available)
    );
    let spec = victim.pod.spec.as_ref();
    let containers = spec.iter().flat_map(|spec| spec.containers.iter());
    for container in containers {
        let Some(own) = victim.containers.iter().find(|own| own.name == container.name) else {
            continue;
        };
        let used = match resource {
            "memory" => own.memory,
            "ephemeral-storage" => own.storage(),
            _ => continue,
        };
        let request = request(container, resource);
        let over = i64::try_from(used).unwrap_or(i64::MAX) > request.value();
        if over {
            message += &format!(
                "Container {} was using {}, request is {request}, has larger consumption of {resource}. ",
                container.name,
                bytes(used),
            );
        }
    }
    message
}

fn request(container: &Container, resource: &str) -> Quantity {
    let requests = container.resources.as_ref().and_then(|r| r.requests.as_ref());
    let text = requests.and_then(|requests| requests.get(resource));
    text.and_then(|text| Quantity::parse(&text.0).ok()).unwrap_or(Quantity::ZERO)
}

/// A quantity with a binary suffix if it is a multiple of 1024.
fn bytes(number: u64) -> String {
    let text = format!("{}Ki", number / 1024);
    match number % 1024 {
        0 => Quantity::parse(&text).map_or(text, |quantity| quantity.to_string()),
        _ => number.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::usage::ContainerUsage;
    use super::*;
    use serde_json::json;
    use std::sync::Arc;

    const MI: u64 = 1 << 20;

    fn pod(name: &str, request: u64, priority: i32, used: u64) -> PodUsage {
        let pod = typed::from_value(json!({
            "metadata": { "name": name, "uid": name },
            "spec": { "priority": priority, "containers": [{ "name": "c", "resources": { "requests": {
                "memory": format!("{request}Mi"), "ephemeral-storage": format!("{request}Mi") } } }] },
        }))
        .unwrap();
        PodUsage {
            pod: Arc::new(pod),
            containers: vec![ContainerUsage {
                name: "c".into(),
                memory: used * MI,
                disk: used * MI,
                ..ContainerUsage::default()
            }],
            volumes: vec![],
            files: 0,
            inodes: used,
            processes: used,
        }
    }

    fn names(order: &[&PodUsage]) -> Vec<String> {
        order.iter().map(|usage| usage.pod.metadata.name.clone().unwrap()).collect()
    }

    #[test]
    fn t_node_78_pods_are_ranked_by_exceeding_their_request_then_priority_then_excess() {
        let pods = [
            pod("within-low", 500, 0, 400),
            pod("over-high", 100, 1000, 900),
            pod("over-low-little", 100, 0, 150),
            pod("over-low-much", 100, 0, 300),
            pod("within-high", 500, 1000, 499),
        ];
        for signal in [Signal::MemoryAvailable, Signal::NodefsAvailable] {
            assert_eq!(
                names(&ranked(signal, &pods)),
                ["over-low-much", "over-low-little", "over-high", "within-low", "within-high"]
            );
        }
        assert_eq!(
            names(&ranked(Signal::PidAvailable, &pods)),
            ["within-low", "over-low-much", "over-low-little", "over-high", "within-high"]
        );
    }

    #[test]
    fn t_node_80_the_message_names_the_resource_and_the_containers_over_their_requests() {
        let met = MetThreshold {
            signal: Signal::MemoryAvailable,
            threshold: 100 * MI,
            available: 50 * MI + 1,
        };
        assert_eq!(
            message(&met, &pod("p", 100, 0, 300)),
            "The node was low on resource: memory. Threshold quantity: 100Mi, available: 52428801. \
             Container c was using 300Mi, request is 100Mi, has larger consumption of memory. "
        );
        let met = MetThreshold { signal: Signal::PidAvailable, threshold: 10, available: 2 };
        assert_eq!(
            message(&met, &pod("p", 100, 0, 300)),
            "The node was low on resource: pids. Threshold quantity: 10, available: 2. "
        );
    }

    #[test]
    fn t_node_78_critical_pods_are_never_evicted() {
        let met = MetThreshold { signal: Signal::MemoryAvailable, threshold: 2, available: 1 };
        let critical = pod("critical", 0, 2_000_000_000, 900);
        assert_eq!(super::super::choose(&met, std::slice::from_ref(&critical)), None);
        let both = [critical, pod("other", 500, 0, 1)];
        let chosen = super::super::choose(&met, &both).unwrap();
        assert_eq!(chosen.pod.metadata.name.as_deref(), Some("other"));
        assert!(chosen.disruption);
    }
}
