//! The termination message of an exited container (T-NODE-59), and what its log directory tells (N-48).

use podconfig::ContainerAnnotations;
use std::collections::BTreeMap;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

/// Bytes read from the end of the message file.
const FILE_MAX: u64 = 4096;
/// Lines and bytes taken from the end of the log instead, if the file is empty and the container failed.
const LOG_LINES: usize = 80;
const LOG_MAX: usize = 2048;
/// Bytes read from the end of the log file for them: each record has a time stamp and a tag.
const LOG_READ: u64 = 16 * 1024;

/// The content of the message file. With FallbackToLogsOnError the end of the log, if the file is
/// empty and the container failed.
pub(crate) fn read(kept: &ContainerAnnotations, code: i32, log: &Path) -> String {
    let message = kept.message_file.as_deref().and_then(|file| end_of(file, FILE_MAX));
    let message =
        message.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    if !message.is_empty() || code == 0 || kept.message_policy != "FallbackToLogsOnError" {
        return message;
    }
    end_of(log, LOG_READ).map(|bytes| last_lines(&bytes)).unwrap_or_default()
}

/// At most `max` bytes from the end of a file that the container could write.
fn end_of(path: &Path, max: u64) -> Option<Vec<u8>> {
    let mut file = open_plain(path)?;
    let size = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(size.saturating_sub(max))).ok()?;
    let mut bytes = Vec::new();
    file.take(max).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// Opens a regular file. The container may have replaced it by a link, which is not followed, or by
/// a pipe, which must not block.
fn open_plain(path: &Path) -> Option<std::fs::File> {
    use std::os::unix::fs::OpenOptionsExt;
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    file.metadata().ok()?.is_file().then_some(file)
}

/// The text of the last records of a CRI log, without time stamps and tags.
fn last_lines(log: &[u8]) -> String {
    let text = String::from_utf8_lossy(log);
    let records = text.split_inclusive('\n').filter_map(|record| {
        let mut parts = record.splitn(4, ' ');
        let (_, stream, tag, content) =
            (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let valid = matches!(stream, "stdout" | "stderr");
        let partial = tag.split(':').next() == Some("P");
        valid.then(|| if partial { content.trim_end_matches('\n') } else { content })
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

/// Removes the pod's logs, after its object is gone.
pub(crate) fn remove_logs(log_dir: &Path) {
    if let Err(error) = std::fs::remove_dir_all(log_dir)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!(%error, dir = %log_dir.display(), "removing the pod's logs failed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lifecycle::Kind;

    fn annotations(policy: &str, file: &Path) -> ContainerAnnotations {
        ContainerAnnotations {
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
    fn t_node_59_the_message_is_the_end_of_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("message");
        std::fs::write(&file, "x".repeat(4000) + &"y".repeat(1000)).unwrap();
        let message = read(&annotations("File", &file), 1, Path::new("/nowhere"));
        assert_eq!(message.len(), 4096);
        assert!(message.ends_with('y') && message.starts_with('x'));
    }

    #[test]
    fn n_62_the_log_is_used_only_after_a_failure_without_a_message() {
        let dir = tempfile::tempdir().unwrap();
        let (file, log) = (dir.path().join("message"), dir.path().join("0.log"));
        std::fs::write(&file, "").unwrap();
        let at = "2026-01-02T03:04:05.000000006Z";
        let text = format!("{at} stdout F one\n{at} stderr P tw\n{at} stderr F o\n");
        std::fs::write(&log, text).unwrap();
        let fallback = annotations("FallbackToLogsOnError", &file);
        assert_eq!(read(&fallback, 1, &log), "one\ntwo\n");
        assert_eq!(read(&fallback, 0, &log), "");
        assert_eq!(read(&annotations("File", &file), 1, &log), "");
    }

    #[test]
    fn a_link_or_a_pipe_instead_of_the_file_gives_no_message() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("/etc/passwd", &link).unwrap();
        assert_eq!(read(&annotations("File", &link), 1, Path::new("/nowhere")), "");
        let pipe = dir.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_eq!(read(&annotations("File", &pipe), 1, Path::new("/nowhere")), "");
    }

    #[test]
    fn n_48_restart_counts_are_found_in_the_names_of_logs() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("app")).unwrap();
        for name in ["3.log", "12.log", "12.log.20260101-000000.gz", "x.log"] {
            std::fs::write(dir.path().join("app").join(name), "").unwrap();
        }
        assert_eq!(past_attempts(dir.path()), BTreeMap::from([("app".to_owned(), 12)]));
    }
}
