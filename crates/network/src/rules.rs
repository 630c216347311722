//! The packet rules of the pod network: masquerading, host ports, and a guard for the node's loopback addresses.
//!
//! Opening writes the whole table in one transaction, so that traffic never sees a half-written one. After
//! that only the elements of its maps change.

use crate::address_pool::GATEWAY;
use crate::conntrack::Connection;
use crate::nft::{
    self, Batch, Chain, ChainKind, Direction, Element, Family, Field, Hook, Key, Kind, Priority,
    Rule, Set, Table,
};
use crate::{Cidr, Error, HostPort, PodsConfig, Protocol, Result};
use std::collections::BTreeMap;
use std::net::IpAddr;

const REDIRECTS: &str = "host-ports";
const POSTROUTING: &str = "postrouting";

/// The host ports of one pod and the addresses they lead to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PodPorts {
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) ports: Vec<HostPort>,
}

pub(crate) struct Rules {
    connection: nft::Connection,
    families: Vec<FamilyRules>,
    /// What the kernel has, by the pod's key.
    pods: BTreeMap<String, PodPorts>,
}

impl Rules {
    pub(crate) fn open(config: &PodsConfig) -> Result<Rules> {
        let families = config.cidrs.iter().map(|range| FamilyRules::new(config, range));
        Ok(Rules {
            connection: nft::Connection::open()?,
            families: families.collect(),
            pods: BTreeMap::new(),
        })
    }

    /// Replaces the tables.
    pub(crate) fn install(&mut self, pods: BTreeMap<String, PodPorts>) -> Result<()> {
        let mut batch = Batch::new();
        for family in &self.families {
            family.write(&mut batch);
            for pod in pods.values() {
                family.add(&mut batch, pod);
            }
        }
        self.connection.commit(batch)?;
        self.pods = pods;
        Ok(())
    }

    /// Replaces the host ports of `key`.
    pub(crate) fn set(&mut self, key: &str, pod: PodPorts) -> Result<()> {
        if self.pods.get(key).map_or(&[][..], |current| &current.ports[..]) == pod.ports {
            return Ok(());
        }
        self.check_conflicts(key, &pod.ports)?;
        let mut batch = Batch::new();
        for family in &self.families {
            if let Some(current) = self.pods.get(key) {
                family.delete(&mut batch, current);
            }
            family.add(&mut batch, &pod);
        }
        let outcome = self.connection.commit(batch);
        let mut pods = std::mem::take(&mut self.pods);
        let before = pods.remove(key);
        if !pod.ports.is_empty() {
            pods.insert(key.into(), pod);
        }
        if outcome.is_ok() {
            self.pods = pods;
            return Ok(());
        }
        // Another program has changed our table, so that the change does not apply. Write the whole table.
        self.install(pods.clone()).inspect_err(|_| {
            pods.remove(key);
            pods.extend(before.map(|before| (key.to_string(), before)));
            self.pods = pods;
        })
    }

    pub(crate) fn remove_pod(&mut self, key: &str) -> Result<()> {
        self.set(key, PodPorts { addresses: Vec::new(), ports: Vec::new() })
    }

    pub(crate) fn remove(&mut self) -> Result<()> {
        let mut batch = Batch::new();
        for family in &self.families {
            batch.add_table(&family.table).delete_table(&family.table);
        }
        self.pods.clear();
        self.connection.commit(batch)
    }

    /// The scheduler avoids conflicts, but a pod that was bound by hand may have one.
    fn check_conflicts(&self, key: &str, ports: &[HostPort]) -> Result<()> {
        for (other, pod) in self.pods.iter().filter(|(other, _)| *other != key) {
            if let Some(port) =
                ports.iter().find(|port| pod.ports.iter().any(|p| p.conflicts_with(port)))
            {
                let (number, protocol) = (port.host_port, port.protocol.name());
                return Err(Error::Invalid(format!(
                    "host port {number}/{protocol} is in use by {other}"
                )));
            }
        }
        Ok(())
    }
}

impl Protocol {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Protocol::Tcp => "TCP",
            Protocol::Udp => "UDP",
            Protocol::Sctp => "SCTP",
        }
    }

    pub(crate) fn from_number(number: u8) -> Option<Protocol> {
        let all = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
        all.into_iter().find(|protocol| protocol.number() == number)
    }

    pub(crate) fn number(self) -> u8 {
        match self {
            Protocol::Tcp => libc::IPPROTO_TCP as u8,
            Protocol::Udp => libc::IPPROTO_UDP as u8,
            Protocol::Sctp => libc::IPPROTO_SCTP as u8,
        }
    }
}

