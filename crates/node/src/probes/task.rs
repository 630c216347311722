//! The task of one probe of one container: waits, probes, reports (N-89 to N-94, N-104).

use super::handler::{Handler, Outcome, Target, run as attempt};
use super::prober::{ProbeKind, Shared, name};
use client::{Recorder, field_reference, reference};
use k8s_openapi::api::core::v1::{ObjectReference, Probe};
use lifecycle::probe::TRIES_ON_ERROR;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, MissedTickBehavior};

/// Which probe of which container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Subject {
    pub(super) uid: String,
    pub(super) container: String,
    pub(super) kind: ProbeKind,
}

/// Runs until it is aborted or the prober is dropped.
pub(super) async fn run(shared: Weak<Shared>, subject: Subject, probe: Probe, kick: Arc<Notify>) {
    let seconds = |value: Option<i32>, default: u64| {
        Duration::from_secs(value.and_then(|v| u64::try_from(v).ok()).unwrap_or(default).max(1))
    };
    let period = seconds(probe.period_seconds, 10);
    let Some(first) = shared.upgrade().map(|shared| first_tick(&shared, period)) else { return };
    let mut ticks = tokio::time::interval_at(first, period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        tokio::select! {
            biased;
            () = kick.notified() => ticks.reset(),
            _ = ticks.tick() => {}
        }
        let Some(shared) = shared.upgrade() else { return };
        probe_once(&shared, &subject, &probe, seconds(probe.timeout_seconds, 1)).await;
    }
}

/// Spreads the first probes over one period after a start of the agent.
fn first_tick(shared: &Shared, period: Duration) -> Instant {
    let now = Instant::now();
    if now.duration_since(shared.started_at) >= period {
        return now;
    }
    now + period.mul_f64(clock::random_fraction())
}

async fn probe_once(shared: &Shared, subject: &Subject, probe: &Probe, timeout: Duration) {
    let Some(target) = shared.due(subject, clock::now()) else { return };
    let outcome = attempt_with_retries(Handler::of_probe(probe), &target, timeout).await;
    let on = container_reference(&target);
    let (result, success) = record_event(&shared.recorder, &on, subject.kind, &outcome);
    shared.count(subject, result);
    let Some(success) = success else { return };
    if let Some(changed) = shared.record(subject, &target.container_id, success) {
        // Fails only while the agent stops.
        let _ = shared.results.send(changed).await;
    }
}

/// Retries only errors (N-94).
async fn attempt_with_retries(handler: Handler<'_>, target: &Target, timeout: Duration) -> Outcome {
    let mut outcome = attempt(handler, target, timeout).await;
    for _ in 1..TRIES_ON_ERROR {
        if !matches!(outcome, Outcome::Error(_)) {
            break;
        }
        outcome = attempt(handler, target, timeout).await;
    }
    outcome
}

/// Creates the event. Returns the label of the metric, and whether the attempt succeeded; None is
/// discarded.
fn record_event(
    recorder: &Recorder,
    on: &ObjectReference,
    kind: ProbeKind,
    outcome: &Outcome,
) -> (&'static str, Option<bool>) {
    let kind = name(kind);
    match outcome {
        Outcome::Success => ("successful", Some(true)),
        Outcome::Warning(text) => {
            recorder.warning(on, "ProbeWarning", format!("{kind} probe warning: {text}"));
            ("successful", Some(true))
        }
        Outcome::Failure(text) => {
            recorder.warning(on, "Unhealthy", format!("{kind} probe failed: {text}"));
            ("failed", Some(false))
        }
        Outcome::Error(text) => {
            let message = format!("{kind} probe errored and resulted in unknown state: {text}");
            recorder.warning(on, "Unhealthy", message);
            ("unknown", None)
        }
    }
}

fn container_reference(target: &Target) -> ObjectReference {
    let name = &target.container;
    let spec = target.pod.spec.as_ref();
    let regular = spec.is_some_and(|spec| spec.containers.iter().any(|c| c.name == *name));
    let list = if regular { "containers" } else { "initContainers" };
    field_reference(&reference(&*target.pod), &format!("spec.{list}{{{name}}}"))
}
