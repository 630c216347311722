//! Following a collection for as long as the server runs.
//!
//! Not here: what is done about what happens (`upkeep`), and watches of clients (`verbs::watch`), who
//! are told that they have missed something and begin anew themselves.

use crate::object::{Event, Index, Store};
use std::sync::Arc;
use std::time::Duration;

/// Before trying again, when the store cannot be followed at all.
const AGAIN: Duration = Duration::from_secs(1);

/// Hears of a collection's events for as long as the server runs.
pub(crate) struct Follower {
    store: Store,
    collection: String,
    watcher: Option<store::Watcher<Index>>,
}

pub(crate) enum Heard {
    Events(Vec<Arc<Event>>),
    /// The store keeps its history for a while only: there was more than can be told. Whoever follows
    /// looks at everything once; what happens from now on is told again.
    Missed,
}

impl Follower {
    /// From now on.
    pub(crate) fn of(store: &Store, collection: &str) -> Self {
        let watcher = store.watch(collection, store.revision()).ok();
        Follower { store: store.clone(), collection: collection.to_owned(), watcher }
    }

    /// Cancel-safe.
    pub(crate) async fn next(&mut self) -> Heard {
        loop {
            if let Some(watcher) = &mut self.watcher {
                if let Ok(events) = watcher.next(1024).await {
                    return Heard::Events(events);
                }
            } else {
                tokio::time::sleep(AGAIN).await;
            }
            self.watcher = self.store.watch(&self.collection, self.store.revision()).ok();
            if self.watcher.is_some() {
                return Heard::Missed;
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

    async fn heard(follower: &mut Follower) -> String {
        let heard = tokio::time::timeout(Duration::from_secs(10), follower.next()).await;
        match heard.expect("something is heard") {
            Heard::Missed => "missed".into(),
            Heard::Events(events) => {
                events.iter().map(|event| event.object.name()).collect::<Vec<_>>().join(" ")
            }
        }
    }

    /// A-160, W-52: those who put things back go on when the store has let go of what they had not seen.
    #[tokio::test]
    async fn who_missed_something_is_told_so_and_goes_on_hearing() {
        let options = Options { history_bytes: 10_000, ..Options::new(ENVELOPE) };
        let store = Store::open_memory(&Memory::default(), options);
        let mut follower = Follower::of(&store, "mine");
        put(&store, "mine", "a", 1).await;
        assert_eq!(heard(&mut follower).await, "a");
        for number in 0..50 {
            put(&store, "mine", &format!("o{number}"), 1000).await;
        }
        put(&store, "mine", "b", 1).await;
        assert_eq!(heard(&mut follower).await, "missed");
        put(&store, "mine", "c", 1).await;
        assert_eq!(heard(&mut follower).await, "c");
    }
}
