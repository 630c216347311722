//! The agent's connection to a shim: sends requests, matches answers to requests, passes on events.

use crate::shim::message::{Reply, Request, RequestKind, ShimEvent, decode, encode};
use crate::{Error, Result};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::oneshot;

/// A shim answers within milliseconds. If it takes longer, a file system hangs.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);

/// Removes a pending request if its caller no longer waits.
struct PendingRequest<'a> {
    shim: &'a ShimClient,
    id: u64,
}

impl Drop for PendingRequest<'_> {
    fn drop(&mut self) {
        self.shim.pending().answers.remove(&self.id);
    }
}

/// An exec whose exit code is awaited. Dropping it removes the pending entry.
pub(crate) struct PendingExec {
    pub(crate) shim: Arc<ShimClient>,
    pub(crate) number: u64,
    pub(crate) exited: oneshot::Receiver<i32>,
}

impl Drop for PendingExec {
    fn drop(&mut self) {
        self.shim.pending().execs.remove(&self.number);
    }
}

type Answer = std::result::Result<Reply, String>;

pub(crate) struct ShimClient {
    stream: UnixStream,
    /// Held while a message is written, so that messages do not interleave.
    sending: tokio::sync::Mutex<()>,
    next: AtomicU64,
    pending: Mutex<Pending>,
}

#[derive(Default)]
struct Pending {
    answers: HashMap<u64, oneshot::Sender<Answer>>,
    execs: HashMap<u64, oneshot::Sender<i32>>,
    closed: bool,
}

impl ShimClient {
    pub(crate) fn new(stream: std::os::unix::net::UnixStream) -> io::Result<Arc<ShimClient>> {
        stream.set_nonblocking(true)?;
        Ok(Arc::new(ShimClient {
            stream: UnixStream::from_std(stream)?,
            sending: tokio::sync::Mutex::new(()),
            next: AtomicU64::new(1),
            pending: Mutex::default(),
        }))
    }

    /// Reads until the shim disconnects. Passes events that are not answers to `on_event`.
    pub(crate) async fn listen(&self, mut on_event: impl FnMut(ShimEvent)) {
        let mut input = Vec::new();
        while self.stream.readable().await.is_ok() {
            match self.stream.try_read_buf(&mut input) {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(_) => break,
            }
            while let Ok(Some(event)) = decode::<ShimEvent>(&mut input) {
                match event {
                    ShimEvent::Answer { id, outcome } => {
                        if let Some(caller) = self.pending().answers.remove(&id) {
                            let _ = caller.send(outcome);
                        }
                    }
                    ShimEvent::ExecExited { exec, code } => {
                        if let Some(caller) = self.pending().execs.remove(&exec) {
                            let _ = caller.send(code);
                        }
                    }
                    event => on_event(event),
                }
            }
        }
        let mut pending = self.pending();
        pending.closed = true;
        pending.answers.clear();
        pending.execs.clear();
    }

    pub(crate) async fn request(&self, kind: RequestKind) -> Result<Reply> {
        self.request_with(kind, &[]).await?.map_err(Error::Refused)
    }

    /// Sends a request with file descriptors. The inner error is the shim's answer.
    pub(crate) async fn request_with(
        &self,
        kind: RequestKind,
        descriptors: &[OwnedFd],
    ) -> Result<Answer> {
        let id = self.next_number();
        let (sender, receiver) = oneshot::channel();
        self.register(|pending| {
            pending.answers.insert(id, sender);
        })?;
        let _pending = PendingRequest { shim: self, id };
        self.send(&encode(&Request { id, kind }), descriptors).await.map_err(disconnected)?;
        match tokio::time::timeout(ANSWER_TIMEOUT, receiver).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) => Err(Error::Unavailable("the pod's shim disconnected".into())),
            Err(_) => Err(Error::Unavailable("the pod's shim did not answer in time".into())),
        }
    }

    /// Reserves a number for a new exec.
    pub(crate) fn expect_exec(self: &Arc<Self>) -> Result<PendingExec> {
        let number = self.next_number();
        let (sender, exited) = oneshot::channel();
        self.register(|pending| {
            pending.execs.insert(number, sender);
        })?;
        Ok(PendingExec { shim: self.clone(), number, exited })
    }

    fn next_number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    fn register(&self, add: impl FnOnce(&mut Pending)) -> Result<()> {
        let mut pending = self.pending();
        if pending.closed {
            return Err(Error::Unavailable("the pod's shim has disconnected".into()));
        }
        add(&mut pending);
        Ok(())
    }

    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn send(&self, bytes: &[u8], descriptors: &[OwnedFd]) -> io::Result<()> {
        let _lock = self.sending.lock().await;
        let raw: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
        let mut sent = 0;
        while sent < bytes.len() {
            let control = if sent == 0 && !raw.is_empty() {
                vec![ControlMessage::ScmRights(&raw)]
            } else {
                Vec::new()
            };
            sent += self
                .stream
                .async_io(Interest::WRITABLE, || {
                    let parts = [IoSlice::new(&bytes[sent..])];
                    let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
                    let fd = self.stream.as_raw_fd();
                    Ok(sendmsg::<()>(fd, &parts, &control, flags, None)?)
                })
                .await?;
        }
        Ok(())
    }
}

fn disconnected(error: io::Error) -> Error {
    Error::Unavailable(format!("the pod's shim has disconnected: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn abandoned_requests_are_removed() {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let shim = ShimClient::new(ours).unwrap();
        assert!(shim.request(RequestKind::State).await.is_err(), "the shim does not answer");
        let abandoned =
            tokio::time::timeout(Duration::from_secs(1), shim.request(RequestKind::State)).await;
        assert!(abandoned.is_err());
        assert!(shim.pending().answers.is_empty());
        let expected = shim.expect_exec().unwrap();
        assert_eq!(shim.pending().execs.len(), 1);
        drop(expected);
        assert!(shim.pending().execs.is_empty());
        drop(theirs);
        assert!(shim.request(RequestKind::State).await.is_err());
        assert!(shim.pending().answers.is_empty());
    }
}
