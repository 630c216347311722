//! One question to one server: over UDP, and over TCP if the answer does not fit.
//!
//! Each question has its own socket, so its source port is random, as is its id. A reply counts only if it comes from
//! the server, and has the id and the question.

use super::forward::{Question, UpstreamAnswer};
use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query};
use hickory_proto::rr::{DNSClass, RecordType};
use hickory_proto::serialize::binary::{BinDecodable, BinDecoder, DecodeError};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};

/// The largest reply over UDP that servers may send: as recommended, one that no link splits.
const UDP_SIZE: u16 = 1232;

/// Replies over UDP can be larger than asked for; what is above this is cut off and then malformed.
const UDP_BUFFER: usize = 4096;

/// The smallest record: root name, type, class, TTL, length.
const RECORD_SIZE_MIN: usize = 11;

/// How many pointers of compressed names may follow each other. Servers need one or two.
const POINTERS_MAX: u16 = 64;

#[derive(Debug, thiserror::Error)]
pub(crate) enum ExchangeError {
    #[error("no reply in time")]
    Timeout,
    #[error("sending or receiving failed: {0}")]
    Io(#[from] io::Error),
    #[error("the reply is malformed: {0}")]
    Malformed(String),
}

/// Asks one server. The caller limits the time.
pub(crate) async fn ask(
    server: SocketAddr,
    question: &Question,
) -> Result<UpstreamAnswer, ExchangeError> {
    let id = clock::random_u64() as u16;
    let request = encode(id, question)?;
    let message = match over_udp(server, &request, id, question).await? {
        message if message.truncation => over_tcp(server, &request, id, question).await?,
        message => message,
    };
    Ok(answer_of(message))
}

fn encode(id: u16, question: &Question) -> Result<Vec<u8>, ExchangeError> {
    let mut message = Message::new(id, MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = question.recursion_desired;
    message.metadata.checking_disabled = question.checking_disabled;
    message.add_query(Query::query(question.name.clone(), question.kind));
    if let Some(dnssec_ok) = question.edns {
        let mut edns = Edns::new();
        edns.set_max_payload(UDP_SIZE).set_dnssec_ok(dnssec_ok);
        message.set_edns(edns);
    }
    message.to_vec().map_err(|error| ExchangeError::Malformed(error.to_string()))
}

async fn over_udp(
    server: SocketAddr,
    request: &[u8],
    id: u16,
    question: &Question,
) -> Result<Message, ExchangeError> {
    let any: SocketAddr = match server {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any).await?;
    // The kernel drops packets from other addresses.
    socket.connect(server).await?;
    socket.send(request).await?;
    let mut buffer = vec![0; UDP_BUFFER];
    loop {
        let length = socket.recv(&mut buffer).await?;
        let reply = &buffer[..length];
        if is_reply_to(reply, id, question) {
            return decode(reply);
        }
        tracing::debug!(%server, "a DNS reply does not belong to the question; ignored");
    }
}

async fn over_tcp(
    server: SocketAddr,
    request: &[u8],
    id: u16,
    question: &Question,
) -> Result<Message, ExchangeError> {
    let mut stream = TcpStream::connect(server).await?;
    let length = u16::try_from(request.len()).map_err(io::Error::other)?;
    let framed = [&length.to_be_bytes()[..], request].concat();
    stream.write_all(&framed).await?;
    let length = stream.read_u16().await?;
    let mut reply = vec![0; usize::from(length)];
    stream.read_exact(&mut reply).await?;
    match is_reply_to(&reply, id, question) {
        true => decode(&reply),
        false => Err(ExchangeError::Malformed("it belongs to another question".into())),
    }
}

/// Whether the message is a reply with this id to exactly this question.
fn is_reply_to(reply: &[u8], id: u16, question: &Question) -> bool {
    let [id_high, id_low, flags, _, 0, 1, ..] = reply else {
        return false;
    };
    if u16::from_be_bytes([*id_high, *id_low]) != id || flags & 0xF8 != 0x80 {
        return false;
    }
    let read = || -> Result<Query, DecodeError> {
        let mut decoder = BinDecoder::new(reply);
        decoder.read_slice(12)?;
        Query::read(&mut decoder)
    };
    read().is_ok_and(|asked| {
        asked.name == question.name
            && asked.query_type == question.kind
            && asked.query_class == DNSClass::IN
    })
}

/// Decodes a reply. First checks what the library does not limit: memory for records, and the depth of pointers,
/// which it follows by recursion.
fn decode(reply: &[u8]) -> Result<Message, ExchangeError> {
    let malformed = |why: &str| ExchangeError::Malformed(why.to_owned());
    let counts = reply.get(6..12).ok_or_else(|| malformed("it has no header"))?;
    let records: usize = counts
        .chunks_exact(2)
        .map(|count| usize::from(u16::from_be_bytes([count[0], count[1]])))
        .sum();
    if records > reply.len() / RECORD_SIZE_MIN {
        return Err(malformed("it is too short for its records"));
    }
    if !has_shallow_pointers(reply) {
        return Err(malformed("its names are compressed too often"));
    }
    Message::from_vec(reply).map_err(|error| malformed(&error.to_string()))
}

/// Computes for each position how many pointers a name that begins there goes through. A pointer leads to an earlier
/// position, so one pass is enough.
fn has_shallow_pointers(message: &[u8]) -> bool {
    // A pointer has 14 bits.
    let reachable = message.len().min(1 << 14);
    let mut depths: Vec<u16> = vec![0; reachable];
    for start in 0..message.len() {
        let mut at = start;
        let mut labels = 0;
        let depth = loop {
            match message.get(at) {
                Some(length @ 1..=63) if labels < 128 => {
                    at += 1 + usize::from(*length);
                    labels += 1;
                }
                Some(high @ 0xC0..=0xFF) => {
                    let low = message.get(at + 1).copied().unwrap_or_default();
                    let target = usize::from(u16::from_be_bytes([high & 0x3F, low]));
                    break if target < start { depths[target] + 1 } else { 0 };
                }
                // The end of a name, or no name.
                _ => break 0,
            }
        };
        if depth > POINTERS_MAX {
            return false;
        }
        if let Some(known) = depths.get_mut(start) {
            *known = depth;
        }
    }
    true
}

/// Without the records that belong to the connection with the server, not to the answer.
fn answer_of(message: Message) -> UpstreamAnswer {
    let mut additionals = message.additionals;
    additionals.retain(|record| {
        !matches!(record.record_type(), RecordType::OPT | RecordType::TSIG | RecordType::SIG)
    });
    UpstreamAnswer {
        code: message.metadata.response_code,
        authentic: message.metadata.authentic_data,
        answers: message.answers,
        authorities: message.authorities,
        additionals,
    }
}

#[cfg(test)]
mod tests;
