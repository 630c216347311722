//! The overlay device: VXLAN to nodes that are not neighbours.
//!
//! Every node has one device without learning, multicast or flooding. A node's device address (MAC) is
//! computed from its first pod range, so that all nodes know it without asking. `tunnels` has the entries.
//!
//! VXLAN does not authenticate packets. Only packets from addresses of other nodes are accepted, and pods may
//! not send any (`guard`). Whoever can forge source addresses on the network between nodes can still send
//! packets to pods, as with routes.

use crate::cidr::octets;
use crate::link::{self, Device, LINK_HEADER, Mac, NO_INDEX, NO_SUCH_LINK, link_header};
use crate::netlink::{ACK, CREATE, EXCL, Message, Socket, attributes};
use crate::nft::{
    self, Batch, Chain, ChainKind, Compare, Direction, Element, Expression, Family, Field, Header,
    Hook, Key, Kind, Priority, Register, Rule, Set, Table,
};
use crate::ownership::Instance;
use crate::{Cidr, Error, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};

/// Underlay MTU if the device with the node's address is not known, or is the loopback device.
const MTU_DEFAULT: u32 = 1500;
/// IPv6 does not work with less. The node then fragments overlay packets.
const MTU_MIN: u32 = 1280;
const MTU_MAX: u32 = 65535;
/// Headers of the overlay: inner Ethernet, VXLAN, UDP and outer IP.
const OVERHEAD_IPV4: u32 = 14 + 8 + 8 + 20;
const OVERHEAD_IPV6: u32 = 14 + 8 + 8 + 40;

/// First bytes of the device addresses of overlay devices; four bytes of the pod range follow.
const MAC_PREFIX: [u8; 2] = [0x02, 0x6c];

// Constants of the kernel's headers that `libc` does not have.
const IFLA_VXLAN_ID: u16 = 1;
const IFLA_VXLAN_LOCAL: u16 = 4;
const IFLA_VXLAN_LEARNING: u16 = 7;
const IFLA_VXLAN_PORT: u16 = 15;
const IFLA_VXLAN_LOCAL6: u16 = 17;
const IFLA_INET_CONF: u16 = 1;
const IPV4_DEVCONF_RP_FILTER: u16 = 8;
const IFLA_INET6_ADDR_GEN_MODE: u16 = 8;
const IN6_ADDR_GEN_MODE_NONE: u8 = 1;
/// Accept packets from every source that has a route, by whatever device.
const RP_FILTER_LOOSE: u32 = 2;
/// This kernel has no IPv6.
const NO_IPV6: &[i32] = &[libc::EAFNOSUPPORT, libc::EOPNOTSUPP, libc::EINVAL];

/// The same for all nodes of a cluster, except for the address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Overlay {
    /// VXLAN network identifier, below 2^24. Another VXLAN on the same port needs another one.
    pub vni: u32,
    /// UDP port.
    pub port: u16,
    /// This node's address. Overlay packets have it as their source.
    pub address: IpAddr,
}

impl Overlay {
    /// The default of Linux, which firewalls of clusters usually allow.
    pub const PORT: u16 = 8472;
    /// The letters "lf". Other pod networks often use 1.
    pub const VNI: u32 = 0x6c66;
}

/// The node's address that the overlay uses: the first IPv4 address, else the first address.
pub fn overlay_address(node_ips: &[IpAddr]) -> Option<IpAddr> {
    node_ips.iter().find(|address| address.is_ipv4()).or(node_ips.first()).copied()
}

/// MTU for the pods of a node with these addresses: that of the device with the node's address, minus the
/// headers of the overlay (NET-8). Looks in the network namespace of the calling thread.
pub fn pod_mtu(node_ips: &[IpAddr]) -> Result<u32> {
    let Some(address) = overlay_address(node_ips) else { return Ok(MTU_DEFAULT - OVERHEAD_IPV4) };
    let mut socket = Socket::route()?;
    let addresses = link::addresses(&mut socket)?;
    let index = addresses.iter().find(|(_, found)| *found == address).map(|(index, _)| *index);
    let devices = link::devices(&mut socket)?;
    let device = devices.iter().find(|device| Some(device.index) == index);
    let underlay = device.filter(|device| !device.is_loopback()).map(|device| device.mtu);
    let overhead = if address.is_ipv4() { OVERHEAD_IPV4 } else { OVERHEAD_IPV6 };
    let mtu = underlay.unwrap_or(MTU_DEFAULT).saturating_sub(overhead);
    Ok(mtu.clamp(MTU_MIN, MTU_MAX))
}

