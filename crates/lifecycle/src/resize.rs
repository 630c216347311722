//! Resizing a running pod: whether it is granted, which pod comes first, and in which order cgroups change (N-118 to
//! N-121).
//!
//!     requested ──▶ decide ──▶ granted ──▶ changes, steps ──▶ applied
//!
//! Three things that are usually equal: what the spec requests, what the node has *granted* (counted by admission),
//! and what is *applied* to the running containers.
//! Not here: writing cgroups, keeping grants across restarts (`node`).

use crate::resources::{Amounts, Cgroup, Qos, amounts, pod_requests, qos_class};
use api::quantity::Quantity;
use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Resources of a pod as a whole and of its containers by name.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Grant {
    pub pod: Option<core::ResourceRequirements>,
    pub containers: BTreeMap<String, core::ResourceRequirements>,
}

impl Grant {
    /// The resources in the spec.
    pub fn of(spec: &core::PodSpec) -> Grant {
        let resources =
            |c: &core::Container| (c.name.clone(), c.resources.clone().unwrap_or_default());
        Grant { pod: spec.resources.clone(), containers: all(spec).map(resources).collect() }
    }

    /// The spec with these resources instead of its own.
    pub fn put_into(&self, spec: &mut core::PodSpec) {
        spec.resources = self.pod.clone();
        let init = spec.init_containers.iter_mut().flatten();
        for container in spec.containers.iter_mut().chain(init) {
            if let Some(granted) = self.containers.get(&container.name) {
                container.resources = Some(granted.clone());
            }
        }
    }

    /// Equal to what the spec requests, however amounts are spelled.
    pub fn is_of(&self, spec: &core::PodSpec) -> bool {
        let none = core::ResourceRequirements::default();
        let pod = |resources: &Option<core::ResourceRequirements>| amounts_of(resources.as_ref());
        let same = |container: &core::Container| {
            let granted = self.containers.get(&container.name).unwrap_or(&none);
            amounts_of(Some(granted)) == amounts_of(container.resources.as_ref())
        };
        pod(&self.pod) == pod(&spec.resources) && all(spec).all(same)
    }
}

fn all(spec: &core::PodSpec) -> impl Iterator<Item = &core::Container> {
    spec.containers.iter().chain(spec.init_containers.iter().flatten())
}

fn amounts_of(resources: Option<&core::ResourceRequirements>) -> (Amounts, Amounts) {
    let list = |of: fn(&core::ResourceRequirements) -> Option<&_>| amounts(resources.and_then(of));
    (list(|r| r.requests.as_ref()), list(|r| r.limits.as_ref()))
}

/// The decision about a requested resize.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    Granted,
    /// Not now: the message says what is short. It is decided again later.
    Deferred(String),
    /// Never on this node, unless the spec changes.
    Infeasible(String),
}

impl Decision {
    /// `status.conditions[PodResizePending].reason` and message.
    pub fn pending(self) -> Option<(&'static str, String)> {
        match self {
            Decision::Granted => None,
            Decision::Deferred(message) => Some(("Deferred", message)),
            Decision::Infeasible(message) => Some(("Infeasible", message)),
        }
    }
}

/// Decides about a resize (N-118). `shortage`: what admission would reject if the pod came with the requested
/// resources and its present ones were free.
pub fn decide(asked: &core::PodSpec, allocatable: &Amounts, shortage: Option<String>) -> Decision {
    let requests = pod_requests(asked);
    let units = |amount: &Quantity, name: &str| match name {
        "cpu" => amount.milli_value(),
        _ => amount.value(),
    };
    for name in ["memory", "cpu"] {
        let Some(wanted) = requests.get(name).map(|amount| units(amount, name)) else { continue };
        let capacity = allocatable.get(name).map_or(0, |amount| units(amount, name));
        if wanted > capacity {
            return Decision::Infeasible(format!(
                "Node didn't have enough capacity: {name}, requested: {wanted}, capacity: {capacity}"
            ));
        }
    }
    shortage.map_or(Decision::Granted, Decision::Deferred)
}

/// A resize that could not be granted yet.
#[derive(Debug, Clone, PartialEq)]
pub struct Waiting {
    pub uid: String,
    /// It requests more of some resource than was granted.
    pub grows: bool,
    pub priority: i32,
    pub qos: Qos,
    /// Deferred since then.
    pub since: Timestamp,
}

impl Waiting {
    pub fn new(uid: &str, asked: &core::PodSpec, granted: &Grant, since: Timestamp) -> Waiting {
        Waiting {
            uid: uid.to_owned(),
            grows: grows(asked, granted),
            priority: asked.priority.unwrap_or(0),
            qos: qos_class(asked),
            since,
        }
    }
}

/// Whether the spec needs more of some resource than was granted.
pub fn grows(asked: &core::PodSpec, granted: &Grant) -> bool {
    let mut before = asked.clone();
    granted.put_into(&mut before);
    let (before, after) = (pod_requests(&before), pod_requests(asked));
    after.iter().any(|(name, amount)| before.get(name).is_none_or(|before| amount > before))
}

