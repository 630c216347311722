//! What is derived from the steps: the request, the outcome, and one sentence with the reason.

use super::{Request, Step, StepKind, TerminationRecord, span};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// The outcome of a termination. These names are part of the API.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// Not finished.
    #[default]
    Ending,
    /// All containers stopped within the grace period.
    Clean,
    /// At least one container did not stop in time and was killed.
    Killed,
    /// Not requested: the containers had finished.
    Completed,
    /// The object was removed before the node had reported that no process is left.
    Forced,
    /// The exit of a container was not observed.
    Lost,
}

impl Outcome {
    pub fn word(self) -> &'static str {
        match self {
            Outcome::Ending => "Ending",
            Outcome::Clean => "Clean",
            Outcome::Killed => "Killed",
            Outcome::Completed => "Completed",
            Outcome::Forced => "Forced",
            Outcome::Lost => "Lost",
        }
    }
}

impl TerminationRecord {
    /// Derives all other fields from the steps.
    pub(super) fn settle(&mut self) {
        self.started = started(&self.steps);
        self.confirmed = self.has(|what| matches!(what, StepKind::SandboxStopped));
        self.ended = self.end();
        let counts = |step: &&Step| self.ended.is_none_or(|ended| step.at <= ended);
        self.request = request(self.steps.iter().filter(counts));
        self.outcome = self.judge();
        self.summary = self.sentence();
    }

    fn has(&self, is: impl Fn(&StepKind) -> bool) -> bool {
        self.steps.iter().any(|step| is(&step.what))
    }

    fn first(&self, is: impl Fn(&StepKind) -> bool) -> Option<Timestamp> {
        self.steps.iter().find(|step| is(&step.what)).map(|step| step.at)
    }

    /// After a deletion: when the object is gone and nothing runs. Without a deletion: when the API has the terminal
    /// status.
    fn end(&self) -> Option<Timestamp> {
        let removed = self.first(|what| matches!(what, StepKind::Removed));
        let stopped = self.first(|what| matches!(what, StepKind::SandboxStopped));
        if self.has(|what| matches!(what, StepKind::UnsafeByRequest { .. })) {
            return Some(removed?.max(stopped?));
        }
        let reported = self.first(|what| matches!(what, StepKind::StatusWritten));
        let deleted = self.deleted();
        let kept = reported.filter(|reported| deleted.is_none_or(|deleted| deleted > *reported));
        kept.filter(|_| stopped.is_some()).or(removed)
    }

    /// When its deletion was requested.
    fn deleted(&self) -> Option<Timestamp> {
        let by_the_server = |step: &&Step| {
            step.actor == super::SERVER && matches!(step.what, StepKind::Requested(_))
        };
        self.steps.iter().find(by_the_server).map(|step| step.at)
    }

    fn judge(&self) -> Outcome {
        if self.has(|what| matches!(what, StepKind::UnsafeByRequest { .. })) {
            return Outcome::Forced;
        }
        if self.ended.is_none() {
            return Outcome::Ending;
        }
        if self.has(|what| matches!(what, StepKind::Lost)) {
            return Outcome::Lost;
        }
        if self.kills().next().is_some() {
            return Outcome::Killed;
        }
        if self.completed() { Outcome::Completed } else { Outcome::Clean }
    }

    /// The node terminated the pod because its containers had finished.
    fn completed(&self) -> bool {
        let seen = self.steps.iter().find_map(|step| match &step.what {
            StepKind::Seen { reason, .. } => Some(reason.as_str()),
            _ => None,
        });
        matches!(seen, Some("Completed" | "Finished"))
    }

    /// Containers that were killed at the end of the grace period.
    fn kills(&self) -> impl Iterator<Item = &Step> {
        self.steps.iter().filter(
            |step| matches!(&step.what, StepKind::Signal { signal, .. } if signal == "SIGKILL"),
        )
    }

