//! Netlink messages for the entries of the overlay device: which node has which device address.
//!
//! The kernel needs two entries per node: the neighbour entry says which device address a gateway has, the
//! forwarding entry says to which node packets for a device address are sent. Both are permanent.

use crate::cidr::{address_from, octets};
use crate::link::{self, Mac, link_header};
use crate::netlink::{ACK, CREATE, Message, REPLACE, Socket, attributes};
use crate::{Result, Tunnel, overlay};
use std::collections::BTreeSet;
use std::net::IpAddr;

/// Size of `struct ndmsg`: family, padding, device, state, flags, type.
const HEADER: usize = 12;
const DEVICE_INDEX: std::ops::Range<usize> = 4..8;
const STATE: std::ops::Range<usize> = 8..10;
const NO_SUCH_ENTRY: &[i32] = &[libc::ENOENT];

/// The entries of the overlay device.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Entries {
    /// Device addresses and the nodes that have them.
    pub(crate) forwarding: BTreeSet<(Mac, IpAddr)>,
    /// Gateways of pod ranges and their device addresses.
    pub(crate) neighbours: BTreeSet<(IpAddr, Mac)>,
}

impl Entries {
    pub(crate) fn of(tunnels: &[Tunnel]) -> Entries {
        let mut entries = Entries::default();
        for tunnel in tunnels {
            let mac = overlay::mac(&tunnel.first_range);
            entries.forwarding.insert((mac, tunnel.address));
            let gateways = tunnel.ranges.iter().map(|range| overlay::gateway(range, mac));
            entries.neighbours.extend(gateways.map(|gateway| (gateway, mac)));
        }
        entries
    }

    pub(crate) fn read(socket: &mut Socket, device: u32) -> Result<Entries> {
        let mut forwarding_request = link_header(device, false);
        forwarding_request[0] = libc::AF_BRIDGE as u8;
        let what = "list forwarding entries";
        let forwarding = Message::new(libc::RTM_GETNEIGH, 0, &forwarding_request, what);
        let mut entries = Entries::default();
        for entry in socket.dump(forwarding)?.iter().filter_map(|answer| Entry::read(answer)) {
            if let (true, Some(mac), Some(to)) = (entry.device == device, entry.mac, entry.address)
            {
                entries.forwarding.insert((mac, to));
            }
        }
        let neighbours = Message::new(libc::RTM_GETNEIGH, 0, &[0; HEADER], "list neighbours");
        for entry in socket.dump(neighbours)?.iter().filter_map(|answer| Entry::read(answer)) {
            let ours = entry.device == device && entry.permanent;
            if let (true, Some(mac), Some(gateway)) = (ours, entry.mac, entry.address) {
                entries.neighbours.insert((gateway, mac));
            }
        }
        Ok(entries)
    }

    /// Messages that add what `self` has and `existing` has not.
    pub(crate) fn additions(&self, existing: &Entries, device: u32) -> Vec<Message> {
        let forwarding = self.forwarding.difference(&existing.forwarding);
        let neighbours = self.neighbours.difference(&existing.neighbours);
        let add = |(mac, to): &(Mac, IpAddr)| {
            let flags = ACK | CREATE | REPLACE;
            forwarding_message(libc::RTM_NEWNEIGH, flags, "add", device, *mac, *to)
        };
        let mut messages: Vec<Message> = forwarding.map(add).collect();
        messages
            .extend(neighbours.map(|(gateway, mac)| link::add_neighbour(device, *gateway, *mac)));
        messages
    }

    /// Messages that delete what `existing` has and `self` has not.
    pub(crate) fn deletions(&self, existing: &Entries, device: u32) -> Vec<Message> {
        let mut messages = Vec::new();
        for (gateway, _) in existing.neighbours.difference(&self.neighbours) {
            // An entry with another device address was replaced, and is wanted.
            if !self.neighbours.iter().any(|(wanted, _)| wanted == gateway) {
                messages.push(delete_neighbour(device, *gateway));
            }
        }
        for (mac, to) in existing.forwarding.difference(&self.forwarding) {
            let delete = forwarding_message(libc::RTM_DELNEIGH, ACK, "delete", device, *mac, *to);
            messages.push(delete.ignore_errors(NO_SUCH_ENTRY));
        }
        messages
    }
}

struct Entry {
    device: u32,
    permanent: bool,
    mac: Option<Mac>,
    address: Option<IpAddr>,
}

impl Entry {
    fn read(answer: &[u8]) -> Option<Entry> {
        let find = |kind: u16| {
            let mut found = attributes(answer.get(HEADER..)?);
            found.find(|(found, _)| *found == kind).map(|(_, value)| value)
        };
        let state = u16::from_ne_bytes(answer.get(STATE)?.try_into().ok()?);
        Some(Entry {
            device: u32::from_ne_bytes(answer.get(DEVICE_INDEX)?.try_into().ok()?),
            permanent: state & libc::NUD_PERMANENT != 0,
            mac: find(libc::NDA_LLADDR).and_then(|bytes| bytes.try_into().ok()),
            address: find(libc::NDA_DST).and_then(address_from),
        })
    }
}

fn header(family: u8, device: u32, flags: u8) -> Vec<u8> {
    let mut header = vec![family, 0, 0, 0];
    header.extend_from_slice(&device.to_ne_bytes());
    header.extend_from_slice(&libc::NUD_PERMANENT.to_ne_bytes());
    header.extend_from_slice(&[flags, 0]);
    header
}

fn forwarding_message(
    kind: u16,
    flags: u16,
    verb: &str,
    device: u32,
    mac: Mac,
    to: IpAddr,
) -> Message {
    let header = header(libc::AF_BRIDGE as u8, device, libc::NTF_SELF);
    let mut message = Message::new(kind, flags, &header, format!("{verb} tunnel to {to}"));
    message.attribute(libc::NDA_LLADDR, &mac).attribute(libc::NDA_DST, &octets(to));
    message
}

fn delete_neighbour(device: u32, address: IpAddr) -> Message {
    let header = header(link::family(address), device, 0);
    let what = format!("delete neighbour {address}");
    let mut message = Message::new(libc::RTM_DELNEIGH, ACK, &header, what);
    message.attribute(libc::NDA_DST, &octets(address));
    message.ignore_errors(NO_SUCH_ENTRY)
}
