//! Chooses the pods to delete so that a pod of higher priority fits (N-198, N-199). Pure.
//!
//! Not here: deleting them (`actions`).

mod budgets;
#[cfg(test)]
mod tests;

pub(crate) use budgets::{Budget, Budgets};

use crate::cluster_state::ClusterState;
use crate::decide::{Unschedulable, fits};
use crate::filters::{Cycle, check_single_node};
use crate::messages;
use crate::node::NodeState;
use crate::pod::PodInfo;
use crate::view::{Change, View};
use std::cmp::Reverse;
use std::collections::HashSet;
use std::sync::Arc;

const NEVER: &str = "preemption: not eligible due to preemptionPolicy=Never.";
const IN_PROGRESS: &str =
    "preemption: not eligible due to a terminating pod on the nominated node.";
const NOT_HELPFUL: &str = "Preemption is not helpful for scheduling";
const NO_VICTIMS: &str = "No preemption victims found for incoming pod";

/// The reason in the DisruptionTarget condition of a preempted pod.
pub(crate) const REASON: &str = "PreemptionByScheduler";

/// The number of candidate nodes that are enough to choose from: this many, or this percentage.
const CANDIDATES_LEAST: usize = 100;
const CANDIDATES_PERCENT: usize = 10;

#[derive(Debug)]
pub(crate) enum Preemption {
    /// The pod fits on this node after deleting the victims.
    Victims { node: Arc<str>, victims: Vec<Arc<PodInfo>> },
    /// Victims of an earlier preemption are still terminating.
    InProgress(&'static str),
    /// Preemption does not help; the message for users.
    NotHelpful(Option<String>),
}

/// A node on which the pod fits after preemption.
struct Candidate {
    node: Arc<str>,
    /// Sorted by priority, highest first.
    victims: Vec<Arc<PodInfo>>,
    /// How many victims violate a disruption budget.
    violations: usize,
}

pub(crate) fn preempt(
    cluster: &ClusterState,
    pod: &PodInfo,
    unschedulable: &Unschedulable,
    random: u64,
) -> Preemption {
    // The nodes are not the problem; as in upstream there is no message about preemption then.
    if unschedulable.by_all.is_some() || unschedulable.nodes == 0 {
        return Preemption::NotHelpful(None);
    }
    let policy = pod.pod.spec.as_ref().and_then(|spec| spec.preemption_policy.as_deref());
    if policy == Some("Never") {
        return Preemption::NotHelpful(Some(NEVER.into()));
    }
    if is_in_progress(cluster, pod, unschedulable) {
        return Preemption::InProgress(IN_PROGRESS);
    }
    let (candidates, reasons) = candidates(cluster, pod, unschedulable, random);
    match candidates.into_iter().min_by_key(Candidate::cost) {
        Some(best) => Preemption::Victims { node: best.node, victims: best.victims },
        None => {
            let reasons = reasons.iter().map(String::as_str);
            Preemption::NotHelpful(Some(messages::preemption(unschedulable.nodes, reasons)))
        }
    }
}

/// Whether a victim on the nominated node is still terminating.
fn is_in_progress(cluster: &ClusterState, pod: &PodInfo, unschedulable: &Unschedulable) -> bool {
    let Some(node) = cluster.nominated_to(&pod.key) else {
        return false;
    };
    let hopeless =
        unschedulable.rejected.iter().any(|(name, rejection)| name == node && rejection.hard);
    let leaving = |other: &&Arc<PodInfo>| {
        other.priority < pod.priority && other.is_terminating() && is_victim(other)
    };
    let pods = cluster.node(node).into_iter().flat_map(|node| node.pods.values());
    !hopeless && pods.into_iter().any(|pod| leaving(&pod))
}

fn is_victim(pod: &PodInfo) -> bool {
    let conditions = pod.pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| {
        let reason = condition.reason.as_deref();
        condition.type_ == "DisruptionTarget"
            && condition.status == "True"
            && reason == Some(REASON)
    })
}

