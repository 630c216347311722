//! Requests and replies as bytes: what a client sent, and what it gets within its size limit (NET-103).
//!
//! Requests come from any pod. Only the header, the question and the OPT record of a request are read, so the cost of
//! a hostile one does not depend on what else is in it. The library reads the question and writes the records.

use hickory_proto::ProtoError;
use hickory_proto::op::{Header, HeaderCounts, MessageType, Metadata, OpCode, Query, ResponseCode};
use hickory_proto::rr::{Name, Record};
use hickory_proto::serialize::binary::{BinDecodable, BinDecoder, BinEncodable, BinEncoder};

const HEADER_SIZE: usize = 12;

/// The largest reply over UDP without EDNS, and the smallest size that EDNS can ask for.
const PLAIN_SIZE: u16 = 512;

/// The largest reply over UDP, whatever the client accepts.
pub(crate) const UDP_REPLY_MAX: u16 = 4096;

/// The largest request over UDP that is read. It is announced in replies with EDNS.
pub(crate) const UDP_REQUEST_MAX: u16 = 4096;

/// A request has one question and nothing else but, at most, these numbers of records; as CoreDNS accepts them.
const ANSWERS_MAX: u16 = 1;
const AUTHORITIES_MAX: u16 = 1;
const ADDITIONALS_MAX: u16 = 2;

const OPT: u16 = 41;

/// The size of an OPT record without options.
const OPT_SIZE: u16 = 11;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    Udp,
    Tcp,
}

#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) id: u16,
    pub(crate) question: Query,
    pub(crate) recursion_desired: bool,
    pub(crate) checking_disabled: bool,
    pub(crate) edns: Option<Edns>,
}

/// The OPT record of a request, without its options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Edns {
    pub(crate) size: u16,
    pub(crate) version: u8,
    pub(crate) dnssec_ok: bool,
}

/// Why a request is not answered normally.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unreadable {
    /// No request at all: too short, or a reply. Answering could start a loop.
    Ignore,
    /// The complete reply: a header with an error code.
    Reject([u8; HEADER_SIZE]),
}

#[derive(Debug, Default)]
pub(crate) struct Reply {
    pub(crate) code: ResponseCode,
    pub(crate) authoritative: bool,
    pub(crate) authentic: bool,
    pub(crate) answers: Vec<Record>,
    pub(crate) authorities: Vec<Record>,
    pub(crate) additionals: Vec<Record>,
}

impl Reply {
    pub(crate) fn of_code(code: ResponseCode) -> Reply {
        Reply { code, ..Reply::default() }
    }
}

impl Request {
    /// Reads a request. Rejects what CoreDNS rejects, with the same code.
    pub(crate) fn read(bytes: &[u8]) -> Result<Request, Unreadable> {
        let mut decoder = BinDecoder::new(bytes);
        let Ok(Header { metadata, counts, .. }) = Header::read(&mut decoder) else {
            return Err(Unreadable::Ignore);
        };
        if metadata.message_type == MessageType::Response {
            return Err(Unreadable::Ignore);
        }
        if metadata.op_code != OpCode::Query {
            return Err(rejection(bytes, ResponseCode::NotImp));
        }
        let malformed = || rejection(bytes, ResponseCode::FormErr);
        let acceptable = counts.queries == 1
            && counts.answers <= ANSWERS_MAX
            && counts.authorities <= AUTHORITIES_MAX
            && counts.additionals <= ADDITIONALS_MAX;
        if !acceptable {
            return Err(malformed());
        }
        let question = Query::read(&mut decoder).map_err(|_| malformed())?;
        let rest = bytes.get(decoder.index()..).ok_or_else(malformed)?;
        let edns = find_opt(rest, &counts).ok_or_else(malformed)?;
        Ok(Request {
            id: metadata.id,
            question,
            recursion_desired: metadata.recursion_desired,
            checking_disabled: metadata.checking_disabled,
            edns,
        })
    }

    /// Writes the reply to this request into `buffer`. Drops whole records that do not fit, and says so.
    pub(crate) fn write(&self, reply: &Reply, transport: Transport, buffer: &mut Vec<u8>) {
        let limit = match (transport, &self.edns) {
            (Transport::Tcp, _) => u16::MAX,
            (Transport::Udp, None) => PLAIN_SIZE,
            (Transport::Udp, Some(edns)) => edns.size.clamp(PLAIN_SIZE, UDP_REPLY_MAX),
        };
        buffer.clear();
        if let Err(error) = self.encode(reply, limit, buffer) {
            tracing::debug!(%error, name = %self.question.name, "cannot encode the answer");
            let header = self.header(&Reply::of_code(ResponseCode::ServFail));
            buffer.clear();
            let header = Header { metadata: header, counts: HeaderCounts::default() };
            let _ = header.emit(&mut BinEncoder::new(buffer));
        }
    }

