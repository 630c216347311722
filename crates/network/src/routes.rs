//! Routes to the pods of other nodes, as the kernel has them.
//!
//!     pods of a neighbour     10.244.7.0/24 via 192.0.2.7  dev eth0        src 10.244.3.1
//!     pods of another node    10.244.8.0/24 via 10.244.8.1 dev lf0v onlink src 10.244.3.1
//!
//! `set` reads what the kernel has, adds what is missing and then deletes what is not wanted. It is the same
//! after a crash, after another program has deleted a route, and on every other day.
//! Not here: which nodes there are and which of them are neighbours (`traffic::routes`).

use crate::address_pool::GATEWAY;
use crate::attachments::Inner;
use crate::link::{self, Device};
use crate::netlink::{Message, Socket};
use crate::overlay::{self, Overlay, OverlayDevice};
use crate::route_table::{self, PeerRoute, Reach};
use crate::tunnels::Entries;
use crate::{Cidr, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::PoisonError;

/// The kernel's acknowledgements of this many messages fit into the receive buffer of a socket.
const MESSAGES_PER_REQUEST: usize = 256;

/// Everything that this node needs to reach the pods of other nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Routes {
    /// Pod ranges of neighbours.
    pub direct: BTreeMap<Cidr, NextHop>,
    /// All other nodes, neighbours included: a neighbour may see this node behind a router and send its packets
    /// through the overlay.
    pub tunnels: Vec<Tunnel>,
    /// `None` if there are no tunnels.
    pub overlay: Option<Overlay>,
}

/// A neighbour, and the device of this node that is on the same subnet ([`Reach::Neighbour`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NextHop {
    pub address: IpAddr,
    pub device: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tunnel {
    /// The node's address.
    pub address: IpAddr,
    /// The first pod range of its Node object. The node's device address in the overlay is computed from it.
    pub first_range: Cidr,
    /// Pod ranges that are routed through the tunnel.
    pub ranges: Vec<Cidr>,
}

/// Whether the overlay works.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OverlayState {
    /// There are no other nodes.
    Unused,
    Ready,
    /// The kernel has no VXLAN. Pods of neighbours are reachable.
    Unsupported(String),
}

/// The packet rules of the overlay that the kernel has.
#[derive(Default, PartialEq, Eq)]
pub(crate) enum OverlayRules {
    #[default]
    Unknown,
    Absent,
    Written(Overlay, BTreeSet<IpAddr>),
}

impl Inner {
    /// How the kernel reaches each of these addresses.
    pub(crate) fn reach(&self, addresses: &[IpAddr]) -> Result<BTreeMap<IpAddr, Reach>> {
        let is_ours = |device: &Device| self.instance.marked(device);
        route_table::look_up(&mut Socket::route()?, addresses, is_ours)
    }

    /// Makes the kernel's routes to other nodes equal to these. If a part fails, the others are still done.
    pub(crate) fn set_routes(&self, wanted: &Routes) -> Result<OverlayState> {
        let mut rules = self.overlay_rules.lock().unwrap_or_else(PoisonError::into_inner);
        let mut socket = Socket::route()?;
        let (device, state) = match self.set_up_overlay(&mut socket, wanted, &mut rules) {
            Ok(None) => (None, Ok(OverlayState::Unused)),
            Ok(Some(device)) => (Some(device), Ok(OverlayState::Ready)),
            Err(error) if overlay::is_unsupported(&error) => {
                (None, Ok(OverlayState::Unsupported(error.to_string())))
            }
            Err(error) => (None, Err(error)),
        };
        let tunnels = Entries::of(&wanted.tunnels);
        let existing = match device {
            Some(device) => Entries::read(&mut socket, device)?,
            None => Entries::default(),
        };
        let added = match device {
            Some(device) => send(&mut socket, tunnels.additions(&existing, device)),
            None => Ok(()),
        };
        clock::crash_point("tunnels made");
        let routed = self.replace_routes(&mut socket, wanted, device);
        clock::crash_point("routes replaced");
        let deleted = match device {
            Some(device) => send(&mut socket, tunnels.deletions(&existing, device)),
            None => Ok(()),
        };
        added.and(routed).and(deleted).and(state)
    }

    /// Returns the index of the overlay device, or `None` if there are no tunnels.
    fn set_up_overlay(
        &self,
        socket: &mut Socket,
        wanted: &Routes,
        rules: &mut OverlayRules,
    ) -> Result<Option<u32>> {
        let Some(overlay) = wanted.overlay.filter(|_| !wanted.tunnels.is_empty()) else {
            if *rules != OverlayRules::Absent {
                self.remove_overlay(socket)?;
                *rules = OverlayRules::Absent;
            }
            return Ok(None);
        };
        let nodes: BTreeSet<IpAddr> = wanted.tunnels.iter().map(|tunnel| tunnel.address).collect();
        let new = OverlayRules::Written(overlay, nodes.clone());
        if *rules != new {
            *rules = OverlayRules::Unknown;
            let config = &self.config;
            overlay::write_guard(&config.table, &config.link, &overlay, &nodes)?;
            *rules = new;
        }
        let reach = route_table::look_up(socket, &[overlay.address], |_| false)?;
        let is_local = reach.get(&overlay.address) == Some(&Reach::ThisNode);
        let device = OverlayDevice {
            name: &overlay::device_name(&self.config.link),
            mac: overlay::mac(&self.config.cidrs[0]),
            overlay,
            local: is_local.then_some(overlay.address),
            mtu: self.config.mtu,
            gateways: &self.addresses(GATEWAY),
        };
        device.ensure(socket, &self.instance).map(Some)
    }

