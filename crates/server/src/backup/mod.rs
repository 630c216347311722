//! Backup and restore: one file with all objects and keys of the cluster.
//!
//!     store: snapshot ─┐
//!                      ├▶ format::Encoder ▶ the client   (`landfall backup`)
//!     pki, admin.token ┘
//!     file ▶ format::decode, everything verified ▶ restore  (`landfall restore`)
//!
//! A backup contains the CA's private key and all Secrets. So it is not served over the network: only a user who can read
//! the data directory, which has the keys anyway, can get one.

mod format;
mod restore;
#[cfg(test)]
mod tests;

pub use format::{Contents, Flaw, Header};
pub(crate) use restore::unfinished;
pub use restore::{Restored, restore};

use crate::object::Store;
use format::{Encoder, FILES};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::io::{AsyncWrite, AsyncWriteExt as _};

/// The timeout for a client that stops reading a backup.
const STALL_MAX: Duration = Duration::from_secs(60);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot {doing} {}", path.display())]
    File { doing: &'static str, path: PathBuf, source: std::io::Error },
    #[error("cannot use {}: {flaw}", path.display())]
    Flawed { path: PathBuf, flaw: Flaw },
    #[error(
        "{} is not empty ({found} is there): restore into a directory that does not exist yet, with \
         --data-dir, or move the old one away", path.display()
    )]
    NotEmpty { path: PathBuf, found: String },
    #[error("{}", hint(.0))]
    Store(#[source] store::Error),
    #[error("cannot send the backup")]
    Send(#[source] std::io::Error),
}

fn hint(error: &store::Error) -> &'static str {
    match error {
        store::Error::EtcdNotEmpty { .. } | store::Error::EtcdUnfinished { .. } => {
            "nothing was restored: only an etcd without objects of landfall can be restored into"
        }
        _ => "the store failed",
    }
}

/// Creates backups of a running server.
#[derive(Clone)]
pub struct Backups {
    store: Store,
    data_dir: PathBuf,
}

impl Backups {
    pub(crate) fn new(store: Store, data_dir: &Path) -> Backups {
        Backups { store, data_dir: data_dir.to_owned() }
    }

    /// Writes a backup at one revision, including every write that was acknowledged before.
    pub async fn write(&self, out: &mut (impl AsyncWrite + Unpin)) -> Result<(), Error> {
        let snapshot = self.store.snapshot().await.map_err(Error::Store)?;
        let header = Header {
            revision: snapshot.revision,
            taken_at: clock::now_rfc3339(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        let (mut encoder, start) = Encoder::start(&header);
        send(out, &start).await?;
        for name in FILES {
            let path = self.data_dir.join(name);
            let bytes = std::fs::read(&path);
            let bytes = bytes.map_err(|source| Error::File { doing: "read", path, source })?;
            send(out, &encoder.file(name, &bytes)).await?;
        }
        for (collection, object) in snapshot.objects.iter().filter(|(c, _)| is_kept(c)) {
            send(out, &encoder.object(collection, object)).await?;
        }
        send(out, &encoder.end()).await
    }
}

/// Server heartbeats are not part of a backup.
fn is_kept(collection: &str) -> bool {
    collection != crate::background::server_heartbeats::COLLECTION
}

/// Sends with a timeout, because a snapshot keeps old versions in memory.
async fn send(out: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> Result<(), Error> {
    let sent = tokio::time::timeout(STALL_MAX, out.write_all(bytes)).await;
    sent.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into())).map_err(Error::Send)
}

/// Reads a backup and verifies all of it.
pub fn read(path: &Path) -> Result<Contents, Error> {
    let file = |source| Error::File { doing: "read", path: path.to_owned(), source };
    let bytes = std::fs::read(path).map_err(file)?;
    format::decode(&bytes).map_err(|flaw| Error::Flawed { path: path.to_owned(), flaw })
}
