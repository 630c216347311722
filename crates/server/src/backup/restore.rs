//! Restores a verified backup into a data directory and a store.
//!
//!     DIR/restoring/ ◀── keys, store.redb ──▶ renamed into DIR ──▶ DIR/restoring removed
//!
//! While `restoring` exists, no server starts on the directory. A failed restore is undone.

use super::Error;
use super::format::Contents;
use crate::start::{STORE_FILE, StoreChoice, backend};
use access::pki::{make_private_dir, write_secret};
use jiff::Timestamp;
use std::fs;
use std::path::{Path, PathBuf};

const STAGE: &str = "restoring";
/// Exists on an empty file system.
const LOST_AND_FOUND: &str = "lost+found";

/// No store assigns revisions faster than this, per second.
const REVISIONS_PER_SECOND: u64 = 100_000;
/// No cluster existed before this time: 2024-01-01.
const EPOCH: i64 = 1_704_067_200;
/// The minimum distance to the backup's revision, in case this machine's clock is wrong.
const REVISIONS_SPARE: u64 = 1_000_000_000;

/// The result of a restore.
#[derive(Debug, Clone, Copy)]
pub struct Restored {
    pub objects: usize,
    /// All resource versions are greater than this.
    pub after: u64,
}

/// Whether a restore into this directory did not finish.
pub(crate) fn unfinished(data_dir: &Path) -> bool {
    data_dir.join(STAGE).exists()
}

/// Restores into an empty directory and an empty store.
pub async fn restore(
    contents: Contents,
    data_dir: &Path,
    store: &StoreChoice,
) -> Result<Restored, Error> {
    let made = !data_dir.exists();
    let file = |source| Error::File { doing: "create", path: data_dir.to_owned(), source };
    make_private_dir(data_dir).map_err(file)?;
    is_empty(data_dir)?;
    let stage = Stage::make(data_dir)?;
    let restored = stage.fill(contents, store).await;
    if restored.is_err() {
        stage.undo();
        if made {
            // Fails if there is something in it.
            let _ = fs::remove_dir(data_dir);
        }
    }
    restored
}

fn is_empty(data_dir: &Path) -> Result<(), Error> {
    let path = data_dir.to_owned();
    let entries = fs::read_dir(data_dir);
    let entries = entries.map_err(|source| Error::File { doing: "read", path, source })?;
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    match names.filter(|name| name != LOST_AND_FOUND).min() {
        None => Ok(()),
        Some(found) => Err(Error::NotEmpty { path: data_dir.to_owned(), found }),
    }
}

/// Greater than every revision that a client of this cluster can have seen.
///
/// The cluster has continued after the backup, and may have been restored before, from this backup or another one. So it has
/// assigned revisions that the backup does not know. It cannot have assigned more than a fixed number per second since the
/// epoch, and each restore starts above that.
pub(super) fn after(backup: u64, now: Timestamp) -> u64 {
    let seconds = u64::try_from(now.as_second() - EPOCH).unwrap_or(0);
    (seconds * REVISIONS_PER_SECOND).max(backup + REVISIONS_SPARE)
}

struct Stage<'a> {
    data_dir: &'a Path,
    dir: PathBuf,
}

impl<'a> Stage<'a> {
    /// Of two restores at the same time, one succeeds.
    fn make(data_dir: &'a Path) -> Result<Stage<'a>, Error> {
        let dir = data_dir.join(STAGE);
        match fs::create_dir(&dir) {
            Ok(()) => Ok(Stage { data_dir, dir }),
            Err(source) => Err(Error::File { doing: "create", path: dir, source }),
        }
    }

    async fn fill(&self, contents: Contents, store: &StoreChoice) -> Result<Restored, Error> {
        for (name, bytes) in &contents.files {
            self.put(name, bytes)?;
        }
        let mut objects = contents.objects;
        objects.sort_by_key(|kept| kept.created);
        let restored = Restored {
            objects: objects.len(),
            after: after(contents.header.revision, clock::now()),
        };
        let entries = objects.into_iter().map(|kept| kept.entry).collect();
        let filled = store::restore(backend(store, &self.dir), restored.after, entries).await;
        filled.map_err(|error| match error {
            // The store's error message would be misleading here.
            store::Error::Full { path, source } => {
                let source = std::io::Error::new(source.kind(), source);
                Error::File { doing: "write", path, source }
            }
            error => Error::Store(error),
        })?;
        self.finish()?;
        Ok(restored)
    }

    fn put(&self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        let path = self.dir.join(name);
        let put = || {
            path.parent().map_or(Ok(()), make_private_dir)?;
            write_secret(&path, bytes)
        };
        put().map_err(|source| Error::File { doing: "write", path: path.clone(), source })
    }

    /// Moves the staged files to their final place.
    fn finish(&self) -> Result<(), Error> {
        for name in PARTS {
            let (from, to) = (self.dir.join(name), self.data_dir.join(name));
            if from.exists() {
                let file = |source| Error::File { doing: "create", path: to.clone(), source };
                fs::rename(&from, &to).map_err(file)?;
            }
        }
        let path = self.data_dir.to_owned();
        let sync = || fs::File::open(self.data_dir)?.sync_all();
        let ended = || {
            sync()?;
            fs::remove_dir(&self.dir)?;
            sync()
        };
        ended().map_err(|source| Error::File { doing: "write", path, source })
    }

    fn undo(&self) {
        let _ = fs::remove_dir_all(&self.dir);
        for name in PARTS {
            let path = self.data_dir.join(name);
            let _ = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
        }
    }
}

/// The files that a restore puts into the data directory.
const PARTS: [&str; 3] = ["pki", "admin.token", STORE_FILE];
