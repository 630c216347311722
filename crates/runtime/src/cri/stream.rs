//! The stdio of exec and attach, carried by the runtime's streaming server.
//!
//! CRI answers with an address; what is spoken there is what kubectl speaks: SPDY with one stream for
//! each of stdin, stdout, stderr, errors and sizes. (Its WebSocket form cannot end stdin alone.) A
//! command with a time limit and without stdin is run by `ExecSync`, which keeps the limit itself.

use super::calls::{Calls, Client, TIMEOUT};
use crate::{Error, Exec, Output, Result, Session, Size};
use bytes::{Bytes, BytesMut};
use k8s_cri::v1;
use spdy::Frame;
use spdy::client::Writer;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};

/// Pieces waiting in each direction.
const WAITING: usize = 16;
/// The answer to the upgrade.
const HEAD_MAX: usize = 16 * 1024;
/// The status at the end.
const STATUS_MAX: usize = 64 * 1024;
const PROTOCOL: &str = "v4.channel.k8s.io";
/// The caller that set the timeout should notice it first, by its own clock.
const LATE: Duration = Duration::from_secs(1);

pub(super) async fn exec(calls: &Calls, container: &str, exec: &Exec) -> Result<Session> {
    if let Some(limit) = exec.timeout
        && !exec.stdin
        && !exec.tty
    {
        return Ok(exec_sync(calls.clone(), container.into(), exec.command.clone(), limit));
    }
    let request = v1::ExecRequest {
        container_id: container.into(),
        cmd: exec.command.clone(),
        tty: exec.tty,
        stdin: exec.stdin,
        stdout: exec.stdout,
        stderr: exec.stderr && !exec.tty,
    };
    let call = async |mut to: Client| to.exec(request).await;
    let url = calls.runtime("container", container, TIMEOUT, call).await?.url;
    open(&url, exec).await
}

pub(super) async fn attach(calls: &Calls, container: &str, exec: &Exec) -> Result<Session> {
    let request = v1::AttachRequest {
        container_id: container.into(),
        tty: exec.tty,
        stdin: exec.stdin,
        stdout: exec.stdout,
        stderr: exec.stderr && !exec.tty,
    };
    let call = async |mut to: Client| to.attach(request).await;
    let url = calls.runtime("container", container, TIMEOUT, call).await?.url;
    open(&url, exec).await
}

fn exec_sync(calls: Calls, container: String, command: Vec<String>, limit: Duration) -> Session {
    let (to_output, output) = mpsc::channel(WAITING);
    let (to_exit, exit) = oneshot::channel();
    let (kill, killed) = oneshot::channel::<()>();
    let seconds = limit.as_secs() + u64::from(limit.subsec_nanos() > 0);
    let request = v1::ExecSyncRequest {
        container_id: container.clone(),
        cmd: command,
        timeout: i64::try_from(seconds).unwrap_or(i64::MAX / 2),
    };
    tokio::spawn(async move {
        let call = async |mut to: Client| to.exec_sync(request).await;
        let most = TIMEOUT.saturating_add(limit);
        let running = calls.runtime("container", &container, most, call);
        let answer = tokio::select! {
            answer = running => answer,
            // A call that is given up ends the command, in runtimes that see to it.
            _ = killed => return,
        };
        match answer {
            Ok(answer) => {
                for piece in
                    [Output::Stdout(answer.stdout.into()), Output::Stderr(answer.stderr.into())]
                {
                    let (Output::Stdout(bytes) | Output::Stderr(bytes)) = &piece;
                    if !bytes.is_empty() {
                        let _ = to_output.send(piece).await;
                    }
                }
                let _ = to_exit.send(Ok(answer.exit_code));
            }
            Err(error) => {
                if error.to_string().contains("deadline exceeded") {
                    tokio::time::sleep(LATE).await;
                }
                let _ = to_exit.send(Err(error.to_string()));
            }
        }
    });
    Session { stdin: None, output, resize: None, exit, kill: Some(kill) }
}

