//! Container statuses: state, last state, started and ready (N-81 to N-86).

use super::{Facts, WorkerState, whole_second};
use crate::containers::{AfterExit, Kind, after_exit, init_containers};
use crate::observed::{Container, Exit, Observed, StartFailure, State};
use crate::probe::Outcome;
use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

pub(super) struct Basis<'a> {
    pub(super) spec: &'a core::PodSpec,
    pub(super) observed: &'a Observed,
    pub(super) facts: &'a Facts<'a>,
    pub(super) previous: &'a core::PodStatus,
    /// The pod is being deleted.
    pub(super) deleted: bool,
    /// All containers are being restarted: one that vanishes now was removed on purpose (T-NODE-68).
    pub(super) restarting_all: bool,
}

impl Basis<'_> {
    /// The exit of this container restarts all containers.
    fn restarts_all(&self, spec: &Spec, state: &core::ContainerState) -> bool {
        let (Some(whole), Some(end)) = (spec.whole, &state.terminated) else { return false };
        let exit = past_exit(end);
        after_exit(self.spec, whole, &exit) == AfterExit::RestartAll
    }
}

pub(super) const LOST: &str = "The container could not be located when the pod was terminated";
const LOST_BEFORE: &str = "The container could not be located when the pod was deleted.  The container used to be Running";
/// The reason of a container that was removed to be started again (T-NODE-68).
pub(super) const RESTARTING_ALL_REASON: &str = "RestartingAllContainers";
const RESTARTING_ALL: &str = "The container is removed because RestartAllContainers in place";
const ASSUMED_COMPLETED: &str = "Unable to get init container status from container runtime and pod has been initialized, treat it as exited normally";

/// In spec order (N-74).
pub(super) fn init_statuses(basis: &Basis) -> Vec<core::ContainerStatus> {
    let before = basis.previous.init_container_statuses.as_deref().unwrap_or_default();
    init_containers(basis.spec)
        .map(|(kind, container)| status(basis, kind, &Spec::from(container), before, true))
        .collect()
}

/// Sorted by name (N-74). During initialisation all of them wait with the same reason (N-81, N-203).
pub(super) fn regular_statuses(
    basis: &Basis,
    init: &[core::ContainerStatus],
) -> Vec<core::ContainerStatus> {
    let before = basis.previous.container_statuses.as_deref().unwrap_or_default();
    let containers = basis.spec.containers.iter();
    let turn = begun(basis) || is_initialized(basis, init);
    by_name(containers.map(|c| status(basis, Kind::Regular, &Spec::from(c), before, turn)))
}

fn is_initialized(basis: &Basis, init: &[core::ContainerStatus]) -> bool {
    init_containers(basis.spec).zip(init).all(|((kind, _), status)| match kind {
        Kind::Sidecar => status.started == Some(true),
        Kind::Init | Kind::Regular | Kind::Ephemeral => status.ready,
    })
}

/// Sorted by name.
pub(super) fn ephemeral_statuses(basis: &Basis) -> Vec<core::ContainerStatus> {
    let before = basis.previous.ephemeral_container_statuses.as_deref().unwrap_or_default();
    let containers = basis.spec.ephemeral_containers.iter().flatten();
    by_name(containers.map(|c| status(basis, Kind::Ephemeral, &Spec::from(c), before, true)))
}

fn by_name(all: impl Iterator<Item = core::ContainerStatus>) -> Vec<core::ContainerStatus> {
    let mut all: Vec<_> = all.collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

/// What ordinary and ephemeral containers have in common.
struct Spec<'a> {
    name: &'a str,
    image: &'a str,
    mounts: &'a [core::VolumeMount],
    /// None for ephemeral ones, which have no policy, probes or resources.
    whole: Option<&'a core::Container>,
}

impl<'a> From<&'a core::Container> for Spec<'a> {
    fn from(c: &'a core::Container) -> Self {
        let mounts = c.volume_mounts.as_deref().unwrap_or_default();
        let image = c.image.as_deref().unwrap_or_default();
        Spec { name: &c.name, image, mounts, whole: Some(c) }
    }
}

impl<'a> From<&'a core::EphemeralContainer> for Spec<'a> {
    fn from(c: &'a core::EphemeralContainer) -> Self {
        let mounts = c.volume_mounts.as_deref().unwrap_or_default();
        let image = c.image.as_deref().unwrap_or_default();
        Spec { name: &c.name, image, mounts, whole: None }
    }
}

