//! Who goes first when something is short, and what is said about it (T-NODE-78, T-NODE-80). Pure.

use super::thresholds::{Met, Signal};
use super::usage::PodUsage;
use api::quantity::Quantity;
use k8s_openapi::api::core::v1::{Container, Pod};
use lifecycle::resources::pod_requests;
use std::cmp::Reverse;

/// Those over their request first, then lower priority, then the larger excess. Processes cannot be
/// requested: there priority decides, then their number.
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

/// Use beyond the request; of inodes nothing can be requested.
fn excess(signal: Signal, usage: &PodUsage) -> i64 {
    let requests = usage.pod.spec.as_ref().map(pod_requests).unwrap_or_default();
    let asked = |name: &str| requests.get(name).map_or(0, Quantity::value);
    let (used, asked) = match signal {
        Signal::MemoryAvailable => (usage.memory(), asked("memory")),
        Signal::NodefsAvailable | Signal::ImagefsAvailable => {
            (usage.disk(), asked("ephemeral-storage"))
        }
        Signal::NodefsInodesFree | Signal::ImagefsInodesFree => (usage.inodes, 0),
        Signal::PidAvailable => (usage.processes, 0),
    };
    i64::try_from(used).unwrap_or(i64::MAX).saturating_sub(asked)
}

/// What was short, and which containers took more than they asked for.
pub(super) fn message(met: &Met, victim: &PodUsage) -> String {
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
            "ephemeral-storage" => own.disk + own.logs,
            _ => continue,
        };
        let asked = requested(container, resource);
        let over = i64::try_from(used).unwrap_or(i64::MAX) > asked.value();
        if over {
            message += &format!(
                "Container {} was using {}, request is {asked}, has larger consumption of {resource}. ",
                container.name,
                bytes(used),
            );
        }
    }
    message
}

fn requested(container: &Container, resource: &str) -> Quantity {
    let requests = container.resources.as_ref().and_then(|r| r.requests.as_ref());
    let text = requests.and_then(|requests| requests.get(resource));
    text.and_then(|text| Quantity::parse(&text.0).ok()).unwrap_or(Quantity::ZERO)
}

/// As a quantity with a binary suffix.
fn bytes(number: u64) -> String {
    let text = format!("{}Ki", number / 1024);
    match number % 1024 {
        0 => Quantity::parse(&text).map_or(text, |quantity| quantity.to_string()),
        _ => number.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::usage::ContainerUse;
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
            containers: vec![ContainerUse {
                name: "c".into(),
                memory: used * MI,
                disk: used * MI,
                logs: 0,
            }],
            volumes: vec![],
            inodes: used,
            processes: used,
        }
    }

    fn names(order: &[&PodUsage]) -> Vec<String> {
        order.iter().map(|usage| usage.pod.metadata.name.clone().unwrap()).collect()
    }

    #[test]
    fn t_node_78_those_over_their_request_go_first_then_lower_priority_then_larger_excess() {
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
    fn t_node_80_the_message_names_what_was_short_and_who_took_too_much() {
        let met =
            Met { signal: Signal::MemoryAvailable, threshold: 100 * MI, available: 50 * MI + 1 };
        assert_eq!(
            message(&met, &pod("p", 100, 0, 300)),
            "The node was low on resource: memory. Threshold quantity: 100Mi, available: 52428801. \
             Container c was using 300Mi, request is 100Mi, has larger consumption of memory. "
        );
        let met = Met { signal: Signal::PidAvailable, threshold: 10, available: 2 };
        assert_eq!(
            message(&met, &pod("p", 100, 0, 300)),
            "The node was low on resource: pids. Threshold quantity: 10, available: 2. "
        );
    }

    #[test]
    fn t_node_78_critical_pods_are_never_evicted() {
        let met = Met { signal: Signal::MemoryAvailable, threshold: 2, available: 1 };
        let critical = pod("critical", 0, 2_000_000_000, 900);
        assert_eq!(super::super::choose(&met, std::slice::from_ref(&critical)), None);
        let both = [critical, pod("other", 500, 0, 1)];
        let chosen = super::super::choose(&met, &both).unwrap();
        assert_eq!(chosen.pod.metadata.name.as_deref(), Some("other"));
        assert!(chosen.disruption);
    }
}
