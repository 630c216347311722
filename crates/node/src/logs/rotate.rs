//! Keeping log files small: renamed when they have grown, compressed, and the oldest removed
//! (N-159).

use flate2::Compression;
use flate2::write::GzEncoder;
use runtime::{ContainerState, Runtime};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How large, how many, how often. The default is upstream's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rotation {
    pub max_bytes: u64,
    /// Of one container, the one being written included. At least 2.
    pub max_files: usize,
    pub every: Duration,
}

impl Default for Rotation {
    fn default() -> Self {
        Rotation { max_bytes: 10 << 20, max_files: 5, every: Duration::from_secs(10) }
    }
}

/// Rotates for ever; ended by dropping it.
pub async fn run_rotation(runtime: Arc<dyn Runtime>, rotation: Rotation) {
    loop {
        tokio::time::sleep(rotation.every).await;
        rotate_all(&runtime, rotation).await;
    }
}

/// Looks at the log of every running container once. What fails is said and tried again next time.
pub async fn rotate_all(runtime: &Arc<dyn Runtime>, rotation: Rotation) {
    let sandboxes = match runtime.sandboxes().await {
        Ok(sandboxes) => sandboxes,
        Err(error) => {
            tracing::warn!(%error, "logs cannot be rotated: the runtime does not list containers");
            return;
        }
    };
    let running = |state: &ContainerState| matches!(state, ContainerState::Running { .. });
    for container in sandboxes.iter().flat_map(|sandbox| &sandbox.containers) {
        if running(&container.state)
            && let Err(error) = rotate(runtime, &container.id, &container.log_path, rotation).await
        {
            let path = container.log_path.display();
            tracing::warn!(%error, container = container.id, %path, "a log could not be rotated");
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
        // A container that has said nothing; a runtime that was told to keep no log.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    if size < rotation.max_bytes {
        return Ok(());
    }
    let path = log.to_owned();
    tokio::task::spawn_blocking(move || make_room(&path, rotation.max_files)).await??;
    let now = clock::now().strftime("%Y%m%d-%H%M%S").to_string();
    let renamed = beside(log, &now);
    tokio::fs::rename(log, &renamed).await?;
    if let Err(error) = runtime.reopen_log(container).await {
        // Otherwise nobody would find what is still written to it.
        tokio::fs::rename(&renamed, log).await?;
        return Err(error.into());
    }
    Ok(())
}

fn beside(log: &Path, suffix: &str) -> PathBuf {
    let mut name = log.file_name().unwrap_or_default().to_owned();
    name.push(".");
    name.push(suffix);
    log.with_file_name(name)
}

/// Removes leftovers and the oldest, and compresses what was renamed before: the newest renamed
/// file stays plain until the next rotation, since somebody may still be reading it.
fn make_room(log: &Path, max_files: usize) -> io::Result<()> {
    let mut old = rotated(log)?;
    for path in old.extract_if(.., |path| path.extension().is_some_and(|end| end == "tmp")) {
        fs::remove_file(path)?;
    }
    let zipped = |path: &PathBuf| path.extension().is_some_and(|end| end == "gz");
    // A crash after compressing and before removing leaves both.
    let both: Vec<PathBuf> = old
        .iter()
        .filter(|path| !zipped(path) && old.contains(&add(path, "gz")))
        .cloned()
        .collect();
    for path in both {
        fs::remove_file(&path)?;
        old.retain(|other| *other != path);
    }
    // Room for the file being written and the one about to be renamed.
    let excess = old.len().saturating_sub(max_files.saturating_sub(2));
    for path in old.drain(..excess) {
        fs::remove_file(path)?;
    }
    for path in old.iter().filter(|path| !zipped(path)) {
        compress(path)?;
    }
    Ok(())
}

/// Everything renamed from `log`, oldest first: their names are times.
fn rotated(log: &Path) -> io::Result<Vec<PathBuf>> {
    let begin = format!("{}.", log.file_name().unwrap_or_default().to_string_lossy());
    let mut found = Vec::new();
    for entry in fs::read_dir(log.parent().unwrap_or(Path::new(".")))? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(&begin) {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

fn add(path: &Path, end: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(".");
    path.push(end);
    path.into()
}

fn compress(path: &Path) -> io::Result<()> {
    let (zipped, unfinished) = (add(path, "gz"), add(path, "tmp"));
    let mut encoder = GzEncoder::new(File::create(&unfinished)?, Compression::default());
    io::copy(&mut File::open(path)?, &mut encoder)?;
    encoder.finish()?;
    fs::rename(unfinished, zipped)?;
    fs::remove_file(path)
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

    #[test]
    fn n_159_five_files_in_all_old_ones_compressed_and_leftovers_removed() {
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
