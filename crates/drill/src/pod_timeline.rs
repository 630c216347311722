//! What happened to one pod during a run, in seconds since the run began.
//!
//!     termination record (landfall) ──┐
//!                                     ├─▶ PodTimeline ──▶ attribution, plots
//!     pod as its watch showed it ─────┘
//!
//! Pure. A landfall cluster records every step; elsewhere the stop signal is inferred from what the API shows, and
//! `precise` is false. Not here: watching pods (`observer`).

use jiff::Timestamp;
use lifecycle::timeline::{StepKind, TerminationRecord};
use serde::Serialize;

/// What happened to the pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "what")]
pub enum PodEvent {
    Created,
    Ready,
    Deleted,
    HookStarted,
    HookEnded,
    StopSignal,
    Killed,
    Exited {
        code: i32,
    },
    /// Packet rules no longer send new connections to it.
    RulesChanged,
    NetworkGone,
    Removed,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Mark {
    /// Seconds since the run began.
    pub at: f64,
    #[serde(flatten)]
    pub event: PodEvent,
}

/// One pod of the workload.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct PodTimeline {
    pub name: String,
    #[serde(skip)]
    pub uid: String,
    pub node: String,
    /// The times come from a termination record, not from when a watch showed them.
    pub precise: bool,
    /// By time.
    pub marks: Vec<Mark>,
}

/// What a watch of pods showed of one pod, and when.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Observed {
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) node: String,
    pub(crate) created: Option<Timestamp>,
    pub(crate) ready: Option<Timestamp>,
    pub(crate) deleted: Option<Timestamp>,
    /// When the serving container was seen to have exited, and its code.
    pub(crate) exited: Option<(Timestamp, i32)>,
    pub(crate) removed: Option<Timestamp>,
}

/// Exit code of a process that SIGKILL ended.
const KILLED_CODE: i32 = 128 + 9;

impl PodTimeline {
    /// `container` serves the requests; `pre_stop` is the length of its sleep in seconds.
    pub(crate) fn build(
        observed: &Observed,
        record: Option<&TerminationRecord>,
        container: &str,
        pre_stop: u32,
        origin: Timestamp,
    ) -> PodTimeline {
        let since = |at: Timestamp| at.duration_since(origin).as_secs_f64();
        let mut timeline = PodTimeline {
            name: observed.name.clone(),
            uid: observed.uid.clone(),
            node: observed.node.clone(),
            precise: record.is_some(),
            marks: Vec::new(),
        };
        timeline.add(observed.created.map(since), PodEvent::Created);
        timeline.add(observed.ready.map(since), PodEvent::Ready);
        match record {
            Some(record) => timeline.add_record(record, container, &since),
            None => timeline.add_observed(observed, pre_stop, &since),
        }
        timeline.marks.sort_by(|a, b| a.at.total_cmp(&b.at));
        timeline
    }

    fn add(&mut self, at: Option<f64>, event: PodEvent) {
        self.marks.extend(at.map(|at| Mark { at, event }));
    }

    fn add_record(
        &mut self,
        record: &TerminationRecord,
        container: &str,
        since: &dyn Fn(Timestamp) -> f64,
    ) {
        let of_interest = |step: &&_| -> bool { is_about(step, container) };
        for step in record.steps.iter().filter(of_interest) {
            let event = match &step.what {
                StepKind::Requested(_) => PodEvent::Deleted,
                StepKind::HookStarted { .. } => PodEvent::HookStarted,
                StepKind::HookEnded { .. } | StepKind::HookOverran => PodEvent::HookEnded,
                StepKind::Signal { signal, .. } if signal == "SIGKILL" => PodEvent::Killed,
                StepKind::Signal { .. } => PodEvent::StopSignal,
                StepKind::Exited { exit_code, .. } => PodEvent::Exited { code: *exit_code },
                StepKind::RulesCommitted { .. } => PodEvent::RulesChanged,
                StepKind::NetworkGone => PodEvent::NetworkGone,
                StepKind::Removed => PodEvent::Removed,
                _ => continue,
            };
            self.add(Some(since(step.at)), event);
        }
    }

    fn add_observed(
        &mut self,
        observed: &Observed,
        pre_stop: u32,
        since: &dyn Fn(Timestamp) -> f64,
    ) {
        let deleted = observed.deleted.map(since);
        self.add(deleted, PodEvent::Deleted);
        let stopped = deleted.map(|at| at + f64::from(pre_stop));
        let exited = observed.exited.map(|(at, code)| (since(at), code));
        // A process that exits earlier has seen no stop signal.
        let stopped = stopped.filter(|at| exited.is_none_or(|(exit, _)| *at <= exit));
        if pre_stop > 0 && stopped.is_some() {
            self.add(deleted, PodEvent::HookStarted);
            self.add(stopped, PodEvent::HookEnded);
        }
        self.add(stopped, PodEvent::StopSignal);
        if let Some((at, code)) = exited {
            if code == KILLED_CODE {
                self.add(Some(at), PodEvent::Killed);
            }
            self.add(Some(at), PodEvent::Exited { code });
        }
        self.add(observed.removed.map(since), PodEvent::Removed);
    }

    /// The first time of an event.
    pub fn first(&self, is: impl Fn(PodEvent) -> bool) -> Option<f64> {
        self.marks.iter().find(|mark| is(mark.event)).map(|mark| mark.at)
    }

    fn last(&self, is: impl Fn(PodEvent) -> bool) -> Option<f64> {
        self.marks.iter().rev().find(|mark| is(mark.event)).map(|mark| mark.at)
    }

    pub fn created(&self) -> Option<f64> {
        self.first(|event| event == PodEvent::Created)
    }

