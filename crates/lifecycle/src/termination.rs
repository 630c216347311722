//! The termination of containers, of one or of all in a pod: hook, turn, stop signal, kill.
//!
//!     Terminate ──▶ (held) ──▶ preStop ──▶ (turn) ──▶ stop signal ──▶ kill at the deadline
//!                      └──────────┴──────────┴── exit, at any time ──▶ gone
//!
//! The node says what happened and when, and gets back what to do next. No clock: every moment is an
//! argument. No timers: [`Termination::next_due`] is derived from the stages, so none can be stale. A
//! container is gone when its exit was observed, never before.
//!
//! All containers pass through their stages at the same time (T-NODE-15); only sidecars wait for their turn
//! before they get the stop signal (T-NODE-35). The grace period covers waiting, hook and turn, but a
//! stop signal always gets [`STOP_WINDOW_MIN`].

mod grace;

pub use grace::{container_grace, pod_grace, reported_after};

use crate::containers::{Kind, ephemeral_containers, init_containers, kind_of};
use crate::observed::Observed;
use k8s_openapi::api::core::v1 as core;
use std::time::Duration;

/// Time that a stop signal always gets, even if the hook used the whole grace period (T-NODE-19).
/// Upstream: `minimumGracePeriodInSeconds` in kuberuntime.
pub const STOP_WINDOW_MIN: Duration = Duration::from_secs(2);

/// Pause before a signal that could not be sent is sent again.
pub const RESEND_AFTER: Duration = Duration::from_secs(1);

/// A point in monotonic time: the time since an origin that the caller chose once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(pub Duration);

impl std::ops::Add<Duration> for Moment {
    type Output = Moment;

    fn add(self, by: Duration) -> Moment {
        Moment(self.0.saturating_add(by))
    }
}

impl Moment {
    /// Time until `later`; zero if that is past.
    pub fn until(self, later: Moment) -> Duration {
        later.0.saturating_sub(self.0)
    }
}

/// A container that takes part in a termination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    pub id: String,
    pub name: String,
    pub kind: Kind,
    /// It has a preStop hook.
    pub hook: bool,
    /// Its position in its list of the spec; sidecars terminate in reverse order.
    pub place: usize,
    /// What an earlier agent has done: neither hook nor signal is repeated.
    pub progress: Progress,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Progress {
    #[default]
    Fresh,
    /// The hook has finished, or is no longer waited for.
    HookDone,
    /// The stop signal was sent; the kill is due at `kill_at`, also after a restart of the agent (T-EDGE-3).
    StopSent { kill_at: Moment },
}

/// The stage of one container. What it waits for, and until when, is part of the stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContainerStage {
    /// Not terminating.
    Running,
    /// Waits until traffic has left; neither hook nor signal before that.
    Held {
        due: Moment,
    },
    PreStop {
        due: Moment,
    },
    /// Its hook is done. A sidecar waits here for containers that terminate before it.
    Turn {
        due: Moment,
    },
    /// The stop signal is being sent or was sent; at `due` comes the kill.
    Stopping {
        due: Moment,
        signal: SignalState,
    },
    Killed {
        resend: Option<Moment>,
    },
    /// Its exit was observed.
    Gone,
}

/// State of the stop signal. The agent may die while it sends the signal, so the signal counts as sent only
/// when the runtime has confirmed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignalState {
    InProgress,
    Sent,
    /// Sending failed; it is repeated at `again`.
    Failed {
        again: Moment,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// Deletion, eviction, node shutdown, a failed probe. May repeat; a later request can only shorten the
    /// grace period. A grace period of zero means no hook (T-NODE-26).
    Terminate {
        grace: Duration,
    },
    /// Traffic has left ([`Termination::hold`]): the hooks may run.
    Drained,
    /// The hook succeeded or failed (T-NODE-29).
    HookFinished {
        id: String,
    },
    /// Its exit was observed.
    Exited {
        id: String,
    },
    /// Another container is running: it was being started when the termination began.
    Found(Member),
    /// The container has its stop signal.
    StopSent {
        id: String,
    },
    /// The stop signal could not be sent.
    StopFailed {
        id: String,
    },
    KillFailed {
        id: String,
    },
    /// Time has passed. Always safe to send: the state machine knows what is due.
    Tick,
}

/// What to do. The node starts it, and reports how it went as an input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Record the event `Killing`, before anything else happens to the container (T-NODE-16).
    Announce {
        id: String,
    },
    RunPreStop {
        id: String,
    },
    /// The hook still runs at the end of the grace period and is no longer waited for (T-NODE-28, T-EDGE-8).
    HookOverran {
        id: String,
    },
    /// Send the container's stop signal. The kill comes at `kill_at` if the container does not exit; a later
    /// Terminate can bring that forward.
    SendStop {
        id: String,
        kill_at: Moment,
    },
    SendKill {
        id: String,
    },
}

