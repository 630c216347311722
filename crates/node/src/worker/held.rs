//! What was tried and did not work is not tried again before its time (N-33), whoever comes by meanwhile.
//!
//! A worker looks whenever something happens, and much of that is what its own attempt left behind: a
//! sandbox that came and went, a status that was written. Such a look finds the same to be done as the one
//! that failed. Something else to be done, another spec or a changed ConfigMap is worth a try at once.
//! Not here: how long crashing containers (`lifecycle::backoff`) and failed pulls (`images`) wait.

use super::Worker;
use k8s_openapi::api::core::v1::Pod;
use lifecycle::bringup::{NewSandbox, Plan, Start};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::Instant;

/// An attempt: what was to be started, of which pod.
pub(super) struct Attempt {
    sandbox: Option<NewSandbox>,
    start: Vec<Start>,
    pod: Arc<Pod>,
}

/// One that failed, and when its turn comes again.
pub(super) struct Held {
    attempt: Attempt,
    until: Instant,
}

impl Attempt {
    pub(super) fn of(plan: &Plan, pod: &Arc<Pod>) -> Attempt {
        Attempt { sandbox: plan.sandbox.clone(), start: plan.start.clone(), pod: pod.clone() }
    }

    fn is(&self, plan: &Plan, pod: &Pod) -> bool {
        let (before, now) = (&self.pod.metadata, &pod.metadata);
        self.sandbox == plan.sandbox
            && self.start == plan.start
            && self.pod.spec == pod.spec
            && before.labels == now.labels
            && before.annotations == now.annotations
    }
}

impl Worker {
    pub(super) fn hold(&mut self, attempt: Attempt, pause: Duration) {
        self.held = Some(Held { attempt, until: Instant::now() + pause });
    }

    /// How long this has to wait still. None: it is to be tried.
    pub(super) fn held(&mut self, plan: &Plan) -> Option<Duration> {
        let anew = self.anew.swap(false, Ordering::Relaxed);
        let held = self.held.take().filter(|held| !anew && held.attempt.is(plan, &self.pod))?;
        let left = held.until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero());
        self.held = left.map(|_| held);
        left
    }
}