/// The device address of the node whose first pod range this is. Different ranges of one cluster have
/// different addresses.
pub(crate) fn mac(first_range: &Cidr) -> Mac {
    let mut folded = [0; 4];
    for (i, byte) in octets(first_range.base()).into_iter().enumerate() {
        folded[i % 4] ^= byte;
    }
    let ([a, b], [c, d, e, f]) = (MAC_PREFIX, folded);
    [a, b, c, d, e, f]
}

/// Next hop of the route to `range` through the overlay: the node's address in the range for IPv4. For IPv6
/// its link-local address, because the kernel rejects a gateway that it has another route to.
pub(crate) fn gateway(range: &Cidr, mac: Mac) -> IpAddr {
    match range.is_ipv4() {
        true => range.nth(crate::address_pool::GATEWAY).unwrap_or(range.base()),
        false => {
            let [a, b, c, d, e, f] = mac.map(u16::from);
            let host = [a << 8 | b, c << 8 | 0xff, 0xfe00 | d, e << 8 | f];
            IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, host[0], host[1], host[2], host[3]))
        }
    }
}

/// Name of the overlay device.
pub(crate) fn device_name(link: &str) -> String {
    format!("{link}v")
}

/// What is configured of the overlay device.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct OverlayDevice<'a> {
    pub(crate) name: &'a str,
    pub(crate) mac: Mac,
    pub(crate) overlay: Overlay,
    /// `None` if the overlay's address is not an address of this machine. The kernel then chooses one.
    pub(crate) local: Option<IpAddr>,
    pub(crate) mtu: u32,
    /// The node's own addresses in the pod ranges, for masqueraded connections to pods.
    pub(crate) gateways: &'a [IpAddr],
}

impl OverlayDevice<'_> {
    /// Creates the device, or changes what is different. Returns its index.
    pub(crate) fn ensure(&self, socket: &mut Socket, instance: &Instance) -> Result<u32> {
        let answers = socket.request(vec![link::get(self.name).ignore_errors(NO_SUCH_LINK)])?;
        if let Some(answer) = answers.first() {
            let found = Settings::read(answer);
            let has_our_address = found.as_ref().is_some_and(|found| found.mac == self.mac);
            if let Some(device) = Device::read(answer) {
                instance.check_overlay_device(&device, has_our_address)?;
            }
            if found != Some(self.settings()) {
                socket.request(vec![link::delete(self.name)])?;
                socket.request(vec![self.create()])?;
            }
        } else {
            socket.request(vec![self.create()])?;
        }
        clock::crash_point("overlay device made");
        let index = link::index_of(socket, self.name)?;
        let mut messages = vec![
            link::set_alias(index, instance.alias()),
            link::set_mtu(index, self.mtu),
            no_address_generation(index),
            loose_reverse_path_filter(index),
            link::set_up(index),
        ];
        messages.extend(self.gateways.iter().map(|address| link::add_address(index, *address)));
        socket.request(messages)?;
        Ok(index)
    }

    fn settings(&self) -> Settings {
        let Overlay { vni, port, .. } = self.overlay;
        Settings { vni, port, local: self.local, mac: self.mac, learning: false }
    }

    fn create(&self) -> Message {
        let flags = ACK | CREATE | EXCL;
        let what = format!("add VXLAN link {}", self.name);
        let header = link_header(NO_INDEX, false);
        let mut message = Message::new(libc::RTM_NEWLINK, flags, &header, what);
        message.text(libc::IFLA_IFNAME, self.name).number(libc::IFLA_MTU, self.mtu);
        message.attribute(libc::IFLA_ADDRESS, &self.mac);
        message.nest(libc::IFLA_LINKINFO, |info| {
            info.text(libc::IFLA_INFO_KIND, "vxlan");
            info.nest(libc::IFLA_INFO_DATA, |data| {
                data.number(IFLA_VXLAN_ID, self.overlay.vni);
                data.attribute(IFLA_VXLAN_LEARNING, &[0]);
                data.attribute(IFLA_VXLAN_PORT, &self.overlay.port.to_be_bytes());
                match (self.local, self.overlay.address) {
                    (Some(IpAddr::V4(local)), _) => {
                        data.attribute(IFLA_VXLAN_LOCAL, &local.octets());
                    }
                    (Some(IpAddr::V6(local)), _) => {
                        data.attribute(IFLA_VXLAN_LOCAL6, &local.octets());
                    }
                    (None, IpAddr::V6(_)) => {
                        data.attribute(IFLA_VXLAN_LOCAL6, &Ipv6Addr::UNSPECIFIED.octets());
                    }
                    (None, IpAddr::V4(_)) => {}
                }
            });
        });
        message
    }
}

