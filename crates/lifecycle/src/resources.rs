//! What a pod asks of a node, and what the kernel is told: sums, classes, shares, quotas, scores.
//!
//! Arithmetic only. The node writes cgroups by it, the scheduler and the node's admission count by it.

use crate::containers::{Kind, init_containers, is_sidecar};
use api::quantity::Quantity;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;
use std::collections::BTreeMap;

/// Amounts by resource name: `cpu`, `memory`, `example.com/gpu`.
pub type Amounts = BTreeMap<String, Quantity>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Qos {
    Guaranteed,
    Burstable,
    BestEffort,
}

impl Qos {
    pub fn as_str(self) -> &'static str {
        match self {
            Qos::Guaranteed => "Guaranteed",
            Qos::Burstable => "Burstable",
            Qos::BestEffort => "BestEffort",
        }
    }
}

/// What goes into a cgroup. None: no limit of that kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cgroup {
    pub cpu_shares: u64,
    /// Of every 100 ms, in microseconds.
    pub cpu_quota: Option<i64>,
    pub memory_limit: Option<i64>,
}

/// What the pod needs of a node (N-110).
pub fn pod_requests(spec: &core::PodSpec) -> Amounts {
    let mut total = aggregate(spec, |container| amounts(requests_of(container)));
    replace_by_pod_level(&mut total, spec.resources.as_ref().and_then(|r| r.requests.as_ref()));
    for (name, amount) in amounts(spec.overhead.as_ref()) {
        add(&mut total, &name, amount);
    }
    total
}

/// What the pod may use at most, for the resources that are limited (N-110).
pub fn pod_limits(spec: &core::PodSpec) -> Amounts {
    let mut total = aggregate(spec, |container| amounts(limits_of(container)));
    replace_by_pod_level(&mut total, spec.resources.as_ref().and_then(|r| r.limits.as_ref()));
    for (name, amount) in amounts(spec.overhead.as_ref()) {
        if total.contains_key(&name) {
            add(&mut total, &name, amount);
        }
    }
    total
}

/// What the scheduler and admission count while a resize is not settled (N-110): the most of what is
/// asked for, allocated and in use; what is asked for does not count if it can never be had.
pub fn counted_requests(pod: &core::Pod) -> Amounts {
    let Some(spec) = &pod.spec else { return Amounts::new() };
    let status = pod.status.as_ref();
    let infeasible = status.is_some_and(resize_is_infeasible);
    let mut total = aggregate(spec, |container| {
        let asked = amounts(requests_of(container));
        let known = status.and_then(|status| container_status(status, &container.name));
        let Some(known) = known else { return asked };
        let allocated = amounts(known.allocated_resources.as_ref());
        let actual = amounts(known.resources.as_ref().and_then(|r| r.requests.as_ref()));
        let settled = largest(allocated, actual);
        match infeasible && !settled.is_empty() {
            true => settled,
            false => largest(asked, settled),
        }
    });
    replace_by_pod_level(&mut total, spec.resources.as_ref().and_then(|r| r.requests.as_ref()));
    for (name, amount) in amounts(spec.overhead.as_ref()) {
        add(&mut total, &name, amount);
    }
    total
}

/// N-87
pub fn qos_class(spec: &core::PodSpec) -> Qos {
    if pod_level_is_set(spec) {
        return classify(std::iter::once(spec.resources.as_ref()));
    }
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    classify(containers.map(|container| container.resources.as_ref()))
}

/// N-109
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

/// N-106 to N-108. A container without a cpu request but with a limit gets its shares from the limit.
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

/// N-106
pub fn cpu_shares(milli: i64) -> u64 {
    u64::try_from(milli)
        .unwrap_or(0)
        .saturating_mul(1024)
        .checked_div(1000)
        .unwrap_or(0)
        .clamp(2, 262_144)
}

/// N-107: microseconds of every 100 ms, at least one millisecond. None: no limit.
pub fn cpu_quota(milli: i64) -> Option<i64> {
    (milli > 0).then(|| milli.saturating_mul(100).max(1000))
}

/// N-106: cpu.weight of the node's and the pods' cgroups.
pub fn pod_cpu_weight(shares: u64) -> u64 {
    1 + (shares.clamp(2, 262_144) - 2) * 9999 / 262_142
}

/// N-106: cpu.weight of a container's cgroup.
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

