//! What a Deployment's status says: counters and conditions (C-56…C-59, C-17).

use super::plan::{self, Fence, Work, size, wanted};
use crate::workload::{name, some_count};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::{Deployment, DeploymentCondition, DeploymentStatus, ReplicaSet};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use std::time::Duration;

const PROGRESSING: &str = "Progressing";
const AVAILABLE: &str = "Available";
const REPLICA_FAILURE: &str = "ReplicaFailure";
const TIMED_OUT: &str = "ProgressDeadlineExceeded";
const DONE: &str = "NewReplicaSetAvailable";

/// A stuck rollout is looked at again this long after its deadline.
const AFTER_DEADLINE: Duration = Duration::from_secs(1);

/// How long a rollout may be without progress, if that is limited.
fn deadline(deployment: &Deployment) -> Option<i32> {
    let deadline = deployment.spec.as_ref().and_then(|spec| spec.progress_deadline_seconds);
    deadline.filter(|deadline| *deadline != i32::MAX)
}

fn find<'a>(deployment: &'a Deployment, type_: &str) -> Option<&'a DeploymentCondition> {
    let conditions = deployment.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == type_)
}

fn new(
    type_: &str,
    status: &str,
    reason: &str,
    message: String,
    now: Timestamp,
) -> DeploymentCondition {
    DeploymentCondition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message),
        last_update_time: Some(Time(now)),
        last_transition_time: Some(Time(now)),
    }
}

/// Same status and reason: nothing changes. Same status: it keeps its time (C-17).
fn set(conditions: &mut Vec<DeploymentCondition>, mut condition: DeploymentCondition) {
    let at = conditions.iter().position(|there| there.type_ == condition.type_);
    if let Some(at) = at {
        let there = &conditions[at];
        if there.status == condition.status && there.reason == condition.reason {
            return;
        }
        if there.status == condition.status {
            condition.last_transition_time = there.last_transition_time.clone();
        }
        conditions.remove(at);
    }
    conditions.push(condition);
}

fn say(deployment: &mut Deployment, condition: DeploymentCondition) {
    let status = deployment.status.get_or_insert_default();
    set(status.conditions.get_or_insert_default(), condition);
}

pub(super) fn say_found(deployment: &mut Deployment, message: String, now: Timestamp) {
    if deadline(deployment).is_some() && find(deployment, PROGRESSING).is_none() {
        say(deployment, new(PROGRESSING, "True", "FoundNewReplicaSet", message, now));
    }
}

pub(super) fn say_created(deployment: &mut Deployment, message: String, now: Timestamp) {
    if deadline(deployment).is_some() {
        say(deployment, new(PROGRESSING, "True", "NewReplicaSetCreated", message, now));
    }
}

pub(super) fn say_create_failed(deployment: &mut Deployment, message: String, now: Timestamp) {
    if deadline(deployment).is_some() {
        say(deployment, new(PROGRESSING, "False", "ReplicaSetCreateError", message, now));
    }
}

/// C-53.
pub(super) fn say_paused(deployment: &mut Deployment, now: Timestamp) {
    let reason = find(deployment, PROGRESSING).and_then(|there| there.reason.as_deref());
    if deadline(deployment).is_none() || reason == Some(TIMED_OUT) {
        return;
    }
    let was = reason == Some("DeploymentPaused");
    let is = deployment.spec.as_ref().and_then(|spec| spec.paused) == Some(true);
    let (reason, message) = match (was, is) {
        (false, true) => ("DeploymentPaused", "Deployment is paused"),
        (true, false) => ("DeploymentResumed", "Deployment is resumed"),
        _ => return,
    };
    say(deployment, new(PROGRESSING, "Unknown", reason, message.to_owned(), now));
}

/// C-46, of the status that the Deployment has.
pub(super) fn is_complete(deployment: &Deployment) -> bool {
    deployment.status.as_ref().is_some_and(|status| completes(deployment, status))
}

fn completes(deployment: &Deployment, status: &DeploymentStatus) -> bool {
    let wanted = wanted(deployment);
    let all = [status.updated_replicas, status.replicas, status.available_replicas];
    all.iter().all(|count| count.unwrap_or(0) == wanted)
        && status.observed_generation >= deployment.metadata.generation
}

/// Counters and availability only.
pub(super) fn report_counts(work: &mut Work<'_>) {
    let status = counted(work);
    work.deployment.status = Some(status);
}

/// As [`report_counts`], and how the rollout goes. When to look again, if it may get stuck.
pub(super) fn report_rollout(work: &mut Work<'_>) -> Option<Duration> {
    let mut status = counted(work);
    let conditions = status.conditions.get_or_insert_default();
    match deadline(&work.deployment) {
        None => conditions.retain(|condition| condition.type_ != PROGRESSING),
        Some(deadline) => {
            if let Some(condition) = progress(work, &status, deadline) {
                let conditions = status.conditions.get_or_insert_default();
                // Progress moves the time of the last update also when nothing else changes.
                let before = find(&work.deployment, PROGRESSING);
                let again = condition.reason.as_deref() == Some("ReplicaSetUpdated");
                if again && before.is_some() {
                    conditions.retain(|there| there.type_ != PROGRESSING);
                    let mut condition = condition;
                    if let Some(before) = before.filter(|before| before.status == "True") {
                        condition.last_transition_time = before.last_transition_time.clone();
                    }
                    conditions.push(condition);
                } else {
                    set(conditions, condition);
                }
            }
        }
    }
    copy_failure(work, status.conditions.get_or_insert_default());
    let next = stuck_in(&work.deployment, &status, work.now);
    work.deployment.status = Some(status);
    next
}

