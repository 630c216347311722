//! The socket by which `landfall down` talks to a running landfall: one word in, lines out.
//!
//!     down ──"down\n"──▶ <data-dir>/control.sock ──lines of progress──▶ down
//!
//! The last line is `done`; anything else at the end means that the other side died on the way.
//! Only root can reach the socket: it lies in the data directory, mode 0600.

use anyhow::Context;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;

const DONE: &str = "done";
/// Lines of progress that wait for a slow reader.
const LINES_WAITING: usize = 64;
/// A process that has said its last word is gone after this.
const EXIT_MAX: Duration = Duration::from_secs(10);

/// Where progress goes. A reader that is gone stops nothing.
#[derive(Clone)]
pub(crate) struct Progress(mpsc::Sender<String>);

impl Progress {
    pub(crate) async fn say(&self, line: impl Into<String>) {
        let _ = self.0.send(line.into()).await;
    }
}

pub(crate) struct Control {
    listener: UnixListener,
    path: PathBuf,
}

/// Somebody asked for the end. Dropping it without [`Asked::done`] tells them that it failed.
pub(crate) struct Asked {
    pub(crate) progress: Progress,
    writer: tokio::task::JoinHandle<Option<UnixStream>>,
}

impl Control {
    pub(crate) fn listen(data_dir: &Path) -> anyhow::Result<Control> {
        let path = data_dir.join("control.sock");
        // One landfall per data directory (there is a lock), so an old socket is nobody's.
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path)
            .with_context(|| format!("cannot listen on {}", path.display()))?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
        Ok(Control { listener, path })
    }

    /// Waits until somebody asks this landfall to end with everything it started.
    pub(crate) async fn asked(&self) -> Asked {
        loop {
            let Ok((stream, _)) = self.listener.accept().await else {
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            let mut line = String::new();
            let mut stream = BufReader::new(stream);
            if stream.read_line(&mut line).await.is_ok() && line.trim() == "down" {
                return Asked::by(stream.into_inner());
            }
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Asked {
    fn by(mut stream: UnixStream) -> Asked {
        let (lines, mut waiting) = mpsc::channel::<String>(LINES_WAITING);
        let writer = tokio::spawn(async move {
            let mut there = true;
            while let Some(line) = waiting.recv().await {
                there = there && stream.write_all(format!("{line}\n").as_bytes()).await.is_ok();
            }
            there.then_some(stream)
        });
        Asked { progress: Progress(lines), writer }
    }

    /// The last word. The connection stays open as long as this process lives, so that whoever asked
    /// can wait for its end.
    pub(crate) async fn done(self) {
        drop(self.progress);
        if let Ok(Some(mut stream)) = self.writer.await {
            let _ = stream.write_all(format!("{DONE}\n").as_bytes()).await;
            std::mem::forget(stream);
        }
    }
}

/// Asks the landfall of this data directory to end. None: none is running.
pub(crate) async fn ask_down(data_dir: &Path, say: impl Fn(&str)) -> anyhow::Result<Option<()>> {
    let Ok(mut stream) = UnixStream::connect(data_dir.join("control.sock")).await else {
        return Ok(None);
    };
    stream.write_all(b"down\n").await.context("the running landfall does not listen")?;
    let mut lines = BufReader::new(stream).lines();
    while let Some(line) = lines.next_line().await.context("the running landfall fell silent")? {
        if line == DONE {
            // Until the process is gone: there is nothing more to read before.
            let _ = tokio::time::timeout(EXIT_MAX, lines.next_line()).await;
            return Ok(Some(()));
        }
        say(&line);
    }
    anyhow::bail!(
        "landfall ended before it said that everything was gone; run `landfall down` again"
    )
}
