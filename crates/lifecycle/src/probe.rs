//! One probe of one container, as a state machine: when to probe, and when the result changes.
//!
//! The node has one [`Worker`] per container and kind of probe. It ticks every period, probes if the state machine
//! says so, and reports the outcome. Not here: how a probe is performed (`node`), and what follows from its result
//! (`bringup`, `status`).

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

/// Attempts within one tick if a probe cannot be run at all (N-94).
pub const TRIES_ON_ERROR: usize = 3;

/// The container in the last published status (N-90).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishedContainer {
    pub container_id: String,
    /// None: it does not run.
    pub running_since: Option<Timestamp>,
    /// The `started` of its status.
    pub started: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// The period is over, or a result is needed at once (N-92). None: there is no container yet.
    Tick(Option<PublishedContainer>),
    /// The outcome of a probe, and the container that was probed.
    Answered { container_id: String, success: bool },
    /// The probe could not be run, even at the third attempt: it does not count (N-94).
    Errored,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// Nothing to do until the next tick.
    Wait,
    /// Run the probe and report its outcome.
    ProbeNow,
    /// The result has changed to this.
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
    /// It failed: no more probes until there is a new container (N-93).
    on_hold: bool,
    /// A result from before the agent's restart, kept until the first new result (N-95).
    inherited: Option<Inherited>,
}

/// Published results of a container that ran before the agent started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inherited {
    pub container_id: String,
    pub outcome: Outcome,
}

/// A container that has run longer than this when the agent starts keeps its results (N-95).
const RAN_BEFORE: SignedDuration = SignedDuration::from_secs(10);

