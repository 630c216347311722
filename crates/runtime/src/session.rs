//! The stdio of an exec or attach: three pipes (or one terminal), a size, and how it ended.

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

/// Of a terminal, in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    pub width: u16,
    pub height: u16,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    Stdout(Bytes),
    /// Never with a terminal: there everything is Stdout.
    Stderr(Bytes),
}

/// All channels are bounded: a reader that does not read holds back the writer.
pub struct Session {
    /// Dropped: end of input. None when stdin was not asked for.
    pub stdin: Option<mpsc::Sender<Bytes>>,
    /// Ends when the last writer has closed its end.
    pub output: mpsc::Receiver<Output>,
    /// None without a terminal.
    pub resize: Option<mpsc::Sender<Size>>,
    /// The exit code of an exec. An attach answers when the container ends or lets go. An error is
    /// the text to show: the command could not be run.
    pub exit: oneshot::Receiver<Result<i32, String>>,
    /// Dropping it ends an exec's process group (probes that time out), sending lets it live on when
    /// its client has left (N-164); None when it cannot be ended.
    pub kill: Option<oneshot::Sender<()>>,
}

impl Session {
    /// Reads everything, at most `limit` bytes of it kept, and waits for the end.
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
        let code = self.exit.await.unwrap_or_else(|_| Err("the runtime went away".into()))?;
        Ok((code, stdout))
    }
}
