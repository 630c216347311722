//! What to do next so that a pod's containers run: which sandbox, which to end, which to start.
//!
//!     observed ──▶ plan ──▶ the node kills, makes a sandbox, starts ──▶ observed
//!
//! Stateless (N-35): it looks only at the spec and at what is so, and says the same again until
//! the world has moved. Safe to ask at any time. Not here: how a container ends (`termination`), what is
//! told about it (`status`).

mod init;
mod regular;
mod restart_all;
mod sandbox;
mod view;

use crate::backoff::Backoffs;
use crate::containers::{Kind, ephemeral_containers, init_containers};
use crate::observed::{Observed, StartFailure};
use init::Init;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use regular::Regular;
use sandbox::Sandbox;
use std::time::Duration;
use view::View;

/// One pass, to be performed from top to bottom. A default plan changes nothing.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Plan {
    /// First of all end every running container and stop every sandbox, with the pod's own grace.
    pub end_all: Option<EndAll>,
    /// T-NODE-68: kill these without hook (grace 0) and remove them, in this order, then plan again.
    /// Nothing else is in such a plan.
    pub reset: Vec<Reset>,
    /// End these, each by a termination of its own.
    pub kill: Vec<Kill>,
    /// Make a sandbox before anything is started.
    pub sandbox: Option<NewSandbox>,
    /// Start these one after another, in this order. See [`Start::failure_ends_pass`].
    pub start: Vec<Start>,
    /// These would be started, but have to wait.
    pub waiting: Vec<Waiting>,
}

/// Why everything ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndAll {
    /// The sandbox is no good, or not there. If one existed, [`NewSandbox::changed`] says so.
    Sandbox,
    /// Nothing of this pod will ever be started again: its work is done, or has failed for good.
    Done,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSandbox {
    pub attempt: u32,
    /// There was one before: Normal `SandboxChanged` [`SANDBOX_CHANGED`] is to be told (N-36).
    pub changed: bool,
}

/// N-36
pub const SANDBOX_CHANGED: &str = "Pod sandbox changed, it will be killed and re-created.";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reset {
    pub id: String,
    pub name: String,
    pub kind: Kind,
    pub running: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kill {
    pub id: String,
    pub name: String,
    pub kind: Kind,
    pub why: Why,
    /// Text of the event `Killing` (T-NODE-17).
    pub message: String,
    /// T-NODE-18: a probe may bring its own.
    pub grace: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    Changed,
    Liveness,
    Startup,
    /// It was granted other resources, and its policy wants them only from its start (N-120).
    Resized,
    /// Nobody knows whether it runs; it must not run twice.
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Start {
    pub name: String,
    pub kind: Kind,
    /// Its place in its list of the spec: `initContainers`, `containers` or `ephemeralContainers`.
    pub index: usize,
    /// Its restart count (N-48).
    pub attempt: u32,
    /// It ran before: tell the back-offs with [`Start::note`] when it is really started.
    pub again: Option<Again>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Again {
    pub key: String,
    pub finished_at: Timestamp,
}

impl Start {
    /// An ordinary init container that fails to start ends the pass; others do not stop each other (N-40, N-41).
    pub fn failure_ends_pass(&self) -> bool {
        self.kind == Kind::Init
    }

    /// The attempt begins: one step on in its back-off (T-NODE-65).
    pub fn note(&self, backoffs: &mut Backoffs, now: Timestamp) {
        if let Some(again) = &self.again {
            backoffs.failed(&again.key, again.finished_at, now);
        }
    }
}

/// Crash back-off (T-NODE-66).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    pub name: String,
    pub kind: Kind,
    pub until: Timestamp,
    pub delay: SignedDuration,
    /// For `state.waiting`, with reason `CrashLoopBackOff`; see [`Waiting::failure`].
    pub message: String,
    /// For the Warning event `BackOff`.
    pub event: String,
}

impl Waiting {
    /// What belongs into `Observed::failures` while it waits.
    pub fn failure(&self) -> StartFailure {
        StartFailure { reason: "CrashLoopBackOff".into(), message: self.message.clone() }
    }
}

impl Plan {
    /// When to plan again although nothing happened: the first back-off is over (N-33).
    pub fn next_due(&self) -> Option<Timestamp> {
        self.waiting.iter().map(|waiting| waiting.until).min()
    }

    /// The pod's work is over for good.
    pub fn is_done(&self) -> bool {
        self.end_all == Some(EndAll::Done)
    }
}

/// What to do now. `pod.status` is what the node last computed.
pub fn plan(pod: &Pod, observed: &Observed, backoffs: &Backoffs, now: Timestamp) -> Plan {
    let done = Plan { end_all: Some(EndAll::Done), ..Plan::default() };
    let Some(spec) = &pod.spec else { return done };
    // Whoever asks for a pod that is on its way out is told to end it: it never comes back (T-NODE-1).
    if pod.metadata.deletion_timestamp.is_some() || is_finished(pod) {
        return done;
    }
    let view = View { pod, spec, observed, backoffs, now };
    match sandbox::wanted(&view) {
        Sandbox::Good(id) => go_on(&view, id),
        Sandbox::New(new) => start_over(&view, new),
        Sandbox::NotWorthIt => done,
    }
}

/// In a new sandbox everything begins again, except containers that are done for good (N-36).
fn start_over(view: &View, new: NewSandbox) -> Plan {
    let mut plan = Plan::default();
    // Containers may be left over from a sandbox of which nothing else is known.
    if new.changed || view.observed.any_running() {
        plan.end_all = Some(EndAll::Sandbox);
    }
    plan.sandbox = Some(new);
    match init_containers(view.spec).next() {
        Some((kind, first)) => view.start(&mut plan, kind, 0, first),
        None => {
            for (index, container) in view.spec.containers.iter().enumerate() {
                if regular::is_wanted(view, container) {
                    view.start(&mut plan, Kind::Regular, index, container);
                }
            }
        }
    }
    plan
}

/// The sandbox is good: look after what is in it.
fn go_on(view: &View, sandbox: &str) -> Plan {
    let mut plan = Plan { reset: restart_all::resets(view, sandbox), ..Plan::default() };
    if !plan.reset.is_empty() {
        return plan;
    }
    for (index, container) in ephemeral_containers(view.spec).iter().enumerate() {
        // Never restarted, whatever became of it (N-42).
        if view.observed.latest(&container.name).is_none() {
            view.start_ephemeral(&mut plan, index, container);
        }
    }
    match init::look_after(view, sandbox, &mut plan) {
        Init::Unfinished => plan,
        Init::Failed => Plan { end_all: Some(EndAll::Done), ..Plan::default() },
        Init::Finished => {
            if regular::look_after(view, &mut plan) == Regular::Over {
                return Plan { end_all: Some(EndAll::Done), ..Plan::default() };
            }
            plan
        }
    }
}

fn is_finished(pod: &Pod) -> bool {
    pod.status.as_ref().is_some_and(crate::status::is_terminal)
}

#[cfg(test)]
mod tests;
