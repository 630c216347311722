//! Netlink: builds messages to the kernel, sends them in batches and reads the answers.
//!
//! The kernel processes the messages before `send` returns and the answers are then ready to be read, so
//! nothing here waits for the network. A socket always belongs to the network namespace of the thread that
//! opened it.
//! Not here: what the messages mean (`link`, `nft`, `conntrack`, `census`).

use crate::{Error, Result};
use nix::errno::Errno;
use nix::sys::socket::{self, AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockType};
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};

pub(crate) const ACK: u16 = libc::NLM_F_ACK as u16;
pub(crate) const CREATE: u16 = libc::NLM_F_CREATE as u16;
pub(crate) const EXCL: u16 = libc::NLM_F_EXCL as u16;
pub(crate) const REPLACE: u16 = libc::NLM_F_REPLACE as u16;
pub(crate) const APPEND: u16 = libc::NLM_F_APPEND as u16;
pub(crate) const DUMP: u16 = libc::NLM_F_DUMP as u16;

/// Size of `struct nlmsghdr`: length, kind, flags, sequence number, port. Its fields follow.
const HEADER: usize = 16;
const LENGTH: Range<usize> = 0..4;
const KIND: Range<usize> = 4..6;
const FLAGS: Range<usize> = 6..8;
const SEQUENCE: Range<usize> = 8..12;
/// Messages and attributes start at multiples of this.
const ALIGNMENT: usize = 4;
/// Size of `struct nlattr`: length and kind.
const ATTRIBUTE_HEADER: usize = 4;
/// Flag in the kind of an attribute that consists of attributes.
pub(crate) const NESTED: u16 = libc::NLA_F_NESTED as u16;
/// An attribute stores its length in 16 bits.
pub(crate) const ATTRIBUTE_MAX: usize = u16::MAX as usize - ATTRIBUTE_HEADER;
/// The kernel's datagrams are smaller.
const DATAGRAM: usize = 64 * 1024;
/// The kernel sends an answer for each failing message of a batch. They all have to fit.
const RECEIVE_BUFFER: usize = 1024 * 1024;
/// Batches up to this size fit into a socket's default send buffer.
const SEND_BUFFER_DEFAULT: usize = 128 * 1024;
/// Room for the kernel's own data in a larger send buffer.
const SEND_BUFFER_OVERHEAD: usize = 4096;
/// Larger batches are refused.
const SEND_MAX: usize = 64 * 1024 * 1024;

/// A netlink message under construction.
pub(crate) struct Message {
    bytes: Vec<u8>,
    /// What the message does, for error texts: `add link lf0p17`.
    what: String,
    /// Error numbers that count as success, for example "exists already" when adding.
    ignored_errors: &'static [i32],
}

impl Message {
    /// `head` is the fixed header of the message's family.
    pub(crate) fn new(kind: u16, flags: u16, head: &[u8], what: impl Into<String>) -> Message {
        let mut bytes = Vec::with_capacity(256);
        bytes.resize(HEADER, 0); // `finish` fills in length and sequence number.
        bytes[KIND].copy_from_slice(&kind.to_ne_bytes());
        bytes[FLAGS].copy_from_slice(&(flags | libc::NLM_F_REQUEST as u16).to_ne_bytes());
        bytes.extend_from_slice(head);
        pad(&mut bytes);
        Message { bytes, what: what.into(), ignored_errors: &[] }
    }

    pub(crate) fn ignore_errors(mut self, errors: &'static [i32]) -> Message {
        self.ignored_errors = errors;
        self
    }

