//! One agent at the other end of a socket: bytes in, bytes out, descriptors that come along.

use super::message::{self, MESSAGE_MAX};
use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSliceMut, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// An agent that does not read this much is let go; it will come back and ask for the state.
const OUTPUT_MAX: usize = 8 << 20;
/// An attached client holds back the container once this much waits for it.
const ATTACHED_OUTPUT: usize = 64 << 10;

/// What an attached connection wants, and of which container.
pub(crate) struct Attached {
    pub(crate) container: String,
    pub(crate) stdin: bool,
    pub(crate) stdout: bool,
    pub(crate) stderr: bool,
}

pub(crate) struct Connection {
    /// Never given twice, unlike places in a list.
    pub(crate) number: u64,
    stream: UnixStream,
    pub(crate) input: Vec<u8>,
    pub(crate) descriptors: VecDeque<OwnedFd>,
    output: VecDeque<u8>,
    pub(crate) attached: Option<Attached>,
    /// To be closed once everything has been said.
    pub(crate) leaving: bool,
}

impl Connection {
    pub(crate) fn new(number: u64, stream: UnixStream) -> io::Result<Connection> {
        stream.set_nonblocking(true)?;
        Ok(Connection {
            number,
            stream,
            input: Vec::new(),
            descriptors: VecDeque::new(),
            output: VecDeque::new(),
            attached: None,
            leaving: false,
        })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    pub(crate) fn wants_to_write(&self) -> bool {
        !self.output.is_empty()
    }

    pub(crate) fn holds_back(&self) -> bool {
        self.output.len() > ATTACHED_OUTPUT
    }

    pub(crate) fn tell(&mut self, told: &message::Told) {
        self.send(&message::encode(told));
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        let mut bytes = bytes;
        if self.output.is_empty() {
            // Nearly always the socket has room, and waiting for the next round would cost time.
            while let Ok(written) = self.stream.write(bytes) {
                bytes = &bytes[written..];
                if bytes.is_empty() {
                    return;
                }
            }
        }
        self.output.extend(bytes);
        if self.output.len() > OUTPUT_MAX {
            self.leaving = true;
            self.output = VecDeque::new();
        }
    }

    /// Writes what waits. False when the other end is gone.
    pub(crate) fn flush(&mut self) -> bool {
        while !self.output.is_empty() {
            let (front, _) = self.output.as_slices();
            match self.stream.write(front) {
                Ok(0) => return false,
                Ok(written) => drop(self.output.drain(..written)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        self.output.shrink_to(4 << 10);
        true
    }

    /// Reads what there is, up to one buffer. False when the other end is gone.
    pub(crate) fn fill(&mut self, buffer: &mut [u8]) -> bool {
        if self.input.len() > MESSAGE_MAX {
            return false;
        }
        let mut space = cmsg_space!([std::os::fd::RawFd; 3]);
        let mut parts = [IoSliceMut::new(buffer)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC | MsgFlags::MSG_DONTWAIT;
        let received =
            match recvmsg::<()>(self.stream.as_raw_fd(), &mut parts, Some(&mut space), flags) {
                Ok(received) => received,
                Err(Errno::EAGAIN | Errno::EINTR) => return true,
                Err(_) => return false,
            };
        let length = received.bytes;
        for control in received.cmsgs().into_iter().flatten() {
            if let ControlMessageOwned::ScmRights(descriptors) = control {
                self.descriptors.extend(descriptors.into_iter().map(super::sys::own));
            }
        }
        self.input.extend_from_slice(&buffer[..length]);
        length > 0
    }
}
