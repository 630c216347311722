//! Exec and attach: copies stdio between a caller's channels and a process.
//!
//! The agent is connected to the process of an exec by pipes; the shim only starts and reaps it. The stdio of
//! the container itself belongs to the shim, which copies it to attached clients.

use super::async_fd::register;
use super::sandbox::{LiveSandbox, is_running};
use super::shim_client::{PendingExec, ShimClient};
use crate::shim::message::{
    Request, RequestKind, ShimEvent, decode, encode, frame, frame_bytes, take_frame,
};
use crate::shim::{connect, receive_descriptor, set_terminal_size};
use crate::{ContainerState, Error, Exec, Output, Result, Session, Size};
use bytes::Bytes;
use nix::fcntl::OFlag;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::sync::{mpsc, oneshot};

/// Chunks buffered in each direction. When the buffer is full, the writer waits.
const CHUNKS: usize = 16;
const CHUNK_SIZE: usize = 32 << 10;
/// Ctrl-D.
const END_OF_TRANSMISSION: &[u8] = b"\x04";

const SHIM_DISCONNECTED: &str = "the pod's shim disconnected";

pub(crate) async fn exec(sandbox: &LiveSandbox, container: &str, exec: &Exec) -> Result<Session> {
    if !is_running(&sandbox.container(container)?.container.state) {
        return Err(Error::Refused(format!("container {container} is not running")));
    }
    let shim = sandbox.shim()?;
    let pending = shim.expect_exec()?;
    let request = RequestKind::Exec {
        exec: pending.number,
        container: container.to_owned(),
        command: exec.command.clone(),
        terminal: exec.tty,
    };
    let (output, output_receiver) = mpsc::channel(CHUNKS);
    let (stdin, resize) = if exec.tty {
        let master = exec_terminal(&shim, request).await?;
        let (stdin, resize) = copy_terminal(master, exec.stdin, output)?;
        (stdin, Some(resize))
    } else {
        (exec_pipes(&shim, request, exec, output).await?, None)
    };
    let (exit, exit_receiver) = oneshot::channel();
    let (kill, kill_receiver) = oneshot::channel();
    tokio::spawn(supervise(pending, exit, kill_receiver, exec.timeout));
    Ok(Session { stdin, output: output_receiver, resize, exit: exit_receiver, kill: Some(kill) })
}

/// Waits for the exit code. Kills the process after the timeout, or when the caller drops the session.
async fn supervise(
    mut pending: PendingExec,
    exit: oneshot::Sender<Result<i32, String>>,
    kill: oneshot::Receiver<()>,
    timeout: Option<Duration>,
) {
    let timed_out = async {
        match timeout {
            Some(timeout) => tokio::time::sleep(timeout).await,
            None => std::future::pending().await,
        }
    };
    let dropped = async {
        // A message instead of a drop means: let the process run, and keep waiting for it.
        if kill.await.is_ok() {
            std::future::pending::<()>().await;
        }
    };
    let timeout = tokio::select! {
        biased;
        code = &mut pending.exited => {
            let _ = exit.send(code.map_err(|_| SHIM_DISCONNECTED.into()));
            return;
        }
        () = timed_out => timeout,
        () = dropped => None,
    };
    let kill = RequestKind::SignalExec { exec: pending.number, signal: libc::SIGKILL };
    let _ = pending.shim.request(kill).await;
    let code = (&mut pending.exited).await;
    let _ = exit.send(match timeout {
        Some(timeout) => Err(format!("command timed out after {timeout:?}")),
        None => code.map_err(|_| SHIM_DISCONNECTED.into()),
    });
}

async fn exec_terminal(shim: &ShimClient, request: RequestKind) -> Result<OwnedFd> {
    let (ours, theirs) =
        std::os::unix::net::UnixStream::pair().map_err(cannot("create a socket"))?;
    shim.request_with(request, &[theirs.into()]).await?.map_err(Error::Start)?;
    // The shim sends the terminal before the answer.
    receive_descriptor(&ours)
        .ok_or_else(|| Error::Start("the shim did not send the terminal".into()))
}

