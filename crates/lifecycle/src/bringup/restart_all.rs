//! RestartAllContainers: an exit that restarts the whole pod in place (T-NODE-68).
//!
//! Every container is removed, and initialisation begins again. Containers whose exit caused it are removed last, so
//! that the cause can still be observed after a crash.

use super::Reset;
use super::view::View;
use crate::containers::{AfterExit, Kind, after_exit, kind_of};
use crate::observed::Container;
use k8s_openapi::api::core::v1 as core;

pub(super) fn resets(view: &View, sandbox: &str) -> Vec<Reset> {
    let causes: Vec<&str> = containers(view.spec)
        .filter_map(|container| {
            let current = view.current(sandbox, &container.name)?;
            let after = after_exit(view.spec, container, current.exit()?);
            (after == AfterExit::RestartAll).then_some(current.id.as_str())
        })
        .collect();
    if causes.is_empty() {
        return Vec::new();
    }
    let is_cause = |container: &&Container| causes.contains(&container.id.as_str());
    let (last, first): (Vec<_>, Vec<_>) = view.observed.containers.iter().partition(is_cause);
    first.into_iter().chain(last).map(|container| reset(view, container)).collect()
}

fn reset(view: &View, container: &Container) -> Reset {
    Reset {
        id: container.id.clone(),
        name: container.name.clone(),
        kind: kind_of(view.spec, &container.name).unwrap_or(Kind::Regular),
        running: container.is_running(),
    }
}

fn containers(spec: &core::PodSpec) -> impl Iterator<Item = &core::Container> {
    spec.init_containers.iter().flatten().chain(&spec.containers)
}
