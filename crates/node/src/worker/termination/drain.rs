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

/// Acknowledgements in one timeline; further ones are not recorded.
const ACKNOWLEDGED_MAX: usize = 64;
/// Names in the event about a wait that took too long.
const NAMED_MAX: usize = 10;

impl Worker {
    /// Before the first step of the run: lets it wait, if the pod has acknowledged drain.
    pub(super) fn begin_drain(&self, run: &mut TerminationRun) {
        let Some(traffic) = &self.deps.traffic else { return };
        if run.machine.is_over() || self.is_forced() {
            return;
        }
        if let Some(updates) = traffic.drain(&self.pod) {
            run.machine.hold();
            run.drain = Some(Drain { updates, missing: Vec::new(), acknowledged: 0, used: false });
        }
    }

    pub(super) fn drain_updated(&mut self, run: &mut TerminationRun, update: DrainUpdate) {
        match update {
            DrainUpdate::Waiting(missing) => {
                if let Some(drain) = &mut run.drain {
                    drain.missing = missing;
                }
            }
            DrainUpdate::Acknowledged(by) => {
                let Some(drain) = &mut run.drain else { return };
                drain.acknowledged += 1;
                if drain.acknowledged <= ACKNOWLEDGED_MAX {
                    self.record_step(StepKind::Acknowledged { by });
                }
            }
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

    /// The object is gone, or was deleted with a grace period of zero and only a finalizer keeps it.
    fn is_forced(&self) -> bool {
        self.inbox.current().gone || self.pod.metadata.deletion_grace_period_seconds == Some(0)
    }

    /// A forced delete ends the wait.
    pub(super) fn end_drain_if_forced(&mut self, run: &mut TerminationRun) {
        if run.drain.is_some() && self.is_forced() {
            run.drain = None;
            self.step(run, Input::Drained);
        }
    }

    /// After every step: containers leave the stage `Held` by themselves when the grace period is over, or when they exit.
    /// A container that got its signal from an earlier agent does not wait.
    pub(super) fn end_unused_drain(&mut self, run: &mut TerminationRun) {
        let is_held = run.is_held();
        let Some(drain) = &mut run.drain else { return };
        drain.used |= is_held;
        if is_held {
            return;
        }
        if drain.used && !run.machine.is_over() {
            self.report_drain_timeout(run);
        } else {
            run.drain = None;
        }
        // Containers that turn out to run later do not wait either.
        self.step(run, Input::Drained);
    }

    /// An event that names who has not acknowledged.
    fn report_drain_timeout(&mut self, run: &mut TerminationRun) {
        let Some(Drain { missing, .. }) = run.drain.take() else { return };
        let named =
            missing.iter().take(NAMED_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
        let others = match missing.len().saturating_sub(NAMED_MAX) {
            0 => String::new(),
            more => format!(" and {more} others"),
        };
        let message = format!(
            "Containers are stopped although new connections may still arrive. Still missing: {named}{others}"
        );
        self.deps.recorder.warning(&self.reference(), "DrainTimedOut", message);
        self.record_step(StepKind::DrainTimedOut { missing });
    }
}

/// The next update; never, if nothing waits. `TimedOut` if the updates ended early: nothing is known then.
pub(super) async fn next_update(drain: &mut Option<Drain>) -> DrainUpdate {
    match drain {
        Some(drain) => drain.updates.recv().await.unwrap_or(DrainUpdate::TimedOut),
        None => std::future::pending().await,
    }
}
