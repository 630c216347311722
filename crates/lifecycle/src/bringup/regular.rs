//! Regular containers: which ones keep running, are killed, are started or have finished (N-41, N-43).

use super::view::View;
use super::{KillReason, Plan};
use crate::containers::{AfterExit, Kind, RestartPolicy, after_exit};
use crate::observed::{Container, State};
use crate::probe::Outcome;
use k8s_openapi::api::core::v1 as core;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Regular {
    /// A container runs, terminates, or will be started.
    Going,
    /// All have exited, and none will be started again. Sidecars terminate then too (T-NODE-39).
    Over,
}

pub(super) fn look_after(view: &View, plan: &mut Plan) -> Regular {
    let mut going = false;
    for (index, container) in view.spec.containers.iter().enumerate() {
        let latest = view.observed.latest(&container.name);
        match latest {
            Some(current) if current.is_running() => {
                going = true;
                look_after_running(view, plan, index, container, current);
            }
            _ if is_wanted(view, container) => {
                going = true;
                if let Some(lost) = latest.filter(|latest| latest.state == State::Unknown) {
                    let text = "Container is in \"unknown\" state, try killing it before restart";
                    view.kill(plan, Kind::Regular, lost, KillReason::Unknown, text.into());
                }
                view.start(plan, Kind::Regular, index, container);
            }
            _ => {}
        }
    }
    if going { Regular::Going } else { Regular::Over }
}

/// Whether a container that does not run should be started (N-43).
pub(super) fn is_wanted(view: &View, container: &core::Container) -> bool {
    match view.observed.latest(&container.name).map(|latest| &latest.state) {
        None | Some(State::Created | State::Unknown | State::Running { .. }) => true,
        Some(State::Exited(exit)) => after_exit(view.spec, container, exit) != AfterExit::Stay,
    }
}

fn look_after_running(
    view: &View,
    plan: &mut Plan,
    index: usize,
    container: &core::Container,
    current: &Container,
) {
    let name = &container.name;
    let health = view.observed.health_of(current);
    // Restart rules do not apply to failed probes, only the policy does.
    let policy = RestartPolicy::of_container(view.spec, container) != RestartPolicy::Never;
    let (why, text, restart) = if view.changed(container, current) {
        (KillReason::Changed, format!("Container {name} definition changed"), true)
    } else if health.is_some_and(|health| health.liveness == Outcome::Failure) {
        (KillReason::Liveness, format!("Container {name} failed liveness probe"), policy)
    } else if health.is_some_and(|health| health.startup == Outcome::Failure) {
        (KillReason::Startup, format!("Container {name} failed startup probe"), policy)
    } else if view.outgrown(container, current) {
        let text = format!("Container {name} resize requires restart");
        view.kill(plan, Kind::Regular, current, KillReason::Resized, text);
        return view.start(plan, Kind::Regular, index, container);
    } else {
        return;
    };
    let text = if restart { format!("{text}, will be restarted") } else { text };
    view.kill(plan, Kind::Regular, current, why, text);
    if restart {
        view.start(plan, Kind::Regular, index, container);
    }
}
