//! One SPDY connection as streams that the client opens: a task that reads, and one that writes.
//!
//! No stream can be read faster than its reader reads, and all share one connection: a stream that
//! nobody reads holds up the others, as it does with every client that knows no flow control. We
//! give windows back as data is taken. Ours are honoured from the moment the client shows that it
//! keeps any: the library that all kubectls use does not, and would never give one back.

use super::frame::{Frame, bad};
use super::headers::{Headers, Reader, Writer};
use crate::endpoint::remote::IDLE_MAX;
use bytes::{Bytes, BytesMut};
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadHalf, WriteHalf};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinHandle;

/// Streams at once; a port-forward has two for each connection.
const STREAMS_MAX: usize = 2048;
/// Frames waiting to be written, and pieces waiting to be read from a stream.
const WAITING: usize = 16;
const PIECE: usize = 32 * 1024;
/// SPDY's initial window.
const WINDOW: i64 = 64 * 1024;
/// How long a client may take to close after we have said everything.
const CLOSE_MAX: Duration = Duration::from_secs(10);

const PROTOCOL_ERROR: u32 = 1;
const REFUSED_STREAM: u32 = 3;

/// Anything that can be spoken on.
pub(crate) trait Io: AsyncRead + AsyncWrite + Send + Unpin + 'static {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Io for T {}

pub(crate) struct Connection {
    opened: mpsc::Receiver<Stream>,
    frames: mpsc::Sender<Outgoing>,
    ended: watch::Receiver<bool>,
    reading: JoinHandle<()>,
    writing: JoinHandle<()>,
}

pub(crate) struct Stream {
    pub(crate) id: u32,
    headers: Headers,
    /// Ends with what the client has to say on it.
    pub(crate) input: mpsc::Receiver<Bytes>,
    pub(crate) output: Sender,
}

impl Stream {
    /// "" if it is not there.
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }
}

/// The sending side of a stream.
pub(crate) struct Sender {
    stream: u32,
    frames: mpsc::Sender<Outgoing>,
    windows: Arc<Windows>,
}

enum Outgoing {
    Frame(Frame),
    Reply(u32),
    /// Nothing more.
    End,
}

impl Sender {
    /// False: nobody reads it any more.
    pub(crate) async fn send(&self, bytes: Bytes) -> bool {
        let mut rest = bytes;
        while !rest.is_empty() {
            let room = self.windows.take(self.stream, rest.len().min(PIECE)).await;
            let piece = rest.split_to(room);
            let frame = Frame::Data { stream: self.stream, bytes: piece, last: false };
            if self.frames.send(Outgoing::Frame(frame)).await.is_err() {
                return false;
            }
        }
        true
    }

    /// Says that nothing more will come.
    pub(crate) async fn end(self) {
        let frame = Frame::Data { stream: self.stream, bytes: Bytes::new(), last: true };
        let _ = self.frames.send(Outgoing::Frame(frame)).await;
        self.windows.forget(self.stream);
    }
}

impl Connection {
    pub(crate) fn new(io: impl Io) -> Connection {
        let (read, write) = tokio::io::split(io);
        let (frames, to_write) = mpsc::channel(WAITING);
        let (open, opened) = mpsc::channel(WAITING);
        let (end, ended) = watch::channel(false);
        let reading = Reading {
            frames: frames.clone(),
            open,
            windows: Arc::default(),
            streams: HashMap::new(),
            headers: Reader::new(),
            last: 0,
        };
        let reading = tokio::spawn(async move {
            if let Err(error) = reading.run(read).await {
                tracing::debug!(%error, "a SPDY connection ended badly");
            }
            end.send_replace(true);
        });
        let writing = tokio::spawn(async move {
            if let Err(error) = write_all(write, to_write).await {
                tracing::debug!(%error, "a SPDY connection cannot be written to");
            }
        });
        Connection { opened, frames, ended, reading, writing }
    }

    /// The next stream that the client opens; None when it has left.
    pub(crate) async fn next(&mut self) -> Option<Stream> {
        self.opened.recv().await
    }

