//! Netlink messages for devices, addresses, routes and neighbours (rtnetlink).

use crate::cidr::{address_from, octets};
use crate::namespace::Namespace;
use crate::netlink::{ACK, CREATE, EXCL, Message, REPLACE, Socket, attributes};
use crate::{Cidr, Result};
use std::net::IpAddr;

pub(crate) type Mac = [u8; 6];

const ALREADY_EXISTS: &[i32] = &[libc::EEXIST];
pub(crate) const NO_SUCH_LINK: &[i32] = &[libc::ENODEV, libc::ENXIO];
pub(crate) const NO_SUCH_ROUTE: &[i32] = &[libc::ESRCH, libc::ENOENT];

// Constants of the kernel's headers that `libc` does not have.
const VETH_INFO_PEER: u16 = 1;
const IFLA_INET_CONF: u16 = 1;
const IPV4_DEVCONF_ROUTE_LOCALNET: u16 = 26;
const IFA_F_NODAD: u8 = 0x02;
pub(crate) const RTNH_F_ONLINK: u32 = 4;

/// Size of `struct ifinfomsg`, the header of messages about devices.
pub(crate) const LINK_HEADER: usize = 16;
/// Size of `struct ifaddrmsg`, the header of messages about addresses.
const ADDRESS_HEADER: usize = 8;
/// Where both headers have the index of the device.
const DEVICE_INDEX: std::ops::Range<usize> = 4..8;
const LINK_FLAGS: std::ops::Range<usize> = 8..12;
const LINK_FLAGS_CHANGED: std::ops::Range<usize> = 12..16;
/// For requests that identify the device by its name.
pub(crate) const NO_INDEX: u32 = 0;

/// `struct ifinfomsg`. `IFF_UP` is the only flag that we set.
pub(crate) fn link_header(index: u32, up: bool) -> [u8; LINK_HEADER] {
    let mut header = [0; LINK_HEADER];
    header[DEVICE_INDEX].copy_from_slice(&index.to_ne_bytes());
    let flags = if up { libc::IFF_UP as u32 } else { 0 };
    header[LINK_FLAGS].copy_from_slice(&flags.to_ne_bytes());
    header[LINK_FLAGS_CHANGED].copy_from_slice(&flags.to_ne_bytes());
    header
}

fn device_index(answer: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(answer.get(DEVICE_INDEX)?.try_into().ok()?))
}

/// Adds a device for the node's own addresses. It is a bridge without ports, because every kernel that runs
/// containers has bridges; the `dummy` driver is often missing.
pub(crate) fn add_gateway_device(name: &str, mtu: u32) -> Message {
    let flags = ACK | CREATE | EXCL;
    let what = format!("add link {name}");
    let mut message = Message::new(libc::RTM_NEWLINK, flags, &link_header(NO_INDEX, true), what);
    message.text(libc::IFLA_IFNAME, name).number(libc::IFLA_MTU, mtu);
    message.nest(libc::IFLA_LINKINFO, |info| {
        info.text(libc::IFLA_INFO_KIND, "bridge");
    });
    message
}

/// Adds a veth pair between this namespace and another. The peer in the other namespace starts down.
pub(crate) fn add_veth_pair(
    (name, mac): (&str, Mac),
    (peer_name, peer_mac): (&str, Mac),
    peer_namespace: &Namespace,
    mtu: u32,
) -> Message {
    let flags = ACK | CREATE | EXCL;
    let what = format!("add link {name}");
    let mut message = Message::new(libc::RTM_NEWLINK, flags, &link_header(NO_INDEX, true), what);
    message.text(libc::IFLA_IFNAME, name).number(libc::IFLA_MTU, mtu);
    message.attribute(libc::IFLA_ADDRESS, &mac);
    message.nest(libc::IFLA_LINKINFO, |info| {
        info.text(libc::IFLA_INFO_KIND, "veth");
        info.nest(libc::IFLA_INFO_DATA, |data| {
            data.nest_after(VETH_INFO_PEER, &link_header(NO_INDEX, false), |peer| {
                peer.text(libc::IFLA_IFNAME, peer_name).number(libc::IFLA_MTU, mtu);
                peer.attribute(libc::IFLA_ADDRESS, &peer_mac);
                peer.number(libc::IFLA_NET_NS_FD, peer_namespace.fd());
            });
        });
    });
    message
}

