//! Which pods have to go so that a more important one fits (N-198, N-199). Pure.
//!
//! Not here: ending them (`act`).

mod budgets;
#[cfg(test)]
mod tests;

pub(crate) use budgets::{Budget, Budgets};

use crate::decide::{Unfit, fits};
use crate::filters::{Cycle, check_alone};
use crate::node::NodeState;
use crate::pod::PodInfo;
use crate::text;
use crate::view::{Change, View};
use crate::world::World;
use std::cmp::Reverse;
use std::collections::HashSet;
use std::sync::Arc;

const NEVER: &str = "preemption: not eligible due to preemptionPolicy=Never.";
const UNDER_WAY: &str = "preemption: not eligible due to a terminating pod on the nominated node.";
const OF_NO_HELP: &str = "Preemption is not helpful for scheduling";
const NOBODY: &str = "No preemption victims found for incoming pod";

/// Why a pod that is being deleted has to go, if it is for another one.
pub(crate) const REASON: &str = "PreemptionByScheduler";

/// Of many nodes where room could be made some are enough: so many, or this part of them.
const CANDIDATES_LEAST: usize = 100;
const CANDIDATES_PERCENT: usize = 10;

#[derive(Debug)]
pub(crate) enum Preemption {
    /// These go, and then the pod fits.
    MakeRoom { node: Arc<str>, victims: Vec<Arc<PodInfo>> },
    /// Room is being made.
    UnderWay(&'static str),
    /// It does not help, and this is what there is to say.
    NoHelp(Option<String>),
}

/// A node where room could be made.
struct Candidate {
    node: Arc<str>,
    /// The most important first.
    victims: Vec<Arc<PodInfo>>,
    /// How many of them against the will of a disruption budget.
    violations: usize,
}

pub(crate) fn preempt(world: &World, pod: &PodInfo, unfit: &Unfit, chance: u64) -> Preemption {
    // What is wrong is not the nodes, and no tail is better than upstream's.
    if unfit.by_all.is_some() || unfit.nodes == 0 {
        return Preemption::NoHelp(None);
    }
    let policy = pod.pod.spec.as_ref().and_then(|spec| spec.preemption_policy.as_deref());
    if policy == Some("Never") {
        return Preemption::NoHelp(Some(NEVER.into()));
    }
    if is_under_way(world, pod, unfit) {
        return Preemption::UnderWay(UNDER_WAY);
    }
    let (candidates, reasons) = candidates(world, pod, unfit, chance);
    match candidates.into_iter().min_by_key(Candidate::cost) {
        Some(best) => Preemption::MakeRoom { node: best.node, victims: best.victims },
        None => {
            let reasons = reasons.iter().map(String::as_str);
            Preemption::NoHelp(Some(text::preemption(unfit.nodes, reasons)))
        }
    }
}

/// Room was made on its node, and somebody less important is still leaving.
fn is_under_way(world: &World, pod: &PodInfo, unfit: &Unfit) -> bool {
    let Some(node) = world.nominated_to(&pod.key) else {
        return false;
    };
    let hopeless = unfit.rejected.iter().any(|(name, rejection)| name == node && rejection.hard);
    let leaving = |other: &&Arc<PodInfo>| {
        other.priority < pod.priority && other.is_going() && is_victim(other)
    };
    let pods = world.node(node).into_iter().flat_map(|node| node.pods.values());
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
    world: &World,
    pod: &PodInfo,
    unfit: &Unfit,
    chance: u64,
) -> (Vec<Candidate>, Vec<String>) {
    let (hard, soft): (Vec<_>, Vec<_>) =
        unfit.rejected.iter().partition(|(_, rejection)| rejection.hard);
    let mut reasons: Vec<String> = hard.iter().map(|_| OF_NO_HELP.to_owned()).collect();
    let enough = (soft.len() * CANDIDATES_PERCENT / 100).max(CANDIDATES_LEAST);
    let start = if soft.is_empty() { 0 } else { (chance % soft.len() as u64) as usize };
    let mut candidates = Vec::new();
    for (name, _) in soft[start..].iter().chain(&soft[..start]) {
        let Some(node) = world.node(name) else { continue };
        match make_room(world, pod, node) {
            Ok(candidate) => candidates.push(candidate),
            Err(why) => reasons.extend(why),
        }
        if candidates.len() >= enough {
            break;
        }
    }
    (candidates, reasons)
}

/// All who are less important leave; then they come back, the most important first, as long as the
/// pod still fits. Those that a budget protects come back before the others.
fn make_room(world: &World, pod: &PodInfo, node: &NodeState) -> Result<Candidate, Vec<String>> {
    let mut lesser: Vec<Arc<PodInfo>> =
        node.pods.values().filter(|other| other.priority < pod.priority).cloned().collect();
    if lesser.is_empty() {
        return Err(vec![NOBODY.into()]);
    }
    lesser.sort_by_key(|pod| importance(pod));
    let mut change = Change::none(node);
    lesser.iter().for_each(|pod| change.remove(&pod.key));
    check(world, pod, &change)?;

    let (violating, others) = world.budgets.split(lesser.clone());
    let protected: HashSet<_> = violating.iter().map(|pod| pod.key.clone()).collect();
    let mut victims = HashSet::new();
    for other in violating.iter().chain(&others) {
        change.add(other);
        if check(world, pod, &change).is_err() {
            change.remove(&other.key);
            victims.insert(other.key.clone());
        }
    }
    let violations = victims.intersection(&protected).count();
    lesser.retain(|other| victims.contains(&other.key));
    Ok(Candidate { node: node.name.clone(), victims: lesser, violations })
}

fn check(world: &World, pod: &PodInfo, change: &Change) -> Result<(), Vec<String>> {
    // What one node can tell is asked first: the rest is prepared for the whole world, victim by victim.
    let checked = check_alone(pod, &change.node)
        .and_then(|()| Cycle::begin(View::with(world, change), pod))
        .and_then(|cycle| fits(&cycle, &change.node));
    checked.map_err(|rejection| rejection.reasons.iter().map(|r| r.to_string()).collect())
}

/// Orders the most important first: by priority, then by who has run for longest.
fn importance(pod: &PodInfo) -> (Reverse<i32>, bool, Option<jiff::Timestamp>) {
    let started = pod.started().map(|time| time.0);
    (Reverse(pod.priority), started.is_none(), started)
}

impl Candidate {
    /// The least is best: budgets, then how important the victims are, then how many, and last
    /// rather those who have just begun.
    fn cost(&self) -> (usize, i32, i64, usize, Reverse<Option<jiff::Timestamp>>) {
        let top = self.victims.first().map_or(i32::MIN, |pod| pod.priority);
        // Shifted, so that two of little importance are still worse than one.
        let shifted = |pod: &Arc<PodInfo>| i64::from(pod.priority) + i64::from(i32::MAX) + 1;
        let sum = self.victims.iter().map(shifted).sum();
        let tops = self.victims.iter().filter(|pod| pod.priority == top);
        let earliest = tops.filter_map(|pod| pod.started()).map(|time| time.0).min();
        (self.violations, top, sum, self.victims.len(), Reverse(earliest))
    }
}