    /// Resolves when the client has left.
    pub(crate) fn ended(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut ended = self.ended.clone();
        async move { drop(ended.wait_for(|ended| *ended).await) }
    }

    /// Sends what waits, lets the client close first, and closes.
    pub(crate) async fn close(self) {
        let ended = self.ended();
        let Connection { opened, frames, reading, writing, .. } = self;
        drop(opened);
        let _ = tokio::time::timeout(CLOSE_MAX, async {
            let _ = frames.send(Outgoing::End).await;
            let _ = writing.await;
            ended.await;
        })
        .await;
        reading.abort();
    }
}

async fn write_all(
    mut io: WriteHalf<impl Io>,
    mut frames: mpsc::Receiver<Outgoing>,
) -> io::Result<()> {
    let mut headers = Writer::new();
    let mut bytes = BytesMut::new();
    while let Some(next) = frames.recv().await {
        let frame = match next {
            Outgoing::Frame(frame) => frame,
            Outgoing::Reply(stream) => {
                Frame::Reply { stream, block: headers.write(&Headers::new())? }
            }
            Outgoing::End => break,
        };
        bytes.clear();
        frame.write(&mut bytes);
        io.write_all(&bytes).await?;
        io.flush().await?;
    }
    io.flush().await
}

struct Reading {
    frames: mpsc::Sender<Outgoing>,
    open: mpsc::Sender<Stream>,
    windows: Arc<Windows>,
    /// Where data of a stream goes, while the client still sends some.
    streams: HashMap<u32, mpsc::Sender<Bytes>>,
    headers: Reader,
    last: u32,
}

impl Reading {
    async fn run(mut self, mut io: ReadHalf<impl Io>) -> io::Result<()> {
        loop {
            let frame = tokio::time::timeout(IDLE_MAX, Frame::read(&mut io)).await;
            let Some(frame) = frame.map_err(|_| bad("nothing happens"))?? else { return Ok(()) };
            if !self.take(frame).await? {
                return Ok(());
            }
        }
    }

    /// False: the connection is over.
    async fn take(&mut self, frame: Frame) -> io::Result<bool> {
        match frame {
            Frame::Open { stream, block, last } => {
                let headers = self.headers.read(&block)?;
                return self.opened(stream, headers, last).await;
            }
            Frame::Data { stream, bytes, last } => return Ok(self.data(stream, bytes, last).await),
            Frame::Headers { stream, block, last } => {
                self.headers.read(&block)?;
                if last {
                    self.streams.remove(&stream);
                }
            }
            Frame::Reply { block, .. } => drop(self.headers.read(&block)?),
            Frame::Reset { stream, .. } => {
                self.streams.remove(&stream);
                self.windows.forget(stream);
            }
            // Ours would be even, and we send none.
            Frame::Ping(id) if id % 2 == 1 => return Ok(self.send(Frame::Ping(id)).await),
            Frame::WindowUpdate { stream, more } => self.windows.give(stream, more),
            Frame::InitialWindow(bytes) => self.windows.begin_with(bytes),
            Frame::Ping(_) | Frame::GoAway { .. } | Frame::Other => {}
        }
        Ok(true)
    }

    async fn opened(&mut self, id: u32, headers: Headers, last: bool) -> io::Result<bool> {
        if id.is_multiple_of(2) || id <= self.last {
            return Ok(self.send(Frame::Reset { stream: id, why: PROTOCOL_ERROR }).await);
        }
        self.last = id;
        if self.streams.len() >= STREAMS_MAX {
            return Ok(self.send(Frame::Reset { stream: id, why: REFUSED_STREAM }).await);
        }
        if self.frames.send(Outgoing::Reply(id)).await.is_err() {
            return Ok(false);
        }
        let (feed, input) = mpsc::channel(WAITING);
        if !last {
            self.streams.insert(id, feed);
        }
        let (frames, windows) = (self.frames.clone(), self.windows.clone());
        let output = Sender { stream: id, frames, windows };
        // Nobody takes new ones once the end has begun.
        let _ = self.open.send(Stream { id, headers, input, output }).await;
        Ok(true)
    }

