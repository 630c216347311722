//! The server's end of a connection: the streams that the client opens. One task reads, one writes.
//!
//! All streams share the connection, so a stream that its consumer does not read blocks the others
//! until it does. Flow control starts when the client first uses it: from then on we return window
//! credit as data arrives and send no more than the client's windows allow. The SPDY library of
//! kubectl does not use flow control: it would never grant more, and output would stop after 64
//! KiB.

use crate::frame::{Frame, bad};
use crate::headers::{Headers, HeadersReader, HeadersWriter};
use bytes::{Bytes, BytesMut};
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadHalf, WriteHalf};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinHandle;

/// Open streams per connection. A port-forward uses two for each forwarded connection.
const STREAMS_MAX: usize = 2048;
/// Frames queued for writing, and chunks queued per stream for reading.
const QUEUE: usize = 16;
/// Data bytes per frame.
const CHUNK: usize = 32 * 1024;
/// The initial window that the protocol defines.
const WINDOW: i64 = 64 * 1024;
/// How long a client may take to close the connection after our last frame.
const CLOSE_MAX: Duration = Duration::from_secs(10);

/// Reset statuses.
const PROTOCOL_ERROR: u32 = 1;
const REFUSED_STREAM: u32 = 3;

/// A connection in both directions.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin + 'static {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Io for T {}

pub struct Connection {
    opened: mpsc::Receiver<Stream>,
    frames: mpsc::Sender<Outgoing>,
    ended: watch::Receiver<bool>,
    reading: JoinHandle<()>,
    writing: JoinHandle<()>,
}

pub struct Stream {
    pub id: u32,
    headers: Headers,
    /// What the client sends; closed after its last frame.
    pub input: mpsc::Receiver<Bytes>,
    pub output: Sender,
}

impl Stream {
    /// "" if the client did not send it.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }
}

/// The sending side of a stream.
pub struct Sender {
    stream: u32,
    frames: mpsc::Sender<Outgoing>,
    windows: Arc<Windows>,
}

enum Outgoing {
    Frame(Frame),
    Reply(u32),
    Close,
}

impl Sender {
    /// Returns false if the connection is closed.
    pub async fn send(&self, bytes: Bytes) -> bool {
        let mut rest = bytes;
        while !rest.is_empty() {
            let room = self.windows.take(self.stream, rest.len().min(CHUNK)).await;
            let chunk = rest.split_to(room);
            let frame = Frame::Data { stream: self.stream, bytes: chunk, last: false };
            if self.frames.send(Outgoing::Frame(frame)).await.is_err() {
                return false;
            }
        }
        true
    }

    /// Tells the client that we send nothing more on this stream.
    pub async fn end(self) {
        let frame = Frame::Data { stream: self.stream, bytes: Bytes::new(), last: true };
        let _ = self.frames.send(Outgoing::Frame(frame)).await;
        self.windows.forget(self.stream);
    }
}

impl Connection {
    /// Serves `io`; closes it if the client sends nothing for `idle_max`.
    pub fn new(io: impl Io, idle_max: Duration) -> Connection {
        let (read, write) = tokio::io::split(io);
        let (frames, to_write) = mpsc::channel(QUEUE);
        let (open, opened) = mpsc::channel(QUEUE);
        let (end, ended) = watch::channel(false);
        let reader = FrameReader {
            frames: frames.clone(),
            open,
            windows: Arc::default(),
            streams: HashMap::new(),
            headers: HeadersReader::new(),
            last_stream: 0,
            idle_max,
        };
        let reading = tokio::spawn(async move {
            if let Err(error) = reader.run(read).await {
                tracing::debug!(%error, "reading from a SPDY connection failed");
            }
            end.send_replace(true);
        });
        let writing = tokio::spawn(async move {
            if let Err(error) = write_all(write, to_write).await {
                tracing::debug!(%error, "writing to a SPDY connection failed");
            }
        });
        Connection { opened, frames, ended, reading, writing }
    }

    /// The next stream that the client opens; None when the client has closed the connection.
    pub async fn next(&mut self) -> Option<Stream> {
        self.opened.recv().await
    }

    /// Resolves when the client has closed the connection.
    pub fn ended(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut ended = self.ended.clone();
        async move { drop(ended.wait_for(|ended| *ended).await) }
    }

