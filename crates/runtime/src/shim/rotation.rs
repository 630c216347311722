//! Starts a new log file when the current one reaches its maximum size (N-159).
//!
//! The agent rotates as well, but only every ten seconds, and a container can write gigabytes in that time. The
//! agent compresses the files that are renamed here.

use crate::LogLimits;
use jiff::Timestamp;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The size of the current file and the limits.
pub(crate) struct Rotation {
    limits: LogLimits,
    written: u64,
}

impl Rotation {
    pub(crate) fn new(limits: LogLimits) -> Rotation {
        Rotation { limits, written: 0 }
    }

    /// Continues with a file of this size.
    pub(crate) fn start_file(&mut self, length: u64) {
        self.written = length;
    }

    pub(crate) fn add(&mut self, bytes: usize) {
        self.written = self.written.saturating_add(bytes as u64);
    }

    /// Whether to rotate before writing this many bytes. An empty file is never rotated.
    pub(crate) fn is_due(&self, bytes: usize) -> bool {
        self.written > 0 && self.written.saturating_add(bytes as u64) > self.limits.max_bytes
    }

    /// Renames the current file.
    pub(crate) fn rename(log: &Path, now: Timestamp) -> io::Result<()> {
        let mut renamed = log.as_os_str().to_owned();
        // With nanoseconds, because there may be several files per second. Names must sort by time.
        renamed.push(now.strftime(".%Y%m%d-%H%M%S.%9f").to_string());
        match fs::rename(log, PathBuf::from(renamed)) {
            // The agent has renamed it already.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            renamed => renamed,
        }
    }

    /// Removes the oldest files beyond the limit.
    pub(crate) fn remove_oldest(&self, log: &Path) -> io::Result<()> {
        let old = rotated(log)?;
        let excess = old.len().saturating_sub(self.limits.max_files.saturating_sub(1));
        for path in &old[..excess] {
            let _ = fs::remove_file(path); // The agent may have removed it already.
        }
        Ok(())
    }
}

/// All rotated files of `log`, oldest first.
fn rotated(log: &Path) -> io::Result<Vec<PathBuf>> {
    let (Some(directory), Some(name)) = (log.parent(), log.file_name()) else {
        return Ok(Vec::new());
    };
    let prefix = format!("{}.", name.to_string_lossy());
    let entries = fs::read_dir(directory)?.flatten();
    let ours = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix));
    let mut found: Vec<PathBuf> = ours.map(|entry| entry.path()).collect();
    found.sort();
    Ok(found)
}
