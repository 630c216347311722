//! Records what an agent receives about its pods, in lists and watches.

use crate::event_log::{Agent, Event, EventLog, Name};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

#[derive(Clone)]
pub(super) struct WatchObserver {
    log: EventLog,
    agent: Agent,
    /// The uids of the pods that this agent knows.
    known: Arc<Mutex<BTreeSet<Name>>>,
}

/// One response that is being read.
pub(super) struct ObservedResponse {
    observer: WatchObserver,
    watch: bool,
    /// Received bytes that are not yet a complete line or a complete list.
    unread: Vec<u8>,
}

#[derive(Deserialize)]
struct WatchLine {
    #[serde(rename = "type")]
    kind: String,
    object: Object,
}

#[derive(Deserialize)]
struct List {
    #[serde(default)]
    items: Vec<Object>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Object {
    metadata: Metadata,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Metadata {
    uid: String,
    deletion_timestamp: Option<String>,
    deletion_grace_period_seconds: Option<i64>,
}

impl WatchObserver {
    pub(super) fn new(log: EventLog, agent: Agent) -> WatchObserver {
        WatchObserver { log, agent, known: Arc::default() }
    }

    /// None: the request is not about the agent's pods.
    pub(super) fn of_request(&self, uri: &http::Uri) -> Option<ObservedResponse> {
        let query = uri.query().unwrap_or_default();
        let about =
            !self.log.disabled && uri.path() == "/api/v1/pods" && query.contains("spec.nodeName");
        let watch = query.contains("watch=");
        about.then(|| ObservedResponse { observer: self.clone(), watch, unread: Vec::new() })
    }

    fn observed(&self, object: &Object) {
        let metadata = &object.metadata;
        let uid: Name = metadata.uid.as_str().into();
        let grace = metadata.deletion_timestamp.as_ref();
        let grace = grace.map(|_| metadata.deletion_grace_period_seconds.unwrap_or_default());
        self.known().insert(uid.clone());
        self.log.record(Event::PodObserved { by: self.agent.clone(), uid, grace });
    }

    fn gone(&self, uid: &str) {
        self.known().remove(uid);
        self.log.record(Event::PodGone { by: self.agent.clone(), uid: uid.into() });
    }

    fn known(&self) -> std::sync::MutexGuard<'_, BTreeSet<Name>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ObservedResponse {
    pub(super) fn read(&mut self, data: &[u8]) {
        self.unread.extend_from_slice(data);
        if !self.watch {
            return;
        }
        while let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.unread.drain(..=end).collect();
            let Ok(line) = serde_json::from_slice::<WatchLine>(&line) else { continue };
            match line.kind.as_str() {
                "ADDED" | "MODIFIED" => self.observer.observed(&line.object),
                "DELETED" => self.observer.gone(&line.object.metadata.uid),
                _ => {}
            }
        }
    }

    /// A list counts when it is complete. Pods that it does not contain are gone.
    pub(super) fn end(&mut self) {
        if self.watch {
            return;
        }
        let unread = std::mem::take(&mut self.unread);
        let Ok(list) = serde_json::from_slice::<List>(&unread) else { return };
        let listed: BTreeSet<&str> =
            list.items.iter().map(|object| object.metadata.uid.as_str()).collect();
        let gone: Vec<Name> =
            self.observer.known().iter().filter(|uid| !listed.contains(&***uid)).cloned().collect();
        list.items.iter().for_each(|object| self.observer.observed(object));
        gone.iter().for_each(|uid| self.observer.gone(uid));
    }
}