fn progress(
    work: &Work<'_>,
    after: &DeploymentStatus,
    deadline: i32,
) -> Option<DeploymentCondition> {
    let deployment = &work.deployment;
    let condition = find(deployment, PROGRESSING);
    let reason = condition.and_then(|condition| condition.reason.as_deref());
    let before = deployment.status.clone().unwrap_or_default();
    let number = |count: Option<i32>| count.unwrap_or(0);
    let (updated, total) = (number(after.updated_replicas), number(after.replicas));
    if total == updated && reason == Some(DONE) {
        return None; // Once done, later failures do not undo it (C-58).
    }
    let what = match &work.new {
        Some(new) => format!("ReplicaSet {:?}", name(new)),
        None => format!("Deployment {:?}", name(deployment)),
    };
    if completes(deployment, after) {
        let message = format!("{what} has successfully progressed.");
        return Some(new(PROGRESSING, "True", DONE, message, work.now));
    }
    let old_before = number(before.replicas) - number(before.updated_replicas);
    let progresses = updated > number(before.updated_replicas)
        || total - updated < old_before
        || number(after.ready_replicas) > number(before.ready_replicas)
        || number(after.available_replicas) > number(before.available_replicas);
    if progresses {
        let message = format!("{what} is progressing.");
        return Some(new(PROGRESSING, "True", "ReplicaSetUpdated", message, work.now));
    }
    let since = condition?.last_update_time.as_ref().map(|time| time.0)?;
    let timed_out = match reason {
        Some(DONE) => false,
        Some(TIMED_OUT) => true,
        _ => since.checked_add(SignedDuration::from_secs(deadline.into())).ok()? < work.now,
    };
    let message = format!("{what} has timed out progressing.");
    timed_out.then(|| new(PROGRESSING, "False", TIMED_OUT, message, work.now))
}

/// C-59: of the new set, or else of any.
fn copy_failure(work: &Work<'_>, conditions: &mut Vec<DeploymentCondition>) {
    let failure = |replica_set: &ReplicaSet| {
        let mut all = replica_set.status.as_ref()?.conditions.iter().flatten();
        all.find(|condition| condition.type_ == REPLICA_FAILURE).cloned()
    };
    let found = work.new.as_ref().and_then(failure);
    match found.or_else(|| work.old.iter().find_map(failure)) {
        None => conditions.retain(|condition| condition.type_ != REPLICA_FAILURE),
        Some(found) => set(
            conditions,
            DeploymentCondition {
                type_: REPLICA_FAILURE.to_owned(),
                status: found.status,
                reason: found.reason,
                message: found.message,
                last_update_time: found.last_transition_time.clone(),
                last_transition_time: found.last_transition_time,
            },
        ),
    }
}

/// When a rollout that does not move must be said to be stuck.
fn stuck_in(
    deployment: &Deployment,
    status: &DeploymentStatus,
    now: Timestamp,
) -> Option<Duration> {
    let deadline = deadline(deployment)?;
    let mut conditions = status.conditions.iter().flatten();
    let condition = conditions.find(|condition| condition.type_ == PROGRESSING)?;
    let settled = matches!(condition.reason.as_deref(), Some(TIMED_OUT | DONE));
    if settled || completes(deployment, status) {
        return None;
    }
    let since = condition.last_update_time.as_ref()?.0;
    let at = since.checked_add(SignedDuration::from_secs(deadline.into())).ok()?;
    Some(Duration::try_from(at.duration_since(now)).unwrap_or_default() + AFTER_DEADLINE)
}

/// C-56.
fn counted(work: &Work<'_>) -> DeploymentStatus {
    let deployment = &work.deployment;
    let before = deployment.status.clone().unwrap_or_default();
    let sum = |of: fn(&ReplicaSet) -> i32| work.all().map(of).sum::<i32>();
    let available = sum(plan::available);
    let ready = |set: &ReplicaSet| {
        set.status.as_ref().and_then(|status| status.ready_replicas).unwrap_or(0)
    };
    let mut conditions = before.conditions.unwrap_or_default();
    let enough = available >= wanted(deployment) - Fence::of(deployment).unavailable;
    let (status, reason, message) = match enough {
        true => ("True", "MinimumReplicasAvailable", "Deployment has minimum availability."),
        false => (
            "False",
            "MinimumReplicasUnavailable",
            "Deployment does not have minimum availability.",
        ),
    };
    set(&mut conditions, new(AVAILABLE, status, reason, message.to_owned(), work.now));
    DeploymentStatus {
        observed_generation: deployment.metadata.generation,
        replicas: some_count(sum(plan::replicas)),
        updated_replicas: some_count(work.new.as_ref().map_or(0, plan::replicas)),
        ready_replicas: some_count(work.all().map(ready).sum()),
        available_replicas: some_count(available),
        unavailable_replicas: some_count((sum(size) - available).max(0)),
        terminating_replicas: terminating(work),
        collision_count: before.collision_count,
        conditions: Some(conditions),
    }
}

/// Unknown if some set that has been looked at does not say (T-CTRL-3).
fn terminating(work: &Work<'_>) -> Option<i32> {
    let mut sum = 0;
    for set in work.all() {
        let Some(status) = &set.status else { continue };
        match status.terminating_replicas {
            Some(terminating) => sum += terminating,
            None if status.observed_generation.unwrap_or(0) > 0 => return None,
            None => (),
        }
    }
    Some(sum)
}
