//! What is told about a pod: its phase, conditions and container statuses, from what is so.

use crate::observed::Observed;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodCondition, PodStatus};
use std::net::IpAddr;

/// What the node knows besides what it observed.
#[derive(Debug, Clone)]
pub struct Facts<'a> {
    pub now: Timestamp,
    /// Of the Node object: internal addresses first, the primary family first (N-73).
    pub host_ips: &'a [IpAddr],
    /// Of the sandbox, the primary family first. Empty: not known, then earlier ones are kept.
    pub pod_ips: &'a [IpAddr],
    /// What stands before `://` in container ids: `landfall`, `containerd`.
    pub runtime: &'a str,
    pub stage: Stage,
    /// The node itself ended this pod: eviction, preemption, shutdown, a deadline.
    pub verdict: Option<&'a Verdict>,
    /// Conditions that other parts of the node keep (resizes). They replace those of the same type.
    pub conditions: &'a [PodCondition],
}

/// Where the pod's worker is (T-NODE-1). It only moves on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Containers may be started.
    Syncing,
    /// Containers are only stopped.
    Terminating,
    /// Nothing runs any more: what did not end well has failed (T-NODE-50 to 52).
    Terminated,
}

/// Why the node ended a pod that was not deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// `Evicted`, `Preempting`, `DeadlineExceeded`, `Terminated`
    pub reason: String,
    pub message: String,
    /// It is a disruption, and the pod gets the condition DisruptionTarget (T-NODE-58, 80).
    pub disruption: bool,
}

/// The whole status as it is now. Its phase may be terminal while containers still run; what may be
/// written to the API meanwhile is [`withheld`].
pub fn status(pod: &Pod, observed: &Observed, facts: &Facts, previous: &PodStatus) -> PodStatus {
    let _ = (pod, observed, facts);
    previous.clone()
}

/// T-NODE-53, 54: what is published while something of the pod may still run. A phase that is not yet
/// terminal in `previous` stays what it is.
pub fn withheld(status: PodStatus, previous: &PodStatus) -> PodStatus {
    let _ = previous;
    status
}

/// Succeeded or Failed.
pub fn is_terminal(status: &PodStatus) -> bool {
    matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"))
}

/// The status of a pod that the node does not admit (N-27, T-NODE-82).
pub fn rejected(pod: &Pod, facts: &Facts, reason: &str, message: &str) -> PodStatus {
    let _ = (pod, facts);
    PodStatus {
        phase: Some("Failed".into()),
        reason: Some(reason.into()),
        message: Some(format!("Pod was rejected: {message}")),
        ..PodStatus::default()
    }
}

/// T-NODE-77: when a pod with activeDeadlineSeconds has to end.
pub fn deadline(pod: &Pod, status: &PodStatus) -> Option<Timestamp> {
    let seconds = pod.spec.as_ref()?.active_deadline_seconds?;
    let start = status.start_time.as_ref()?.0;
    start.checked_add(jiff::SignedDuration::from_secs(seconds)).ok()
}

/// T-NODE-77: past the deadline this is the verdict.
pub fn deadline_exceeded(pod: &Pod, status: &PodStatus, now: Timestamp) -> Option<Verdict> {
    (deadline(pod, status)? <= now).then(|| Verdict {
        reason: "DeadlineExceeded".into(),
        message: "Pod was active on the node longer than the specified deadline".into(),
        disruption: false,
    })
}
