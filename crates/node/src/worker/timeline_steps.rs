//! The steps that a worker records in the timeline of its pod's termination.
//!
//! Only the termination of the whole pod has a timeline; a container that is restarted has events. A
//! static pod has no object of its own in the API, and no timeline.

use super::termination::TerminationRun;
use super::{Cause, Worker};
use crate::static_pods::is_static;
use crate::timeline::{self, Timeline, stamp};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use lifecycle::observed::{Container, Observed, State};
use lifecycle::timeline::{OUTPUT_MAX, Request, Stamp, StepKind, clip};
use nix::sys::signal::Signal;
use runtime::Runtime;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Deletion timestamps are whole seconds.
const SECOND: SignedDuration = SignedDuration::from_secs(1);

/// At most this many nanoseconds after the request a shim has sent the signal. It is idle otherwise, so
/// the kernel runs it at once.
const SENT_WITHIN: i64 = 2_000_000;

/// What was recorded so far.
#[derive(Default)]
pub(super) struct TerminationSteps {
    /// Why the pod terminates, and when the worker noticed.
    cause: Option<(Cause, Stamp)>,
    begun: bool,
    /// Nothing is recorded: the pod had terminated before this agent observed it.
    silent: bool,
    /// Ids of containers whose exit was recorded.
    exits: BTreeSet<String>,
}

/// Records steps of one container, also from a task beside the worker.
#[derive(Clone)]
pub(super) struct ContainerSteps {
    timeline: Timeline,
    pod: Arc<Pod>,
    container: String,
}

impl ContainerSteps {
    pub(super) fn record(&self, at: Stamp, what: StepKind) {
        self.timeline.record_at(&self.pod, &self.container, at, what, "");
    }

    /// The stop signal was sent between `requested` and now: half-way, if the runtime answers at once. But
    /// the exit may be in between as well, if the runtime waits for it or this process had to wait for a
    /// processor, and only `requested` is certainly before it.
    pub(super) async fn stop_sent(&self, runtime: &Arc<dyn Runtime>, id: &str, requested: Stamp) {
        let elapsed = stamp().monotonic - requested.monotonic;
        let limit = if runtime.features().prompt_stop { SENT_WITHIN } else { 0 };
        let half = (elapsed / 2).min(limit);
        let at = requested.at.checked_add(SignedDuration::from_nanos(half)).unwrap_or(requested.at);
        let at = Stamp { at, monotonic: requested.monotonic + half };
        let signal = match runtime.stop_signal(id).await {
            Some(number) => signal_name(number),
            None => self.stop_signal(),
        };
        let target = "process 1".to_owned();
        self.record(at, StepKind::Signal { signal, target, reason: String::new() });
    }

    pub(super) fn killed(&self, at: Stamp) {
        let (signal, target) = ("SIGKILL".to_owned(), "all processes".to_owned());
        self.record(
            at,
            StepKind::Signal { signal, target, reason: "the grace period is over".into() },
        );
    }

    pub(super) fn hook_ended(&self, succeeded: bool, result: crate::probes::HookOutput) {
        let crate::probes::HookOutput { exit_code, http_status, text: mut output } = result;
        clip(&mut output, OUTPUT_MAX);
        self.record(stamp(), StepKind::HookEnded { succeeded, exit_code, http_status, output });
    }

    /// The signal in the spec, or the one that nearly all images use.
    fn stop_signal(&self) -> String {
        let spec = self.pod.spec.as_ref();
        let mut all = spec
            .into_iter()
            .flat_map(|spec| spec.containers.iter().chain(spec.init_containers.iter().flatten()));
        let container = all.find(|container| container.name == self.container);
        let lifecycle = container.and_then(|container| container.lifecycle.as_ref());
        lifecycle.and_then(|it| it.stop_signal.clone()).unwrap_or_else(|| "SIGTERM".into())
    }
}

impl Worker {
    /// Remembers why and since when the pod terminates; [`Worker::record_begin`] records it.
    pub(super) fn record_cause(&mut self, cause: &Cause) {
        self.steps.cause = Some((cause.clone(), stamp()));
    }

    pub(super) fn record_step(&self, what: StepKind) {
        if self.has_timeline() {
            self.deps.timeline.record(&self.pod, what);
        }
    }

