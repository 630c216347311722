//! A connection to the host's message bus (D-Bus). One call at a time; signals that arrive meanwhile are queued.
//!
//! logind gives out its delay lock only as a descriptor over D-Bus. Why this is not a library:
//! docs/decisions. Not here: the requests to the host (`logind`).

pub(crate) use super::wire::Value;

use super::wire::{Kind, Message};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;
use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::UnixStream;

/// The usual address of the bus; the environment can name another one.
const SYSTEM_BUS: &str = "unix:path=/run/dbus/system_bus_socket";
/// The bus itself replies at once, but a service behind it may have to be started first.
const REPLY_MAX: Duration = Duration::from_secs(25);
/// Signals that are kept while a call waits for its reply.
const SIGNALS_MAX: usize = 64;
/// Descriptors of one message. Messages for us have one or none.
const DESCRIPTORS_MAX: usize = 16;
const LINE_MAX: usize = 512;
/// The largest message that we expect is a list of a few strings. Longer ones are discarded as they arrive:
/// any local user can send one.
const KEPT_MAX: usize = 1 << 20;

const BUS: (&str, &str, &str) =
    ("org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus");

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("connecting to the host's D-Bus failed")]
    Connect(#[source] io::Error),
    #[error("the connection to the host's D-Bus broke")]
    Io(#[from] io::Error),
    #[error("malformed D-Bus message: {0}")]
    Malformed(String),
    #[error("{member} was refused: {name}: {text}")]
    Refused { member: String, name: String, text: String },
    #[error("no reply to {0}")]
    NoReply(String),
}

/// Destination of a call: service, object, interface.
pub(crate) type Target = (&'static str, &'static str, &'static str);

pub(crate) struct Bus {
    stream: UnixStream,
    serial: u32,
    arrived: Vec<u8>,
    descriptors: VecDeque<OwnedFd>,
    waiting: VecDeque<Message>,
}

#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) body: Vec<Value>,
    pub(crate) descriptors: Vec<OwnedFd>,
}

/// `DBUS_SYSTEM_BUS_ADDRESS`, else the usual address.
pub(crate) fn system_bus() -> String {
    std::env::var("DBUS_SYSTEM_BUS_ADDRESS").unwrap_or_else(|_| SYSTEM_BUS.to_owned())
}

impl Bus {
    /// `address` is a list of D-Bus addresses; the first one with a path is used.
    pub(crate) async fn connect(address: &str) -> Result<Bus, Error> {
        let path = address.split(';').find_map(|one| one.strip_prefix("unix:path="));
        let path = path.and_then(|path| path.split(',').next()).unwrap_or_default();
        let stream = UnixStream::connect(path).await.map_err(Error::Connect)?;
        let mut bus = Bus {
            stream,
            serial: 0,
            arrived: Vec::new(),
            descriptors: VecDeque::new(),
            waiting: VecDeque::new(),
        };
        let greet = async {
            bus.authenticate().await?;
            bus.call(BUS, "Hello", Vec::new()).await
        };
        match tokio::time::timeout(REPLY_MAX, greet).await {
            Ok(greeted) => greeted.map(|_| bus),
            Err(_) => Err(Error::NoReply("the D-Bus greeting".to_owned())),
        }
    }

    /// The kernel vouches for our user id.
    async fn authenticate(&mut self) -> Result<(), Error> {
        let user = nix::unistd::geteuid().to_string();
        let user: String = user.bytes().map(|digit| format!("{digit:02x}")).collect();
        self.stream.write_all(format!("\0AUTH EXTERNAL {user}\r\n").as_bytes()).await?;
        self.expect("OK ").await?;
        self.stream.write_all(b"NEGOTIATE_UNIX_FD\r\n").await?;
        self.expect("AGREE_UNIX_FD").await?;
        self.stream.write_all(b"BEGIN\r\n").await?;
        Ok(())
    }

    async fn expect(&mut self, words: &str) -> Result<(), Error> {
        loop {
            if let Some(end) = self.arrived.windows(2).position(|pair| pair == b"\r\n") {
                let line: Vec<u8> = self.arrived.drain(..end + 2).collect();
                let line = String::from_utf8_lossy(&line).trim().to_owned();
                let as_expected = line.starts_with(words.trim_end());
                return as_expected.then_some(()).ok_or(Error::Malformed(line));
            }
            if self.arrived.len() > LINE_MAX {
                return Err(Error::Malformed("an endless line".to_owned()));
            }
            self.receive().await?;
        }
    }

    pub(crate) async fn call(
        &mut self,
        target: Target,
        member: &str,
        body: Vec<Value>,
    ) -> Result<Reply, Error> {
        let (destination, path, interface) = target;
        let serial = self
            .send(Message {
                destination: destination.into(),
                path: path.into(),
                interface: interface.into(),
                member: member.into(),
                body,
                ..Message::new(Kind::Call)
            })
            .await?;
        let reply = async {
            loop {
                let (message, descriptors) = self.message().await?;
                let is_reply = message.answers == serial;
                match message.kind {
                    Kind::Return if is_reply => {
                        return Ok(Reply { body: message.body, descriptors });
                    }
                    Kind::Error if is_reply => return Err(refused(member, message)),
                    Kind::Signal if self.waiting.len() < SIGNALS_MAX => {
                        self.waiting.push_back(message);
                    }
                    // Late replies, and calls: this process offers nothing to call.
                    Kind::Signal | Kind::Return | Kind::Error | Kind::Call => {}
                }
            }
        };
        match tokio::time::timeout(REPLY_MAX, reply).await {
            Ok(reply) => reply,
            Err(_) => Err(Error::NoReply(member.to_owned())),
        }
    }

    /// Subscribes to the signals that match the rule; [`Bus::next`] returns them.
    pub(crate) async fn listen(&mut self, rule: &str) -> Result<(), Error> {
        self.call(BUS, "AddMatch", vec![rule.into()]).await.map(drop)
    }

    pub(crate) async fn property(&mut self, target: Target, name: &str) -> Result<Value, Error> {
        let (service, path, interface) = target;
        let properties = (service, path, "org.freedesktop.DBus.Properties");
        let reply = self.call(properties, "Get", vec![interface.into(), name.into()]).await?;
        match reply.body.into_iter().next() {
            Some(Value::Variant(value)) => Ok(*value),
            other => Err(Error::Malformed(format!("{name} is {other:?}"))),
        }
    }

    /// The connection that owns a service name now.
    pub(crate) async fn owner(&mut self, name: &str) -> Result<String, Error> {
        match self.call(BUS, "GetNameOwner", vec![name.into()]).await?.body.pop() {
            Some(Value::Text(owner)) => Ok(owner),
            other => Err(Error::Malformed(format!("the owner of {name} is {other:?}"))),
        }
    }

    /// The next message that is not a reply.
    pub(crate) async fn next(&mut self) -> Result<Message, Error> {
        match self.waiting.pop_front() {
            Some(message) => Ok(message),
            None => Ok(self.message().await?.0),
        }
    }

    pub(crate) async fn send(&mut self, mut message: Message) -> Result<u32, Error> {
        self.serial += 1;
        message.serial = self.serial;
        self.stream.write_all(&message.encode()).await?;
        Ok(self.serial)
    }

    async fn message(&mut self) -> Result<(Message, Vec<OwnedFd>), Error> {
        loop {
            let length = Message::length(&self.arrived).map_err(Error::Malformed)?;
            if let Some(length) = length.filter(|length| *length > KEPT_MAX) {
                self.discard(length).await?;
                continue;
            }
            if let Some(length) = length.filter(|length| self.arrived.len() >= *length) {
                let bytes: Vec<u8> = self.arrived.drain(..length).collect();
                let message = Message::decode(&bytes).map_err(Error::Malformed)?;
                let count = (message.descriptors as usize).min(self.descriptors.len());
                let descriptors = self.descriptors.drain(..count).collect();
                return Ok((message, descriptors));
            }
            self.receive().await?;
        }
    }

    /// Skips the message that has begun to arrive, and its descriptors, which came with its first byte.
    async fn discard(&mut self, mut length: usize) -> Result<(), Error> {
        self.descriptors.clear();
        while length > self.arrived.len() {
            length -= self.arrived.len();
            self.arrived.clear();
            self.receive().await?;
        }
        self.arrived.drain(..length);
        Ok(())
    }

    async fn receive(&mut self) -> Result<(), Error> {
        let mut buffer = [0; 4096];
        let socket = self.stream.as_raw_fd();
        let take = || receive(socket, &mut buffer);
        let (count, descriptors) = self.stream.async_io(Interest::READABLE, take).await?;
        if count == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        self.arrived.extend(&buffer[..count]);
        self.descriptors.extend(descriptors);
        self.descriptors.truncate(DESCRIPTORS_MAX);
        Ok(())
    }
}

fn refused(member: &str, message: Message) -> Error {
    let text = match message.body.into_iter().next() {
        Some(Value::Text(text)) => text,
        _ => String::new(),
    };
    Error::Refused { member: member.to_owned(), name: message.error, text }
}

/// Reads what has arrived, and the descriptors that came with it.
#[allow(unsafe_code, reason = "descriptors in messages need recvmsg; the buffers outlive the call")]
fn receive(socket: RawFd, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut control = [0_u64; DESCRIPTORS_MAX];
    let mut piece = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let mut descriptors = Vec::new();
    // SAFETY: all zeroes is a valid msghdr; the pointers in it are to live buffers of the lengths given;
    // the headers walked are those that the kernel wrote, and each descriptor in them is ours alone.
    let count = unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &raw mut piece;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control);
        let flags = libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT;
        let count = libc::recvmsg(socket, &raw mut message, flags);
        let mut header = libc::CMSG_FIRSTHDR(&raw const message);
        while count >= 0 && !header.is_null() {
            if ((*header).cmsg_level, (*header).cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let data = libc::CMSG_DATA(header).cast::<RawFd>();
                let length = (*header).cmsg_len - libc::CMSG_LEN(0) as usize;
                for place in 0..length / size_of::<RawFd>() {
                    descriptors.push(OwnedFd::from_raw_fd(data.add(place).read_unaligned()));
                }
            }
            header = libc::CMSG_NXTHDR(&raw const message, header);
        }
        count
    };
    // Negative: an error.
    let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
    Ok((count, descriptors))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signal(text: &str) -> Vec<u8> {
        let body = vec![text.into()];
        Message { serial: 1, member: "Test".into(), body, ..Message::new(Kind::Signal) }.encode()
    }

    /// A local user must not be able to end the connection that holds logind's delay lock.
    #[tokio::test]
    async fn a_message_that_is_too_long_is_skipped() {
        let (stream, mut other) = UnixStream::pair().unwrap();
        let (arrived, descriptors, waiting) = (Vec::new(), VecDeque::new(), VecDeque::new());
        let mut bus = Bus { stream, serial: 0, arrived, descriptors, waiting };
        let sent = tokio::spawn(async move {
            other.write_all(&signal(&"x".repeat(2 * KEPT_MAX))).await.unwrap();
            other.write_all(&signal("short")).await.unwrap();
            other
        });
        assert_eq!(bus.next().await.unwrap().body, [Value::from("short")]);
        assert!(bus.arrived.capacity() < KEPT_MAX);
        drop(sent.await.unwrap());
    }
}
