//! Finds and deletes entries of the kernel's connection tracking table.
//!
//! Finding tells since when a connection exists and which end opened it (`census`).
//!
//! Deleting is for UDP. The kernel translates the first packet of a connection and then repeats that translation. A UDP
//! client that keeps its source port never starts a new connection, so its packets would still go to a pod that is
//! gone, or to no pod although there is one now. NET-11 and NET-60 require that they do not.

use crate::cidr::{address_from, octets};
use crate::netlink::{ACK, Message, NESTED, Socket, attributes};
use crate::{Protocol, Result};
use std::net::IpAddr;

// Constants of `linux/netfilter/nfnetlink_conntrack.h`.
const SUBSYSTEM: u16 = (libc::NFNL_SUBSYS_CTNETLINK as u16) << 8;
const GET: u16 = SUBSYSTEM | 1;
const DELETE: u16 = SUBSYSTEM | 2;
const CTA_TUPLE_ORIG: u16 = 1;
const CTA_TUPLE_REPLY: u16 = 2;
const CTA_TIMESTAMP: u16 = 20;
const CTA_TIMESTAMP_START: u16 = 1;
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
/// The kernel reserves a page for each answer, and the answers must fit into the receive buffer.
const LOOKUPS_PER_REQUEST: usize = 128;
/// With `1`, the kernel stores when a connection began. It applies to connections that begin afterwards.
const TIMESTAMP_SETTING: &str = "/proc/sys/net/netfilter/nf_conntrack_timestamp";

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
    /// When its first packet passed, in nanoseconds since 1970. `None` if the kernel did not store it; see
    /// [`record_start_times`].
    pub started: Option<u64>,
}

/// Makes the kernel store when connections begin, in the network namespace of this thread. Returns whether it does:
/// kernels without connection tracking or without this setting do not, and in some containers it cannot be changed.
pub fn record_start_times() -> bool {
    let is_on = || std::fs::read_to_string(TIMESTAMP_SETTING).is_ok_and(|now| now.trim() == "1");
    is_on() || std::fs::write(TIMESTAMP_SETTING, "1").is_ok()
}

/// The tracked TCP connections that have one of these directions, as original or as reply. `socket` is a netfilter
/// socket of the namespace that tracks them. The kernel looks each one up by its hash, so the cost does not depend on
/// how many connections the node has.
pub(crate) fn find_tcp(socket: &mut Socket, directions: &[Direction]) -> Result<Vec<Connection>> {
    let mut found = Vec::new();
    for chunk in directions.chunks(LOOKUPS_PER_REQUEST) {
        let answers = socket.request(chunk.iter().map(lookup).collect())?;
        found.extend(answers.iter().filter_map(|body| Some(read(body)?.0)));
    }
    Ok(found)
}

fn lookup(direction: &Direction) -> Message {
    let (family, source_kind, destination_kind) = match direction.source {
        IpAddr::V4(_) => (libc::AF_INET, CTA_IP_V4_SRC, CTA_IP_V4_DST),
        IpAddr::V6(_) => (libc::AF_INET6, CTA_IP_V6_SRC, CTA_IP_V6_DST),
    };
    let mut message = Message::new(GET, 0, &[family as u8, 0, 0, 0], "find a connection");
    message.nest(CTA_TUPLE_ORIG, |tuple| {
        tuple.nest(CTA_TUPLE_IP, |ip| {
            ip.attribute(source_kind, &octets(direction.source));
            ip.attribute(destination_kind, &octets(direction.destination));
        });
        tuple.nest(CTA_TUPLE_PROTO, |protocol| {
            protocol.attribute(CTA_PROTO_NUM, &[Protocol::Tcp.number()]);
            protocol.attribute(CTA_PROTO_SRC_PORT, &direction.source_port.to_be_bytes());
            protocol.attribute(CTA_PROTO_DST_PORT, &direction.destination_port.to_be_bytes());
        });
    });
    message.ignore_errors(&[libc::ENOENT]) // It is not tracked.
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
    let attribute =
        |kind| attributes(all).find(|(found, _)| *found == kind).map(|(_, bytes)| bytes);
    let original_bytes = attribute(CTA_TUPLE_ORIG)?;
    let (protocol, original) = read_tuple(original_bytes)?;
    let (_, reply) = read_tuple(attribute(CTA_TUPLE_REPLY)?)?;
    let started = attribute(CTA_TIMESTAMP).and_then(read_start);
    Some((Connection { protocol, original, reply, started }, original_bytes))
}

fn read_start(bytes: &[u8]) -> Option<u64> {
    let (_, start) = attributes(bytes).find(|(kind, _)| *kind == CTA_TIMESTAMP_START)?;
    Some(u64::from_be_bytes(start.try_into().ok()?)).filter(|start| *start > 0)
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
