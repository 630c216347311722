//! Rotates log files: renames large ones, compresses renamed ones, removes the oldest (N-159).

use flate2::Compression;
use flate2::write::GzEncoder;
use runtime::{ContainerState, LogLimits, Runtime};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How long a client waits for the new file of a log that is being rotated, and how often it looks.
const ROTATION_MAX: Duration = Duration::from_secs(2);
const ROTATION_POLL: Duration = Duration::from_millis(10);

/// Limits of log files. The defaults are upstream's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rotation {
    pub max_bytes: u64,
    /// Files per container, including the current one. At least 2.
    pub max_files: usize,
    pub every: Duration,
}

impl Default for Rotation {
    fn default() -> Self {
        let LogLimits { max_bytes, max_files } = LogLimits::default();
        Rotation { max_bytes, max_files, every: Duration::from_secs(10) }
    }
}

/// Rotates logs until the future is dropped.
pub async fn run_rotation(runtime: Arc<dyn Runtime>, rotation: Rotation) {
    loop {
        tokio::time::sleep(rotation.every).await;
        rotate_all(&runtime, rotation).await;
    }
}

/// Checks the log of every running container once. Logs errors; the next call tries again.
pub async fn rotate_all(runtime: &Arc<dyn Runtime>, rotation: Rotation) {
    let sandboxes = match runtime.sandboxes().await {
        Ok(sandboxes) => sandboxes,
        Err(error) => {
            tracing::warn!(%error, "listing containers failed; logs are not rotated");
            return;
        }
    };
    let running = |state: &ContainerState| matches!(state, ContainerState::Running { .. });
    for container in sandboxes.iter().flat_map(|sandbox| &sandbox.containers) {
        if running(&container.state)
            && let Err(error) = rotate(runtime, &container.id, &container.log_path, rotation).await
        {
            let path = container.log_path.display();
            tracing::warn!(%error, container = container.id, %path, "rotating a log failed");
        }
    }
}