/// `its_turn`: the container would be started now if that did not fail.
fn status(
    basis: &Basis,
    kind: Kind,
    spec: &Spec,
    before: &[core::ContainerStatus],
    its_turn: bool,
) -> core::ContainerStatus {
    let before = before.iter().find(|status| status.name == spec.name);
    let mut instances = basis.observed.instances(spec.name);
    let mut status = match instances.next() {
        Some(newest) => {
            let mut status = seen(basis, spec, newest, before);
            status.last_state = match instances.next() {
                Some(earlier) => Some(state(basis, earlier, None)),
                // The runtime's record may have been removed after the exit was published.
                None => before.and_then(|b| b.last_state.clone()).filter(|_| newest.attempt > 0),
            };
            status
        }
        None => unseen(basis, kind, spec, before),
    };
    if let Some(failure) = basis.observed.failures.get(spec.name)
        && its_turn
        && will_be_started(basis, kind, spec)
    {
        wait(&mut status, failure);
    }
    if let Some(kept) = before.filter(|before| is_final(basis, kind, spec, before, &status)) {
        return kept.clone();
    }
    judge(basis, kind, spec, &mut status);
    status
}

/// Status of a container that the runtime has.
fn seen(
    basis: &Basis,
    spec: &Spec,
    newest: &Container,
    before: Option<&core::ContainerStatus>,
) -> core::ContainerStatus {
    let user = newest.user.as_ref().map(|user| core::ContainerUser {
        linux: Some(core::LinuxContainerUser {
            uid: user.uid,
            gid: user.gid,
            supplemental_groups: Some(user.groups.clone()).filter(|groups| !groups.is_empty()),
        }),
    });
    let resources = spec.whole.map(|whole| whole.resources.clone().unwrap_or_default());
    let allocated = resources.as_ref().and_then(|resources| resources.requests.clone());
    let actual = newest.resources.clone().filter(|_| newest.is_running());
    core::ContainerStatus {
        name: spec.name.into(),
        image: newest.image.clone(),
        image_id: newest.image_id.clone(),
        container_id: Some(container_id(basis, newest)),
        restart_count: i32::try_from(newest.attempt).unwrap_or(i32::MAX),
        state: Some(state(basis, newest, before)),
        allocated_resources: allocated.filter(|amounts| !amounts.is_empty()),
        resources: resources
            .map(|allocated| super::applied::shown(allocated, actual))
            .map(without_empty),
        user,
        volume_mounts: mounts(spec, Some(newest)),
        ..core::ContainerStatus::default()
    }
}

/// Status of a container that the runtime does not have: not yet, or no longer.
fn unseen(
    basis: &Basis,
    kind: Kind,
    spec: &Spec,
    before: Option<&core::ContainerStatus>,
) -> core::ContainerStatus {
    let mut status = core::ContainerStatus {
        name: spec.name.into(),
        image: spec.image.into(),
        state: Some(default_waiting(basis)),
        volume_mounts: mounts(spec, None),
        ..core::ContainerStatus::default()
    };
    let Some(before) = before else { return assume_completed(basis, kind, status) };
    let published = before.state.clone().unwrap_or_default();
    status.restart_count = before.restart_count;
    if published.terminated.is_some() && basis.restarting_all {
        // Removed on purpose, to be started again: its exit becomes its last state. An init container that was
        // interrupted did not fail.
        let failed = published.terminated.as_ref().is_some_and(|end| end.exit_code != 0);
        status.last_state =
            match kind == Kind::Init && failed && !basis.restarts_all(spec, &published) {
                true => Some(lost(RESTARTING_ALL_REASON, RESTARTING_ALL)),
                false => Some(published),
            };
        status.restart_count += 1;
        return status;
    }
    if published.terminated.is_some() {
        return before.clone();
    }
    status.last_state = before.last_state.clone();
    if kind == Kind::Init && begun(basis) {
        return assume_completed(basis, kind, status);
    }
    if published.running.is_some() {
        // It ran, and its exit is unknown: it must not look as if it had never run.
        let (reason, message) = match basis.restarting_all {
            true => (RESTARTING_ALL_REASON, RESTARTING_ALL),
            false => ("ContainerStatusUnknown", LOST_BEFORE),
        };
        status.last_state = Some(lost(reason, message));
        status.restart_count += i32::from(!basis.deleted);
    }
    status
}

