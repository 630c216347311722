//! Netlink messages for routes to other nodes, and lookups in the kernel's route table.
//!
//! Routes are recognised as ours by a protocol number that no other program uses and by their source address,
//! which is this node's own address in the pod range. Two instances on one machine have different ranges.

use crate::cidr::{address_from, octets};
use crate::link::{self, Device, NO_SUCH_ROUTE, RTNH_F_ONLINK, RouteHeader, full_prefix};
use crate::netlink::{ACK, Message, Socket, attributes};
use crate::{Cidr, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// `rtm_protocol` of our routes; `ip route` shows it as `proto 108`. No routing daemon has this number.
const PROTOCOL: u8 = 108;
/// A route that an administrator adds for the same range without a metric takes precedence over ours.
const METRIC: u32 = 108;
/// The kernel's answers to this many lookups fit into the receive buffer of a socket.
const LOOKUPS_PER_REQUEST: usize = 64;
/// The kernel's answer to a lookup that ends at no route, or at an unreachable, prohibit or blackhole route.
const NO_ROUTE: &[i32] = &[libc::ENETUNREACH, libc::EHOSTUNREACH, libc::EACCES, libc::EINVAL];

/// Constant of the kernel's headers that `libc` does not have.
const RTAX_MTU: u16 = 2;

/// Size of `struct rtmsg`, the header of messages about routes. Some of its fields follow.
const ROUTE_HEADER: usize = 12;
const DESTINATION_PREFIX: usize = 1;
const ROUTE_PROTOCOL: usize = 5;
const ROUTE_KIND: usize = 7;

/// How the kernel would send packets to an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// It is an address of this machine.
    ThisNode,
    /// The host is on a subnet of this device, without a router in between.
    Neighbour {
        device: u32,
    },
    /// Through a router or a tunnel.
    Routed,
    Unreachable,
}

/// A route to a pod range of another node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PeerRoute {
    pub(crate) to: Cidr,
    pub(crate) gateway: IpAddr,
    pub(crate) device: u32,
    /// Source address of packets from this node itself (NET-4): pods on other nodes can always reply to it.
    pub(crate) source: IpAddr,
    /// `None`: that of the device.
    pub(crate) mtu: Option<u32>,
}

impl PeerRoute {
    /// Adds the route, or replaces our route to the same range. `onlink`: the gateway is at the other end of
    /// the device although no subnet says so.
    pub(crate) fn add(&self, onlink: bool) -> Message {
        let mut header = self.header();
        header.flags = if onlink { RTNH_F_ONLINK } else { 0 };
        let mut message = header.add(format!("add route to {} via {}", self.to, self.gateway));
        self.describe(&mut message);
        message.attribute(libc::RTA_PREFSRC, &octets(self.source));
        if let Some(mtu) = self.mtu {
            message.nest(libc::RTA_METRICS, |metrics| {
                metrics.number(RTAX_MTU, mtu);
            });
        }
        message
    }

    pub(crate) fn delete(&self) -> Message {
        let what = format!("delete route to {} via {}", self.to, self.gateway);
        let mut header = self.header();
        header.scope = libc::RT_SCOPE_NOWHERE; // Matches any.
        let mut message = Message::new(libc::RTM_DELROUTE, ACK, &header.bytes(), what);
        self.describe(&mut message);
        message.ignore_errors(NO_SUCH_ROUTE)
    }

    fn header(&self) -> RouteHeader {
        RouteHeader { protocol: PROTOCOL, ..RouteHeader::new(self.to.base(), self.to.bits()) }
    }

    fn describe(&self, message: &mut Message) {
        message.attribute(libc::RTA_DST, &octets(self.to.base()));
        message.attribute(libc::RTA_GATEWAY, &octets(self.gateway));
        message.number(libc::RTA_OIF, self.device).number(libc::RTA_PRIORITY, METRIC);
    }

