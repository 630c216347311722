//! The conditions of the Node (N-14, N-15).

use super::resources::{List, missing};
use super::{Health, RuntimeProblem};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::NodeCondition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// One row of the table in N-14: reason, message and event for both statuses.
struct Row {
    type_: &'static str,
    /// Reason, message, event.
    when_true: (&'static str, &'static str, &'static str),
    when_false: (&'static str, &'static str, &'static str),
}

const PRESSURES: [Row; 3] = [
    Row {
        type_: "MemoryPressure",
        when_true: (
            "KubeletHasInsufficientMemory",
            "kubelet has insufficient memory available",
            "NodeHasInsufficientMemory",
        ),
        when_false: (
            "KubeletHasSufficientMemory",
            "kubelet has sufficient memory available",
            "NodeHasSufficientMemory",
        ),
    },
    Row {
        type_: "DiskPressure",
        when_true: ("KubeletHasDiskPressure", "kubelet has disk pressure", "NodeHasDiskPressure"),
        when_false: (
            "KubeletHasNoDiskPressure",
            "kubelet has no disk pressure",
            "NodeHasNoDiskPressure",
        ),
    },
    Row {
        type_: "PIDPressure",
        when_true: (
            "KubeletHasInsufficientPID",
            "kubelet has insufficient PID available",
            "NodeHasInsufficientPID",
        ),
        when_false: (
            "KubeletHasSufficientPID",
            "kubelet has sufficient PID available",
            "NodeHasSufficientPID",
        ),
    },
];

/// The conditions, NetworkUnavailable first and Ready last, and the reasons of events about changes.
pub(super) fn conditions(
    health: &Health,
    capacity: &List,
    before: &[NodeCondition],
    now: Timestamp,
) -> (Vec<NodeCondition>, Vec<&'static str>) {
    let mut events = Vec::new();
    let pressures = [health.memory_pressure, health.disk_pressure, health.pid_pressure];
    let mut conditions: Vec<NodeCondition> = PRESSURES
        .iter()
        .zip(pressures)
        .map(|(row, pressure)| {
            let (reason, message, event) = if pressure { row.when_true } else { row.when_false };
            let (condition, changed) = condition(row.type_, pressure, reason, message, before, now);
            // The first status counts as a change.
            if changed != Some(false) {
                events.push(event);
            }
            condition
        })
        .collect();
    if let Some(routes) = &health.routes {
        conditions.insert(0, network_unavailable(routes, before, now));
    }
    let problems = problems(health, capacity);
    let (reason, message) = match problems.as_slice() {
        [] => ("KubeletReady", "kubelet is posting ready status".to_owned()),
        [one] => ("KubeletNotReady", one.clone()),
        several => ("KubeletNotReady", format!("[{}]", several.join(", "))),
    };
    let ready = problems.is_empty();
    let (condition, changed) = condition("Ready", ready, reason, &message, before, now);
    if changed == Some(true) {
        events.push(if ready { "NodeReady" } else { "NodeNotReady" });
    }
    conditions.push(condition);
    (conditions, events)
}

/// NET-15: routes to other nodes. Reasons and the message without a problem are those of upstream's route controller.
fn network_unavailable(
    routes: &Result<(), String>,
    before: &[NodeCondition],
    now: Timestamp,
) -> NodeCondition {
    let (reason, message) = match routes {
        Ok(()) => ("RouteCreated", "RouteController created a route"),
        Err(why) => ("NoRouteCreated", why.as_str()),
    };
    condition("NetworkUnavailable", routes.is_err(), reason, message, before, now).0
}

/// Returns also whether the status has changed; None if there was no such condition.
fn condition(
    type_: &str,
    status: bool,
    reason: &str,
    message: &str,
    before: &[NodeCondition],
    now: Timestamp,
) -> (NodeCondition, Option<bool>) {
    let status = if status { "True" } else { "False" };
    let old = before.iter().find(|old| old.type_ == type_);
    let changed = old.map(|old| old.status != status);
    // The API keeps whole seconds.
    let now = Time(Timestamp::from_second(now.as_second()).unwrap_or(now));
    let since =
        old.filter(|_| changed == Some(false)).and_then(|old| old.last_transition_time.clone());
    let condition = NodeCondition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_heartbeat_time: Some(now.clone()),
        last_transition_time: since.or(Some(now)),
    };
    (condition, changed)
}

/// The messages about everything that keeps the node from being ready.
pub(super) fn problems(health: &Health, capacity: &List) -> Vec<String> {
    let mut problems = Vec::new();
    match &health.runtime {
        None => {
            problems.push("container runtime status check may not have completed yet".to_owned())
        }
        Some(Err(RuntimeProblem::Down)) => problems.push("container runtime is down".to_owned()),
        Some(Err(RuntimeProblem::NotReady(why))) => problems.push(format!(
            "container runtime not ready: RuntimeReady=false reason:RuntimeNotReady message:{why}"
        )),
        Some(Ok(())) => {}
    }
    match &health.network {
        None => problems.push("network state unknown".to_owned()),
        Some(Err(why)) => problems.push(format!(
            "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady \
             message:{why}"
        )),
        Some(Ok(())) => {}
    }
    if health.shutting_down {
        problems.push("node is shutting down".to_owned());
    }
    let missing = missing(capacity);
    if !missing.is_empty() {
        let list = missing.join(", ");
        problems.push(format!("missing node capacity for resources: {list}"));
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

    fn full_capacity() -> List {
        let names = ["cpu", "memory", "pods", "ephemeral-storage"];
        names.into_iter().map(|name| (name.to_owned(), Quantity("1".to_owned()))).collect()
    }

    fn healthy() -> Health {
        Health { runtime: Some(Ok(())), network: Some(Ok(())), ..Health::default() }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn n_14_a_healthy_node_has_no_pressure_and_ready_last() {
        let (conditions, events) = conditions(&healthy(), &full_capacity(), &[], at(100));
        let statuses: Vec<_> = conditions
            .iter()
            .map(|c| (c.type_.as_str(), c.status.as_str(), c.reason.as_deref().unwrap()))
            .collect();
        assert_eq!(
            statuses,
            [
                ("MemoryPressure", "False", "KubeletHasSufficientMemory"),
                ("DiskPressure", "False", "KubeletHasNoDiskPressure"),
                ("PIDPressure", "False", "KubeletHasSufficientPID"),
                ("Ready", "True", "KubeletReady"),
            ]
        );
        assert_eq!(
            events,
            ["NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID"]
        );
    }

    #[test]
    fn n_14_the_transition_time_and_events_change_only_with_the_status() {
        let (first, _) = conditions(&healthy(), &full_capacity(), &[], at(100));
        let (same, events) = conditions(&healthy(), &full_capacity(), &first, at(200));
        assert_eq!(same[3].last_transition_time, Some(Time(at(100))));
        assert_eq!(same[3].last_heartbeat_time, Some(Time(at(200))));
        assert!(events.is_empty());
        let unhealthy = Health { disk_pressure: true, shutting_down: true, ..healthy() };
        let (other, events) = conditions(&unhealthy, &full_capacity(), &same, at(300));
        assert_eq!(events, ["NodeHasDiskPressure", "NodeNotReady"]);
        assert_eq!(other[1].last_transition_time, Some(Time(at(300))));
        assert_eq!(other[0].last_transition_time, Some(Time(at(100))));
        assert_eq!(other[3].message.as_deref(), Some("node is shutting down"));
    }

    /// NET-15: a node that cannot reach the pods of other nodes is ready, but says so.
    #[test]
    fn net_15_missing_routes_are_a_condition_of_their_own() {
        let shown = |routes: Option<Result<(), String>>, before: &[NodeCondition], now| {
            let health = Health { routes, ..healthy() };
            let (conditions, events) = conditions(&health, &full_capacity(), before, at(now));
            assert_eq!(conditions.last().map(|ready| ready.status.as_str()), Some("True"));
            assert!(events.iter().all(|event| !event.contains("Network")), "{events:?}");
            conditions
        };
        let unknown = shown(None, &[], 100);
        assert!(unknown.iter().all(|condition| condition.type_ != "NetworkUnavailable"));
        let good = shown(Some(Ok(())), &unknown, 200);
        let text = |condition: &NodeCondition| {
            let NodeCondition { type_, status, reason, message, .. } = condition.clone();
            [type_, status, reason.unwrap(), message.unwrap()].join(", ")
        };
        assert_eq!(
            text(&good[0]),
            "NetworkUnavailable, False, RouteCreated, RouteController created a route"
        );
        let bad = shown(Some(Err("no VXLAN".to_owned())), &good, 300);
        assert_eq!(text(&bad[0]), "NetworkUnavailable, True, NoRouteCreated, no VXLAN");
        assert_eq!(bad[0].last_transition_time, Some(Time(at(300))));
        let still = shown(Some(Err("other".to_owned())), &bad, 400);
        assert_eq!(still[0].last_transition_time, Some(Time(at(300))));
    }

    #[test]
    fn n_15_each_problem_has_its_message() {
        let down = Some(Err(RuntimeProblem::Down));
        let not_ready = Some(Err(RuntimeProblem::NotReady("no shim".to_owned())));
        let rows = [
            (healthy(), full_capacity(), vec![]),
            (
                Health { runtime: None, ..healthy() },
                full_capacity(),
                vec!["container runtime status check may not have completed yet"],
            ),
            (
                Health { runtime: down, ..healthy() },
                full_capacity(),
                vec!["container runtime is down"],
            ),
            (
                Health { runtime: not_ready, network: None, ..healthy() },
                full_capacity(),
                vec![
                    "container runtime not ready: RuntimeReady=false reason:RuntimeNotReady message:no shim",
                    "network state unknown",
                ],
            ),
            (
                Health { network: Some(Err("no bridge".to_owned())), ..healthy() },
                full_capacity(),
                vec![
                    "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady message:no bridge",
                ],
            ),
            (
                healthy(),
                List::new(),
                vec!["missing node capacity for resources: cpu, memory, pods, ephemeral-storage"],
            ),
        ];
        for (health, capacity, expected) in rows {
            assert_eq!(problems(&health, &capacity), expected, "{health:?}");
        }
        let both = Health { runtime: None, network: None, ..healthy() };
        let (conditions, _) = conditions(&both, &full_capacity(), &[], at(0));
        assert_eq!(
            conditions[3].message.as_deref(),
            Some(
                "[container runtime status check may not have completed yet, network state unknown]"
            )
        );
    }
}