/// A pod with regular containers was initialised, even if the records of init containers are gone (N-85).
fn assume_completed(
    basis: &Basis,
    kind: Kind,
    status: core::ContainerStatus,
) -> core::ContainerStatus {
    if kind != Kind::Init || !begun(basis) {
        return status;
    }
    let end = core::ContainerStateTerminated {
        reason: Some("Completed".into()),
        message: Some(ASSUMED_COMPLETED.into()),
        ..Default::default()
    };
    let state = core::ContainerState { terminated: Some(end), ..Default::default() };
    core::ContainerStatus { state: Some(state), ..status }
}

/// A regular container exists in the newest sandbox.
fn begun(basis: &Basis) -> bool {
    let Some(sandbox) = basis.observed.sandboxes.first() else { return false };
    let regular = |name: &str| basis.spec.containers.iter().any(|c| c.name == name);
    let mut all = basis.observed.containers.iter();
    all.any(|c| c.sandbox == sandbox.id && c.state != State::Unknown && regular(&c.name))
}

fn state(
    basis: &Basis,
    container: &Container,
    before: Option<&core::ContainerStatus>,
) -> core::ContainerState {
    let ran = before.and_then(|before| before.state.as_ref()?.running.as_ref()).is_some();
    match &container.state {
        State::Created => default_waiting(basis),
        State::Running { started_at } => core::ContainerState {
            running: Some(core::ContainerStateRunning { started_at: Some(time(*started_at)) }),
            ..Default::default()
        },
        State::Exited(exit) => core::ContainerState {
            terminated: Some(terminated(exit, container_id(basis, container))),
            ..Default::default()
        },
        State::Unknown if ran => lost("ContainerStatusUnknown", LOST),
        State::Unknown => default_waiting(basis),
    }
}

/// Exit code and reason of an exit (T-NODE-47, 48). A container that never started has the Unix epoch as its start
/// (N-45).
fn terminated(exit: &Exit, container_id: String) -> core::ContainerStateTerminated {
    let reason = match (exit.reason.as_str(), exit.code) {
        ("", 0) => "Completed",
        ("", _) => "Error",
        (given, _) => given,
    };
    core::ContainerStateTerminated {
        exit_code: exit.code,
        signal: None,
        reason: Some(reason.into()),
        message: Some(exit.message.clone()).filter(|message| !message.is_empty()),
        started_at: Some(time(exit.started_at.unwrap_or(Timestamp::UNIX_EPOCH))),
        finished_at: Some(time(exit.finished_at)),
        container_id: Some(container_id),
    }
}

/// The state of a container whose exit is unknown (T-NODE-49).
pub(super) fn lost(reason: &str, message: &str) -> core::ContainerState {
    let end = core::ContainerStateTerminated {
        exit_code: 137,
        reason: Some(reason.into()),
        message: Some(message.into()),
        ..Default::default()
    };
    core::ContainerState { terminated: Some(end), ..Default::default() }
}

fn default_waiting(basis: &Basis) -> core::ContainerState {
    let has_init = basis.spec.init_containers.as_ref().is_some_and(|list| !list.is_empty());
    let reason = if has_init { "PodInitializing" } else { "ContainerCreating" };
    waiting(reason, "")
}

fn waiting(reason: &str, message: &str) -> core::ContainerState {
    let message = Some(message.to_owned()).filter(|message| !message.is_empty());
    let waiting = core::ContainerStateWaiting { reason: Some(reason.into()), message };
    core::ContainerState { waiting: Some(waiting), ..Default::default() }
}

/// A failed start: the container waits, and its last exit becomes the last state (N-84).
fn wait(status: &mut core::ContainerStatus, failure: &StartFailure) {
    if status.state.as_ref().is_some_and(|state| state.terminated.is_some()) {
        status.last_state = status.state.take();
    }
    status.state = Some(waiting(&failure.reason, &failure.message));
}

/// It does not run, and the next pass would start it (N-43).
fn will_be_started(basis: &Basis, kind: Kind, spec: &Spec) -> bool {
    if basis.deleted || basis.facts.stage != WorkerState::Syncing {
        return false;
    }
    match basis.observed.latest(spec.name).map(|latest| &latest.state) {
        None | Some(State::Created | State::Unknown) => true,
        Some(State::Running { .. }) => false,
        Some(State::Exited(exit)) => restarts(basis, kind, spec, exit),
    }
}

