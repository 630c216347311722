//! Netlink: how messages to the kernel are put together, sent many at once, and answered.
//!
//! The kernel works through what is sent before `send` returns, so that all answers wait to be read;
//! nothing here ever blocks on the network. A socket belongs to the network namespace of the thread
//! that opened it, for ever.
//! Not here: what the messages mean (`link`, `nft`).

use crate::{Error, Result};
use nix::errno::Errno;
use nix::sys::socket::{self, AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockType};
use std::os::fd::{AsRawFd, OwnedFd};

pub(crate) const ACK: u16 = libc::NLM_F_ACK as u16;
pub(crate) const CREATE: u16 = libc::NLM_F_CREATE as u16;
pub(crate) const EXCL: u16 = libc::NLM_F_EXCL as u16;
pub(crate) const REPLACE: u16 = libc::NLM_F_REPLACE as u16;
pub(crate) const APPEND: u16 = libc::NLM_F_APPEND as u16;
pub(crate) const DUMP: u16 = libc::NLM_F_DUMP as u16;

/// Length, kind, flags, sequence, port.
const HEADER: usize = 16;
const NESTED: u16 = 1 << 15;
/// An attribute says its length in 16 bits.
pub(crate) const ATTRIBUTE_MAX: usize = u16::MAX as usize - 4;
/// More than the kernel puts into one datagram.
const DATAGRAM: usize = 64 * 1024;
/// What the kernel may queue for us: a batch that fails is answered with a line per failing message.
const RECEIVE_BUFFER: usize = 1024 * 1024;
/// The largest batch we ever send.
const SEND_MAX: usize = 64 * 1024 * 1024;

/// One message, growing attribute by attribute.
pub(crate) struct Message {
    bytes: Vec<u8>,
    /// For people, when it fails: `add link lf0p17`.
    what: String,
    /// Error numbers that mean that all is well: it was there already, or gone already.
    fine: &'static [i32],
}

impl Message {
    /// `head` is the fixed part that the family of messages starts with.
    pub(crate) fn new(kind: u16, flags: u16, head: &[u8], what: impl Into<String>) -> Message {
        let mut bytes = Vec::with_capacity(256);
        bytes.extend_from_slice(&[0; 4]); // The length, known at the end.
        bytes.extend_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(&(flags | libc::NLM_F_REQUEST as u16).to_ne_bytes());
        bytes.extend_from_slice(&[0; 8]);
        bytes.extend_from_slice(head);
        pad(&mut bytes);
        Message { bytes, what: what.into(), fine: &[] }
    }

    pub(crate) fn fine_if(mut self, errors: &'static [i32]) -> Message {
        self.fine = errors;
        self
    }

