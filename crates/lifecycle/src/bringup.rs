//! Decides what to do next so that a pod's containers run: sandbox, containers to kill, containers to start.
//!
//!     observed ──▶ plan ──▶ the node kills, makes a sandbox, starts ──▶ observed
//!
//! Stateless (N-35): it depends only on the spec and on what was observed, and returns the same plan until that
//! changes. Not here: how a container terminates (`termination`), its status (`status`).

mod init;
mod regular;
mod restart_all;
mod sandbox;
mod view;

use crate::backoff::Backoffs;
use crate::containers::{Kind, ephemeral_containers, init_containers};
use crate::observed::{Observed, StartFailure};
use crate::status::is_terminal_pod;
use init::Init;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use regular::Regular;
use sandbox::Sandbox;
use std::time::Duration;
use view::View;

/// The work of one pass, performed from top to bottom. A default plan changes nothing.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Plan {
    /// First terminate every running container with the pod's own grace period, and stop every sandbox.
    pub end_all: Option<EndAll>,
    /// RestartAllContainers: terminate these without hook (grace period 0) and remove them, in this order, then plan
    /// again. Such a plan contains nothing else (T-NODE-68).
    pub reset: Vec<Reset>,
    /// Terminate these, one after another.
    pub kill: Vec<ContainerKill>,
    /// Create a sandbox before anything is started.
    pub sandbox: Option<NewSandbox>,
    /// Start these one after another, in this order. See [`Start::failure_ends_pass`].
    pub start: Vec<Start>,
    /// These wait for their back-off.
    pub waiting: Vec<Waiting>,
}

/// Why all containers are terminated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndAll {
    /// The sandbox cannot be used, or does not exist. If one existed, [`NewSandbox::changed`] is set.
    Sandbox,
    /// No container of this pod will be started again: it has succeeded or failed.
    Done,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSandbox {
    pub attempt: u32,
    /// There was one before: the event `SandboxChanged` is recorded (N-36).
    pub changed: bool,
}

/// Text of the event `SandboxChanged` (N-36).
pub const SANDBOX_CHANGED: &str = "Pod sandbox changed, it will be killed and re-created.";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reset {
    pub id: String,
    pub name: String,
    pub kind: Kind,
    pub running: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerKill {
    pub id: String,
    pub name: String,
    pub kind: Kind,
    pub why: KillReason,
    /// Text of the event `Killing` (T-NODE-17).
    pub message: String,
    /// A probe may have its own grace period (T-NODE-18).
    pub grace: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KillReason {
    Changed,
    Liveness,
    Startup,
    /// It was granted other resources, and its resize policy requires a restart (N-120).
    Resized,
    /// It may still run; it must not run twice.
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Start {
    pub name: String,
    pub kind: Kind,
    /// Its position in its list of the spec: `initContainers`, `containers` or `ephemeralContainers`.
    pub index: usize,
    /// Its restart count (N-48).
    pub attempt: u32,
    /// It ran before: [`Start::note`] counts the attempt for its back-off.
    pub again: Option<Again>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Again {
    pub key: String,
    pub finished_at: Timestamp,
}

impl Start {
    /// An init container that fails to start ends the pass; other failures do not (N-40, N-41).
    pub fn failure_ends_pass(&self) -> bool {
        self.kind == Kind::Init
    }

    /// Counts the attempt for the back-off (T-NODE-65).
    pub fn note(&self, backoffs: &mut Backoffs, now: Timestamp) {
        if let Some(again) = &self.again {
            backoffs.failed(&again.key, again.finished_at, now);
        }
    }
}

/// A container in crash back-off (T-NODE-66).
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
    /// The entry of `Observed::failures` while it waits.
    pub fn failure(&self) -> StartFailure {
        StartFailure { reason: "CrashLoopBackOff".into(), message: self.message.clone() }
    }
}

impl Plan {
    /// When the first back-off is over, and the next plan is due (N-33).
    pub fn next_due(&self) -> Option<Timestamp> {
        self.waiting.iter().map(|waiting| waiting.until).min()
    }

    /// The pod has succeeded or failed.
    pub fn is_done(&self) -> bool {
        self.end_all == Some(EndAll::Done)
    }
}

/// Decides what to do now. `pod.status` is the status that the node computed last.
pub fn plan(pod: &Pod, observed: &Observed, backoffs: &Backoffs, now: Timestamp) -> Plan {
    let done = Plan { end_all: Some(EndAll::Done), ..Plan::default() };
    let Some(spec) = &pod.spec else { return done };
    // A terminating or terminated pod never starts containers again (T-NODE-1).
    if pod.metadata.deletion_timestamp.is_some() || is_terminal_pod(pod) {
        return done;
    }
    let view = View { pod, spec, observed, backoffs, now };
    match sandbox::wanted(&view) {
        Sandbox::Good(id) => continue_in(&view, id),
        Sandbox::New(new) => start_over(&view, new),
        Sandbox::NotWorthIt => done,
    }
}

/// In a new sandbox all containers start again, except those that have finished for good (N-36).
fn start_over(view: &View, new: NewSandbox) -> Plan {
    let mut plan = Plan::default();
    // Containers may remain of a sandbox that is otherwise unknown.
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

/// The sandbox can be used: decide about its containers.
fn continue_in(view: &View, sandbox: &str) -> Plan {
    let mut plan = Plan { reset: restart_all::resets(view, sandbox), ..Plan::default() };
    if !plan.reset.is_empty() {
        return plan;
    }
    for (index, container) in ephemeral_containers(view.spec).iter().enumerate() {
        // Never restarted (N-42).
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

#[cfg(test)]
mod tests;
