//! The log file, which is rotated when it is full. As upstream, the name of a rotated file contains the time of rotation:
//! `audit.log`, `audit-2026-01-02T03-04-05.678.log`.

use jiff::Timestamp;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// The default size of a full file, as upstream.
const MEGABYTES: u64 = 100;
const MEGABYTE: u64 = 1024 * 1024;

/// The time in the names of rotated files.
const STAMP: &str = "%Y-%m-%dT%H-%M-%S%.3f";

/// How much is kept. Zeros mean as upstream: 100 MB per file, all rotated files, without age limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rotation {
    /// Megabytes per file.
    pub max_size: u64,
    /// How many rotated files are kept.
    pub max_backups: usize,
    /// How many days a rotated file is kept.
    pub max_age: u32,
}

pub(super) struct Log {
    path: PathBuf,
    rotation: Rotation,
    state: Mutex<State>,
}

struct State {
    file: File,
    size: u64,
}

impl Log {
    pub(super) fn open(path: &Path, rotation: Rotation) -> std::io::Result<Log> {
        let log = Log { path: path.to_owned(), rotation, state: Mutex::new(State::open(path)?) };
        log.prune();
        Ok(log)
    }

    /// Appends a line. Rotates a full file first.
    pub(super) fn write(&self, line: &str) -> std::io::Result<()> {
        let mut state = self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let size = line.len() as u64 + 1;
        if state.size > 0 && state.size + size > self.full() {
            match std::fs::rename(&self.path, self.backup_path()) {
                // An earlier call has renamed it and then failed to create the new file.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                renamed => renamed?,
            }
            *state = State::open(&self.path)?;
            self.prune();
        }
        state.size += size;
        state.file.write_all(format!("{line}\n").as_bytes())
    }

    fn full(&self) -> u64 {
        match self.rotation.max_size {
            0 => MEGABYTES * MEGABYTE,
            size => size.saturating_mul(MEGABYTE),
        }
    }

    /// An unused name for the rotated file.
    fn backup_path(&self) -> PathBuf {
        let mut at = clock::now();
        loop {
            let path = self.path.with_file_name(self.backup_name(at));
            if !path.exists() {
                return path;
            }
            at += jiff::SignedDuration::from_millis(1);
        }
    }

    fn backup_name(&self, at: Timestamp) -> String {
        let (stem, extension) = self.name_parts();
        format!("{stem}-{}{extension}", at.strftime(STAMP))
    }

    /// `audit` and `.log`
    fn name_parts(&self) -> (String, String) {
        let text = |part: Option<&OsStr>| part.unwrap_or_default().to_string_lossy().into_owned();
        let extension = self.path.extension().map(|e| format!(".{}", e.to_string_lossy()));
        (text(self.path.file_stem()), extension.unwrap_or_default())
    }

    /// Removes rotated files that are too many or too old. Failures are retried at the next rotation.
    fn prune(&self) {
        let mut backups = self.backups();
        backups.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
        let oldest = match self.rotation.max_age {
            0 => Timestamp::MIN,
            days => clock::now() - jiff::SignedDuration::from_hours(24 * i64::from(days)),
        };
        let count = match self.rotation.max_backups {
            0 => usize::MAX,
            count => count,
        };
        for (place, (at, path)) in backups.iter().enumerate() {
            if (place >= count || *at < oldest)
                && let Err(error) = std::fs::remove_file(path)
            {
                tracing::warn!(path = %path.display(), %error, "removing an old audit log failed");
            }
        }
    }

    fn backups(&self) -> Vec<(Timestamp, PathBuf)> {
        let (stem, extension) = self.name_parts();
        let directory = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let Ok(entries) = std::fs::read_dir(directory.unwrap_or(Path::new("."))) else {
            return Vec::new();
        };
        let known = entries.flatten().filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let stamp = name.strip_prefix(&stem)?.strip_prefix('-')?.strip_suffix(&extension)?;
            let at = jiff::civil::DateTime::strptime(STAMP, stamp).ok()?;
            let at = at.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp();
            Some((at, entry.path()))
        });
        known.collect()
    }
}

impl State {
    fn open(path: &Path) -> std::io::Result<State> {
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
        let size = file.metadata()?.len();
        Ok(State { file, size })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let all = std::fs::read_dir(directory).unwrap();
        let mut names: Vec<String> =
            all.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_full_file_is_rotated_and_max_backups_are_kept() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.log");
        let rotation = Rotation { max_size: 1, max_backups: 2, max_age: 0 };
        let log = Log::open(&path, rotation).unwrap();
        let line = "x".repeat(700 * 1024);
        for _ in 0..5 {
            log.write(&line).unwrap();
        }
        let names = names(directory.path());
        assert_eq!(names.len(), 3, "{names:?}");
        assert!(
            names[..2].iter().all(|name| name.starts_with("audit-2") && name.ends_with(".log"))
        );
        assert_eq!(std::fs::metadata(&path).unwrap().len(), line.len() as u64 + 1);
        assert_eq!(log.backups().len(), 2, "their names can be read again");
    }

    /// As on a full disk: the full file is renamed, and the new one cannot be created.
    #[test]
    fn a_failed_rotation_is_completed_by_the_next_write() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.log");
        let rotation = Rotation { max_size: 1, ..Rotation::default() };
        let log = Log::open(&path, rotation).unwrap();
        let line = "x".repeat(700 * 1024);
        log.write(&line).unwrap();
        std::fs::remove_file(&path).unwrap();
        log.write(&line).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), line.len() as u64 + 1);
    }

    #[test]
    fn rotated_files_are_removed_after_max_age_and_foreign_files_are_kept() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.log");
        let day = jiff::SignedDuration::from_hours(24);
        let log = Log::open(&path, Rotation::default()).unwrap();
        let new = log.backup_name(clock::now() - day);
        for name in [new.as_str(), &log.backup_name(clock::now() - day * 3), "audit-mine.log"] {
            std::fs::write(directory.path().join(name), "").unwrap();
        }
        Log::open(&path, Rotation { max_age: 2, ..Rotation::default() }).unwrap();
        assert_eq!(names(directory.path()), [new.as_str(), "audit-mine.log", "audit.log"]);
    }
}
