//! Registers a file descriptor with the async runtime.

use std::io;
use std::os::fd::OwnedFd;
use tokio::io::unix::AsyncFd;

#[allow(unsafe_code, reason = "the descriptor is owned, so it stays open while it is registered")]
pub(crate) fn register(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: AsyncFd owns the descriptor and deregisters it before closing it.
    unsafe { AsyncFd::register(fd) }.map_err(io::Error::from)
}
