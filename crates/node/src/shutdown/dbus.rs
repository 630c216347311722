//! A connection to the host's message bus. Calls go out one at a time; signals that come meanwhile wait.
//!
//! logind hands out its delay lock as a descriptor over D-Bus and in no other way. A library for all of
//! D-Bus would be larger than this node; what is needed of it fits on two pages.
//! Not here: what is asked of the host (`logind`).

pub(crate) use super::wire::Value;

use super::wire::{Kind, Message};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;
use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::UnixStream;

/// Where a host has its bus, unless the environment says otherwise.
const SYSTEM_BUS: &str = "unix:path=/run/dbus/system_bus_socket";
/// The bus answers at once; who is asked through it may have to be started first.
const ANSWER_MAX: Duration = Duration::from_secs(25);
/// Signals that came while an answer was waited for.
const SIGNALS_WAITING: usize = 64;
/// Of one message. Ours have one or none.
const DESCRIPTORS_MAX: usize = 16;
const LINE_MAX: usize = 512;

const BUS: (&str, &str, &str) =
    ("org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus");

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("the host's bus is not there")]
    Connect(#[source] io::Error),
    #[error("the host's bus broke off")]
    Io(#[from] io::Error),
    #[error("the host's bus does not make sense: {0}")]
    Nonsense(String),
    #[error("{member} was refused: {name}: {text}")]
    Refused { member: String, name: String, text: String },
    #[error("{0} was not answered")]
    Silent(String),
}

/// Whom to ask: service, object, interface.
pub(crate) type Whom = (&'static str, &'static str, &'static str);

pub(crate) struct Bus {
    stream: UnixStream,
    serial: u32,
    arrived: Vec<u8>,
    descriptors: VecDeque<OwnedFd>,
    waiting: VecDeque<Message>,
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) body: Vec<Value>,
    pub(crate) descriptors: Vec<OwnedFd>,
}

/// As `DBUS_SYSTEM_BUS_ADDRESS` has it, else the usual one.
pub(crate) fn system_bus() -> String {
    std::env::var("DBUS_SYSTEM_BUS_ADDRESS").unwrap_or_else(|_| SYSTEM_BUS.to_owned())
}

impl Bus {
    /// `address` as D-Bus writes them; of several, the first that is a path.
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
        match tokio::time::timeout(ANSWER_MAX, greet).await {
            Ok(greeted) => greeted.map(|_| bus),
            Err(_) => Err(Error::Silent("the greeting".to_owned())),
        }
    }

    /// We are who the kernel says that we are.
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
                return as_expected.then_some(()).ok_or(Error::Nonsense(line));
            }
            if self.arrived.len() > LINE_MAX {
                return Err(Error::Nonsense("a line without end".to_owned()));
            }
            self.receive().await?;
        }
    }

    pub(crate) async fn call(
        &mut self,
        whom: Whom,
        member: &str,
        body: Vec<Value>,
    ) -> Result<Answer, Error> {
        let (destination, path, interface) = whom;
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
        let answer = async {
            loop {
                let (message, descriptors) = self.message().await?;
                let answers = message.answers == serial;
                match message.kind {
                    Kind::Return if answers => {
                        return Ok(Answer { body: message.body, descriptors });
                    }
                    Kind::Error if answers => return Err(refused(member, message)),
                    Kind::Signal if self.waiting.len() < SIGNALS_WAITING => {
                        self.waiting.push_back(message);
                    }
                    // Late answers, and calls: nobody has a reason to call us.
                    Kind::Signal | Kind::Return | Kind::Error | Kind::Call => {}
                }
            }
        };
        match tokio::time::timeout(ANSWER_MAX, answer).await {
            Ok(answer) => answer,
            Err(_) => Err(Error::Silent(member.to_owned())),
        }
    }

    /// From now on [`Bus::next`] has the signals that the rule describes.
    pub(crate) async fn listen(&mut self, rule: &str) -> Result<(), Error> {
        self.call(BUS, "AddMatch", vec![rule.into()]).await.map(drop)
    }

    pub(crate) async fn property(&mut self, whom: Whom, name: &str) -> Result<Value, Error> {
        let (service, path, interface) = whom;
        let properties = (service, path, "org.freedesktop.DBus.Properties");
        let answer = self.call(properties, "Get", vec![interface.into(), name.into()]).await?;
        match answer.body.into_iter().next() {
            Some(Value::Variant(value)) => Ok(*value),
            other => Err(Error::Nonsense(format!("{name} is {other:?}"))),
        }
    }

    /// Who answers to that name now.
    pub(crate) async fn owner(&mut self, name: &str) -> Result<String, Error> {
        match self.call(BUS, "GetNameOwner", vec![name.into()]).await?.body.pop() {
            Some(Value::Text(owner)) => Ok(owner),
            other => Err(Error::Nonsense(format!("the owner of {name} is {other:?}"))),
        }
    }

    /// What comes unasked.
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
            let length = Message::length(&self.arrived).map_err(Error::Nonsense)?;
            if let Some(length) = length.filter(|length| self.arrived.len() >= *length) {
                let bytes: Vec<u8> = self.arrived.drain(..length).collect();
                let message = Message::decode(&bytes).map_err(Error::Nonsense)?;
                let count = (message.descriptors as usize).min(self.descriptors.len());
                let descriptors = self.descriptors.drain(..count).collect();
                return Ok((message, descriptors));
            }
            self.receive().await?;
        }
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

/// One piece, and the descriptors that came with it.
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
    // Negative: there is an error to tell.
    let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
    Ok((count, descriptors))
}
