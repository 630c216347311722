//! One probe of one container: ticks, tries, tells (N-89 to N-94, N-104).

use super::handler::{Handler, Outcome, Target, run as attempt};
use super::prober::{Kind, Shared, name};
use client::{Recorder, part, reference};
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
    pub(super) kind: Kind,
}

/// Runs until it is aborted or nobody keeps the prober any more.
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
        once(&shared, &subject, &probe, seconds(probe.timeout_seconds, 1)).await;
    }
}

/// After a restart of the agent all probes begin at the same moment; they are spread out.
fn first_tick(shared: &Shared, period: Duration) -> Instant {
    let now = Instant::now();
    if now.duration_since(shared.since) >= period {
        return now;
    }
    now + period.mul_f64(clock::fraction())
}

async fn once(shared: &Shared, subject: &Subject, probe: &Probe, timeout: Duration) {
    let Some(target) = shared.due(subject, clock::now()) else { return };
    let outcome = try_hard(Handler::of_probe(probe), &target, timeout).await;
    let on = container_reference(&target);
    let (result, success) = tell(&shared.recorder, &on, subject.kind, &outcome);
    shared.tally(subject, result);
    let Some(success) = success else { return };
    if let Some(news) = shared.record(subject, &target.container_id, success) {
        // Nobody listens when the agent stops; then nobody needs to know.
        let _ = shared.results.send(news).await;
    }
}

/// Only what could not be tried is tried again (N-94).
async fn try_hard(handler: Handler<'_>, target: &Target, timeout: Duration) -> Outcome {
    let mut outcome = attempt(handler, target, timeout).await;
    for _ in 1..TRIES_ON_ERROR {
        if !matches!(outcome, Outcome::Error(_)) {
            break;
        }
        outcome = attempt(handler, target, timeout).await;
    }
    outcome
}

/// The event, the metric's label, and what counts: None is discarded.
fn tell(
    recorder: &Recorder,
    on: &ObjectReference,
    kind: Kind,
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
            let said = format!("{kind} probe errored and resulted in unknown state: {text}");
            recorder.warning(on, "Unhealthy", said);
            ("unknown", None)
        }
    }
}

fn container_reference(target: &Target) -> ObjectReference {
    let name = &target.container;
    let spec = target.pod.spec.as_ref();
    let regular = spec.is_some_and(|spec| spec.containers.iter().any(|c| c.name == *name));
    let list = if regular { "containers" } else { "initContainers" };
    part(&reference(&*target.pod), &format!("spec.{list}{{{name}}}"))
}