    pub(crate) fn add_flags(&mut self, flags: u16) {
        let flags = u16_at(&self.bytes, FLAGS).unwrap_or_default() | flags;
        self.bytes[FLAGS].copy_from_slice(&flags.to_ne_bytes());
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Values longer than [`ATTRIBUTE_MAX`] are truncated; callers must not pass them.
    pub(crate) fn attribute(&mut self, kind: u16, value: &[u8]) -> &mut Message {
        let value = &value[..value.len().min(ATTRIBUTE_MAX)];
        self.bytes.extend_from_slice(&((value.len() + ATTRIBUTE_HEADER) as u16).to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(value);
        pad(&mut self.bytes);
        self
    }

    pub(crate) fn text(&mut self, kind: u16, value: &str) -> &mut Message {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.attribute(kind, &bytes)
    }

    /// In native byte order, as rtnetlink expects.
    pub(crate) fn number(&mut self, kind: u16, value: u32) -> &mut Message {
        self.attribute(kind, &value.to_ne_bytes())
    }

    /// In network byte order, as netfilter expects.
    pub(crate) fn be32(&mut self, kind: u16, value: u32) -> &mut Message {
        self.attribute(kind, &value.to_be_bytes())
    }

    pub(crate) fn be64(&mut self, kind: u16, value: u64) -> &mut Message {
        self.attribute(kind, &value.to_be_bytes())
    }

    /// An attribute that consists of attributes.
    pub(crate) fn nest(&mut self, kind: u16, inside: impl FnOnce(&mut Message)) -> &mut Message {
        self.nest_after(kind, &[], inside)
    }

    /// Like [`Message::nest`], with a fixed header before the inner attributes.
    pub(crate) fn nest_after(
        &mut self,
        kind: u16,
        head: &[u8],
        inside: impl FnOnce(&mut Message),
    ) -> &mut Message {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 2]);
        self.bytes.extend_from_slice(&(kind | NESTED).to_ne_bytes());
        self.bytes.extend_from_slice(head);
        pad(&mut self.bytes);
        inside(self);
        let length = (self.bytes.len() - start).min(u16::MAX as usize) as u16;
        self.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        self
    }

    fn finish(&mut self, sequence: u32) {
        let length = self.bytes.len() as u32;
        self.bytes[LENGTH].copy_from_slice(&length.to_ne_bytes());
        self.bytes[SEQUENCE].copy_from_slice(&sequence.to_ne_bytes());
    }
}

fn pad(bytes: &mut Vec<u8>) {
    bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
}

pub(crate) fn u16_at(bytes: &[u8], field: Range<usize>) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(field)?.try_into().ok()?))
}

pub(crate) fn u32_at(bytes: &[u8], field: Range<usize>) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(field)?.try_into().ok()?))
}

pub(crate) fn u64_at(bytes: &[u8], field: Range<usize>) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(field)?.try_into().ok()?))
}

/// The body of an answer that is not an acknowledgement.
pub(crate) type Answer = Vec<u8>;

/// The attributes in `bytes`, up to the first malformed one. Kinds are returned without their flags.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    const KIND_MASK: u16 = libc::NLA_TYPE_MASK as u16;
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(bytes, 0..2)?);
        let kind = u16_at(bytes, 2..4)? & KIND_MASK;
        let value = bytes.get(ATTRIBUTE_HEADER..length)?;
        bytes = bytes.get(length.next_multiple_of(ALIGNMENT)..).unwrap_or_default();
        Some((kind, value))
    })
}

pub(crate) struct Socket {
    fd: OwnedFd,
    sequence: u32,
}

impl Socket {
    /// For links, addresses and routes.
    pub(crate) fn route() -> Result<Socket> {
        Socket::open(socket::SockProtocol::NetlinkRoute)
    }

    /// For packet rules and connection tracking.
    pub(crate) fn netfilter() -> Result<Socket> {
        Socket::open(socket::SockProtocol::NetlinkNetFilter)
    }

    /// For lists of TCP sockets.
    pub(crate) fn sock_diag() -> Result<Socket> {
        Socket::open(socket::SockProtocol::NetlinkSockDiag)
    }

