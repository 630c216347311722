//! A cursor into a collection's ring of events.

use std::sync::Arc;

use tokio::sync::watch;

use crate::state::Shared;
use crate::{Compacted, Event, Index};

/// Delivers a collection's events, or those of one topic, in revision order, each exactly once, from
/// where it was started.
pub struct Watcher<I: Index> {
    state: Arc<Shared<I>>,
    collection: Arc<str>,
    topic: Option<Arc<str>>,
    /// Every event up to here has been delivered.
    cursor: u64,
    /// Rung when the collection has changed; see `bell`.
    changed: watch::Receiver<u64>,
}

impl<I: Index> Watcher<I> {
    pub(crate) fn new(
        state: Arc<Shared<I>>,
        (collection, topic): (Arc<str>, Option<Arc<str>>),
        cursor: u64,
        changed: watch::Receiver<u64>,
    ) -> Self {
        Watcher { state, collection, topic, cursor, changed }
    }

    pub(crate) fn begin_at(&mut self, revision: u64) {
        self.cursor = revision;
    }

    /// Waits for at least one event, then returns what is there, up to `max`. Cancel-safe.
    pub async fn next(&mut self, max: usize) -> Result<Vec<Arc<Event<I>>>, Compacted> {
        loop {
            self.changed.borrow_and_update();
            let events = self.try_next(max)?;
            if !events.is_empty() {
                return Ok(events);
            }
            if self.changed.changed().await.is_err() {
                // The sender lives in the state, which this watcher keeps alive.
                std::future::pending::<()>().await;
            }
        }
    }

    /// What is there already, up to `max`; empty if nothing new.
    pub fn try_next(&mut self, max: usize) -> Result<Vec<Arc<Event<I>>>, Compacted> {
        let (events, revision) = self.state.read().events_after(
            &self.collection,
            self.topic.as_deref(),
            self.cursor,
            max,
        )?;
        self.cursor = self.cursor.max(revision);
        Ok(events)
    }

    /// Every event up to this revision has been delivered: what a bookmark may carry. Once drained
    /// it is the store's own revision, also when only other collections have changed.
    pub fn revision(&self) -> u64 {
        let state = self.state.read();
        match state.events_after(&self.collection, self.topic.as_deref(), self.cursor, 1) {
            Ok((events, revision)) if events.is_empty() => self.cursor.max(revision),
            Ok(_) | Err(_) => self.cursor,
        }
    }
}

impl<I: Index> Drop for Watcher<I> {
    fn drop(&mut self) {
        if let Some(topic) = &self.topic {
            self.state.leave(&self.collection, topic);
        }
    }
}
