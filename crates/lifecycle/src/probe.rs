//! One probe of one container, as a state machine: when to probe, and what the results amount to.
//!
//! The node has one [`Worker`] per container and kind of probe. It ticks every period, asks here, probes if
//! told to, and reports the answer. Not here: how a probe is performed (`node`), and what follows from
//! its result (`bringup`, `status`).

use crate::containers::Kind;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1 as core;
use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ProbeKind {
    Startup,
    Readiness,
    Liveness,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Outcome {
    #[default]
    Unknown,
    Success,
    Failure,
}

/// Tries within one tick when a probe could not be run at all (N-94).
pub const TRIES_ON_ERROR: usize = 3;

/// The container as the last published status shows it (N-90).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    pub container_id: String,
    /// None: it does not run.
    pub running_since: Option<Timestamp>,
    /// The `started` of its status.
    pub started: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// The period is over, or somebody wants to know at once (N-92). None: it has no container yet.
    Tick(Option<Seen>),
    /// A probe answered; which container was asked.
    Answered { container_id: String, success: bool },
    /// The probe could not be run, not even at the third try: it counts for nothing (N-94).
    Errored,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// Nothing to do until the next tick.
    Wait,
    /// Run the probe and tell how it went.
    ProbeNow,
    /// This is the result from now on. What follows is again to wait.
    Changed(Outcome),
}

/// The state of one probe.
#[derive(Debug, Clone)]
pub struct Worker {
    kind: ProbeKind,
    initial_delay: i64,
    period: Duration,
    success_threshold: u32,
    failure_threshold: u32,
    container_id: Option<String>,
    result: Outcome,
    last: Outcome,
    run: u32,
    /// It failed for good: nothing until there is a new container (N-93).
    on_hold: bool,
    /// A value from before the agent's restart, held until the first new result (N-95).
    inherited: Option<Inherited>,
}

/// What the API said about a container that ran already when the agent started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inherited {
    pub container_id: String,
    pub outcome: Outcome,
}

/// A container that runs for longer than this when the agent starts was not started by it (N-95).
const RAN_BEFORE: SignedDuration = SignedDuration::from_secs(10);

impl Inherited {
    /// What was told about a container before the agent started, if it ran well before that (N-95).
    pub fn of(
        kind: ProbeKind,
        told: &core::ContainerStatus,
        agent_started: Timestamp,
    ) -> Option<Inherited> {
        let since = told.state.as_ref()?.running.as_ref()?.started_at.as_ref()?.0;
        if agent_started.duration_since(since) <= RAN_BEFORE {
            return None;
        }
        let was = match kind {
            ProbeKind::Startup => told.started == Some(true),
            ProbeKind::Readiness => told.ready,
            ProbeKind::Liveness => return None,
        };
        let (_, container_id) = told.container_id.as_deref()?.split_once("://")?;
        let outcome = if was { Outcome::Success } else { initial(kind) };
        Some(Inherited { container_id: container_id.to_owned(), outcome })
    }
}

impl Worker {
    pub fn new(kind: ProbeKind, probe: &core::Probe) -> Worker {
        let at_least_one = |value: Option<i32>, default| value.unwrap_or(default).max(1) as u32;
        Worker {
            kind,
            initial_delay: i64::from(probe.initial_delay_seconds.unwrap_or(0)),
            period: Duration::from_secs(at_least_one(probe.period_seconds, 10).into()),
            success_threshold: at_least_one(probe.success_threshold, 1),
            failure_threshold: at_least_one(probe.failure_threshold, 3),
            container_id: None,
            result: Outcome::Unknown,
            last: Outcome::Unknown,
            run: 0,
            on_hold: false,
            inherited: None,
        }
    }

    /// After the agent's restart: the value that the container had ([`Inherited::of`]).
    pub fn inheriting(self, inherited: Inherited) -> Worker {
        Worker { inherited: Some(inherited), ..self }
    }

    pub fn kind(&self) -> ProbeKind {
        self.kind
    }

    pub fn period(&self) -> Duration {
        self.period
    }

    /// N-92: whoever computes a status while this is true should let it tick at once, so that a pod turns
    /// ready when it can and not a period later.
    pub fn hurries(&self) -> bool {
        self.kind == ProbeKind::Readiness && self.result != Outcome::Success
    }

    /// What counts now, and for which container.
    pub fn result(&self) -> (Option<&str>, Outcome) {
        (self.container_id.as_deref(), self.result)
    }

    pub fn step(&mut self, now: Timestamp, input: Input) -> Output {
        match input {
            Input::Tick(None) | Input::Errored => Output::Wait,
            Input::Tick(Some(seen)) => self.tick(now, seen),
            Input::Answered { container_id, success } => {
                if self.container_id.as_ref() != Some(&container_id) || self.on_hold {
                    return Output::Wait; // About a container that is no more.
                }
                self.answered(if success { Outcome::Success } else { Outcome::Failure })
            }
        }
    }

    fn tick(&mut self, now: Timestamp, seen: Seen) -> Output {
        if self.container_id.as_ref() != Some(&seen.container_id) {
            self.meet(seen.container_id.clone());
        }
        if self.on_hold {
            return Output::Wait;
        }
        let Some(since) = seen.running_since else {
            return self.set(Outcome::Failure);
        };
        if now.duration_since(since).as_secs() < self.initial_delay {
            return Output::Wait;
        }
        let wanted = match self.kind {
            ProbeKind::Startup => !seen.started,
            ProbeKind::Readiness | ProbeKind::Liveness => seen.started,
        };
        if wanted { Output::ProbeNow } else { Output::Wait }
    }

    /// A new container: everything starts over (N-91).
    fn meet(&mut self, container_id: String) {
        let inherited = self.inherited.take().filter(|old| old.container_id == container_id);
        self.result = inherited.map_or(initial(self.kind), |old| old.outcome);
        self.container_id = Some(container_id);
        (self.last, self.run, self.on_hold) = (Outcome::Unknown, 0, false);
    }

    fn answered(&mut self, outcome: Outcome) -> Output {
        self.run = if self.last == outcome { self.run.saturating_add(1) } else { 1 };
        self.last = outcome;
        let threshold = match outcome {
            Outcome::Success => self.success_threshold,
            Outcome::Failure | Outcome::Unknown => self.failure_threshold,
        };
        if self.run < threshold {
            return Output::Wait;
        }
        if outcome == Outcome::Failure && self.kind != ProbeKind::Readiness {
            (self.on_hold, self.run) = (true, 0);
        }
        self.set(outcome)
    }

    fn set(&mut self, outcome: Outcome) -> Output {
        if self.result == outcome {
            return Output::Wait;
        }
        self.result = outcome;
        Output::Changed(outcome)
    }
}

/// T-NODE-60, 61: whether a probe goes on when its pod begins to end. Of regular containers only readiness
/// does; of sidecars all do, but nothing is restarted for them.
pub fn goes_on_while_terminating(kind: ProbeKind, container: Kind) -> bool {
    kind == ProbeKind::Readiness || container == Kind::Sidecar
}

/// Before anything is known a container is not ready, alive, and neither started nor not.
pub fn initial(kind: ProbeKind) -> Outcome {
    match kind {
        ProbeKind::Startup => Outcome::Unknown,
        ProbeKind::Readiness => Outcome::Failure,
        ProbeKind::Liveness => Outcome::Success,
    }
}
