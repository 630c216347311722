//! How the containers of a pod end: hook, turn, stop signal, kill. Of one container or of all.
//!
//!     Terminate ──▶ (held) ──▶ preStop ──▶ (turn) ──▶ stop signal ──▶ kill at the deadline
//!                      └──────────┴──────────┴── exit, at any time ──▶ gone
//!
//! Told what happened and when, it answers what to do next; the node does it and tells how that
//! went. No clock: every moment is an argument. No timers: [`Termination::next_due`] is derived from the
//! stages, so none can be stale. A container is gone when its exit was seen, never before.
//!
//! All containers run through their stages at the same time (T-NODE-15); only sidecars wait with
//! their stop signal until it is their turn (T-NODE-35). The grace period covers everything:
//! waiting, hook and turn are charged to it, but a stop signal always gets [`STOP_WINDOW_MIN`].

mod grace;

pub use grace::{container_grace, pod_grace, reported_after};

use crate::containers::{Kind, ephemeral_containers, init_containers, kind_of};
use crate::observed::Observed;
use k8s_openapi::api::core::v1 as core;
use std::time::Duration;

/// A stop signal always gets this long, even if the hook ate the whole grace period (T-NODE-19).
/// Upstream: `minimumGracePeriodInSeconds` in kuberuntime.
pub const STOP_WINDOW_MIN: Duration = Duration::from_secs(2);

/// After so long a signal that could not be sent is sent again.
pub const RESEND_AFTER: Duration = Duration::from_secs(1);

/// A point on a clock that never goes back: time since an origin that the caller chose once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(pub Duration);

impl std::ops::Add<Duration> for Moment {
    type Output = Moment;

    fn add(self, by: Duration) -> Moment {
        Moment(self.0.saturating_add(by))
    }
}

impl Moment {
    /// How long until `later`; nothing if that is past.
    pub fn until(self, later: Moment) -> Duration {
        later.0.saturating_sub(self.0)
    }
}

/// A container that is to end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    pub id: String,
    pub name: String,
    pub kind: Kind,
    /// It has a preStop hook.
    pub hook: bool,
    /// Where it is declared in its list; sidecars end in the reverse of this order.
    pub place: usize,
    /// What was already done before the agent was restarted: neither hook nor signal comes twice.
    pub progress: Progress,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Progress {
    #[default]
    Fresh,
    /// The hook has run, or what is left of it is not to be waited for.
    HookDone,
    /// It has its stop signal, and its time until then, whoever waits for it now (T-EDGE-3).
    StopSent { kill_at: Moment },
}

/// Where one container is. What it waits for, and until when, is in the stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Not asked to end.
    Running,
    /// Traffic is still being taken away; neither hook nor signal before that.
    Held {
        due: Moment,
    },
    PreStop {
        due: Moment,
    },
    /// A sidecar that is done with its hook, while others still run.
    Turn {
        due: Moment,
    },
    /// It has its signal, or is about to have it; at `due` comes the kill.
    Stopping {
        due: Moment,
        signal: Sending,
    },
    Killed {
        resend: Option<Moment>,
    },
    /// Its exit was seen.
    Gone,
}

/// How far the stop signal has come. Between the wish and the deed the agent may die, so that only
/// what was seen to be done counts as done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sending {
    Underway,
    Sent,
    /// It could not be sent; then it is tried again.
    Failed {
        again: Moment,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// Deletion, eviction, node shutdown, a failed probe. May repeat; a later request can only hurry.
    /// A grace of zero means no hook (T-NODE-26).
    Terminate {
        grace: Duration,
    },
    /// Traffic has left ([`Termination::held`]): the hooks may run.
    Drained,
    /// The hook ended, well or not (T-NODE-29).
    HookFinished {
        id: String,
    },
    /// Its exit was seen.
    Exited {
        id: String,
    },
    /// One more container turned out to be running: it was being started when the end began.
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
    /// Time has passed. Always safe to send: the machine knows itself what is due.
    Tick,
}