/// The termination of a pod, or of some of its containers.
#[derive(Debug, Clone)]
pub struct Termination {
    members: Vec<(Member, ContainerStage)>,
    /// Deadline of all containers, once termination was requested.
    due: Option<Moment>,
    hold: bool,
}

impl Termination {
    /// `members`: the containers that run now; see [`members`].
    pub fn new(members: Vec<Member>) -> Termination {
        let members = members.into_iter().map(|member| (member, ContainerStage::Running)).collect();
        Termination { members, due: None, hold: false }
    }

    /// Before the first [`Input::Terminate`]: hooks and signals wait for [`Input::Drained`], but not beyond the grace period.
    pub fn hold(&mut self) {
        self.hold = true;
    }

    /// Extends the termination of some containers to the whole pod: `others` join with the grace period of the
    /// next [`Input::Terminate`]. Hooks and signals in progress continue; they are not repeated.
    pub fn join(&mut self, others: Vec<Member>) {
        self.due = None;
        for other in others {
            if self.members.iter().all(|(known, _)| known.id != other.id) {
                self.members.push((other, ContainerStage::Running));
            }
        }
    }

    /// Deadline of all containers, once termination was requested.
    pub fn due(&self) -> Option<Moment> {
        self.due
    }

    /// Every exit was observed.
    pub fn is_over(&self) -> bool {
        self.members.iter().all(|(_, stage)| *stage == ContainerStage::Gone)
    }

    /// When to send an [`Input::Tick`] if nothing else happens.
    pub fn next_due(&self) -> Option<Moment> {
        self.members.iter().filter_map(|(_, stage)| stage.due()).min()
    }

    /// All containers and their stages.
    pub fn stages(&self) -> impl Iterator<Item = (&Member, ContainerStage)> {
        self.members.iter().map(|(member, stage)| (member, *stage))
    }

    pub fn step(&mut self, now: Moment, input: Input) -> Vec<Action> {
        let mut actions = Vec::new();
        match input {
            Input::Terminate { grace } => self.terminate(now, grace, &mut actions),
            Input::Drained => self.drained(now, &mut actions),
            Input::HookFinished { id } => self.set(&id, ContainerStage::hook_finished),
            Input::Exited { id } => self.set(&id, |_| ContainerStage::Gone),
            Input::Found(member) => self.found(now, member, &mut actions),
            Input::StopSent { id } => self.set(&id, ContainerStage::stop_sent),
            Input::StopFailed { id } => self.set(&id, |stage| stage.stop_failed(now)),
            Input::KillFailed { id } => self.set(&id, |stage| stage.kill_failed(now)),
            Input::Tick => {}
        }
        self.settle(now, &mut actions);
        actions
    }

    fn terminate(&mut self, now: Moment, grace: Duration, actions: &mut Vec<Action>) {
        let requested = now + grace;
        let due = self.due.map_or(requested, |due| due.min(requested));
        self.due = Some(due);
        let hold = self.hold && grace > Duration::ZERO;
        for (member, stage) in &mut self.members {
            *stage = match *stage {
                ContainerStage::Running => begin(member, now, due, hold, actions),
                other => other.shortened(now, requested),
            };
        }
    }

    fn drained(&mut self, now: Moment, actions: &mut Vec<Action>) {
        self.hold = false;
        for (member, stage) in &mut self.members {
            if let ContainerStage::Held { due } = *stage {
                *stage = run_hook(member, now, due, actions);
            }
        }
    }

    fn found(&mut self, now: Moment, member: Member, actions: &mut Vec<Action>) {
        if self.members.iter().any(|(known, _)| known.id == member.id) {
            return;
        }
        let stage = match self.due {
            Some(due) => begin(&member, now, due, self.hold, actions),
            None => ContainerStage::Running,
        };
        self.members.push((member, stage));
    }

    /// Does what is due, and stops containers whose turn has come. One round is enough: a container is gone only
    /// when its exit was observed, so a signal cannot start another turn.
    fn settle(&mut self, now: Moment, actions: &mut Vec<Action>) {
        for index in 0..self.members.len() {
            let my_turn = self.is_turn_of(index);
            let (member, stage) = &mut self.members[index];
            *stage = settled(member, *stage, now, my_turn, actions);
        }
    }