async fn exec_pipes(
    shim: &ShimClient,
    request: RequestKind,
    exec: &Exec,
    output: mpsc::Sender<Output>,
) -> Result<Option<mpsc::Sender<Bytes>>> {
    let pipe = || nix::unistd::pipe2(OFlag::O_CLOEXEC).map_err(io::Error::from);
    let (stdin_read, stdin_write) = pipe().map_err(cannot("create a pipe"))?;
    let (stdout_read, stdout_write) = pipe().map_err(cannot("create a pipe"))?;
    let (stderr_read, stderr_write) = pipe().map_err(cannot("create a pipe"))?;
    let theirs = [stdin_read, stdout_write, stderr_write];
    shim.request_with(request, &theirs).await?.map_err(Error::Start)?;
    drop(theirs);
    let reader = |fd: OwnedFd| {
        nonblocking(&fd)?;
        pipe::Receiver::from_owned_fd(fd)
    };
    let stdout = reader(stdout_read).map_err(cannot("read a pipe"))?;
    let stderr = reader(stderr_read).map_err(cannot("read a pipe"))?;
    // Read output even if the caller did not request it, because a full pipe would block the process.
    tokio::spawn(copy_output(stdout, output.clone(), exec.stdout.then_some(Output::Stdout)));
    tokio::spawn(copy_output(stderr, output, exec.stderr.then_some(Output::Stderr)));
    if !exec.stdin {
        return Ok(None);
    }
    nonblocking(&stdin_write).map_err(cannot("write a pipe"))?;
    let mut writer = pipe::Sender::from_owned_fd(stdin_write).map_err(cannot("write a pipe"))?;
    let (stdin, mut chunks) = mpsc::channel::<Bytes>(CHUNKS);
    tokio::spawn(async move {
        while let Some(chunk) = chunks.recv().await {
            if writer.write_all(&chunk).await.is_err() {
                return;
            }
        }
    });
    Ok(Some(stdin))
}

async fn copy_output(
    mut from: impl AsyncRead + Unpin,
    to: mpsc::Sender<Output>,
    kind: Option<fn(Bytes) -> Output>,
) {
    let mut buffer = vec![0; CHUNK_SIZE];
    loop {
        match from.read(&mut buffer).await {
            Ok(length) if length > 0 => {
                let Some(kind) = kind else { continue };
                let chunk = Bytes::copy_from_slice(&buffer[..length]);
                if to.send(kind(chunk)).await.is_err() {
                    return;
                }
            }
            _ => return,
        }
    }
}

type Terminal = (Option<mpsc::Sender<Bytes>>, mpsc::Sender<Size>);

fn copy_terminal(master: OwnedFd, stdin: bool, output: mpsc::Sender<Output>) -> Result<Terminal> {
    nonblocking(&master).map_err(cannot("use the terminal"))?;
    let master = Arc::new(register(master).map_err(cannot("use the terminal"))?);
    let (reader, writer, resized) = (master.clone(), master.clone(), master);
    tokio::spawn(async move {
        let mut buffer = vec![0; CHUNK_SIZE];
        // When its last process is gone, a terminal returns an error instead of end of file.
        while let Ok(length) = read_terminal(&reader, &mut buffer).await {
            let chunk = Bytes::copy_from_slice(&buffer[..length]);
            if length == 0 || output.send(Output::Stdout(chunk)).await.is_err() {
                return;
            }
        }
    });
    let (resize, mut sizes) = mpsc::channel::<Size>(CHUNKS);
    tokio::spawn(async move {
        while let Some(size) = sizes.recv().await {
            let _ = set_terminal_size(resized.get_ref().as_fd(), size.width, size.height);
        }
    });
    if !stdin {
        return Ok((None, resize));
    }
    let (stdin, mut chunks) = mpsc::channel::<Bytes>(CHUNKS);
    tokio::spawn(async move {
        while let Some(chunk) = chunks.recv().await {
            if write_terminal(&writer, &chunk).await.is_err() {
                return;
            }
        }
        // Ctrl-D is the end of input on a terminal.
        let _ = write_terminal(&writer, END_OF_TRANSMISSION).await;
    });
    Ok((Some(stdin), resize))
}

async fn read_terminal(terminal: &AsyncFd<OwnedFd>, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        let mut ready = terminal.readable().await?;
        let read = ready.try_io(|fd| Ok(nix::unistd::read(fd.as_raw_fd(), buffer)?));
        if let Ok(outcome) = read {
            return outcome;
        }
    }
}

async fn write_terminal(terminal: &AsyncFd<OwnedFd>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let mut ready = terminal.writable().await?;
        if let Ok(written) = ready.try_io(|fd| Ok(nix::unistd::write(fd.get_ref(), bytes)?)) {
            bytes = &bytes[written?..];
        }
    }
    Ok(())
}