/// The order in which waiting resizes are decided when capacity has become free (N-118).
pub fn in_turn(mut waiting: Vec<Waiting>) -> Vec<Waiting> {
    waiting.sort_by_key(|one| (one.grows, Reverse(one.priority), one.qos, one.since));
    waiting
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Resource {
    Memory,
    Cpu,
}

impl Resource {
    fn name(self) -> &'static str {
        match self {
            Resource::Memory => "memory",
            Resource::Cpu => "cpu",
        }
    }
}

/// How a running container differs from what was granted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Change {
    pub resources: Vec<Resource>,
    /// Its resizePolicy requires a restart for one of them (N-120).
    pub restart: bool,
}

/// None: no difference. `granted` is the container with its granted resources.
pub fn change(granted: &core::Container, applied: &core::ResourceRequirements) -> Option<Change> {
    let (wanted, is) = (amounts_of(granted.resources.as_ref()), amounts_of(Some(applied)));
    let differs = |resource: &Resource| {
        let of = |list: &Amounts| list.get(resource.name()).copied();
        of(&wanted.0) != of(&is.0) || of(&wanted.1) != of(&is.1)
    };
    let resources: Vec<Resource> =
        [Resource::Memory, Resource::Cpu].into_iter().filter(differs).collect();
    let restarts = |resource: &Resource| {
        let mut policies = granted.resize_policy.iter().flatten();
        policies
            .any(|p| p.resource_name == resource.name() && p.restart_policy == "RestartContainer")
    };
    let restart = resources.iter().any(restarts);
    (!resources.is_empty()).then_some(Change { resources, restart })
}

/// One write into the cgroups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResizeStep {
    PodLimit(Resource),
    /// Only for cpu: memory requests are not in any cgroup (N-108).
    PodRequest,
    Container {
        name: String,
        resource: Resource,
    },
}

/// A cgroup before and after.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resized {
    pub name: String,
    pub before: Cgroup,
    pub after: Cgroup,
}

/// Memory first, then cpu. What grows changes first in the pod, limit before request, then in its containers; what
/// shrinks changes first in the containers. Containers that shrink come first (N-120).
pub fn steps(pod: (Cgroup, Cgroup), containers: &[Resized]) -> Vec<ResizeStep> {
    let mut steps = Vec::new();
    for resource in [Resource::Memory, Resource::Cpu] {
        let limit = |group: &Cgroup| limit(group, resource);
        let request = |group: &Cgroup| match resource {
            Resource::Memory => 0,
            Resource::Cpu => group.cpu_shares,
        };
        let (before, after) = (&pod.0, &pod.1);
        if limit(after) > limit(before) {
            steps.push(ResizeStep::PodLimit(resource));
        }
        if request(after) > request(before) {
            steps.push(ResizeStep::PodRequest);
        }
        let differs = |c: &&Resized| {
            limit(&c.before) != limit(&c.after) || request(&c.before) != request(&c.after)
        };
        let grows = |c: &&Resized| {
            let size = |group: &Cgroup| (limit(group), request(group));
            size(&c.after) > size(&c.before)
        };
        let mut changed: Vec<&Resized> = containers.iter().filter(differs).collect();
        changed.sort_by_key(|container| grows(container));
        let step = |c: &Resized| ResizeStep::Container { name: c.name.clone(), resource };
        steps.extend(changed.into_iter().map(step));
        if request(after) < request(before) {
            steps.push(ResizeStep::PodRequest);
        }
        if limit(after) < limit(before) {
            steps.push(ResizeStep::PodLimit(resource));
        }
    }
    steps
}

/// No limit counts as more than any limit.
fn limit(group: &Cgroup, resource: Resource) -> i64 {
    let limit = match resource {
        Resource::Memory => group.memory_limit,
        Resource::Cpu => group.cpu_quota,
    };
    limit.unwrap_or(i64::MAX)
}

/// A limit at or below the current usage is not applied (N-121). `usage` by container name.
pub fn too_small(containers: &[Resized], usage: &BTreeMap<String, i64>) -> Option<String> {
    let wrong: Vec<String> = containers
        .iter()
        .filter(|c| limit(&c.after, Resource::Memory) < limit(&c.before, Resource::Memory))
        .filter_map(|c| {
            let (wanted, used) = (c.after.memory_limit?, *usage.get(&c.name)?);
            (used >= wanted).then(|| {
                format!(
                    "attempting to set container {:?} memory limit ({wanted}) below current usage ({used})",
                    c.name
                )
            })
        })
        .collect();
    match wrong.as_slice() {
        [] => None,
        [one] => Some(format!("cannot decrease memory limits: {one}")),
        many => Some(format!("cannot decrease memory limits: [{}]", many.join(", "))),
    }
}

#[cfg(test)]
mod tests;