    /// A sidecar's turn comes when all regular containers and all sidecars declared after it are gone
    /// (T-NODE-35). Other containers need not wait.
    fn is_turn_of(&self, index: usize) -> bool {
        let (me, _) = &self.members[index];
        me.kind != Kind::Sidecar
            || self.members.iter().all(|(other, stage)| {
                let before_me = other.kind == Kind::Regular
                    || (other.kind == Kind::Sidecar && other.place > me.place);
                !before_me || *stage == ContainerStage::Gone
            })
    }

    fn set(&mut self, id: &str, change: impl Fn(ContainerStage) -> ContainerStage) {
        for (_, stage) in self.members.iter_mut().filter(|(member, _)| member.id == id) {
            *stage = change(*stage);
        }
    }
}

impl ContainerStage {
    /// What the next agent need not repeat if it takes over in this stage (T-EDGE-3).
    pub fn progress(self, now: Moment) -> Progress {
        match self {
            // An unfinished hook runs again: how far it came is unknown.
            ContainerStage::Running
            | ContainerStage::Held { .. }
            | ContainerStage::PreStop { .. } => Progress::Fresh,
            ContainerStage::Turn { .. } => Progress::HookDone,
            // A repeated signal is better than a kill without a signal.
            ContainerStage::Stopping {
                signal: SignalState::InProgress | SignalState::Failed { .. },
                ..
            } => Progress::HookDone,
            ContainerStage::Stopping { due, signal: SignalState::Sent } => {
                Progress::StopSent { kill_at: due }
            }
            ContainerStage::Killed { .. } | ContainerStage::Gone => {
                Progress::StopSent { kill_at: now }
            }
        }
    }

    fn due(self) -> Option<Moment> {
        match self {
            ContainerStage::Running | ContainerStage::Gone => None,
            ContainerStage::Held { due }
            | ContainerStage::PreStop { due }
            | ContainerStage::Turn { due } => Some(due),
            ContainerStage::Stopping { due, signal: SignalState::Failed { again } } => {
                Some(again.min(due))
            }
            ContainerStage::Stopping {
                due,
                signal: SignalState::InProgress | SignalState::Sent,
            } => Some(due),
            ContainerStage::Killed { resend } => resend,
        }
    }

    /// A further request with the deadline `requested`: the earlier deadline wins, but a stop signal keeps its
    /// window.
    fn shortened(self, now: Moment, requested: Moment) -> ContainerStage {
        match self {
            ContainerStage::Held { due } => ContainerStage::Held { due: due.min(requested) },
            ContainerStage::PreStop { due } => ContainerStage::PreStop { due: due.min(requested) },
            ContainerStage::Turn { due } => ContainerStage::Turn { due: due.min(requested) },
            ContainerStage::Stopping { due, signal } => ContainerStage::Stopping {
                due: due.min(requested.max(now + STOP_WINDOW_MIN)),
                signal,
            },
            ContainerStage::Running | ContainerStage::Killed { .. } | ContainerStage::Gone => self,
        }
    }

    fn hook_finished(self) -> ContainerStage {
        match self {
            ContainerStage::PreStop { due } => ContainerStage::Turn { due },
            // A hook that was no longer waited for has ended.
            ContainerStage::Running
            | ContainerStage::Held { .. }
            | ContainerStage::Turn { .. }
            | ContainerStage::Stopping { .. }
            | ContainerStage::Killed { .. }
            | ContainerStage::Gone => self,
        }
    }

    fn stop_sent(self) -> ContainerStage {
        match self {
            ContainerStage::Stopping { due, .. } => {
                ContainerStage::Stopping { due, signal: SignalState::Sent }
            }
            ContainerStage::Running
            | ContainerStage::Held { .. }
            | ContainerStage::PreStop { .. }
            | ContainerStage::Turn { .. }
            | ContainerStage::Killed { .. }
            | ContainerStage::Gone => self,
        }
    }

    fn stop_failed(self, now: Moment) -> ContainerStage {
        match self {
            ContainerStage::Stopping { due, .. } => ContainerStage::Stopping {
                due,
                signal: SignalState::Failed { again: now + RESEND_AFTER },
            },
            ContainerStage::Running
            | ContainerStage::Held { .. }
            | ContainerStage::PreStop { .. }
            | ContainerStage::Turn { .. }
            | ContainerStage::Killed { .. }
            | ContainerStage::Gone => self,
        }
    }