    fn encode(&self, reply: &Reply, limit: u16, buffer: &mut Vec<u8>) -> Result<(), ProtoError> {
        let mut encoder = BinEncoder::new(buffer);
        encoder.set_max_size(limit - if self.edns.is_some() { OPT_SIZE } else { 0 });
        let place = encoder.place::<Header>()?;
        let asked = &self.question.name;
        self.question.emit(&mut encoder)?;
        let (answers, mut complete) = emit(&mut encoder, &reply.answers, asked, true)?;
        let (authorities, all) = emit(&mut encoder, &reply.authorities, asked, complete)?;
        complete &= all;
        // Additional records save a client a question, but the answer is complete without them.
        let (mut additionals, _) = emit(&mut encoder, &reply.additionals, asked, complete)?;
        let mut metadata = self.header(reply);
        metadata.truncation = !complete;
        if let Some(edns) = &self.edns {
            encoder.set_max_size(limit);
            encoder.emit_vec(&opt(edns, metadata.response_code))?;
            additionals += 1;
        }
        let counts = HeaderCounts { queries: 1, answers, authorities, additionals };
        place.replace(&mut encoder, Header { metadata, counts })
    }

    fn header(&self, reply: &Reply) -> Metadata {
        let mut metadata = Metadata::new(self.id, MessageType::Response, OpCode::Query);
        metadata.recursion_desired = self.recursion_desired;
        metadata.checking_disabled = self.checking_disabled;
        metadata.recursion_available = true;
        metadata.authoritative = reply.authoritative;
        metadata.authentic_data = reply.authentic;
        // Without EDNS there is no place for the upper bits of a code.
        metadata.response_code = match self.edns {
            None if reply.code.high() > 0 => ResponseCode::ServFail,
            _ => reply.code,
        };
        metadata
    }
}

/// Writes records until one does not fit. Returns how many were written, and whether that is all.
fn emit(
    encoder: &mut BinEncoder<'_>,
    records: &[Record],
    asked: &Name,
    is_room: bool,
) -> Result<(u16, bool), ProtoError> {
    if !is_room {
        return Ok((0, false));
    }
    for (count, record) in records.iter().enumerate() {
        let start = encoder.offset();
        match emit_record(encoder, record, asked) {
            Ok(()) => (),
            Err(ProtoError::MaxBufferSizeExceeded(_)) => {
                encoder.set_offset(start);
                encoder.trim();
                return Ok((u16::try_from(count).unwrap_or(u16::MAX), false));
            }
            Err(error) => return Err(error),
        }
    }
    Ok((u16::try_from(records.len()).unwrap_or(u16::MAX), true))
}

/// As the library does, except that a name like that of the question is always a pointer to the question. The library
/// compresses only the first names of a message, so large answers would hold a third of the records.
fn emit_record(
    encoder: &mut BinEncoder<'_>,
    record: &Record,
    asked: &Name,
) -> Result<(), ProtoError> {
    if asked.is_root() || !record.name.eq_case(asked) {
        return record.emit(encoder);
    }
    encoder.emit_u16(0xC000 | HEADER_SIZE as u16)?;
    record.record_type().emit(encoder)?;
    record.dns_class.emit(encoder)?;
    encoder.emit_u32(record.ttl)?;
    let length = encoder.place::<u16>()?;
    record.data.emit(encoder)?;
    let size = u16::try_from(encoder.len_since_place(&length));
    let size = size.map_err(|_| ProtoError::Message("the data of a record is too long"))?;
    length.replace(encoder, size)
}

/// The OPT record of a reply.
fn opt(edns: &Edns, code: ResponseCode) -> [u8; OPT_SIZE as usize] {
    let [size_high, size_low] = UDP_REQUEST_MAX.to_be_bytes();
    let flags = if edns.dnssec_ok { 0x80 } else { 0 };
    [0, 0, OPT as u8, size_high, size_low, code.high(), 0, flags, 0, 0, 0]
}

/// A header that refuses `request`, which has at least a header.
fn rejection(request: &[u8], code: ResponseCode) -> Unreadable {
    let mut header = [0; HEADER_SIZE];
    let Some(original) = request.get(..4) else {
        return Unreadable::Ignore;
    };
    header[..2].copy_from_slice(&original[..2]);
    // The reply bit, and the operation and the wish for recursion of the request.
    header[2] = 0x80 | original[2] & 0x79;
    header[3] = code.low();
    Unreadable::Reject(header)
}

/// Finds the OPT record in the records after the question. `None` if they are malformed or there are two.
fn find_opt(mut rest: &[u8], counts: &HeaderCounts) -> Option<Option<Edns>> {
    let mut found = None;
    let others = counts.answers + counts.authorities;
    for number in 0..others + counts.additionals {
        let name_size = name_size(rest)?;
        let (fixed, after) = rest.get(name_size..)?.split_at_checked(10)?;
        let number_at = |at: usize| u16::from_be_bytes([fixed[at], fixed[at + 1]]);
        let is_opt = number_at(0) == OPT;
        if is_opt && (name_size != 1 || number < others || found.is_some()) {
            return None;
        }
        if is_opt {
            let (version, flags) = (fixed[5], fixed[6]);
            found = Some(Edns { size: number_at(2), version, dnssec_ok: flags & 0x80 != 0 });
        }
        rest = after.get(usize::from(number_at(8))..)?;
    }
    Some(found)
}

/// How many bytes the name at the beginning of `bytes` takes. A pointer ends a name and is not followed.
pub(crate) fn name_size(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        match *bytes.get(at)? {
            0 => return Some(at + 1),
            length @ 1..=63 => at += 1 + usize::from(length),
            0xC0..=0xFF => return bytes.get(at + 1).map(|_| at + 2),
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests;
