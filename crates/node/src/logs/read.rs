//! Reading one log file from some record on, and following it while its container runs (N-162,
//! N-163).

use super::changes::Changes;
use super::record::Rendering;
use super::tail;
use bytes::Bytes;
use jiff::Timestamp;
use runtime::{ContainerState, Runtime};
use std::io::SeekFrom;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use tokio::fs::File;
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _};
use tokio::sync::{broadcast, mpsc};

const BLOCK: usize = 64 * 1024;
/// A record is at most about 16 KiB (N-158); whatever is much longer is no log of ours.
const RECORD_MAX: usize = 1024 * 1024;

/// What to show of a log.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Query {
    /// Only the last so many records; applied first.
    pub tail: Option<u64>,
    /// Nothing older.
    pub since: Option<Timestamp>,
    pub timestamps: bool,
    pub limit_bytes: Option<u64>,
    /// Go on while the container runs.
    pub follow: bool,
}

/// Who writes the file: following ends with it.
pub struct Writer {
    pub runtime: Arc<dyn Runtime>,
    /// Uid of the pod.
    pub pod: String,
    pub container_id: String,
}

impl Writer {
    /// A runtime that does not answer is not taken for an end.
    async fn runs(&self) -> bool {
        let Ok(sandboxes) = self.runtime.sandboxes_of(&self.pod).await else { return true };
        sandboxes
            .iter()
            .flat_map(|sandbox| &sandbox.containers)
            .find(|container| container.id == self.container_id)
            .is_some_and(|container| {
                matches!(container.state, ContainerState::Running { .. } | ContainerState::Created)
            })
    }

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

/// Sends what is asked for. Ends early, and without complaint, when nobody receives it any more.
pub async fn read(
    path: &Path,
    query: &Query,
    writer: &Writer,
    out: &mpsc::Sender<Bytes>,
) -> std::io::Result<()> {
    // Listening starts before reading, so that nothing falls between.
    let mut runtime_changes = writer.runtime.changes();
    let mut changes = query.follow.then(|| Changes::of(path.parent().unwrap_or(path)));
    let mut reading = Reading::open(path, query).await?;
    let mut ended = !query.follow;
    loop {
        match reading.until_end(out).await? {
            Progress::Enough => return Ok(()),
            Progress::AtEnd => {}
        }
        if query.follow && reading.replaced(path).await {
            // What was written to the old file before the new one was made is read first.
            if let Progress::Enough = reading.until_end(out).await? {
                return Ok(());
            }
            reading.go_on_with(File::open(path).await?);
            continue;
        }
        let Some(changes) = changes.as_mut().filter(|_| !ended) else {
            return reading.finish(out).await;
        };
        let look = tokio::select! {
            certain = changes.next() => !certain,
            () = writer.changed(&mut runtime_changes) => true,
            () = out.closed() => return Ok(()),
        };
        // Once more to the end after the writer was seen to have ended.
        ended = look && !writer.runs().await;
    }
}

enum Progress {
    AtEnd,
    /// The limit is reached, or nobody listens.
    Enough,
}

struct Reading {
    file: File,
    rendering: Rendering,
    block: Vec<u8>,
    /// The beginning of a record whose end is not there yet.
    begun: Vec<u8>,
    /// Bytes that are still to be read, unless the file is followed: what was there when it was
    /// opened. A container that writes faster than its reader reads must not hold it for ever.
    left: Option<u64>,
}

impl Reading {
    async fn open(path: &Path, query: &Query) -> std::io::Result<Reading> {
        let mut file = File::open(path).await?;
        let length = file.metadata().await?.len();
        let mut start = 0;
        if let Some(records) = query.tail {
            start = tail::start(&mut file, length, records).await?;
            file.seek(SeekFrom::Start(start)).await?;
        }
        let rendering = Rendering::new(query);
        let left = (!query.follow).then(|| length - start);
        Ok(Reading { file, rendering, block: vec![0; BLOCK], begun: Vec::new(), left })
    }

    async fn until_end(&mut self, out: &mpsc::Sender<Bytes>) -> std::io::Result<Progress> {
        loop {
            if self.rendering.is_full() {
                return Ok(Progress::Enough);
            }
            let most =
                self.left.map_or(BLOCK, |left| BLOCK.min(usize::try_from(left).unwrap_or(BLOCK)));
            let count = self.file.read(&mut self.block[..most]).await?;
            if count == 0 {
                return Ok(Progress::AtEnd);
            }
            self.left = self.left.map(|left| left.saturating_sub(count as u64));
            let mut shown = Vec::new();
            for piece in self.block[..count].split_inclusive(|byte| *byte == b'\n') {
                if !piece.ends_with(b"\n") {
                    self.begun.extend_from_slice(piece);
                } else if self.begun.is_empty() {
                    self.rendering.show(piece, &mut shown);
                } else {
                    self.begun.extend_from_slice(piece);
                    self.rendering.show(&self.begun, &mut shown);
                    self.begun.clear();
                }
            }
            if self.begun.len() > RECORD_MAX {
                return Err(std::io::Error::other("a log record without end"));
            }
            if !shown.is_empty() && out.send(shown.into()).await.is_err() {
                return Ok(Progress::Enough);
            }
        }
    }

    /// A last record without its newline is shown as it is.
    async fn finish(mut self, out: &mpsc::Sender<Bytes>) -> std::io::Result<()> {
        let mut shown = Vec::new();
        self.rendering.show(&self.begun, &mut shown);
        if !shown.is_empty() {
            let _ = out.send(shown.into()).await;
        }
        Ok(())
    }

    /// Another file has the name now: the log was rotated.
    async fn replaced(&self, path: &Path) -> bool {
        let (Ok(ours), Ok(theirs)) = (self.file.metadata().await, tokio::fs::metadata(path).await)
        else {
            return false;
        };
        (ours.dev(), ours.ino()) != (theirs.dev(), theirs.ino())
    }

    fn go_on_with(&mut self, file: File) {
        self.file = file;
        self.begun.clear();
    }
}
