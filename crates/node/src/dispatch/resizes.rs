//! Which resizes are granted: decided by the one task that admits pods, so that nothing is given twice (N-118).

use super::Dispatch;
use crate::admission;
use crate::allocations::words;
use k8s_openapi::api::core::v1::Pod;
use lifecycle::resize::{self, Grant, Waiting};
use lifecycle::resources::amounts;
use lifecycle::status;
use std::sync::Arc;

impl Dispatch {
    /// The pod may ask for other resources than it was granted.
    pub(super) fn resize(&self, uid: &str, pod: &Arc<Pod>) {
        let allocations = &self.parts.allocations;
        let Some(spec) = &pod.spec else { return };
        if is_over(pod) || allocations.settles(uid, spec) {
            return;
        }
        let Some(known) = allocations.get(uid) else { return };
        let Some(node) = self.parts.node() else { return };
        let generation = pod.metadata.generation.unwrap_or_default();
        let allocatable = amounts(node.status.as_ref().and_then(|s| s.allocatable.as_ref()));
        let short = admission::shortage(&node, &self.admitted(), pod);
        let shrinks = !resize::grows(spec, &known.granted);
        let on = client::reference(&**pod);
        match resize::decide(spec, &allocatable, short).pending() {
            None => {
                allocations.grant(uid, Grant::of(spec), generation);
                let message = words("started", pod, generation, "");
                self.parts.recorder.normal(&on, "ResizeStarted", message);
                if shrinks {
                    self.resizes();
                }
            }
            Some((reason, why)) => {
                if !allocations.wait(uid, reason, why.clone(), generation) {
                    return;
                }
                let message = words(reason, pod, generation, &why);
                self.parts.recorder.warning(&on, &format!("Resize{reason}"), message);
            }
        }
        if let Some(worker) = self.workers.get(uid) {
            worker.news.notify_one();
        }
    }

    /// Something has become free, or time has passed: those that wait are asked again, in turn.
    pub(super) fn resizes(&self) {
        let allocations = &self.parts.allocations;
        if !allocations.any_pending() {
            return;
        }
        let pod_of = |uid: &str| Some(self.workers.get(uid)?.orders.borrow().pod.clone());
        let waiting = self.workers.keys().filter_map(|uid| {
            let (known, pod) = (allocations.get(uid)?, pod_of(uid)?);
            let pending = known.pending?;
            // What can never be is not asked again until it asks for something else.
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
    pod.metadata.deletion_timestamp.is_some()
        || pod.status.as_ref().is_some_and(status::is_terminal)
}