impl HostPort {
    /// `None` means every address.
    fn address(&self) -> Option<IpAddr> {
        self.host_ip.filter(|address| !address.is_unspecified())
    }

    /// Whether both claim the same port of the same address. A port of one address and the same port of every
    /// address do not conflict: the former takes precedence.
    fn conflicts_with(&self, other: &HostPort) -> bool {
        (self.protocol, self.host_port, self.address())
            == (other.protocol, other.host_port, other.address())
    }

    /// Whether the client of the connection connected to this port.
    pub(crate) fn matches(&self, connection: &Connection) -> bool {
        self.protocol == connection.protocol
            && self.host_port == connection.original.destination_port
            && self.address().is_none_or(|address| address == connection.original.destination)
    }

    /// Whether clients reach it by a loopback address.
    pub(crate) fn is_on_loopback(&self) -> bool {
        self.address().is_none_or(|address| address.is_loopback())
    }
}

/// The rules for one IP family.
struct FamilyRules {
    table: Table,
    ipv4: bool,
    /// This node's pod range.
    pod_range: Cidr,
    /// Destinations that pods reach without masquerading.
    cluster_ranges: Vec<Cidr>,
    gateway: IpAddr,
    /// Host ports of one address of the node.
    at_address: Set,
    /// Host ports of every address of the node.
    at_any: Set,
    /// Pairs of equal addresses, one per pod with host ports.
    to_itself: Set,
}

impl FamilyRules {
    fn new(config: &PodsConfig, range: &Cidr) -> FamilyRules {
        let ipv4 = range.is_ipv4();
        let address = Kind::address(ipv4);
        let mut cluster_ranges: Vec<Cidr> =
            config.cidrs.iter().chain(&config.cluster_cidrs).copied().collect();
        cluster_ranges.push(Cidr::multicast(ipv4));
        cluster_ranges.retain(|range| range.is_ipv4() == ipv4);
        cluster_ranges.sort();
        cluster_ranges.dedup();
        let pod_port = [address, Kind::Port];
        FamilyRules {
            table: Table::new(if ipv4 { Family::Ipv4 } else { Family::Ipv6 }, &config.table),
            ipv4,
            pod_range: *range,
            cluster_ranges,
            gateway: range.nth(GATEWAY).unwrap_or(range.base()),
            at_address: Set::map(
                "host-ports-at-address",
                &[address, Kind::Protocol, Kind::Port],
                &pod_port,
            ),
            at_any: Set::map("host-ports-at-any", &[Kind::Protocol, Kind::Port], &pod_port),
            to_itself: Set::new("pods-to-themselves", &[address, address]),
        }
    }

    /// Writes the table without pods.
    fn write(&self, batch: &mut Batch) {
        let table = &self.table;
        batch.add_table(table).delete_table(table).add_table(table);
        for set in [&self.at_address, &self.at_any, &self.to_itself] {
            batch.add_set(table, set);
        }
        batch.add_chain(table, &Chain::new(REDIRECTS));
        for rule in self.redirects() {
            batch.add_rule(table, REDIRECTS, &rule);
        }
        for (name, hook) in [("prerouting", Hook::Prerouting), ("output", Hook::Output)] {
            let chain = Chain::at(name, ChainKind::Nat, hook, Priority::DESTINATION_NAT);
            batch.add_chain(table, &chain);
            let jump = Rule::new().destination_is_local().jump(REDIRECTS);
            batch.add_rule(table, name, &jump);
        }
        let (nat, hook) = (ChainKind::Nat, Hook::Postrouting);
        batch.add_chain(table, &Chain::at(POSTROUTING, nat, hook, Priority::SOURCE_NAT));
        for rule in self.sources() {
            batch.add_rule(table, POSTROUTING, &rule);
        }
        self.guard_loopback(batch);
    }