pub(crate) fn delete(name: &str) -> Message {
    let what = format!("delete link {name}");
    let mut message = Message::new(libc::RTM_DELLINK, ACK, &link_header(NO_INDEX, false), what);
    message.text(libc::IFLA_IFNAME, name);
    message.ignore_errors(NO_SUCH_LINK)
}

pub(crate) fn set_up(index: u32) -> Message {
    Message::new(libc::RTM_NEWLINK, ACK, &link_header(index, true), format!("set link {index} up"))
}

pub(crate) fn set_mtu(index: u32, mtu: u32) -> Message {
    let what = format!("set the MTU of link {index}");
    let mut message = Message::new(libc::RTM_SETLINK, ACK, &link_header(index, false), what);
    message.number(libc::IFLA_MTU, mtu);
    message
}

/// Allows or forbids packets from and to 127.0.0.0/8 on the device. The kernel's default is to forbid them.
pub(crate) fn set_route_localnet(index: u32, allow: bool) -> Message {
    let what = format!("set route_localnet of link {index}");
    let mut message = Message::new(libc::RTM_SETLINK, ACK, &link_header(index, false), what);
    message.nest(libc::IFLA_AF_SPEC, |families| {
        families.nest(libc::AF_INET as u16, |inet| {
            inet.nest(IFLA_INET_CONF, |settings| {
                settings.number(IPV4_DEVCONF_ROUTE_LOCALNET, u32::from(allow));
            });
        });
    });
    message
}

/// A network device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Device {
    pub(crate) index: u32,
    pub(crate) name: String,
    /// Free text that programs can set; empty by default.
    pub(crate) alias: String,
    /// `IFF_*`
    pub(crate) flags: u32,
    pub(crate) mtu: u32,
}

impl Device {
    pub(crate) fn read(answer: &[u8]) -> Option<Device> {
        let find = |kind: u16| {
            let mut found = attributes(answer.get(LINK_HEADER..)?);
            found.find(|(found, _)| *found == kind).map(|(_, value)| value)
        };
        let text = |kind: u16| {
            Some(String::from_utf8_lossy(find(kind)?).trim_end_matches('\0').to_string())
        };
        let number = |bytes: Option<&[u8]>| Some(u32::from_ne_bytes(bytes?.try_into().ok()?));
        Some(Device {
            index: device_index(answer)?,
            name: text(libc::IFLA_IFNAME)?,
            alias: text(libc::IFLA_IFALIAS).unwrap_or_default(),
            flags: number(answer.get(LINK_FLAGS))?,
            mtu: number(find(libc::IFLA_MTU)).unwrap_or_default(),
        })
    }

    pub(crate) fn is_loopback(&self) -> bool {
        self.flags & libc::IFF_LOOPBACK as u32 != 0
    }
}

pub(crate) fn set_alias(index: u32, alias: &str) -> Message {
    let what = format!("set the alias of link {index}");
    let mut message = Message::new(libc::RTM_SETLINK, ACK, &link_header(index, false), what);
    message.attribute(libc::IFLA_IFALIAS, alias.as_bytes());
    message
}

/// The index of a device by its name.
pub(crate) fn index_of(socket: &mut Socket, name: &str) -> Result<u32> {
    let device = socket.request(vec![get(name)])?.first().and_then(|answer| Device::read(answer));
    device.map(|device| device.index).ok_or_else(|| {
        crate::Error::Invalid(format!("the kernel's description of link {name} is incomplete"))
    })
}