impl Inherited {
    /// The published results, if the container ran well before the agent started (N-95).
    pub fn of(
        kind: ProbeKind,
        status: &core::ContainerStatus,
        agent_started: Timestamp,
    ) -> Option<Inherited> {
        let since = status.state.as_ref()?.running.as_ref()?.started_at.as_ref()?.0;
        if agent_started.duration_since(since) <= RAN_BEFORE {
            return None;
        }
        let was = match kind {
            ProbeKind::Startup => status.started == Some(true),
            ProbeKind::Readiness => status.ready,
            ProbeKind::Liveness => return None,
        };
        let (_, container_id) = status.container_id.as_deref()?.split_once("://")?;
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

    /// After the agent's restart: the result that the container had ([`Inherited::of`]).
    pub fn inheriting(self, inherited: Inherited) -> Worker {
        Worker { inherited: Some(inherited), ..self }
    }

    pub fn kind(&self) -> ProbeKind {
        self.kind
    }

    pub fn period(&self) -> Duration {
        self.period
    }

    /// While this is true, the caller should tick at once, so that a pod becomes ready as soon as it can and not one
    /// period later (N-92).
    pub fn hurries(&self) -> bool {
        self.kind == ProbeKind::Readiness && self.result != Outcome::Success
    }

    /// The current result, and its container.
    pub fn result(&self) -> (Option<&str>, Outcome) {
        (self.container_id.as_deref(), self.result)
    }

    pub fn step(&mut self, now: Timestamp, input: Input) -> Output {
        match input {
            Input::Tick(None) | Input::Errored => Output::Wait,
            Input::Tick(Some(container)) => self.tick(now, container),
            Input::Answered { container_id, success } => {
                if self.container_id.as_ref() != Some(&container_id) || self.on_hold {
                    return Output::Wait; // The outcome of an earlier container.
                }
                self.answered(if success { Outcome::Success } else { Outcome::Failure })
            }
        }
    }

    fn tick(&mut self, now: Timestamp, container: PublishedContainer) -> Output {
        if self.container_id.as_ref() != Some(&container.container_id) {
            self.start_with(container.container_id.clone());
        }
        if self.on_hold {
            return Output::Wait;
        }
        let Some(since) = container.running_since else {
            return self.set(Outcome::Failure);
        };
        if now.duration_since(since).as_secs() < self.initial_delay {
            return Output::Wait;
        }
        let wanted = match self.kind {
            ProbeKind::Startup => !container.started,
            ProbeKind::Readiness | ProbeKind::Liveness => container.started,
        };
        if wanted { Output::ProbeNow } else { Output::Wait }
    }

    /// A new container starts from the beginning (N-91).
    fn start_with(&mut self, container_id: String) {
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

/// Whether a probe continues while its pod terminates: of regular containers only readiness, of sidecars all, but
/// without restarts (T-NODE-60, 61).
pub fn continues_while_terminating(kind: ProbeKind, container: Kind) -> bool {
    kind == ProbeKind::Readiness || container == Kind::Sidecar
}

/// The result before the first outcome: not ready, alive, startup unknown.
pub fn initial(kind: ProbeKind) -> Outcome {
    match kind {
        ProbeKind::Startup => Outcome::Unknown,
        ProbeKind::Readiness => Outcome::Failure,
        ProbeKind::Liveness => Outcome::Success,
    }
}

#[cfg(test)]
mod tests {
    use super::Outcome::{Failure, Success, Unknown};
    use super::ProbeKind::{Liveness, Readiness, Startup};
    use super::*;
    use crate::fixture::at;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use proptest::prelude::*;

    fn probe(delay: i32, success: i32, failure: i32) -> core::Probe {
        core::Probe {
            initial_delay_seconds: Some(delay),
            period_seconds: Some(5),
            success_threshold: Some(success),
            failure_threshold: Some(failure),
            ..Default::default()
        }
    }

    fn tick_of(id: &str, running_since: Option<i64>, started: bool) -> Input {
        let running_since = running_since.map(at);
        Input::Tick(Some(PublishedContainer { container_id: id.into(), running_since, started }))
    }

    fn answer(id: &str, success: bool) -> Input {
        Input::Answered { container_id: id.into(), success }
    }

    /// Ticks, and reports the outcome if a probe is due.
    fn tick(worker: &mut Worker, id: &str, started: bool, success: bool) -> Output {
        match worker.step(at(100), tick_of(id, Some(0), started)) {
            Output::ProbeNow => worker.step(at(100), answer(id, success)),
            other => other,
        }
    }

    #[test]
    fn n_89_the_defaults_are_those_of_the_api() {
        let worker = Worker::new(Liveness, &core::Probe::default());
        assert_eq!(worker.period(), Duration::from_secs(10));
        assert_eq!((worker.success_threshold, worker.failure_threshold), (1, 3));
    }

    #[test]
    fn n_90_a_probe_waits_for_its_delay_and_for_the_startup_probe() {
        for (kind, since, started, now, wanted) in [
            (Liveness, Some(0), true, 9, Output::Wait),
            (Liveness, Some(0), true, 10, Output::ProbeNow),
            (Liveness, Some(0), false, 60, Output::Wait),
            (Readiness, Some(0), true, 10, Output::ProbeNow),
            (Readiness, Some(0), false, 60, Output::Wait),
            (Startup, Some(0), false, 10, Output::ProbeNow),
            (Startup, Some(0), false, 9, Output::Wait),
            (Startup, Some(0), true, 60, Output::Wait),
        ] {
            let mut worker = Worker::new(kind, &probe(10, 1, 3));
            let output = worker.step(at(now), tick_of("c", since, started));
            assert_eq!(output, wanted, "N-90: {kind:?} {started} at {now}");
        }
        let mut worker = Worker::new(Readiness, &probe(0, 1, 3));
        assert_eq!(worker.step(at(0), Input::Tick(None)), Output::Wait, "no container yet");
    }

    #[test]
    fn n_91_a_result_counts_after_enough_consecutive_equal_results() {
        let (yes, no) = (true, false);
        let changed = Output::Changed;
        let wait = Output::Wait;
        for (kind, success, failure, answers, wanted) in [
            (Readiness, 2, 3, vec![yes, yes], vec![wait, changed(Success)]),
            (Readiness, 2, 3, vec![yes, no, yes, yes], vec![wait, wait, wait, changed(Success)]),
            (Liveness, 1, 2, vec![no, no], vec![wait, changed(Failure)]),
            (Liveness, 1, 2, vec![no, yes, no, no], vec![wait, wait, wait, changed(Failure)]),
            (Readiness, 1, 2, vec![yes, no, no], vec![changed(Success), wait, changed(Failure)]),
            (Liveness, 1, 3, vec![yes, yes], vec![wait, wait]),
        ] {
            let mut worker = Worker::new(kind, &probe(0, success, failure));
            let outputs: Vec<_> =
                answers.iter().map(|answer| tick(&mut worker, "c", true, *answer)).collect();
            assert_eq!(outputs, wanted, "N-91: {kind:?} {answers:?}");
        }
    }

    #[test]
    fn n_91_each_kind_of_probe_has_its_own_initial_result() {
        for (kind, wanted) in [(Readiness, Failure), (Liveness, Success), (Startup, Unknown)] {
            let mut worker = Worker::new(kind, &probe(0, 1, 3));
            worker.step(at(0), tick_of("c", Some(0), false));
            assert_eq!(worker.result(), (Some("c"), wanted), "N-91: {kind:?}");
        }
    }

    #[test]
    fn n_92_readiness_is_probed_immediately_until_it_succeeds() {
        let mut worker = Worker::new(Readiness, &probe(0, 1, 3));
        assert!(worker.hurries());
        tick(&mut worker, "c", true, true);
        assert!(!worker.hurries());
        assert!(!Worker::new(Liveness, &probe(0, 1, 3)).hurries());
    }

    #[test]
    fn n_93_after_a_failure_no_probe_runs_until_there_is_a_new_container() {
        for (kind, started) in [(Liveness, true), (Startup, false)] {
            let mut worker = Worker::new(kind, &probe(0, 1, 1));
            assert_eq!(tick(&mut worker, "c", started, false), Output::Changed(Failure));
            assert_eq!(tick(&mut worker, "c", started, true), Output::Wait, "N-93: on hold");
            assert_eq!(worker.result(), (Some("c"), Failure));
            let again = worker.step(at(100), tick_of("d", Some(50), started));
            assert_eq!(again, Output::ProbeNow, "N-93: {kind:?}");
            assert_eq!(worker.result(), (Some("d"), initial(kind)));
        }
        let mut worker = Worker::new(Startup, &probe(0, 1, 1));
        assert_eq!(tick(&mut worker, "c", false, true), Output::Changed(Success));
        assert_eq!(tick(&mut worker, "c", true, true), Output::Wait, "N-93: started is started");
    }

    #[test]
    fn n_94_an_error_of_the_probe_itself_is_ignored() {
        let mut worker = Worker::new(Liveness, &probe(0, 1, 2));
        assert_eq!(tick(&mut worker, "c", true, false), Output::Wait);
        assert_eq!(worker.step(at(100), Input::Errored), Output::Wait);
        assert_eq!(tick(&mut worker, "c", true, false), Output::Changed(Failure), "two in a row");
        assert_eq!(TRIES_ON_ERROR, 3);
    }

    #[test]
    fn n_95_after_a_restart_of_the_agent_the_published_result_holds() {
        let status = |since: i64, ready| core::ContainerStatus {
            container_id: Some("landfall://c".into()),
            ready,
            started: Some(true),
            state: Some(core::ContainerState {
                running: Some(core::ContainerStateRunning { started_at: Some(Time(at(since))) }),
                ..Default::default()
            }),
            ..Default::default()
        };
        for (kind, since, ready, wanted) in [
            (Readiness, 0, true, Success),
            (Readiness, 0, false, Failure),
            (Readiness, 90, true, Failure),
            (Startup, 0, true, Success),
            (Startup, 95, true, Unknown),
            (Liveness, 0, true, Success),
        ] {
            let mut worker = Worker::new(kind, &probe(0, 1, 3));
            if let Some(inherited) = Inherited::of(kind, &status(since, ready), at(100)) {
                worker = worker.inheriting(inherited);
            }
            worker.step(at(100), tick_of("c", Some(since), true));
            assert_eq!(worker.result(), (Some("c"), wanted), "N-95: {kind:?} since {since}");
            worker.step(at(100), tick_of("d", Some(since), true));
            assert_eq!(worker.result(), (Some("d"), initial(kind)), "only for that container");
        }
    }

    #[test]
    fn n_96_a_container_that_does_not_run_is_not_ready() {
        let mut worker = Worker::new(Readiness, &probe(0, 1, 3));
        assert_eq!(tick(&mut worker, "c", true, true), Output::Changed(Success));
        let ended = worker.step(at(100), tick_of("c", None, false));
        assert_eq!(ended, Output::Changed(Failure));
    }

    #[test]
    fn t_node_60_and_61_during_a_termination_readiness_and_sidecars_are_still_probed() {
        for (kind, container, wanted) in [
            (Readiness, Kind::Regular, true),
            (Liveness, Kind::Regular, false),
            (Startup, Kind::Regular, false),
            (Liveness, Kind::Sidecar, true),
            (Startup, Kind::Sidecar, true),
            (Readiness, Kind::Sidecar, true),
        ] {
            assert_eq!(continues_while_terminating(kind, container), wanted);
        }
    }

    #[test]
    fn a_result_of_an_earlier_container_is_ignored() {
        let mut worker = Worker::new(Liveness, &probe(0, 1, 1));
        worker.step(at(0), tick_of("c", Some(0), true));
        worker.step(at(0), tick_of("d", Some(0), true));
        assert_eq!(worker.step(at(0), answer("c", false)), Output::Wait);
        assert_eq!(worker.result(), (Some("d"), Success));
    }

    proptest! {
        /// N-91: a change to failure needs that many failures in a row.
        #[test]
        fn no_change_without_enough_equal_results(
            answers in prop::collection::vec(any::<bool>(), 0..40),
            success in 1i32..4,
            failure in 1i32..4,
        ) {
            let mut worker = Worker::new(Readiness, &probe(0, success, failure));
            for (index, answer) in answers.iter().enumerate() {
                let output = tick(&mut worker, "c", true, *answer);
                let needed = if *answer { success } else { failure } as usize;
                let run = answers[..=index].iter().rev().take_while(|a| *a == answer).count();
                if let Output::Changed(outcome) = output {
                    prop_assert_eq!(outcome, if *answer { Success } else { Failure });
                    prop_assert!(run >= needed);
                }
                if run >= needed {
                    prop_assert_eq!(worker.result().1, if *answer { Success } else { Failure });
                }
            }
        }
    }
}