    pub fn ready(&self) -> Option<f64> {
        self.first(|event| event == PodEvent::Ready)
    }

    pub fn deleted(&self) -> Option<f64> {
        self.first(|event| event == PodEvent::Deleted)
    }

    pub fn stop_signal(&self) -> Option<f64> {
        self.first(|event| event == PodEvent::StopSignal)
    }

    pub fn killed(&self) -> Option<f64> {
        self.first(|event| event == PodEvent::Killed)
    }

    /// When the serving container exited; if that was not seen, when the pod was gone.
    pub fn exited(&self) -> Option<f64> {
        self.first(|event| matches!(event, PodEvent::Exited { .. })).or_else(|| self.removed())
    }

    pub fn exit_code(&self) -> Option<i32> {
        self.marks.iter().find_map(|mark| match mark.event {
            PodEvent::Exited { code } => Some(code),
            _ => None,
        })
    }

    /// When the last node had changed its packet rules.
    pub fn rules_changed(&self) -> Option<f64> {
        self.last(|event| event == PodEvent::RulesChanged)
    }

    pub fn removed(&self) -> Option<f64> {
        self.first(|event| event == PodEvent::Removed)
    }

    /// How long the process took from its stop signal to its exit. None: it did not exit by itself.
    pub fn shutdown(&self) -> Option<f64> {
        if self.killed().is_some() {
            return None;
        }
        self.first(|event| matches!(event, PodEvent::Exited { .. }))
            .zip(self.stop_signal())
            .map(|(exit, stop)| (exit - stop).max(0.0))
    }
}

/// Steps without a container are about the whole pod.
fn is_about(step: &lifecycle::timeline::Step, container: &str) -> bool {
    step.container.is_empty() || step.container == container
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::json;

    pub(crate) fn origin() -> Timestamp {
        "2026-01-01T00:00:00Z".parse().unwrap()
    }

    fn at(seconds: f64) -> Timestamp {
        origin() + jiff::SignedDuration::from_millis((seconds * 1000.0) as i64)
    }

    fn record(steps: &[(f64, serde_json::Value)]) -> TerminationRecord {
        let steps: Vec<_> = steps
            .iter()
            .map(|(seconds, what)| {
                let mut step = json!({"at": at(*seconds).to_string(), "actor": "node/n"});
                for (key, value) in what.as_object().unwrap() {
                    step[key] = value.clone();
                }
                step
            })
            .collect();
        serde_json::from_value(json!({"metadata": {}, "pod": {"name": "a", "uid": "u"},
            "steps": steps}))
        .unwrap()
    }

    #[test]
    fn records_give_the_steps_of_the_serving_container() {
        let record = record(&[
            (1.0, json!({"what": "Requested", "by": "me"})),
            (1.1, json!({"what": "HookStarted", "hook": "sleep", "container": "web"})),
            (
                1.2,
                json!({"what": "Signal", "signal": "SIGTERM", "target": "process 1", "container": "log"}),
            ),
            (1.3, json!({"what": "Exited", "exitCode": 1, "container": "log"})),
            (3.1, json!({"what": "HookEnded", "succeeded": true, "container": "web"})),
            (
                3.2,
                json!({"what": "Signal", "signal": "SIGTERM", "target": "process 1", "container": "web"}),
            ),
            (3.3, json!({"what": "RulesCommitted"})),
            (4.3, json!({"what": "RulesCommitted"})),
            (5.2, json!({"what": "Exited", "exitCode": 0, "container": "web"})),
            (5.5, json!({"what": "Removed"})),
        ]);
        let observed = Observed { name: "a".into(), deleted: Some(at(1.5)), ..Observed::default() };
        let timeline = PodTimeline::build(&observed, Some(&record), "web", 2, origin());
        assert!(timeline.precise);
        assert_eq!(timeline.deleted(), Some(1.0));
        assert_eq!(timeline.stop_signal(), Some(3.2));
        assert_eq!(timeline.rules_changed(), Some(4.3));
        assert_eq!((timeline.exited(), timeline.exit_code()), (Some(5.2), Some(0)));
        assert_eq!(timeline.shutdown(), Some(2.0));
        assert_eq!(timeline.removed(), Some(5.5));
        assert_eq!(timeline.killed(), None);
    }

    #[test]
    fn without_a_record_the_stop_signal_follows_the_sleep() {
        let observed = Observed {
            deleted: Some(at(1.0)),
            exited: Some((at(6.0), 137)),
            removed: Some(at(6.5)),
            ..Observed::default()
        };
        let timeline = PodTimeline::build(&observed, None, "web", 3, origin());
        assert!(!timeline.precise);
        assert_eq!(timeline.stop_signal(), Some(4.0));
        assert_eq!((timeline.killed(), timeline.exited()), (Some(6.0), Some(6.0)));
        assert_eq!(timeline.shutdown(), None, "it was killed");
    }

    #[test]
    fn a_process_that_exits_during_its_hook_got_no_signal() {
        let observed =
            Observed { deleted: Some(at(1.0)), exited: Some((at(2.0), 0)), ..Observed::default() };
        let timeline = PodTimeline::build(&observed, None, "web", 3, origin());
        assert_eq!((timeline.stop_signal(), timeline.exited()), (None, Some(2.0)));
    }

    #[test]
    fn a_pod_that_vanished_without_an_exit_was_gone_when_it_was_removed() {
        let observed =
            Observed { deleted: Some(at(1.0)), removed: Some(at(4.0)), ..Observed::default() };
        let timeline = PodTimeline::build(&observed, None, "web", 0, origin());
        assert_eq!((timeline.exited(), timeline.shutdown()), (Some(4.0), None));
    }
}
