//! A model of the policy tables: applies changes as strictly as the kernel does, and evaluates packets.

use super::{Packet, links};
use network::policies::{
    Change, Direction, Life, Member, Peers, PolicyRule, Ports, SetKind, Target,
};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

#[derive(Debug, Default, PartialEq)]
pub(crate) struct Kernel {
    pub(crate) sets: BTreeMap<String, (SetKind, BTreeSet<Member>)>,
    pub(crate) chains: BTreeMap<String, (Direction, Vec<PolicyRule>)>,
    pub(crate) pods: BTreeMap<(Direction, String), Vec<String>>,
    /// Elements, chains and sets that changed.
    pub(crate) changes: usize,
}

impl Kernel {
    pub(crate) fn apply(&mut self, change: Change) {
        for (name, set) in &change.sets {
            assert_eq!(self.sets.contains_key(name), set.life != Life::New, "set {name}");
            let (_, members) = self.sets.entry(name.clone()).or_insert((set.kind, BTreeSet::new()));
            self.changes += set.added.len() + set.removed.len();
            set.removed.iter().for_each(|m| assert!(members.remove(m), "{name} has no {m:?}"));
            set.added.iter().for_each(|m| assert!(members.insert(*m), "{name} has {m:?}"));
        }
        for (name, chain) in &change.chains {
            assert_eq!(self.chains.contains_key(name), chain.life != Life::New, "chain {name}");
            self.changes += 1;
            self.chains.insert(name.clone(), (chain.direction, chain.rules.clone()));
        }
        for (link, pod) in &change.pods {
            assert_eq!(self.pods.contains_key(link), pod.life != Life::New, "pod {link:?}");
            self.changes += 1;
            self.pods.insert(link.clone(), pod.policies.clone());
        }
        self.pods.retain(|link, _| change.pods.get(link).is_none_or(|p| p.life != Life::Deleted));
        self.chains.retain(|name, _| {
            change.chains.get(name).is_none_or(|chain| chain.life != Life::Deleted)
        });
        self.sets
            .retain(|name, _| change.sets.get(name).is_none_or(|set| set.life != Life::Deleted));
        self.check_references();
    }

    /// The kernel refuses rules that refer to nothing, and sets that nothing refers to are garbage.
    fn check_references(&self) {
        let mut used = BTreeSet::new();
        let mut jumps: BTreeSet<&String> = self.pods.values().flatten().collect();
        for (_, rules) in self.chains.values() {
            for rule in rules {
                if let Peers::In(set) = &rule.peers {
                    used.insert(set);
                }
                if let Ports::In(_, set) | Ports::Named(_, set) = &rule.ports {
                    used.insert(set);
                }
                if let Target::Jump(chain) = &rule.target {
                    jumps.insert(chain);
                }
            }
        }
        assert_eq!(used, self.sets.keys().collect(), "sets");
        assert!(jumps.iter().all(|chain| self.chains.contains_key(*chain)), "chains");
    }

    pub(crate) fn allows(&self, packet: &Packet) -> bool {
        let (from, to) = (links().of(packet.source), links().of(packet.destination));
        (from.is_some() && from == to)
            || (self.direction(Direction::Egress, from, packet)
                && self.direction(Direction::Ingress, to, packet))
    }

    fn direction(&self, direction: Direction, link: Option<String>, packet: &Packet) -> bool {
        let chains = link.and_then(|link| self.pods.get(&(direction, link)));
        chains.is_none_or(|chains| chains.iter().any(|chain| self.accepts(chain, packet)))
    }

    fn accepts(&self, chain: &str, packet: &Packet) -> bool {
        let (direction, rules) = &self.chains[chain];
        let peer = match direction {
            Direction::Ingress => packet.source,
            Direction::Egress => packet.destination,
        };
        rules.iter().any(|rule| {
            let peers = match &rule.peers {
                Peers::Any => true,
                Peers::In(set) => self.has_address(set, peer),
            };
            let target = || match &rule.target {
                Target::Accept => true,
                Target::Jump(chain) => self.accepts(chain, packet),
            };
            peers && self.ports(&rule.ports, packet) && target()
        })
    }

    fn has_address(&self, set: &str, address: IpAddr) -> bool {
        let (_, members) = &self.sets[set];
        members.iter().any(|member| match *member {
            Member::Address(member) => member == address,
            Member::AddressRange(from, to) => {
                from.is_ipv4() == address.is_ipv4() && from <= address && address <= to
            }
            Member::NamedPort(..) | Member::PortRange(..) => false,
        })
    }

    fn ports(&self, ports: &Ports, packet: &Packet) -> bool {
        match ports {
            Ports::Any => true,
            Ports::All(protocol) => *protocol == packet.protocol,
            Ports::Range(protocol, first, last) => {
                *protocol == packet.protocol && (*first..=*last).contains(&packet.port)
            }
            Ports::In(protocol, set) => {
                let within = |member: &Member| match *member {
                    Member::PortRange(first, last) => (first..=last).contains(&packet.port),
                    _ => false,
                };
                *protocol == packet.protocol && self.sets[set].1.iter().any(within)
            }
            Ports::Named(protocol, set) => {
                let member = Member::NamedPort(packet.destination, packet.port);
                *protocol == packet.protocol && self.sets[set].1.contains(&member)
            }
        }
    }
}
