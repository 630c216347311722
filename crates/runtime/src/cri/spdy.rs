//! The client's side of SPDY/3.1, as much of it as a runtime's streaming server needs.
//!
//! Only we open streams. Header blocks that come back say nothing of use, so they are not even
//! unpacked; ours are one zlib stream, without the dictionary that the protocol offers (a reader
//! sees from the stream itself that it is not used). The servers keep no account of windows.

use bytes::{Bytes, BytesMut};
use flate2::{Compress, Compression, FlushCompress};
use std::io;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// A frame's length has 24 bits; servers send far less.
const LENGTH_MAX: usize = 1 << 20;
/// What we put into one frame.
const PIECE: usize = 32 * 1024;
const CONTROL: u32 = 0x8003_0000;
const FIN: u8 = 1;

/// What comes from the server and concerns a stream.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Event {
    Data {
        stream: u32,
        bytes: Bytes,
    },
    /// The server says nothing more on it.
    Ended {
        stream: u32,
    },
    /// To be answered with the same.
    Ping(u32),
    /// The connection is over.
    GoAway,
}

pub(super) struct Writer<W> {
    io: W,
    headers: Compress,
    next: u32,
}

impl<W: AsyncWrite + Unpin> Writer<W> {
    pub(super) fn new(io: W) -> Writer<W> {
        Writer { io, headers: Compress::new(Compression::fast(), true), next: 1 }
    }

    /// Opens a stream and answers its number.
    pub(super) async fn open(&mut self, headers: &[(&str, &str)]) -> io::Result<u32> {
        let stream = self.next;
        self.next += 2;
        let block = self.pack(headers)?;
        let mut frame = Vec::with_capacity(18 + block.len());
        frame.extend_from_slice(&(CONTROL | 1).to_be_bytes());
        frame.extend_from_slice(&(block.len() as u32 + 10).to_be_bytes());
        frame.extend_from_slice(&stream.to_be_bytes());
        frame.extend_from_slice(&[0; 6]); // No other stream belongs to it; no priority.
        frame.extend_from_slice(&block);
        self.write(&frame).await?;
        Ok(stream)
    }

    pub(super) async fn send(&mut self, stream: u32, mut bytes: Bytes) -> io::Result<()> {
        while !bytes.is_empty() {
            let piece = bytes.split_to(bytes.len().min(PIECE));
            self.data(stream, 0, &piece).await?;
        }
        Ok(())
    }

    /// Nothing more will be sent on it.
    pub(super) async fn end(&mut self, stream: u32) -> io::Result<()> {
        self.data(stream, FIN, &[]).await
    }

    pub(super) async fn pong(&mut self, id: u32) -> io::Result<()> {
        let mut frame = Vec::with_capacity(12);
        frame.extend_from_slice(&(CONTROL | 6).to_be_bytes());
        frame.extend_from_slice(&4u32.to_be_bytes());
        frame.extend_from_slice(&id.to_be_bytes());
        self.write(&frame).await
    }

    async fn data(&mut self, stream: u32, flags: u8, bytes: &[u8]) -> io::Result<()> {
        let mut frame = BytesMut::with_capacity(8 + bytes.len());
        frame.extend_from_slice(&stream.to_be_bytes());
        frame.extend_from_slice(&(u32::from(flags) << 24 | bytes.len() as u32).to_be_bytes());
        frame.extend_from_slice(bytes);
        self.write(&frame).await
    }

    async fn write(&mut self, frame: &[u8]) -> io::Result<()> {
        self.io.write_all(frame).await?;
        self.io.flush().await
    }

    fn pack(&mut self, headers: &[(&str, &str)]) -> io::Result<Vec<u8>> {
        let mut plain = (headers.len() as u32).to_be_bytes().to_vec();
        for text in headers.iter().flat_map(|(name, value)| [name, value]) {
            plain.extend_from_slice(&(text.len() as u32).to_be_bytes());
            plain.extend_from_slice(text.as_bytes());
        }
        let mut packed = Vec::with_capacity(plain.len() + 128);
        let done = self.headers.compress_vec(&plain, &mut packed, FlushCompress::Sync);
        done.map_err(io::Error::other)?;
        Ok(packed)
    }
}

