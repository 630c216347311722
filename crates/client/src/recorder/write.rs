//! Writes events to the API: events about one object in order, events about different objects concurrently.
//!
//! A write that fails is retried a few times and then given up.

use super::RecordedEvent;
use super::correlate::{ApiEvent, Correlator};
use crate::{Client, Error, ObjectKey, Result};
use k8s_openapi::api::{core, events};
use serde_json::{Value, json};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};

/// Tasks that write events. Each object belongs to one of them, so a write that hangs delays few others.
const WRITERS: usize = 8;

/// Events waiting for one writer; more are dropped.
const WRITER_QUEUE_MAX: usize = 500;

/// The waits between tries, about two minutes in total. Upstream: `maxTriesPerEvent`.
const RETRY_WAITS: [Duration; 11] = {
    let mut waits = [Duration::from_secs(10); 11];
    waits[0] = Duration::from_millis(100);
    waits[1] = Duration::from_secs(1);
    waits
};

/// The namespace of events about cluster-scoped objects.
const CLUSTER_SCOPED_NAMESPACE: &str = "default";

/// The component that reports events, and its host.
pub(super) struct EventSource {
    pub(super) component: String,
    pub(super) instance: String,
}

/// The number of recorded events that are neither written nor given up.
pub(super) type Pending = Arc<watch::Sender<usize>>;

pub(super) async fn run(
    client: Client,
    source: EventSource,
    mut waiting: mpsc::Receiver<RecordedEvent>,
    pending: Pending,
) {
    let source = Arc::new(source);
    let start_writer = || {
        let (writer, events) = mpsc::channel(WRITER_QUEUE_MAX);
        tokio::spawn(write_all(client.clone(), source.clone(), events, pending.clone()));
        writer
    };
    let writers: [mpsc::Sender<ApiEvent>; WRITERS] = std::array::from_fn(|_| start_writer());
    let mut correlator = Correlator::new(clock::random_u64());
    while let Some(event) = waiting.recv().await {
        let writer = &writers[writer_of(&event)];
        let sent = correlator.correlate(event).is_some_and(|event| writer.try_send(event).is_ok());
        if !sent {
            mark_settled(&pending);
        }
    }
}

pub(super) fn mark_settled(pending: &Pending) {
    pending.send_modify(|pending| *pending = pending.saturating_sub(1));
}

fn writer_of(event: &RecordedEvent) -> usize {
    let mut hasher = DefaultHasher::new();
    (&event.on.namespace, &event.on.name).hash(&mut hasher);
    (hasher.finish() % WRITERS as u64) as usize
}

async fn write_all(
    client: Client,
    source: Arc<EventSource>,
    mut events: mpsc::Receiver<ApiEvent>,
    pending: Pending,
) {
    while let Some(event) = events.recv().await {
        write_with_retries(&client, &source, &event).await;
        mark_settled(&pending);
    }
}

async fn write_with_retries(client: &Client, source: &EventSource, event: &ApiEvent) {
    for wait in RETRY_WAITS.iter().copied().map(Some).chain([None]) {
        let Err(error) = write(client, source, event).await else {
            return;
        };
        match wait.filter(|_| is_retryable(&error)) {
            Some(wait) => tokio::time::sleep(wait).await,
            None => {
                tracing::debug!(%error, event = event.name, "cannot write an event; giving up");
                return;
            }
        }
    }
}

/// The server's answer can change only if it is busy or failed internally.
fn is_retryable(error: &Error) -> bool {
    error.status().is_none_or(|status| status.code == 429 || status.code >= 500)
}

async fn write(client: &Client, source: &EventSource, event: &ApiEvent) -> Result<()> {
    let is_events_v1 = !event.recorded.action.is_empty();
    if event.count > 1 {
        let counted = match is_events_v1 {
            true => count_up::<events::v1::Event>(client, event, &events_v1_count(event)).await,
            false => count_up::<core::v1::Event>(client, event, &core_count(event)).await,
        };
        match counted {
            // The event has expired: events live for an hour.
            Err(error) if error.is_not_found() => (),
            counted => return counted,
        }
    }
    let key = ObjectKey::new(namespace(event), &event.name);
    let created = match is_events_v1 {
        true => client.create_json::<events::v1::Event>(&key, events_v1_event(source, event)).await,
        false => client.create_json::<core::v1::Event>(&key, core_event(source, event)).await,
    };
    match created {
        // The response to an earlier try was lost.
        Err(error) if error.is_already_exists() => Ok(()),
        created => created,
    }
}

async fn count_up<K: crate::Object<DynamicType = ()>>(
    client: &Client,
    event: &ApiEvent,
    patch: &Value,
) -> Result<()> {
    let key = ObjectKey::new(namespace(event), &event.name);
    client.patch_merge::<K>(&key, patch).await.map(drop)
}

fn namespace(event: &ApiEvent) -> &str {
    let namespace = event.recorded.on.namespace.as_deref().unwrap_or_default();
    if namespace.is_empty() { CLUSTER_SCOPED_NAMESPACE } else { namespace }
}

/// An event of the core API.
fn core_event(source: &EventSource, event: &ApiEvent) -> Value {
    let recorded = &event.recorded;
    let EventSource { component, instance } = source;
    json!({
        "metadata": { "namespace": namespace(event), "name": event.name },
        "involvedObject": recorded.on,
        "type": recorded.severity.as_str(),
        "reason": recorded.reason,
        "message": recorded.message,
        "source": { "component": component, "host": instance },
        "reportingComponent": component,
        "reportingInstance": instance,
        "firstTimestamp": clock::rfc3339(event.first),
        "lastTimestamp": clock::rfc3339(recorded.at),
        "count": event.count,
    })
}

fn core_count(event: &ApiEvent) -> Value {
    let at = clock::rfc3339(event.recorded.at);
    json!({ "count": event.count, "lastTimestamp": at, "message": event.recorded.message })
}

/// An event of events.k8s.io, which has `regarding`, `note` and `series` (A-148, N-180).
fn events_v1_event(source: &EventSource, event: &ApiEvent) -> Value {
    let recorded = &event.recorded;
    let mut object = json!({
        "metadata": { "namespace": namespace(event), "name": event.name },
        "regarding": recorded.on,
        "type": recorded.severity.as_str(),
        "reason": recorded.reason,
        "note": recorded.message,
        "action": recorded.action,
        "eventTime": clock::rfc3339_micros(event.first),
        "reportingController": source.component,
        "reportingInstance": source.instance,
    });
    if event.count > 1 {
        object["series"] = events_v1_count(event)["series"].take();
    }
    object
}

fn events_v1_count(event: &ApiEvent) -> Value {
    let at = clock::rfc3339_micros(event.recorded.at);
    json!({ "series": { "count": event.count, "lastObservedTime": at } })
}
