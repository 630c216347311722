//! Decides one reconcile of a set: create missing pods in order, then scale down, then update (C-71…C-79). Pure.

use super::{claims, identity};
use crate::workload::{
    BURST, available_at, count, is_being_deleted, is_ready, is_terminal_pod, next_availability,
    phase, some_count,
};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetStatus};
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// A revision of the template, with the name that pods have in a label.
#[derive(Debug, Clone)]
pub(super) struct Revision {
    pub(super) name: String,
    pub(super) template: PodTemplateSpec,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Step {
    Create(Box<Pod>),
    Delete(Arc<Pod>),
    /// Restores the labels of its identity.
    Label(Arc<Pod>),
    /// Creates missing claims of a pending pod.
    MakeClaims(Arc<Pod>),
    /// Updates the owners of its claims by the retention policy.
    OwnClaims(Arc<Pod>),
}

#[derive(Debug)]
pub(super) struct Plan {
    pub(super) steps: Vec<Step>,
    /// The status after all steps.
    pub(super) status: StatefulSetStatus,
    /// The status without them.
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

/// The state of a set, and the steps planned so far.
struct Planner<'a> {
    set: &'a StatefulSet,
    update: &'a Revision,
    current: &'a Revision,
    /// The number of replicas. Never allocate for so many: users may type any number.
    size: usize,
    /// Existing pods by position from the first ordinal.
    slots: BTreeMap<usize, &'a Arc<Pod>>,
    /// Pods outside the range, highest first.
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
    let mut planner = Planner {
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
        match slot.filter(|at| *at < planner.size) {
            Some(slot) => drop(planner.slots.insert(slot, pod)),
            None => planner.condemned.push(pod),
        }
    }
    planner.condemned.sort_by_key(|pod| std::cmp::Reverse(identity::ordinal(set, pod)));
    // A set that is being deleted only reports its status (T-CTRL-20).
    if !is_being_deleted(set) && planner.scale_up() && planner.scale_down() {
        planner.update();
    }
    let next = next_availability(pods.iter().map(AsRef::as_ref), min_ready, now);
    Plan { steps: planner.steps, status: planner.status, status_before: status, next }
}

impl Planner<'_> {
    fn is_available(&self, pod: &Pod) -> bool {
        let running = phase(pod) == "Running" && !is_being_deleted(pod);
        running && available_at(pod, self.min_ready).is_some_and(|at| at <= self.now)
    }

    /// The next position to check. After a full burst of creates only existing pods are checked.
    fn position(&self, from: usize, made: usize) -> Option<usize> {
        match made < BURST {
            true => Some(from).filter(|at| *at < self.size),
            false => self.slots.range(from..).next().map(|(at, _)| *at),
        }
    }

    /// Goes through the ordinals upwards. Returns whether scaling down and updating may continue.
    fn scale_up(&mut self) -> bool {
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
                // The pod is created again once it is gone (T-CTRL-19).
                Some(pod) if is_terminal_pod(pod) => {
                    if !is_being_deleted(pod.as_ref()) {
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
                    // `MakeClaims` also sets owners; two steps of one batch must not write the same claim.
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
        if !identity::has_its_labels(self.set, self.ordinal(at), pod)
            && !is_being_deleted(pod.as_ref())
        {
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

    /// Below the partition the old revision is used (C-71, C-75).
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

    /// Goes through the pods outside the range downwards. Returns whether the update may continue.
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
            if is_being_deleted(pod.as_ref()) {
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
            if old && !is_being_deleted(pod.as_ref()) {
                self.delete(&Arc::clone(pod));
                return;
            }
            if !self.is_available(pod) {
                return;
            }
        }
    }
}

/// The status counts owned pods with matching names (C-78).
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
            !is_being_deleted(pod.as_ref())
                && identity::revision(pod) == Some(revision.name.as_str())
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

/// If the update is complete, the update revision becomes the current one (C-70).
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