/// What to do, in this order. Only start it: how it ended is an input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Event Normal `Killing`: it comes before anything else that happens to a container (T-NODE-16).
    Announce {
        id: String,
    },
    RunPreStop {
        id: String,
    },
    /// The hook still runs and is not waited for any longer (T-NODE-28, T-EDGE-8).
    HookOverran {
        id: String,
    },
    /// The container's own stop signal. `kill_at`: when the kill comes if it does not exit; a later
    /// Terminate may hurry that.
    SendStop {
        id: String,
        kill_at: Moment,
    },
    SendKill {
        id: String,
    },
}

/// The ending of a pod, or of one container of it.
#[derive(Debug, Clone)]
pub struct Termination {
    members: Vec<(Member, Stage)>,
    /// When everybody should have ended by, once asked.
    due: Option<Moment>,
    hold: bool,
}

impl Termination {
    /// All that run now. See [`members`].
    pub fn new(members: Vec<Member>) -> Termination {
        let members = members.into_iter().map(|member| (member, Stage::Running)).collect();
        Termination { members, due: None, hold: false }
    }

    /// Hooks and signals wait for [`Input::Drained`], but never beyond the grace.
    pub fn held(self) -> Termination {
        Termination { hold: true, ..self }
    }

    /// One container was being ended, and now the whole pod is to end: the others join it and get the
    /// time of the next [`Input::Terminate`]. What has begun goes on, hooks and signals do not repeat.
    pub fn join(&mut self, others: Vec<Member>) {
        self.due = None;
        for other in others {
            if self.members.iter().all(|(known, _)| known.id != other.id) {
                self.members.push((other, Stage::Running));
            }
        }
    }

    /// When everybody should have ended by, once asked.
    pub fn due(&self) -> Option<Moment> {
        self.due
    }

    /// Every exit was seen.
    pub fn is_over(&self) -> bool {
        self.members.iter().all(|(_, stage)| *stage == Stage::Gone)
    }

    /// When to send a [`Input::Tick`] if nothing else happens.
    pub fn next_due(&self) -> Option<Moment> {
        self.members.iter().filter_map(|(_, stage)| stage.due()).min()
    }

    /// Who is where, for timelines and messages.
    pub fn stages(&self) -> impl Iterator<Item = (&Member, Stage)> {
        self.members.iter().map(|(member, stage)| (member, *stage))
    }

    pub fn step(&mut self, now: Moment, input: Input) -> Vec<Action> {
        let mut actions = Vec::new();
        match input {
            Input::Terminate { grace } => self.terminate(now, grace, &mut actions),
            Input::Drained => self.drained(now, &mut actions),
            Input::HookFinished { id } => self.set(&id, Stage::hook_finished),
            Input::Exited { id } => self.set(&id, |_| Stage::Gone),
            Input::Found(member) => self.found(now, member, &mut actions),
            Input::StopSent { id } => self.set(&id, Stage::stop_sent),
            Input::StopFailed { id } => self.set(&id, |stage| stage.stop_failed(now)),
            Input::KillFailed { id } => self.set(&id, |stage| stage.kill_failed(now)),
            Input::Tick => {}
        }
        self.settle(now, &mut actions);
        actions
    }

    fn terminate(&mut self, now: Moment, grace: Duration, actions: &mut Vec<Action>) {
        let asked = now + grace;
        let due = self.due.map_or(asked, |due| due.min(asked));
        self.due = Some(due);
        let hold = self.hold && grace > Duration::ZERO;
        for (member, stage) in &mut self.members {
            *stage = match *stage {
                Stage::Running => begin(member, now, due, hold, actions),
                other => other.hurried(now, asked),
            };
        }
    }

