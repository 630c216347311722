//! Locks between processes: `landfall image import` runs beside a running landfall.
//!
//! They are `flock`s, so whoever dies lets go. Each holder opens the file anew, so they also keep
//! the tasks of one process apart. They block: never take one on a thread that runs tasks.

use crate::{Error, Result};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::File;
use std::path::Path;

#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    pub(crate) fn exclusive(path: &Path) -> Result<Lock> {
        Lock::take(path, FlockOperation::LockExclusive)
    }

    pub(crate) fn shared(path: &Path) -> Result<Lock> {
        Lock::take(path, FlockOperation::LockShared)
    }

    /// None if somebody else has it.
    pub(crate) fn try_exclusive(path: &Path) -> Result<Option<Lock>> {
        match Lock::take(path, FlockOperation::NonBlockingLockExclusive) {
            Ok(lock) => Ok(Some(lock)),
            Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::WouldBlock => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn take(path: &Path, operation: FlockOperation) -> Result<Lock> {
        let file = File::options().create(true).append(true).open(path);
        let file = file.map_err(Error::io("open", path))?;
        loop {
            match flock(&file, operation) {
                Ok(()) => return Ok(Lock { _file: file }),
                Err(Errno::INTR) => {}
                Err(error) => return Err(Error::io("lock", path)(error.into())),
            }
        }
    }
}
