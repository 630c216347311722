//! What follows from the steps: who asked, how it came out, and one sentence that says why.

use super::{Request, Step, Termination, What, span};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// How an ending came out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// Not over yet.
    #[default]
    Ending,
    /// Everything ended within its time.
    Clean,
    /// At least one container did not, and was killed.
    Killed,
    /// Nobody asked: its containers were done.
    Completed,
    /// The object was removed before the node had said that nothing of the pod runs.
    Forced,
    /// How a container ended is not known.
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

impl Termination {
    /// Derives everything else from the steps.
    pub(super) fn settle(&mut self) {
        self.started = started(&self.steps);
        self.confirmed = self.has(|what| matches!(what, What::SandboxStopped));
        self.ended = self.end();
        let counts = |step: &&Step| self.ended.is_none_or(|ended| step.at <= ended);
        self.request = request(self.steps.iter().filter(counts));
        self.outcome = self.judge();
        self.summary = self.sentence();
    }

    fn has(&self, is: impl Fn(&What) -> bool) -> bool {
        self.steps.iter().any(|step| is(&step.what))
    }

    fn first(&self, is: impl Fn(&What) -> bool) -> Option<Timestamp> {
        self.steps.iter().find(|step| is(&step.what)).map(|step| step.at)
    }

    /// With a deletion it is over when the object is gone and nothing runs; without one, when the
    /// API knows how it ended, whatever becomes of the object later.
    fn end(&self) -> Option<Timestamp> {
        let removed = self.first(|what| matches!(what, What::Removed));
        let stopped = self.first(|what| matches!(what, What::SandboxStopped));
        if self.has(|what| matches!(what, What::UnsafeByRequest { .. })) {
            return Some(removed?.max(stopped?));
        }
        let told = self.first(|what| matches!(what, What::StatusWritten));
        let deleted = self.deleted();
        let kept = told.filter(|told| deleted.is_none_or(|deleted| deleted > *told));
        kept.filter(|_| stopped.is_some()).or(removed)
    }

    /// When the API was asked to delete it.
    fn deleted(&self) -> Option<Timestamp> {
        let by_the_server =
            |step: &&Step| step.actor == super::SERVER && matches!(step.what, What::Requested(_));
        self.steps.iter().find(by_the_server).map(|step| step.at)
    }

    fn judge(&self) -> Outcome {
        if self.has(|what| matches!(what, What::UnsafeByRequest { .. })) {
            return Outcome::Forced;
        }
        if self.ended.is_none() {
            return Outcome::Ending;
        }
        if self.has(|what| matches!(what, What::Lost)) {
            return Outcome::Lost;
        }
        if self.kills().next().is_some() {
            return Outcome::Killed;
        }
        if self.completed() { Outcome::Completed } else { Outcome::Clean }
    }

    /// The first thing that the node said is that nobody had to end it.
    fn completed(&self) -> bool {
        let seen = self.steps.iter().find_map(|step| match &step.what {
            What::Seen { reason, .. } => Some(reason.as_str()),
            _ => None,
        });
        matches!(seen, Some("Completed" | "Finished"))
    }

    /// Containers that were still there when their time was up.
    fn kills(&self) -> impl Iterator<Item = &Step> {
        self.steps
            .iter()
            .filter(|step| matches!(&step.what, What::Signal { signal, .. } if signal == "SIGKILL"))
    }

    fn sentence(&self) -> String {
        let mut parts = Vec::new();
        if let Some(by) = self.forced_by() {
            let fate = if self.confirmed { "confirmed later" } else { "may still run" };
            parts.push(format!("unsafe by request of {by}: {fate}"));
        }
        if self.has(|what| matches!(what, What::Lost)) {
            parts.push("how a container ended is not known".to_owned());
        }
        for step in &self.steps {
            parts.extend(self.remark(step));
        }
        let exits = self.steps.iter().filter(|step| matches!(step.what, What::Exited { .. }));
        if parts.is_empty() && exits.count() > 0 && self.outcome == Outcome::Clean {
            parts.push("everything ended in time".to_owned());
        }
        let mut text = parts.join("; ");
        super::clip(&mut text, SENTENCE_MAX);
        text
    }

    /// The first who is known; else that somebody was.
    fn forced_by(&self) -> Option<&str> {
        let mut all = self.steps.iter().filter_map(|step| match &step.what {
            What::UnsafeByRequest { by } => Some(by.as_str()),
            _ => None,
        });
        all.clone().find(|by| *by != super::UNKNOWN).or_else(|| all.next())
    }

    /// What somebody who looks for lost requests would want to know (W-35).
    fn remark(&self, step: &Step) -> Option<String> {
        let container = &step.container;
        match &step.what {
            What::HookOverran => Some(format!("{container}: the preStop hook took all the time")),
            What::HookEnded { succeeded: false, exit_code, .. } => Some(match exit_code {
                Some(code) => format!("{container}: the preStop hook failed with {code}"),
                None => format!("{container}: the preStop hook failed"),
            }),
            What::Exited { oom: true, .. } => Some(format!("{container} ran out of memory")),
            What::Exited { signal, .. }
                if signal == "SIGKILL" || signal.is_empty() && self.killed_before(step) =>
            {
                let stop = self.stop_before(step)?;
                let What::Signal { signal, .. } = &stop.what else { return None };
                let patience = span(step.at.duration_since(stop.at));
                Some(format!(
                    "{container} did not end within {patience} of {signal} and was killed"
                ))
            }
            What::Exited { signal, .. } if !signal.is_empty() => {
                let asked = self.stop_before(step)?;
                let same =
                    matches!(&asked.what, What::Signal { signal: sent, .. } if sent == signal);
                same.then(|| format!("{container} has no handler for {signal} and died of it"))
            }
            _ => None,
        }
    }

    /// CRI runtimes do not say which signal ended a container; who was killed is known all the same.
    fn killed_before(&self, exit: &Step) -> bool {
        let killed =
            self.kills().any(|kill| kill.container == exit.container && kill.at <= exit.at);
        killed && matches!(exit.what, What::Exited { exit_code: 137, .. })
    }

    /// The stop signal that this exit answers.
    pub(super) fn stop_before(&self, exit: &Step) -> Option<&Step> {
        self.steps.iter().find(|step| {
            step.container == exit.container
                && matches!(&step.what, What::Signal { signal, .. } if signal != "SIGKILL")
        })
    }
}

/// A summary is one line of a table.
const SENTENCE_MAX: usize = 512;

/// The first request, with what later ones left of its time.
fn request<'a>(steps: impl Iterator<Item = &'a Step> + Clone) -> Option<Request> {
    let mut requests = steps.filter_map(|step| match &step.what {
        What::Requested(request) => Some((true, request)),
        What::Shortened(request) => Some((false, request)),
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
    let asked = |step: &&Step| matches!(step.what, What::Requested(_) | What::Seen { .. });
    steps.iter().find(asked).or(steps.first()).map(|step| step.at)
}