    /// Redirects packets for host ports of the node to pods (NET-9).
    fn redirects(&self) -> Vec<Rule> {
        let destination = Field::address(self.ipv4, Direction::Destination);
        let port = [Field::Protocol, Field::DestinationPort];
        let at_address = [destination, port[0], port[1]];
        let mut rules = vec![Rule::new().redirect_by(&at_address, &self.at_address, self.ipv4)];
        if !self.ipv4 {
            // The kernel never routes packets with the source ::1, and no setting changes that.
            rules.push(Rule::new().destination_in(&loopback(false)).return_from_chain());
        }
        rules.push(Rule::new().redirect_by(&port, &self.at_any, self.ipv4));
        rules
    }

    /// Rewrites the source address of packets that leave the node or return to it.
    fn sources(&self) -> Vec<Rule> {
        let pair = [
            Field::address(self.ipv4, Direction::Source),
            Field::address(self.ipv4, Direction::Destination),
        ];
        let mut rules = vec![
            Rule::new()
                .comment("a pod that connects to its own host port sees the gateway as the client")
                .was_redirected()
                .in_set(&pair, &self.to_itself)
                .set_source(self.gateway),
        ];
        if self.ipv4 {
            let rule = Rule::new().comment("from the node's loopback to a pod's host port");
            let rule = rule.source_in(&loopback(true)).destination_in(&self.pod_range);
            rules.push(rule.set_source(self.gateway));
        }
        rules.push(Rule::new().source_not_in(&self.pod_range).return_from_chain());
        for range in &self.cluster_ranges {
            rules.push(Rule::new().destination_in(range).return_from_chain());
        }
        rules.push(Rule::new().comment("pods leaving the cluster").masquerade());
        rules
    }

    /// Host ports on loopback need the setting `route_localnet`, which would also let pods and hosts nearby
    /// reach servers that listen on the node's loopback only. These rules drop such packets, but no replies:
    /// the kernel translates their addresses later.
    fn guard_loopback(&self, batch: &mut Batch) {
        const NAME: &str = "loopback-guard";
        if !self.ipv4 {
            return; // The kernel protects ::1 itself.
        }
        let (table, range) = (&self.table, loopback(true));
        let (kind, hook) = (ChainKind::Filter, Hook::Prerouting);
        batch.add_chain(table, &Chain::at(NAME, kind, hook, Priority::RAW));
        let outside = || Rule::new().not_from_interface("lo");
        batch.add_rule(table, NAME, &outside().destination_in(&range).drop());
        batch.add_rule(table, NAME, &outside().source_in(&range).drop());
    }

    fn add(&self, batch: &mut Batch, pod: &PodPorts) {
        for (set, elements) in self.elements(pod) {
            batch.add_elements(&self.table, set, &elements);
        }
    }

    fn delete(&self, batch: &mut Batch, pod: &PodPorts) {
        for (set, elements) in self.elements(pod) {
            batch.delete_elements(&self.table, set, &elements);
        }
    }

    fn elements(&self, pod: &PodPorts) -> Vec<(&Set, Vec<Element>)> {
        let (mut at_address, mut at_any, mut to_itself) = (vec![], vec![], vec![]);
        let Some(pod_address) = pod.addresses.iter().find(|a| a.is_ipv4() == self.ipv4) else {
            return Vec::new();
        };
        for port in &pod.ports {
            let value = Key::new().address(*pod_address).port(port.container_port);
            let key = |key: Key| key.protocol(port.protocol.number()).port(port.host_port);
            match (port.address(), port.host_ip) {
                (Some(host), _) if host.is_ipv4() == self.ipv4 => {
                    at_address.push(Element::value(key(Key::new().address(host)), value));
                }
                (None, None) => at_any.push(Element::value(key(Key::new()), value)),
                (None, Some(any)) if any.is_ipv4() == self.ipv4 => {
                    at_any.push(Element::value(key(Key::new()), value));
                }
                _ => {}
            }
        }
        if !(at_address.is_empty() && at_any.is_empty()) {
            to_itself.push(Element::key(Key::new().address(*pod_address).address(*pod_address)));
        }
        vec![(&self.at_address, at_address), (&self.at_any, at_any), (&self.to_itself, to_itself)]
    }
}

fn loopback(ipv4: bool) -> Cidr {
    match ipv4 {
        true => Cidr::constant(IpAddr::from([127, 0, 0, 0]), 8),
        false => Cidr::constant(IpAddr::V6(std::net::Ipv6Addr::LOCALHOST), 128),
    }
}
