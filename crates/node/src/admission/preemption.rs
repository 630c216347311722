//! Selects the pods that a critical pod preempts (T-NODE-83). Upstream: `getPodsToPreempt`.
//!
//! It selects as few pods of the better QoS classes as possible: Guaranteed pods only for what
//! Burstable and BestEffort pods cannot free, and so on. Within a class it prefers the pod that
//! frees most of what is missing.

use super::fit::{Shortage, Units, requests};
use super::{Rejection, qos};
use crate::static_pods::is_critical;
use k8s_openapi::api::core::v1::Pod;
use lifecycle::resources::Qos;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What is still missing, by resource.
type Missing = BTreeMap<String, i64>;

struct Candidate {
    pod: Arc<Pod>,
    frees: Units,
}

pub(super) fn victims(
    pod: &Pod,
    others: &[&Arc<Pod>],
    short: &[Shortage],
) -> Result<Vec<Arc<Pod>>, Rejection> {
    let missing: Missing = short.iter().map(|s| (s.resource.clone(), s.missing())).collect();
    let mut classes: [Vec<Candidate>; 3] = Default::default();
    for other in others.iter().filter(|other| is_preemptible(other, pod)) {
        let mut frees = requests(other);
        frees.insert("pods".to_owned(), 1);
        classes[class(other)].push(Candidate { pod: (*other).clone(), frees });
    }
    let [best_effort, burstable, guaranteed] = classes;
    let all = best_effort.iter().chain(&burstable).chain(&guaranteed);
    let unobtainable = without(&missing, all);
    if !unobtainable.is_empty() {
        return Err(impossible(&unobtainable));
    }
    let guaranteed = select(guaranteed, without(&missing, best_effort.iter().chain(&burstable)));
    let burstable = select(burstable, without(&missing, best_effort.iter().chain(&guaranteed)));
    let best_effort = select(best_effort, without(&missing, burstable.iter().chain(&guaranteed)));
    let chosen = best_effort.into_iter().chain(burstable).chain(guaranteed);
    Ok(chosen.map(|candidate| candidate.pod).collect())
}

fn is_preemptible(other: &Pod, by: &Pod) -> bool {
    let priority = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.priority);
    let lower = || Some(priority(by)? > priority(other)?);
    (is_critical(by) && !is_critical(other)) || lower().unwrap_or_default()
}

/// Index of the pod's QoS class: 0 BestEffort, 1 Burstable, 2 Guaranteed.
fn class(pod: &Pod) -> usize {
    match qos(pod) {
        Qos::BestEffort => 0,
        Qos::Burstable => 1,
        Qos::Guaranteed => 2,
    }
}

/// What is still missing when these pods are gone.
fn without<'c>(missing: &Missing, gone: impl Iterator<Item = &'c Candidate>) -> Missing {
    let mut missing = missing.clone();
    for candidate in gone {
        subtract(&mut missing, candidate);
    }
    missing
}

fn subtract(missing: &mut Missing, gone: &Candidate) {
    for (resource, amount) in missing.iter_mut() {
        *amount = amount.saturating_sub(gone.frees.get(resource).copied().unwrap_or_default());
    }
    missing.retain(|_, amount| *amount > 0);
}

/// Selects pods until nothing is missing, each time the one that leaves the least missing.
fn select(mut from: Vec<Candidate>, mut missing: Missing) -> Vec<Candidate> {
    let mut chosen = Vec::new();
    while !missing.is_empty() && !from.is_empty() {
        let mut best = 0;
        for i in 1..from.len() {
            let (this, that) = (distance(&from[i], &missing), distance(&from[best], &missing));
            if this < that || this == that && requests_less(&from[i], &from[best]) {
                best = i;
            }
        }
        let candidate = from.swap_remove(best);
        subtract(&mut missing, &candidate);
        chosen.push(candidate);
    }
    chosen
}

/// How much is still missing without this pod: the sum of squared fractions.
fn distance(candidate: &Candidate, missing: &Missing) -> f64 {
    let left = |(resource, amount): (&String, &i64)| {
        let freed = candidate.frees.get(resource).copied().unwrap_or_default();
        ((amount - freed).max(0) as f64 / *amount as f64).powi(2)
    };
    missing.iter().map(left).sum()
}

fn requests_less(this: &Candidate, that: &Candidate) -> bool {
    let of = |c: &Candidate| {
        ["memory", "cpu"].map(|resource| c.frees.get(resource).copied().unwrap_or_default())
    };
    of(this) <= of(that)
}

fn impossible(unobtainable: &Missing) -> Rejection {
    let list: String = unobtainable
        .iter()
        .map(|(resource, amount)| format!("(res: {resource}, q: {amount}), "))
        .collect();
    Rejection::new(
        "UnexpectedAdmissionError",
        format!(
            "Unexpected error while attempting to recover from admission failure: preemption: error \
             finding a set of pods to preempt: no set of running pods found to reclaim resources: \
             [{list}]"
        ),
    )
}
