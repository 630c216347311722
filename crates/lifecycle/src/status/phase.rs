//! The phase of a pod, counted over its container statuses (N-76, T-NODE-51).

use super::containers::{RESTARTING_ALL_REASON, past_exit};
use crate::containers::{AfterExit, Kind, after_exit, init_containers};
use crate::observed::Exit;
use k8s_openapi::api::core::v1 as core;

pub(super) struct Counted<'a> {
    pub(super) spec: &'a core::PodSpec,
    pub(super) init: &'a [core::ContainerStatus],
    pub(super) regular: &'a [core::ContainerStatus],
    /// A regular container has started in the newest sandbox.
    pub(super) begun: bool,
    /// Nothing of the pod runs or will run again: restart policies no longer matter.
    pub(super) over: bool,
    /// All containers are being removed to be started again, whatever their policies say (T-NODE-68).
    pub(super) restarting_all: bool,
}

impl Counted<'_> {
    /// The container is not started again after this exit.
    fn stays(&self, container: &core::Container, end: &Exit) -> bool {
        let removed = self.restarting_all || end.reason == RESTARTING_ALL_REASON;
        !removed && after_exit(self.spec, container, end) == AfterExit::Stay
    }
}

#[derive(Default)]
struct Counts {
    running: usize,
    waiting: usize,
    unknown: usize,
    stopped: usize,
    succeeded: usize,
    /// Stopped, but to be started again.
    restarting: usize,
}

pub(super) fn phase(counted: &Counted) -> &'static str {
    let (failed, unfinished) = count_init(counted);
    let (mut counts, sidecar_pending) = count_sidecars(counted);
    count_regular(counted, &mut counts);
    if failed {
        return "Failed";
    }
    if unfinished || (sidecar_pending && !counted.begun) || counts.waiting > 0 {
        return "Pending";
    }
    if counts.unknown > 0 || (counts.running == 0 && counts.stopped == 0) {
        return "Pending";
    }
    if counts.running > 0 || (counts.restarting > 0 && !counted.over) {
        return "Running";
    }
    if counts.stopped == counts.succeeded { "Succeeded" } else { "Failed" }
}

/// Whether an init container failed for good, and whether one has not finished.
fn count_init(counted: &Counted) -> (bool, bool) {
    let (mut failed, mut unfinished) = (false, false);
    for (kind, container) in init_containers(counted.spec) {
        if kind != Kind::Init {
            continue;
        }
        let status = counted.init.iter().find(|status| status.name == container.name);
        match status.map(Shown::of) {
            Some(Shown::Ended(end) | Shown::WaitingAgain(end)) => {
                let stays = counted.stays(container, &end);
                failed |= end.failed() && (stays || counted.over);
            }
            Some(Shown::Running | Shown::Waiting | Shown::Nothing) | None => unfinished = true,
        }
    }
    (failed, unfinished)
}

/// Sidecars count while they run or before they have run; how they exited never matters (T-NODE-40).
fn count_sidecars(counted: &Counted) -> (Counts, bool) {
    let (mut counts, mut pending) = (Counts::default(), false);
    for (kind, container) in init_containers(counted.spec) {
        if kind != Kind::Sidecar {
            continue;
        }
        let status = counted.init.iter().find(|status| status.name == container.name);
        match status.map(Shown::of) {
            Some(Shown::Running) => {
                counts.running += 1;
                pending |= status.is_none_or(|status| status.started != Some(true));
            }
            Some(Shown::Waiting) => {
                counts.waiting += 1;
                pending = true;
            }
            Some(Shown::Ended(_) | Shown::WaitingAgain(_)) => {}
            Some(Shown::Nothing) => {
                counts.unknown += 1;
                pending = true;
            }
            None => counts.unknown += 1,
        }
    }
    (counts, pending)
}

fn count_regular(counted: &Counted, counts: &mut Counts) {
    for container in &counted.spec.containers {
        let status = counted.regular.iter().find(|status| status.name == container.name);
        match status.map(Shown::of) {
            Some(Shown::Running) => counts.running += 1,
            Some(Shown::Ended(end)) => {
                counts.stopped += 1;
                counts.succeeded += usize::from(end.code == 0);
                counts.restarting += usize::from(!counted.stays(container, &end));
            }
            Some(Shown::WaitingAgain(_)) => {
                counts.stopped += 1;
                counts.restarting += 1;
            }
            Some(Shown::Waiting) => counts.waiting += 1,
            Some(Shown::Nothing) | None => counts.unknown += 1,
        }
    }
}

/// A container status, reduced to what the phase depends on.
enum Shown {
    Running,
    Ended(Exit),
    /// Waiting, and it never ran.
    Waiting,
    /// Waiting for another run.
    WaitingAgain(Exit),
    Nothing,
}

impl Shown {
    fn of(status: &core::ContainerStatus) -> Shown {
        let past = status.last_state.as_ref().and_then(|state| state.terminated.as_ref());
        match &status.state {
            Some(core::ContainerState { running: Some(_), .. }) => Shown::Running,
            Some(core::ContainerState { terminated: Some(end), .. }) => {
                Shown::Ended(past_exit(end))
            }
            Some(core::ContainerState { waiting: Some(_), .. }) => match past {
                Some(end) => Shown::WaitingAgain(past_exit(end)),
                None => Shown::Waiting,
            },
            Some(_) | None => Shown::Nothing,
        }
    }
}
