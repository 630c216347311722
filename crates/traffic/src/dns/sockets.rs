//! The two sockets of one address: UDP and TCP with the same port.

use nix::sys::socket::{setsockopt, sockopt};
use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;

/// How often to try another port if port 0 was asked for and the chosen one is taken for UDP.
const PORTS_MAX: usize = 16;

/// Bytes of requests that wait for the server. The kernel's default has room for some 250, and a lost request costs the
/// client seconds.
const RECEIVE_BUFFER: usize = 4 << 20;

pub(crate) struct Sockets {
    pub(crate) address: SocketAddr,
    udp: UdpSocket,
    tcp: TcpListener,
}

impl Sockets {
    /// Binds both. Connections of an earlier process do not prevent that: the standard library sets SO_REUSEADDR for
    /// TCP. UDP has no connections and does without, so a second server on the same address is an error.
    pub(crate) fn bind(address: SocketAddr) -> io::Result<Sockets> {
        let mut attempts = if address.port() == 0 { PORTS_MAX } else { 1 };
        loop {
            attempts -= 1;
            let tcp = TcpListener::bind(address)?;
            let chosen = tcp.local_addr()?;
            match UdpSocket::bind(chosen) {
                Ok(udp) => {
                    enlarge_receive_buffer(&udp);
                    return Ok(Sockets { address: chosen, udp, tcp });
                }
                Err(error) if attempts == 0 => return Err(error),
                Err(_) => (),
            }
        }
    }

    /// Must be called inside the runtime that serves them.
    pub(crate) fn into_tokio(
        self,
    ) -> io::Result<(Arc<tokio::net::UdpSocket>, tokio::net::TcpListener)> {
        self.udp.set_nonblocking(true)?;
        self.tcp.set_nonblocking(true)?;
        let udp = tokio::net::UdpSocket::from_std(self.udp)?;
        Ok((Arc::new(udp), tokio::net::TcpListener::from_std(self.tcp)?))
    }
}

/// Above the limit for unprivileged processes if possible, else up to it.
fn enlarge_receive_buffer(socket: &UdpSocket) {
    let forced = setsockopt(socket, sockopt::RcvBufForce, &RECEIVE_BUFFER);
    let enlarged = forced.or_else(|_| setsockopt(socket, sockopt::RcvBuf, &RECEIVE_BUFFER));
    if let Err(error) = enlarged {
        tracing::debug!(%error, "cannot enlarge the receive buffer of the DNS server");
    }
}
