//! One exec or attach between a client and the runtime, for both protocols.
//!
//!     client ──ClientInput───▶ feed ──▶ stdin, size
//!     client ◀──ClientOutput── run  ◀── output, exit
//!
//! Not here: channels and streams (`websocket`, `spdy_streams`).

use bytes::Bytes;
use runtime::{Exec, Output, Runtime, Session, Size};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, mpsc, oneshot};

/// A session that is idle for longer is closed (N-167).
pub(crate) const IDLE_MAX: Duration = Duration::from_secs(4 * 3600);
/// How long a client may take to open its streams (N-167).
pub(crate) const BEGIN_MAX: Duration = Duration::from_secs(30);

/// What to run, in which container.
pub(crate) struct RemoteCommand {
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) container: String,
    pub(crate) exec: Exec,
    pub(crate) attach: bool,
}

/// What the client sends. Its channel is closed when the client is gone.
pub(crate) enum ClientInput {
    Stdin(Bytes),
    StdinEnd,
    Resize(Size),
}

pub(crate) trait ClientOutput: Send {
    /// Returns false if the client is gone.
    fn send(&mut self, output: Output) -> impl Future<Output = bool> + Send;

    /// Sends the outcome after all output, and closes.
    fn finish(self, outcome: Outcome) -> impl Future<Output = ()> + Send;
}

/// The result of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Success,
    ExitCode {
        code: i32,
        command: Vec<String>,
    },
    /// The command could not be run.
    Error(String),
}

impl Outcome {
    /// What is sent to clients with protocol v4 or later (A-232).
    pub(crate) fn status(&self) -> Value {
        match self {
            Outcome::Success => json!({ "metadata": {}, "status": "Success" }),
            Outcome::ExitCode { code, .. } => json!({
                "metadata": {},
                "status": "Failure",
                "message": self.text(),
                "reason": "NonZeroExitCode",
                "details": { "causes": [{ "reason": "ExitCode", "message": code.to_string() }] },
            }),
            Outcome::Error(why) => json!({
                "metadata": {},
                "status": "Failure",
                "message": self.text(),
                "reason": "InternalError",
                "details": { "causes": [{ "message": why }] },
                "code": 500,
            }),
        }
    }

    /// What is sent to clients with older protocols; empty for success (A-238).
    pub(crate) fn text(&self) -> String {
        match self {
            Outcome::Success => String::new(),
            Outcome::ExitCode { code, command } => format!(
                "command terminated with non-zero exit code: error executing command [{}], exit code {code}",
                command.join(" ")
            ),
            Outcome::Error(why) => format!("Internal error occurred: {why}"),
        }
    }
}

/// Runs one session until its end. The process keeps running if the client leaves (N-164).
pub(crate) async fn run(
    command: RemoteCommand,
    from: mpsc::Receiver<ClientInput>,
    mut to: impl ClientOutput,
) {
    let RemoteCommand { runtime, container, exec, attach } = command;
    let started = match attach {
        true => runtime.attach(&container, &exec).await,
        false => runtime.exec(&container, &exec).await,
    };
    let doing = if attach { "attaching to container" } else { "executing command in container" };
    let session = match started {
        Ok(session) => session,
        Err(error) => return to.finish(Outcome::Error(format!("error {doing}: {error}"))).await,
    };
    let Session { stdin, mut output, resize, mut exit, kill } = session;
    let active = Arc::new(Notify::new());
    let (connected, mut gone) = oneshot::channel();
    let feeding = tokio::spawn(feed(from, stdin, resize, active.clone(), connected));
    let client_present = loop {
        let idle = tokio::time::sleep(IDLE_MAX);
        tokio::select! {
            piece = output.recv() => match piece {
                None => break true,
                Some(piece) => {
                    if !to.send(piece).await {
                        break false;
                    }
                }
            },
            () = active.notified() => {}
            _ = &mut gone => break false,
            () = idle => break false,
        }
    };
    let exited = match client_present {
        false => None,
        true => tokio::select! {
            exited = &mut exit => Some(exited),
            _ = &mut gone => None,
        },
    };
    feeding.abort();
    match exited {
        Some(exited) => {
            let lost = || Err("the runtime closed the session".to_owned());
            let outcome = match exited.unwrap_or_else(|_| lost()) {
                Ok(code) if attach || code == 0 => Outcome::Success,
                Ok(code) => Outcome::ExitCode { code, command: exec.command },
                Err(why) => Outcome::Error(format!("error {doing}: {why}")),
            };
            to.finish(outcome).await;
        }
        None => {
            // Dropping `kill` would kill the process, so keep it until the process exits.
            tokio::spawn(async move {
                while output.recv().await.is_some() {}
                let _ = exit.await;
                drop(kill);
            });
        }
    }
}

/// Passes input of the client on to the process. Drops `connected` when the client is gone, which
/// tells [`run`].
async fn feed(
    mut from: mpsc::Receiver<ClientInput>,
    mut stdin: Option<mpsc::Sender<Bytes>>,
    resize: Option<mpsc::Sender<Size>>,
    active: Arc<Notify>,
    connected: oneshot::Sender<()>,
) {
    while let Some(input) = from.recv().await {
        active.notify_one();
        match (input, &stdin, &resize) {
            (ClientInput::Stdin(bytes), Some(to), _) => {
                if to.send(bytes).await.is_err() {
                    stdin = None;
                }
            }
            (ClientInput::StdinEnd, ..) => stdin = None,
            (ClientInput::Resize(size), _, Some(to)) => drop(to.send(size).await),
            (ClientInput::Stdin(_) | ClientInput::Resize(_), ..) => {}
        }
    }
    drop((stdin, connected));
}

/// Parses a terminal size: `{"Width":80,"Height":24}` (A-231).
pub(crate) fn size(json: &[u8]) -> Option<Size> {
    let value: Value = serde_json::from_slice(json).ok()?;
    let side = |name: &str| value.get(name)?.as_u64()?.try_into().ok();
    Some(Size { width: side("Width")?, height: side("Height")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_232_the_exit_code_is_a_cause() {
        let outcome = Outcome::ExitCode { code: 7, command: vec!["sh".into(), "-c".into()] };
        assert_eq!(
            outcome.status(),
            json!({
                "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
                "message": "command terminated with non-zero exit code: error executing command [sh -c], exit code 7",
                "details": { "causes": [{ "reason": "ExitCode", "message": "7" }] },
            })
        );
        assert_eq!(Outcome::Success.status(), json!({ "metadata": {}, "status": "Success" }));
        let failed = Outcome::Error("no such file".into()).status();
        assert_eq!((&failed["reason"], &failed["code"]), (&json!("InternalError"), &json!(500)));
    }

    #[test]
    fn a_231_malformed_terminal_sizes_are_ignored() {
        assert_eq!(size(br#"{"Width":80,"Height":24}"#), Some(Size { width: 80, height: 24 }));
        assert_eq!(size(br#"{"Width":80000,"Height":24}"#), None);
        assert_eq!(size(b"{"), None);
    }
}
