//! The control socket: how `landfall stop`, `down`, `backup` and `token rotate` talk to a running landfall.
//!
//!     down   ──"down\n", later perhaps "hurry\n"──▶ DIR/control.sock ──lines of progress──▶ down
//!     backup ──"backup\n"──▶ DIR/control.sock ──the backup, or a line with the reason──▶ backup
//!
//! The last line is `done`; if it is missing, the running landfall died before it had finished.
//! Only its owner can connect: the socket has mode 0600.

use anyhow::Context;
use server::backup::Backups;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;

/// Name of the socket in the data directory.
const SOCKET: &str = "control.sock";

const BACKUP: &str = "backup";
const HURRY: &str = "hurry";
const DONE: &str = "done";
/// Starts a line that says why a request failed.
const FAILED: &str = "failed: ";
/// Starts an answer that is not a backup. It is as long as what is read before the two are told apart.
const REFUSED: &str = "refused: ";
/// Limit for the text after [`REFUSED`], in bytes.
const REFUSAL_MAX: u64 = 4096;

/// A client must send its request within this time.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Limit for one line of a request, in bytes.
const REQUEST_MAX: u64 = 64;
/// How long a client waits for the first byte of a backup: the running landfall may still be starting.
const BACKUP_TIMEOUT: Duration = Duration::from_secs(120);
/// How long a client waits for the process to exit after its last line.
const EXIT_TIMEOUT: Duration = Duration::from_secs(10);
/// Lines of progress that are kept for a slow reader.
const PROGRESS_QUEUE: usize = 64;

/// What a client can ask of a running landfall, except for a backup, whose answer is not text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Request {
    /// Stop, and leave the pods running.
    Stop,
    /// Terminate all pods, then stop.
    Down,
    /// Replace the administrator's token, and go on.
    RotateToken,
}

impl Request {
    const ALL: [Request; 3] = [Request::Stop, Request::Down, Request::RotateToken];

    fn as_str(self) -> &'static str {
        match self {
            Request::Stop => "stop",
            Request::Down => "down",
            Request::RotateToken => "rotate-token",
        }
    }
}

/// Sends lines of progress to the client. If the client has disconnected, they are dropped.
#[derive(Clone)]
pub(crate) struct Progress(mpsc::Sender<String>);

impl Progress {
    pub(crate) async fn send(&self, line: impl Into<String>) {
        let _ = self.0.send(line.into()).await;
    }

    /// Drops the line if the client reads too slowly.
    pub(crate) fn try_send(&self, line: String) {
        let _ = self.0.try_send(line);
    }
}

pub(crate) struct ControlSocket {
    listener: UnixListener,
    path: PathBuf,
}

/// A request that has not been answered yet. If it is dropped, the client reports a failure.
pub(crate) struct PendingRequest {
    pub(crate) request: Request,
    pub(crate) progress: Progress,
    reader: BufReader<OwnedReadHalf>,
    writer: tokio::task::JoinHandle<Option<OwnedWriteHalf>>,
}