    async fn data(&mut self, stream: u32, bytes: Bytes, last: bool) -> bool {
        let length = bytes.len() as u32;
        if let Some(feed) = self.streams.get(&stream)
            && length > 0
            && feed.send(bytes).await.is_err()
        {
            // Whoever read it is done; what still comes is of no interest.
            self.streams.remove(&stream);
        }
        if last {
            self.streams.remove(&stream);
        }
        if length == 0 || !self.windows.are_kept() {
            return true;
        }
        self.send(Frame::WindowUpdate { stream: 0, more: length }).await
            && (last || self.send(Frame::WindowUpdate { stream, more: length }).await)
    }

    async fn send(&self, frame: Frame) -> bool {
        self.frames.send(Outgoing::Frame(frame)).await.is_ok()
    }
}

/// How much may be sent, for a client that keeps account of it.
#[derive(Default)]
struct Windows {
    kept: Mutex<Option<Account>>,
    more: Notify,
}

/// Stream 0 is the connection.
struct Account {
    initial: i64,
    left: HashMap<u32, i64>,
}

impl Windows {
    fn account(&self) -> std::sync::MutexGuard<'_, Option<Account>> {
        self.kept.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn are_kept(&self) -> bool {
        self.account().is_some()
    }

    fn begin_with(&self, bytes: u32) {
        let mut account = self.account();
        let account =
            account.get_or_insert_with(|| Account { initial: WINDOW, left: HashMap::new() });
        let change = i64::from(bytes) - account.initial;
        account.initial = i64::from(bytes);
        for (_, left) in account.left.iter_mut().filter(|(stream, _)| **stream != 0) {
            *left += change;
        }
        self.more.notify_waiters();
    }

    fn give(&self, stream: u32, more: u32) {
        let mut account = self.account();
        let account =
            account.get_or_insert_with(|| Account { initial: WINDOW, left: HashMap::new() });
        // Of streams that have ended, or never were, there is nothing to keep.
        if account.left.len() > 2 * STREAMS_MAX {
            account.left.clear();
        }
        let initial = if stream == 0 { WINDOW } else { account.initial };
        let left = account.left.entry(stream).or_insert(initial);
        *left = left.saturating_add(i64::from(more));
        self.more.notify_waiters();
    }

    fn forget(&self, stream: u32) {
        if let Some(account) = self.account().as_mut() {
            account.left.remove(&stream);
        }
        self.more.notify_waiters();
    }

    /// Waits until at least one byte may be sent, and takes at most `wanted`.
    async fn take(&self, stream: u32, wanted: usize) -> usize {
        loop {
            let mut told = std::pin::pin!(self.more.notified());
            told.as_mut().enable();
            if let Some(room) = self.try_take(stream, wanted) {
                return room;
            }
            told.await;
        }
    }

    fn try_take(&self, stream: u32, wanted: usize) -> Option<usize> {
        let mut account = self.account();
        let Some(account) = account.as_mut() else { return Some(wanted) };
        let initial = account.initial;
        let all = *account.left.entry(0).or_insert(WINDOW);
        let one = *account.left.entry(stream).or_insert(initial);
        let room = all.min(one).min(wanted as i64);
        if room <= 0 {
            return None;
        }
        account.left.insert(0, all - room);
        account.left.insert(stream, one - room);
        Some(room as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_237_windows_are_honoured_once_the_client_keeps_them() {
        let windows = Windows::default();
        assert_eq!(windows.take(1, 1 << 20).await, 1 << 20);
        windows.begin_with(10);
        assert_eq!(windows.take(1, 7).await, 7);
        assert_eq!(windows.take(1, 7).await, 3);
        let waiting = tokio::time::timeout(Duration::from_secs(1), windows.take(1, 7));
        assert!(waiting.await.is_err());
        windows.give(1, 5);
        assert_eq!(windows.take(1, 7).await, 5);
        assert_eq!(windows.take(3, 7).await, 7);
    }
}
