//! The client's end of a connection, for the streaming server of a container runtime.
//!
//! Only the client opens streams. It reads with [`Frame::read`]. Header blocks that it receives
//! carry nothing it needs, so it does not decompress them. It sends without flow control: those
//! servers do not use it.

use crate::Frame;
use crate::headers::{Headers, HeadersWriter};
use bytes::{Bytes, BytesMut};
use std::io;
use tokio::io::{AsyncWrite, AsyncWriteExt as _};

/// Data bytes per frame.
const CHUNK: usize = 32 * 1024;

/// Opens streams and writes to them.
pub struct Writer<W> {
    io: W,
    headers: HeadersWriter,
    next_stream: u32,
}

impl<W: AsyncWrite + Unpin> Writer<W> {
    pub fn new(io: W) -> Writer<W> {
        // Streams that a client opens have odd numbers.
        Writer { io, headers: HeadersWriter::new(), next_stream: 1 }
    }

    /// Opens a stream and returns its number.
    pub async fn open(&mut self, headers: &[(&str, &str)]) -> io::Result<u32> {
        let stream = self.next_stream;
        self.next_stream += 2;
        let headers: Headers =
            headers.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        let block = self.headers.write(&headers)?;
        self.write(&Frame::Open { stream, block, last: false }).await?;
        Ok(stream)
    }

    pub async fn send(&mut self, stream: u32, mut bytes: Bytes) -> io::Result<()> {
        while !bytes.is_empty() {
            let chunk = bytes.split_to(bytes.len().min(CHUNK));
            self.write(&Frame::Data { stream, bytes: chunk, last: false }).await?;
        }
        Ok(())
    }

    /// Tells the server that we send nothing more on the stream.
    pub async fn end(&mut self, stream: u32) -> io::Result<()> {
        self.write(&Frame::Data { stream, bytes: Bytes::new(), last: true }).await
    }

    /// Answers a ping of the server. Those have even numbers.
    pub async fn pong(&mut self, id: u32) -> io::Result<()> {
        self.write(&Frame::Ping(id)).await
    }

    async fn write(&mut self, frame: &Frame) -> io::Result<()> {
        let mut bytes = BytesMut::new();
        frame.write(&mut bytes);
        self.io.write_all(&bytes).await?;
        self.io.flush().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::headers::HeadersReader;

    #[tokio::test]
    async fn a_server_reads_the_headers_of_every_stream() {
        let mut bytes = Vec::new();
        let mut writer = Writer::new(&mut bytes);
        assert_eq!(writer.open(&[("streamtype", "error")]).await.unwrap(), 1);
        assert_eq!(writer.open(&[("streamtype", "stdin")]).await.unwrap(), 3);
        let (mut reader, mut rest) = (HeadersReader::new(), &bytes[..]);
        for (number, name) in [(1, "error"), (3, "stdin")] {
            let frame = Frame::read(&mut rest).await.unwrap();
            let Some(Frame::Open { stream, block, last: false }) = frame else {
                panic!("{frame:?} opens no stream");
            };
            assert_eq!(stream, number);
            assert_eq!(reader.read(&block).unwrap()["streamtype"], name);
        }
    }

    #[tokio::test]
    async fn data_is_sent_in_chunks_and_the_last_frame_is_marked() {
        let mut bytes = Vec::new();
        let mut writer = Writer::new(&mut bytes);
        writer.send(1, Bytes::from(vec![b'x'; CHUNK + 1])).await.unwrap();
        writer.end(1).await.unwrap();
        let (mut rest, mut lengths) = (&bytes[..], Vec::new());
        while let Some(Frame::Data { stream: 1, bytes, last }) =
            Frame::read(&mut rest).await.unwrap()
        {
            lengths.push((bytes.len(), last));
        }
        assert_eq!(lengths, [(CHUNK, false), (1, false), (0, true)]);
    }
}
