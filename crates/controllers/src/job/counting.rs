//! Counts every finished pod exactly once (C-109): its UID is written to the status, then its finalizer is removed,
//! then the counter increases. After a crash between two steps the next reconcile continues. Pure.

use super::plan::{Finish, JobState, Plan};
use super::{pods, policy};
use crate::workload::{count as number, some_count, uid};
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{Job, JobStatus, UncountedTerminatedPods};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Maximum number of UIDs in one status. Upstream: `MaxUncountedPods`.
const UNCOUNTED_MAX: usize = 500;

/// UIDs of pods that are listed in the status and not counted yet.
#[derive(Debug, Clone, Default)]
pub(super) struct Uncounted {
    pub(super) succeeded: BTreeSet<String>,
    pub(super) failed: BTreeSet<String>,
}

impl Uncounted {
    pub(super) fn of(job: &Job) -> Uncounted {
        let status = job.status.as_ref();
        let there = status.and_then(|status| status.uncounted_terminated_pods.clone());
        let there = there.unwrap_or_default();
        let set = |list: Option<Vec<String>>| list.unwrap_or_default().into_iter().collect();
        Uncounted { succeeded: set(there.succeeded), failed: set(there.failed) }
    }

    pub(super) fn has(&self, uid: &str) -> bool {
        self.succeeded.contains(uid) || self.failed.contains(uid)
    }

    fn len(&self) -> usize {
        self.succeeded.len() + self.failed.len()
    }

    fn into_status(self) -> UncountedTerminatedPods {
        let list = |set: BTreeSet<String>| {
            Some(set.into_iter().collect::<Vec<_>>()).filter(|list| !list.is_empty())
        };
        UncountedTerminatedPods { succeeded: list(self.succeeded), failed: list(self.failed) }
    }
}

/// Lists finished pods in the status of the plan, and plans which finalizers to remove after that.
pub(super) fn count(state: &JobState<'_>, plan: &mut Plan) {
    let job = state.job;
    let indexed = pods::is_indexed(job);
    let with_finalizer: BTreeSet<&str> = state
        .pods
        .iter()
        .filter(|pod| pods::has_finalizer(pod))
        .map(|pod| uid(pod.as_ref()))
        .collect();
    settle(&mut plan.status, |uid| with_finalizer.contains(uid));
    let mut uncounted = state.uncounted.clone();
    let failing = plan.finish.as_ref().is_some_and(|finish| !finish.succeeded);
    let kept: BTreeSet<&str> = state.kept.values().map(|pod| uid(pod.as_ref())).collect();
    let removed: BTreeSet<&str> = plan.remove.iter().map(|pod| uid(pod.as_ref())).collect();
    uncounted.succeeded.retain(|uid| with_finalizer.contains(uid.as_str()));
    uncounted.failed.retain(|uid| with_finalizer.contains(uid.as_str()));
    for pod in state.pods {
        let id = uid(pod.as_ref());
        let (well, badly) = (pods::succeeded(pod), pods::failed(job, pod));
        let over =
            well || badly || plan.finish.is_some() || job.metadata.deletion_timestamp.is_some();
        // If no replacement will be created, the pod need not wait for one (T-CTRL-28).
        let waits = kept.contains(id) && plan.finish.is_none() && !state.creates_no_pods();
        if !pods::has_finalizer(pod) || removed.contains(id) || !over || waits {
            continue;
        }
        // Pods that are listed already, perhaps by an earlier process, do not count towards the limit.
        if uncounted.len() >= UNCOUNTED_MAX && !uncounted.has(id) {
            plan.more = true;
            continue;
        }
        plan.release.push(Arc::clone(pod));
        if uncounted.has(id) {
            continue;
        }
        if well {
            if !indexed {
                uncounted.succeeded.insert(id.to_owned());
            }
        } else if (badly || failing) && counts_as_failed(job, pod) {
            uncounted.failed.insert(id.to_owned());
        }
    }
    plan.status.uncounted_terminated_pods = Some(uncounted.into_status());
    if indexed {
        plan.status.succeeded = some_count(state.done.total());
        plan.status.completed_indexes =
            Some(state.done.to_string()).filter(|indexes| !indexes.is_empty());
        let per_index = pods::limits_per_index(job).is_some();
        plan.status.failed_indexes = per_index.then(|| state.failed_indexes.to_string());
    }
    if let Some(finish) = &plan.finish {
        say(&mut plan.status, finish, finish.types().0, state.now);
    }
}

fn counts_as_failed(job: &Job, pod: &Pod) -> bool {
    let completions = job.spec.as_ref().and_then(|spec| spec.completions).unwrap_or(i32::MAX);
    let indexed = pods::is_indexed(job);
    let has_place = !indexed || pods::index(pod).is_some_and(|index| index < completions);
    has_place && policy::verdict(job, pod).counts()
}

fn say(status: &mut JobStatus, finish: &Finish, type_: &str, now: Timestamp) {
    let conditions = status.conditions.get_or_insert_default();
    if !conditions.iter().any(|there| there.type_ == type_ && there.status == "True") {
        conditions.push(finish.condition(type_, now));
    }
}

/// Removes UIDs from the list whose finalizer is gone, and increases the counters.
pub(super) fn settle(status: &mut JobStatus, has_finalizer: impl Fn(&str) -> bool) {
    let Some(uncounted) = &mut status.uncounted_terminated_pods else { return };
    let rise = |list: &mut Option<Vec<String>>, counter: &mut Option<i32>| {
        let there = list.take().unwrap_or_default();
        let (left, counted): (Vec<String>, Vec<String>) =
            there.into_iter().partition(|uid| has_finalizer(uid));
        *counter = some_count(counter.unwrap_or(0) + number(counted.len()));
        *list = Some(left).filter(|left| !left.is_empty());
    };
    rise(&mut uncounted.succeeded, &mut status.succeeded);
    rise(&mut uncounted.failed, &mut status.failed);
}

/// Adds the final condition if all pods are counted and none is running (T-CTRL-26). Returns whether it did.
pub(super) fn end(status: &mut JobStatus, finish: &Finish, now: Timestamp) -> bool {
    let none = UncountedTerminatedPods::default();
    let uncounted = status.uncounted_terminated_pods.as_ref().unwrap_or(&none);
    let open =
        *uncounted != none || status.terminating.unwrap_or(0) > 0 || status.active.unwrap_or(0) > 0;
    if open {
        return false;
    }
    say(status, finish, finish.types().1, now);
    if finish.succeeded {
        status.completion_time = Some(Time(now));
    }
    true
}