    pub(crate) fn flag(&mut self, flags: u16) {
        let now = u16::from_ne_bytes([self.bytes[6], self.bytes[7]]) | flags;
        self.bytes[6..8].copy_from_slice(&now.to_ne_bytes());
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Longer values than an attribute can hold are cut: callers keep to [`ATTRIBUTE_MAX`].
    pub(crate) fn attribute(&mut self, kind: u16, value: &[u8]) -> &mut Message {
        let value = &value[..value.len().min(ATTRIBUTE_MAX)];
        self.bytes.extend_from_slice(&(value.len() as u16 + 4).to_ne_bytes());
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

    /// In the machine's own order, as rtnetlink wants it.
    pub(crate) fn number(&mut self, kind: u16, value: u32) -> &mut Message {
        self.attribute(kind, &value.to_ne_bytes())
    }

    /// In network order, as netfilter wants it.
    pub(crate) fn be32(&mut self, kind: u16, value: u32) -> &mut Message {
        self.attribute(kind, &value.to_be_bytes())
    }

    pub(crate) fn be64(&mut self, kind: u16, value: u64) -> &mut Message {
        self.attribute(kind, &value.to_be_bytes())
    }

    /// An attribute made of attributes.
    pub(crate) fn nest(&mut self, kind: u16, inside: impl FnOnce(&mut Message)) -> &mut Message {
        self.nest_after(kind, &[], inside)
    }

    /// The same with a fixed part before the inner attributes.
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
        self.bytes[0..4].copy_from_slice(&length.to_ne_bytes());
        self.bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
    }
}

fn pad(bytes: &mut Vec<u8>) {
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

/// What the kernel sent back besides acknowledgements: everything after the header.
pub(crate) type Answer = Vec<u8>;

/// The attributes in `bytes`, as far as they are well formed. Flags in the kind are taken off.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes([*bytes.first()?, *bytes.get(1)?]));
        let kind = u16::from_ne_bytes([*bytes.get(2)?, *bytes.get(3)?]) & 0x3fff;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

pub(crate) struct Socket {
    fd: OwnedFd,
    sequence: u32,
}

impl Socket {
    /// To the part of the kernel that knows links, addresses and routes.
    pub(crate) fn route() -> Result<Socket> {
        Socket::open(socket::SockProtocol::NetlinkRoute)
    }

    /// To the part of the kernel that knows packet rules and connections.
    pub(crate) fn netfilter() -> Result<Socket> {
        Socket::open(socket::SockProtocol::NetlinkNetFilter)
    }

    fn open(protocol: socket::SockProtocol) -> Result<Socket> {
        let flags = SockFlag::SOCK_CLOEXEC;
        let fd = socket::socket(AddressFamily::Netlink, SockType::Raw, flags, protocol)
            .map_err(Error::call("open a netlink socket"))?;
        socket::bind(fd.as_raw_fd(), &NetlinkAddr::new(0, 0))
            .map_err(Error::call("bind a netlink socket"))?;
        // Longer explanations of errors, and no copy of our message in every answer.
        set_option(&fd, libc::SOL_NETLINK, libc::NETLINK_EXT_ACK, 1)?;
        set_option(&fd, libc::SOL_NETLINK, libc::NETLINK_CAP_ACK, 1)?;
        set_option(&fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, RECEIVE_BUFFER)?;
        Ok(Socket { fd, sequence: 0 })
    }

    /// Sends all messages at once and reads what comes back. The first that failed is the error;
    /// rtnetlink still does the others, netfilter does none of a batch.
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
                    continue; // An answer to an earlier request that was given up.
                };
                let Some(error) = refusal(message, &reply) else { continue };
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

    /// Everything of a kind. The kernel sends it in pieces.
    pub(crate) fn dump(&mut self, mut message: Message) -> Result<Vec<Answer>> {
        message.flag(DUMP);
        let mut messages = [message];
        let sequence = self.send(&mut messages)?;
        let mut answers = Vec::new();
        let mut buffer = vec![0; DATAGRAM];
        loop {
            let Some(length) = self.receive(&mut buffer, MsgFlags::empty())? else {
                return Ok(answers);
            };
            for reply in replies(&buffer[..length]).filter(|reply| reply.sequence == sequence) {
                match i32::from(reply.kind) {
                    libc::NLMSG_DONE => return Ok(answers),
                    libc::NLMSG_ERROR => {
                        return refusal(&messages[0], &reply).map_or(Ok(answers), Err);
                    }
                    _ => answers.push(reply.body.to_vec()),
                }
            }
        }
    }

    /// Returns the sequence number of the first message; the others count on from there.
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
        if bytes.len() > 128 * 1024 {
            set_option(&self.fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, bytes.len() + 4096)?;
        }
        loop {
            match socket::send(self.fd.as_raw_fd(), &bytes, MsgFlags::empty()) {
                Ok(_) => return Ok(first),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(Error::call("send to the kernel")(errno)),
            }
        }
    }

    /// None when nothing waits.
    fn receive(&self, buffer: &mut [u8], flags: MsgFlags) -> Result<Option<usize>> {
        loop {
            match socket::recv(self.fd.as_raw_fd(), buffer, flags) {
                Ok(length) => return Ok(Some(length)),
                Err(Errno::EAGAIN) => return Ok(None),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(Error::call("read the kernel's answer")(errno)),
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
        let length = u32::from_ne_bytes(header[0..4].try_into().ok()?) as usize;
        let reply = Reply {
            kind: u16::from_ne_bytes([header[4], header[5]]),
            flags: u16::from_ne_bytes([header[6], header[7]]),
            sequence: u32::from_ne_bytes(header[8..12].try_into().ok()?),
            body: bytes.get(HEADER..length)?,
        };
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(reply)
    })
}

/// None for an acknowledgement, or an error that the message calls fine.
fn refusal(message: &Message, reply: &Reply<'_>) -> Option<Error> {
    const TLVS: u16 = 0x200;
    const CAPPED: u16 = 0x100;
    let code = i32::from_ne_bytes(reply.body.get(..4)?.try_into().ok()?);
    if code == 0 || message.fine.contains(&-code) {
        return None;
    }
    // After the number comes the header of our message, or all of it, then the explanation.
    let original = u32::from_ne_bytes(reply.body.get(4..8)?.try_into().ok()?) as usize;
    let skip = 4 + if reply.flags & CAPPED != 0 { HEADER } else { original.next_multiple_of(4) };
    let detail = (reply.flags & TLVS != 0)
        .then(|| attributes(reply.body.get(skip..).unwrap_or_default()))
        .and_then(|mut found| found.find(|(kind, _)| *kind == 1))
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
    fn what_is_nested_is_found_again_and_aligned() {
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
    fn cut_off_answers_are_no_answers() {
        assert_eq!(attributes(&[9, 0, 1, 0, 1]).count(), 0);
        assert_eq!(attributes(&[0, 0, 0, 0]).count(), 0);
        assert_eq!(replies(&[200, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]).count(), 0);
    }
}
