//! Arithmetic of pod resources: totals, QoS classes, cpu shares and quotas, OOM scores.
//!
//! The node uses it for cgroups, the scheduler and the node's admission for counting.

use crate::containers::{Kind, init_containers, is_sidecar};
use api::pod::resources::{InitContainer, PodAmounts, Side, during_resize, is_pod_level};
use api::quantity::Quantity;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;
use std::collections::BTreeMap;

pub use api::pod::resources::{Amounts, Qos};

/// Values of a cgroup. None: no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cgroup {
    pub cpu_shares: u64,
    /// Microseconds per 100 ms.
    pub cpu_quota: Option<i64>,
    pub memory_limit: Option<i64>,
}

/// The effective requests of a pod, with overhead (N-110).
pub fn pod_requests(spec: &core::PodSpec) -> Amounts {
    declared(spec, Side::Requests).total_with_overhead(Side::Requests)
}

/// The effective limits of a pod, with overhead, for the resources that are limited (N-110).
pub fn pod_limits(spec: &core::PodSpec) -> Amounts {
    declared(spec, Side::Limits).total_with_overhead(Side::Limits)
}

/// The requests that the scheduler and the node's admission count (N-110). While a resize is in progress,
/// allocated and actual amounts count as well.
pub fn counted_requests(pod: &core::Pod) -> Amounts {
    let Some(spec) = &pod.spec else { return Amounts::new() };
    let status = pod.status.as_ref();
    let is_infeasible = status.is_some_and(resize_is_infeasible);
    let counted = read(spec, Side::Requests, |container| {
        let requested = amounts(requests_of(container));
        let reported = status.and_then(|status| container_status(status, &container.name));
        let Some((reported, resources)) = reported.and_then(|s| Some((s, s.resources.as_ref()?)))
        else {
            return requested;
        };
        let allocated = amounts(reported.allocated_resources.as_ref());
        let actual = amounts(resources.requests.as_ref());
        during_resize(requested, &allocated, actual, is_infeasible)
    });
    counted.total_with_overhead(Side::Requests)
}

/// The QoS class of a pod: of its pod-level resources if it has any, otherwise of its containers (N-87).
pub fn qos_class(spec: &core::PodSpec) -> Qos {
    let of = |resources: Option<&core::ResourceRequirements>| {
        let requests = amounts(resources.and_then(|resources| resources.requests.as_ref()));
        let limits = amounts(resources.and_then(|resources| resources.limits.as_ref()));
        (requests, limits)
    };
    if pod_level_is_set(spec) {
        return Qos::of(std::iter::once(of(spec.resources.as_ref())));
    }
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    Qos::of(containers.map(|container| of(container.resources.as_ref())))
}

/// Values of the pod's cgroup (N-109).
pub fn pod_cgroup(spec: &core::PodSpec) -> Cgroup {
    let (requests, limits) = (pod_requests(spec), pod_limits(spec));
    if qos_class(spec) == Qos::BestEffort {
        return Cgroup { cpu_shares: cpu_shares(0), cpu_quota: None, memory_limit: None };
    }
    let limit = |name: &str| limits.get(name).filter(|_| every_container_limits(spec, name));
    Cgroup {
        cpu_shares: cpu_shares(milli(&requests, "cpu")),
        cpu_quota: limit("cpu").and_then(|amount| cpu_quota(amount.milli_value())),
        memory_limit: limit("memory").map(Quantity::value).filter(|bytes| *bytes > 0),
    }
}

/// Values of a container's cgroup (N-106 to N-108). Without a cpu request, the shares come from the limit.
pub fn container_cgroup(resources: Option<&core::ResourceRequirements>) -> Cgroup {
    let requests = amounts(resources.and_then(|r| r.requests.as_ref()));
    let limits = amounts(resources.and_then(|r| r.limits.as_ref()));
    let share = if requests.contains_key("cpu") { &requests } else { &limits };
    Cgroup {
        cpu_shares: cpu_shares(milli(share, "cpu")),
        cpu_quota: cpu_quota(milli(&limits, "cpu")),
        memory_limit: limits.get("memory").map(Quantity::value).filter(|bytes| *bytes > 0),
    }
}

/// Shares of a cpu request (N-106).
pub fn cpu_shares(milli: i64) -> u64 {
    u64::try_from(milli)
        .unwrap_or(0)
        .saturating_mul(1024)
        .checked_div(1000)
        .unwrap_or(0)
        .clamp(2, 262_144)
}

/// cpu quota in microseconds per 100 ms, at least one millisecond (N-107). None: no limit.
pub fn cpu_quota(milli: i64) -> Option<i64> {
    (milli > 0).then(|| milli.saturating_mul(100).max(1000))
}

/// cpu.weight of the node's and the pods' cgroups (N-106).
pub fn pod_cpu_weight(shares: u64) -> u64 {
    1 + (shares.clamp(2, 262_144) - 2) * 9999 / 262_142
}

/// cpu.weight of a container's cgroup (N-106).
pub fn container_cpu_weight(shares: u64) -> u64 {
    match shares {
        0..=2 => 1,
        262_144.. => 10_000,
        shares => {
            let l = (shares as f64).log2();
            let exponent = (l * l + 125.0 * l) / 612.0 - 7.0 / 34.0;
            10f64.powf(exponent).ceil() as u64
        }
    }
}