    fn kill_failed(self, now: Moment) -> ContainerStage {
        match self {
            ContainerStage::Killed { .. } => {
                ContainerStage::Killed { resend: Some(now + RESEND_AFTER) }
            }
            ContainerStage::Running
            | ContainerStage::Held { .. }
            | ContainerStage::PreStop { .. }
            | ContainerStage::Turn { .. }
            | ContainerStage::Stopping { .. }
            | ContainerStage::Gone => self,
        }
    }
}

/// Begins the termination of one container.
fn begin(
    member: &Member,
    now: Moment,
    due: Moment,
    hold: bool,
    actions: &mut Vec<Action>,
) -> ContainerStage {
    if let Progress::StopSent { kill_at } = member.progress {
        // A shorter grace period may have been requested in the meantime.
        return ContainerStage::Stopping { due: kill_at, signal: SignalState::Sent }
            .shortened(now, due);
    }
    actions.push(Action::Announce { id: member.id.clone() });
    if hold {
        return ContainerStage::Held { due };
    }
    run_hook(member, now, due, actions)
}

/// Without time there is no hook (T-NODE-26).
fn run_hook(
    member: &Member,
    now: Moment,
    due: Moment,
    actions: &mut Vec<Action>,
) -> ContainerStage {
    if member.hook && member.progress == Progress::Fresh && now < due {
        actions.push(Action::RunPreStop { id: member.id.clone() });
        return ContainerStage::PreStop { due };
    }
    ContainerStage::Turn { due }
}

fn settled(
    member: &Member,
    stage: ContainerStage,
    now: Moment,
    my_turn: bool,
    actions: &mut Vec<Action>,
) -> ContainerStage {
    let id = || member.id.clone();
    match stage {
        ContainerStage::Turn { due } if my_turn || due <= now => {
            send_stop(member, now, due, actions)
        }
        ContainerStage::Held { due } if due <= now => send_stop(member, now, due, actions),
        ContainerStage::PreStop { due } if due <= now => {
            actions.push(Action::HookOverran { id: id() });
            send_stop(member, now, due, actions)
        }
        ContainerStage::Stopping { due, .. } if due <= now => {
            actions.push(Action::SendKill { id: id() });
            ContainerStage::Killed { resend: None }
        }
        ContainerStage::Stopping { due, signal: SignalState::Failed { again } } if again <= now => {
            actions.push(Action::SendStop { id: id(), kill_at: due });
            ContainerStage::Stopping { due, signal: SignalState::InProgress }
        }
        ContainerStage::Killed { resend: Some(at) } if at <= now => {
            actions.push(Action::SendKill { id: id() });
            ContainerStage::Killed { resend: None }
        }
        ContainerStage::Running
        | ContainerStage::Held { .. }
        | ContainerStage::PreStop { .. }
        | ContainerStage::Turn { .. }
        | ContainerStage::Stopping { .. }
        | ContainerStage::Killed { .. }
        | ContainerStage::Gone => stage,
    }
}

/// A stop signal always gets its window, however late it is (T-NODE-19).
fn send_stop(
    member: &Member,
    now: Moment,
    due: Moment,
    actions: &mut Vec<Action>,
) -> ContainerStage {
    let kill_at = due.max(now + STOP_WINDOW_MIN);
    actions.push(Action::SendStop { id: member.id.clone(), kill_at });
    ContainerStage::Stopping { due: kill_at, signal: SignalState::InProgress }
}

/// The members of a pod's termination: all containers that run now, and only those (T-NODE-15).
pub fn members(pod: &core::Pod, observed: &Observed) -> Vec<Member> {
    let running = observed.containers.iter().filter(|container| container.is_running());
    running.map(|container| member(pod, &container.id, &container.name)).collect()
}

/// One container as a member. A container that is not in the spec counts as a regular one without hook.
pub fn member(pod: &core::Pod, id: &str, name: &str) -> Member {
    let member = |kind, hook, place| Member {
        id: id.to_owned(),
        name: name.to_owned(),
        kind,
        hook,
        place,
        progress: Progress::Fresh,
    };
    let Some(spec) = &pod.spec else { return member(Kind::Regular, false, 0) };
    let has_hook = |c: &core::Container| c.lifecycle.as_ref().is_some_and(|l| l.pre_stop.is_some());
    let init = init_containers(spec).enumerate().find(|(_, (_, c))| c.name == name);
    if let Some((place, (kind, container))) = init {
        return member(kind, has_hook(container), place);
    }
    if let Some(place) = spec.containers.iter().position(|c| c.name == name) {
        return member(Kind::Regular, has_hook(&spec.containers[place]), place);
    }
    let place = ephemeral_containers(spec).iter().position(|c| c.name == name);
    member(kind_of(spec, name).unwrap_or(Kind::Regular), false, place.unwrap_or(0))
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