    fn drained(&mut self, now: Moment, actions: &mut Vec<Action>) {
        self.hold = false;
        for (member, stage) in &mut self.members {
            if let Stage::Held { due } = *stage {
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
            None => Stage::Running,
        };
        self.members.push((member, stage));
    }

    /// Does what is due, and gives the signal to whom it is the turn of. One round is enough: a signal
    /// never ends anybody by itself, so no new turn can come from it.
    fn settle(&mut self, now: Moment, actions: &mut Vec<Action>) {
        for index in 0..self.members.len() {
            let my_turn = self.is_turn_of(index);
            let (member, stage) = &mut self.members[index];
            *stage = settled(member, *stage, now, my_turn, actions);
        }
    }

    /// T-NODE-35: a sidecar's turn comes when all regular containers and all sidecars declared after it
    /// are gone. Everybody else's turn is always.
    fn is_turn_of(&self, index: usize) -> bool {
        let (me, _) = &self.members[index];
        me.kind != Kind::Sidecar
            || self.members.iter().all(|(other, stage)| {
                let before_me = other.kind == Kind::Regular
                    || (other.kind == Kind::Sidecar && other.place > me.place);
                !before_me || *stage == Stage::Gone
            })
    }

    fn set(&mut self, id: &str, change: impl Fn(Stage) -> Stage) {
        for (_, stage) in self.members.iter_mut().filter(|(member, _)| member.id == id) {
            *stage = change(*stage);
        }
    }
}

impl Stage {
    /// What an agent that takes over in this stage need not do again (T-EDGE-3).
    pub fn progress(self, now: Moment) -> Progress {
        match self {
            // A hook that still ran is run again: nobody knows how far it came.
            Stage::Running | Stage::Held { .. } | Stage::PreStop { .. } => Progress::Fresh,
            Stage::Turn { .. } => Progress::HookDone,
            // A signal too many is better than a kill without one.
            Stage::Stopping { signal: Sending::Underway | Sending::Failed { .. }, .. } => {
                Progress::HookDone
            }
            Stage::Stopping { due, signal: Sending::Sent } => Progress::StopSent { kill_at: due },
            Stage::Killed { .. } | Stage::Gone => Progress::StopSent { kill_at: now },
        }
    }

    fn due(self) -> Option<Moment> {
        match self {
            Stage::Running | Stage::Gone => None,
            Stage::Held { due } | Stage::PreStop { due } | Stage::Turn { due } => Some(due),
            Stage::Stopping { due, signal: Sending::Failed { again } } => Some(again.min(due)),
            Stage::Stopping { due, signal: Sending::Underway | Sending::Sent } => Some(due),
            Stage::Killed { resend } => resend,
        }
    }

    /// Asked again, to be over by `asked`: the earlier time wins, but a stop signal keeps its window.
    fn hurried(self, now: Moment, asked: Moment) -> Stage {
        match self {
            Stage::Held { due } => Stage::Held { due: due.min(asked) },
            Stage::PreStop { due } => Stage::PreStop { due: due.min(asked) },
            Stage::Turn { due } => Stage::Turn { due: due.min(asked) },
            Stage::Stopping { due, signal } => {
                Stage::Stopping { due: due.min(asked.max(now + STOP_WINDOW_MIN)), signal }
            }
            Stage::Running | Stage::Killed { .. } | Stage::Gone => self,
        }
    }

    fn hook_finished(self) -> Stage {
        match self {
            Stage::PreStop { due } => Stage::Turn { due },
            // Late news about a hook that was no longer waited for.
            Stage::Running
            | Stage::Held { .. }
            | Stage::Turn { .. }
            | Stage::Stopping { .. }
            | Stage::Killed { .. }
            | Stage::Gone => self,
        }
    }

    fn stop_sent(self) -> Stage {
        match self {
            Stage::Stopping { due, .. } => Stage::Stopping { due, signal: Sending::Sent },
            Stage::Running
            | Stage::Held { .. }
            | Stage::PreStop { .. }
            | Stage::Turn { .. }
            | Stage::Killed { .. }
            | Stage::Gone => self,
        }
    }

