//! What can go wrong underneath, said in words that name the file or the server concerned.

use std::path::PathBuf;
use std::sync::Arc;

/// Why the store could not do what was asked. Cheap to clone: a failed commit is told to every
/// writer of its batch.
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
    #[error("failed {doing} etcd")]
    Etcd { doing: &'static str, source: Arc<dyn std::error::Error + Send + Sync> },
    #[error("etcd key {key:?} is damaged: {what}")]
    EtcdValue { key: String, what: &'static str },
    #[error("etcd has ended our watch: {why:?}")]
    EtcdEnded { why: String },
    #[error("etcd did not answer in time while {doing}")]
    Timeout { doing: &'static str },
    #[error("cannot store {name:?}: {what}")]
    Refused { name: String, what: &'static str },
    #[error("the store is closed")]
    Closed,
}

/// The history asked for is no longer (or was never) kept; the caller must list again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("history before revision {oldest} is no longer kept")]
pub struct Compacted {
    /// The oldest revision that can still be asked for.
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
