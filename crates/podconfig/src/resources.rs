//! Cgroup limits of a pod and of each of its containers, in the kernel's units (N-105 to N-113).
//!
//! `lifecycle::resources` has the arithmetic; this file adds what depends on the node.

use crate::downward::{amount, parsed};
use crate::identity::uid;
use crate::{NodeFacts, PodContainer};
use k8s_openapi::api::core::v1::{Pod, ResourceRequirements};
use lifecycle::resources::{Cgroup, Qos};
use runtime::Resources;

/// For the pod as a whole (N-109).
pub(crate) fn of_pod(pod: &Pod, facts: &NodeFacts) -> Resources {
    let Some(spec) = &pod.spec else { return Resources::default() };
    let cgroup = lifecycle::resources::pod_cgroup(spec);
    Resources { pids_limit: facts.pod_pids_limit, ..in_cgroup(cgroup) }
}

/// For one container (N-106 to N-108, N-112).
pub(crate) fn of_container(
    pod: &Pod,
    container: &PodContainer<'_>,
    facts: &NodeFacts,
) -> Resources {
    let resources = effective(pod, container.resources.as_ref());
    let cgroup = lifecycle::resources::container_cgroup(Some(&resources));
    // The kernel's limit counts memory and swap together: equal to the memory limit means no swap.
    let swap_limit = facts.swap.then(|| cgroup.memory_limit.unwrap_or(0));
    Resources { hugepage_limits: huge_pages(&resources, facts), swap_limit, ..in_cgroup(cgroup) }
}

fn in_cgroup(cgroup: Cgroup) -> Resources {
    Resources {
        cpu_shares: Some(cgroup.cpu_shares),
        cpu_quota: cgroup.cpu_quota,
        memory_limit: cgroup.memory_limit,
        ..Resources::default()
    }
}

/// A container without its own limit gets the limit of the whole pod.
fn effective(pod: &Pod, own: Option<&ResourceRequirements>) -> ResourceRequirements {
    let mut resources = own.cloned().unwrap_or_default();
    let of_pod = pod.spec.as_ref().and_then(|spec| spec.resources.as_ref());
    let Some(of_pod) = of_pod.and_then(|resources| resources.limits.as_ref()) else {
        return resources;
    };
    for name in ["cpu", "memory"] {
        let own = amount(&resources.limits, name).filter(|limit| !limit.is_zero());
        if let (None, Some(limit)) = (own, of_pod.get(name)) {
            // Without a request, the CPU shares would be derived from this limit.
            let requests = resources.requests.get_or_insert_default();
            requests.entry(name.into()).or_insert_with(zero);
            resources.limits.get_or_insert_default().insert(name.into(), limit.clone());
        }
    }
    resources
}

fn zero() -> k8s_openapi::apimachinery::pkg::api::resource::Quantity {
    k8s_openapi::apimachinery::pkg::api::resource::Quantity("0".into())
}

/// Limits every huge page size of the kernel; sizes that the container does not request get 0.
fn huge_pages(resources: &ResourceRequirements, facts: &NodeFacts) -> Vec<(String, u64)> {
    let limits = resources.limits.iter().flatten();
    let limits: Vec<(u64, u64)> = limits
        .filter_map(|(name, limit)| {
            let size = parsed(&k8s_openapi::apimachinery::pkg::api::resource::Quantity(
                name.strip_prefix("hugepages-")?.to_owned(),
            ))?;
            let bytes = |value: i64| u64::try_from(value).ok();
            Some((bytes(size.value())?, bytes(parsed(limit)?.value())?))
        })
        .collect();
    let limit =
        |size: u64| limits.iter().find(|(of, _)| *of == size).map_or(0, |(_, limit)| *limit);
    facts.huge_pages.iter().map(|size| (kernel_size(*size), limit(*size))).collect()
}

/// How the kernel writes the size of a huge page: `2MB`, `1GB`.
pub(crate) fn kernel_size(bytes: u64) -> String {
    const UNITS: [(&str, u64); 3] = [("GB", 1 << 30), ("MB", 1 << 20), ("KB", 1 << 10)];
    let unit = UNITS.iter().find(|(_, unit)| bytes >= *unit && bytes.is_multiple_of(*unit));
    unit.map_or_else(|| format!("{bytes}B"), |(name, unit)| format!("{}{name}", bytes / unit))
}