    fn open(protocol: socket::SockProtocol) -> Result<Socket> {
        let flags = SockFlag::SOCK_CLOEXEC;
        let fd = socket::socket(AddressFamily::Netlink, SockType::Raw, flags, protocol)
            .map_err(Error::call("open a netlink socket"))?;
        socket::bind(fd.as_raw_fd(), &NetlinkAddr::new(0, 0))
            .map_err(Error::call("bind a netlink socket"))?;
        // Ask for error texts, and for answers without a copy of our message.
        set_option(&fd, libc::SOL_NETLINK, libc::NETLINK_EXT_ACK, 1)?;
        set_option(&fd, libc::SOL_NETLINK, libc::NETLINK_CAP_ACK, 1)?;
        set_option(&fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, RECEIVE_BUFFER)?;
        Ok(Socket { fd, sequence: 0 })
    }

    /// Sends all messages at once and reads the answers. Returns the error of the first message that failed.
    /// rtnetlink then still processes the others; netfilter discards the whole batch.
    pub(crate) fn request(&mut self, mut messages: Vec<Message>) -> Result<Vec<Answer>> {
        if messages.is_empty() {
            return Ok(Vec::new());
        }
        let first = self.send(&mut messages)?;
        let mut answers = Vec::new();
        let mut failure: Option<(usize, Error)> = None;
        let mut buffer = vec![0; DATAGRAM];
        while let Some(length) = self.receive(&mut buffer, MsgFlags::MSG_DONTWAIT)? {
            for reply in replies(&buffer[..length]) {
                if reply.kind != libc::NLMSG_ERROR as u16 {
                    answers.push(reply.body.to_vec());
                    continue;
                }
                let index = reply.sequence.wrapping_sub(first) as usize;
                let Some(message) = messages.get(index) else {
                    continue; // A late answer to an earlier request.
                };
                let Some(error) = error_of(message, &reply) else { continue };
                if failure.as_ref().is_none_or(|(earlier, _)| index < *earlier) {
                    failure = Some((index, error));
                }
            }
        }
        match failure {
            Some((_, error)) => Err(error),
            None => Ok(answers),
        }
    }

    /// Lists all objects of a kind.
    pub(crate) fn dump(&mut self, message: Message) -> Result<Vec<Answer>> {
        let mut answers = Vec::new();
        self.dump_each(message, |body| answers.push(body.to_vec()))?;
        Ok(answers)
    }

    /// Like [`Socket::dump`], for lists that may be too long to keep in memory.
    pub(crate) fn dump_each(
        &mut self,
        mut message: Message,
        mut each: impl FnMut(&[u8]),
    ) -> Result<()> {
        message.add_flags(DUMP);
        let mut messages = [message];
        let sequence = self.send(&mut messages)?;
        let mut buffer = vec![0; DATAGRAM];
        loop {
            let Some(length) = self.receive(&mut buffer, MsgFlags::empty())? else {
                return Ok(());
            };
            for reply in replies(&buffer[..length]).filter(|reply| reply.sequence == sequence) {
                match i32::from(reply.kind) {
                    libc::NLMSG_DONE => return Ok(()),
                    libc::NLMSG_ERROR => {
                        return error_of(&messages[0], &reply).map_or(Ok(()), Err);
                    }
                    _ => each(reply.body),
                }
            }
        }
    }

    /// Returns the sequence number of the first message. The others have consecutive numbers.
    fn send(&mut self, messages: &mut [Message]) -> Result<u32> {
        let first = self.sequence.wrapping_add(1);
        let mut bytes = Vec::with_capacity(messages.iter().map(Message::len).sum());
        for message in messages {
            self.sequence = self.sequence.wrapping_add(1);
            message.finish(self.sequence);
            bytes.extend_from_slice(&message.bytes);
        }
        if bytes.len() > SEND_MAX {
            return Err(Error::Invalid(format!("a batch of {} bytes is too large", bytes.len())));
        }
        if bytes.len() > SEND_BUFFER_DEFAULT {
            let size = bytes.len() + SEND_BUFFER_OVERHEAD;
            set_option(&self.fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, size)?;
        }
        loop {
            match socket::send(self.fd.as_raw_fd(), &bytes, MsgFlags::empty()) {
                Ok(_) => return Ok(first),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(Error::call("send netlink messages")(errno)),
            }
        }
    }

