//! Deletes old records: the newest thousand are kept for a day, and none of a deleted namespace.
//!
//! If there are too many, the oldest of the namespace with the most records is deleted. So a namespace with fewer records
//! than its share (the total divided by the number of namespaces with records) loses none, however many pods are deleted
//! elsewhere.

use super::closing::{Fate, close, fate_of};
use super::{COLLECTION, read};
use crate::object::{Object, Stored};
use crate::server::Server;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use store::{Change, Expect, Write};
use tokio::sync::Notify;

/// How many records are kept by default.
pub(crate) const KEEP: usize = 1000;
/// How long they are kept.
const LIFETIME: jiff::SignedDuration = jiff::SignedDuration::from_hours(24);
/// How often old records are deleted.
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);

/// The settings of retention.
pub(crate) struct Retention {
    keep: AtomicUsize,
    added: Notify,
}

impl Default for Retention {
    fn default() -> Self {
        Retention { keep: KEEP.into(), added: Notify::new() }
    }
}

impl Retention {
    pub(crate) fn keep(&self, count: usize) {
        self.keep.store(count, Ordering::Relaxed);
        self.added.notify_one();
    }

    fn kept(&self) -> usize {
        self.keep.load(Ordering::Relaxed)
    }

    /// Called when a record is created, which may be one too many.
    pub(crate) fn added(&self) {
        self.added.notify_one();
    }
}

pub(crate) async fn run(server: Server) {
    let (_, _, mut namespaces) = server.store().list_and_watch("namespaces", "");
    loop {
        sweep(&server).await;
        tokio::select! {
            biased;
            () = too_many(&server) => {}
            seen = namespaces.next(1024) => if seen.is_err() {
                namespaces = server.store().list_and_watch("namespaces", "").2;
            },
            () = tokio::time::sleep(SWEEP_INTERVAL) => {}
        }
    }
}

/// Resolves when there are more records than are kept. Old records wait for the next sweep.
async fn too_many(server: &Server) {
    loop {
        server.terminations().added.notified().await;
        if server.store().list(COLLECTION, "", None).1.len() > server.terminations().kept() {
            return;
        }
    }
}

async fn sweep(server: &Server) {
    let (_, mut records) = server.store().list(COLLECTION, "", None);
    let keep = server.terminations().kept();
    let (_, namespaces) = server.store().list("namespaces", "", None);
    let there: BTreeSet<&str> = namespaces.iter().map(|namespace| namespace.name()).collect();
    let Ok(kind) = super::kind(server) else { return };
    // Open records are kept first, then the newest.
    records.sort_by_cached_key(|record| {
        (!is_ending(&kind, record), std::cmp::Reverse(record.created()))
    });
    let surplus = surplus(records.iter().map(|record| record.place().0), keep);
    let oldest = clock::now() - LIFETIME;
    for (place, record) in records.iter().enumerate() {
        let orphaned = !there.contains(record.place().0);
        let ending = is_ending(&kind, record);
        let old = !ending && is_older(record, oldest);
        if surplus.contains(&place) || old || orphaned {
            delete(server, record).await;
        } else if ending {
            settle(server, record).await;
        }
    }
}

/// The indexes of the records to delete so that `keep` remain. `namespaces` has the namespace of each record, the ones to
/// keep first.
fn surplus<'a>(namespaces: impl Iterator<Item = &'a str>, keep: usize) -> BTreeSet<usize> {
    let mut places: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    let mut left = 0;
    for (place, namespace) in namespaces.enumerate() {
        places.entry(namespace).or_default().push(place);
        left += 1;
    }
    let mut by_size: BTreeSet<(usize, &str)> =
        places.iter().map(|(namespace, places)| (places.len(), *namespace)).collect();
    let mut gone = BTreeSet::new();
    while left > keep {
        let Some((size, namespace)) = by_size.pop_last() else { break };
        gone.extend(places.get_mut(namespace).and_then(Vec::pop));
        by_size.insert((size - 1, namespace));
        left -= 1;
    }
    gone
}

/// Closes or deletes an open record that no component will complete.
async fn settle(server: &Server, stored: &Arc<Object>) {
    let Some(record) = read(&stored.value()) else { return };
    let namespace = stored.place().0;
    match fate_of(server, namespace, &record, clock::now() - LIFETIME) {
        Fate::Open => {}
        Fate::Close => close(server, namespace, &record).await,
        Fate::Delete => delete(server, stored).await,
    }
}

fn is_ending(kind: &api::Kind, record: &Object) -> bool {
    record.field(kind, "outcome") == Some("Ending")
}

fn is_older(record: &Object, than: jiff::Timestamp) -> bool {
    let created = record.meta().creation_timestamp.parse::<jiff::Timestamp>();
    created.is_ok_and(|created| created < than)
}

async fn delete(server: &Server, record: &Arc<Object>) {
    let write = Write {
        collection: COLLECTION.into(),
        name: record.name().to_owned(),
        expect: Expect::Revision(record.revision()),
        change: Change::Delete,
    };
    // If a step was just added, or the store failed, the next sweep decides.
    let _ = server.store().write(write).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The namespaces of the kept records, the newest first.
    fn kept(namespaces: &str, keep: usize) -> String {
        let gone = surplus(namespaces.split(' '), keep);
        let kept = namespaces.split(' ').enumerate().filter(|(place, _)| !gone.contains(place));
        kept.map(|(_, namespace)| namespace).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_oldest_records_of_the_namespace_with_the_most_are_deleted() {
        for (namespaces, keep, wanted) in [
            ("a a a a", 4, "a a a a"),
            ("a a a a", 2, "a a"),
            ("a a a a a b", 3, "a a b"),
            ("b a a a a a", 3, "b a a"),
            ("a a b b c c", 3, "a b c"),
            ("a b a b a b c", 5, "a b a b c"),
            ("a b", 0, ""),
        ] {
            assert_eq!(kept(namespaces, keep), wanted, "{keep} of {namespaces}");
        }
    }

    #[test]
    fn churn_in_one_namespace_does_not_evict_the_records_of_another() {
        let churn = std::iter::repeat_n("churn", 1050);
        let gone = surplus(churn.chain(std::iter::repeat_n("quiet", 3)), KEEP);
        assert_eq!(gone, (997..1050).collect());
    }
}
