//! Which pod lost a request, and at which step of its timeline.
//!
//! Pure. A client cannot see which pod a failed request went to, so it is found by time: the pod that was, at that
//! moment, in a step that explains this class of failure. Not here: the classes (`outcome`).

use crate::outcome::Failure;
use crate::pod_timeline::PodTimeline;
use serde::Serialize;

/// What the pod was doing when the request failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Step {
    /// The preStop hook ran, or the stop signal was about to be sent.
    PreStop,
    /// Between the stop signal and the exit.
    AfterStopSignal,
    AtExit,
    AtKill,
    /// The process was gone, and packets were still sent to it.
    AfterExit,
    /// A new pod had just become ready.
    Starting,
    /// The Service had no ready endpoint.
    NoEndpoint,
    /// No step of any pod explains it.
    Unexplained,
}

impl Step {
    pub fn phrase(self) -> &'static str {
        match self {
            Step::PreStop => "between the deletion and the stop signal",
            Step::AfterStopSignal => "between the stop signal and the exit",
            Step::AtExit => "when the process exited",
            Step::AtKill => "at SIGKILL",
            Step::AfterExit => "after the exit, while the Service still sent connections",
            Step::Starting => "when a new pod had just become ready",
            Step::NoEndpoint => "while no pod was ready",
            Step::Unexplained => "at no step of a termination",
        }
    }
}

/// A failed request, in seconds since the run began.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Lost {
    pub(crate) failure: Failure,
    /// When it was to be sent.
    pub(crate) sent: f64,
    /// When its failure was observed.
    pub(crate) failed: f64,
}

/// The explanation of a failed request.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Attribution {
    /// The class, refined by what happened to the pod.
    pub failure: Failure,
    pub step: Step,
    /// Index into the timelines of the run.
    pub pod: Option<usize>,
}

/// The number of ready endpoints over time, in order.
pub(crate) type ReadyEndpoints = [(f64, usize)];

/// How far apart a failure and the step that caused it may be observed.
const TOLERANCE_PRECISE: f64 = 0.15;
/// The same if the steps are those that a watch of the API showed.
const TOLERANCE_OBSERVED: f64 = 1.5;
/// After an exit, packets can be sent to the pod for this long, if no record says how long it was.
const STALE_RULES_MAX: f64 = 60.0;
/// A pod that became ready less than this ago may not serve yet.
const STARTING_MAX: f64 = 2.0;

pub(crate) fn attribute(lost: Lost, pods: &[PodTimeline], ready: &ReadyEndpoints) -> Attribution {
    let explained =
        |(step, pod)| Attribution { failure: refine(lost.failure, step), step, pod: Some(pod) };
    let from_connecting =
        matches!(lost.failure, Failure::Refused | Failure::Unreachable | Failure::Timeout);
    if from_connecting && ready_at(ready, lost.sent) == Some(0) {
        return Attribution { failure: Failure::NoEndpoint, step: Step::NoEndpoint, pod: None };
    }
    let candidates = pods.iter().enumerate().filter_map(|(index, pod)| {
        let (step, rank, distance) = explain(lost, pod)?;
        Some((rank, distance, step, index))
    });
    let best = candidates.min_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
    match best {
        Some((_, _, step, pod)) => explained((step, pod)),
        None => Attribution { failure: lost.failure, step: Step::Unexplained, pod: None },
    }
}

fn refine(failure: Failure, step: Step) -> Failure {
    match (failure, step) {
        (Failure::Cut | Failure::ResetOnReuse, Step::AtKill) => Failure::CutBySigkill,
        (failure, _) => failure,
    }
}

/// The last known number of ready endpoints. None: not known.
fn ready_at(ready: &ReadyEndpoints, at: f64) -> Option<usize> {
    ready.iter().rev().find(|(since, _)| *since <= at).map(|(_, count)| *count)
}

/// The step of this pod that explains the failure, how good the explanation is (lower is better), and how far apart the
/// two are.
fn explain(lost: Lost, pod: &PodTimeline) -> Option<(Step, u8, f64)> {
    match lost.failure {
        Failure::Cut | Failure::CutBySigkill | Failure::ResetOnReuse => explain_cut(lost, pod),
        Failure::Refused | Failure::Unreachable => explain_refused(lost, pod),
        Failure::Timeout => explain_timeout(lost, pod),
        Failure::ServerError | Failure::Garbled => explain_answer(lost, pod),
        Failure::NoEndpoint | Failure::Dns => None,
    }
}

fn tolerance(pod: &PodTimeline) -> f64 {
    if pod.precise { TOLERANCE_PRECISE } else { TOLERANCE_OBSERVED }
}