    /// `None` if another program added the route.
    fn read(answer: &[u8], sources: &[IpAddr]) -> Option<PeerRoute> {
        if *answer.get(ROUTE_PROTOCOL)? != PROTOCOL {
            return None;
        }
        let found: BTreeMap<u16, &[u8]> = attributes(answer.get(ROUTE_HEADER..)?).collect();
        let address = |kind: u16| address_from(found.get(&kind)?);
        let source = address(libc::RTA_PREFSRC).filter(|source| sources.contains(source))?;
        Some(PeerRoute {
            to: Cidr::new(address(libc::RTA_DST)?, *answer.get(DESTINATION_PREFIX)?)?,
            gateway: address(libc::RTA_GATEWAY)?,
            device: u32::from_ne_bytes((*found.get(&libc::RTA_OIF)?).try_into().ok()?),
            source,
            mtu: found.get(&libc::RTA_METRICS).and_then(|bytes| read_mtu(bytes)),
        })
    }
}

fn read_mtu(metrics: &[u8]) -> Option<u32> {
    let (_, mtu) = attributes(metrics).find(|(kind, _)| *kind == RTAX_MTU)?;
    Some(u32::from_ne_bytes(mtu.try_into().ok()?))
}

/// All routes that this instance has added. `sources` are its own addresses in the pod ranges.
pub(crate) fn list(socket: &mut Socket, sources: &[IpAddr]) -> Result<BTreeSet<PeerRoute>> {
    let mut routes = BTreeSet::new();
    for source in sources {
        let header = RouteHeader::new(*source, 0).bytes();
        let answers = socket.dump(Message::new(libc::RTM_GETROUTE, 0, &header, "list routes"))?;
        routes.extend(answers.iter().filter_map(|answer| PeerRoute::read(answer, &[*source])));
    }
    Ok(routes)
}

/// How the kernel reaches each of these addresses. `is_ours` says whether this instance created a device.
pub(crate) fn look_up(
    socket: &mut Socket,
    addresses: &[IpAddr],
    is_ours: impl Fn(&Device) -> bool,
) -> Result<BTreeMap<IpAddr, Reach>> {
    let devices = link::devices(socket)?;
    let has_neighbours = |index: u32| {
        let no_neighbours = (libc::IFF_LOOPBACK | libc::IFF_NOARP | libc::IFF_POINTOPOINT) as u32;
        let device = devices.iter().find(|device| device.index == index);
        device.is_some_and(|device| device.flags & no_neighbours == 0 && !is_ours(device))
    };
    let mut reach: BTreeMap<IpAddr, Reach> =
        addresses.iter().map(|address| (*address, Reach::Unreachable)).collect();
    for some in addresses.chunks(LOOKUPS_PER_REQUEST) {
        let answers = socket.request(some.iter().map(|address| lookup(*address)).collect())?;
        for (address, found) in answers.iter().filter_map(|answer| read_lookup(answer)) {
            let found = match found {
                Reach::Neighbour { device } if !has_neighbours(device) => Reach::Routed,
                found => found,
            };
            if let Some(reach) = reach.get_mut(&address) {
                *reach = found;
            }
        }
    }
    Ok(reach)
}

fn lookup(address: IpAddr) -> Message {
    let header = RouteHeader {
        protocol: libc::RTPROT_UNSPEC,
        kind: libc::RTN_UNSPEC,
        ..RouteHeader::new(address, full_prefix(address))
    };
    let what = format!("find the route to {address}");
    let mut message = Message::new(libc::RTM_GETROUTE, 0, &header.bytes(), what);
    message.attribute(libc::RTA_DST, &octets(address));
    message.ignore_errors(NO_ROUTE)
}

fn read_lookup(answer: &[u8]) -> Option<(IpAddr, Reach)> {
    let kind = *answer.get(ROUTE_KIND)?;
    let found: BTreeMap<u16, &[u8]> = attributes(answer.get(ROUTE_HEADER..)?).collect();
    let address = address_from(found.get(&libc::RTA_DST)?)?;
    let has_gateway = [libc::RTA_GATEWAY, libc::RTA_VIA].iter().any(|at| found.contains_key(at));
    let device = found.get(&libc::RTA_OIF).and_then(|bytes| (*bytes).try_into().ok());
    let reach = match (kind, device) {
        (libc::RTN_LOCAL, _) => Reach::ThisNode,
        (libc::RTN_UNICAST, Some(_)) if has_gateway => Reach::Routed,
        (libc::RTN_UNICAST, Some(index)) => Reach::Neighbour { device: u32::from_ne_bytes(index) },
        _ => Reach::Unreachable,
    };
    Some((address, reach))
}
