//! The last words about a pod of which nothing runs any more (T-NODE-49 to 52, T-NODE-92).

use super::containers::{LOST, lost};
use crate::containers::is_sidecar;
use k8s_openapi::api::core::v1 as core;

/// Every container that must have run and of which no end is known ended in an unknown way.
pub(super) fn finish_containers(
    spec: &core::PodSpec,
    init: &mut [core::ContainerStatus],
    regular: &mut [core::ContainerStatus],
) {
    if is_initialized(spec, init, regular) {
        regular.iter_mut().for_each(give_end);
    }
    let begun = init.iter().rposition(has_trace).map_or(0, |last| last + 1);
    init[..begun].iter_mut().for_each(give_end);
}

fn give_end(status: &mut core::ContainerStatus) {
    if status.state.as_ref().is_some_and(|state| state.terminated.is_some()) {
        return;
    }
    status.state = Some(lost("ContainerStatusUnknown", LOST));
    (status.ready, status.started) = (false, status.started.map(|_| false));
}

/// Without init containers always; else when a regular container was ever more than waiting, or the last
/// init container passed.
fn is_initialized(
    spec: &core::PodSpec,
    init: &[core::ContainerStatus],
    regular: &[core::ContainerStatus],
) -> bool {
    let containers = spec.init_containers.as_deref().unwrap_or_default();
    let Some(last) = containers.last() else { return true };
    if regular.iter().any(has_trace) {
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

/// It runs or ran.
fn has_trace(status: &core::ContainerStatus) -> bool {
    let waits = status.state.as_ref().is_some_and(|state| state.waiting.is_some());
    let ran = status.last_state.as_ref().is_some_and(|state| state.terminated.is_some());
    !waits || ran
}

/// A pod of this node alone: its phase is never forced (T-NODE-92).
pub(crate) fn is_static(pod: &core::Pod) -> bool {
    let source =
        pod.metadata.annotations.as_ref().and_then(|a| a.get("kubernetes.io/config.source"));
    source.is_some_and(|source| source != "api")
}