fn explain_cut(lost: Lost, pod: &PodTimeline) -> Option<(Step, u8, f64)> {
    let (at, tolerance) = (lost.failed, tolerance(pod));
    let near = |moment: Option<f64>| {
        moment.map(|moment| (at - moment).abs()).filter(|distance| *distance <= tolerance)
    };
    // The kill and the exit that it causes are two steps of the same moment.
    let kill = near(pod.killed()).or_else(|| near(pod.exited()).filter(|_| pod.killed().is_some()));
    if let Some(distance) = kill {
        return Some((Step::AtKill, 0, distance));
    }
    if let Some(distance) = near(pod.exited()) {
        return Some((Step::AtExit, 0, distance));
    }
    if let Some(distance) = while_stopping(at, pod) {
        return Some((Step::AfterStopSignal, 1, distance));
    }
    if let Some(distance) = after_exit(at, pod).filter(|_| lost.failure == Failure::ResetOnReuse) {
        return Some((Step::AfterExit, 2, distance));
    }
    before_stop(at, pod).map(|distance| (Step::PreStop, 3, distance)).or_else(|| starting(at, pod))
}

/// Rules begin to change when the pod is deleted, so of several pods the one that was deleted last explains it best.
fn explain_refused(lost: Lost, pod: &PodTimeline) -> Option<(Step, u8, f64)> {
    let at = lost.failed;
    let since_deletion = |since| pod.deleted().map_or(since, |deleted| (at - deleted).max(0.0));
    if let Some(since) = after_exit(at, pod) {
        return Some((Step::AfterExit, 0, since_deletion(since)));
    }
    if let Some(since) = while_stopping(at, pod) {
        return Some((Step::AfterStopSignal, 0, since_deletion(since)));
    }
    starting(at, pod).or_else(|| before_stop(at, pod).map(|distance| (Step::PreStop, 3, distance)))
}

/// A request without an answer: it was sent to a pod that was gone, or the pod went away with it.
fn explain_timeout(lost: Lost, pod: &PodTimeline) -> Option<(Step, u8, f64)> {
    if let Some(since) = after_exit(lost.sent, pod) {
        let since = pod.deleted().map_or(since, |deleted| (lost.sent - deleted).max(0.0));
        return Some((Step::AfterExit, 0, since));
    }
    let within = |moment: Option<f64>| {
        moment.filter(|at| (lost.sent..=lost.failed).contains(at)).map(|at| at - lost.sent)
    };
    if let Some(distance) = within(pod.exited()) {
        let step = if pod.killed().is_some() { Step::AtKill } else { Step::AtExit };
        return Some((step, 1, distance));
    }
    if let Some(distance) = while_stopping(lost.sent, pod) {
        return Some((Step::AfterStopSignal, 1, distance));
    }
    starting(lost.sent, pod)
}

fn explain_answer(lost: Lost, pod: &PodTimeline) -> Option<(Step, u8, f64)> {
    let at = lost.failed;
    if let Some(distance) = while_stopping(at, pod) {
        return Some((Step::AfterStopSignal, 0, distance));
    }
    before_stop(at, pod).map(|distance| (Step::PreStop, 1, distance)).or_else(|| starting(at, pod))
}

/// Time since the stop signal, if the process still ran.
fn while_stopping(at: f64, pod: &PodTimeline) -> Option<f64> {
    let since = at - pod.stop_signal()?;
    let running = pod.exited().is_none_or(|exited| at < exited);
    (running && since >= -tolerance(pod)).then_some(since.max(0.0))
}

/// Time since the exit, if packets could still be sent to the pod.
fn after_exit(at: f64, pod: &PodTimeline) -> Option<f64> {
    let exited = pod.exited()?;
    let since = at - exited;
    let until = match pod.rules_changed() {
        Some(changed) => changed.max(exited) + tolerance(pod),
        None => exited + STALE_RULES_MAX,
    };
    (since >= -tolerance(pod) && at <= until).then_some(since.max(0.0))
}

/// Time since the deletion, if the stop signal had not been sent.
fn before_stop(at: f64, pod: &PodTimeline) -> Option<f64> {
    let since = at - pod.deleted()?;
    let before = pod.stop_signal().or(pod.exited()).is_none_or(|stop| at < stop);
    (before && since >= -tolerance(pod)).then_some(since.max(0.0))
}

fn starting(at: f64, pod: &PodTimeline) -> Option<(Step, u8, f64)> {
    let since = at - pod.ready()?;
    let recently = (-tolerance(pod)..STARTING_MAX).contains(&since);
    recently.then_some((Step::Starting, 2, since.abs()))
}

#[cfg(test)]
mod tests;
