//! The packet rules of the pods' side: who is masqueraded, and which port of the node leads where.
//!
//! The table is written whole when it is opened, in one transaction, so that there is no moment
//! without it; after that only elements of its maps come and go.

use crate::addresses::GATEWAY;
use crate::conntrack::Connection;
use crate::nft::{
    self, Batch, Chain, ChainKind, Direction, Element, Family, Field, Hook, Key, Kind, Priority,
    Reject, Rule, Set, Table,
};
use crate::{Cidr, Error, HostPort, PodsConfig, Protocol, Result};
use std::collections::BTreeMap;
use std::net::IpAddr;

const REDIRECTS: &str = "host-ports";
const POSTROUTING: &str = "postrouting";

/// What one pod's host ports are made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PodPorts {
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) ports: Vec<HostPort>,
}

pub(crate) struct Rules {
    connection: nft::Connection,
    families: Vec<FamilyRules>,
    /// By the pod's key: what the kernel has.
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

    /// Replaces whatever the tables hold.
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

    /// Makes these the host ports of `key`, and no others.
    pub(crate) fn set(&mut self, key: &str, pod: PodPorts) -> Result<()> {
        if self.pods.get(key).map_or(&[][..], |now| &now.ports[..]) == pod.ports {
            return Ok(());
        }
        self.refuse_conflicts(key, &pod.ports)?;
        let mut batch = Batch::new();
        for family in &self.families {
            if let Some(now) = self.pods.get(key) {
                family.delete(&mut batch, now);
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
        // Somebody has been at our table. It is ours: write it anew.
        let wanted = pods.clone();
        self.install(wanted).inspect_err(|_| {
            pods.remove(key);
            pods.extend(before.map(|before| (key.to_string(), before)));
            self.pods = pods;
        })
    }

    pub(crate) fn forget(&mut self, key: &str) -> Result<()> {
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

    /// The scheduler sees to it that this does not happen; a pod that was bound by hand may.
    fn refuse_conflicts(&self, key: &str, ports: &[HostPort]) -> Result<()> {
        for (other, pod) in self.pods.iter().filter(|(other, _)| *other != key) {
            if let Some(port) = ports.iter().find(|port| pod.ports.iter().any(|p| p.is_at(port))) {
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
    fn name(self) -> &'static str {
        match self {
            Protocol::Tcp => "TCP",
            Protocol::Udp => "UDP",
            Protocol::Sctp => "SCTP",
        }
    }

    pub(crate) fn of(number: u8) -> Option<Protocol> {
        let all = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
        all.into_iter().find(|protocol| protocol.number() == number)
    }

    fn number(self) -> u8 {
        match self {
            Protocol::Tcp => libc::IPPROTO_TCP as u8,
            Protocol::Udp => libc::IPPROTO_UDP as u8,
            Protocol::Sctp => libc::IPPROTO_SCTP as u8,
        }
    }
}

impl HostPort {
    /// None: every address.
    fn address(&self) -> Option<IpAddr> {
        self.host_ip.filter(|address| !address.is_unspecified())
    }

    /// Whether both are the same place on the node. An address of its own wins over "every
    /// address", so those two can live side by side.
    fn is_at(&self, other: &HostPort) -> bool {
        (self.protocol, self.host_port, self.address())
            == (other.protocol, other.host_port, other.address())
    }

    /// Whether a connection was asked for at this port.
    pub(crate) fn is_of(&self, connection: &Connection) -> bool {
        self.protocol == connection.protocol
            && self.host_port == connection.original.destination_port
            && self.address().is_none_or(|address| address == connection.original.destination)
    }

    /// Whether it is reached by a loopback address.
    pub(crate) fn is_on_loopback(&self) -> bool {
        self.address().is_none_or(|address| address.is_loopback())
    }
}

/// The same rules in the words of one family.
struct FamilyRules {
    table: Table,
    ipv4: bool,
    own: Cidr,
    /// Where pods go with their own address.
    kept: Vec<Cidr>,
    services: Vec<Cidr>,
    gateway: IpAddr,
    at_address: Set,
    at_any: Set,
    to_itself: Set,
}

impl FamilyRules {
    fn new(config: &PodsConfig, range: &Cidr) -> FamilyRules {
        let ipv4 = range.is_ipv4();
        let address = Kind::address(ipv4);
        let mut kept: Vec<Cidr> =
            config.cidrs.iter().chain(&config.cluster_cidrs).copied().collect();
        kept.push(Cidr::multicast(ipv4));
        kept.retain(|kept| kept.is_ipv4() == ipv4);
        kept.sort();
        kept.dedup();
        let services = config.service_cidrs.iter().filter(|range| range.is_ipv4() == ipv4);
        let to = [address, Kind::Port];
        FamilyRules {
            table: Table::new(if ipv4 { Family::Ipv4 } else { Family::Ipv6 }, &config.table),
            services: services.copied().collect(),
            ipv4,
            own: *range,
            kept,
            gateway: range.nth(GATEWAY).unwrap_or(range.base()),
            at_address: Set::map(
                "host-ports-at-address",
                &[address, Kind::Protocol, Kind::Port],
                &to,
            ),
            at_any: Set::map("host-ports-at-any", &[Kind::Protocol, Kind::Port], &to),
            to_itself: Set::new("pods-to-themselves", &[address, address]),
        }
    }

    /// The table as it is without any pod.
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
        self.guard_services(batch);
    }

    /// What is sent to the node itself may be meant for a pod (NET-9).
    fn redirects(&self) -> Vec<Rule> {
        let destination = Field::address(self.ipv4, Direction::Destination);
        let port = [Field::Protocol, Field::DestinationPort];
        let at_address = [destination, port[0], port[1]];
        let mut rules = vec![Rule::new().redirect_by(&at_address, &self.at_address, self.ipv4)];
        if !self.ipv4 {
            // The kernel lets nothing with this source out, and there is no setting to change that.
            rules.push(Rule::new().destination_in(&loopback(false)).go_back());
        }
        rules.push(Rule::new().redirect_by(&port, &self.at_any, self.ipv4));
        rules
    }

    /// Who a packet seems to come from when it leaves.
    fn sources(&self) -> Vec<Rule> {
        let pair = [
            Field::address(self.ipv4, Direction::Source),
            Field::address(self.ipv4, Direction::Destination),
        ];
        let mut rules = vec![
            Rule::new()
                .comment("a pod that calls its own host port must not see itself calling")
                .was_redirected()
                .in_set(&pair, &self.to_itself)
                .source_becomes(self.gateway),
        ];
        if self.ipv4 {
            let rule = Rule::new().comment("from the node's loopback to a pod's host port");
            let rule = rule.source_in(&loopback(true)).destination_in(&self.own);
            rules.push(rule.source_becomes(self.gateway));
        }
        rules.push(Rule::new().source_not_in(&self.own).go_back());
        for range in &self.kept {
            rules.push(Rule::new().destination_in(range).go_back());
        }
        rules.push(Rule::new().comment("pods leaving the cluster").masquerade());
        rules
    }

    /// Host ports on loopback need a kernel setting that would also let pods and neighbours reach
    /// what listens on the node's loopback only. Replies are not meant: they are translated later.
    fn guard_loopback(&self, batch: &mut Batch) {
        const NAME: &str = "loopback-guard";
        if !self.ipv4 {
            return; // The kernel guards ::1 itself.
        }
        let (table, range) = (&self.table, loopback(true));
        let (kind, hook) = (ChainKind::Filter, Hook::Prerouting);
        batch.add_chain(table, &Chain::at(NAME, kind, hook, Priority::RAW));
        let outside = || Rule::new().not_from_interface("lo");
        batch.add_rule(table, NAME, &outside().destination_in(&range).drop());
        batch.add_rule(table, NAME, &outside().source_in(&range).drop());
    }

    /// What is for a Service, and was not redirected to one of its pods, is for nobody: refused, as
    /// upstream refuses what has no endpoints.
    fn guard_services(&self, batch: &mut Batch) {
        const NAME: &str = "service-guard";
        let (kind, hook) = (ChainKind::Filter, Hook::Forward);
        batch.add_chain(&self.table, &Chain::at(NAME, kind, hook, Priority::FILTER));
        for range in &self.services {
            let rule = Rule::new().comment("nobody answers for this Service");
            let rule = rule.source_in(&self.own).destination_in(range);
            batch.add_rule(&self.table, NAME, &rule.reject(Reject::PortUnreachable));
        }
    }

    fn add(&self, batch: &mut Batch, pod: &PodPorts) {
        let (at_address, at_any, to_itself) = self.elements(pod);
        batch.add_elements(&self.table, &self.at_address, &at_address);
        batch.add_elements(&self.table, &self.at_any, &at_any);
        batch.add_elements(&self.table, &self.to_itself, &to_itself);
    }

    fn delete(&self, batch: &mut Batch, pod: &PodPorts) {
        let (at_address, at_any, to_itself) = self.elements(pod);
        batch.delete_elements(&self.table, &self.at_address, &at_address);
        batch.delete_elements(&self.table, &self.at_any, &at_any);
        batch.delete_elements(&self.table, &self.to_itself, &to_itself);
    }

    fn elements(&self, pod: &PodPorts) -> (Vec<Element>, Vec<Element>, Vec<Element>) {
        let (mut at_address, mut at_any, mut to_itself) = (vec![], vec![], vec![]);
        let Some(pod_address) = pod.addresses.iter().find(|a| a.is_ipv4() == self.ipv4) else {
            return (at_address, at_any, to_itself);
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
        (at_address, at_any, to_itself)
    }
}

fn loopback(ipv4: bool) -> Cidr {
    match ipv4 {
        true => Cidr::known(IpAddr::from([127, 0, 0, 0]), 8),
        false => Cidr::known(IpAddr::V6(std::net::Ipv6Addr::LOCALHOST), 128),
    }
}
