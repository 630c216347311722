//! Frames of SPDY/3.1: eight bytes of header, then the body.

use bytes::{BufMut as _, Bytes, BytesMut};
use std::io;
use tokio::io::{AsyncRead, AsyncReadExt as _};

const VERSION: u16 = 3;
/// The length field of a frame has 24 bits; peers send far less.
const LENGTH_MAX: usize = 1 << 20;

/// Flag: the sender sends nothing more on the stream.
const FIN: u8 = 0x01;

/// Types of control frames.
mod kind {
    pub(super) const SYN_STREAM: u16 = 1;
    pub(super) const SYN_REPLY: u16 = 2;
    pub(super) const RST_STREAM: u16 = 3;
    pub(super) const SETTINGS: u16 = 4;
    pub(super) const PING: u16 = 6;
    pub(super) const GOAWAY: u16 = 7;
    pub(super) const HEADERS: u16 = 8;
    pub(super) const WINDOW_UPDATE: u16 = 9;
}

/// Header blocks stay compressed here. Each is compressed with those before it on the same
/// connection, so the owner of the connection reads and writes them in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    Data {
        stream: u32,
        bytes: Bytes,
        last: bool,
    },
    /// SYN_STREAM: the client opens a stream.
    Open {
        stream: u32,
        block: Bytes,
        last: bool,
    },
    Reply {
        stream: u32,
        block: Bytes,
    },
    Reset {
        stream: u32,
        why: u32,
    },
    /// Later headers of a stream. We do not use them, but must decompress their block to read the
    /// next ones.
    Headers {
        stream: u32,
        block: Bytes,
        last: bool,
    },
    Ping(u32),
    GoAway {
        last_stream: u32,
    },
    /// The peer accepts this many more bytes: on one stream, or on all together (stream 0).
    WindowUpdate {
        stream: u32,
        more: u32,
    },
    /// SETTINGS with the initial window of streams.
    InitialWindow(u32),
    /// A frame that we do not use.
    Other,
}

fn number(bytes: &[u8], at: usize) -> io::Result<u32> {
    let four = bytes.get(at..at + 4).and_then(|four| <[u8; 4]>::try_from(four).ok());
    four.map(u32::from_be_bytes).ok_or_else(|| bad("the frame is too short"))
}

/// A stream number: the low 31 bits.
fn stream(bytes: &[u8], at: usize) -> io::Result<u32> {
    Ok(number(bytes, at)? & 0x7fff_ffff)
}

