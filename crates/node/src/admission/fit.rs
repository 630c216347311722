//! Row 6: compares requests with what the node can allocate.

use super::Rejection;
use api::quantity::Quantity;
use k8s_openapi::api::core::v1::{Node, Pod};
use lifecycle::resources::{amounts, pod_requests};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Amounts by resource: CPU in thousandths, others in whole units, rounded up.
pub(super) type Units = BTreeMap<String, i64>;

pub(super) fn requests(pod: &Pod) -> Units {
    let requests = pod.spec.as_ref().map(pod_requests).unwrap_or_default();
    requests.into_iter().map(|(resource, amount)| in_units(resource, &amount)).collect()
}

fn in_units(resource: String, amount: &Quantity) -> (String, i64) {
    let units = if resource == "cpu" { amount.milli_value() } else { amount.value() };
    (resource, units)
}

/// A resource that is not sufficient; amounts as in [`Units`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Shortage {
    pub(super) resource: String,
    pub(super) requested: i64,
    pub(super) used: i64,
    pub(super) capacity: i64,
}

impl Shortage {
    /// How much must become free.
    pub(super) fn missing(&self) -> i64 {
        self.requested.saturating_sub(self.capacity.saturating_sub(self.used))
    }
}

/// All insufficient resources in upstream's order: pods, cpu, memory, ephemeral-storage, then by name.
pub(super) fn shortages(node: &Node, others: &[&Arc<Pod>], pod: &Pod) -> Vec<Shortage> {
    let allocatable = amounts(node.status.as_ref().and_then(|status| status.allocatable.as_ref()));
    let allocatable: Units =
        allocatable.into_iter().map(|(r, amount)| in_units(r, &amount)).collect();
    let capacity = |resource: &str| allocatable.get(resource).copied();
    let mut used = Units::new();
    for (resource, amount) in others.iter().flat_map(|other| requests(other)) {
        let sum = used.entry(resource).or_default();
        *sum = sum.saturating_add(amount);
    }
    let count = i64::try_from(others.len()).unwrap_or(i64::MAX);
    let mut demands = vec![("pods".to_owned(), 1, count)];
    let mut requested = requests(pod);
    for first in ["cpu", "memory", "ephemeral-storage"] {
        demands
            .extend(requested.remove(first).map(|n| (first.to_owned(), n, used_of(&used, first))));
    }
    // Ignore extended resources that the node does not have: their device plugin may be gone (N-28).
    requested.retain(|resource, _| !is_extended(resource) || capacity(resource).is_some());
    demands.extend(requested.into_iter().map(|(name, n)| (name.clone(), n, used_of(&used, &name))));
    demands
        .into_iter()
        .filter(|(_, requested, _)| *requested > 0)
        .map(|(resource, requested, used)| {
            let capacity = capacity(&resource).unwrap_or_default();
            Shortage { resource, requested, used, capacity }
        })
        .filter(|shortage| shortage.missing() > 0)
        .collect()
}

fn used_of(used: &Units, resource: &str) -> i64 {
    used.get(resource).copied().unwrap_or_default()
}

/// Whether the resource is not one of Kubernetes.
fn is_extended(resource: &str) -> bool {
    resource.contains('/')
        && !resource.split('/').next().unwrap_or_default().ends_with("kubernetes.io")
}

/// Reports the first of them.
pub(super) fn rejection(short: &[Shortage]) -> Rejection {
    let Some(Shortage { resource, requested, used, capacity }) = short.first() else {
        return Rejection::new("UnexpectedAdmissionError", "");
    };
    Rejection::new(
        &format!("OutOf{resource}"),
        format!(
            "Node didn't have enough resource: {resource}, requested: {requested}, used: {used}, \
             capacity: {capacity}"
        ),
    )
}
