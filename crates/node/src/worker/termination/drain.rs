//! Acknowledged drain: hooks and stop signals of a deleted pod wait until nothing sends it new connections.
//!
//! `lifecycle::termination` keeps the containers in the stage `Held` until it is told that the pod is drained, but not beyond
//! the grace period. Not here: how that is found out (the crate `traffic`).

use super::TerminationRun;
use super::run::Drain;
use crate::worker::Worker;
use lifecycle::drain::DrainUpdate;
use lifecycle::termination::Input;
use lifecycle::timeline::StepKind;
use std::time::Duration;

impl Worker {
    /// Before the first step of the run: lets it wait, if the pod has acknowledged drain.
    pub(super) fn begin_drain(&self, run: &mut TerminationRun) {
        let Some(traffic) = self.deps.traffic.as_ref().filter(|_| !self.inbox.current().gone)
        else {
            return;
        };
        if run.machine.is_over() {
            return;
        }
        if let Some(updates) = traffic.drain(&self.pod) {
            run.machine.hold();
            run.drain = Some(Drain { updates, missing: Vec::new(), used: false });
        }
    }

    pub(super) fn drain_updated(&mut self, run: &mut TerminationRun, update: DrainUpdate) {
        match update {
            DrainUpdate::Waiting(missing) => {
                if let Some(drain) = &mut run.drain {
                    drain.missing = missing;
                }
            }
            DrainUpdate::Acknowledged(by) => self.record_step(StepKind::Acknowledged { by }),
            DrainUpdate::Drained => {
                run.drain = None;
                self.record_step(StepKind::Drained);
                self.step(run, Input::Drained);
            }
            DrainUpdate::TimedOut => {
                self.report_drain_timeout(run);
                self.step(run, Input::Drained);
            }
        }
    }

    /// After every step: containers leave the stage `Held` by themselves when the grace period is over, or when they exit.
    /// A forced delete does not wait at all, nor does a container that got its signal from an earlier agent.
    pub(super) fn end_unused_drain(&mut self, run: &mut TerminationRun) {
        let is_held = run.is_held();
        let Some(drain) = &mut run.drain else { return };
        drain.used |= is_held;
        if is_held {
            return;
        }
        if drain.used && !run.machine.is_over() && run.grace > Duration::ZERO {
            self.report_drain_timeout(run);
        } else {
            run.drain = None;
        }
    }

    /// An event that names who has not acknowledged.
    fn report_drain_timeout(&mut self, run: &mut TerminationRun) {
        let Some(Drain { missing, .. }) = run.drain.take() else { return };
        let whom = if missing.is_empty() { "anything".to_owned() } else { missing.join(", ") };
        let message = format!(
            "The pod is stopped although new connections may still arrive: no acknowledgement of {whom} in time"
        );
        self.deps.recorder.warning(&self.reference(), "DrainTimedOut", message);
        self.record_step(StepKind::DrainTimedOut { missing });
    }
}

/// The next update; never, if nothing waits. `Drained` if the updates ended early.
pub(super) async fn next_update(drain: &mut Option<Drain>) -> DrainUpdate {
    match drain {
        Some(drain) => drain.updates.recv().await.unwrap_or(DrainUpdate::Drained),
        None => std::future::pending().await,
    }
}
