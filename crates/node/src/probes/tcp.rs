//! TCP connections of handlers, and the tcpSocket probe (N-100, N-103).
//!
//! Errors have the texts of Go's `net` package, because events show them.

use super::handler::Outcome;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::{TcpSocket, TcpStream};

/// Makes the kernel release a closed socket early: otherwise sockets of probes would pile up.
const LINGER: Duration = Duration::from_secs(1);

/// Connects and closes.
pub(super) async fn probe(host: &str, port: u16, timeout: Duration) -> Outcome {
    match tokio::time::timeout(timeout, dial(host, port)).await {
        Ok(Ok(_)) => Outcome::Success,
        Ok(Err(why)) => Outcome::Failure(why),
        Err(_) => Outcome::Failure(format!("dial tcp {}: i/o timeout", authority(host, port))),
    }
}

/// The error is the complete message.
pub(super) async fn dial(host: &str, port: u16) -> Result<TcpStream, String> {
    let name = host.trim_start_matches('[').trim_end_matches(']');
    let addresses: Vec<SocketAddr> = match name.parse() {
        Ok(ip) => vec![SocketAddr::new(ip, port)],
        Err(_) => lookup(name, port).await?,
    };
    let mut failed = format!("dial tcp: lookup {name}: no such host");
    for address in addresses {
        match connect(address).await {
            Ok(stream) => return Ok(stream),
            Err(error) => failed = format!("dial tcp {address}: connect: {}", errno_text(&error)),
        }
    }
    Err(failed)
}

async fn lookup(name: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
    let found = tokio::net::lookup_host((name, port)).await;
    let found = found.map_err(|_| format!("dial tcp: lookup {name}: no such host"))?;
    Ok(found.collect())
}

async fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }?;
    // Deprecated because dropping a socket with unsent data may block; a probe has none.
    #[allow(deprecated)]
    socket.set_linger(Some(LINGER))?;
    socket.connect(address).await
}

/// The text as Go has it: `connection refused`, not `Connection refused (os error 111)`.
pub(super) fn errno_text(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(code) => nix::errno::Errno::from_raw(code).desc().to_lowercase(),
        None => error.to_string(),
    }
}

pub(super) fn authority(host: &str, port: u16) -> String {
    match host.contains(':') && !host.starts_with('[') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    }
}
