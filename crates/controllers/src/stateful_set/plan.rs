//! What one look at a set does: walk up, then scale down, then update (C-71…C-79). Pure.

use super::{claims, identity};
use crate::workload::{
    BURST, available_at, count, is_deleted, is_ready, is_terminal, next_availability, phase,
    some_count,
};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetStatus};
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// A revision of the template, by the name that pods carry.
#[derive(Debug, Clone)]
pub(super) struct Revision {
    pub(super) name: String,
    pub(super) template: PodTemplateSpec,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Step {
    Create(Box<Pod>),
    Delete(Arc<Pod>),
    /// The labels of its identity are not right.
    Label(Arc<Pod>),
    /// It waits, perhaps for claims that are missing.
    MakeClaims(Arc<Pod>),
    /// Claims follow the retention policy.
    OwnClaims(Arc<Pod>),
}

#[derive(Debug)]
pub(super) struct Plan {
    pub(super) steps: Vec<Step>,
    /// When all steps are done.
    pub(super) status: StatefulSetStatus,
    /// When they are not.
    pub(super) status_before: StatefulSetStatus,
    pub(super) next: Option<Duration>,
}

pub(super) fn is_parallel(set: &StatefulSet) -> bool {
    let policy = set.spec.as_ref().and_then(|spec| spec.pod_management_policy.as_deref());
    policy == Some("Parallel")
}

pub(super) fn start(set: &StatefulSet) -> i32 {
    let ordinals = set.spec.as_ref().and_then(|spec| spec.ordinals.as_ref());
    ordinals.and_then(|ordinals| ordinals.start).unwrap_or(0)
}

fn replicas(set: &StatefulSet) -> i32 {
    set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1)
}

fn updates_on_delete(set: &StatefulSet) -> bool {
    let strategy = set.spec.as_ref().and_then(|spec| spec.update_strategy.as_ref());
    strategy.and_then(|strategy| strategy.type_.as_deref()) == Some("OnDelete")
}

fn partition(set: &StatefulSet) -> i32 {
    let strategy = set.spec.as_ref().and_then(|spec| spec.update_strategy.as_ref());
    let rolling = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
    rolling.and_then(|rolling| rolling.partition).unwrap_or(0)
}

/// What is looked at, and what is done about it so far.
struct Look<'a> {
    set: &'a StatefulSet,
    update: &'a Revision,
    current: &'a Revision,
    /// How many are wanted. Never make room for so many: it is whatever somebody typed.
    size: usize,
    /// Those that are there, by position from the first ordinal.
    slots: BTreeMap<usize, &'a Arc<Pod>>,
    /// Outside the range, highest first.
    condemned: Vec<&'a Arc<Pod>>,
    min_ready: i32,
    now: Timestamp,
    steps: Vec<Step>,
    status: StatefulSetStatus,
}

pub(super) fn decide(
    set: &StatefulSet,
    pods: &[Arc<Pod>],
    current: &Revision,
    update: &Revision,
    collisions: i32,
    now: Timestamp,
) -> Plan {
    let min_ready = set.spec.as_ref().and_then(|spec| spec.min_ready_seconds).unwrap_or(0);
    let status = counts(set, pods, (current, update), collisions, min_ready, now);
    let mut look = Look {
        set,
        update,
        current,
        size: usize::try_from(replicas(set)).unwrap_or(0),
        slots: BTreeMap::new(),
        condemned: Vec::new(),
        min_ready,
        now,
        steps: Vec::new(),
        status: status.clone(),
    };
    for pod in pods {
        let Some(ordinal) = identity::ordinal(set, pod) else { continue };
        let slot = ordinal.checked_sub(start(set)).and_then(|at| usize::try_from(at).ok());
        match slot.filter(|at| *at < look.size) {
            Some(slot) => drop(look.slots.insert(slot, pod)),
            None => look.condemned.push(pod),
        }
    }
    look.condemned.sort_by_key(|pod| std::cmp::Reverse(identity::ordinal(set, pod)));
    // With a deletion timestamp it only reports (T-CTRL-20).
    if !is_deleted(set) && look.walk() && look.scale_down() {
        look.update();
    }
    let next = next_availability(pods.iter().map(AsRef::as_ref), min_ready, now);
    Plan { steps: look.steps, status: look.status, status_before: status, next }
}