    /// Sends the queued frames, waits ten seconds at most for the client to close, and closes.
    pub async fn close(self) {
        let ended = self.ended();
        let Connection { opened, frames, reading, writing, .. } = self;
        drop(opened);
        let _ = tokio::time::timeout(CLOSE_MAX, async {
            let _ = frames.send(Outgoing::Close).await;
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
    let mut headers = HeadersWriter::new();
    let mut bytes = BytesMut::new();
    while let Some(next) = frames.recv().await {
        let frame = match next {
            Outgoing::Frame(frame) => frame,
            Outgoing::Reply(stream) => {
                Frame::Reply { stream, block: headers.write(&Headers::new())? }
            }
            Outgoing::Close => break,
        };
        bytes.clear();
        frame.write(&mut bytes);
        io.write_all(&bytes).await?;
        io.flush().await?;
    }
    io.flush().await
}

struct FrameReader {
    frames: mpsc::Sender<Outgoing>,
    open: mpsc::Sender<Stream>,
    windows: Arc<Windows>,
    /// Where the data of a stream goes, until the client ends it.
    streams: HashMap<u32, mpsc::Sender<Bytes>>,
    headers: HeadersReader,
    last_stream: u32,
    idle_max: Duration,
}

impl FrameReader {
    async fn run(mut self, mut io: ReadHalf<impl Io>) -> io::Result<()> {
        loop {
            let frame = tokio::time::timeout(self.idle_max, Frame::read(&mut io)).await;
            let Some(frame) = frame.map_err(|_| bad("the client was idle for too long"))?? else {
                return Ok(());
            };
            if !self.handle(frame).await? {
                return Ok(());
            }
        }
    }

    /// Returns false if the connection is closed.
    async fn handle(&mut self, frame: Frame) -> io::Result<bool> {
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
            // We send no pings; ours would have even numbers.
            Frame::Ping(id) if id % 2 == 1 => return Ok(self.send(Frame::Ping(id)).await),
            Frame::WindowUpdate { stream, more } => self.windows.add(stream, more),
            Frame::InitialWindow(bytes) => self.windows.set_initial(bytes),
            Frame::Ping(_) | Frame::GoAway { .. } | Frame::Other => {}
        }
        Ok(true)
    }

    async fn opened(&mut self, id: u32, headers: Headers, last: bool) -> io::Result<bool> {
        if id.is_multiple_of(2) || id <= self.last_stream {
            return Ok(self.send(Frame::Reset { stream: id, why: PROTOCOL_ERROR }).await);
        }
        self.last_stream = id;
        if self.streams.len() >= STREAMS_MAX {
            return Ok(self.send(Frame::Reset { stream: id, why: REFUSED_STREAM }).await);
        }
        if self.frames.send(Outgoing::Reply(id)).await.is_err() {
            return Ok(false);
        }
        let (feed, input) = mpsc::channel(QUEUE);
        if !last {
            self.streams.insert(id, feed);
        }
        let (frames, windows) = (self.frames.clone(), self.windows.clone());
        let output = Sender { stream: id, frames, windows };
        // Fails after `Connection::close`, which takes no more streams.
        let _ = self.open.send(Stream { id, headers, input, output }).await;
        Ok(true)
    }

    async fn data(&mut self, stream: u32, bytes: Bytes, last: bool) -> bool {
        let length = bytes.len() as u32;
        if let Some(feed) = self.streams.get(&stream)
            && length > 0
            && feed.send(bytes).await.is_err()
        {
            // The consumer has dropped the stream; discard the rest.
            self.streams.remove(&stream);
        }
        if last {
            self.streams.remove(&stream);
        }
        if length == 0 || !self.windows.in_use() {
            return true;
        }
        self.send(Frame::WindowUpdate { stream: 0, more: length }).await
            && (last || self.send(Frame::WindowUpdate { stream, more: length }).await)
    }

    async fn send(&self, frame: Frame) -> bool {
        self.frames.send(Outgoing::Frame(frame)).await.is_ok()
    }
}

/// How much we may send, if the client uses flow control.
#[derive(Default)]
struct Windows {
    /// None until the client uses flow control.
    credit: Mutex<Option<Credit>>,
    changed: Notify,
}

/// Bytes that we may still send per stream. Stream 0 is the whole connection.
struct Credit {
    initial: i64,
    left: HashMap<u32, i64>,
}

impl Windows {
    fn credit(&self) -> std::sync::MutexGuard<'_, Option<Credit>> {
        self.credit.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn in_use(&self) -> bool {
        self.credit().is_some()
    }

    fn set_initial(&self, bytes: u32) {
        let mut credit = self.credit();
        let credit = credit.get_or_insert_with(|| Credit { initial: WINDOW, left: HashMap::new() });
        let change = i64::from(bytes) - credit.initial;
        credit.initial = i64::from(bytes);
        for (_, left) in credit.left.iter_mut().filter(|(stream, _)| **stream != 0) {
            *left += change;
        }
        self.changed.notify_waiters();
    }

    fn add(&self, stream: u32, more: u32) {
        let mut credit = self.credit();
        let credit = credit.get_or_insert_with(|| Credit { initial: WINDOW, left: HashMap::new() });
        // A client may grant credit for streams that do not exist; bound what we keep.
        if credit.left.len() > 2 * STREAMS_MAX {
            credit.left.clear();
        }
        let initial = if stream == 0 { WINDOW } else { credit.initial };
        let left = credit.left.entry(stream).or_insert(initial);
        *left = left.saturating_add(i64::from(more));
        self.changed.notify_waiters();
    }

    fn forget(&self, stream: u32) {
        if let Some(credit) = self.credit().as_mut() {
            credit.left.remove(&stream);
        }
        self.changed.notify_waiters();
    }

    /// Waits until at least one byte may be sent, and takes at most `wanted`.
    async fn take(&self, stream: u32, wanted: usize) -> usize {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if let Some(room) = self.try_take(stream, wanted) {
                return room;
            }
            changed.await;
        }
    }

    fn try_take(&self, stream: u32, wanted: usize) -> Option<usize> {
        let mut credit = self.credit();
        let Some(credit) = credit.as_mut() else { return Some(wanted) };
        let initial = credit.initial;
        let all = *credit.left.entry(0).or_insert(WINDOW);
        let one = *credit.left.entry(stream).or_insert(initial);
        let room = all.min(one).min(wanted as i64);
        if room <= 0 {
            return None;
        }
        credit.left.insert(0, all - room);
        credit.left.insert(stream, one - room);
        Some(room as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_237_windows_limit_sending_once_the_client_uses_flow_control() {
        let windows = Windows::default();
        assert_eq!(windows.take(1, 1 << 20).await, 1 << 20);
        windows.set_initial(10);
        assert_eq!(windows.take(1, 7).await, 7);
        assert_eq!(windows.take(1, 7).await, 3);
        let waiting = tokio::time::timeout(Duration::from_secs(1), windows.take(1, 7));
        assert!(waiting.await.is_err());
        windows.add(1, 5);
        assert_eq!(windows.take(1, 7).await, 5);
        assert_eq!(windows.take(3, 7).await, 7);
    }
}
