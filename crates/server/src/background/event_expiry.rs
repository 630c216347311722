//! Deletes Events an hour after they were last observed.
//!
//! Each version of an Event is decoded once, when it is new, and then waits for its expiry. A sweep lists all Events,
//! which is cheap, and decodes only the new ones.

use crate::object::{Object, Stored};
use crate::server::Server;
use api::value::ValueExt;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use store::{Change, Expect, Write, WriteError};

const COLLECTION: &str = "events";
/// How long Events are kept.
const LIFETIME: jiff::SignedDuration = jiff::SignedDuration::from_secs(3600);
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);

pub(crate) async fn run(server: Server) {
    let mut ages = Ages::default();
    loop {
        tokio::time::sleep(SWEEP_INTERVAL).await;
        ages.learn(&server.store().list(COLLECTION, "", None).1);
        for (age, name) in ages.older_than(clock::now() - LIFETIME) {
            let write = Write {
                collection: COLLECTION.into(),
                name: name.clone(),
                // Fails if it was observed again since.
                expect: Expect::Revision(age.1),
                change: Change::Delete,
            };
            match server.store().write(write).await {
                Ok(_) | Err(WriteError::Conflict { .. }) => {}
                // The store failed: the next sweep tries again.
                Err(_) => drop(ages.due.insert(age, name)),
            }
        }
    }
}

/// When each version of an Event was last observed. The entry of an Event that was deleted or observed again stays
/// until it is due.
#[derive(Default)]
struct Ages {
    /// Events up to this revision have been decoded.
    read: u64,
    due: BTreeMap<Age, String>,
}

/// When it was observed, and the revision that says so.
type Age = (jiff::Timestamp, u64);

impl Ages {
    fn learn(&mut self, events: &[Arc<Object>]) {
        let read = self.read;
        for event in events.iter().filter(|event| event.revision() > read) {
            self.read = self.read.max(event.revision());
            if let Some(observed) = last_observed(&event.value()) {
                self.due.insert((observed, event.revision()), event.name().to_owned());
            }
        }
    }

    fn older_than(&mut self, oldest: jiff::Timestamp) -> BTreeMap<Age, String> {
        let later = self.due.split_off(&(oldest, 0));
        std::mem::replace(&mut self.due, later)
    }
}

fn last_observed(event: &Value) -> Option<jiff::Timestamp> {
    let times = [
        event.text(&["series", "lastObservedTime"]),
        event.text(&["lastTimestamp"]),
        event.text(&["eventTime"]),
        event.text(&["metadata", "creationTimestamp"]),
    ];
    times.iter().filter_map(|time| time.parse().ok()).max()
}
