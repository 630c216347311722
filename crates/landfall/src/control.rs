//! The socket by which `landfall stop` and `landfall down` talk to a running landfall: words in, lines
//! out.
//!
//!     down ──"down\n", later perhaps "hurry\n"──▶ <data-dir>/control.sock ──lines of progress──▶ down
//!
//! The last line is `done`; anything else at the end means that the other side died on the way.
//! Only root can reach the socket: it lies in the data directory, mode 0600.

use anyhow::Context;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;

const DONE: &str = "done";
const HURRY: &str = "hurry";
/// Lines of progress that wait for a slow reader.
const LINES_WAITING: usize = 64;
/// A process that has said its last word is gone after this.
const EXIT_MAX: Duration = Duration::from_secs(10);
/// Who connects says what they want within this time, in so many bytes.
const WORD_WAIT: Duration = Duration::from_secs(5);
const WORD_MAX: u64 = 64;

/// What can be asked of a running landfall.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wish {
    /// End; pods go on.
    Stop,
    /// End with everything that was started.
    Down,
}

impl Wish {
    fn word(self) -> &'static str {
        match self {
            Wish::Stop => "stop",
            Wish::Down => "down",
        }
    }
}

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
    pub(crate) wish: Wish,
    pub(crate) progress: Progress,
    words: BufReader<OwnedReadHalf>,
    writer: tokio::task::JoinHandle<Option<OwnedWriteHalf>>,
}

impl Control {
    pub(crate) fn listen(data_dir: &Path) -> anyhow::Result<Control> {
        let path = data_dir.join("control.sock");
        // Who answers there is at work on this directory; taking the socket away would hide it from
        // `landfall down`. An old socket is nobody's.
        anyhow::ensure!(
            std::os::unix::net::UnixStream::connect(&path).is_err(),
            "another landfall is running on {}; `landfall stop` stops it",
            data_dir.display()
        );
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path)
            .with_context(|| format!("cannot listen on {}", path.display()))?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
        Ok(Control { listener, path })
    }

    /// Waits until somebody asks this landfall to end.
    pub(crate) async fn asked(&self) -> Asked {
        loop {
            let Ok((stream, _)) = self.listener.accept().await else {
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            let (reader, writer) = stream.into_split();
            let mut words = BufReader::new(reader);
            let word = tokio::time::timeout(WORD_WAIT, read_word(&mut words)).await;
            let word = word.ok().flatten().unwrap_or_default();
            let wish = [Wish::Stop, Wish::Down].into_iter().find(|wish| wish.word() == word);
            if let Some(wish) = wish {
                return Asked::by(wish, words, writer);
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
    fn by(wish: Wish, words: BufReader<OwnedReadHalf>, mut writer: OwnedWriteHalf) -> Asked {
        let (lines, mut waiting) = mpsc::channel::<String>(LINES_WAITING);
        let writer = tokio::spawn(async move {
            let mut there = true;
            while let Some(line) = waiting.recv().await {
                there = there && writer.write_all(format!("{line}\n").as_bytes()).await.is_ok();
            }
            there.then_some(writer)
        });
        Asked { wish, progress: Progress(lines), words, writer }
    }

    /// Resolves when whoever asked is in a hurry. Who has gone away is not.
    pub(crate) async fn hurried(&mut self) {
        while let Some(word) = read_word(&mut self.words).await {
            if word == HURRY {
                return;
            }
        }
        std::future::pending::<()>().await;
    }

    /// The last word. The connection stays open as long as this process lives, so that whoever asked
    /// can wait for its end.
    pub(crate) async fn done(self) {
        drop(self.progress);
        if let Ok(Some(mut writer)) = self.writer.await {
            let _ = writer.write_all(format!("{DONE}\n").as_bytes()).await;
            std::mem::forget(writer);
        }
    }
}

async fn read_word(reader: &mut BufReader<OwnedReadHalf>) -> Option<String> {
    let mut line = String::new();
    let count = reader.take(WORD_MAX).read_line(&mut line).await.ok()?;
    (count > 0).then(|| line.trim().to_owned())
}

/// Asks the landfall of this data directory to end. None: none is running. Each `hurry` is passed on.
pub(crate) async fn ask(
    wish: Wish,
    data_dir: &Path,
    mut hurry: mpsc::Receiver<()>,
    say: impl Fn(&str),
) -> anyhow::Result<Option<()>> {
    let Ok(stream) = UnixStream::connect(data_dir.join("control.sock")).await else {
        return Ok(None);
    };
    let (reader, mut writer) = stream.into_split();
    let word = format!("{}\n", wish.word());
    writer.write_all(word.as_bytes()).await.context("the running landfall does not listen")?;
    let mut lines = BufReader::new(reader).lines();
    loop {
        let line = tokio::select! {
            line = lines.next_line() => line.context("the running landfall fell silent")?,
            Some(()) = hurry.recv() => {
                let _ = writer.write_all(format!("{HURRY}\n").as_bytes()).await;
                continue;
            }
        };
        let Some(line) = line else { break };
        if line == DONE {
            // Until the process is gone: there is nothing more to read before.
            let _ = tokio::time::timeout(EXIT_MAX, lines.next_line()).await;
            return Ok(Some(()));
        }
        say(&line);
    }
    anyhow::bail!(
        "landfall ended before it said that everything was done; run `landfall {}` again",
        wish.word()
    )
}