/// `None` if there is no device with that name.
pub(crate) fn find(socket: &mut Socket, name: &str) -> Result<Option<Device>> {
    let answers = socket.request(vec![get(name).ignore_errors(NO_SUCH_LINK)])?;
    Ok(answers.first().and_then(|answer| Device::read(answer)))
}

pub(crate) fn get(name: &str) -> Message {
    let what = format!("find link {name}");
    let mut message = Message::new(libc::RTM_GETLINK, ACK, &link_header(NO_INDEX, false), what);
    message.text(libc::IFLA_IFNAME, name);
    message
}

/// All devices.
pub(crate) fn devices(socket: &mut Socket) -> Result<Vec<Device>> {
    let message = Message::new(libc::RTM_GETLINK, 0, &link_header(NO_INDEX, false), "list links");
    Ok(socket.dump(message)?.iter().filter_map(|answer| Device::read(answer)).collect())
}

/// All addresses, each with the index of its device.
pub(crate) fn addresses(socket: &mut Socket) -> Result<Vec<(u32, IpAddr)>> {
    let message = Message::new(libc::RTM_GETADDR, 0, &[0; ADDRESS_HEADER], "list addresses");
    let read = |answer: &[u8]| {
        let mut found = attributes(answer.get(ADDRESS_HEADER..)?);
        let (_, octets) = found.find(|(kind, _)| *kind == libc::IFA_ADDRESS)?;
        Some((device_index(answer)?, address_from(octets)?))
    };
    Ok(socket.dump(message)?.iter().filter_map(|answer| read(answer)).collect())
}

/// Adds an address without a route for its network.
pub(crate) fn add_address(index: u32, address: IpAddr) -> Message {
    let scope = libc::RT_SCOPE_UNIVERSE;
    let mut header = vec![family(address), full_prefix(address), IFA_F_NODAD, scope];
    header.extend_from_slice(&index.to_ne_bytes());
    let flags = ACK | CREATE | REPLACE;
    let mut message =
        Message::new(libc::RTM_NEWADDR, flags, &header, format!("add address {address}"));
    message.attribute(libc::IFA_LOCAL, &octets(address));
    message.attribute(libc::IFA_ADDRESS, &octets(address));
    message.ignore_errors(ALREADY_EXISTS)
}

/// `struct rtmsg`, the header of messages about routes. Zero in `protocol` matches any.
pub(crate) struct RouteHeader {
    pub(crate) destination: IpAddr,
    pub(crate) prefix: u8,
    pub(crate) protocol: u8,
    pub(crate) scope: u8,
    pub(crate) kind: u8,
    pub(crate) flags: u32,
}

impl RouteHeader {
    pub(crate) fn new(destination: IpAddr, prefix: u8) -> RouteHeader {
        let (protocol, scope) = (libc::RTPROT_STATIC, libc::RT_SCOPE_UNIVERSE);
        RouteHeader { destination, prefix, protocol, scope, kind: libc::RTN_UNICAST, flags: 0 }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        const SOURCE_PREFIX: u8 = 0;
        const TYPE_OF_SERVICE: u8 = 0;
        let table = libc::RT_TABLE_MAIN;
        let mut bytes = vec![family(self.destination), self.prefix, SOURCE_PREFIX, TYPE_OF_SERVICE];
        bytes.extend_from_slice(&[table, self.protocol, self.scope, self.kind]);
        bytes.extend_from_slice(&self.flags.to_ne_bytes());
        bytes
    }

    pub(crate) fn add(&self, what: String) -> Message {
        Message::new(libc::RTM_NEWROUTE, ACK | CREATE | REPLACE, &self.bytes(), what)
    }
}

/// Routes packets for `to` through this device, with the source address `from` if the sender chose none.
pub(crate) fn add_route(index: u32, to: IpAddr, from: IpAddr) -> Message {
    let new = RouteHeader::new(to, full_prefix(to));
    let header = RouteHeader { scope: libc::RT_SCOPE_LINK, ..new };
    let mut message = header.add(format!("add route to {to}"));
    message.attribute(libc::RTA_DST, &octets(to)).attribute(libc::RTA_PREFSRC, &octets(from));
    message.number(libc::RTA_OIF, index);
    message
}

