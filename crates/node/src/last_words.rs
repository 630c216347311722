//! What an ended container left behind for people: its termination message, its logs (T-NODE-59, N-48).

use crate::config::Notes;
use std::collections::BTreeMap;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

/// Of the file, its end.
const FILE_MAX: u64 = 4096;
/// Of the log, its last lines, when the file says nothing and the container failed.
const LOG_LINES: usize = 80;
const LOG_MAX: usize = 2048;
/// How much of a log file is looked at for them: records have a time stamp and a tag each.
const LOG_READ: u64 = 16 * 1024;

/// The file's text; with FallbackToLogsOnError the end of the log, if the file is empty and the
/// container failed.
pub(crate) fn termination_message(notes: &Notes, code: i32, log: &Path) -> String {
    let written = notes.message_file.as_deref().and_then(|file| end_of(file, FILE_MAX));
    let written =
        written.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    if !written.is_empty() || code == 0 || notes.message_policy != "FallbackToLogsOnError" {
        return written;
    }
    end_of(log, LOG_READ).map(|bytes| last_lines(&bytes)).unwrap_or_default()
}

/// The last bytes of a file that the container could write: never more, whatever it made of it.
fn end_of(path: &Path, max: u64) -> Option<Vec<u8>> {
    let mut file = open_plain(path)?;
    let size = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(size.saturating_sub(max))).ok()?;
    let mut bytes = Vec::new();
    file.take(max).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// A link that the container put there leads nowhere, a pipe holds nobody up.
fn open_plain(path: &Path) -> Option<std::fs::File> {
    use std::os::unix::fs::OpenOptionsExt;
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    file.metadata().ok()?.is_file().then_some(file)
}

/// The contents of the last records of a CRI log, without times and tags.
fn last_lines(log: &[u8]) -> String {
    let text = String::from_utf8_lossy(log);
    let records = text.split_inclusive('\n').filter_map(|record| {
        let mut parts = record.splitn(4, ' ');
        let (_, stream, tag, content) =
            (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let whole = matches!(stream, "stdout" | "stderr");
        let piece = tag.split(':').next() == Some("P");
        whole.then(|| if piece { content.trim_end_matches('\n') } else { content })
    });
    let records: Vec<&str> = records.collect();
    let kept = records[records.len().saturating_sub(LOG_LINES)..].concat();
    let mut from = kept.len().saturating_sub(LOG_MAX);
    while !kept.is_char_boundary(from) {
        from += 1;
    }
    kept[from..].to_owned()
}

/// The highest `<n>.log` of each container in a pod's log directory (N-48).
pub(crate) fn past_attempts(log_dir: &Path) -> BTreeMap<String, u32> {
    let Ok(containers) = std::fs::read_dir(log_dir) else { return BTreeMap::new() };
    let highest = containers.flatten().filter_map(|container| {
        let logs = std::fs::read_dir(container.path()).ok()?;
        let attempts = logs.flatten().filter_map(|log| {
            let name = log.file_name().into_string().ok()?;
            name.split('.').next()?.parse::<u32>().ok()
        });
        Some((container.file_name().into_string().ok()?, attempts.max()?))
    });
    highest.collect()
}

/// The pod's object is gone, and so are its logs.
pub(crate) fn remove_logs(log_dir: &Path) {
    if let Err(error) = std::fs::remove_dir_all(log_dir)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!(%error, dir = %log_dir.display(), "logs were not removed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lifecycle::Kind;

    fn notes(policy: &str, file: &Path) -> Notes {
        Notes {
            hash: String::new(),
            kind: Kind::Regular,
            restart_count: 0,
            message_path: "/dev/termination-log".into(),
            message_policy: policy.into(),
            message_file: Some(file.to_owned()),
            grace_seconds: None,
        }
    }

    #[test]
    fn the_end_of_the_file_is_the_message_t_node_59() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("message");
        std::fs::write(&file, "x".repeat(4000) + &"y".repeat(1000)).unwrap();
        let message = termination_message(&notes("File", &file), 1, Path::new("/nowhere"));
        assert_eq!(message.len(), 4096);
        assert!(message.ends_with('y') && message.starts_with('x'));
    }

    #[test]
    fn the_log_speaks_only_for_failures_that_left_no_message_n_62() {
        let dir = tempfile::tempdir().unwrap();
        let (file, log) = (dir.path().join("message"), dir.path().join("0.log"));
        std::fs::write(&file, "").unwrap();
        let at = "2026-01-02T03:04:05.000000006Z";
        let text = format!("{at} stdout F one\n{at} stderr P tw\n{at} stderr F o\n");
        std::fs::write(&log, text).unwrap();
        let fallback = notes("FallbackToLogsOnError", &file);
        assert_eq!(termination_message(&fallback, 1, &log), "one\ntwo\n");
        assert_eq!(termination_message(&fallback, 0, &log), "");
        assert_eq!(termination_message(&notes("File", &file), 1, &log), "");
    }

    #[test]
    fn a_link_or_a_pipe_for_a_message_says_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("/etc/passwd", &link).unwrap();
        assert_eq!(termination_message(&notes("File", &link), 1, Path::new("/nowhere")), "");
        let pipe = dir.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_eq!(termination_message(&notes("File", &pipe), 1, Path::new("/nowhere")), "");
    }

    #[test]
    fn restart_counts_are_found_in_the_names_of_logs_n_48() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("app")).unwrap();
        for name in ["3.log", "12.log", "12.log.20260101-000000.gz", "x.log"] {
            std::fs::write(dir.path().join("app").join(name), "").unwrap();
        }
        assert_eq!(past_attempts(dir.path()), BTreeMap::from([("app".to_owned(), 12)]));
    }
}