    fn replace_routes(
        &self,
        socket: &mut Socket,
        wanted: &Routes,
        overlay: Option<u32>,
    ) -> Result<()> {
        let sources = self.addresses(GATEWAY);
        let source_for = |range: &Cidr| {
            sources.iter().find(|source| source.is_ipv4() == range.is_ipv4()).copied()
        };
        let mut routes = Vec::new();
        for (range, next) in &wanted.direct {
            let Some(source) = source_for(range) else { continue };
            let (gateway, device) = (next.address, next.device);
            // The underlay's MTU is larger than that of pods. The first large packet from this node itself would
            // be lost, as IPv6 routers do not fragment.
            let mtu = Some(self.config.mtu);
            routes.push(PeerRoute { to: *range, gateway, device, source, mtu });
        }
        for tunnel in &wanted.tunnels {
            let mac = overlay::mac(&tunnel.first_range);
            for range in &tunnel.ranges {
                let (Some(device), Some(source)) = (overlay, source_for(range)) else { continue };
                let (gateway, mtu) = (overlay::gateway(range, mac), None);
                routes.push(PeerRoute { to: *range, gateway, device, source, mtu });
            }
        }
        let existing = route_table::list(socket, &sources)?;
        let tunnelled = wanted.tunnels.iter().flat_map(|tunnel| &tunnel.ranges);
        let ranges: BTreeSet<&Cidr> = wanted.direct.keys().chain(tunnelled).collect();
        let missing = routes.iter().filter(|route| !existing.contains(route));
        let additions = missing.map(|route| route.add(Some(route.device) == overlay)).collect();
        let added = send(socket, additions);
        // An old route to a wanted range was replaced. If that failed, it is better than none.
        let unwanted = existing.iter().filter(|route| !ranges.contains(&route.to));
        let deleted = send(socket, unwanted.map(PeerRoute::delete).collect());
        added.and(deleted)
    }

    /// Routes Service ranges that the kernel cannot reach to the gateway device. Otherwise the kernel would refuse
    /// packets of this node before their address is translated. The routes end with the device.
    pub(crate) fn add_service_routes(&self, ranges: &[Cidr]) -> Result<()> {
        let mut socket = Socket::route()?;
        let device = link::index_of(&mut socket, &self.config.link)?;
        let first: Vec<IpAddr> = ranges.iter().filter_map(|range| range.nth(1)).collect();
        let reach = route_table::look_up(&mut socket, &first, |_| false)?;
        let mut routes = Vec::new();
        for range in ranges {
            let is_unreachable = |at: &IpAddr| reach.get(at) == Some(&Reach::Unreachable);
            let mut gateways = self.addresses(GATEWAY).into_iter();
            let gateway = gateways.find(|gateway| gateway.is_ipv4() == range.is_ipv4());
            if let (Some(gateway), true) =
                (gateway, range.nth(1).is_some_and(|at| is_unreachable(&at)))
            {
                routes.push(link::add_range_route(device, range, gateway));
            }
        }
        send(&mut socket, routes)
    }

    /// Pod ranges of other nodes that the kernel has routes to.
    pub(crate) fn routed_ranges(sources: &[IpAddr]) -> Result<Vec<Cidr>> {
        let routes = route_table::list(&mut Socket::route()?, sources)?;
        Ok(routes.into_iter().map(|route| route.to).collect())
    }

    /// Removes all routes to other nodes and the overlay.
    pub(crate) fn remove_routes(&self, socket: &mut Socket) -> Result<()> {
        let routes = route_table::list(socket, &self.addresses(GATEWAY))?;
        send(socket, routes.iter().map(PeerRoute::delete).collect())?;
        self.remove_overlay(socket)
    }

    fn remove_overlay(&self, socket: &mut Socket) -> Result<()> {
        let (name, mac) =
            (overlay::device_name(&self.config.link), overlay::mac(&self.config.cidrs[0]));
        overlay::remove_device(socket, &name, mac, &self.instance)?;
        overlay::remove_guard(&self.config.table)
    }
}

/// Sends all messages. Returns the first error.
fn send(socket: &mut Socket, messages: Vec<Message>) -> Result<()> {
    let mut first = Ok(());
    let mut messages = messages.into_iter().peekable();
    while messages.peek().is_some() {
        let some: Vec<Message> = messages.by_ref().take(MESSAGES_PER_REQUEST).collect();
        first = first.and(socket.request(some).map(drop));
    }
    first
}