    fn stop_failed(self, now: Moment) -> Stage {
        match self {
            Stage::Stopping { due, .. } => {
                Stage::Stopping { due, signal: Sending::Failed { again: now + RESEND_AFTER } }
            }
            Stage::Running
            | Stage::Held { .. }
            | Stage::PreStop { .. }
            | Stage::Turn { .. }
            | Stage::Killed { .. }
            | Stage::Gone => self,
        }
    }

    fn kill_failed(self, now: Moment) -> Stage {
        match self {
            Stage::Killed { .. } => Stage::Killed { resend: Some(now + RESEND_AFTER) },
            Stage::Running
            | Stage::Held { .. }
            | Stage::PreStop { .. }
            | Stage::Turn { .. }
            | Stage::Stopping { .. }
            | Stage::Gone => self,
        }
    }
}

/// The end of one container begins.
fn begin(
    member: &Member,
    now: Moment,
    due: Moment,
    hold: bool,
    actions: &mut Vec<Action>,
) -> Stage {
    if let Progress::StopSent { kill_at } = member.progress {
        // Somebody may have asked for less meanwhile.
        return Stage::Stopping { due: kill_at, signal: Sending::Sent }.hurried(now, due);
    }
    actions.push(Action::Announce { id: member.id.clone() });
    if hold {
        return Stage::Held { due };
    }
    run_hook(member, now, due, actions)
}

/// No time, no hook (T-NODE-26).
fn run_hook(member: &Member, now: Moment, due: Moment, actions: &mut Vec<Action>) -> Stage {
    if member.hook && member.progress == Progress::Fresh && now < due {
        actions.push(Action::RunPreStop { id: member.id.clone() });
        return Stage::PreStop { due };
    }
    Stage::Turn { due }
}

fn settled(
    member: &Member,
    stage: Stage,
    now: Moment,
    my_turn: bool,
    actions: &mut Vec<Action>,
) -> Stage {
    let id = || member.id.clone();
    match stage {
        Stage::Turn { due } if my_turn || due <= now => send_stop(member, now, due, actions),
        Stage::Held { due } if due <= now => send_stop(member, now, due, actions),
        Stage::PreStop { due } if due <= now => {
            actions.push(Action::HookOverran { id: id() });
            send_stop(member, now, due, actions)
        }
        Stage::Stopping { due, .. } if due <= now => {
            actions.push(Action::SendKill { id: id() });
            Stage::Killed { resend: None }
        }
        Stage::Stopping { due, signal: Sending::Failed { again } } if again <= now => {
            actions.push(Action::SendStop { id: id(), kill_at: due });
            Stage::Stopping { due, signal: Sending::Underway }
        }
        Stage::Killed { resend: Some(at) } if at <= now => {
            actions.push(Action::SendKill { id: id() });
            Stage::Killed { resend: None }
        }
        Stage::Running
        | Stage::Held { .. }
        | Stage::PreStop { .. }
        | Stage::Turn { .. }
        | Stage::Stopping { .. }
        | Stage::Killed { .. }
        | Stage::Gone => stage,
    }
}

/// However late it is, a stop signal gets its window (T-NODE-19).
fn send_stop(member: &Member, now: Moment, due: Moment, actions: &mut Vec<Action>) -> Stage {
    let kill_at = due.max(now + STOP_WINDOW_MIN);
    actions.push(Action::SendStop { id: member.id.clone(), kill_at });
    Stage::Stopping { due: kill_at, signal: Sending::Underway }
}

/// Who is to end when the pod does: all that run now, and only those (T-NODE-15).
pub fn members(pod: &core::Pod, observed: &Observed) -> Vec<Member> {
    let running = observed.containers.iter().filter(|container| container.is_running());
    running.map(|container| member(pod, &container.id, &container.name)).collect()
}

/// One container as a member. What the spec does not know ends like a regular container, without hook.
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
