//! Errors of the engines. The messages name the file or server.

use std::path::PathBuf;
use std::sync::Arc;

/// Cheap to clone: every writer of a batch gets the error of a failed commit.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    #[error("{} is in use by another process", path.display())]
    InUse { path: PathBuf },
    #[error("{} is damaged: {what}", path.display())]
    Damaged { path: PathBuf, what: String },
    #[error("{} was written in format {found}, this version reads format {known}", path.display())]
    Format { path: PathBuf, found: u64, known: u64 },
    #[error("failed {doing} {}", path.display())]
    Disk { doing: &'static str, path: PathBuf, source: Arc<dyn std::error::Error + Send + Sync> },
    #[error("the disk of {} is full; until there is space, only deletions are possible", path.display())]
    Full { path: PathBuf, source: Arc<std::io::Error> },
    #[error("failed {doing} etcd")]
    Etcd { doing: &'static str, source: Arc<dyn std::error::Error + Send + Sync> },
    #[error("etcd key {key:?} is damaged: {what}")]
    EtcdValue { key: String, what: &'static str },
    #[error("etcd ended the watch: {why:?}")]
    EtcdEnded { why: String },
    #[error("etcd timed out while {doing}")]
    Timeout { doing: &'static str },
    #[error("cannot store {name:?}: {what}")]
    Refused { name: String, what: &'static str },
    #[error("{} exists already", path.display())]
    Exists { path: PathBuf },
    #[error("etcd already holds keys that start with {prefix}")]
    EtcdNotEmpty { prefix: String },
    #[error(
        "a restore into this etcd did not finish; delete all its keys that start with {prefix} \
         (`etcdctl del --prefix {prefix}`) and restore again"
    )]
    EtcdUnfinished { prefix: String },
    #[error("the store is closed")]
    Closed,
}

/// The requested history is not available; the caller has to list again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("history before revision {oldest} is no longer kept")]
pub struct Compacted {
    /// The oldest available revision.
    pub oldest: u64,
}

/// The error with all its causes.
pub(crate) fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}
