//! The cgroups above those of pods: all pods together may use what the node has, and each QoS class
//! has the CPU weight of its pods' requests (N-105, N-109).
//!
//! Written once there is a pod, and whenever the set of pods changes. Not here: cgroups of pods
//! (`podconfig`).

use crate::dependencies::Dependencies;
use crate::node_object::node_reference;
use k8s_openapi::api::core::v1::Pod;
use lifecycle::resources::{Qos, cpu_shares, pod_requests, qos_class};
use lifecycle::status;
use runtime::Resources;
use std::sync::Arc;
use std::time::Duration;

/// Interval at which the values are written again, in case something else has changed them.
const REWRITE: Duration = Duration::from_secs(60);

/// The path of a cgroup and its limits.
type Group = (String, Resources);

/// Keeps the cgroups up to date until it is dropped.
pub(crate) async fn run(deps: Arc<Dependencies>) {
    let mut active = deps.active.subscribe();
    let (mut written, mut reported) = (Vec::new(), None);
    loop {
        if !active.borrow_and_update().is_empty() {
            let groups = groups(&deps);
            let outcome = match groups == written {
                true => Ok(()),
                false => write(&deps, &groups).await,
            };
            report(&deps, &outcome, &mut reported);
            written = if outcome.is_ok() { groups } else { Vec::new() };
        }
        tokio::select! {
            biased;
            changed = active.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(REWRITE) => written.clear(),
        }
    }
}

fn groups(deps: &Dependencies) -> Vec<Group> {
    let facts = &deps.facts;
    let amount = |list: &std::collections::BTreeMap<_, _>, name: &str| {
        lifecycle::resources::amounts(Some(list)).get(name).copied()
    };
    let shares = |milli: i64| Some(cpu_shares(milli));
    let cpu = amount(&facts.allocatable, "cpu").map_or(0, |cpu| cpu.milli_value());
    let all = Resources {
        cpu_shares: shares(cpu),
        // Includes the reserve for evictions: otherwise the kernel would kill before the agent evicts.
        memory_limit: amount(&facts.capacity, "memory").map(|memory| memory.value()),
        pids_limit: processes_max(),
        ..Resources::default()
    };
    let burstable = burstable_milli(&deps.pods.list());
    let class = |shares| Resources { cpu_shares: shares, ..Resources::default() };
    let root = &facts.cgroup_root;
    vec![
        (root.clone(), all),
        (format!("{root}/burstable"), class(shares(burstable))),
        (format!("{root}/besteffort"), class(shares(0))),
    ]
}

/// The CPU requests of all Burstable pods together, in thousandths.
fn burstable_milli(pods: &[Arc<Pod>]) -> i64 {
    let active = pods.iter().filter(|pod| !status::is_terminal_pod(pod));
    let specs = active.filter_map(|pod| pod.spec.as_ref());
    let burstable = specs.filter(|spec| qos_class(spec) == Qos::Burstable);
    burstable.filter_map(|spec| Some(pod_requests(spec).get("cpu")?.milli_value())).sum()
}

/// How many processes the kernel allows.
fn processes_max() -> Option<i64> {
    let read = |name: &str| {
        let text = std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).ok()?;
        text.trim().parse::<i64>().ok()
    };
    ["pid_max", "threads-max"].into_iter().filter_map(read).min()
}

async fn write(deps: &Dependencies, groups: &[Group]) -> Result<(), String> {
    for (path, resources) in groups {
        let limited = deps.runtime.limit_group(path, resources).await;
        limited.map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Creates an event for each new outcome.
fn report(
    deps: &Dependencies,
    outcome: &Result<(), String>,
    reported: &mut Option<Result<(), String>>,
) {
    if reported.as_ref() == Some(outcome) {
        return;
    }
    let on = node_reference(&deps.facts.name);
    match outcome {
        Ok(()) => {
            let message = "Updated Node Allocatable limit across pods";
            deps.recorder.normal(&on, "NodeAllocatableEnforced", message);
        }
        Err(why) => {
            let root = &deps.facts.cgroup_root;
            let message = format!("Failed to update Node Allocatable Limits {root:?}: {why}");
            deps.recorder.warning(&on, "FailedNodeAllocatableEnforcement", message);
        }
    }
    *reported = Some(outcome.clone());
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn n_109_the_burstable_class_has_the_weight_of_its_unfinished_pods() {
        let pod = |resources: serde_json::Value, phase: &str| -> Arc<Pod> {
            let spec = json!({"containers": [{"name": "c", "resources": resources}]});
            let pod = json!({"spec": spec, "status": {"phase": phase}});
            Arc::new(typed::from_value(pod).unwrap())
        };
        let all = json!({"cpu": "1", "memory": "1Gi"});
        let pods = [
            pod(json!({"requests": {"cpu": "100m"}}), "Running"),
            pod(json!({"requests": {"cpu": "250m"}}), "Pending"),
            pod(json!({"requests": {"cpu": "500m"}}), "Succeeded"),
            pod(json!({"requests": {"memory": "1Gi"}}), "Running"),
            pod(json!({"requests": all, "limits": all}), "Running"),
            pod(json!({}), "Running"),
        ];
        assert_eq!(burstable_milli(&pods), 350);
        assert!(processes_max().is_some_and(|count| count > 0));
    }
}
