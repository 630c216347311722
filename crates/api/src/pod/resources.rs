//! Totals of a pod's requests and limits (N-110), and its QoS class (N-87).
//!
//! Arithmetic only: callers read the amounts from a pod, see [`super::json`] and `lifecycle::resources`.

use crate::quantity::Quantity;
use std::collections::BTreeMap;

/// Amounts by resource name: `cpu`, `memory`, `example.com/gpu`.
pub type Amounts = BTreeMap<String, Quantity>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Requests,
    Limits,
}

/// The requests of a pod, or its limits, as the spec declares them.
#[derive(Debug, Clone, Default)]
pub struct PodAmounts {
    pub containers: Vec<Amounts>,
    /// In the order of the spec.
    pub init_containers: Vec<InitContainer>,
    pub pod_level: Amounts,
    pub overhead: Amounts,
}

#[derive(Debug, Clone)]
pub struct InitContainer {
    pub amounts: Amounts,
    /// Has `restartPolicy: Always`, so that it runs beside all later containers.
    pub is_sidecar: bool,
}

impl PodAmounts {
    /// max(Σ regular + Σ sidecars, max over init containers i of (i + Σ sidecars before i))
    pub fn containers_total(&self) -> Amounts {
        let mut total = Amounts::new();
        for container in &self.containers {
            add(&mut total, container);
        }
        let (mut sidecars, mut peak) = (Amounts::new(), Amounts::new());
        for container in &self.init_containers {
            let mut at_once = sidecars.clone();
            add(&mut at_once, &container.amounts);
            if container.is_sidecar {
                add(&mut total, &container.amounts);
                sidecars.clone_from(&at_once);
            }
            raise(&mut peak, &at_once);
        }
        raise(&mut total, &peak);
        total
    }

    /// The containers' total, replaced by the pod-level amounts where they are set.
    pub fn total(&self) -> Amounts {
        let mut total = self.containers_total();
        let pod_level = self.pod_level.iter().filter(|(name, _)| is_pod_level(name));
        total.extend(pod_level.map(|(name, amount)| (name.clone(), *amount)));
        total
    }

    /// The total plus the overhead of the runtime class. Resources without a limit stay without one.
    pub fn total_with_overhead(&self, side: Side) -> Amounts {
        let mut total = self.total();
        for (name, amount) in &self.overhead {
            match (total.get_mut(name), side) {
                (Some(own), Side::Requests) => *own = *own + *amount,
                (None, Side::Requests) => drop(total.insert(name.clone(), *amount)),
                (Some(own), Side::Limits) if !own.is_zero() => *own = *own + *amount,
                (_, Side::Limits) => {}
            }
        }
        total
    }
}

/// Only cpu, memory and huge pages can be set for the pod as a whole.
pub fn is_pod_level(name: &str) -> bool {
    name == "cpu" || name == "memory" || name.starts_with("hugepages-")
}

/// What counts for one container while a resize is in progress: the largest of the requested, allocated and
/// actual amounts, or without the requested ones if the node can never grant them.
pub fn during_resize(
    requested: Amounts,
    allocated: &Amounts,
    actual: Amounts,
    is_infeasible: bool,
) -> Amounts {
    let mut counted = actual;
    raise(&mut counted, allocated);
    if !is_infeasible {
        raise(&mut counted, &requested);
    }
    counted
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Qos {
    Guaranteed,
    Burstable,
    BestEffort,
}

impl Qos {
    /// The class of a pod with these requests and limits: of the pod as a whole if it has pod-level resources,
    /// otherwise of each container and init container.
    pub fn of(parts: impl Iterator<Item = (Amounts, Amounts)>) -> Qos {
        let (mut requests, mut limits) = (Amounts::new(), Amounts::new());
        let mut all_limited = true;
        for (own_requests, own_limits) in parts {
            let own_limits = counted_for_qos(own_limits);
            all_limited &= own_limits.len() == 2;
            add(&mut limits, &own_limits);
            add(&mut requests, &counted_for_qos(own_requests));
        }
        if requests.is_empty() && limits.is_empty() {
            return Qos::BestEffort;
        }
        if all_limited && requests == limits { Qos::Guaranteed } else { Qos::Burstable }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Qos::Guaranteed => "Guaranteed",
            Qos::Burstable => "Burstable",
            Qos::BestEffort => "BestEffort",
        }
    }
}

/// Only cpu and memory determine the class, and zero is the same as not set.
fn counted_for_qos(mut amounts: Amounts) -> Amounts {
    amounts.retain(|name, amount| {
        matches!(name.as_str(), "cpu" | "memory") && !amount.is_zero() && !amount.is_negative()
    });
    amounts
}

fn add(total: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        let own = total.entry(name.clone()).or_insert(Quantity::ZERO);
        *own = *own + *amount;
    }
}

/// Raises each amount to at least the other one.
fn raise(total: &mut Amounts, least: &Amounts) {
    for (name, amount) in least {
        match total.get_mut(name) {
            Some(own) if *own >= *amount => {}
            _ => drop(total.insert(name.clone(), *amount)),
        }
    }
}
