//! Reserved disk space, so that objects can be deleted when the disk is full.
//!
//! Deleting needs space too, because the log never overwrites valid data. So there is a small file beside the log. When
//! the disk is full, the file is removed, and its space is used for deletions only. When the file can be created again,
//! there is disk space again.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use super::log::{Place, is_full};
use crate::Error;

/// Enough for the log to be opened after a crash and for thousands of deletions.
const RESERVE_BYTES: usize = 2 << 20;
/// This much must be free besides the reserve before writes are accepted again, so that the write that just failed will
/// succeed.
const ROOM_BYTES: usize = 1 << 20;
/// Not zeros, for which a file system may not allocate space.
const FILLING: u8 = 0xa5;

#[derive(Debug, Clone)]
pub(super) struct Reserve {
    place: Place,
    path: Option<PathBuf>,
}

impl Reserve {
    pub(super) fn beside(place: &Place) -> Reserve {
        let path = place.file().map(|path| {
            let mut name = path.as_os_str().to_owned();
            name.push(".reserve");
            PathBuf::from(name)
        });
        Reserve { place: place.clone(), path }
    }

    /// Creates the file if it does not exist. Fails if there is no disk space.
    pub(super) fn restore(&self) -> Result<(), Error> {
        self.make().or_else(|error| match is_full(&error) {
            true => Err(Error::Full { path: self.place.path(), source: Arc::new(error) }),
            false => {
                tracing::warn!(%error, "reserving disk space for deletions failed");
                Ok(())
            }
        })
    }

    fn make(&self) -> io::Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        if fs::metadata(path).is_ok_and(|found| found.len() >= RESERVE_BYTES as u64) {
            return Ok(());
        }
        let made = (|| {
            let mut options = fs::OpenOptions::new();
            let mut file =
                options.write(true).create(true).truncate(true).mode(0o600).open(path)?;
            file.write_all(&vec![FILLING; RESERVE_BYTES + ROOM_BYTES])?;
            // Some file systems allocate only now.
            file.sync_all()?;
            file.set_len(RESERVE_BYTES as u64)
        })();
        if made.is_err() {
            let _ = fs::remove_file(path);
        }
        made
    }

    /// Frees the space for the log. False if there was no file.
    pub(super) fn release(&self) -> bool {
        self.path.as_ref().is_some_and(|path| fs::remove_file(path).is_ok())
    }
}
