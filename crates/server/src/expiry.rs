//! Events are forgotten an hour after they were last seen.
//!
//! Each version of an event is decoded once, when it is new, and then waits for its time. A sweep passes by
//! all events, which costs little, and reads only those it has not seen.

use crate::object::{Object, Stored};
use crate::server::Server;
use api::value::ValueExt;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use store::{Change, Expect, Write, WriteError};

const COLLECTION: &str = "events";
///
const LIFE: jiff::SignedDuration = jiff::SignedDuration::from_secs(3600);
const SWEEP: Duration = Duration::from_secs(60);

pub(crate) async fn forget_events(server: Server) {
    let mut ages = Ages::default();
    loop {
        tokio::time::sleep(SWEEP).await;
        ages.learn(&server.store().list(COLLECTION, "", None).1);
        for (age, name) in ages.older_than(clock::now() - LIFE) {
            let write = Write {
                collection: COLLECTION.into(),
                name: name.clone(),
                // Not if it was seen again since.
                expect: Expect::Revision(age.1),
                change: Change::Delete,
            };
            match server.store().write(write).await {
                Ok(_) | Err(WriteError::Conflict { .. }) => {}
                // The store is in trouble: the next round tries again.
                Err(_) => drop(ages.due.insert(age, name)),
            }
        }
    }
}

/// When each version of an event was last seen. What is forgotten or seen again leaves its entry until
/// that is due.
#[derive(Default)]
struct Ages {
    /// Everything up to here has been read.
    read: u64,
    due: BTreeMap<Age, String>,
}

/// When it was seen, and the revision that says so.
type Age = (jiff::Timestamp, u64);

impl Ages {
    fn learn(&mut self, events: &[Arc<Object>]) {
        let read = self.read;
        for event in events.iter().filter(|event| event.revision() > read) {
            self.read = self.read.max(event.revision());
            if let Some(seen) = last_seen(&event.value()) {
                self.due.insert((seen, event.revision()), event.name().to_owned());
            }
        }
    }

    fn older_than(&mut self, oldest: jiff::Timestamp) -> BTreeMap<Age, String> {
        let later = self.due.split_off(&(oldest, 0));
        std::mem::replace(&mut self.due, later)
    }
}

fn last_seen(event: &Value) -> Option<jiff::Timestamp> {
    let times = [
        event.text(&["series", "lastObservedTime"]),
        event.text(&["lastTimestamp"]),
        event.text(&["eventTime"]),
        event.text(&["metadata", "creationTimestamp"]),
    ];
    times.iter().filter_map(|time| time.parse().ok()).max()
}
