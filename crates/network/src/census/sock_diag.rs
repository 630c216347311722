//! Lists the TCP sockets of a network namespace with the kernel's sock_diag protocol, as `ss` does.
//!
//! Not here: which sockets count as connections, and what idle means (`census`).

use crate::Result;
use crate::cidr::address_from;
use crate::netlink::{self, Message, attributes, u16_at, u32_at, u64_at};
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::time::Duration;

// Constants of `linux/sock_diag.h`, `linux/inet_diag.h` and `net/tcp_states.h`.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const INET_DIAG_INFO: u16 = 2;
pub(super) const ESTABLISHED: u8 = 1;
pub(super) const SYN_RECV: u8 = 3;
pub(super) const FIN_WAIT1: u8 = 4;
pub(super) const FIN_WAIT2: u8 = 5;
pub(super) const CLOSE_WAIT: u8 = 8;
pub(super) const LAST_ACK: u8 = 9;
pub(super) const LISTEN: u8 = 10;
pub(super) const CLOSING: u8 = 11;
/// How the kernel stores `SYN_RECV` internally. It is reported as that.
const NEW_SYN_RECV: u8 = 12;
const STATES: [u8; 9] = [
    ESTABLISHED,
    SYN_RECV,
    FIN_WAIT1,
    FIN_WAIT2,
    CLOSE_WAIT,
    LAST_ACK,
    LISTEN,
    CLOSING,
    NEW_SYN_RECV,
];

/// Size of `struct inet_diag_sockid`.
const SOCKET_ID: usize = 48;
/// Size of `struct inet_diag_msg`. Its fields follow, then attributes.
const SOCKET: usize = 72;
const FAMILY: usize = 0;
const STATE: usize = 1;
const LOCAL_PORT: Range<usize> = 4..6;
const PEER_PORT: Range<usize> = 6..8;
const LOCAL_ADDRESS: usize = 8;
const PEER_ADDRESS: usize = 24;
const RECEIVE_QUEUE: Range<usize> = 56..60;
const SEND_QUEUE: Range<usize> = 60..64;

// Fields of `struct tcp_info`.
const LAST_DATA_SENT: Range<usize> = 44..48;
const LAST_DATA_RECEIVED: Range<usize> = 52..56;
const BYTES_RECEIVED: Range<usize> = 128..136;
const NOT_SENT_BYTES: Range<usize> = 144..148;
const BYTES_SENT: Range<usize> = 200..208;
const BYTES_SENT_AGAIN: Range<usize> = 208..216;

/// A TCP socket as the kernel describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TcpSocket {
    pub(super) state: u8,
    pub(super) local: SocketAddr,
    pub(super) peer: SocketAddr,
    /// Sequence numbers that the process has not read. The end of the stream counts as one.
    pub(super) receive_queue: u32,
    /// Sequence numbers that the peer has not acknowledged, sent or not. The end of the stream counts as one.
    pub(super) send_queue: u32,
    /// The kernel has this only for sockets that can carry data.
    pub(super) info: Option<TcpInfo>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TcpInfo {
    pub(super) since_sent: Duration,
    pub(super) since_received: Duration,
    pub(super) not_sent: u32,
    /// Without what was sent again.
    pub(super) bytes_sent: u64,
    pub(super) bytes_received: u64,
}

/// Calls `each` for every listening socket and every connection, in the namespace of `socket`. Connections that open
/// or close during the call may be missing.
pub(super) fn tcp_sockets(
    socket: &mut netlink::Socket,
    mut each: impl FnMut(TcpSocket),
) -> Result<()> {
    for family in [libc::AF_INET, libc::AF_INET6] {
        let what = "list TCP sockets (the kernel needs INET_TCP_DIAG)";
        let message = Message::new(SOCK_DIAG_BY_FAMILY, 0, &request(family as u8), what);
        socket.dump_each(message, |body| {
            if let Some(found) = read(body) {
                each(found);
            }
        })?;
    }
    Ok(())
}

/// `struct inet_diag_req_v2`
fn request(family: u8) -> Vec<u8> {
    let states = STATES.iter().fold(0_u32, |all, state| all | 1 << state);
    let mut bytes = vec![family, libc::IPPROTO_TCP as u8, 1 << (INET_DIAG_INFO - 1), 0];
    bytes.extend_from_slice(&states.to_ne_bytes());
    bytes.extend_from_slice(&[0; SOCKET_ID]);
    bytes
}

fn read(body: &[u8]) -> Option<TcpSocket> {
    let size = match i32::from(*body.get(FAMILY)?) {
        libc::AF_INET => 4,
        libc::AF_INET6 => 16,
        _ => return None,
    };
    let address = |start: usize, port| {
        let ip: IpAddr = address_from(body.get(start..start + size)?)?;
        // A server that listens on `::` accepts IPv4 clients with addresses such as ::ffff:10.244.0.7.
        Some(SocketAddr::new(ip.to_canonical(), u16::from_be(u16_at(body, port)?)))
    };
    let info = attributes(body.get(SOCKET..)?).find(|(kind, _)| *kind == INET_DIAG_INFO);
    Some(TcpSocket {
        state: *body.get(STATE)?,
        local: address(LOCAL_ADDRESS, LOCAL_PORT)?,
        peer: address(PEER_ADDRESS, PEER_PORT)?,
        receive_queue: u32_at(body, RECEIVE_QUEUE)?,
        send_queue: u32_at(body, SEND_QUEUE)?,
        info: info.and_then(|(_, bytes)| read_info(bytes)),
    })
}

fn read_info(bytes: &[u8]) -> Option<TcpInfo> {
    let millis = |field| Some(Duration::from_millis(u32_at(bytes, field)?.into()));
    let sent_again = u64_at(bytes, BYTES_SENT_AGAIN)?;
    Some(TcpInfo {
        since_sent: millis(LAST_DATA_SENT)?,
        since_received: millis(LAST_DATA_RECEIVED)?,
        not_sent: u32_at(bytes, NOT_SENT_BYTES)?,
        bytes_sent: u64_at(bytes, BYTES_SENT)?.saturating_sub(sent_again),
        bytes_received: u64_at(bytes, BYTES_RECEIVED)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncated_answers_are_ignored() {
        let mut body = vec![0; SOCKET];
        (body[FAMILY], body[STATE]) = (libc::AF_INET as u8, ESTABLISHED);
        let found = read(&body).unwrap();
        assert_eq!((found.state, found.info), (ESTABLISHED, None));
        for length in 0..SOCKET {
            assert_eq!(read(&body[..length]), None, "{length}");
        }
        // An old kernel's shorter `tcp_info`.
        body.extend_from_slice(&104_u16.to_ne_bytes());
        body.extend_from_slice(&INET_DIAG_INFO.to_ne_bytes());
        body.extend_from_slice(&[0; 100]);
        assert_eq!(read(&body).unwrap().info, None);
        body[FAMILY] = libc::AF_UNIX as u8;
        assert_eq!(read(&body), None);
    }

    #[test]
    fn ipv4_clients_of_an_ipv6_socket_have_ipv4_addresses() {
        let mut body = vec![0; SOCKET];
        (body[FAMILY], body[STATE]) = (libc::AF_INET6 as u8, ESTABLISHED);
        let client: SocketAddr = "10.244.0.7:4660".parse().unwrap();
        body[PEER_PORT].copy_from_slice(&[0x12, 0x34]);
        body[PEER_ADDRESS + 10..PEER_ADDRESS + 16].copy_from_slice(&[255, 255, 10, 244, 0, 7]);
        assert_eq!(read(&body).unwrap().peer, client);
    }
}