impl Look<'_> {
    fn is_available(&self, pod: &Pod) -> bool {
        let running = phase(pod) == "Running" && !is_deleted(pod);
        running && available_at(pod, self.min_ready).is_some_and(|at| at <= self.now)
    }

    /// The next position to look at: when enough are made, only what is there.
    fn position(&self, from: usize, made: usize) -> Option<usize> {
        match made < BURST {
            true => Some(from).filter(|at| *at < self.size),
            false => self.slots.range(from..).next().map(|(at, _)| *at),
        }
    }

    /// Upwards; whether nothing stands in the way of the rest.
    fn walk(&mut self) -> bool {
        let ordered = !is_parallel(self.set);
        let (mut from, mut made) = (0, 0);
        while let Some(at) = self.position(from, made) {
            from = at + 1;
            let clear = match self.slots.get(&at).copied() {
                None => {
                    self.create(at);
                    made += 1;
                    false
                }
                // Made again once it is gone (T-CTRL-19).
                Some(pod) if is_terminal(pod) => {
                    if !is_deleted(pod.as_ref()) {
                        self.delete(&Arc::clone(pod));
                    }
                    false
                }
                Some(pod) => {
                    let pod = Arc::clone(pod);
                    let available = self.is_available(&pod);
                    if available || !ordered {
                        self.keep_labels(at, &pod);
                    }
                    // What is made is owned in the same step: in one batch two would write one claim.
                    if phase(&pod) == "Pending" {
                        self.steps.push(Step::MakeClaims(pod));
                    } else if available || !ordered {
                        self.own_claims(at, &pod);
                    }
                    available
                }
            };
            if ordered && !clear {
                return false;
            }
        }
        true
    }

    fn keep_labels(&mut self, at: usize, pod: &Arc<Pod>) {
        if !identity::has_its_labels(self.set, self.ordinal(at), pod) && !is_deleted(pod.as_ref()) {
            self.steps.push(Step::Label(pod.clone()));
        }
    }

    fn own_claims(&mut self, at: usize, pod: &Arc<Pod>) {
        if claims::names(self.set, self.ordinal(at)).next().is_some() {
            self.steps.push(Step::OwnClaims(pod.clone()));
        }
    }

    fn ordinal(&self, at: usize) -> i32 {
        start(self.set).saturating_add(count(at))
    }

    /// Below the partition the old revision comes back (C-71, C-75).
    fn create(&mut self, at: usize) {
        let old = !updates_on_delete(self.set) && count(at) < partition(self.set);
        let revision = if old { self.current } else { self.update };
        let pod = identity::make(self.set, revision, self.ordinal(at));
        self.status.replicas += 1;
        self.count(&revision.name, 1);
        self.steps.push(Step::Create(Box::new(pod)));
    }

    fn delete(&mut self, pod: &Arc<Pod>) {
        self.count(identity::revision(pod).unwrap_or_default(), -1);
        self.steps.push(Step::Delete(pod.clone()));
    }

    fn count(&mut self, revision: &str, more: i32) {
        let add = |count: &mut Option<i32>| *count = some_count(count.unwrap_or(0) + more);
        if revision == self.current.name {
            add(&mut self.status.current_replicas);
        }
        if revision == self.update.name {
            add(&mut self.status.updated_replicas);
        }
    }

    /// Downwards; whether the update may go on.
    fn scale_down(&mut self) -> bool {
        let ordered = !is_parallel(self.set);
        for pod in self.condemned.clone() {
            self.steps.push(Step::OwnClaims(pod.clone()));
        }
        let lowest_unavailable = {
            let all = self.slots.values().chain(self.condemned.iter().rev());
            all.copied().find(|pod| !self.is_available(pod)).cloned()
        };
        for pod in self.condemned.clone() {
            if is_deleted(pod.as_ref()) {
                if ordered {
                    return false;
                }
                continue;
            }
            let is_it = lowest_unavailable.as_ref().is_some_and(|other| Arc::ptr_eq(other, pod));
            if ordered && !self.is_available(pod) && !is_it {
                return false;
            }
            self.delete(pod);
            if ordered {
                return false;
            }
        }
        true
    }

    /// From the highest ordinal down to the partition, one at a time (C-74, T-CTRL-18).
    fn update(&mut self) {
        if updates_on_delete(self.set) {
            return;
        }
        let from = usize::try_from(partition(self.set)).unwrap_or(0);
        for at in (from..self.size).rev() {
            let Some(pod) = self.slots.get(&at).copied() else { return };
            let old = identity::revision(pod) != Some(self.update.name.as_str());
            if old && !is_deleted(pod.as_ref()) {
                self.delete(&Arc::clone(pod));
                return;
            }
            if !self.is_available(pod) {
                return;
            }
        }
    }
}

/// C-78.
fn counts(
    set: &StatefulSet,
    pods: &[Arc<Pod>],
    (current, update): (&Revision, &Revision),
    collisions: i32,
    min_ready: i32,
    now: Timestamp,
) -> StatefulSetStatus {
    let ready = |pod: &&Arc<Pod>| phase(pod) == "Running" && is_ready(pod);
    let available =
        |pod: &&Arc<Pod>| ready(pod) && available_at(pod, min_ready).is_some_and(|at| at <= now);
    let of = |revision: &Revision| {
        let is_it = |pod: &&Arc<Pod>| {
            !is_deleted(pod.as_ref()) && identity::revision(pod) == Some(revision.name.as_str())
        };
        some_count(count(pods.iter().filter(is_it).count()))
    };
    StatefulSetStatus {
        observed_generation: set.metadata.generation,
        replicas: count(pods.len()),
        ready_replicas: some_count(count(pods.iter().filter(ready).count())),
        available_replicas: Some(count(pods.iter().filter(available).count())),
        current_replicas: of(current),
        updated_replicas: of(update),
        current_revision: Some(current.name.clone()),
        update_revision: Some(update.name.clone()),
        collision_count: Some(collisions),
        conditions: None,
    }
}

/// The update is complete: what is new is what is (C-70).
pub(super) fn finish(set: &StatefulSet, status: &mut StatefulSetStatus) {
    let wanted = replicas(set);
    let all = [status.updated_replicas, status.ready_replicas, Some(status.replicas)];
    if !updates_on_delete(set) && all.iter().all(|count| count.unwrap_or(0) == wanted) {
        status.current_replicas = status.updated_replicas;
        status.current_revision = status.update_revision.clone();
    }
}

#[cfg(test)]
mod tests;
