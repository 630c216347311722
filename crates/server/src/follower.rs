//! Following a collection for as long as the server runs.
//!
//! Not here: what is done about what happens (`upkeep`), and watches of clients (`verbs::watch`), who
//! are told that they have missed something and begin anew themselves.

use crate::object::{Event, Index};
use crate::server::Server;
use std::sync::Arc;
use std::time::Duration;

/// Before trying again, when the store cannot be followed at all.
const AGAIN: Duration = Duration::from_secs(1);

/// Hears of a collection's events for as long as the server runs.
pub(crate) struct Follower<'a> {
    server: &'a Server,
    collection: String,
    watcher: Option<store::Watcher<Index>>,
}

pub(crate) enum Heard {
    Events(Vec<Arc<Event>>),
    /// The store keeps its history for a while only: there was more than can be told. Whoever follows
    /// looks at everything once; what happens from now on is told again.
    Missed,
}

impl<'a> Follower<'a> {
    /// From now on.
    pub(crate) fn of(server: &'a Server, collection: &str) -> Self {
        let watcher = server.store().watch(collection, server.store().revision()).ok();
        Follower { server, collection: collection.to_owned(), watcher }
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
            let store = self.server.store();
            self.watcher = store.watch(&self.collection, store.revision()).ok();
            if self.watcher.is_some() {
                return Heard::Missed;
            }
        }
    }
}
