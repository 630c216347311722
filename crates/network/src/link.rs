//! Devices, addresses, routes and neighbours, in rtnetlink's words. Each function is one message.

use crate::namespace::Namespace;
use crate::netlink::{ACK, CREATE, EXCL, Message, REPLACE, Socket, attributes};
use crate::{Cidr, Result};
use std::net::IpAddr;

pub(crate) type Mac = [u8; 6];

const EXISTS: &[i32] = &[libc::EEXIST];
const GONE: &[i32] = &[libc::ENODEV, libc::ENXIO];

const VETH_INFO_PEER: u16 = 1;
const IFLA_INET_CONF: u16 = 1;
/// Numbers of `IPV4_DEVCONF_*` in the kernel's interface.
const ROUTE_LOCALNET: u16 = 26;
const NO_DAD: u8 = 0x02;
const ONLINK: u32 = 4;

/// Family, type, index, flags, changed flags. Up is all we ever set.
fn link_head(index: u32, up: bool) -> [u8; 16] {
    let mut head = [0; 16];
    head[4..8].copy_from_slice(&index.to_ne_bytes());
    let flags = if up { libc::IFF_UP as u32 } else { 0 };
    head[8..12].copy_from_slice(&flags.to_ne_bytes());
    head[12..16].copy_from_slice(&flags.to_ne_bytes());
    head
}

/// A device that holds addresses and has no wire. It is a bridge without ports because every kernel
/// that runs containers has bridges; `dummy` is often left out.
pub(crate) fn add_holder(name: &str, mtu: u32) -> Message {
    let flags = ACK | CREATE | EXCL;
    let what = format!("add link {name}");
    let mut message = Message::new(libc::RTM_NEWLINK, flags, &link_head(0, true), what);
    message.text(libc::IFLA_IFNAME, name).number(libc::IFLA_MTU, mtu);
    message.nest(libc::IFLA_LINKINFO, |info| {
        info.text(libc::IFLA_INFO_KIND, "bridge");
    });
    message.fine_if(EXISTS)
}

/// A wire between this namespace and another. The far end has to be set up there.
pub(crate) fn add_pair(
    near: (&str, Mac),
    far: (&str, Mac),
    there: &Namespace,
    mtu: u32,
) -> Message {
    let flags = ACK | CREATE | EXCL;
    let what = format!("add link {}", near.0);
    let mut message = Message::new(libc::RTM_NEWLINK, flags, &link_head(0, true), what);
    message.text(libc::IFLA_IFNAME, near.0).number(libc::IFLA_MTU, mtu);
    message.attribute(libc::IFLA_ADDRESS, &near.1);
    message.nest(libc::IFLA_LINKINFO, |info| {
        info.text(libc::IFLA_INFO_KIND, "veth");
        info.nest(libc::IFLA_INFO_DATA, |data| {
            data.nest_after(VETH_INFO_PEER, &link_head(0, false), |peer| {
                peer.text(libc::IFLA_IFNAME, far.0).number(libc::IFLA_MTU, mtu);
                peer.attribute(libc::IFLA_ADDRESS, &far.1);
                peer.number(libc::IFLA_NET_NS_FD, there.number());
            });
        });
    });
    message
}

pub(crate) fn delete(name: &str) -> Message {
    let what = format!("delete link {name}");
    let mut message = Message::new(libc::RTM_DELLINK, ACK, &link_head(0, false), what);
    message.text(libc::IFLA_IFNAME, name);
    message.fine_if(GONE)
}

pub(crate) fn set_up(index: u32) -> Message {
    Message::new(libc::RTM_NEWLINK, ACK, &link_head(index, true), format!("set link {index} up"))
}

/// Lets packets from and to 127.0.0.0/8 use the device, which the kernel otherwise forbids.
pub(crate) fn let_loopback_through(index: u32, yes: bool) -> Message {
    let what = format!("set route_localnet of link {index}");
    let mut message = Message::new(libc::RTM_SETLINK, ACK, &link_head(index, false), what);
    message.nest(libc::IFLA_AF_SPEC, |families| {
        families.nest(libc::AF_INET as u16, |inet| {
            inet.nest(IFLA_INET_CONF, |settings| {
                settings.number(ROUTE_LOCALNET, u32::from(yes));
            });
        });
    });
    message
}

/// The index of a device by its name.
pub(crate) fn index_of(socket: &mut Socket, name: &str) -> Result<u32> {
    let what = format!("find link {name}");
    let mut message = Message::new(libc::RTM_GETLINK, ACK, &link_head(0, false), what);
    message.text(libc::IFLA_IFNAME, name);
    let answers = socket.request(vec![message])?;
    let index = answers.first().and_then(|answer| answer.get(4..8)?.try_into().ok());
    index.map(u32::from_ne_bytes).ok_or_else(|| {
        crate::Error::Invalid(format!("the kernel does not say which link {name} is"))
    })
}

