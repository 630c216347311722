//! Records Kubernetes events about objects.
//!
//! A [`Recorder`] never blocks its caller and never returns an error: events go into a bounded queue, and a task
//! writes them to the API. Repeated events are counted, and many similar events are combined (N-179).

mod correlate;
mod lru;
mod write;

use crate::Client;
use k8s_openapi::api::core::v1::ObjectReference;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use write::{EventSource, Pending};

/// Events that can wait to be written; more are dropped, as upstream does.
const WAITING_MAX: usize = 1000;

/// How long [`Recorder::flush`] waits at most, so that unwritten events do not delay a shutdown.
const FLUSH_MAX: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Severity {
    Normal,
    Warning,
}

impl Severity {
    fn as_str(self) -> &'static str {
        match self {
            Severity::Normal => "Normal",
            Severity::Warning => "Warning",
        }
    }
}

/// An event as a component records it.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordedEvent {
    pub on: ObjectReference,
    pub severity: Severity,
    pub reason: String,
    pub message: String,
    /// What the component was doing ("Binding"). Empty for events of the core API.
    pub action: String,
    pub at: jiff::Timestamp,
}

#[derive(Clone)]
pub struct Recorder {
    queue: mpsc::Sender<RecordedEvent>,
    action: Arc<str>,
    /// `None` if events are collected by a test instead of written.
    pending: Option<Pending>,
}

impl Recorder {
    /// `component` reports the events (`kubelet`, `default-scheduler`), `instance` says on which host.
    pub fn new(client: &Client, component: &str, instance: &str) -> Recorder {
        let (queue, waiting) = mpsc::channel(WAITING_MAX);
        let pending = Arc::new(watch::Sender::new(0));
        let source = EventSource { component: component.to_owned(), instance: instance.to_owned() };
        tokio::spawn(write::run(client.clone(), source, waiting, pending.clone()));
        Recorder { queue, action: "".into(), pending: Some(pending) }
    }

    /// For tests: recorded events come out of the receiver.
    pub fn collecting() -> (Recorder, mpsc::Receiver<RecordedEvent>) {
        let (queue, events) = mpsc::channel(WAITING_MAX);
        (Recorder { queue, action: "".into(), pending: None }, events)
    }

    /// The same recorder with an action. It writes events of events.k8s.io instead of core events (N-180).
    pub fn with_action(&self, action: &str) -> Recorder {
        Recorder { action: action.into(), ..self.clone() }
    }

    /// Waits until all events recorded so far are written or given up, but only a few seconds. Call this before the
    /// process exits.
    pub async fn flush(&self) {
        if let Some(pending) = &self.pending {
            let mut pending = pending.subscribe();
            let _ =
                tokio::time::timeout(FLUSH_MAX, pending.wait_for(|pending| *pending == 0)).await;
        }
    }

    pub fn normal(&self, on: &ObjectReference, reason: &str, message: impl Into<String>) {
        self.record(on, Severity::Normal, reason, message.into());
    }

    pub fn warning(&self, on: &ObjectReference, reason: &str, message: impl Into<String>) {
        self.record(on, Severity::Warning, reason, message.into());
    }

    fn record(&self, on: &ObjectReference, severity: Severity, reason: &str, message: String) {
        let event = RecordedEvent {
            on: on.clone(),
            severity,
            reason: reason.to_owned(),
            message,
            action: self.action.to_string(),
            at: clock::now(),
        };
        if let Some(pending) = &self.pending {
            pending.send_modify(|pending| *pending += 1);
        }
        if self.queue.try_send(event).is_err() {
            tracing::debug!(
                reason,
                "dropped an event because the queue of unwritten events is full"
            );
            self.pending.iter().for_each(write::mark_settled);
        }
    }
}

/// A reference to `object`, for an event about it.
pub fn reference<K>(object: &K) -> ObjectReference
where
    K: k8s_openapi::Metadata<Ty = k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta>,
{
    let meta = object.metadata();
    ObjectReference {
        api_version: Some(K::API_VERSION.to_owned()),
        kind: Some(K::KIND.to_owned()),
        name: meta.name.clone(),
        namespace: meta.namespace.clone(),
        uid: meta.uid.clone(),
        resource_version: meta.resource_version.clone(),
        field_path: None,
    }
}

/// A reference to a part of an object, such as `spec.containers{app}`.
pub fn field_reference(on: &ObjectReference, field_path: &str) -> ObjectReference {
    ObjectReference { field_path: Some(field_path.to_owned()), ..on.clone() }
}
