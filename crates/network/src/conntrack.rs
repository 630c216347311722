//! Connections the kernel remembers, and how to make it forget some.
//!
//! The kernel decides where a connection goes when it sees its first packet. A UDP client that never
//! changes its port never has a first packet again: it would go on talking to a pod that is gone, or
//! to nobody although a pod has come (NET-60 and NET-11 are about this).

use crate::netlink::{ACK, Message, Socket, attributes};
use crate::{Protocol, Result};
use std::net::IpAddr;

const SUBSYSTEM: u16 = (libc::NFNL_SUBSYS_CTNETLINK as u16) << 8;
const GET: u16 = SUBSYSTEM | 1;
const DELETE: u16 = SUBSYSTEM | 2;
const TUPLE_ORIGINAL: u16 = 1;
const TUPLE_REPLY: u16 = 2;
const NESTED: u16 = 1 << 15;

/// One direction of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Direction {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub source_port: u16,
    pub destination_port: u16,
}

/// A connection as it was asked for, and as it is answered: translation is the difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connection {
    pub protocol: Protocol,
    pub original: Direction,
    pub reply: Direction,
}

/// Makes the kernel forget every connection of a family that `choose` picks, in the network
/// namespace of this thread. Returns how many there were.
pub fn forget(ipv4: bool, choose: impl Fn(&Connection) -> bool) -> Result<usize> {
    let family = if ipv4 { libc::AF_INET } else { libc::AF_INET6 } as u8;
    let mut socket = Socket::netfilter()?;
    let all = socket.dump(Message::new(GET, 0, &[family, 0, 0, 0], "list connections"))?;
    let mut doomed = Vec::new();
    for body in &all {
        let Some((connection, original)) = read(body) else { continue };
        if choose(&connection) {
            let head = [family, 0, 0, 0];
            let mut message = Message::new(DELETE, ACK, &head, "delete a connection");
            message.attribute(TUPLE_ORIGINAL | NESTED, original);
            doomed.push(message.fine_if(&[libc::ENOENT])); // It may just have ended.
        }
    }
    let count = doomed.len();
    // Each is acknowledged; few at a time, so that the answers find room.
    while !doomed.is_empty() {
        let rest = doomed.split_off(doomed.len().min(64));
        socket.request(std::mem::replace(&mut doomed, rest))?;
    }
    Ok(count)
}

/// The connection and, as bytes, what names it. None for protocols without ports.
fn read(body: &[u8]) -> Option<(Connection, &[u8])> {
    let all = body.get(4..)?;
    let tuple = |kind| attributes(all).find(|(found, _)| *found == kind).map(|(_, bytes)| bytes);
    let original = tuple(TUPLE_ORIGINAL)?;
    let (protocol, there) = read_tuple(original)?;
    let (_, back) = read_tuple(tuple(TUPLE_REPLY)?)?;
    Some((Connection { protocol, original: there, reply: back }, original))
}

fn read_tuple(bytes: &[u8]) -> Option<(Protocol, Direction)> {
    let (mut source, mut destination) = (None, None);
    let (mut protocol, mut ports) = (None, (0, 0));
    for (part, bytes) in attributes(bytes) {
        for (kind, value) in attributes(bytes) {
            match (part, kind) {
                (1, 1 | 3) => source = address(value),
                (1, 2 | 4) => destination = address(value),
                (2, 1) => protocol = value.first().and_then(|number| Protocol::of(*number)),
                (2, 2) => ports.0 = u16::from_be_bytes(value.try_into().ok()?),
                (2, 3) => ports.1 = u16::from_be_bytes(value.try_into().ok()?),
                _ => {}
            }
        }
    }
    let direction = Direction {
        source: source?,
        destination: destination?,
        source_port: ports.0,
        destination_port: ports.1,
    };
    Some((protocol?, direction))
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
        16 => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
        _ => None,
    }
}
