//! The cgroups above the pods': all together may have what the node has, and a class weighs what its
//! pods ask for (N-105, N-109).
//!
//! Written once there is a pod, and again when pods come and go. Not here: the pods' own (`config`).

use crate::node_object::node_reference;
use crate::parts::Parts;
use k8s_openapi::api::core::v1::Pod;
use lifecycle::resources::{Qos, cpu_shares, pod_requests, qos_class};
use lifecycle::status;
use runtime::Resources;
use std::sync::Arc;
use std::time::Duration;

/// Also without news: what somebody else wrote is put right.
const AGAIN: Duration = Duration::from_secs(60);

/// A cgroup and what is written into it.
type Group = (String, Resources);

pub(crate) async fn keep(parts: Arc<Parts>) {
    let mut active = parts.active.subscribe();
    let (mut written, mut told) = (Vec::new(), None);
    loop {
        if !active.borrow_and_update().is_empty() {
            let wanted = groups(&parts);
            let outcome = match wanted == written {
                true => Ok(()),
                false => write(&parts, &wanted).await,
            };
            tell(&parts, &outcome, &mut told);
            written = if outcome.is_ok() { wanted } else { Vec::new() };
        }
        tokio::select! {
            biased;
            changed = active.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(AGAIN) => written.clear(),
        }
    }
}

fn groups(parts: &Parts) -> Vec<Group> {
    let facts = &parts.facts;
    let amount = |list: &std::collections::BTreeMap<_, _>, name: &str| {
        lifecycle::resources::amounts(Some(list)).get(name).copied()
    };
    let shares = |milli: i64| Some(cpu_shares(milli));
    let cpu = amount(&facts.allocatable, "cpu").map_or(0, |cpu| cpu.milli_value());
    let all = Resources {
        cpu_shares: shares(cpu),
        // What is kept back for evictions is theirs too, else the kernel would kill before we evict.
        memory_limit: amount(&facts.capacity, "memory").map(|memory| memory.value()),
        pids_limit: processes(),
        ..Resources::default()
    };
    let burstable = burstable_milli(&parts.pods.list());
    let class = |shares| Resources { cpu_shares: shares, ..Resources::default() };
    let root = &facts.cgroup_root;
    vec![
        (root.clone(), all),
        (format!("{root}/burstable"), class(shares(burstable))),
        (format!("{root}/besteffort"), class(shares(0))),
    ]
}

/// What the pods of the class ask for together.
fn burstable_milli(pods: &[Arc<Pod>]) -> i64 {
    let over = |pod: &Pod| pod.status.as_ref().is_some_and(status::is_terminal);
    let specs = pods.iter().filter(|pod| !over(pod)).filter_map(|pod| pod.spec.as_ref());
    let burstable = specs.filter(|spec| qos_class(spec) == Qos::Burstable);
    burstable.filter_map(|spec| Some(pod_requests(spec).get("cpu")?.milli_value())).sum()
}

/// How many the kernel can have at all.
fn processes() -> Option<i64> {
    let read = |name: &str| {
        let text = std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).ok()?;
        text.trim().parse::<i64>().ok()
    };
    ["pid_max", "threads-max"].into_iter().filter_map(read).min()
}

async fn write(parts: &Parts, groups: &[Group]) -> Result<(), String> {
    for (path, resources) in groups {
        let limited = parts.runtime.limit_group(path, resources).await;
        limited.map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Each outcome once, until there is another.
fn tell(parts: &Parts, outcome: &Result<(), String>, told: &mut Option<Result<(), String>>) {
    if told.as_ref() == Some(outcome) {
        return;
    }
    let on = node_reference(&parts.facts.name);
    match outcome {
        Ok(()) => {
            let message = "Updated Node Allocatable limit across pods";
            parts.recorder.normal(&on, "NodeAllocatableEnforced", message);
        }
        Err(why) => {
            let root = &parts.facts.cgroup_root;
            let message = format!("Failed to update Node Allocatable Limits {root:?}: {why}");
            parts.recorder.warning(&on, "FailedNodeAllocatableEnforcement", message);
        }
    }
    *told = Some(outcome.clone());
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// N-109
    #[test]
    fn the_burstable_class_weighs_what_its_living_pods_ask_for() {
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
        assert!(processes().is_some_and(|count| count > 0));
    }
}