    /// None: only some containers of the pod terminate, which is not part of its timeline.
    pub(super) fn steps_of(&self, run: &TerminationRun, id: &str) -> Option<ContainerSteps> {
        let member = run.member(id).filter(|_| run.whole_pod)?;
        self.container_steps(&member.name)
    }

    fn container_steps(&self, container: &str) -> Option<ContainerSteps> {
        self.has_timeline().then(|| ContainerSteps {
            timeline: self.deps.timeline.clone(),
            pod: self.pod.clone(),
            container: container.to_owned(),
        })
    }

    fn has_timeline(&self) -> bool {
        !self.steps.silent && !is_static(&self.pod)
    }

    /// The first steps. The timeline of a pod that had finished before this agent started is complete.
    pub(super) fn record_begin(&mut self, observed: &Observed, grace: Duration) {
        let Some((cause, at)) = self.steps.cause.clone().filter(|_| !self.steps.begun) else {
            return;
        };
        self.steps.begun = true;
        self.steps.silent = cause == Cause::Finished && !observed.any_running();
        let seconds = i64::try_from(grace.as_secs()).ok();
        let grace_seconds = seconds.filter(|_| observed.any_running());
        if let Some(steps) = self.container_steps("") {
            if cause == Cause::Killed {
                steps.record(at, StepKind::Requested(self.own_request(at, seconds)));
            }
            steps.record(at, StepKind::Seen { grace_seconds, reason: format!("{cause:?}") });
        }
        self.record_exits(observed);
    }

    /// The request, if the node itself decided to terminate the pod.
    fn own_request(&self, at: Stamp, grace: Option<i64>) -> Request {
        let reason = self.status.verdict.as_ref().map_or("", |verdict| verdict.reason.as_str());
        let through = match reason {
            "Evicted" => "node pressure",
            "Terminated" => "node shutdown",
            "Preempting" => "preemption",
            "DeadlineExceeded" => "active deadline",
            other => other,
        };
        let grace_left = grace.map(SignedDuration::from_secs);
        Request {
            by: format!("system:node:{}", self.deps.facts.name),
            through: through.to_owned(),
            grace_seconds: grace,
            deadline: grace_left.and_then(|left| at.at.checked_add(left).ok()),
            ..Request::default()
        }
    }

    /// Records the exit of each container's newest instance, once, with the time at which the runtime
    /// observed it.
    pub(super) fn record_exits(&mut self, observed: &Observed) {
        if !self.steps.begun || !self.has_timeline() {
            return;
        }
        let since = self.termination_began();
        let mut names = BTreeSet::new();
        for container in &observed.containers {
            let newest = names.insert(container.name.clone());
            if newest && !self.steps.exits.contains(&container.id) {
                self.record_exit(container, since);
            }
        }
    }

    fn record_exit(&mut self, container: &Container, since: Option<Timestamp>) {
        let (at, what) = match &container.state {
            State::Exited(exit) if since.is_none_or(|since| exit.finished_at >= since) => {
                let signal = exit.signal.map(signal_name).unwrap_or_default();
                let oom = exit.reason == "OOMKilled";
                let what = StepKind::Exited { exit_code: exit.code, signal, oom };
                (timeline::when(exit.finished_at), what)
            }
            State::Unknown => (stamp(), StepKind::Lost),
            State::Exited(_) | State::Created | State::Running { .. } => return,
        };
        self.steps.exits.insert(container.id.clone());
        self.deps.timeline.record_once(&self.pod, &container.name, &container.id, at, what);
    }

    /// Earlier exits are not part of the termination. None: all exits are.
    fn termination_began(&self) -> Option<Timestamp> {
        let (cause, noticed) = self.steps.cause.as_ref()?;
        if matches!(cause, Cause::Completed | Cause::Finished) {
            return None;
        }
        let deadline = self.pod.metadata.deletion_timestamp.as_ref().map(|time| time.0);
        let grace = self.pod.metadata.deletion_grace_period_seconds.unwrap_or(0);
        let requested = deadline
            .and_then(|deadline| deadline.checked_sub(SignedDuration::from_secs(grace)).ok());
        let began = requested.map_or(noticed.at, |requested| requested.min(noticed.at));
        began.checked_sub(SECOND).ok()
    }
}

/// `SIGTERM`, or `signal 34`.
fn signal_name(number: i32) -> String {
    match Signal::try_from(number) {
        Ok(signal) => signal.as_str().to_owned(),
        Err(_) => format!("signal {number}"),
    }
}
