//! Exec and attach: the stdio of a process, carried between a caller's channels and the kernel.
//!
//! The pipes of an exec go straight from here to the process; the shim only starts and reaps it. The
//! stdio of a container itself belongs to the shim, which copies it to whoever is attached.

use super::link::{Expected, Link};
use super::readiness::register;
use super::sandbox::{LiveSandbox, is_running};
use crate::shim::message::{Ask, Call, Told, decode, encode, frame, frame_bytes, take_frame};
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

/// Pieces in flight in each direction; then whoever writes waits.
const PIECES: usize = 16;
const PIECE: usize = 32 << 10;

const SHIM_GONE: &str = "the pod's shim went away";

pub(crate) async fn exec(sandbox: &LiveSandbox, container: &str, exec: &Exec) -> Result<Session> {
    if !is_running(&sandbox.container(container)?.container.state) {
        return Err(Error::Refused(format!("container {container} is not running")));
    }
    let link = sandbox.link()?;
    let expected = link.expect_exec()?;
    let ask = Ask::Exec {
        exec: expected.number,
        container: container.to_owned(),
        command: exec.command.clone(),
        terminal: exec.tty,
    };
    let (output, output_end) = mpsc::channel(PIECES);
    let (stdin, resize) = if exec.tty {
        let master = exec_terminal(&link, ask).await?;
        let (stdin, resize) = carry_terminal(master, exec.stdin, output)?;
        (stdin, Some(resize))
    } else {
        (exec_pipes(&link, ask, exec, output).await?, None)
    };
    let (exit, exit_end) = oneshot::channel();
    let (kill, kill_end) = oneshot::channel();
    tokio::spawn(supervise(expected, exit, kill_end, exec.timeout));
    Ok(Session { stdin, output: output_end, resize, exit: exit_end, kill: Some(kill) })
}

/// The exit code, or an end by force when time is up or nobody wants it any more.
async fn supervise(
    mut expected: Expected,
    exit: oneshot::Sender<Result<i32, String>>,
    kill: oneshot::Receiver<()>,
    timeout: Option<Duration>,
) {
    let too_long = async {
        match timeout {
            Some(timeout) => tokio::time::sleep(timeout).await,
            None => std::future::pending().await,
        }
    };
    let unwanted = async {
        // Sent instead of dropped: it may live on, and is still waited for.
        if kill.await.is_ok() {
            std::future::pending::<()>().await;
        }
    };
    let forced = tokio::select! {
        biased;
        code = &mut expected.exited => {
            let _ = exit.send(code.map_err(|_| SHIM_GONE.into()));
            return;
        }
        () = too_long => timeout,
        () = unwanted => None,
    };
    let ask = Ask::SignalExec { exec: expected.number, signal: libc::SIGKILL };
    let _ = expected.link.ask(ask).await;
    let code = (&mut expected.exited).await;
    let _ = exit.send(match forced {
        Some(timeout) => Err(format!("command timed out after {timeout:?}")),
        None => code.map_err(|_| SHIM_GONE.into()),
    });
}

async fn exec_terminal(link: &Link, ask: Ask) -> Result<OwnedFd> {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().map_err(cannot("make a socket"))?;
    link.ask_with(ask, &[theirs.into()]).await?.map_err(Error::Start)?;
    // The terminal was sent before the answer.
    receive_descriptor(&ours).ok_or_else(|| Error::Start("no terminal came along".into()))
}

async fn exec_pipes(
    link: &Link,
    ask: Ask,
    exec: &Exec,
    output: mpsc::Sender<Output>,
) -> Result<Option<mpsc::Sender<Bytes>>> {
    let pipe = || nix::unistd::pipe2(OFlag::O_CLOEXEC).map_err(io::Error::from);
    let (stdin_read, stdin_write) = pipe().map_err(cannot("make a pipe"))?;
    let (stdout_read, stdout_write) = pipe().map_err(cannot("make a pipe"))?;
    let (stderr_read, stderr_write) = pipe().map_err(cannot("make a pipe"))?;
    let theirs = [stdin_read, stdout_write, stderr_write];
    link.ask_with(ask, &theirs).await?.map_err(Error::Start)?;
    drop(theirs);
    let reader = |fd: OwnedFd| {
        nonblocking(&fd)?;
        pipe::Receiver::from_owned_fd(fd)
    };
    let stdout = reader(stdout_read).map_err(cannot("read a pipe"))?;
    let stderr = reader(stderr_read).map_err(cannot("read a pipe"))?;
    // Output nobody asked for is read all the same: the process must not hang on a full pipe.
    tokio::spawn(carry_output(stdout, output.clone(), exec.stdout.then_some(Output::Stdout)));
    tokio::spawn(carry_output(stderr, output, exec.stderr.then_some(Output::Stderr)));
    if !exec.stdin {
        return Ok(None);
    }
    nonblocking(&stdin_write).map_err(cannot("write a pipe"))?;
    let mut writer = pipe::Sender::from_owned_fd(stdin_write).map_err(cannot("write a pipe"))?;
    let (stdin, mut pieces) = mpsc::channel::<Bytes>(PIECES);
    tokio::spawn(async move {
        while let Some(piece) = pieces.recv().await {
            if writer.write_all(&piece).await.is_err() {
                return;
            }
        }
    });
    Ok(Some(stdin))
}

