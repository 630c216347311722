//! Writes events to the API: those about one object in the order they were told, and those about
//! others meanwhile.
//!
//! An event is worth a few tries and no more: what it tells of has happened anyway.

use super::correlate::{Correlator, Event};
use super::{Happening, Severity};
use crate::{Client, Error, ObjectKey, Result};
use k8s_openapi::api::{core, events};
use serde_json::{Value, json};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};

/// Writers at work. An object belongs to one of them, so a write that hangs holds up few others.
const LANES: usize = 8;

/// Events waiting for one writer; more are dropped.
const LANE_MAX: usize = 500;

/// The waits between tries: a hiccup is over at once, and after two minutes it is old news. Upstream:
/// `maxTriesPerEvent`.
const AGAIN_AFTER: [Duration; 11] = {
    let mut waits = [Duration::from_secs(10); 11];
    waits[0] = Duration::from_millis(100);
    waits[1] = Duration::from_secs(1);
    waits
};

/// Where cluster-scoped objects have their events.
const NO_NAMESPACE: &str = "default";

/// Who speaks, and where.
pub(super) struct Speaker {
    pub(super) component: String,
    pub(super) instance: String,
}

/// How many were told and are neither written nor given up.
pub(super) type Pending = Arc<watch::Sender<usize>>;

pub(super) async fn run(
    client: Client,
    speaker: Speaker,
    mut waiting: mpsc::Receiver<Happening>,
    pending: Pending,
) {
    let speaker = Arc::new(speaker);
    let lane = || {
        let (lane, events) = mpsc::channel(LANE_MAX);
        tokio::spawn(write_all(client.clone(), speaker.clone(), events, pending.clone()));
        lane
    };
    let lanes: [mpsc::Sender<Event>; LANES] = std::array::from_fn(|_| lane());
    let mut correlator = Correlator::new(clock::random_u64());
    while let Some(happening) = waiting.recv().await {
        let lane = &lanes[lane_of(&happening)];
        let sent = correlator.hear(happening).is_some_and(|event| lane.try_send(event).is_ok());
        if !sent {
            settled(&pending);
        }
    }
}

pub(super) fn settled(pending: &Pending) {
    pending.send_modify(|pending| *pending = pending.saturating_sub(1));
}

fn lane_of(happening: &Happening) -> usize {
    let mut hasher = DefaultHasher::new();
    (&happening.on.namespace, &happening.on.name).hash(&mut hasher);
    (hasher.finish() % LANES as u64) as usize
}

async fn write_all(
    client: Client,
    speaker: Arc<Speaker>,
    mut events: mpsc::Receiver<Event>,
    pending: Pending,
) {
    while let Some(event) = events.recv().await {
        write_patiently(&client, &speaker, &event).await;
        settled(&pending);
    }
}

async fn write_patiently(client: &Client, speaker: &Speaker, event: &Event) {
    for wait in AGAIN_AFTER.iter().copied().map(Some).chain([None]) {
        let Err(error) = write(client, speaker, event).await else {
            return;
        };
        match wait.filter(|_| is_worth_another_try(&error)) {
            Some(wait) => tokio::time::sleep(wait).await,
            None => {
                tracing::debug!(%error, event = event.name, "an event could not be written");
                return;
            }
        }
    }
}

/// A refusal stays one, unless the server is busy or not itself.
fn is_worth_another_try(error: &Error) -> bool {
    error.status().is_none_or(|status| status.code == 429 || status.code >= 500)
}

async fn write(client: &Client, speaker: &Speaker, event: &Event) -> Result<()> {
    let modern = !event.happening.action.is_empty();
    if event.count > 1 {
        let counted = match modern {
            true => count_up::<events::v1::Event>(client, event, &modern_count(event)).await,
            false => count_up::<core::v1::Event>(client, event, &plain_count(event)).await,
        };
        match counted {
            // It has been forgotten: events live for an hour.
            Err(error) if error.is_not_found() => (),
            counted => return counted,
        }
    }
    let key = ObjectKey::new(namespace(event), &event.name);
    let created = match modern {
        true => client.create_plain::<events::v1::Event>(&key, modern_event(speaker, event)).await,
        false => client.create_plain::<core::v1::Event>(&key, plain_event(speaker, event)).await,
    };
    match created {
        // An answer was lost, and this is the second try.
        Err(error) if error.is_already_exists() => Ok(()),
        created => created,
    }
}

async fn count_up<K: crate::Object<DynamicType = ()>>(
    client: &Client,
    event: &Event,
    patch: &Value,
) -> Result<()> {
    let key = ObjectKey::new(namespace(event), &event.name);
    client.patch_merge::<K>(&key, patch).await.map(drop)
}

fn namespace(event: &Event) -> &str {
    let namespace = event.happening.on.namespace.as_deref().unwrap_or_default();
    if namespace.is_empty() { NO_NAMESPACE } else { namespace }
}

fn severity(event: &Event) -> &'static str {
    match event.happening.severity {
        Severity::Normal => "Normal",
        Severity::Warning => "Warning",
    }
}

/// As the core API has had it from the beginning.
fn plain_event(speaker: &Speaker, event: &Event) -> Value {
    let happening = &event.happening;
    let Speaker { component, instance } = speaker;
    json!({
        "metadata": { "namespace": namespace(event), "name": event.name },
        "involvedObject": happening.on,
        "type": severity(event),
        "reason": happening.reason,
        "message": happening.message,
        "source": { "component": component, "host": instance },
        "reportingComponent": component,
        "reportingInstance": instance,
        "firstTimestamp": clock::rfc3339(event.first),
        "lastTimestamp": clock::rfc3339(happening.at),
        "count": event.count,
    })
}

fn plain_count(event: &Event) -> Value {
    let at = clock::rfc3339(event.happening.at);
    json!({ "count": event.count, "lastTimestamp": at, "message": event.happening.message })
}

/// As events.k8s.io wants it (A-148, N-180).
fn modern_event(speaker: &Speaker, event: &Event) -> Value {
    let happening = &event.happening;
    let mut object = json!({
        "metadata": { "namespace": namespace(event), "name": event.name },
        "regarding": happening.on,
        "type": severity(event),
        "reason": happening.reason,
        "note": happening.message,
        "action": happening.action,
        "eventTime": clock::rfc3339_micros(event.first),
        "reportingController": speaker.component,
        "reportingInstance": speaker.instance,
    });
    if event.count > 1 {
        object["series"] = modern_count(event)["series"].take();
    }
    object
}

fn modern_count(event: &Event) -> Value {
    let at = clock::rfc3339_micros(event.happening.at);
    json!({ "series": { "count": event.count, "lastObservedTime": at } })
}
