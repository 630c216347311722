//! Follows a collection of the store and survives gaps in its history.
//!
//! Not here: reactions to the events (the tasks beside this file), and watches of clients (`verbs::watch`), which end
//! with an error at a gap.

use crate::object::{Event, Index, Store};
use std::sync::Arc;
use std::time::Duration;

/// The pause before a failed watch is tried again.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Delivers a collection's events for as long as the server runs.
pub(crate) struct Follower {
    store: Store,
    collection: String,
    watcher: Option<store::Watcher<Index>>,
}

pub(crate) enum Followed {
    Events(Vec<Arc<Event>>),
    /// Events were lost because the store keeps a limited history. The caller lists everything once; later events are
    /// delivered again.
    Gap,
}

impl Follower {
    /// Follows the collection from now on.
    pub(crate) fn of(store: &Store, collection: &str) -> Self {
        let watcher = store.watch(collection, store.revision()).ok();
        Follower { store: store.clone(), collection: collection.to_owned(), watcher }
    }

    /// Cancel-safe.
    pub(crate) async fn next(&mut self) -> Followed {
        loop {
            if let Some(watcher) = &mut self.watcher {
                if let Ok(events) = watcher.next(1024).await {
                    return Followed::Events(events);
                }
            } else {
                tokio::time::sleep(RETRY_DELAY).await;
            }
            self.watcher = self.store.watch(&self.collection, self.store.revision()).ok();
            if self.watcher.is_some() {
                return Followed::Gap;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::ENVELOPE;
    use store::{Change, Draft, Expect, Memory, Options, Write};

    async fn put(store: &Store, collection: &str, name: &str, size: usize) {
        let head = "{\"metadata\":{\"resourceVersion\":\"";
        let bytes = format!("{head}\"}},\"data\":\"{}\"}}", "x".repeat(size)).into_bytes();
        let write = Write {
            collection: collection.into(),
            name: name.into(),
            expect: Expect::Absent,
            change: Change::Put(Draft { bytes, revision_at: head.len() }),
        };
        assert!(store.write(write).await.is_ok());
    }

    async fn next_event(follower: &mut Follower) -> String {
        let next = tokio::time::timeout(Duration::from_secs(10), follower.next()).await;
        match next.expect("an event comes") {
            Followed::Gap => "gap".into(),
            Followed::Events(events) => {
                events.iter().map(|event| event.object.name()).collect::<Vec<_>>().join(" ")
            }
        }
    }

    /// A-160, W-52: tasks that restore objects continue after the store has dropped events that they had not seen.
    #[tokio::test]
    async fn a_follower_reports_a_gap_and_then_delivers_later_events() {
        let options = Options { history_bytes: 10_000, ..Options::new(ENVELOPE) };
        let store = Store::open_memory(&Memory::default(), options);
        let mut follower = Follower::of(&store, "mine");
        put(&store, "mine", "a", 1).await;
        assert_eq!(next_event(&mut follower).await, "a");
        for number in 0..50 {
            put(&store, "mine", &format!("o{number}"), 1000).await;
        }
        put(&store, "mine", "b", 1).await;
        assert_eq!(next_event(&mut follower).await, "gap");
        put(&store, "mine", "c", 1).await;
        assert_eq!(next_event(&mut follower).await, "c");
    }
}
