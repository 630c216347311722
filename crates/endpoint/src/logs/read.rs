//! Reads a log file, and follows it while its container runs (N-162, N-163).

use super::changes::Changes;
use super::record::Renderer;
use super::rotate::{open_current, plain_rotated};
use super::tail;
use bytes::Bytes;
use jiff::Timestamp;
use runtime::{ContainerState, Runtime};
use std::io::SeekFrom;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::fs::File;
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _};
use tokio::sync::{broadcast, mpsc};

/// Bytes per read.
const BLOCK: usize = 64 * 1024;
/// A record has at most about 16 KiB (N-158); a file with much longer ones is not a log of ours.
const RECORD_MAX: usize = 1024 * 1024;

/// What to return of a log.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Query {
    /// Only this many records from the end; applied before `since`.
    pub tail: Option<u64>,
    /// No older records.
    pub since: Option<Timestamp>,
    pub timestamps: bool,
    pub limit_bytes: Option<u64>,
    /// Continue while the container runs.
    pub follow: bool,
}

/// The container that writes the file; following ends when it exits.
pub struct Writer {
    pub runtime: Arc<dyn Runtime>,
    /// Uid of the pod.
    pub pod: String,
    pub container_id: String,
}

impl Writer {
    /// True as well if the runtime does not answer.
    async fn is_running(&self) -> bool {
        let Ok(sandboxes) = self.runtime.sandboxes_of(&self.pod).await else { return true };
        sandboxes
            .iter()
            .flat_map(|sandbox| &sandbox.containers)
            .find(|container| container.id == self.container_id)
            .is_some_and(|container| {
                matches!(container.state, ContainerState::Running { .. } | ContainerState::Created)
            })
    }

    /// Waits for a change of the pod in the runtime.
    async fn changed(&self, changes: &mut broadcast::Receiver<runtime::Change>) {
        loop {
            match changes.recv().await {
                Ok(change) if change.pod != self.pod => {}
                Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => return,
                Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
            }
        }
    }
}

/// Sends what `query` asks for to `out`. Returns early, without an error, if the receiver is dropped.
pub async fn read(
    path: &Path,
    query: &Query,
    writer: &Writer,
    out: &mpsc::Sender<Bytes>,
) -> std::io::Result<()> {
    // Subscribe before reading, so that no change in between is missed.
    let mut runtime_changes = writer.runtime.changes();
    let mut changes = query.follow.then(|| Changes::of(path.parent().unwrap_or(path)));
    let mut reader = LogReader::open(path, query).await?;
    let mut ended = !query.follow;
    loop {
        match reader.read_to_end(out).await? {
            Progress::Done => return Ok(()),
            Progress::EndOfFile => {}
        }
        if query.follow && reader.is_rotated(path).await {
            // Read what was written to the old file before it was replaced.
            if let Progress::Done = reader.read_to_end(out).await? {
                return Ok(());
            }
            // If the next file is already removed again, the next iteration finds a later one.
            if let Ok(next) = File::open(reader.next_file(path).await).await {
                reader.switch_to(next);
                continue;
            }
        }
        let Some(changes) = changes.as_mut().filter(|_| !ended) else {
            return reader.finish(out).await;
        };
        let check = tokio::select! {
            changed = changes.next() => !changed,
            () = writer.changed(&mut runtime_changes) => true,
            () = out.closed() => return Ok(()),
        };
        // After the container has exited, read to the end once more.
        ended = check && !writer.is_running().await;
    }
}

enum Progress {
    EndOfFile,
    /// The limit is reached, or the receiver is dropped.
    Done,
}

struct LogReader {
    file: File,
    renderer: Renderer,
    block: Vec<u8>,
    /// The start of a record whose end is not written yet.
    partial: Vec<u8>,
    /// Bytes still to read; None when following. Without it, a container that writes faster than
    /// the client reads would keep the request open forever.
    left: Option<u64>,
}

impl LogReader {
    async fn open(path: &Path, query: &Query) -> std::io::Result<LogReader> {
        let mut file = open_current(path).await?;
        let length = file.metadata().await?.len();
        let mut start = 0;
        if let Some(records) = query.tail {
            start = tail::start(&mut file, length, records).await?;
            file.seek(SeekFrom::Start(start)).await?;
        }
        let renderer = Renderer::new(query);
        let left = (!query.follow).then(|| length - start);
        Ok(LogReader { file, renderer, block: vec![0; BLOCK], partial: Vec::new(), left })
    }

    async fn read_to_end(&mut self, out: &mpsc::Sender<Bytes>) -> std::io::Result<Progress> {
        loop {
            if self.renderer.is_full() {
                return Ok(Progress::Done);
            }
            let limit =
                self.left.map_or(BLOCK, |left| BLOCK.min(usize::try_from(left).unwrap_or(BLOCK)));
            let count = self.file.read(&mut self.block[..limit]).await?;
            if count == 0 {
                return Ok(Progress::EndOfFile);
            }
            self.left = self.left.map(|left| left.saturating_sub(count as u64));
            let mut rendered = Vec::new();
            for line in self.block[..count].split_inclusive(|byte| *byte == b'\n') {
                if !line.ends_with(b"\n") {
                    self.partial.extend_from_slice(line);
                } else if self.partial.is_empty() {
                    self.renderer.render(line, &mut rendered);
                } else {
                    self.partial.extend_from_slice(line);
                    self.renderer.render(&self.partial, &mut rendered);
                    self.partial.clear();
                }
            }
            if self.partial.len() > RECORD_MAX {
                return Err(std::io::Error::other("a log record is too long"));
            }
            if !rendered.is_empty() && out.send(rendered.into()).await.is_err() {
                return Ok(Progress::Done);
            }
        }
    }

    /// Renders a last record that has no newline.
    async fn finish(mut self, out: &mpsc::Sender<Bytes>) -> std::io::Result<()> {
        let mut rendered = Vec::new();
        self.renderer.render(&self.partial, &mut rendered);
        if !rendered.is_empty() {
            let _ = out.send(rendered.into()).await;
        }
        Ok(())
    }

    /// Whether another file now has the name, because the log was rotated.
    async fn is_rotated(&self, path: &Path) -> bool {
        let (Ok(ours), Ok(theirs)) = (self.file.metadata().await, tokio::fs::metadata(path).await)
        else {
            return false;
        };
        (ours.dev(), ours.ino()) != (theirs.dev(), theirs.ino())
    }

    /// The file that was started after ours. A log that grows fast may have been rotated more than
    /// once since.
    async fn next_file(&self, path: &Path) -> PathBuf {
        let Ok(ours) = self.file.metadata().await else { return path.to_owned() };
        let log = path.to_owned();
        let next = clock::run_blocking(move || {
            let renamed = plain_rotated(&log).unwrap_or_default();
            let is_ours = |path: &PathBuf| {
                std::fs::metadata(path)
                    .is_ok_and(|it| (it.dev(), it.ino()) == (ours.dev(), ours.ino()))
            };
            // If ours is not found, it is compressed or removed, and all others are newer.
            let after = renamed.iter().position(is_ours).map_or(0, |index| index + 1);
            renamed.into_iter().nth(after)
        });
        next.await.ok().flatten().unwrap_or_else(|| path.to_owned())
    }

    fn switch_to(&mut self, file: File) {
        self.file = file;
        self.partial.clear();
    }
}