/// Routes packets for a range to this device, with the source address `from` if the sender chose none.
pub(crate) fn add_range_route(index: u32, to: &Cidr, from: IpAddr) -> Message {
    let new = RouteHeader::new(to.base(), to.bits());
    let header = RouteHeader { scope: libc::RT_SCOPE_LINK, ..new };
    let mut message = header.add(format!("add route to {to}"));
    message.attribute(libc::RTA_DST, &octets(to.base()));
    message.attribute(libc::RTA_PREFSRC, &octets(from)).number(libc::RTA_OIF, index);
    message
}

/// Deletes the route that [`add_route`] added.
pub(crate) fn delete_route(index: u32, to: IpAddr) -> Message {
    let header = RouteHeader {
        protocol: libc::RTPROT_UNSPEC,
        scope: libc::RT_SCOPE_NOWHERE,
        ..RouteHeader::new(to, full_prefix(to))
    };
    let what = format!("delete route to {to}");
    let mut message = Message::new(libc::RTM_DELROUTE, ACK, &header.bytes(), what);
    message.attribute(libc::RTA_DST, &octets(to)).number(libc::RTA_OIF, index);
    message.ignore_errors(NO_SUCH_ROUTE)
}

/// Adds a default route through `gateway`, which must be at the other end of the device.
pub(crate) fn add_default_route(index: u32, gateway: IpAddr) -> Message {
    let header = RouteHeader { flags: RTNH_F_ONLINK, ..RouteHeader::new(gateway, 0) };
    let mut message = header.add(format!("add default route via {gateway}"));
    message.attribute(libc::RTA_GATEWAY, &octets(gateway)).number(libc::RTA_OIF, index);
    message
}

/// Makes unused addresses of the range unreachable. Otherwise their packets would take the default route.
pub(crate) fn add_unreachable(range: &Cidr) -> Message {
    let new = RouteHeader::new(range.base(), range.bits());
    let header = RouteHeader { kind: libc::RTN_UNREACHABLE, ..new };
    let mut message = header.add(format!("add unreachable route {range}"));
    message.attribute(libc::RTA_DST, &octets(range.base()));
    message
}

pub(crate) fn delete_unreachable(range: &Cidr) -> Message {
    let header = RouteHeader {
        protocol: libc::RTPROT_UNSPEC,
        scope: libc::RT_SCOPE_NOWHERE,
        kind: libc::RTN_UNREACHABLE,
        ..RouteHeader::new(range.base(), range.bits())
    };
    let what = format!("delete unreachable route {range}");
    let mut message = Message::new(libc::RTM_DELROUTE, ACK, &header.bytes(), what);
    message.attribute(libc::RTA_DST, &octets(range.base()));
    message.ignore_errors(NO_SUCH_ROUTE)
}

/// Adds a permanent neighbour entry, so that the kernel need not resolve the address.
pub(crate) fn add_neighbour(index: u32, address: IpAddr, mac: Mac) -> Message {
    // `struct ndmsg`: family, padding, device, state, flags, type.
    let mut header = vec![family(address), 0, 0, 0];
    header.extend_from_slice(&index.to_ne_bytes());
    header.extend_from_slice(&libc::NUD_PERMANENT.to_ne_bytes());
    header.extend_from_slice(&[0, 0]);
    let flags = ACK | CREATE | REPLACE;
    let what = format!("add neighbour {address}");
    let mut message = Message::new(libc::RTM_NEWNEIGH, flags, &header, what);
    message.attribute(libc::NDA_DST, &octets(address)).attribute(libc::NDA_LLADDR, &mac);
    message
}

pub(crate) fn family(address: IpAddr) -> u8 {
    if address.is_ipv4() { libc::AF_INET as u8 } else { libc::AF_INET6 as u8 }
}

/// The length of a prefix that contains one address only.
pub(crate) fn full_prefix(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}