async fn rotate(
    runtime: &Arc<dyn Runtime>,
    container: &str,
    log: &Path,
    rotation: Rotation,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let size = match tokio::fs::metadata(log).await {
        Ok(found) => found.len(),
        // No output yet, or a runtime that keeps no log.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let path = log.to_owned();
    if size < rotation.max_bytes {
        // A runtime that rotates by itself does not compress old files.
        return Ok(tokio::task::spawn_blocking(move || compress_old(&path)).await??);
    }
    tokio::task::spawn_blocking(move || make_room(&path, rotation.max_files)).await??;
    let now = clock::now().strftime("%Y%m%d-%H%M%S").to_string();
    let renamed = with_suffix(log, &now);
    tokio::fs::rename(log, &renamed).await?;
    if let Err(error) = runtime.reopen_log(container).await {
        // The container still writes to the renamed file: undo the renaming.
        tokio::fs::rename(&renamed, log).await?;
        return Err(error.into());
    }
    Ok(())
}

/// Removes temporary files and the oldest logs, and compresses renamed ones. The newest renamed file stays
/// uncompressed until the next rotation, because a client may still be reading it.
fn make_room(log: &Path, max_files: usize) -> io::Result<()> {
    let mut old = rotated(log)?;
    for path in old.extract_if(.., |path| path.extension().is_some_and(|end| end == "tmp")) {
        fs::remove_file(path)?;
    }
    let compressed = |path: &PathBuf| path.extension().is_some_and(|end| end == "gz");
    // A crash between compressing and removing leaves both files.
    let both: Vec<PathBuf> = old
        .iter()
        .filter(|path| !compressed(path) && old.contains(&with_suffix(path, "gz")))
        .cloned()
        .collect();
    for path in both {
        fs::remove_file(&path)?;
        old.retain(|other| *other != path);
    }
    // Leave room for the current file and the one about to be renamed.
    let excess = old.len().saturating_sub(max_files.saturating_sub(2));
    for path in old.drain(..excess) {
        fs::remove_file(path)?;
    }
    for path in old.iter().filter(|path| !compressed(path)) {
        compress(path)?;
    }
    Ok(())
}

/// Compresses the renamed files except the newest.
fn compress_old(log: &Path) -> io::Result<()> {
    let plain = plain_rotated(log)?;
    let older = plain.len().saturating_sub(1);
    plain[..older].iter().try_for_each(|path| compress(path))
}

/// The renamed files of `log` that are not compressed, oldest first.
pub(super) fn plain_rotated(log: &Path) -> io::Result<Vec<PathBuf>> {
    let mut old = rotated(log)?;
    old.retain(|path| !path.extension().is_some_and(|end| end == "gz" || end == "tmp"));
    Ok(old)
}

/// Opens the current file. It does not exist for a moment during a rotation: after the old file was renamed and
/// before the runtime has created the new one.
pub(crate) async fn open_current(log: &Path) -> io::Result<tokio::fs::File> {
    let end = Instant::now() + ROTATION_MAX;
    loop {
        match tokio::fs::File::open(log).await {
            Err(error)
                if error.kind() == io::ErrorKind::NotFound
                    && Instant::now() < end
                    && !rotated(log).unwrap_or_default().is_empty() =>
            {
                tokio::time::sleep(ROTATION_POLL).await;
            }
            opened => return opened,
        }
    }
}

/// All renamed files of `log`, oldest first: their suffixes are times.
fn rotated(log: &Path) -> io::Result<Vec<PathBuf>> {
    let prefix = format!("{}.", log.file_name().unwrap_or_default().to_string_lossy());
    let mut found = Vec::new();
    for entry in fs::read_dir(log.parent().unwrap_or(Path::new(".")))? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(&prefix) {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(".");
    path.push(suffix);
    path.into()
}

/// Does nothing if the runtime has removed the file meanwhile.
fn compress(path: &Path) -> io::Result<()> {
    let (compressed, unfinished) = (with_suffix(path, "gz"), with_suffix(path, "tmp"));
    let compress = || {
        let mut plain = File::open(path)?;
        let mut encoder = GzEncoder::new(File::create(&unfinished)?, Compression::default());
        io::copy(&mut plain, &mut encoder)?;
        encoder.finish()?;
        fs::rename(&unfinished, compressed)?;
        fs::remove_file(path)
    };
    match compress() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[tokio::test(start_paused = true)]
    async fn n_159_a_client_that_comes_during_a_rotation_waits_for_the_new_file() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("0.log");
        let missing = open_current(&log).await.unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound, "it was never there");
        fs::write(dir.path().join("0.log.20260101-000000"), "old").unwrap();
        let (opened, ()) = tokio::join!(open_current(&log), async {
            tokio::time::sleep(ROTATION_POLL * 3).await;
            fs::write(&log, "new").unwrap();
        });
        let mut text = String::new();
        opened.unwrap().into_std().await.read_to_string(&mut text).unwrap();
        assert_eq!(text, "new");
    }

    #[test]
    fn n_159_old_files_are_compressed_and_at_most_five_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("0.log");
        for name in [
            "0.log",
            "0.log.20260101-000000.gz",
            "0.log.20260101-000001.gz",
            "0.log.20260101-000002",
            "0.log.20260101-000002.gz",
            "0.log.20260101-000003",
            "0.log.20260101-000003.tmp",
            "1.log.20260101-000003",
        ] {
            fs::write(dir.path().join(name), name).unwrap();
        }
        make_room(&log, 5).unwrap();
        assert_eq!(
            names(dir.path()),
            [
                "0.log",
                "0.log.20260101-000001.gz",
                "0.log.20260101-000002.gz",
                "0.log.20260101-000003.gz",
                "1.log.20260101-000003",
            ]
        );
        let zipped = File::open(dir.path().join("0.log.20260101-000003.gz")).unwrap();
        let mut text = String::new();
        flate2::read::GzDecoder::new(zipped).read_to_string(&mut text).unwrap();
        assert_eq!(text, "0.log.20260101-000003");
    }
}