impl ControlSocket {
    pub(crate) fn listen(data_dir: &Path) -> anyhow::Result<ControlSocket> {
        let path = data_dir.join(SOCKET);
        // If something answers, another landfall uses this directory. Replacing its socket would hide
        // it from `landfall down`. A socket that does not answer was left behind by a crash.
        anyhow::ensure!(
            std::os::unix::net::UnixStream::connect(&path).is_err(),
            "another landfall is running on {}; `landfall stop` stops it",
            data_dir.display()
        );
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path)
            .with_context(|| format!("cannot listen on {}", path.display()))?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
        Ok(ControlSocket { listener, path })
    }

    /// Waits for the next request. Requests for a backup are served meanwhile.
    pub(crate) async fn next(&self, backups: Option<&Backups>) -> PendingRequest {
        loop {
            let Ok((stream, _)) = self.listener.accept().await else {
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            let (reader, writer) = stream.into_split();
            let mut reader = BufReader::new(reader);
            let line = tokio::time::timeout(REQUEST_TIMEOUT, read_line(&mut reader)).await;
            let line = line.ok().flatten().unwrap_or_default();
            let known = Request::ALL.into_iter().find(|request| request.as_str() == line);
            if let Some(request) = known {
                return PendingRequest::new(request, reader, writer);
            }
            if line == BACKUP {
                tokio::spawn(send_backup(backups.cloned(), writer));
            }
        }
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl PendingRequest {
    fn new(
        request: Request,
        reader: BufReader<OwnedReadHalf>,
        mut writer: OwnedWriteHalf,
    ) -> PendingRequest {
        let (sender, mut lines) = mpsc::channel::<String>(PROGRESS_QUEUE);
        let writer = tokio::spawn(async move {
            let mut connected = true;
            while let Some(line) = lines.recv().await {
                connected =
                    connected && writer.write_all(format!("{line}\n").as_bytes()).await.is_ok();
            }
            connected.then_some(writer)
        });
        PendingRequest { request, progress: Progress(sender), reader, writer }
    }

    /// Resolves when the client sends `hurry`; never if it disconnects.
    pub(crate) async fn hurried(&mut self) {
        while let Some(line) = read_line(&mut self.reader).await {
            if line == HURRY {
                return;
            }
        }
        std::future::pending::<()>().await;
    }

    /// Sends the last line of a landfall that is about to exit. The connection stays open until the
    /// process has exited, so that the client can wait for that.
    pub(crate) async fn done(self) {
        if let Some(writer) = self.finish().await {
            std::mem::forget(writer);
        }
    }

    /// Sends the last line of a landfall that goes on running.
    pub(crate) async fn answer(self, outcome: anyhow::Result<()>) {
        if let Err(error) = outcome {
            self.progress.send(format!("{FAILED}{error:#}")).await;
        }
        self.finish().await;
    }

    async fn finish(self) -> Option<OwnedWriteHalf> {
        drop(self.progress);
        let mut writer = self.writer.await.ok()??;
        let _ = writer.write_all(format!("{DONE}\n").as_bytes()).await;
        Some(writer)
    }
}

async fn read_line(reader: &mut BufReader<OwnedReadHalf>) -> Option<String> {
    let mut line = String::new();
    let count = reader.take(REQUEST_MAX).read_line(&mut line).await.ok()?;
    (count > 0).then(|| line.trim().to_owned())
}

async fn send_backup(backups: Option<Backups>, mut out: OwnedWriteHalf) {
    let reason = match backups {
        None => "this landfall only runs a node; make the backup on the machine of its API server"
            .into(),
        Some(backups) => match backups.write(&mut out).await {
            Ok(()) => return,
            Err(error) => format!("{:#}", anyhow::Error::from(error)),
        },
    };
    // If part of the backup was sent already, this line makes it invalid, as it should be.
    let _ = out.write_all(format!("{REFUSED}{reason}\n").as_bytes()).await;
}

/// None: no landfall is running on this data directory.
async fn connect(data_dir: &Path) -> anyhow::Result<Option<UnixStream>> {
    let path = data_dir.join(SOCKET);
    match UnixStream::connect(&path).await {
        Ok(stream) => Ok(Some(stream)),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            Err(error).with_context(|| format!("cannot connect to {}", path.display()))
        }
        Err(_) => Ok(None),
    }
}

/// Gets a backup from the landfall that runs on this data directory. None: none is running.
pub(crate) async fn fetch_backup(
    data_dir: &Path,
    out: &mut (impl AsyncWrite + Unpin),
) -> anyhow::Result<Option<()>> {
    let Some(mut stream) = connect(data_dir).await? else { return Ok(None) };
    let no_answer = "the running landfall does not answer";
    stream.write_all(format!("{BACKUP}\n").as_bytes()).await.context(no_answer)?;
    let mut start = vec![0; REFUSED.len()];
    let reading = tokio::time::timeout(BACKUP_TIMEOUT, stream.read_exact(&mut start)).await;
    // A landfall that does not know this request closes the connection.
    reading
        .context(no_answer)?
        .context("the running landfall is an older version that cannot make backups")?;
    if start == REFUSED.as_bytes() {
        let mut reason = String::new();
        let _ = stream.take(REFUSAL_MAX).read_to_string(&mut reason).await;
        anyhow::bail!("{}", reason.trim());
    }
    let copying = async {
        out.write_all(&start).await?;
        tokio::io::copy(&mut stream, out).await?;
        out.flush().await
    };
    copying.await.context("cannot write the backup")?;
    Ok(Some(()))
}

/// Sends a request to the landfall that runs on this data directory, and waits until it is done. None:
/// none is running. Each message of `hurry` is passed on; each line of progress is given to `show`.
pub(crate) async fn send(
    request: Request,
    data_dir: &Path,
    mut hurry: mpsc::Receiver<()>,
    show: impl Fn(&str),
) -> anyhow::Result<Option<()>> {
    let Some(stream) = connect(data_dir).await? else { return Ok(None) };
    let (reader, mut writer) = stream.into_split();
    let line = format!("{}\n", request.as_str());
    writer.write_all(line.as_bytes()).await.context("the running landfall does not answer")?;
    let mut lines = BufReader::new(reader).lines();
    loop {
        let line = tokio::select! {
            line = lines.next_line() => line.context("lost the connection to the running landfall")?,
            Some(()) = hurry.recv() => {
                let _ = writer.write_all(format!("{HURRY}\n").as_bytes()).await;
                continue;
            }
        };
        let Some(line) = line else { break };
        if line == DONE {
            // Nothing more is sent: this returns when the process has exited.
            let _ = tokio::time::timeout(EXIT_TIMEOUT, lines.next_line()).await;
            return Ok(Some(()));
        }
        if let Some(reason) = line.strip_prefix(FAILED) {
            anyhow::bail!("{reason}");
        }
        show(&line);
    }
    anyhow::bail!(
        "the running landfall exited before it had finished; run `landfall {}` again",
        request.as_str()
    )
}
