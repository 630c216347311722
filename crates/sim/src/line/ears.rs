//! What an agent is told of its pods, as it passes on its line: lists and watches.

use crate::book::{Agent, Book, Name, What};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

#[derive(Clone)]
pub(super) struct Ears {
    book: Book,
    agent: Agent,
    /// The pods that this agent knows of.
    known: Arc<Mutex<BTreeSet<Name>>>,
}

/// To one answer.
pub(super) struct Listening {
    ears: Ears,
    watch: bool,
    /// What came and is not a whole line, or not a whole list, yet.
    unread: Vec<u8>,
}

#[derive(Deserialize)]
struct Line {
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

impl Ears {
    pub(super) fn new(book: Book, agent: Agent) -> Ears {
        Ears { book, agent, known: Arc::default() }
    }

    /// None: this is not about the agent's pods.
    pub(super) fn on(&self, uri: &http::Uri) -> Option<Listening> {
        let query = uri.query().unwrap_or_default();
        let about =
            !self.book.closed && uri.path() == "/api/v1/pods" && query.contains("spec.nodeName");
        let watch = query.contains("watch=");
        about.then(|| Listening { ears: self.clone(), watch, unread: Vec::new() })
    }

    fn told(&self, object: &Object) {
        let metadata = &object.metadata;
        let uid: Name = metadata.uid.as_str().into();
        let grace = metadata.deletion_timestamp.as_ref();
        let grace = grace.map(|_| metadata.deletion_grace_period_seconds.unwrap_or_default());
        self.known().insert(uid.clone());
        self.book.write(What::Told { by: self.agent.clone(), uid, grace });
    }

    fn gone(&self, uid: &str) {
        self.known().remove(uid);
        self.book.write(What::Gone { by: self.agent.clone(), uid: uid.into() });
    }

    fn known(&self) -> std::sync::MutexGuard<'_, BTreeSet<Name>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Listening {
    pub(super) fn hear(&mut self, data: &[u8]) {
        self.unread.extend_from_slice(data);
        if !self.watch {
            return;
        }
        while let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.unread.drain(..=end).collect();
            let Ok(line) = serde_json::from_slice::<Line>(&line) else { continue };
            match line.kind.as_str() {
                "ADDED" | "MODIFIED" => self.ears.told(&line.object),
                "DELETED" => self.ears.gone(&line.object.metadata.uid),
                _ => {}
            }
        }
    }

    /// A list is told when it is complete. What it does not name is gone.
    pub(super) fn end(&mut self) {
        if self.watch {
            return;
        }
        let unread = std::mem::take(&mut self.unread);
        let Ok(list) = serde_json::from_slice::<List>(&unread) else { return };
        let listed: BTreeSet<&str> =
            list.items.iter().map(|object| object.metadata.uid.as_str()).collect();
        let gone: Vec<Name> =
            self.ears.known().iter().filter(|uid| !listed.contains(&***uid)).cloned().collect();
        list.items.iter().for_each(|object| self.ears.told(object));
        gone.iter().for_each(|uid| self.ears.gone(uid));
    }
}
