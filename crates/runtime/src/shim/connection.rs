//! A connection to an agent or an attached client: buffers, and file descriptors that were received.

use super::message::{self, MESSAGE_MAX};
use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSliceMut, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// If an agent has not read this much output, the connection is closed. The agent reconnects and asks for the
/// state.
const OUTPUT_MAX: usize = 8 << 20;
/// If an attached client has not read this much output, the container's output waits.
const ATTACHED_OUTPUT: usize = 64 << 10;

/// The container of an attached client, and the streams that it requested.
pub(crate) struct Attached {
    pub(crate) container: String,
    pub(crate) stdin: bool,
    pub(crate) stdout: bool,
    pub(crate) stderr: bool,
}

pub(crate) struct Connection {
    /// Unique for the lifetime of the shim.
    pub(crate) number: u64,
    stream: UnixStream,
    pub(crate) input: Vec<u8>,
    pub(crate) descriptors: VecDeque<OwnedFd>,
    output: VecDeque<u8>,
    pub(crate) attached: Option<Attached>,
    /// Close the connection when all output is written.
    pub(crate) closing: bool,
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
            closing: false,
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

    pub(crate) fn notify(&mut self, event: &message::ShimEvent) {
        self.send(&message::encode(event));
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        let mut bytes = bytes;
        if self.output.is_empty() {
            // The socket nearly always has room. Try to write at once instead of waiting for `poll`.
            while let Ok(written) = self.stream.write(bytes) {
                bytes = &bytes[written..];
                if bytes.is_empty() {
                    return;
                }
            }
        }
        self.output.extend(bytes);
        if self.output.len() > OUTPUT_MAX {
            self.closing = true;
            self.output = VecDeque::new();
        }
    }

    /// Writes buffered output. Returns false if the peer has disconnected.
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

    /// Reads available input, at most one buffer. Returns false if the peer has disconnected.
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
