//! Deletes entries of the kernel's connection tracking table.
//!
//! The kernel translates the first packet of a connection and then repeats that translation. A UDP client
//! that keeps its source port never starts a new connection, so its packets would still go to a pod that is
//! gone, or to no pod although there is one now. NET-11 and NET-60 require that they do not.

use crate::cidr::address_from;
use crate::netlink::{ACK, Message, NESTED, Socket, attributes};
use crate::{Protocol, Result};
use std::net::IpAddr;

// Constants of `linux/netfilter/nfnetlink_conntrack.h`.
const SUBSYSTEM: u16 = (libc::NFNL_SUBSYS_CTNETLINK as u16) << 8;
const GET: u16 = SUBSYSTEM | 1;
const DELETE: u16 = SUBSYSTEM | 2;
const CTA_TUPLE_ORIG: u16 = 1;
const CTA_TUPLE_REPLY: u16 = 2;
const CTA_TUPLE_IP: u16 = 1;
const CTA_TUPLE_PROTO: u16 = 2;
const CTA_IP_V4_SRC: u16 = 1;
const CTA_IP_V4_DST: u16 = 2;
const CTA_IP_V6_SRC: u16 = 3;
const CTA_IP_V6_DST: u16 = 4;
const CTA_PROTO_NUM: u16 = 1;
const CTA_PROTO_SRC_PORT: u16 = 2;
const CTA_PROTO_DST_PORT: u16 = 3;
/// Size of `struct nfgenmsg`.
const HEADER: usize = 4;
/// Each deletion is acknowledged, and the acknowledgements must fit into the receive buffer.
const DELETIONS_PER_REQUEST: usize = 64;

/// One direction of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Direction {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub source_port: u16,
    pub destination_port: u16,
}

/// A tracked connection. `original` is what the client sent, `reply` what the server answers after
/// address translation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connection {
    pub protocol: Protocol,
    pub original: Direction,
    pub reply: Direction,
}

/// Deletes all connections of an IP family for which `matches` returns true, in the network namespace of
/// this thread. Returns their number.
pub fn delete_matching(ipv4: bool, matches: impl Fn(&Connection) -> bool) -> Result<usize> {
    let family = if ipv4 { libc::AF_INET } else { libc::AF_INET6 } as u8;
    let header: [u8; HEADER] = [family, 0, 0, 0];
    let mut socket = Socket::netfilter()?;
    let all = socket.dump(Message::new(GET, 0, &header, "list connections"))?;
    let mut deletions = Vec::new();
    for body in &all {
        let Some((connection, original)) = read(body) else { continue };
        if matches(&connection) {
            let mut message = Message::new(DELETE, ACK, &header, "delete a connection");
            message.attribute(CTA_TUPLE_ORIG | NESTED, original);
            deletions.push(message.ignore_errors(&[libc::ENOENT])); // It may just have ended.
        }
    }
    let count = deletions.len();
    while !deletions.is_empty() {
        let rest = deletions.split_off(deletions.len().min(DELETIONS_PER_REQUEST));
        socket.request(std::mem::replace(&mut deletions, rest))?;
    }
    Ok(count)
}

/// The connection, and the attribute that identifies it. `None` for protocols without ports.
fn read(body: &[u8]) -> Option<(Connection, &[u8])> {
    let all = body.get(HEADER..)?;
    let tuple = |kind| attributes(all).find(|(found, _)| *found == kind).map(|(_, bytes)| bytes);
    let original_bytes = tuple(CTA_TUPLE_ORIG)?;
    let (protocol, original) = read_tuple(original_bytes)?;
    let (_, reply) = read_tuple(tuple(CTA_TUPLE_REPLY)?)?;
    Some((Connection { protocol, original, reply }, original_bytes))
}

fn read_tuple(bytes: &[u8]) -> Option<(Protocol, Direction)> {
    let (mut source, mut destination) = (None, None);
    let (mut protocol, mut ports) = (None, (0, 0));
    for (part, bytes) in attributes(bytes) {
        for (kind, value) in attributes(bytes) {
            match (part, kind) {
                (CTA_TUPLE_IP, CTA_IP_V4_SRC | CTA_IP_V6_SRC) => source = address_from(value),
                (CTA_TUPLE_IP, CTA_IP_V4_DST | CTA_IP_V6_DST) => destination = address_from(value),
                (CTA_TUPLE_PROTO, CTA_PROTO_NUM) => {
                    protocol = value.first().and_then(|number| Protocol::from_number(*number));
                }
                (CTA_TUPLE_PROTO, CTA_PROTO_SRC_PORT) => {
                    ports.0 = u16::from_be_bytes(value.try_into().ok()?);
                }
                (CTA_TUPLE_PROTO, CTA_PROTO_DST_PORT) => {
                    ports.1 = u16::from_be_bytes(value.try_into().ok()?);
                }
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
