//! File locks between processes, because `landfall image import` runs beside a landfall server.
//!
//! They are `flock`s, so the kernel releases them when a process dies. Every lock opens the file again, so that
//! locks also work between tasks of one process. They block: do not take one in an async task.

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
        Lock::acquire(path, FlockOperation::LockExclusive)
    }

    pub(crate) fn shared(path: &Path) -> Result<Lock> {
        Lock::acquire(path, FlockOperation::LockShared)
    }

    /// `None` if the lock is in use.
    pub(crate) fn try_exclusive(path: &Path) -> Result<Option<Lock>> {
        match Lock::acquire(path, FlockOperation::NonBlockingLockExclusive) {
            Ok(lock) => Ok(Some(lock)),
            Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::WouldBlock => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn acquire(path: &Path, operation: FlockOperation) -> Result<Lock> {
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