fn restarts(basis: &Basis, kind: Kind, spec: &Spec, exit: &Exit) -> bool {
    match (kind, spec.whole) {
        (Kind::Sidecar, _) => true,
        (Kind::Init, _) if !exit.failed() => false,
        (_, Some(whole)) => after_exit(basis.spec, whole, exit) != AfterExit::Stay,
        (_, None) => false,
    }
}

/// A container that exited for good keeps its published status (N-86).
fn is_final(
    basis: &Basis,
    kind: Kind,
    spec: &Spec,
    before: &core::ContainerStatus,
    now: &core::ContainerStatus,
) -> bool {
    let end = |status: &core::ContainerStatus| status.state.as_ref()?.terminated.clone();
    let Some(published) = end(before) else { return false };
    if end(now).is_some() || basis.restarting_all || kind == Kind::Ephemeral {
        return false;
    }
    let exit = past_exit(&published);
    let by_policy = match (kind, spec.whole) {
        (Kind::Sidecar, _) | (_, None) => true,
        (_, Some(whole)) => after_exit(basis.spec, whole, &exit) != AfterExit::Stay,
    };
    !by_policy
}

/// The parts of an exit that restart decisions depend on.
pub(super) fn past_exit(end: &core::ContainerStateTerminated) -> Exit {
    Exit {
        code: end.exit_code,
        signal: None,
        reason: end.reason.clone().unwrap_or_default(),
        message: String::new(),
        started_at: None,
        finished_at: Timestamp::UNIX_EPOCH,
    }
}

/// Whether it is started and ready (N-82, N-91).
fn judge(basis: &Basis, kind: Kind, spec: &Spec, status: &mut core::ContainerStatus) {
    let latest = basis.observed.latest(spec.name);
    let running = latest.filter(|latest| latest.is_running());
    let health = running.and_then(|running| basis.observed.health_of(running));
    let says =
        |probed: bool, outcome: Option<Outcome>| !probed || outcome == Some(Outcome::Success);
    let whole = spec.whole;
    let probed = |probe: fn(&core::Container) -> bool| whole.is_some_and(probe);
    let started = running.is_some()
        && says(probed(|c| c.startup_probe.is_some()), health.map(|health| health.startup));
    let ready = started
        && says(probed(|c| c.readiness_probe.is_some()), health.map(|health| health.readiness));
    let end = status.state.as_ref().and_then(|state| state.terminated.as_ref());
    (status.started, status.ready) = match kind {
        Kind::Ephemeral => (None, false),
        Kind::Init => {
            let passed = |end: &core::ContainerStateTerminated| {
                end.exit_code == 0 && end.reason.as_deref() != Some("OOMKilled")
            };
            (Some(started), end.is_some_and(passed))
        }
        Kind::Sidecar | Kind::Regular => (Some(started), ready),
    };
}

fn mounts(spec: &Spec, newest: Option<&Container>) -> Option<Vec<core::VolumeMountStatus>> {
    let status = |mount: &core::VolumeMount| {
        let read_only = mount.read_only.unwrap_or(false);
        let applied = newest.and_then(|newest| {
            newest.mounts.iter().find(|mounted| mounted.target == mount.mount_path)
        });
        let recursive = match (applied, mount.recursive_read_only.as_deref()) {
            (Some(applied), _) => applied.recursive_read_only,
            (None, asked) => asked == Some("Enabled"),
        };
        let recursive = if recursive { "Enabled" } else { "Disabled" };
        core::VolumeMountStatus {
            name: mount.name.clone(),
            mount_path: mount.mount_path.clone(),
            read_only: read_only.then_some(true),
            recursive_read_only: read_only.then(|| recursive.into()),
            volume_status: None,
        }
    };
    (!spec.mounts.is_empty()).then(|| spec.mounts.iter().map(status).collect())
}

fn without_empty(resources: core::ResourceRequirements) -> core::ResourceRequirements {
    core::ResourceRequirements {
        requests: resources.requests.filter(|list| !list.is_empty()),
        limits: resources.limits.filter(|list| !list.is_empty()),
        claims: resources.claims,
    }
}

fn container_id(basis: &Basis, container: &Container) -> String {
    format!("{}://{}", basis.facts.runtime, container.id)
}

fn time(at: Timestamp) -> Time {
    Time(whole_second(at))
}
