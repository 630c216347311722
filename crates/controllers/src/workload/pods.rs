//! Pod states that controllers count: active, terminating, ready, available. Pure.

use super::is_being_deleted;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Pod, PodCondition};
use std::time::Duration;

pub(crate) use crate::pods::is_terminal_pod;

pub(crate) fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// Neither terminal nor being deleted (T-CTRL-1).
pub(crate) fn is_active(pod: &Pod) -> bool {
    !is_being_deleted(pod) && !is_terminal_pod(pod)
}

/// Being deleted, but not terminal yet (T-CTRL-3).
pub(crate) fn is_terminating(pod: &Pod) -> bool {
    is_being_deleted(pod) && !is_terminal_pod(pod)
}

pub(crate) fn condition<'a>(pod: &'a Pod, type_: &str) -> Option<&'a PodCondition> {
    let mut conditions = pod.status.as_ref()?.conditions.iter().flatten();
    conditions.find(|condition| condition.type_ == type_)
}

pub(crate) fn is_ready(pod: &Pod) -> bool {
    condition(pod, "Ready").is_some_and(|ready| ready.status == "True")
}

pub(crate) fn ready_since(pod: &Pod) -> Option<Timestamp> {
    let ready = condition(pod, "Ready").filter(|ready| ready.status == "True")?;
    ready.last_transition_time.as_ref().map(|time| time.0)
}

/// The time from which the pod is available if it stays ready (C-12).
pub(crate) fn available_at(pod: &Pod, min_ready_seconds: i32) -> Option<Timestamp> {
    if !is_ready(pod) {
        return None;
    }
    if min_ready_seconds <= 0 {
        return Some(Timestamp::MIN);
    }
    ready_since(pod)?.checked_add(SignedDuration::from_secs(min_ready_seconds.into())).ok()
}

pub(crate) fn is_available(pod: &Pod, min_ready_seconds: i32, now: Timestamp) -> bool {
    available_at(pod, min_ready_seconds).is_some_and(|at| at <= now)
}

/// How long until the next of these pods becomes available. No event announces that, so the controller must wake up.
pub(crate) fn next_availability<'a>(
    pods: impl IntoIterator<Item = &'a Pod>,
    min_ready_seconds: i32,
    now: Timestamp,
) -> Option<Duration> {
    let at = pods.into_iter().filter_map(|pod| available_at(pod, min_ready_seconds));
    let at = at.filter(|at| *at > now).min()?;
    Duration::try_from(at.duration_since(now)).ok()
}