/// N-111
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

/// Memory that the pod as a whole asks for beyond its containers, divided among them.
fn spare_memory(pod: &core::PodSpec) -> i64 {
    let asked = amounts(pod.resources.as_ref().and_then(|r| r.requests.as_ref()));
    let Some(asked) = asked.get("memory").filter(|amount| !amount.is_zero()) else { return 0 };
    let used = aggregate(pod, |c| amounts(requests_of(c)));
    let used = used.get("memory").map_or(0, Quantity::value);
    let count = pod.containers.len() + pod.init_containers.as_ref().map_or(0, Vec::len);
    asked.value().saturating_sub(used) / i64::try_from(count.max(1)).unwrap_or(1)
}

/// max( Σ regular + Σ sidecars, max over init container i of (i + Σ sidecars before it) )
fn aggregate(spec: &core::PodSpec, of: impl Fn(&core::Container) -> Amounts) -> Amounts {
    let mut total = Amounts::new();
    for container in &spec.containers {
        add_all(&mut total, of(container));
    }
    let (mut sidecars, mut peak) = (Amounts::new(), Amounts::new());
    for (kind, container) in init_containers(spec) {
        let own = of(container);
        let mut at_once = sidecars.clone();
        add_all(&mut at_once, own.clone());
        if kind == Kind::Sidecar {
            add_all(&mut total, own);
            sidecars = at_once.clone();
        }
        peak = largest(peak, at_once);
    }
    largest(total, peak)
}

/// Only cpu, memory and huge pages can be asked for by the pod as a whole.
fn replace_by_pod_level(total: &mut Amounts, list: Option<&BTreeMap<String, Text>>) {
    total.extend(amounts(list).into_iter().filter(|(name, _)| is_pod_level(name)));
}

fn is_pod_level(name: &str) -> bool {
    name == "cpu" || name == "memory" || name.starts_with("hugepages-")
}

fn pod_level_is_set(spec: &core::PodSpec) -> bool {
    let Some(resources) = &spec.resources else { return false };
    let lists = [resources.requests.as_ref(), resources.limits.as_ref()];
    lists.into_iter().flatten().flat_map(BTreeMap::keys).any(|name| is_pod_level(name))
}

fn classify<'a>(all: impl Iterator<Item = Option<&'a core::ResourceRequirements>>) -> Qos {
    let (mut requests, mut limits) = (Amounts::new(), Amounts::new());
    let mut all_limited = true;
    for resources in all {
        let own = counted(resources.and_then(|r| r.limits.as_ref()));
        all_limited &= own.len() == 2;
        add_all(&mut limits, own);
        add_all(&mut requests, counted(resources.and_then(|r| r.requests.as_ref())));
    }
    if requests.is_empty() && limits.is_empty() {
        return Qos::BestEffort;
    }
    if all_limited && requests == limits { Qos::Guaranteed } else { Qos::Burstable }
}

/// Only cpu and memory decide the class, and nothing of something is as good as none.
fn counted(list: Option<&BTreeMap<String, Text>>) -> Amounts {
    let mut found = amounts(list);
    found.retain(|name, amount| {
        matches!(name.as_str(), "cpu" | "memory") && !amount.is_zero() && !amount.is_negative()
    });
    found
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

/// The API refused what does not parse; here it is nothing.
pub fn amounts(list: Option<&BTreeMap<String, Text>>) -> Amounts {
    let parse =
        |(name, text): (&String, &Text)| Some((name.clone(), Quantity::parse(&text.0).ok()?));
    list.into_iter().flatten().filter_map(parse).collect()
}

fn milli(list: &Amounts, name: &str) -> i64 {
    list.get(name).map_or(0, Quantity::milli_value)
}

fn add(total: &mut Amounts, name: &str, amount: Quantity) {
    let sum = total.get(name).copied().unwrap_or(Quantity::ZERO) + amount;
    total.insert(name.to_owned(), sum);
}

fn add_all(total: &mut Amounts, more: Amounts) {
    for (name, amount) in more {
        add(total, &name, amount);
    }
}

fn largest(mut one: Amounts, other: Amounts) -> Amounts {
    for (name, amount) in other {
        let most = one.get(&name).copied().map_or(amount, |known| known.max(amount));
        one.insert(name, most);
    }
    one
}

#[cfg(test)]
mod tests;