    /// `None` if there is nothing to read.
    fn receive(&self, buffer: &mut [u8], flags: MsgFlags) -> Result<Option<usize>> {
        loop {
            match socket::recv(self.fd.as_raw_fd(), buffer, flags) {
                Ok(length) => return Ok(Some(length)),
                Err(Errno::EAGAIN) => return Ok(None),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(Error::call("read netlink answers")(errno)),
            }
        }
    }
}

struct Reply<'a> {
    kind: u16,
    flags: u16,
    sequence: u32,
    body: &'a [u8],
}

fn replies(mut bytes: &[u8]) -> impl Iterator<Item = Reply<'_>> {
    std::iter::from_fn(move || {
        let header = bytes.get(..HEADER)?;
        let length = u32_at(header, LENGTH)? as usize;
        let reply = Reply {
            kind: u16_at(header, KIND)?,
            flags: u16_at(header, FLAGS)?,
            sequence: u32_at(header, SEQUENCE)?,
            body: bytes.get(HEADER..length)?,
        };
        bytes = bytes.get(length.next_multiple_of(ALIGNMENT)..).unwrap_or_default();
        Some(reply)
    })
}

/// The error in an answer of kind `NLMSG_ERROR`. `None` for an acknowledgement or an ignored error.
fn error_of(message: &Message, reply: &Reply<'_>) -> Option<Error> {
    const NLM_F_CAPPED: u16 = 0x100;
    const NLM_F_ACK_TLVS: u16 = 0x200;
    const NLMSGERR_ATTR_MSG: u16 = 1;
    // The body: error number, our message or only its header, attributes with the error text.
    const CODE: usize = 4;
    let code = i32::from_ne_bytes(reply.body.get(..CODE)?.try_into().ok()?);
    if code == 0 || message.ignored_errors.contains(&-code) {
        return None;
    }
    let our_message = u32_at(reply.body.get(CODE..)?, LENGTH)? as usize;
    let copied = match reply.flags & NLM_F_CAPPED != 0 {
        true => HEADER,
        false => our_message.next_multiple_of(ALIGNMENT),
    };
    let detail = (reply.flags & NLM_F_ACK_TLVS != 0)
        .then(|| attributes(reply.body.get(CODE + copied..).unwrap_or_default()))
        .and_then(|mut found| found.find(|(kind, _)| *kind == NLMSGERR_ATTR_MSG))
        .map(|(_, text)| String::from_utf8_lossy(text).trim_end_matches('\0').to_string());
    Some(Error::Kernel {
        doing: message.what.clone(),
        source: std::io::Error::from_raw_os_error(-code),
        detail,
    })
}

#[allow(unsafe_code, reason = "nix has no wrapper for netlink's socket options")]
fn set_option(fd: &OwnedFd, level: i32, option: i32, value: usize) -> Result<()> {
    let value = value as libc::c_int;
    let size = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the pointer is to a c_int that outlives the call, and the size is its size.
    let result =
        unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, (&raw const value).cast(), size) };
    Errno::result(result).map(drop).map_err(Error::call("set an option of a netlink socket"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_attributes_are_read_back_and_aligned() {
        let mut message = Message::new(1, 0, &[7], "test");
        message.text(3, "lo").nest(4, |inner| {
            inner.number(5, 6);
        });
        message.finish(9);
        assert_eq!(message.bytes.len() % 4, 0);
        let all = replies(&message.bytes).next().unwrap();
        assert_eq!((all.kind, all.sequence), (1, 9));
        let found: Vec<_> = attributes(&all.body[4..]).collect();
        assert_eq!(found[0], (3, &b"lo\0"[..]));
        assert_eq!(attributes(found[1].1).next(), Some((5, &6u32.to_ne_bytes()[..])));
    }

    #[test]
    fn truncated_answers_are_ignored() {
        assert_eq!(attributes(&[9, 0, 1, 0, 1]).count(), 0);
        assert_eq!(attributes(&[0, 0, 0, 0]).count(), 0);
        assert_eq!(replies(&[200, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]).count(), 0);
    }
}