/// Removes the overlay device if this instance created it.
pub(crate) fn remove_device(
    socket: &mut Socket,
    name: &str,
    mac: Mac,
    instance: &Instance,
) -> Result<()> {
    let answers = socket.request(vec![link::get(name).ignore_errors(NO_SUCH_LINK)])?;
    let Some(answer) = answers.first() else { return Ok(()) };
    // The process may have been killed before it marked the device.
    let has_our_address = Settings::read(answer).is_some_and(|found| found.mac == mac);
    let device = Device::read(answer);
    if device.is_some_and(|device| instance.check_overlay_device(&device, has_our_address).is_ok())
    {
        socket.request(vec![link::delete(name)])?;
    }
    Ok(())
}

/// Whether the kernel has no VXLAN.
pub(crate) fn is_unsupported(error: &Error) -> bool {
    matches!(error.errno(), Some(libc::EOPNOTSUPP | libc::EPROTONOSUPPORT | libc::EAFNOSUPPORT))
}

/// What cannot be changed after the device was created.
#[derive(Debug, PartialEq, Eq)]
struct Settings {
    vni: u32,
    port: u16,
    local: Option<IpAddr>,
    mac: Mac,
    learning: bool,
}

impl Settings {
    /// `None` if the device is not a VXLAN.
    fn read(answer: &[u8]) -> Option<Settings> {
        let link: BTreeMap<u16, &[u8]> = attributes(answer.get(LINK_HEADER..)?).collect();
        let info: BTreeMap<u16, &[u8]> = attributes(link.get(&libc::IFLA_LINKINFO)?).collect();
        if *info.get(&libc::IFLA_INFO_KIND)? != b"vxlan\0" {
            return None;
        }
        let data: BTreeMap<u16, &[u8]> = attributes(info.get(&libc::IFLA_INFO_DATA)?).collect();
        let local = [IFLA_VXLAN_LOCAL, IFLA_VXLAN_LOCAL6].iter().find_map(|kind| data.get(kind));
        let local = local.and_then(|bytes| crate::cidr::address_from(bytes));
        Some(Settings {
            vni: u32::from_ne_bytes((*data.get(&IFLA_VXLAN_ID)?).try_into().ok()?),
            port: u16::from_be_bytes((*data.get(&IFLA_VXLAN_PORT)?).try_into().ok()?),
            local: local.filter(|address| !address.is_unspecified()),
            mac: (*link.get(&libc::IFLA_ADDRESS)?).try_into().ok()?,
            learning: *data.get(&IFLA_VXLAN_LEARNING)? != [0],
        })
    }
}

/// Packets may arrive here although this node sends the other way directly: the other node may see this one
/// behind a router (NET-18).
fn loose_reverse_path_filter(index: u32) -> Message {
    let what = format!("set rp_filter of link {index}");
    let mut message = Message::new(libc::RTM_SETLINK, ACK, &link_header(index, false), what);
    message.nest(libc::IFLA_AF_SPEC, |families| {
        families.nest(libc::AF_INET as u16, |inet| {
            inet.nest(IFLA_INET_CONF, |settings| {
                settings.number(IPV4_DEVCONF_RP_FILTER, RP_FILTER_LOOSE);
            });
        });
    });
    message
}

/// Without a link-local address the kernel sends no router solicitations, which would reach nobody.
fn no_address_generation(index: u32) -> Message {
    let what = format!("set the address generation of link {index}");
    let mut message = Message::new(libc::RTM_SETLINK, ACK, &link_header(index, false), what);
    message.nest(libc::IFLA_AF_SPEC, |families| {
        families.nest(libc::AF_INET6 as u16, |inet6| {
            inet6.attribute(IFLA_INET6_ADDR_GEN_MODE, &[IN6_ADDR_GEN_MODE_NONE]);
        });
    });
    message.ignore_errors(NO_IPV6)
}

fn guard_table(name: &str, ipv4: bool) -> Table {
    Table::new(if ipv4 { Family::Ipv4 } else { Family::Ipv6 }, format!("{name}-overlay"))
}