fn candidates(
    cluster: &ClusterState,
    pod: &PodInfo,
    unschedulable: &Unschedulable,
    random: u64,
) -> (Vec<Candidate>, Vec<String>) {
    let (hard, soft): (Vec<_>, Vec<_>) =
        unschedulable.rejected.iter().partition(|(_, rejection)| rejection.hard);
    let mut reasons: Vec<String> = hard.iter().map(|_| NOT_HELPFUL.to_owned()).collect();
    let enough = (soft.len() * CANDIDATES_PERCENT / 100).max(CANDIDATES_LEAST);
    let start = if soft.is_empty() { 0 } else { (random % soft.len() as u64) as usize };
    let mut candidates = Vec::new();
    for (name, _) in soft[start..].iter().chain(&soft[..start]) {
        let Some(node) = cluster.node(name) else { continue };
        match find_victims(cluster, pod, node) {
            Ok(candidate) => candidates.push(candidate),
            Err(why) => reasons.extend(why),
        }
        if candidates.len() >= enough {
            break;
        }
    }
    (candidates, reasons)
}

/// Removes all pods of lower priority, then adds them back as long as the pod still fits: first the pods that a budget
/// protects, then the others, each in the order of priority.
fn find_victims(
    cluster: &ClusterState,
    pod: &PodInfo,
    node: &NodeState,
) -> Result<Candidate, Vec<String>> {
    let mut lower_priority: Vec<Arc<PodInfo>> =
        node.pods.values().filter(|other| other.priority < pod.priority).cloned().collect();
    if lower_priority.is_empty() {
        return Err(vec![NO_VICTIMS.into()]);
    }
    lower_priority.sort_by_key(|pod| importance(pod));
    let mut change = Change::none(node);
    lower_priority.iter().for_each(|pod| change.remove(&pod.key));
    check(cluster, pod, &change)?;

    let (violating, others) = cluster.budgets.split(lower_priority.clone());
    let protected: HashSet<_> = violating.iter().map(|pod| pod.key.clone()).collect();
    let mut victims = HashSet::new();
    for other in violating.iter().chain(&others) {
        change.add(other);
        if check(cluster, pod, &change).is_err() {
            change.remove(&other.key);
            victims.insert(other.key.clone());
        }
    }
    let violations = victims.intersection(&protected).count();
    lower_priority.retain(|other| victims.contains(&other.key));
    Ok(Candidate { node: node.name.clone(), victims: lower_priority, violations })
}

fn check(cluster: &ClusterState, pod: &PodInfo, change: &Change) -> Result<(), Vec<String>> {
    // Check the single node first: the other checks prepare data for the whole cluster, for each victim.
    let checked = check_single_node(pod, &change.node)
        .and_then(|()| Cycle::begin(View::with(cluster, change), pod))
        .and_then(|cycle| fits(&cycle, &change.node));
    checked.map_err(|rejection| rejection.reasons.iter().map(|r| r.to_string()).collect())
}

/// Sort key, most important first: by priority, then by running time.
fn importance(pod: &PodInfo) -> (Reverse<i32>, bool, Option<jiff::Timestamp>) {
    let started = pod.started().map(|time| time.0);
    (Reverse(pod.priority), started.is_none(), started)
}

impl Candidate {
    /// The lowest cost is best: budget violations, then priorities of the victims, then their number, then the start
    /// time of the most important victim, latest first.
    fn cost(&self) -> (usize, i32, i64, usize, Reverse<Option<jiff::Timestamp>>) {
        let top = self.victims.first().map_or(i32::MIN, |pod| pod.priority);
        // Shifted to positive numbers, so that two victims of negative priority cost more than one.
        let shifted = |pod: &Arc<PodInfo>| i64::from(pod.priority) + i64::from(i32::MAX) + 1;
        let sum = self.victims.iter().map(shifted).sum();
        let tops = self.victims.iter().filter(|pod| pod.priority == top);
        let earliest = tops.filter_map(|pod| pod.started()).map(|time| time.0).min();
        (self.violations, top, sum, self.victims.len(), Reverse(earliest))
    }
}