pub(crate) async fn attach(
    sandbox: &Arc<LiveSandbox>,
    container: &str,
    exec: &Exec,
) -> Result<Session> {
    let record = sandbox.container(container)?;
    if !is_running(&record.container.state) {
        return Err(Error::Refused(format!("container {container} is not running")));
    }
    sandbox.shim()?;
    let stream = connect(&sandbox.directory.join("shim.sock"))
        .map_err(cannot("connect to the pod's shim"))?;
    stream.set_nonblocking(true).map_err(cannot("connect to the pod's shim"))?;
    let mut stream =
        tokio::net::UnixStream::from_std(stream).map_err(cannot("connect to the pod's shim"))?;
    let kind = RequestKind::Attach {
        container: container.to_owned(),
        stdin: exec.stdin,
        stdout: exec.stdout,
        stderr: exec.stderr,
    };
    stream
        .write_all(&encode(&Request { id: 1, kind }))
        .await
        .map_err(cannot("connect to the pod's shim"))?;
    let mut input = Vec::new();
    loop {
        match decode::<ShimEvent>(&mut input).map_err(Error::Unavailable)? {
            Some(ShimEvent::Answer { outcome, .. }) => {
                outcome.map_err(Error::Refused)?;
                break;
            }
            Some(_) => continue,
            None => {}
        }
        let read =
            stream.read_buf(&mut input).await.map_err(cannot("connect to the pod's shim"))?;
        if read == 0 {
            return Err(Error::Unavailable(SHIM_DISCONNECTED.into()));
        }
    }
    let (reader, writer) = stream.into_split();
    let (output, output_receiver) = mpsc::channel(CHUNKS);
    let (exit, exit_receiver) = oneshot::channel();
    let (frames, frames_receiver) = mpsc::channel(CHUNKS);
    let (sandbox, id) = (sandbox.clone(), container.to_owned());
    tokio::spawn(async move {
        let Some(reported) = read_frames(reader, input, output).await else { return };
        // When a pod is done the agent stops it at once, and the shim may disconnect before it reports the exit.
        let state = sandbox.container(&id).map(|record| record.container.state);
        let exited = matches!(&state, Ok(ContainerState::Exited(exit)) if exit.message.is_empty());
        let outcome = if reported || exited { Ok(0) } else { Err(SHIM_DISCONNECTED.into()) };
        let _ = exit.send(outcome);
    });
    tokio::spawn(write_frames(writer, frames_receiver));
    let stdin = (exec.stdin && record.stdin).then(|| frame_sender(frames.clone()));
    let resize = record.terminal.then(|| size_sender(frames.clone()));
    drop(frames);
    Ok(Session { stdin, output: output_receiver, resize, exit: exit_receiver, kill: None })
}

/// Returns true if the shim reported the container's exit, false if it disconnected, `None` if the caller
/// dropped the session.
async fn read_frames(
    mut reader: tokio::net::unix::OwnedReadHalf,
    mut input: Vec<u8>,
    output: mpsc::Sender<Output>,
) -> Option<bool> {
    loop {
        while let Some((kind, content)) = take_frame(&mut input) {
            let chunk = match kind {
                frame::STDOUT => Output::Stdout(content.into()),
                frame::STDERR => Output::Stderr(content.into()),
                frame::ENDED => return Some(true),
                _ => continue,
            };
            if output.send(chunk).await.is_err() {
                return None;
            }
        }
        tokio::select! {
            read = reader.read_buf(&mut input) => match read {
                Ok(length) if length > 0 => {}
                _ => return Some(false),
            },
            // The connection must be closed even if the container writes no output, for example because of stdinOnce.
            () = output.closed() => return None,
        }
    }
}

async fn write_frames(
    mut writer: tokio::net::unix::OwnedWriteHalf,
    mut frames: mpsc::Receiver<Vec<u8>>,
) {
    while let Some(bytes) = frames.recv().await {
        if writer.write_all(&bytes).await.is_err() {
            return;
        }
    }
    // The client still reads. Do not shut down the write half, because the shim would take that for a disconnect.
    writer.forget();
}

fn frame_sender(frames: mpsc::Sender<Vec<u8>>) -> mpsc::Sender<Bytes> {
    let (sender, mut chunks) = mpsc::channel::<Bytes>(CHUNKS);
    tokio::spawn(async move {
        while let Some(chunk) = chunks.recv().await {
            for part in chunk.chunks(frame::CONTENT_MAX) {
                if frames.send(frame_bytes(frame::STDIN, part)).await.is_err() {
                    return;
                }
            }
        }
        let _ = frames.send(frame_bytes(frame::STDIN, &[])).await;
    });
    sender
}

fn size_sender(frames: mpsc::Sender<Vec<u8>>) -> mpsc::Sender<Size> {
    let (sender, mut sizes) = mpsc::channel::<Size>(CHUNKS);
    tokio::spawn(async move {
        while let Some(size) = sizes.recv().await {
            let content = [size.width.to_le_bytes(), size.height.to_le_bytes()].concat();
            if frames.send(frame_bytes(frame::SIZE, &content)).await.is_err() {
                return;
            }
        }
    });
    sender
}

fn nonblocking(fd: &OwnedFd) -> io::Result<()> {
    use nix::fcntl::{FcntlArg, fcntl};
    fcntl(fd.as_raw_fd(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok(())
}

fn cannot(doing: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |error| Error::Unavailable(format!("cannot {doing}: {error}"))
}
