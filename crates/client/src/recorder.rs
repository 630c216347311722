//! Events: what happened to an object, in words for people. Told and forgotten by the caller.
//!
//! A [`Recorder`] never blocks and never fails its caller: events go into a bounded queue and a task
//! writes them. Equal ones are counted up, floods are combined (N-179).

mod correlate;
mod recent;
mod write;

use crate::Client;
use k8s_openapi::api::core::v1::ObjectReference;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use write::{Pending, Speaker};

/// Events waiting to be written; more are dropped, as upstream drops them.
const WAITING_MAX: usize = 1000;

/// How long [`Recorder::flush`] waits at most: nobody's shutdown is held up by words.
const FLUSH_MAX: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Severity {
    Normal,
    Warning,
}

/// One thing to tell.
#[derive(Debug, Clone, PartialEq)]
pub struct Happening {
    pub on: ObjectReference,
    pub severity: Severity,
    pub reason: String,
    pub message: String,
    /// What was being done ("Binding"); empty for the node's events.
    pub action: String,
    pub at: jiff::Timestamp,
}

#[derive(Clone)]
pub struct Recorder {
    queue: mpsc::Sender<Happening>,
    action: Arc<str>,
    /// `None` when nobody writes.
    pending: Option<Pending>,
}

impl Recorder {
    /// `component` is who speaks (`kubelet`, `default-scheduler`), `instance` where.
    pub fn new(client: &Client, component: &str, instance: &str) -> Recorder {
        let (queue, waiting) = mpsc::channel(WAITING_MAX);
        let pending = Arc::new(watch::Sender::new(0));
        let speaker = Speaker { component: component.to_owned(), instance: instance.to_owned() };
        tokio::spawn(write::run(client.clone(), speaker, waiting, pending.clone()));
        Recorder { queue, action: "".into(), pending: Some(pending) }
    }

    /// For tests: what was told comes out of the receiver.
    pub fn collecting() -> (Recorder, mpsc::Receiver<Happening>) {
        let (queue, told) = mpsc::channel(WAITING_MAX);
        (Recorder { queue, action: "".into(), pending: None }, told)
    }

    /// The same recorder, saying what is being done. Its events are those of events.k8s.io (N-180).
    pub fn doing(&self, action: &str) -> Recorder {
        Recorder { action: action.into(), ..self.clone() }
    }

    /// Returns when everything told so far is written or given up, or after a few seconds. For an
    /// orderly end.
    pub async fn flush(&self) {
        if let Some(pending) = &self.pending {
            let mut pending = pending.subscribe();
            let _ =
                tokio::time::timeout(FLUSH_MAX, pending.wait_for(|pending| *pending == 0)).await;
        }
    }

    pub fn normal(&self, on: &ObjectReference, reason: &str, message: impl Into<String>) {
        self.tell(on, Severity::Normal, reason, message.into());
    }

    pub fn warning(&self, on: &ObjectReference, reason: &str, message: impl Into<String>) {
        self.tell(on, Severity::Warning, reason, message.into());
    }

    fn tell(&self, on: &ObjectReference, severity: Severity, reason: &str, message: String) {
        let happening = Happening {
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
        if self.queue.try_send(happening).is_err() {
            tracing::debug!(reason, "an event was dropped: too many are waiting");
            self.pending.iter().for_each(write::settled);
        }
    }
}

/// What an event is about.
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

/// A part of an object: `spec.containers{app}`.
pub fn part(on: &ObjectReference, field_path: &str) -> ObjectReference {
    ObjectReference { field_path: Some(field_path.to_owned()), ..on.clone() }
}
