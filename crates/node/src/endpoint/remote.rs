//! One exec or attach between a client and the runtime, whatever the client speaks.
//!
//!     client ──FromClient──▶ feed ──▶ stdin, size
//!     client ◀──ToClient──── run  ◀── output, exit
//!
//! Not here: frames and channels (`websocket`, `spdy`).

use bytes::Bytes;
use runtime::{Exec, Output, Runtime, Session, Size};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, mpsc, oneshot};

/// A session in which nothing happens for longer is closed (N-167).
pub(super) const IDLE_MAX: Duration = Duration::from_secs(4 * 3600);
/// What a client must do to begin, it must do within this (N-167).
pub(super) const BEGIN_MAX: Duration = Duration::from_secs(30);

/// What to start, in which container.
pub(super) struct Wanted {
    pub(super) runtime: Arc<dyn Runtime>,
    pub(super) container: String,
    pub(super) exec: Exec,
    pub(super) attach: bool,
}

/// A client that is gone closes the channel of these.
pub(super) enum FromClient {
    Stdin(Bytes),
    StdinEnd,
    Resize(Size),
}

pub(super) trait ToClient: Send {
    /// False: nobody reads it any more.
    fn send(&mut self, output: Output) -> impl Future<Output = bool> + Send;

    /// Says how it ended, after everything else was said, and closes.
    fn finish(self, ended: Ended) -> impl Future<Output = ()> + Send;
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ended {
    Success,
    ExitCode {
        code: i32,
        command: Vec<String>,
    },
    /// It could not be run.
    Error(String),
}

impl Ended {
    /// What protocols from v4 on are told (A-232).
    pub(super) fn status(&self) -> Value {
        match self {
            Ended::Success => json!({ "metadata": {}, "status": "Success" }),
            Ended::ExitCode { code, .. } => json!({
                "metadata": {},
                "status": "Failure",
                "message": self.text(),
                "reason": "NonZeroExitCode",
                "details": { "causes": [{ "reason": "ExitCode", "message": code.to_string() }] },
            }),
            Ended::Error(why) => json!({
                "metadata": {},
                "status": "Failure",
                "message": self.text(),
                "reason": "InternalError",
                "details": { "causes": [{ "message": why }] },
                "code": 500,
            }),
        }
    }

    /// What older protocols are told, unless it is a success (A-238).
    pub(super) fn text(&self) -> String {
        match self {
            Ended::Success => String::new(),
            Ended::ExitCode { code, command } => format!(
                "command terminated with non-zero exit code: error executing command [{}], exit code {code}",
                command.join(" ")
            ),
            Ended::Error(why) => format!("Internal error occurred: {why}"),
        }
    }
}

/// Carries one session to its end. The process is not ended when the client leaves (N-164).
pub(super) async fn run(wanted: Wanted, from: mpsc::Receiver<FromClient>, mut to: impl ToClient) {
    let Wanted { runtime, container, exec, attach } = wanted;
    let started = match attach {
        true => runtime.attach(&container, &exec).await,
        false => runtime.exec(&container, &exec).await,
    };
    let doing = if attach { "attaching to container" } else { "executing command in container" };
    let session = match started {
        Ok(session) => session,
        Err(error) => return to.finish(Ended::Error(format!("error {doing}: {error}"))).await,
    };
    let Session { stdin, mut output, resize, mut exit, kill } = session;
    let active = Arc::new(Notify::new());
    let (left, mut gone) = oneshot::channel();
    let feeding = tokio::spawn(feed(from, stdin, resize, active.clone(), left));
    let here = loop {
        let idle = tokio::time::sleep(IDLE_MAX);
        tokio::select! {
            said = output.recv() => match said {
                None => break true,
                Some(said) => {
                    if !to.send(said).await {
                        break false;
                    }
                }
            },
            () = active.notified() => {}
            _ = &mut gone => break false,
            () = idle => break false,
        }
    };
    let ended = match here {
        false => None,
        true => tokio::select! {
            ended = &mut exit => Some(ended),
            _ = &mut gone => None,
        },
    };
    feeding.abort();
    match ended {
        Some(ended) => {
            let lost = || Err("the container's keeper went away".to_owned());
            let ended = match ended.unwrap_or_else(|_| lost()) {
                Ok(code) if attach || code == 0 => Ended::Success,
                Ok(code) => Ended::ExitCode { code, command: exec.command },
                Err(why) => Ended::Error(format!("error {doing}: {why}")),
            };
            to.finish(ended).await;
        }
        None => {
            // Held until the end, because letting go of `kill` would be that end.
            tokio::spawn(async move {
                while output.recv().await.is_some() {}
                let _ = exit.await;
                drop(kill);
            });
        }
    }
}

/// Passes on what the client says. Returning without a word about `left` having been dropped is how
/// [`run`] learns that the client is gone.
async fn feed(
    mut from: mpsc::Receiver<FromClient>,
    mut stdin: Option<mpsc::Sender<Bytes>>,
    resize: Option<mpsc::Sender<Size>>,
    active: Arc<Notify>,
    left: oneshot::Sender<()>,
) {
    while let Some(said) = from.recv().await {
        active.notify_one();
        match (said, &stdin, &resize) {
            (FromClient::Stdin(bytes), Some(to), _) => {
                if to.send(bytes).await.is_err() {
                    stdin = None;
                }
            }
            (FromClient::StdinEnd, ..) => stdin = None,
            (FromClient::Resize(size), _, Some(to)) => drop(to.send(size).await),
            (FromClient::Stdin(_) | FromClient::Resize(_), ..) => {}
        }
    }
    drop((stdin, left));
}

/// `{"Width":80,"Height":24}`, as terminals send it (A-231).
pub(super) fn size(json: &[u8]) -> Option<Size> {
    let value: Value = serde_json::from_slice(json).ok()?;
    let side = |name: &str| value.get(name)?.as_u64()?.try_into().ok();
    Some(Size { width: side("Width")?, height: side("Height")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_232_the_exit_code_is_a_cause() {
        let ended = Ended::ExitCode { code: 7, command: vec!["sh".into(), "-c".into()] };
        assert_eq!(
            ended.status(),
            json!({
                "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
                "message": "command terminated with non-zero exit code: error executing command [sh -c], exit code 7",
                "details": { "causes": [{ "reason": "ExitCode", "message": "7" }] },
            })
        );
        assert_eq!(Ended::Success.status(), json!({ "metadata": {}, "status": "Success" }));
        let failed = Ended::Error("no such file".into()).status();
        assert_eq!((&failed["reason"], &failed["code"]), (&json!("InternalError"), &json!(500)));
    }

    #[test]
    fn a_231_sizes_are_read_and_nonsense_is_not() {
        assert_eq!(size(br#"{"Width":80,"Height":24}"#), Some(Size { width: 80, height: 24 }));
        assert_eq!(size(br#"{"Width":80000,"Height":24}"#), None);
        assert_eq!(size(b"{"), None);
    }
}