pub(crate) fn oom_score_adj(pod: &Pod, container: &PodContainer<'_>, facts: &NodeFacts) -> i32 {
    let Some(spec) = &pod.spec else { return 0 };
    let memory = facts.capacity.get("memory").and_then(parsed).map_or(0, |memory| memory.value());
    lifecycle::resources::oom_score_adj(spec, container, memory)
}

/// `/kubepods/burstable/pod<uid>` (N-105)
pub(crate) fn cgroup(pod: &Pod, facts: &NodeFacts) -> String {
    let class = pod.spec.as_ref().map_or(Qos::BestEffort, lifecycle::resources::qos_class);
    let class = match class {
        Qos::Guaranteed => "",
        Qos::Burstable => "/burstable",
        Qos::BestEffort => "/besteffort",
    };
    format!("{}{class}/pod{}", facts.cgroup_root, uid(pod))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::containers;
    use serde_json::{Value, json};

    fn pod(resources: Value, of_pod: Value) -> Pod {
        typed::from_value(json!({
            "metadata": { "uid": "u" },
            "spec": { "resources": of_pod, "containers": [{ "name": "c", "resources": resources }] },
        }))
        .unwrap()
    }

    fn facts() -> NodeFacts {
        let mut facts = NodeFacts::new("n", "/tmp");
        facts.huge_pages = vec![2 << 20, 1 << 30];
        facts.pod_pids_limit = Some(100);
        facts
    }

    #[test]
    fn n_105_a_pods_cgroup_is_below_the_cgroup_of_its_qos_class() {
        let of = |resources| cgroup(&pod(resources, json!(null)), &facts());
        assert_eq!(of(json!({})), "/kubepods/besteffort/podu");
        assert_eq!(of(json!({ "requests": { "cpu": "1" } })), "/kubepods/burstable/podu");
        let all = json!({ "cpu": "1", "memory": "1Gi" });
        assert_eq!(of(json!({ "requests": all, "limits": all })), "/kubepods/podu");
    }

    /// CPU shares (N-106) and quota (N-107), memory (N-108), huge pages (N-112).
    #[test]
    fn a_containers_limits_are_in_the_kernels_units() {
        let requested = json!({ "requests": { "cpu": "250m" },
            "limits": { "cpu": "5m", "memory": "64Mi", "hugepages-2Mi": "4Mi" } });
        let pod = pod(requested, json!(null));
        let resources = of_container(&pod, &containers(&pod)[0], &facts());
        assert_eq!((resources.cpu_shares, resources.cpu_quota), (Some(256), Some(1000)));
        assert_eq!((resources.memory_limit, resources.pids_limit), (Some(64 << 20), None));
        assert_eq!(resources.hugepage_limits, [("2MB".into(), 4 << 20), ("1GB".into(), 0)]);
        assert_eq!(of_pod(&pod, &facts()).pids_limit, Some(100), "N-113");
    }

    #[test]
    fn n_114_a_container_gets_no_swap_even_if_the_node_has_some() {
        let pod = pod(json!({ "limits": { "memory": "64Mi" } }), json!(null));
        let of = |swap: bool| {
            let facts = NodeFacts { swap, ..facts() };
            of_container(&pod, &containers(&pod)[0], &facts).swap_limit
        };
        assert_eq!((of(false), of(true)), (None, Some(64 << 20)));
    }

    #[test]
    fn n_110_a_pod_level_limit_applies_to_containers_without_their_own() {
        let pod = pod(json!({}), json!({ "limits": { "cpu": "1", "memory": "1Gi" } }));
        let resources = of_container(&pod, &containers(&pod)[0], &facts());
        assert_eq!((resources.cpu_shares, resources.cpu_quota), (Some(2), Some(100_000)));
        assert_eq!(resources.memory_limit, Some(1 << 30));
    }
}
