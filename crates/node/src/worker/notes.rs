//! What a worker tells the timeline of its pod's ending.
//!
//! Only of the ending of the whole pod: a container that is restarted has events. A static pod has no
//! object of its own in the API, and no record.

use super::{Cause, Worker};
use crate::static_pods::is_static;
use crate::timeline::{self, Timeline, stamp};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use lifecycle::observed::{Container, Observed, State};
use lifecycle::timeline::{OUTPUT_MAX, Request, Stamp, What, clip};
use nix::sys::signal::Signal;
use runtime::Runtime;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Deletion times are whole seconds.
const SECOND: SignedDuration = SignedDuration::from_secs(1);

/// What was told so far.
#[derive(Default)]
pub(super) struct Notes {
    /// Why it ends, and when that was seen.
    seen: Option<(Cause, Stamp)>,
    begun: bool,
    /// There is nothing to tell: it had ended before this agent looked.
    quiet: bool,
    /// Ids of containers whose end was told.
    exits: BTreeSet<String>,
}

/// What a shim needs to send a signal, in nanoseconds. It rests otherwise, so that it gets its turn at
/// once.
const SENT_WITHIN: i64 = 2_000_000;

/// Tells from a task of its own.
#[derive(Clone)]
pub(super) struct Teller {
    timeline: Timeline,
    pod: Arc<Pod>,
    container: String,
}

impl Teller {
    pub(super) fn tell(&self, at: Stamp, what: What) {
        self.timeline.record_at(&self.pod, &self.container, at, what, "");
    }

    /// The stop signal was sent between `asked` and now: half-way, if the runtime answers at once. But
    /// the exit may lie in between as well, if the runtime waits for it or this process waited for its
    /// turn on a busy machine, and only `asked` is certainly before it.
    pub(super) async fn stop_sent(&self, runtime: &Arc<dyn Runtime>, id: &str, asked: Stamp) {
        let now = stamp();
        let prompt = runtime.features().prompt_stop;
        let half =
            ((now.monotonic - asked.monotonic) / 2).min(if prompt { SENT_WITHIN } else { 0 });
        let at = Stamp {
            at: asked.at.checked_add(SignedDuration::from_nanos(half)).unwrap_or(asked.at),
            monotonic: asked.monotonic + half,
        };
        let signal = match runtime.stop_signal(id).await {
            Some(number) => signal_name(number),
            None => self.stop_signal(),
        };
        let target = "process 1".to_owned();
        self.tell(at, What::Signal { signal, target, reason: String::new() });
    }

    pub(super) fn killed(&self, at: Stamp) {
        let (signal, target) = ("SIGKILL".to_owned(), "all processes".to_owned());
        self.tell(at, What::Signal { signal, target, reason: "the time is up".into() });
    }

    pub(super) fn hook_ended(&self, succeeded: bool, said: crate::probes::Said) {
        let crate::probes::Said { exit_code, http_status, mut output } = said;
        clip(&mut output, OUTPUT_MAX);
        self.tell(stamp(), What::HookEnded { succeeded, exit_code, http_status, output });
    }

    /// What the spec says, or what nearly all images mean.
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
    /// From now on it ends.
    pub(super) fn note_seen(&mut self, cause: &Cause) {
        self.notes.seen = Some((cause.clone(), stamp()));
    }

    pub(super) fn note(&self, what: What) {
        if self.is_noted() {
            self.parts.timeline.record(&self.pod, what);
        }
    }

    /// For what happens to one container while the whole pod ends.
    pub(super) fn teller(&self, container: &str) -> Option<Teller> {
        self.is_noted().then(|| Teller {
            timeline: self.parts.timeline.clone(),
            pod: self.pod.clone(),
            container: container.to_owned(),
        })
    }

    fn is_noted(&self) -> bool {
        !self.notes.quiet && !is_static(&self.pod)
    }

    /// The first thing that is told. A pod that had finished before this agent looked has been told of.
    pub(super) fn note_beginning(&mut self, observed: &Observed, grace: Duration) {
        let Some((cause, at)) = self.notes.seen.clone().filter(|_| !self.notes.begun) else {
            return;
        };
        self.notes.begun = true;
        self.notes.quiet = cause == Cause::Finished && !observed.any_running();
        let seconds = i64::try_from(grace.as_secs()).ok();
        let grace_seconds = seconds.filter(|_| observed.any_running());
        if let Some(teller) = self.teller("") {
            if cause == Cause::Killed {
                teller.tell(at, What::Requested(self.own_request(at, seconds)));
            }
            teller.tell(at, What::Seen { grace_seconds, reason: format!("{cause:?}") });
        }
        self.note_exits(observed);
    }

    /// The node decided by itself.
    fn own_request(&self, at: Stamp, grace: Option<i64>) -> Request {
        let reason = self.verdict.as_ref().map_or("", |verdict| verdict.reason.as_str());
        let through = match reason {
            "Evicted" => "node pressure",
            "Terminated" => "node shutdown",
            "Preempting" => "preemption",
            "DeadlineExceeded" => "active deadline",
            other => other,
        };
        let grace_left = grace.map(SignedDuration::from_secs);
        Request {
            by: format!("system:node:{}", self.parts.facts.name),
            through: through.to_owned(),
            grace_seconds: grace,
            deadline: grace_left.and_then(|left| at.at.checked_add(left).ok()),
            ..Request::default()
        }
    }

    /// What has ended since: each container's newest instance, once, with the time the runtime noted.
    pub(super) fn note_exits(&mut self, observed: &Observed) {
        if !self.notes.begun || !self.is_noted() {
            return;
        }
        let since = self.since();
        let mut names = BTreeSet::new();
        for container in &observed.containers {
            let newest = names.insert(container.name.clone());
            if newest && !self.notes.exits.contains(&container.id) {
                self.note_exit(container, since);
            }
        }
    }

    fn note_exit(&mut self, container: &Container, since: Option<Timestamp>) {
        let (at, what) = match &container.state {
            State::Exited(exit) if since.is_none_or(|since| exit.finished_at >= since) => {
                let signal = exit.signal.map(signal_name).unwrap_or_default();
                let oom = exit.reason == "OOMKilled";
                let what = What::Exited { exit_code: exit.code, signal, oom };
                (timeline::when(exit.finished_at), what)
            }
            State::Unknown => (stamp(), What::Lost),
            State::Exited(_) | State::Created | State::Running { .. } => return,
        };
        self.notes.exits.insert(container.id.clone());
        self.parts.timeline.record_once(&self.pod, &container.name, &container.id, at, what);
    }

    /// Exits before this belong to the pod's life. None: all of them are its end.
    fn since(&self) -> Option<Timestamp> {
        let (cause, seen) = self.notes.seen.as_ref()?;
        if matches!(cause, Cause::Completed | Cause::Finished) {
            return None;
        }
        let deadline = self.pod.metadata.deletion_timestamp.as_ref().map(|time| time.0);
        let grace = self.pod.metadata.deletion_grace_period_seconds.unwrap_or(0);
        let asked = deadline
            .and_then(|deadline| deadline.checked_sub(SignedDuration::from_secs(grace)).ok());
        let began = asked.map_or(seen.at, |asked| asked.min(seen.at));
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