/// Connects and starts the two tasks that carry the session.
async fn open(url: &str, exec: &Exec) -> Result<Session> {
    let io = upgrade(url).await?;
    let (read, write) = io.into_split();
    let mut writer = Writer::new(write);
    let streams = Streams::open(&mut writer, exec).await.map_err(|error| broken(&error))?;
    let (to_output, output) = mpsc::channel(WAITING);
    let (to_exit, exit) = oneshot::channel();
    let (stdin, from_stdin) = mpsc::channel(WAITING);
    let (resize, sizes) = mpsc::channel(WAITING);
    let (pongs, to_pong) = mpsc::channel(WAITING);
    let (kill, killed) = oneshot::channel::<()>();
    let writing = tokio::spawn(carry_in(writer, streams, from_stdin, sizes, to_pong));
    tokio::spawn(async move {
        let reading = carry_out(BufReader::new(read), streams, to_output, pongs);
        let outcome = tokio::select! {
            outcome = reading => outcome,
            _ = killed => Err("the session was ended".into()),
        };
        writing.abort(); // The connection closes with its last half.
        let _ = to_exit.send(outcome);
    });
    Ok(Session {
        stdin: exec.stdin.then_some(stdin),
        output,
        resize: exec.tty.then_some(resize),
        exit,
        kill: Some(kill),
    })
}

/// Numbers of the streams that were asked for.
#[derive(Debug, Clone, Copy, Default)]
struct Streams {
    error: u32,
    stdin: Option<u32>,
    stdout: Option<u32>,
    stderr: Option<u32>,
    resize: Option<u32>,
}

impl Streams {
    async fn open(
        writer: &mut Writer<impl tokio::io::AsyncWrite + Unpin>,
        exec: &Exec,
    ) -> std::io::Result<Streams> {
        let error = writer.open(&[("streamtype", "error")]).await?;
        let mut streams = Streams { error, ..Streams::default() };
        if exec.stdin {
            streams.stdin = Some(writer.open(&[("streamtype", "stdin")]).await?);
        }
        if exec.stdout {
            streams.stdout = Some(writer.open(&[("streamtype", "stdout")]).await?);
        }
        if exec.stderr && !exec.tty {
            streams.stderr = Some(writer.open(&[("streamtype", "stderr")]).await?);
        }
        if exec.tty {
            streams.resize = Some(writer.open(&[("streamtype", "resize")]).await?);
        }
        Ok(streams)
    }
}

/// From us to the process. Ends when the other task does.
async fn carry_in(
    mut writer: Writer<impl tokio::io::AsyncWrite + Unpin>,
    streams: Streams,
    stdin: mpsc::Receiver<Bytes>,
    sizes: mpsc::Receiver<Size>,
    mut pongs: mpsc::Receiver<u32>,
) {
    let mut stdin = streams.stdin.map(|stream| (stream, stdin));
    let mut sizes = streams.resize.map(|stream| (stream, sizes));
    loop {
        let sent = tokio::select! {
            piece = next(&mut stdin) => match piece {
                (stream, Some(bytes)) => writer.send(stream, bytes).await,
                (stream, None) => {
                    stdin = None;
                    writer.end(stream).await
                }
            },
            size = next(&mut sizes) => match size {
                (stream, Some(Size { width, height })) => {
                    let text = format!("{{\"Width\":{width},\"Height\":{height}}}\n");
                    writer.send(stream, text.into()).await
                }
                (_, None) => {
                    sizes = None;
                    Ok(())
                }
            },
            Some(id) = pongs.recv() => writer.pong(id).await,
            else => return,
        };
        if sent.is_err() {
            return; // The reading task finds out why.
        }
    }
}

async fn next<T>(source: &mut Option<(u32, mpsc::Receiver<T>)>) -> (u32, Option<T>) {
    match source {
        Some((stream, receiver)) => (*stream, receiver.recv().await),
        None => std::future::pending().await,
    }
}

