//! The agent's end of a shim's socket: questions go out, answers find who asked, news is passed on.

use crate::shim::message::{Ask, Call, Reply, Told, decode, encode};
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

/// A shim answers in milliseconds, a start in tens of them. Longer means a hanging filesystem.
const ANSWER_MAX: Duration = Duration::from_secs(120);

/// A question. One that nobody waits for any more is forgotten.
struct Asked<'a> {
    link: &'a Link,
    id: u64,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.link.waiting().answers.remove(&self.id);
    }
}

/// An exec: its number, and its exit code when it has one. Forgotten with whoever expects it, so that
/// one that did not start leaves nothing.
pub(crate) struct Expected {
    pub(crate) link: Arc<Link>,
    pub(crate) number: u64,
    pub(crate) exited: oneshot::Receiver<i32>,
}

impl Drop for Expected {
    fn drop(&mut self) {
        self.link.waiting().execs.remove(&self.number);
    }
}

type Answer = std::result::Result<Reply, String>;

pub(crate) struct Link {
    stream: UnixStream,
    /// One message at a time: a message must not be torn apart by another.
    sending: tokio::sync::Mutex<()>,
    next: AtomicU64,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    answers: HashMap<u64, oneshot::Sender<Answer>>,
    execs: HashMap<u64, oneshot::Sender<i32>>,
    closed: bool,
}

impl Link {
    pub(crate) fn new(stream: std::os::unix::net::UnixStream) -> io::Result<Arc<Link>> {
        stream.set_nonblocking(true)?;
        Ok(Arc::new(Link {
            stream: UnixStream::from_std(stream)?,
            sending: tokio::sync::Mutex::new(()),
            next: AtomicU64::new(1),
            waiting: Mutex::default(),
        }))
    }

    /// Reads until the other end is gone. Everything that answers no question goes to `news`.
    pub(crate) async fn listen(&self, mut news: impl FnMut(Told)) {
        let mut input = Vec::new();
        while self.stream.readable().await.is_ok() {
            match self.stream.try_read_buf(&mut input) {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(_) => break,
            }
            while let Ok(Some(told)) = decode::<Told>(&mut input) {
                match told {
                    Told::Answer { id, outcome } => {
                        if let Some(asker) = self.waiting().answers.remove(&id) {
                            let _ = asker.send(outcome);
                        }
                    }
                    Told::ExecExited { exec, code } => {
                        if let Some(asker) = self.waiting().execs.remove(&exec) {
                            let _ = asker.send(code);
                        }
                    }
                    told => news(told),
                }
            }
        }
        let mut waiting = self.waiting();
        waiting.closed = true;
        waiting.answers.clear();
        waiting.execs.clear();
    }

    pub(crate) async fn ask(&self, ask: Ask) -> Result<Reply> {
        self.ask_with(ask, &[]).await?.map_err(Error::Refused)
    }

    /// Asks, sending descriptors along. The inner error is the shim's own.
    pub(crate) async fn ask_with(&self, ask: Ask, descriptors: &[OwnedFd]) -> Result<Answer> {
        let id = self.number();
        let (sender, receiver) = oneshot::channel();
        self.wait_for(|waiting| {
            waiting.answers.insert(id, sender);
        })?;
        let _forgotten = Asked { link: self, id };
        self.send(&encode(&Call { id, ask }), descriptors).await.map_err(gone)?;
        match tokio::time::timeout(ANSWER_MAX, receiver).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) => Err(Error::Unavailable("the pod's shim went away".into())),
            Err(_) => Err(Error::Unavailable("the pod's shim does not answer".into())),
        }
    }

    /// A number for a new exec.
    pub(crate) fn expect_exec(self: &Arc<Self>) -> Result<Expected> {
        let number = self.number();
        let (sender, exited) = oneshot::channel();
        self.wait_for(|waiting| {
            waiting.execs.insert(number, sender);
        })?;
        Ok(Expected { link: self.clone(), number, exited })
    }

    fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    fn wait_for(&self, enter: impl FnOnce(&mut Waiting)) -> Result<()> {
        let mut waiting = self.waiting();
        if waiting.closed {
            return Err(Error::Unavailable("the pod's shim is gone".into()));
        }
        enter(&mut waiting);
        Ok(())
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn send(&self, bytes: &[u8], descriptors: &[OwnedFd]) -> io::Result<()> {
        let _one_at_a_time = self.sending.lock().await;
        let raw: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
        let mut sent = 0;
        while sent < bytes.len() {
            let with = if sent == 0 && !raw.is_empty() {
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
                    Ok(sendmsg::<()>(fd, &parts, &with, flags, None)?)
                })
                .await?;
        }
        Ok(())
    }
}

fn gone(error: io::Error) -> Error {
    Error::Unavailable(format!("the pod's shim is gone: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_waits_no_longer_is_forgotten() {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let link = Link::new(ours).unwrap();
        assert!(link.ask(Ask::State).await.is_err(), "nobody answers");
        let given_up = tokio::time::timeout(Duration::from_secs(1), link.ask(Ask::State)).await;
        assert!(given_up.is_err());
        assert!(link.waiting().answers.is_empty());
        let expected = link.expect_exec().unwrap();
        assert_eq!(link.waiting().execs.len(), 1);
        drop(expected);
        assert!(link.waiting().execs.is_empty());
        drop(theirs);
        assert!(link.ask(Ask::State).await.is_err());
        assert!(link.waiting().answers.is_empty());
    }
}
