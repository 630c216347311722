//! A failed attempt to start something is not repeated before its time (N-33), whatever wakes the worker.
//!
//! A worker looks whenever something happens, and much of that is a consequence of its own attempt: a
//! sandbox that appeared and vanished, a status that was written. Such a pass finds the same work as the
//! one that failed. Different work, another spec or a changed ConfigMap is worth an attempt at once.
//! Not here: how long crashing containers (`lifecycle::backoff`) and failed pulls (`images`) wait.

use super::Worker;
use k8s_openapi::api::core::v1::Pod;
use lifecycle::backoff::Backoffs;
use lifecycle::bringup::{NewSandbox, Plan, Start};
use lifecycle::observed::StartFailure;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

#[derive(Default)]
pub(super) struct Attempts {
    pub(super) backoffs: Backoffs,
    /// Why containers wait, by name, until an attempt succeeds.
    pub(super) failures: BTreeMap<String, StartFailure>,
    /// The last attempt if it failed, and when it may be repeated.
    delayed: Option<(Attempt, Instant)>,
}

/// What was to be started, of which version of the pod.
pub(super) struct Attempt {
    sandbox: Option<NewSandbox>,
    start: Vec<Start>,
    pod: Arc<Pod>,
}

impl Attempt {
    pub(super) fn new(plan: &Plan, pod: &Arc<Pod>) -> Attempt {
        Attempt { sandbox: plan.sandbox.clone(), start: plan.start.clone(), pod: pod.clone() }
    }

    fn is_same(&self, plan: &Plan, pod: &Pod) -> bool {
        let (before, now) = (&self.pod.metadata, &pod.metadata);
        self.sandbox == plan.sandbox
            && self.start == plan.start
            && self.pod.spec == pod.spec
            && before.labels == now.labels
            && before.annotations == now.annotations
    }
}

impl Worker {
    pub(super) fn delay(&mut self, attempt: Attempt, pause: Duration) {
        self.attempts.delayed = Some((attempt, Instant::now() + pause));
    }

    /// How long this plan still has to wait. None: it can be tried now.
    pub(super) fn remaining_delay(&mut self, plan: &Plan) -> Option<Duration> {
        let retry_now = self.inbox.take_retry_now();
        let delayed = self.attempts.delayed.take();
        let (attempt, until) =
            delayed.filter(|(attempt, _)| !retry_now && attempt.is_same(plan, &self.pod))?;
        let left = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())?;
        self.attempts.delayed = Some((attempt, until));
        Some(left)
    }
}