pub(crate) fn bad(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

impl Frame {
    /// The next frame; None at the end of the connection.
    pub async fn read(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Frame>> {
        let mut head = [0; 8];
        match from.read_exact(&mut head).await {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            read => read?,
        };
        let flags = head[4];
        let length = (number(&head, 4)? & 0x00ff_ffff) as usize;
        if length > LENGTH_MAX {
            return Err(bad("the frame is too long"));
        }
        let mut body = BytesMut::zeroed(length);
        from.read_exact(&mut body).await?;
        let body = body.freeze();
        let last = flags & FIN != 0;
        if head[0] & 0x80 == 0 {
            return Ok(Some(Frame::Data { stream: stream(&head, 0)?, bytes: body, last }));
        }
        if u16::from_be_bytes([head[0] & 0x7f, head[1]]) != VERSION {
            return Err(bad("the peer does not speak SPDY/3"));
        }
        Frame::control(u16::from_be_bytes([head[2], head[3]]), body, last).map(Some)
    }

    fn control(kind: u16, body: Bytes, last: bool) -> io::Result<Frame> {
        let rest = |from: usize| match body.len() < from {
            true => Err(bad("the frame is too short")),
            false => Ok(body.slice(from..)),
        };
        Ok(match kind {
            kind::SYN_STREAM => Frame::Open { stream: stream(&body, 0)?, block: rest(10)?, last },
            kind::SYN_REPLY => Frame::Reply { stream: stream(&body, 0)?, block: rest(4)? },
            kind::RST_STREAM => Frame::Reset { stream: stream(&body, 0)?, why: number(&body, 4)? },
            kind::SETTINGS => settings(&body)?,
            kind::PING => Frame::Ping(number(&body, 0)?),
            kind::GOAWAY => Frame::GoAway { last_stream: stream(&body, 0)? },
            kind::HEADERS => Frame::Headers { stream: stream(&body, 0)?, block: rest(4)?, last },
            kind::WINDOW_UPDATE => {
                Frame::WindowUpdate { stream: stream(&body, 0)?, more: stream(&body, 4)? }
            }
            _ => Frame::Other,
        })
    }

    pub fn write(&self, out: &mut BytesMut) {
        let mut control = |kind: u16, flags: u8, length: usize| {
            out.put_u16(0x8000 | VERSION);
            out.put_u16(kind);
            out.put_u32(u32::from(flags) << 24 | length as u32);
        };
        match self {
            Frame::Data { stream, bytes, last } => {
                out.put_u32(*stream);
                out.put_u32(u32::from(*last) << 24 | bytes.len() as u32);
                out.extend_from_slice(bytes);
            }
            Frame::Open { stream, block, last } => {
                control(kind::SYN_STREAM, u8::from(*last), 10 + block.len());
                out.put_u32(*stream);
                out.put_slice(&[0; 6]); // No associated stream, no priority.
                out.extend_from_slice(block);
            }
            Frame::Reply { stream, block } => {
                control(kind::SYN_REPLY, 0, 4 + block.len());
                out.put_u32(*stream);
                out.extend_from_slice(block);
            }
            Frame::Reset { stream, why } => {
                control(kind::RST_STREAM, 0, 8);
                out.put_u32(*stream);
                out.put_u32(*why);
            }
            Frame::InitialWindow(bytes) => {
                control(kind::SETTINGS, 0, 12);
                out.put_u32(1);
                out.put_u32(INITIAL_WINDOW);
                out.put_u32(*bytes);
            }
            Frame::Ping(id) => {
                control(kind::PING, 0, 4);
                out.put_u32(*id);
            }
            Frame::GoAway { last_stream } => {
                control(kind::GOAWAY, 0, 8);
                out.put_u32(*last_stream);
                out.put_u32(0);
            }
            Frame::Headers { stream, block, last } => {
                control(kind::HEADERS, u8::from(*last), 4 + block.len());
                out.put_u32(*stream);
                out.extend_from_slice(block);
            }
            Frame::WindowUpdate { stream, more } => {
                control(kind::WINDOW_UPDATE, 0, 8);
                out.put_u32(*stream);
                out.put_u32(*more);
            }
            Frame::Other => {}
        }
    }
}

/// The id of this value in a SETTINGS frame.
const INITIAL_WINDOW: u32 = 7;

fn settings(body: &[u8]) -> io::Result<Frame> {
    let count = number(body, 0)? as usize;
    for index in 0..count.min(body.len() / 8) {
        let at = 4 + 8 * index;
        if number(body, at)? & 0x00ff_ffff == INITIAL_WINDOW {
            return Ok(Frame::InitialWindow(number(body, at + 4)?));
        }
    }
    Ok(Frame::Other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn frames_are_read_as_they_were_written() {
        let block = Bytes::from_static(b"block");
        let frames = [
            Frame::Data { stream: 3, bytes: Bytes::from_static(b"hello"), last: false },
            Frame::Data { stream: 0x7fff_ffff, bytes: Bytes::new(), last: true },
            Frame::Open { stream: 5, block: block.clone(), last: true },
            Frame::Reply { stream: 5, block: block.clone() },
            Frame::Reset { stream: 5, why: 3 },
            Frame::Headers { stream: 5, block, last: false },
            Frame::Ping(9),
            Frame::GoAway { last_stream: 5 },
            Frame::WindowUpdate { stream: 0, more: 65536 },
            Frame::InitialWindow(1 << 20),
        ];
        let mut bytes = BytesMut::new();
        for frame in &frames {
            frame.write(&mut bytes);
        }
        let mut rest = &bytes[..];
        for frame in frames {
            assert_eq!(Frame::read(&mut rest).await.unwrap(), Some(frame));
        }
        assert_eq!(Frame::read(&mut rest).await.unwrap(), None);
    }

    #[tokio::test]
    async fn malformed_frames_are_errors() {
        for bytes in [
            &b"\x80\x02\x00\x01\x00\x00\x00\x00"[..],
            b"\x80\x03\x00\x01\x00\x00\x00\x02ab",
            b"\x80\x03\x00\x04\x00\x00\x00\x04\xff\xff\xff",
            b"\x00\x00\x00\x01\x00\xff\xff\xff",
        ] {
            let mut rest = bytes;
            assert!(Frame::read(&mut rest).await.is_err(), "{bytes:?}");
        }
        // More settings than the frame has room for.
        let mut many = &b"\x80\x03\x00\x04\x00\x00\x00\x04\xff\xff\xff\xff"[..];
        assert_eq!(Frame::read(&mut many).await.unwrap(), Some(Frame::Other));
    }
}
