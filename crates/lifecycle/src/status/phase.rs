//! The phase of a pod, counted over its container statuses (N-76, T-NODE-51).

use crate::containers::{AfterExit, Kind, after_exit, init_containers};
use crate::observed::Exit;
use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;

pub(super) struct Counted<'a> {
    pub(super) spec: &'a core::PodSpec,
    pub(super) init: &'a [core::ContainerStatus],
    pub(super) regular: &'a [core::ContainerStatus],
    /// Some regular container has started in the sandbox that counts.
    pub(super) begun: bool,
    /// Nothing of the pod runs or will run: restart policies no longer matter.
    pub(super) over: bool,
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

/// Whether an ordinary init container failed for good, and whether one is still to be waited for.
fn count_init(counted: &Counted) -> (bool, bool) {
    let (mut failed, mut unfinished) = (false, false);
    for (kind, container) in init_containers(counted.spec) {
        if kind != Kind::Init {
            continue;
        }
        let status = counted.init.iter().find(|status| status.name == container.name);
        match status.map(Shown::of) {
            Some(Shown::Ended(end) | Shown::WaitingAgain(end)) => {
                let stays = after_exit(counted.spec, container, &end) == AfterExit::Stay;
                failed |= end.failed() && (stays || counted.over);
            }
            Some(Shown::Running | Shown::Waiting | Shown::Nothing) | None => unfinished = true,
        }
    }
    (failed, unfinished)
}

/// Sidecars count while they run or have yet to; how they ended never matters (T-NODE-40).
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
                let stays = after_exit(counted.spec, container, &end) == AfterExit::Stay;
                counts.restarting += usize::from(!stays);
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

/// What a status says, as far as the phase is concerned.
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
            Some(core::ContainerState { terminated: Some(end), .. }) => Shown::Ended(exit(end)),
            Some(core::ContainerState { waiting: Some(_), .. }) => match past {
                Some(end) => Shown::WaitingAgain(exit(end)),
                None => Shown::Waiting,
            },
            Some(_) | None => Shown::Nothing,
        }
    }
}

/// The parts of an exit that decide restarts.
fn exit(end: &core::ContainerStateTerminated) -> Exit {
    Exit {
        code: end.exit_code,
        signal: None,
        reason: end.reason.clone().unwrap_or_default(),
        message: String::new(),
        started_at: None,
        finished_at: Timestamp::UNIX_EPOCH,
    }
}
