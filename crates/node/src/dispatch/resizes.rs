//! Decides which resizes are granted. The task that admits pods does it, so that no capacity is given twice
//! (N-118).

use super::Dispatch;
use crate::admission;
use crate::allocations::event_message;
use k8s_openapi::api::core::v1::Pod;
use lifecycle::resize::{self, Grant, Waiting};
use lifecycle::resources::amounts;
use lifecycle::status;
use std::sync::Arc;

impl Dispatch {
    /// Handles a pod that may request other resources than it was granted.
    pub(super) fn resize(&self, uid: &str, pod: &Arc<Pod>) {
        let allocations = &self.deps.allocations;
        let Some(spec) = &pod.spec else { return };
        if is_over(pod) || allocations.is_settled(uid, spec) {
            return;
        }
        let Some(known) = allocations.get(uid) else { return };
        let Some(node) = self.deps.node() else { return };
        let generation = pod.metadata.generation.unwrap_or_default();
        let allocatable = amounts(node.status.as_ref().and_then(|s| s.allocatable.as_ref()));
        let short = admission::shortage(&node, &self.admitted(), pod);
        let shrinks = !resize::grows(spec, &known.granted);
        let on = client::reference(&**pod);
        match resize::decide(spec, &allocatable, short).pending() {
            None => {
                allocations.grant(uid, Grant::of(spec), generation);
                let message = event_message("started", pod, generation, "");
                self.deps.recorder.normal(&on, "ResizeStarted", message);
                if shrinks {
                    self.retry_resizes();
                }
            }
            Some((reason, why)) => {
                if !allocations.defer(uid, reason, why.clone(), generation) {
                    return;
                }
                let message = event_message(reason, pod, generation, &why);
                self.deps.recorder.warning(&on, &format!("Resize{reason}"), message);
            }
        }
        if let Some(worker) = self.workers.get(uid) {
            worker.wake();
        }
    }

    /// Decides again about resizes that wait: capacity has become free, or time has passed.
    pub(super) fn retry_resizes(&self) {
        let allocations = &self.deps.allocations;
        if !allocations.any_pending() {
            return;
        }
        let pod_of = |uid: &str| Some(self.workers.get(uid)?.desired.borrow().pod.clone());
        let waiting = self.workers.keys().filter_map(|uid| {
            let (known, pod) = (allocations.get(uid)?, pod_of(uid)?);
            let pending = known.pending?;
            // A resize that can never be granted waits until the pod requests something else.
            if pending.reason == "Infeasible" || is_over(&pod) {
                return None;
            }
            Some(Waiting::new(uid, pod.spec.as_ref()?, &known.granted, pending.since))
        });
        for one in resize::in_turn(waiting.collect()) {
            if let Some(pod) = pod_of(&one.uid) {
                self.resize(&one.uid, &pod);
            }
        }
    }
}

fn is_over(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some() || status::is_terminal_pod(pod)
}
