//! Records do not stay for ever: the newest thousand, for a day, and none of a namespace that is gone.

use super::COLLECTION;
use crate::object::{Object, Stored};
use crate::server::Server;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use store::{Change, Expect, Write};
use tokio::sync::Notify;

/// How many records are kept unless told otherwise.
pub(crate) const KEEP: usize = 1000;
/// How long they are kept.
const LIFE: jiff::SignedDuration = jiff::SignedDuration::from_hours(24);
/// How often somebody looks.
const SWEEP: Duration = Duration::from_secs(60);

/// What the server holds for its records.
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

    /// There is one more: perhaps one too many.
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
            () = tokio::time::sleep(SWEEP) => {}
        }
    }
}

/// Until there are more than are kept. What has only grown older can wait for the next look.
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
    // What is still going on is the last to go, and then the newest.
    records.sort_by_cached_key(|record| {
        (!is_ending(&kind, record), std::cmp::Reverse(record.created()))
    });
    let oldest = clock::now() - LIFE;
    for (place, record) in records.iter().enumerate() {
        let orphaned = !there.contains(record.place().0);
        let old = !is_ending(&kind, record) && is_older(record, oldest);
        if place >= keep || old || orphaned {
            forget(server, record).await;
        }
    }
}

fn is_ending(kind: &api::Kind, record: &Object) -> bool {
    record.field(kind, "outcome") == Some("Ending")
}

fn is_older(record: &Object, than: jiff::Timestamp) -> bool {
    let created = record.meta().creation_timestamp.parse::<jiff::Timestamp>();
    created.is_ok_and(|created| created < than)
}

async fn forget(server: &Server, record: &Arc<Object>) {
    let write = Write {
        collection: COLLECTION.into(),
        name: record.name().to_owned(),
        expect: Expect::Revision(record.revision()),
        change: Change::Delete,
    };
    // Somebody added a step just now, or the store is in trouble: the next round decides.
    let _ = server.store().write(write).await;
}
