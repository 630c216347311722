//! Fills an empty store with the objects of another one, with new revisions.
//!
//! Every object gets a new revision, in the order of creation, so a revision that a client remembers from the other store
//! never refers to anything in this one.
//! Not here: the format of a backup, and the first revision (the server).

use std::sync::Arc;

use crate::batch::NAME_BYTES_MAX;
use crate::{Backend, Draft, Error, embedded, etcd};

/// One object to restore.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub collection: Arc<str>,
    /// `namespace/name`, or just `name`.
    pub name: String,
    pub draft: Draft,
}

/// Fills the store with `entries`; all revisions are greater than `after`. The store must be empty: the file must not
/// exist, and etcd must have no key under the prefix. A failed restore into etcd removes what it wrote; a partial file is
/// left for the caller to remove.
pub async fn restore(backend: Backend, after: u64, entries: Vec<Entry>) -> Result<(), Error> {
    for entry in &entries {
        check(entry)?;
    }
    match backend {
        Backend::Embedded { path } => embedded::restore(path, after, entries).await,
        Backend::Etcd(options) => etcd::restore(options, after, entries).await,
    }
}

fn check(entry: &Entry) -> Result<(), Error> {
    let refused = |what| Err(Error::Refused { name: entry.name.clone(), what });
    if entry.collection.len().max(entry.name.len()) > NAME_BYTES_MAX {
        return refused("its name is too long");
    }
    if entry.collection.is_empty() {
        return refused("it has no collection");
    }
    entry.draft.split(&entry.name).map(drop)
}