/// The next thing that concerns us. The end of the connection is `GoAway`.
pub(super) async fn read(io: &mut (impl AsyncRead + Unpin)) -> io::Result<Event> {
    loop {
        let mut head = [0; 8];
        match io.read_exact(&mut head).await {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(Event::GoAway),
            other => other?,
        };
        let [a, b, c, d, flags, e, f, g] = head;
        let first = u32::from_be_bytes([a, b, c, d]);
        let length = u32::from_be_bytes([0, e, f, g]) as usize;
        if length > LENGTH_MAX {
            return Err(io::Error::other("a frame is too long"));
        }
        let mut body = BytesMut::zeroed(length);
        io.read_exact(&mut body).await?;
        if let Some(event) = understand(first, flags, body.freeze()) {
            return Ok(event);
        }
    }
}

fn understand(first: u32, flags: u8, body: Bytes) -> Option<Event> {
    if first & 0x8000_0000 == 0 {
        let last = flags & FIN != 0;
        return match (body.is_empty(), last) {
            (true, false) => None,
            (true, true) => Some(Event::Ended { stream: first }),
            // The end of a stream that still says something is found again when all ends.
            (false, _) => Some(Event::Data { stream: first, bytes: body }),
        };
    }
    let number = body.get(..4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_be_bytes);
    match first & 0xffff {
        // A stream that was accepted, or got more headers, with nothing to follow.
        2 | 8 if flags & FIN != 0 => Some(Event::Ended { stream: number? & 0x7fff_ffff }),
        3 => Some(Event::Ended { stream: number? & 0x7fff_ffff }),
        // Ours would be odd, and we send none.
        6 => number.filter(|id| id % 2 == 0).map(Event::Ping),
        7 => Some(Event::GoAway),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn headers_of_every_stream_are_read_back_by_one_inflater() {
        let mut bytes = Vec::new();
        let mut writer = Writer::new(&mut bytes);
        assert_eq!(writer.open(&[("streamtype", "error")]).await.unwrap(), 1);
        assert_eq!(writer.open(&[("streamtype", "stdin")]).await.unwrap(), 3);
        let mut inflate = flate2::Decompress::new(true);
        let mut at = 0;
        for wanted in ["error", "stdin"] {
            let length = u32::from_be_bytes(bytes[at + 4..at + 8].try_into().unwrap()) as usize;
            let block = &bytes[at + 18..at + 8 + length];
            let mut plain = Vec::with_capacity(1024);
            inflate.decompress_vec(block, &mut plain, flate2::FlushDecompress::Sync).unwrap();
            assert!(plain.ends_with(wanted.as_bytes()), "{plain:?}");
            at += 8 + length;
        }
    }

    #[tokio::test]
    async fn what_is_of_no_use_is_passed_over() {
        let mut input: &[u8] = &[
            0x80, 3, 0, 2, 0, 0, 0, 4, 0, 0, 0, 1, // a reply
            0, 0, 0, 1, 0, 0, 0, 2, b'o', b'k', // data
            0x80, 3, 0, 6, 0, 0, 0, 4, 0, 0, 0, 2, // a ping of the server's
            0, 0, 0, 1, 1, 0, 0, 0, // the end of stream 1
        ];
        let data = Event::Data { stream: 1, bytes: Bytes::from_static(b"ok") };
        assert_eq!(read(&mut input).await.unwrap(), data);
        assert_eq!(read(&mut input).await.unwrap(), Event::Ping(2));
        assert_eq!(read(&mut input).await.unwrap(), Event::Ended { stream: 1 });
        assert_eq!(read(&mut input).await.unwrap(), Event::GoAway);
    }
}
