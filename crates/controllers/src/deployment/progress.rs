//! The status of a Deployment: counters and conditions (C-56…C-59, C-17).

use super::plan::{self, Rollout, RolloutLimits, desired_replicas, size};
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

/// A rollout without progress is reconciled again this long after its deadline.
const AFTER_DEADLINE: Duration = Duration::from_secs(1);

/// How many seconds a rollout may be without progress, if that is limited.
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

/// Updates or adds a condition. With the same status and reason nothing changes; with the same status the transition
/// time stays (C-17).
fn update_condition(conditions: &mut Vec<DeploymentCondition>, mut condition: DeploymentCondition) {
    let at = conditions.iter().position(|old| old.type_ == condition.type_);
    if let Some(at) = at {
        let old = &conditions[at];
        if old.status == condition.status && old.reason == condition.reason {
            return;
        }
        if old.status == condition.status {
            condition.last_transition_time = old.last_transition_time.clone();
        }
        conditions.remove(at);
    }
    conditions.push(condition);
}

fn set_condition(deployment: &mut Deployment, condition: DeploymentCondition) {
    let status = deployment.status.get_or_insert_default();
    update_condition(status.conditions.get_or_insert_default(), condition);
}

pub(super) fn set_found(deployment: &mut Deployment, message: String, now: Timestamp) {
    if deadline(deployment).is_some() && find(deployment, PROGRESSING).is_none() {
        set_condition(deployment, new(PROGRESSING, "True", "FoundNewReplicaSet", message, now));
    }
}

pub(super) fn set_created(deployment: &mut Deployment, message: String, now: Timestamp) {
    if deadline(deployment).is_some() {
        set_condition(deployment, new(PROGRESSING, "True", "NewReplicaSetCreated", message, now));
    }
}

pub(super) fn set_create_failed(deployment: &mut Deployment, message: String, now: Timestamp) {
    if deadline(deployment).is_some() {
        set_condition(deployment, new(PROGRESSING, "False", "ReplicaSetCreateError", message, now));
    }
}

/// Sets the reason for a paused or resumed Deployment (C-53).
pub(super) fn set_paused(deployment: &mut Deployment, now: Timestamp) {
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
    set_condition(deployment, new(PROGRESSING, "Unknown", reason, message.to_owned(), now));
}

/// Whether the rollout is complete by the status that the Deployment has (C-46).
pub(super) fn is_complete(deployment: &Deployment) -> bool {
    deployment.status.as_ref().is_some_and(|status| completes(deployment, status))
}

fn completes(deployment: &Deployment, status: &DeploymentStatus) -> bool {
    let wanted = desired_replicas(deployment);
    let all = [status.updated_replicas, status.replicas, status.available_replicas];
    all.iter().all(|count| count.unwrap_or(0) == wanted)
        && status.observed_generation >= deployment.metadata.generation
}

/// Updates counters and availability.
pub(super) fn report_counts(rollout: &mut Rollout<'_>) {
    let status = counted(rollout);
    rollout.deployment.status = Some(status);
}

/// As [`report_counts`], and updates the conditions of the rollout. Returns when to check the progress deadline.
pub(super) fn report_rollout(rollout: &mut Rollout<'_>) -> Option<Duration> {
    let mut status = counted(rollout);
    let conditions = status.conditions.get_or_insert_default();
    match deadline(&rollout.deployment) {
        None => conditions.retain(|condition| condition.type_ != PROGRESSING),
        Some(deadline) => {
            if let Some(condition) = progress(rollout, &status, deadline) {
                let conditions = status.conditions.get_or_insert_default();
                // Progress updates the time of the last update even if nothing else changes.
                let before = find(&rollout.deployment, PROGRESSING);
                let again = condition.reason.as_deref() == Some("ReplicaSetUpdated");
                if again && before.is_some() {
                    conditions.retain(|there| there.type_ != PROGRESSING);
                    let mut condition = condition;
                    if let Some(before) = before.filter(|before| before.status == "True") {
                        condition.last_transition_time = before.last_transition_time.clone();
                    }
                    conditions.push(condition);
                } else {
                    update_condition(conditions, condition);
                }
            }
        }
    }
    copy_failure(rollout, status.conditions.get_or_insert_default());
    let next = deadline_check_in(&rollout.deployment, &status, rollout.now);
    rollout.deployment.status = Some(status);
    next
}

