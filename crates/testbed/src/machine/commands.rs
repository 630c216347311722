//! What commands in the containers of a test machine do: exit at once, hang, fail to start, or run as a process
//! of this host. With a terminal a small stand-in answers, because there is no terminal here.

use super::Machine;
use bytes::Bytes;
use runtime::{Error, Exec, Output, Result, Session, Size};
use std::process::Stdio;
use std::sync::atomic::Ordering;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;
use tokio::sync::{broadcast, mpsc, oneshot};

/// What a command in a container does.
#[derive(Debug, Clone)]
pub enum Commands {
    /// Writes `stderr`, then `stdout`, and exits.
    Exit { code: i32, stdout: &'static str, stderr: &'static str },
    /// Runs until it is killed.
    Hang,
    /// Cannot be started, for this reason.
    Fail(&'static str),
    /// Runs as a process of this host.
    OnHost,
}

impl Commands {
    /// Exits without output.
    pub fn exit(code: i32) -> Commands {
        Commands::Exit { code, stdout: "", stderr: "" }
    }
}

impl Default for Commands {
    fn default() -> Commands {
        Commands::exit(0)
    }
}

/// Pieces of input or output that may wait for their reader.
const CHANNEL_PIECES: usize = 4;

impl Machine {
    pub(super) async fn run_command(&self, exec: &Exec) -> Result<Session> {
        let commands = {
            let mut state = self.state();
            state.commands_run.push(exec.command.clone());
            state.commands.clone()
        };
        let (sender, output) = mpsc::channel(CHANNEL_PIECES);
        let (exit_sender, exit) = oneshot::channel();
        let (kill, killed) = oneshot::channel::<()>();
        match commands {
            Commands::Fail(why) => return Err(Error::Refused(why.to_owned())),
            Commands::OnHost if exec.tty => return Ok(terminal()),
            Commands::OnHost => return process(exec, self.finished.clone()),
            Commands::Exit { code, stdout, stderr } => {
                if !stderr.is_empty() {
                    let _ = sender.send(Output::Stderr(Bytes::from(stderr))).await;
                }
                if !stdout.is_empty() {
                    let _ = sender.send(Output::Stdout(Bytes::from(stdout))).await;
                }
                let _ = exit_sender.send(Ok(code));
            }
            Commands::Hang => {
                let count = self.commands_killed.clone();
                tokio::spawn(async move {
                    let _ = killed.await;
                    count.fetch_add(1, Ordering::SeqCst);
                    drop((sender, exit_sender));
                });
            }
        }
        Ok(Session { stdin: None, output, resize: None, exit, kill: Some(kill) })
    }
}

/// The output of a container that is about to exit: it writes a line, repeats its input, and writes a last line.
pub(super) fn attach(exec: &Exec) -> Session {
    let (sender, output) = mpsc::channel(CHANNEL_PIECES);
    let (exit_sender, exit) = oneshot::channel();
    let (stdin, mut input) = mpsc::channel::<Bytes>(CHANNEL_PIECES);
    tokio::spawn(async move {
        let _ = sender.send(Output::Stdout("attached\n".into())).await;
        while let Some(bytes) = input.recv().await {
            let _ = sender.send(Output::Stdout(bytes)).await;
        }
        let _ = sender.send(Output::Stderr("over\n".into())).await;
        let _ = exit_sender.send(Ok(137));
    });
    let stdin = exec.stdin.then_some(stdin);
    Session { stdin, output, resize: None, exit, kill: None }
}

fn process(exec: &Exec, finished: broadcast::Sender<(Vec<String>, i32)>) -> Result<Session> {
    let Some((program, args)) = exec.command.split_first() else {
        return Err(Error::Start("no command".into()));
    };
    let mut child = Command::new(program)
        .args(args)
        .stdin(if exec.stdin { Stdio::piped() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| Error::Start(format!("exec: {program:?}: {error}")))?;
    let (sender, output) = mpsc::channel(CHANNEL_PIECES);
    let out = read(child.stdout.take().expect("it is piped"), sender.clone(), Output::Stdout);
    let err = read(child.stderr.take().expect("it is piped"), sender, Output::Stderr);
    let stdin = child.stdin.take().map(|mut pipe| {
        let (stdin, mut input) = mpsc::channel::<Bytes>(CHANNEL_PIECES);
        tokio::spawn(async move {
            while let Some(bytes) = input.recv().await {
                if pipe.write_all(&bytes).await.is_err() {
                    return;
                }
            }
        });
        stdin
    });
    let (exit_sender, exit) = oneshot::channel();
    let (kill, mut killed) = oneshot::channel::<()>();
    let command = exec.command.clone();
    tokio::spawn(async move {
        let status = tokio::select! {
            status = child.wait() => status,
            _ = &mut killed => {
                let _ = child.kill().await;
                child.wait().await
            }
        };
        let _ = tokio::join!(out, err);
        let code = status.ok().and_then(|status| status.code()).unwrap_or(137);
        let _ = exit_sender.send(Ok(code));
        let _ = finished.send((command, code));
    });
    Ok(Session { stdin, output, resize: None, exit, kill: Some(kill) })
}

fn read(
    mut pipe: impl AsyncRead + Unpin + Send + 'static,
    sender: mpsc::Sender<Output>,
    stream: fn(Bytes) -> Output,
) -> tokio::task::JoinHandle<()> {
    tokio::spawn(async move {
        let mut piece = vec![0; 8192];
        while let Ok(count @ 1..) = pipe.read(&mut piece).await {
            if sender.send(stream(Bytes::copy_from_slice(&piece[..count]))).await.is_err() {
                return;
            }
        }
    })
}

/// Prints its size whenever it is resized, and exits after the first line of input.
fn terminal() -> Session {
    let (sender, output) = mpsc::channel(CHANNEL_PIECES);
    let (exit_sender, exit) = oneshot::channel();
    let (stdin, mut input) = mpsc::channel::<Bytes>(CHANNEL_PIECES);
    let (resize, mut sizes) = mpsc::channel::<Size>(CHANNEL_PIECES);
    tokio::spawn(async move {
        let mut resizable = true;
        loop {
            let text = tokio::select! {
                size = sizes.recv(), if resizable => match size {
                    Some(size) => format!("size {}x{}\r\n", size.width, size.height),
                    None => { resizable = false; continue }
                },
                bytes = input.recv() => match bytes {
                    Some(bytes) if bytes.iter().any(|byte| matches!(byte, b'\n' | b'\r')) => break,
                    Some(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
                    None => break,
                },
            };
            let _ = sender.send(Output::Stdout(text.into())).await;
        }
        let _ = sender.send(Output::Stdout("bye\r\n".into())).await;
        let _ = exit_sender.send(Ok(0));
    });
    Session { stdin: Some(stdin), output, resize: Some(resize), exit, kill: None }
}
