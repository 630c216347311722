//! Init containers and sidecars: how far initialisation is, and what comes next (N-38 to N-40).
//!
//! The last init container that exists in this sandbox shows how far initialisation is; those before it must have
//! succeeded. So the runtime may lose finished ones without a second run.

use super::view::View;
use super::{KillReason, Plan};
use crate::containers::{AfterExit, Kind, RestartPolicy, after_exit, init_containers};
use crate::observed::{Container, State};
use crate::probe::Outcome;
use k8s_openapi::api::core::v1 as core;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Init {
    Unfinished,
    Finished,
    /// One failed and may not be restarted (T-NODE-42).
    Failed,
}

pub(super) fn look_after(view: &View, sandbox: &str, plan: &mut Plan) -> Init {
    let all: Vec<(Kind, &core::Container)> = init_containers(view.spec).collect();
    let regular_exists = view.spec.containers.iter().any(|container| {
        let current = view.current(sandbox, &container.name);
        current.is_some_and(|container| container.state != State::Unknown)
    });
    let reached = match regular_exists {
        true => all.len(),
        false => match all.iter().rposition(|(_, c)| view.current(sandbox, &c.name).is_some()) {
            Some(reached) => reached,
            None => return begin(view, &all, plan),
        },
    };
    for (index, (kind, container)) in all.iter().enumerate().take(reached) {
        if *kind == Kind::Sidecar {
            look_after_sidecar(view, sandbox, index, container, plan);
        }
    }
    match all.get(reached) {
        None => Init::Finished,
        Some((Kind::Sidecar, container)) => {
            look_after_sidecar(view, sandbox, reached, container, plan);
            let current = view.current(sandbox, &container.name);
            match current.is_some_and(|current| is_started(view, container, current)) {
                true => next(view, &all, reached, plan),
                false => Init::Unfinished,
            }
        }
        Some((_, container)) => match view.current(sandbox, &container.name) {
            Some(current) => ordinary(view, &all, reached, current, plan),
            None => Init::Unfinished,
        },
    }
}

fn begin(view: &View, all: &[(Kind, &core::Container)], plan: &mut Plan) -> Init {
    let Some((kind, first)) = all.first() else { return Init::Finished };
    view.start(plan, *kind, 0, first);
    Init::Unfinished
}

/// The container at `passed` has succeeded: start the next one.
fn next(view: &View, all: &[(Kind, &core::Container)], passed: usize, plan: &mut Plan) -> Init {
    let Some((kind, container)) = all.get(passed + 1) else { return Init::Finished };
    view.start(plan, *kind, passed + 1, container);
    Init::Unfinished
}

/// The last existing init container, not a sidecar.
fn ordinary(
    view: &View,
    all: &[(Kind, &core::Container)],
    index: usize,
    current: &Container,
    plan: &mut Plan,
) -> Init {
    let (kind, container) = all[index];
    match &current.state {
        State::Running { .. } => return Init::Unfinished,
        State::Exited(exit) if !exit.failed() => return next(view, all, index, plan),
        State::Exited(exit) => {
            if after_exit(view.spec, container, exit) == AfterExit::Stay {
                return Init::Failed;
            }
        }
        // The runtime failed to start it, or its state was lost.
        State::Created => {}
        State::Unknown => {
            if RestartPolicy::of_container(view.spec, container) == RestartPolicy::Never {
                return Init::Failed;
            }
            kill_unknown(view, plan, kind, current);
        }
    }
    view.start(plan, kind, index, container);
    Init::Unfinished
}

/// A sidecar that has been started is restarted whenever it exits (N-40).
fn look_after_sidecar(
    view: &View,
    sandbox: &str,
    index: usize,
    container: &core::Container,
    plan: &mut Plan,
) {
    let name = &container.name;
    let start = |plan: &mut Plan| view.start(plan, Kind::Sidecar, index, container);
    let Some(current) = view.current(sandbox, name) else { return start(plan) };
    let health = view.observed.health_of(current);
    let (why, text) = match &current.state {
        State::Created | State::Exited(_) => return start(plan),
        State::Unknown => {
            kill_unknown(view, plan, Kind::Sidecar, current);
            return start(plan);
        }
        State::Running { .. } if health.is_some_and(|h| h.startup == Outcome::Failure) => {
            (KillReason::Startup, format!("Init container {name} failed startup probe"))
        }
        State::Running { .. } if health.is_some_and(|h| h.liveness == Outcome::Failure) => {
            (KillReason::Liveness, format!("Init container {name} failed liveness probe"))
        }
        State::Running { .. } if view.changed(container, current) => {
            (KillReason::Changed, format!("Init container {name} definition changed"))
        }
        State::Running { .. } if view.outgrown(container, current) => {
            (KillReason::Resized, format!("Container {name} resize requires restart"))
        }
        State::Running { .. } => return,
    };
    view.kill(plan, Kind::Sidecar, current, why, text);
    start(plan);
}

fn kill_unknown(view: &View, plan: &mut Plan, kind: Kind, current: &Container) {
    let text = "Init container is in \"unknown\" state, try killing it before restart";
    view.kill(plan, kind, current, KillReason::Unknown, text.into());
}

/// Running, and its startup probe, if it has one, has succeeded.
fn is_started(view: &View, container: &core::Container, current: &Container) -> bool {
    let succeeded =
        || view.observed.health_of(current).is_some_and(|h| h.startup == Outcome::Success);
    current.is_running() && (container.startup_probe.is_none() || succeeded())
}
