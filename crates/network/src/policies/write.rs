//! Writes the policy table of one IP family.

use super::PolicyConfig;
use super::change::{
    Change, Direction, Life, Member, Peers, PolicyRule, Ports, SetChange, SetKind, Target,
};
use crate::nft::{
    self, Batch, Chain, ChainKind, Compare, Element, Expression, Family, Field, Header, Hook, Key,
    Kind, MetaKey, Priority, Register, Rule, Set, Table, Verdict,
};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const FIRST: Register = Register::FIRST;

pub(super) struct FamilyTable {
    table: Table,
    ipv4: bool,
    /// Matches the links of all pods of this node.
    pod_links: String,
}

impl FamilyTable {
    pub(super) fn new(config: &PolicyConfig, ipv4: bool) -> FamilyTable {
        let family = if ipv4 { Family::Ipv4 } else { Family::Ipv6 };
        FamilyTable {
            table: Table::new(family, &config.table),
            ipv4,
            pod_links: format!("{}p*", config.link),
        }
    }

    pub(super) fn remove(&self, batch: &mut Batch) {
        batch.add_table(&self.table).delete_table(&self.table);
    }

    /// Replaces the table by one without policies.
    pub(super) fn create(&self, batch: &mut Batch) {
        let table = &self.table;
        batch.add_table(table).delete_table(table).add_table(table);
        for direction in Direction::BOTH {
            let name = direction.name();
            batch.add_set(table, &isolated_pods(direction)).add_chain(table, &Chain::new(name));
            for rule in self.shared_rules(direction) {
                batch.add_rule(table, name, &rule);
            }
        }
        for (name, hook, direction) in [
            ("forward-egress", Hook::Forward, Direction::Egress),
            ("input-egress", Hook::Input, Direction::Egress),
            ("forward-ingress", Hook::Forward, Direction::Ingress),
        ] {
            batch.add_chain(table, &Chain::at(name, ChainKind::Filter, hook, Priority::FILTER));
            let known = Expression::STATE_ESTABLISHED | Expression::STATE_RELATED;
            batch.add_rule(table, name, &Rule::new().state(known).accept());
            batch.add_rule(table, name, &Rule::new().goto(direction.name()));
        }
    }

    /// What holds for new connections of all pods.
    fn shared_rules(&self, direction: Direction) -> Vec<Rule> {
        let mut rules = Vec::new();
        if direction == Direction::Egress {
            if !self.ipv4 {
                rules.push(neighbour_discovery().accept());
            }
            rules.push(
                Rule::new()
                    .comment("not the pod's own source address")
                    .from_interface(&self.pod_links)
                    .with(Expression::SourceRoute { to: FIRST })
                    .with(compare(Compare::Equal, &0_u32.to_ne_bytes()))
                    .drop(),
            );
        }
        let key = match direction {
            Direction::Ingress => MetaKey::InterfaceOutName,
            Direction::Egress => MetaKey::InterfaceInName,
        };
        let map = isolated_pods(direction).name;
        let link = Expression::Meta { key, to: FIRST };
        rules.push(Rule::new().with(link).with(Expression::VerdictMap { map, key: FIRST }));
        rules
    }

    /// The order matters: the kernel checks after every step that what a rule or element refers to exists, and that
    /// nothing refers to what is deleted.
    pub(super) fn apply(&self, batch: &mut Batch, change: &Change) {
        self.detach(batch, change);
        for (name, set) in &change.sets {
            self.change_set(batch, name, set);
        }
        for name in chains(change, Life::New) {
            batch.add_chain(&self.table, &Chain::new(name));
        }
        self.add_rules(batch, change);
        for ((direction, link), _) in change.pods.iter().filter(|(_, pod)| pod.life == Life::New) {
            let chain = Verdict::Goto(pod_chain(*direction, link));
            let element = Element::verdict(link_key(link), chain);
            batch.add_elements(&self.table, &isolated_pods(*direction), &[element]);
        }
        for name in chains(change, Life::Deleted) {
            batch.delete_chain(&self.table, &name);
        }
        for (name, _) in change.sets.iter().filter(|(_, set)| set.life == Life::Deleted) {
            batch.delete_set(&self.table, name);
        }
    }

    /// Removes references to pods that are no longer isolated, and rules that change.
    fn detach(&self, batch: &mut Batch, change: &Change) {
        let gone = change.pods.iter().filter(|(_, pod)| pod.life == Life::Deleted);
        for ((direction, link), _) in gone {
            let element = Element::key(link_key(link));
            batch.delete_elements(&self.table, &isolated_pods(*direction), &[element]);
        }
        for life in [Life::Kept, Life::Deleted] {
            for name in chains(change, life) {
                batch.flush_chain(&self.table, &name);
            }
        }
    }

    fn change_set(&self, batch: &mut Batch, name: &str, change: &SetChange) {
        let set = self.set(name, change.kind);
        match change.life {
            Life::New => drop(batch.add_set(&self.table, &set)),
            Life::Kept => {}
            Life::Deleted => return, // With its elements.
        }
        let elements = |members: &std::collections::BTreeSet<Member>| -> Vec<Element> {
            members.iter().filter_map(|member| self.element(member)).collect()
        };
        batch.delete_elements(&self.table, &set, &elements(&change.removed));
        batch.add_elements(&self.table, &set, &elements(&change.added));
    }

    fn set(&self, name: &str, kind: SetKind) -> Set {
        let address = Kind::address(self.ipv4);
        match kind {
            SetKind::Addresses => Set::new(name, &[address]),
            SetKind::NamedPorts => Set::new(name, &[address, Kind::Port]),
            SetKind::AddressRanges => Set::new(name, &[address]).with_intervals(),
            SetKind::PortRanges => Set::new(name, &[Kind::Port]).with_intervals(),
        }
    }