/// oom_score_adj of a container (N-111).
pub fn oom_score_adj(pod: &core::PodSpec, container: &core::Container, node_memory: i64) -> i32 {
    let node_critical = pod.priority_class_name.as_deref() == Some("system-node-critical");
    match qos_class(pod) {
        _ if node_critical => OOM_GUARANTEED,
        Qos::Guaranteed => OOM_GUARANTEED,
        Qos::BestEffort => OOM_BEST_EFFORT,
        Qos::Burstable => burstable_oom_score(pod, container, node_memory),
    }
}

const OOM_GUARANTEED: i32 = -997;
const OOM_BEST_EFFORT: i32 = 1000;

fn burstable_oom_score(pod: &core::PodSpec, container: &core::Container, node_memory: i64) -> i32 {
    let memory = |c: &core::Container| {
        amounts(requests_of(c))
            .get("memory")
            .map_or(0, Quantity::value)
            .saturating_add(spare_memory(pod))
    };
    let score = |bytes: i64| 1000 - i128::from(bytes) * 1000 / i128::from(node_memory.max(1));
    let mut adjusted = score(memory(container));
    let is_init =
        init_containers(pod).any(|(kind, c)| kind == Kind::Sidecar && c.name == container.name);
    if is_init && is_sidecar(container) {
        let smallest = pod.containers.iter().map(memory).min().unwrap_or(0);
        adjusted = adjusted.min(score(smallest));
    }
    adjusted.clamp(3, 999) as i32
}

/// Memory that the pod requests beyond its containers, divided among them.
fn spare_memory(pod: &core::PodSpec) -> i64 {
    let requested = amounts(pod.resources.as_ref().and_then(|r| r.requests.as_ref()));
    let Some(requested) = requested.get("memory").filter(|amount| !amount.is_zero()) else {
        return 0;
    };
    let used = declared(pod, Side::Requests).containers_total();
    let used = used.get("memory").map_or(0, Quantity::value);
    let count = pod.containers.len() + pod.init_containers.as_ref().map_or(0, Vec::len);
    requested.value().saturating_sub(used) / i64::try_from(count.max(1)).unwrap_or(1)
}

fn declared(spec: &core::PodSpec, side: Side) -> PodAmounts {
    match side {
        Side::Requests => read(spec, side, |container| amounts(requests_of(container))),
        Side::Limits => read(spec, side, |container| amounts(limits_of(container))),
    }
}

fn read(spec: &core::PodSpec, side: Side, of: impl Fn(&core::Container) -> Amounts) -> PodAmounts {
    let pod_level = spec.resources.as_ref().and_then(|resources| match side {
        Side::Requests => resources.requests.as_ref(),
        Side::Limits => resources.limits.as_ref(),
    });
    let init_container = |(kind, container)| InitContainer {
        amounts: of(container),
        is_sidecar: kind == Kind::Sidecar,
    };
    PodAmounts {
        containers: spec.containers.iter().map(&of).collect(),
        init_containers: init_containers(spec).map(init_container).collect(),
        pod_level: amounts(pod_level),
        overhead: amounts(spec.overhead.as_ref()),
    }
}

fn pod_level_is_set(spec: &core::PodSpec) -> bool {
    let Some(resources) = &spec.resources else { return false };
    let lists = [resources.requests.as_ref(), resources.limits.as_ref()];
    lists.into_iter().flatten().flat_map(BTreeMap::keys).any(|name| is_pod_level(name))
}

fn every_container_limits(spec: &core::PodSpec, name: &str) -> bool {
    let pod_level = amounts(spec.resources.as_ref().and_then(|r| r.limits.as_ref()));
    if pod_level_is_set(spec) && pod_level.contains_key(name) {
        return true;
    }
    let mut all = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    all.all(|c| amounts(limits_of(c)).get(name).is_some_and(|amount| !amount.is_zero()))
}

fn resize_is_infeasible(status: &core::PodStatus) -> bool {
    let infeasible = |c: &core::PodCondition| {
        c.type_ == "PodResizePending" && c.reason.as_deref() == Some("Infeasible")
    };
    status.conditions.iter().flatten().any(infeasible)
}

fn container_status<'a>(
    status: &'a core::PodStatus,
    name: &str,
) -> Option<&'a core::ContainerStatus> {
    let lists = [&status.container_statuses, &status.init_container_statuses];
    lists.into_iter().flatten().flatten().find(|status| status.name == name)
}

fn requests_of(container: &core::Container) -> Option<&BTreeMap<String, Text>> {
    container.resources.as_ref().and_then(|resources| resources.requests.as_ref())
}

fn limits_of(container: &core::Container) -> Option<&BTreeMap<String, Text>> {
    container.resources.as_ref().and_then(|resources| resources.limits.as_ref())
}

/// Validation rejects amounts that do not parse; here they count as zero.
pub fn amounts(list: Option<&BTreeMap<String, Text>>) -> Amounts {
    let parse =
        |(name, text): (&String, &Text)| Some((name.clone(), Quantity::parse(&text.0).ok()?));
    list.into_iter().flatten().filter_map(parse).collect()
}

fn milli(list: &Amounts, name: &str) -> i64 {
    list.get(name).map_or(0, Quantity::milli_value)
}

#[cfg(test)]
mod tests;