/// The names of all devices.
pub(crate) fn names(socket: &mut Socket) -> Result<Vec<String>> {
    let message = Message::new(libc::RTM_GETLINK, 0, &link_head(0, false), "list links");
    let name = |body: &[u8]| {
        let (_, name) = attributes(body.get(16..)?).find(|(kind, _)| *kind == libc::IFLA_IFNAME)?;
        Some(String::from_utf8_lossy(name).trim_end_matches('\0').to_string())
    };
    Ok(socket.dump(message)?.iter().filter_map(|answer| name(answer)).collect())
}

/// The address alone: no route comes with it.
pub(crate) fn add_address(index: u32, address: IpAddr) -> Message {
    let bits = if address.is_ipv4() { 32 } else { 128 };
    let mut head = vec![family(address), bits, NO_DAD, libc::RT_SCOPE_UNIVERSE];
    head.extend_from_slice(&index.to_ne_bytes());
    let flags = ACK | CREATE | REPLACE;
    let mut message =
        Message::new(libc::RTM_NEWADDR, flags, &head, format!("add address {address}"));
    message.attribute(libc::IFA_LOCAL, &octets(address));
    message.attribute(libc::IFA_ADDRESS, &octets(address));
    message.fine_if(EXISTS)
}

/// Packets to `to` leave by this device, from the address `from` unless the sender says otherwise.
pub(crate) fn add_route(index: u32, to: IpAddr, from: IpAddr) -> Message {
    let bits = if to.is_ipv4() { 32 } else { 128 };
    let mut message = route(to, bits, libc::RT_SCOPE_LINK, 0, format!("add route to {to}"));
    message.attribute(libc::RTA_DST, &octets(to)).attribute(libc::RTA_PREFSRC, &octets(from));
    message.number(libc::RTA_OIF, index);
    message
}

/// All else goes to `gateway`, which is taken to be at the other end of the device.
pub(crate) fn add_default_route(index: u32, gateway: IpAddr) -> Message {
    let what = format!("add default route via {gateway}");
    let mut message = route(gateway, 0, libc::RT_SCOPE_UNIVERSE, ONLINK, what);
    message.attribute(libc::RTA_GATEWAY, &octets(gateway)).number(libc::RTA_OIF, index);
    message
}

/// Addresses of the range that nobody has lead nowhere, instead of out by the default route.
pub(crate) fn add_unreachable(range: &Cidr) -> Message {
    let mut head = vec![family(range.base()), range.bits(), 0, 0];
    head.extend_from_slice(&[
        libc::RT_TABLE_MAIN,
        libc::RTPROT_STATIC,
        libc::RT_SCOPE_UNIVERSE,
        libc::RTN_UNREACHABLE,
    ]);
    head.extend_from_slice(&0u32.to_ne_bytes());
    let what = format!("add unreachable route {range}");
    let mut message = Message::new(libc::RTM_NEWROUTE, ACK | CREATE | REPLACE, &head, what);
    message.attribute(libc::RTA_DST, &octets(range.base()));
    message
}

pub(crate) fn delete_unreachable(range: &Cidr) -> Message {
    let mut head = vec![family(range.base()), range.bits(), 0, 0];
    head.extend_from_slice(&[libc::RT_TABLE_MAIN, 0, libc::RT_SCOPE_NOWHERE, 7]);
    head.extend_from_slice(&0u32.to_ne_bytes());
    let what = format!("delete unreachable route {range}");
    let mut message = Message::new(libc::RTM_DELROUTE, ACK, &head, what);
    message.attribute(libc::RTA_DST, &octets(range.base()));
    message.fine_if(&[libc::ESRCH, libc::ENOENT])
}

fn route(about: IpAddr, bits: u8, scope: u8, route_flags: u32, what: String) -> Message {
    let mut head = vec![family(about), bits, 0, 0];
    head.extend_from_slice(&[libc::RT_TABLE_MAIN, libc::RTPROT_STATIC, scope, libc::RTN_UNICAST]);
    head.extend_from_slice(&route_flags.to_ne_bytes());
    Message::new(libc::RTM_NEWROUTE, ACK | CREATE | REPLACE, &head, what)
}

/// Who has an address is said once and for all, so that nobody has to ask for it.
pub(crate) fn add_neighbour(index: u32, address: IpAddr, mac: Mac) -> Message {
    let mut head = vec![family(address), 0, 0, 0];
    head.extend_from_slice(&index.to_ne_bytes());
    head.extend_from_slice(&libc::NUD_PERMANENT.to_ne_bytes());
    head.extend_from_slice(&[0, 0]);
    let flags = ACK | CREATE | REPLACE;
    let what = format!("add neighbour {address}");
    let mut message = Message::new(libc::RTM_NEWNEIGH, flags, &head, what);
    message.attribute(libc::NDA_DST, &octets(address)).attribute(libc::NDA_LLADDR, &mac);
    message
}

fn family(address: IpAddr) -> u8 {
    if address.is_ipv4() { libc::AF_INET as u8 } else { libc::AF_INET6 as u8 }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}