    fn sentence(&self) -> String {
        let mut parts = Vec::new();
        if let Some(by) = self.forced_by() {
            let fate = if self.confirmed { "confirmed later" } else { "may still run" };
            parts.push(format!("unsafe by request of {by}: {fate}"));
        }
        if self.has(|what| matches!(what, StepKind::Lost)) {
            parts.push("a container's exit was not observed".to_owned());
        }
        for step in &self.steps {
            parts.extend(self.remark(step));
        }
        let exits = self.steps.iter().filter(|step| matches!(step.what, StepKind::Exited { .. }));
        if parts.is_empty() && exits.count() > 0 && self.outcome == Outcome::Clean {
            parts.push("all containers exited in time".to_owned());
        }
        let mut text = parts.join("; ");
        super::clip(&mut text, SENTENCE_MAX);
        text
    }

    /// The first known requester, else a placeholder.
    fn forced_by(&self) -> Option<&str> {
        let mut all = self.steps.iter().filter_map(|step| match &step.what {
            StepKind::UnsafeByRequest { by } => Some(by.as_str()),
            _ => None,
        });
        all.clone().find(|by| *by != super::UNKNOWN).or_else(|| all.next())
    }

    /// Facts that matter to a person who looks for lost requests (W-35).
    fn remark(&self, step: &Step) -> Option<String> {
        let container = &step.container;
        match &step.what {
            StepKind::DrainTimedOut { missing } if !missing.is_empty() => {
                Some(format!("stopped while {} was still missing", missing.join(", ")))
            }
            StepKind::HookOverran => {
                Some(format!("{container}: the preStop hook used the whole grace period"))
            }
            StepKind::HookEnded { succeeded: false, exit_code, .. } => Some(match exit_code {
                Some(code) => format!("{container}: the preStop hook failed with {code}"),
                None => format!("{container}: the preStop hook failed"),
            }),
            StepKind::Exited { oom: true, .. } => Some(format!("{container} ran out of memory")),
            StepKind::Exited { signal, .. }
                if signal == "SIGKILL" || signal.is_empty() && self.killed_before(step) =>
            {
                let stop = self.stop_before(step)?;
                let StepKind::Signal { signal, .. } = &stop.what else { return None };
                let patience = span(step.at.duration_since(stop.at));
                Some(format!(
                    "{container} did not exit within {patience} of {signal} and was killed"
                ))
            }
            StepKind::Exited { signal, .. } if !signal.is_empty() => {
                let stop = self.stop_before(step)?;
                let same =
                    matches!(&stop.what, StepKind::Signal { signal: sent, .. } if sent == signal);
                same.then(|| {
                    format!("{container} has no handler for {signal} and was terminated by it")
                })
            }
            _ => None,
        }
    }

    /// CRI runtimes do not report which signal ended a container, but our own kills are in the steps.
    fn killed_before(&self, exit: &Step) -> bool {
        let killed =
            self.kills().any(|kill| kill.container == exit.container && kill.at <= exit.at);
        killed && matches!(exit.what, StepKind::Exited { exit_code: 137, .. })
    }

    /// The stop signal before this exit.
    pub(super) fn stop_before(&self, exit: &Step) -> Option<&Step> {
        self.steps.iter().find(|step| {
            step.container == exit.container
                && matches!(&step.what, StepKind::Signal { signal, .. } if signal != "SIGKILL")
        })
    }
}

/// Largest summary: one line of a table.
const SENTENCE_MAX: usize = 512;

/// The first request with the grace period of the latest one.
fn request<'a>(steps: impl Iterator<Item = &'a Step> + Clone) -> Option<Request> {
    let mut requests = steps.filter_map(|step| match &step.what {
        StepKind::Requested(request) => Some((true, request)),
        StepKind::Shortened(request) => Some((false, request)),
        _ => None,
    });
    let (_, first) = requests.clone().find(|(first, _)| *first).or_else(|| requests.next())?;
    let mut settled = first.clone();
    for (_, later) in requests.filter(|(first, _)| !first) {
        settled.grace_seconds = later.grace_seconds;
        settled.deadline = later.deadline;
    }
    Some(settled)
}

fn started(steps: &[Step]) -> Option<Timestamp> {
    let begins = |step: &&Step| matches!(step.what, StepKind::Requested(_) | StepKind::Seen { .. });
    steps.iter().find(begins).or(steps.first()).map(|step| step.at)
}
