//! A watcher: a position in a collection's ring of events.

use std::sync::Arc;

use tokio::sync::watch;

use crate::partition::Bounds;
use crate::state::Shared;
use crate::{Compacted, Event, Index};

/// Delivers the events of a collection or of one partition in revision order, each exactly once.
pub struct Watcher<I: Index> {
    state: Arc<Shared<I>>,
    collection: Arc<str>,
    partition: Option<Arc<str>>,
    /// Every event up to here has been delivered.
    cursor: u64,
    /// Changes when the collection has changed; see `wakeups`.
    changed: watch::Receiver<u64>,
    bytes_max: usize,
}

impl<I: Index> Watcher<I> {
    pub(crate) fn new(
        state: Arc<Shared<I>>,
        (collection, partition): (Arc<str>, Option<Arc<str>>),
        cursor: u64,
        changed: watch::Receiver<u64>,
    ) -> Self {
        Watcher { state, collection, partition, cursor, changed, bytes_max: usize::MAX }
    }

    /// Limits the bytes of events that are returned at a time (but always returns at least one), because they stay in
    /// memory until a slow reader has read them.
    pub fn limit_bytes(mut self, max: usize) -> Self {
        self.bytes_max = max;
        self
    }

    pub(crate) fn begin_at(&mut self, revision: u64) {
        self.cursor = revision;
    }

    /// Waits for at least one event, then returns up to `max`. Cancel-safe.
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

    /// Returns up to `max` new events without waiting.
    pub fn try_next(&mut self, max: usize) -> Result<Vec<Arc<Event<I>>>, Compacted> {
        let (events, revision) = self.state.read().events_after(
            &self.collection,
            self.partition.as_deref(),
            self.cursor,
            Bounds { events: max, bytes: self.bytes_max },
        )?;
        self.cursor = self.cursor.max(revision);
        Ok(events)
    }

    /// Every event up to this revision has been delivered, so it can be sent as a bookmark. After all events were read it
    /// is the store's revision, even if only other collections have changed.
    pub fn revision(&self) -> u64 {
        let state = self.state.read();
        let one = Bounds { events: 1, bytes: usize::MAX };
        match state.events_after(&self.collection, self.partition.as_deref(), self.cursor, one) {
            Ok((events, revision)) if events.is_empty() => self.cursor.max(revision),
            Ok(_) | Err(_) => self.cursor,
        }
    }
}

impl<I: Index> Drop for Watcher<I> {
    fn drop(&mut self) {
        if let Some(partition) = &self.partition {
            self.state.unsubscribe(&self.collection, partition);
        }
    }
}