/// From the process to us, until the server says how it ended.
async fn carry_out(
    mut io: impl tokio::io::AsyncRead + Unpin,
    streams: Streams,
    output: mpsc::Sender<Output>,
    pongs: mpsc::Sender<u32>,
) -> Result<i32, String> {
    let mut status = BytesMut::new();
    loop {
        let frame = Frame::read(&mut io).await;
        match frame.map_err(|error| format!("reading from the streaming server failed: {error}"))? {
            // The end of a stream is an empty frame.
            Some(Frame::Data { bytes, .. }) if bytes.is_empty() => {}
            Some(Frame::Data { stream, bytes, .. }) if Some(stream) == streams.stdout => {
                let _ = output.send(Output::Stdout(bytes)).await; // The caller may not read output.
            }
            Some(Frame::Data { stream, bytes, .. }) if Some(stream) == streams.stderr => {
                let _ = output.send(Output::Stderr(bytes)).await;
            }
            Some(Frame::Data { stream, bytes, .. }) if stream == streams.error => {
                let room = STATUS_MAX.saturating_sub(status.len()).min(bytes.len());
                status.extend_from_slice(&bytes[..room]);
            }
            // We send no pings; ours would have odd numbers.
            Some(Frame::Ping(id)) if id % 2 == 0 => {
                let _ = pongs.send(id).await;
            }
            Some(Frame::GoAway { .. }) | None => return outcome(&status),
            Some(_) => {}
        }
    }
}

/// The server's last word is a `Status`.
fn outcome(status: &[u8]) -> Result<i32, String> {
    if status.is_empty() {
        return Ok(0); // An attach that was let go.
    }
    let status: serde_json::Value =
        serde_json::from_slice(status).map_err(|_| String::from_utf8_lossy(status).into_owned())?;
    if status["status"] == "Success" {
        return Ok(0);
    }
    let causes = status["details"]["causes"].as_array();
    let code = causes.into_iter().flatten().find(|cause| cause["reason"] == "ExitCode");
    let code = code.and_then(|cause| cause["message"].as_str()).and_then(|code| code.parse().ok());
    match (status["reason"].as_str(), code) {
        (Some("NonZeroExitCode"), Some(code)) => Ok(code),
        _ => Err(status["message"].as_str().unwrap_or("the command failed").into()),
    }
}

/// Asks for SPDY at the address that CRI gave.
async fn upgrade(url: &str) -> Result<TcpStream> {
    let rest = url.strip_prefix("http://").ok_or_else(|| {
        Error::Refused(format!("the runtime's streaming server is not spoken to: {url}"))
    })?;
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let mut io = TcpStream::connect(host).await.map_err(|error| broken(&error))?;
    io.set_nodelay(true).map_err(|error| broken(&error))?;
    let request = format!(
        "POST /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\
         X-Stream-Protocol-Version: {PROTOCOL}\r\nContent-Length: 0\r\n\r\n"
    );
    io.write_all(request.as_bytes()).await.map_err(|error| broken(&error))?;
    // Byte by byte: what follows the head belongs to the next reader.
    let mut head = Vec::with_capacity(512);
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() >= HEAD_MAX {
            return Err(Error::Unavailable("the streaming server talks too much".into()));
        }
        head.push(io.read_u8().await.map_err(|error| broken(&error))?);
    }
    let head = String::from_utf8_lossy(&head);
    let first = head.lines().next().unwrap_or_default();
    match first.split(' ').nth(1) {
        Some("101") => Ok(io),
        _ => Err(Error::Refused(format!("the streaming server refuses: {first}"))),
    }
}

fn broken(error: &std::io::Error) -> Error {
    Error::Unavailable(format!("cannot talk to the runtime's streaming server: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_message_contains_the_exit_code() {
        let exit = r#"{"status":"Failure","reason":"NonZeroExitCode","message":"command terminated with non-zero exit code",
            "details":{"causes":[{"reason":"ExitCode","message":"7"}]}}"#;
        assert_eq!(outcome(exit.as_bytes()), Ok(7));
        assert_eq!(outcome(br#"{"metadata":{},"status":"Success"}"#), Ok(0));
        let error = r#"{"status":"Failure","reason":"InternalError","message":"no such file"}"#;
        assert_eq!(outcome(error.as_bytes()), Err("no such file".into()));
        assert_eq!(outcome(b""), Ok(0));
        assert_eq!(outcome(b"plain text"), Err("plain text".into()));
    }
}
