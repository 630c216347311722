//! Sets the status of containers whose exit was not observed when nothing of the pod runs any more (T-NODE-49, 50).

use super::containers::{LOST, lost};
use crate::containers::is_sidecar;
use k8s_openapi::api::core::v1 as core;

/// Containers that must have run, but whose exit is unknown, get the reason ContainerStatusUnknown.
pub(super) fn finish_containers(
    spec: &core::PodSpec,
    init: &mut [core::ContainerStatus],
    regular: &mut [core::ContainerStatus],
) {
    if is_initialized(spec, init, regular) {
        regular.iter_mut().for_each(set_terminated);
    }
    let begun = init.iter().rposition(has_run).map_or(0, |last| last + 1);
    init[..begun].iter_mut().for_each(set_terminated);
}

fn set_terminated(status: &mut core::ContainerStatus) {
    if status.state.as_ref().is_some_and(|state| state.terminated.is_some()) {
        return;
    }
    status.state = Some(lost("ContainerStatusUnknown", LOST));
    (status.ready, status.started) = (false, status.started.map(|_| false));
}

/// True without init containers, if a regular container has ever run, or if the last init container succeeded.
fn is_initialized(
    spec: &core::PodSpec,
    init: &[core::ContainerStatus],
    regular: &[core::ContainerStatus],
) -> bool {
    let containers = spec.init_containers.as_deref().unwrap_or_default();
    let Some(last) = containers.last() else { return true };
    if regular.iter().any(has_run) {
        return true;
    }
    let status = init.iter().find(|status| status.name == last.name);
    let passed = |state: &Option<core::ContainerState>| {
        state.as_ref().and_then(|s| s.terminated.as_ref()).is_some_and(|end| end.exit_code == 0)
    };
    status.is_some_and(|status| match is_sidecar(last) {
        true => status.started == Some(true),
        false => passed(&status.state) || passed(&status.last_state),
    })
}

/// It runs or has run.
fn has_run(status: &core::ContainerStatus) -> bool {
    let waits = status.state.as_ref().is_some_and(|state| state.waiting.is_some());
    let ran = status.last_state.as_ref().is_some_and(|state| state.terminated.is_some());
    !waits || ran
}
