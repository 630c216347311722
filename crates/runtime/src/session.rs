//! The stdio of an exec or attach, with terminal size and exit code.

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

/// The size of a terminal in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    pub width: u16,
    pub height: u16,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    Stdout(Bytes),
    /// Never with a terminal, where all output is Stdout.
    Stderr(Bytes),
}

/// All channels are bounded: a slow reader blocks the writer.
pub struct Session {
    /// Dropping it is the end of input. `None` if stdin was not requested.
    pub stdin: Option<mpsc::Sender<Bytes>>,
    /// Ends when all processes have closed their output.
    pub output: mpsc::Receiver<Output>,
    /// `None` without a terminal.
    pub resize: Option<mpsc::Sender<Size>>,
    /// The exit code of an exec. An attach returns 0 when the container exits. An error is a text for the user, for
    /// example that the command could not be run.
    pub exit: oneshot::Receiver<Result<i32, String>>,
    /// Dropping it kills the process group of an exec, for example of a probe that timed out. Sending a message
    /// lets the process run on after its client has disconnected (N-164). `None` if it cannot be killed.
    pub kill: Option<oneshot::Sender<()>>,
}

impl Session {
    /// Reads all output, of which it returns at most `limit` bytes, and waits for the exit.
    pub async fn collect(mut self, limit: usize) -> Result<(i32, Vec<u8>), String> {
        drop(self.stdin.take());
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        while let Some(output) = self.output.recv().await {
            let (kept, more) = match &output {
                Output::Stdout(more) => (&mut stdout, more),
                Output::Stderr(more) => (&mut stderr, more),
            };
            let room = limit.saturating_sub(kept.len()).min(more.len());
            kept.extend_from_slice(&more[..room]);
        }
        stdout.extend_from_slice(&stderr);
        stdout.truncate(limit);
        let code =
            self.exit.await.unwrap_or_else(|_| Err("the container runtime disconnected".into()))?;
        Ok((code, stdout))
    }
}