    /// `None` if the member belongs to the other IP family.
    fn element(&self, member: &Member) -> Option<Element> {
        let address = |address: IpAddr| Key::new().address(address);
        match *member {
            Member::Address(at) | Member::NamedPort(at, _) | Member::AddressRange(at, _)
                if at.is_ipv4() != self.ipv4 =>
            {
                None
            }
            Member::Address(at) => Some(Element::key(address(at))),
            Member::NamedPort(at, port) => Some(Element::key(address(at).port(port))),
            Member::AddressRange(from, to) => {
                Some(Element::range(address(from), next(to).map(address)))
            }
            Member::PortRange(from, to) => {
                let port = |port| Key::new().port(port);
                Some(Element::range(port(from), to.checked_add(1).map(port)))
            }
        }
    }

    fn add_rules(&self, batch: &mut Batch, change: &Change) {
        let (table, deleted) = (&self.table, Life::Deleted);
        for (name, chain) in change.chains.iter().filter(|(_, chain)| chain.life != deleted) {
            for rule in &chain.rules {
                let rule = self.rule(chain.direction, rule).comment(&chain.comment);
                batch.add_rule(table, name, &rule);
            }
        }
        for ((direction, link), pod) in change.pods.iter().filter(|(_, pod)| pod.life != deleted) {
            let name = pod_chain(*direction, link);
            let itself = match direction {
                Direction::Ingress => Rule::new().from_interface(link),
                Direction::Egress => Rule::new().to_interface(link),
            };
            batch.add_rule(table, &name, &itself.comment("a pod reaches itself").accept());
            for policy in &pod.policies {
                batch.add_rule(table, &name, &Rule::new().jump(policy));
            }
            batch.add_rule(table, &name, &Rule::new().drop());
        }
    }

    fn rule(&self, direction: Direction, rule: &PolicyRule) -> Rule {
        let mut made = Rule::new();
        if let Peers::In(set) = &rule.peers {
            let end = match direction {
                Direction::Ingress => nft::Direction::Source,
                Direction::Egress => nft::Direction::Destination,
            };
            let set = self.set(set, SetKind::Addresses);
            made = made.in_set(&[Field::address(self.ipv4, end)], &set);
        }
        made = match &rule.ports {
            Ports::Any => made,
            Ports::All(protocol) => made.protocol(protocol.number()),
            Ports::Range(protocol, from, to) if from == to => made
                .protocol(protocol.number())
                .with(destination_port())
                .with(compare(Compare::Equal, &from.to_be_bytes())),
            Ports::Range(protocol, from, to) => made
                .protocol(protocol.number())
                .with(destination_port())
                .with(compare(Compare::GreaterOrEqual, &from.to_be_bytes()))
                .with(compare(Compare::LessOrEqual, &to.to_be_bytes())),
            Ports::In(protocol, set) => made
                .protocol(protocol.number())
                .in_set(&[Field::DestinationPort], &self.set(set, SetKind::PortRanges)),
            Ports::Named(protocol, set) => {
                let address = Field::address(self.ipv4, nft::Direction::Destination);
                made.protocol(protocol.number())
                    .in_set(&[address, Field::DestinationPort], &self.set(set, SetKind::NamedPorts))
            }
        };
        match &rule.target {
            Target::Accept => made.accept(),
            Target::Jump(chain) => made.jump(chain),
        }
    }
}

/// The links of isolated pods, each with the chain of its pod.
fn isolated_pods(direction: Direction) -> Set {
    Set::verdict_map(format!("{}-pods", direction.name()), &[Kind::Interface])
}

fn pod_chain(direction: Direction, link: &str) -> String {
    format!("{}-{link}", direction.name())
}

/// The names of all chains of policies and pods with this life.
fn chains(change: &Change, life: Life) -> impl Iterator<Item = String> {
    let policies = change.chains.iter().filter(move |(_, chain)| chain.life == life);
    let pods = change.pods.iter().filter(move |(_, pod)| pod.life == life);
    let pods = pods.map(|((direction, link), _)| pod_chain(*direction, link));
    pods.chain(policies.map(|(name, _)| name.clone()))
}

fn link_key(link: &str) -> Key {
    let mut name = link.as_bytes().to_vec();
    name.resize(libc::IFNAMSIZ, 0);
    Key::new().bytes(&name)
}

fn compare(how: Compare, value: &[u8]) -> Expression {
    Expression::Compare { how, register: FIRST, value: value.to_vec() }
}

fn destination_port() -> Expression {
    Expression::Payload { header: Header::Transport, offset: 2, length: 2, to: FIRST }
}

/// Matches neighbour and router solicitations, advertisements and redirects of ICMPv6 (NET-135).
fn neighbour_discovery() -> Rule {
    const ROUTER_SOLICITATION: u8 = 133;
    const REDIRECT: u8 = 137;
    let kind = Expression::Payload { header: Header::Transport, offset: 0, length: 1, to: FIRST };
    Rule::new()
        .protocol(libc::IPPROTO_ICMPV6 as u8)
        .with(kind)
        .with(compare(Compare::GreaterOrEqual, &[ROUTER_SOLICITATION]))
        .with(compare(Compare::LessOrEqual, &[REDIRECT]))
}

/// The address after this one, if there is one.
fn next(address: IpAddr) -> Option<IpAddr> {
    match address {
        IpAddr::V4(v4) => u32::from(v4).checked_add(1).map(|next| Ipv4Addr::from(next).into()),
        IpAddr::V6(v6) => u128::from(v6).checked_add(1).map(|next| Ipv6Addr::from(next).into()),
    }
}