fn progress(
    rollout: &Rollout<'_>,
    after: &DeploymentStatus,
    deadline: i32,
) -> Option<DeploymentCondition> {
    let deployment = &rollout.deployment;
    let condition = find(deployment, PROGRESSING);
    let reason = condition.and_then(|condition| condition.reason.as_deref());
    let before = deployment.status.clone().unwrap_or_default();
    let number = |count: Option<i32>| count.unwrap_or(0);
    let (updated, total) = (number(after.updated_replicas), number(after.replicas));
    if total == updated && reason == Some(DONE) {
        return None; // Later failures do not undo a completed rollout (C-58).
    }
    let what = match &rollout.new {
        Some(new) => format!("ReplicaSet {:?}", name(new)),
        None => format!("Deployment {:?}", name(deployment)),
    };
    if completes(deployment, after) {
        let message = format!("{what} has successfully progressed.");
        return Some(new(PROGRESSING, "True", DONE, message, rollout.now));
    }
    let old_before = number(before.replicas) - number(before.updated_replicas);
    let progresses = updated > number(before.updated_replicas)
        || total - updated < old_before
        || number(after.ready_replicas) > number(before.ready_replicas)
        || number(after.available_replicas) > number(before.available_replicas);
    if progresses {
        let message = format!("{what} is progressing.");
        return Some(new(PROGRESSING, "True", "ReplicaSetUpdated", message, rollout.now));
    }
    let since = condition?.last_update_time.as_ref().map(|time| time.0)?;
    let timed_out = match reason {
        Some(DONE) => false,
        Some(TIMED_OUT) => true,
        _ => since.checked_add(SignedDuration::from_secs(deadline.into())).ok()? < rollout.now,
    };
    let message = format!("{what} has timed out progressing.");
    timed_out.then(|| new(PROGRESSING, "False", TIMED_OUT, message, rollout.now))
}

/// Copies `ReplicaFailure` from the new set, or else from an old one (C-59).
fn copy_failure(rollout: &Rollout<'_>, conditions: &mut Vec<DeploymentCondition>) {
    let failure = |replica_set: &ReplicaSet| {
        let mut all = replica_set.status.as_ref()?.conditions.iter().flatten();
        all.find(|condition| condition.type_ == REPLICA_FAILURE).cloned()
    };
    let found = rollout.new.as_ref().and_then(failure);
    match found.or_else(|| rollout.old.iter().find_map(failure)) {
        None => conditions.retain(|condition| condition.type_ != REPLICA_FAILURE),
        Some(found) => update_condition(
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

/// When the progress deadline of a rollout must be checked.
fn deadline_check_in(
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

/// The status with counters that are sums over owned ReplicaSets (C-56).
fn counted(rollout: &Rollout<'_>) -> DeploymentStatus {
    let deployment = &rollout.deployment;
    let before = deployment.status.clone().unwrap_or_default();
    let sum = |of: fn(&ReplicaSet) -> i32| rollout.all().map(of).sum::<i32>();
    let available = sum(plan::available);
    let ready = |set: &ReplicaSet| {
        set.status.as_ref().and_then(|status| status.ready_replicas).unwrap_or(0)
    };
    let mut conditions = before.conditions.unwrap_or_default();
    let enough =
        available >= desired_replicas(deployment) - RolloutLimits::of(deployment).unavailable;
    let (status, reason, message) = match enough {
        true => ("True", "MinimumReplicasAvailable", "Deployment has minimum availability."),
        false => (
            "False",
            "MinimumReplicasUnavailable",
            "Deployment does not have minimum availability.",
        ),
    };
    update_condition(
        &mut conditions,
        new(AVAILABLE, status, reason, message.to_owned(), rollout.now),
    );
    DeploymentStatus {
        observed_generation: deployment.metadata.generation,
        replicas: some_count(sum(plan::replicas)),
        updated_replicas: some_count(rollout.new.as_ref().map_or(0, plan::replicas)),
        ready_replicas: some_count(rollout.all().map(ready).sum()),
        available_replicas: some_count(available),
        unavailable_replicas: some_count((sum(size) - available).max(0)),
        terminating_replicas: terminating(rollout),
        collision_count: before.collision_count,
        conditions: Some(conditions),
    }
}

/// Unknown if a set that its controller has observed does not report the number (T-CTRL-3).
fn terminating(rollout: &Rollout<'_>) -> Option<i32> {
    let mut sum = 0;
    for set in rollout.all() {
        let Some(status) = &set.status else { continue };
        match status.terminating_replicas {
            Some(terminating) => sum += terminating,
            None if status.observed_generation.unwrap_or(0) > 0 => return None,
            None => (),
        }
    }
    Some(sum)
}
