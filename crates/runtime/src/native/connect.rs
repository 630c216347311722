//! A TCP connection inside a sandbox's network namespace (N-166).
//!
//! Each connection is opened by a new thread, because entering a namespace changes the whole thread and the
//! threads of the async runtime must not change their namespace.

use super::sandbox::LiveSandbox;
use crate::error::plain;
use crate::{Error, Result};
use nix::sched::{CloneFlags, setns};
use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::Duration;
use tokio::sync::oneshot;

/// A local connection takes milliseconds. If it takes longer, a packet rule drops it.
const CONNECT_MAX: Duration = Duration::from_secs(10);

pub(crate) async fn connect(sandbox: &LiveSandbox, port: u16) -> Result<tokio::net::TcpStream> {
    sandbox.shim()?;
    let process =
        sandbox.process().ok_or_else(|| Error::Unavailable("the sandbox has no process".into()))?;
    let refused = |error: io::Error| {
        Error::Refused(format!("failed to connect to localhost:{port}: {}", plain(&error)))
    };
    let namespace = File::open(format!("/proc/{}/ns/net", process.pid)).map_err(refused)?;
    let (sender, receiver) = oneshot::channel();
    std::thread::Builder::new()
        .name("connect".into())
        .stack_size(128 << 10)
        .spawn(move || drop(sender.send(connect_in(namespace, port))))
        .map_err(refused)?;
    let stream = receiver
        .await
        .map_err(|_| Error::Unavailable("the thread that connects to the pod panicked".into()))?
        .map_err(refused)?;
    tokio::net::TcpStream::from_std(stream).map_err(refused)
}

/// Tries 127.0.0.1, then ::1. Returns the error of the first.
fn connect_in(namespace: File, port: u16) -> io::Result<TcpStream> {
    setns(namespace, CloneFlags::CLONE_NEWNET)?;
    let v4 = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let v6 = SocketAddr::from((Ipv6Addr::LOCALHOST, port));
    let stream = TcpStream::connect_timeout(&v4, CONNECT_MAX)
        .or_else(|error| TcpStream::connect_timeout(&v6, CONNECT_MAX).map_err(|_| error))?;
    stream.set_nonblocking(true)?;
    Ok(stream)
}