/// Replaces the packet rules of the overlay. `name` is the name of the pod network's table and `link` that of
/// its device.
pub(crate) fn write_guard(
    name: &str,
    link: &str,
    overlay: &Overlay,
    nodes: &BTreeSet<IpAddr>,
) -> Result<()> {
    let ipv4 = overlay.address.is_ipv4();
    let table = guard_table(name, ipv4);
    let set = Set::new("nodes", &[Kind::address(ipv4)]);
    let elements: Vec<Element> =
        nodes.iter().map(|address| Element::key(Key::new().address(*address))).collect();
    let mut batch = Batch::new();
    batch.add_table(&table).delete_table(&table).add_table(&table).add_set(&table, &set);
    batch.add_elements(&table, &set, &elements);
    for (chain, hook) in [("input", Hook::Input), ("forward", Hook::Forward)] {
        batch.add_chain(&table, &Chain::at(chain, ChainKind::Filter, hook, Priority::FILTER));
    }
    let pods = format!("{link}p*");
    let from_pods = || overlay_packets(Rule::new().from_interface(&pods), overlay);
    let rule = from_pods().comment("pods must not send overlay packets").drop();
    batch.add_rule(&table, "input", &rule);
    let source = [Field::address(ipv4, Direction::Source)];
    let rule = overlay_packets(Rule::new(), overlay).not_in_set(&source, &set);
    batch.add_rule(&table, "input", &rule.comment("not from a node of the cluster").drop());
    let destination = [Field::address(ipv4, Direction::Destination)];
    let rule = from_pods().in_set(&destination, &set);
    let rule = rule.comment("pods must not send overlay packets").drop();
    batch.add_rule(&table, "forward", &rule);
    nft::Connection::open()?.commit(batch)
}

/// Matches UDP packets to the overlay's port with the overlay's identifier.
fn overlay_packets(rule: Rule, overlay: &Overlay) -> Rule {
    // Offsets from the start of the UDP header: destination port, and identifier in the VXLAN header.
    const PORT_OFFSET: u32 = 2;
    const VNI_OFFSET: u32 = 12;
    let equals = |rule: Rule, offset, value: Vec<u8>| {
        let (header, length) = (Header::Transport, value.len() as u32);
        let register = Register::FIRST;
        rule.with(Expression::Payload { header, offset, length, to: register })
            .with(Expression::Compare { how: Compare::Equal, register, value })
    };
    let rule = rule.protocol(libc::IPPROTO_UDP as u8);
    let rule = equals(rule, PORT_OFFSET, overlay.port.to_be_bytes().to_vec());
    equals(rule, VNI_OFFSET, overlay.vni.to_be_bytes()[1..].to_vec())
}

/// Removes the packet rules of the overlay, of both IP families.
pub(crate) fn remove_guard(name: &str) -> Result<()> {
    for ipv4 in [true, false] {
        let table = guard_table(name, ipv4);
        let mut batch = Batch::new();
        batch.add_table(&table).delete_table(&table);
        match nft::Connection::open()?.commit(batch) {
            Err(error) if !ipv4 && is_unsupported(&error) => {} // No IPv6, so no such table.
            other => other?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_of_one_cluster_have_different_device_addresses() {
        let mac = |text: &str| mac(&text.parse().unwrap());
        assert_eq!(mac("10.244.3.0/24"), [0x02, 0x6c, 10, 244, 3, 0]);
        let all: BTreeSet<Mac> =
            (0..=u16::MAX).map(|i| mac(&format!("fd00:10:244:{i:x}::/64"))).collect();
        assert_eq!(all.len(), 1 << 16);
    }

    #[test]
    fn the_next_hop_of_an_ipv6_range_is_link_local() {
        let range: Cidr = "fd00:10:244:3::/64".parse().unwrap();
        let next = gateway(&range, [0x02, 0x6c, 1, 2, 3, 4]);
        assert_eq!(next, "fe80::26c:1ff:fe02:304".parse::<IpAddr>().unwrap());
        let range: Cidr = "10.244.3.0/24".parse().unwrap();
        assert_eq!(gateway(&range, [0; 6]), IpAddr::from([10, 244, 3, 1]));
    }

    #[test]
    fn a_kernel_without_vxlan_is_recognised() {
        let error = |errno| Error::call("add VXLAN link lf0v")(errno);
        assert!(is_unsupported(&error(nix::errno::Errno::EOPNOTSUPP)));
        assert!(!is_unsupported(&error(nix::errno::Errno::EEXIST)));
    }
}