async fn carry_output(
    mut from: impl AsyncRead + Unpin,
    to: mpsc::Sender<Output>,
    kind: Option<fn(Bytes) -> Output>,
) {
    let mut buffer = vec![0; PIECE];
    loop {
        match from.read(&mut buffer).await {
            Ok(length) if length > 0 => {
                let Some(kind) = kind else { continue };
                let piece = Bytes::copy_from_slice(&buffer[..length]);
                if to.send(kind(piece)).await.is_err() {
                    return;
                }
            }
            _ => return,
        }
    }
}

type Terminal = (Option<mpsc::Sender<Bytes>>, mpsc::Sender<Size>);

fn carry_terminal(master: OwnedFd, stdin: bool, output: mpsc::Sender<Output>) -> Result<Terminal> {
    nonblocking(&master).map_err(cannot("use the terminal"))?;
    let master = Arc::new(register(master).map_err(cannot("use the terminal"))?);
    let (reader, writer, sized) = (master.clone(), master.clone(), master);
    tokio::spawn(async move {
        let mut buffer = vec![0; PIECE];
        // A terminal whose last user is gone answers with an error, not with an end.
        while let Ok(length) = read_terminal(&reader, &mut buffer).await {
            let piece = Bytes::copy_from_slice(&buffer[..length]);
            if length == 0 || output.send(Output::Stdout(piece)).await.is_err() {
                return;
            }
        }
    });
    let (resize, mut sizes) = mpsc::channel::<Size>(PIECES);
    tokio::spawn(async move {
        while let Some(size) = sizes.recv().await {
            let _ = set_terminal_size(sized.get_ref().as_fd(), size.width, size.height);
        }
    });
    if !stdin {
        return Ok((None, resize));
    }
    let (stdin, mut pieces) = mpsc::channel::<Bytes>(PIECES);
    tokio::spawn(async move {
        while let Some(piece) = pieces.recv().await {
            if write_terminal(&writer, &piece).await.is_err() {
                return;
            }
        }
        // End of input, as a terminal says it.
        let _ = write_terminal(&writer, b"\x04").await;
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
    sandbox.link()?;
    let stream = connect(&sandbox.directory.join("shim.sock")).map_err(cannot("reach the shim"))?;
    stream.set_nonblocking(true).map_err(cannot("reach the shim"))?;
    let mut stream = tokio::net::UnixStream::from_std(stream).map_err(cannot("reach the shim"))?;
    let ask = Ask::Attach {
        container: container.to_owned(),
        stdin: exec.stdin,
        stdout: exec.stdout,
        stderr: exec.stderr,
    };
    stream.write_all(&encode(&Call { id: 1, ask })).await.map_err(cannot("reach the shim"))?;
    let mut input = Vec::new();
    loop {
        match decode::<Told>(&mut input).map_err(Error::Unavailable)? {
            Some(Told::Answer { outcome, .. }) => {
                outcome.map_err(Error::Refused)?;
                break;
            }
            Some(_) => continue,
            None => {}
        }
        let read = stream.read_buf(&mut input).await.map_err(cannot("reach the shim"))?;
        if read == 0 {
            return Err(Error::Unavailable(SHIM_GONE.into()));
        }
    }
    let (reader, writer) = stream.into_split();
    let (output, output_end) = mpsc::channel(PIECES);
    let (exit, exit_end) = oneshot::channel();
    let (frames, frames_end) = mpsc::channel(PIECES);
    let (sandbox, id) = (sandbox.clone(), container.to_owned());
    tokio::spawn(async move {
        let Some(ended) = read_frames(reader, input, output).await else { return };
        // A pod that is done is stopped at once: then its shim is gone before it said so here.
        let known = sandbox.container(&id).map(|record| record.container.state);
        let over = matches!(&known, Ok(ContainerState::Exited(exit)) if exit.message.is_empty());
        let _ = exit.send(if ended || over { Ok(0) } else { Err(SHIM_GONE.into()) });
    });
    tokio::spawn(write_frames(writer, frames_end));
    let stdin = (exec.stdin && record.stdin).then(|| frame_sender(frames.clone()));
    let resize = record.terminal.then(|| size_sender(frames.clone()));
    drop(frames);
    Ok(Session { stdin, output: output_end, resize, exit: exit_end, kill: None })
}

/// True: the shim said that it is over. False: the shim is gone. None: the caller has left.
async fn read_frames(
    mut reader: tokio::net::unix::OwnedReadHalf,
    mut input: Vec<u8>,
    output: mpsc::Sender<Output>,
) -> Option<bool> {
    loop {
        while let Some((kind, content)) = take_frame(&mut input) {
            let piece = match kind {
                frame::STDOUT => Output::Stdout(content.into()),
                frame::STDERR => Output::Stderr(content.into()),
                frame::ENDED => return Some(true),
                _ => continue,
            };
            if output.send(piece).await.is_err() {
                return None;
            }
        }
        tokio::select! {
            read = reader.read_buf(&mut input) => match read {
                Ok(length) if length > 0 => {}
                _ => return Some(false),
            },
            // The caller has left: the connection must end, for stdinOnce and for quiet containers.
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
    // A client that has nothing more to say still listens: half a connection would look like none.
    writer.forget();
}

fn frame_sender(frames: mpsc::Sender<Vec<u8>>) -> mpsc::Sender<Bytes> {
    let (sender, mut pieces) = mpsc::channel::<Bytes>(PIECES);
    tokio::spawn(async move {
        while let Some(piece) = pieces.recv().await {
            for part in piece.chunks(frame::CONTENT_MAX) {
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
    let (sender, mut sizes) = mpsc::channel::<Size>(PIECES);
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
