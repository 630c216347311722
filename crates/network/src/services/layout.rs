//! The nf_tables table of Services: its sets and maps, and the rules that read them.
//!
//! Everything that differs between Services is an element of a set or a map. A change of an endpoint therefore sends
//! a few elements and never a rule: the kernel validates all chains of a table when a rule is added, which takes
//! longer the more Services there are. The only rules that are added later are those of `pick-N`, one chain for each
//! number of endpoints that any Service has (and for each timeout of session affinity). `Services::sweep` deletes
//! those that no Service uses when there are many.
//!
//!     packet's (address, protocol, port) ──services──▶ pick code ──picks──▶ chain pick-N
//!     pick-N: (address, protocol, port, random number below N) ──endpoints──▶ (address, port)
//!
//! Packets pass the chains in this order: firewall, redirection, verdict for addresses without endpoints, undeclared
//! ports, unallocated addresses, masquerading (NET-73). All checks concern the first packet of a connection only.

use crate::nft::{
    Batch, Chain, ChainKind, Direction, Element, Expression, Family, Field, Hook, Key, Kind,
    MetaKey, NatKind, Priority, Register, Reject, Rule, Set, Table, Verdict,
};
use crate::{Cidr, ServicesConfig};
use std::net::IpAddr;

/// The mark of packets whose source is rewritten: bit 14, as upstream (NET-48).
const MASQUERADE_MARK: u32 = 0x4000;
/// Checks of source ranges come before the redirection.
const BEFORE_DESTINATION_NAT: Priority = Priority(-110);
/// How many clients with session affinity are remembered. Further ones get a random endpoint each time.
const AFFINITY_CLIENTS_MAX: u32 = 1 << 18;
/// The longest time that a client is remembered; elements have their own, shorter ones.
const AFFINITY_MAX_MS: u64 = 86_400_000;

/// Which endpoints a packet may get.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Scope {
    /// What the Service has for this address.
    Any,
    /// Only those of this node: for clients outside the cluster, with `externalTrafficPolicy: Local`.
    Outside,
}

impl Scope {
    pub(super) const ALL: [Scope; 2] = [Scope::Any, Scope::Outside];

    fn prefix(self) -> &'static str {
        match self {
            Scope::Any => "",
            Scope::Outside => "outside-",
        }
    }
}

/// How an endpoint is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Pick {
    pub(super) count: u32,
    /// Seconds for which a client is remembered.
    pub(super) affinity: Option<u32>,
}

impl Pick {
    /// Counts occupy the lower bits of a code.
    const COUNT_BITS: u32 = 15;
    /// Endpoints beyond this number are not used.
    pub(super) const COUNT_MAX: usize = (1 << Pick::COUNT_BITS) - 1;

    /// The number that stands for this choice in the map `services`. The same in every process, so that a restarted
    /// one understands the elements in the kernel.
    pub(super) fn code(self) -> u32 {
        self.affinity.unwrap_or(0) << Pick::COUNT_BITS | self.count
    }

    pub(super) fn from_code(code: u32) -> Pick {
        let affinity = code >> Pick::COUNT_BITS;
        Pick { count: code & Pick::COUNT_MAX as u32, affinity: (affinity > 0).then_some(affinity) }
    }

    fn chain(self, scope: Scope) -> String {
        match self.affinity {
            None => format!("{}pick-{}", scope.prefix(), self.count),
            Some(seconds) => format!("{}pick-{}-sticky-{seconds}", scope.prefix(), self.count),
        }
    }
}

/// The maps of one scope.
pub(super) struct ScopeMaps {
    /// Service address to pick code.
    pub(super) services: Set,
    /// Pick code to chain.
    pub(super) picks: Set,
    /// Service address and number to endpoint.
    pub(super) endpoints: Set,
    /// With session affinity: Service address and number to the identifier of the endpoint (`affinity.rs`).
    pub(super) sticky_numbers: Set,
    /// Service address and the identifier of each of its endpoints.
    pub(super) sticky_ids: Set,
    /// Service address and identifier to endpoint.
    pub(super) sticky_endpoints: Set,
}

/// The table of one IP family.
pub(super) struct Layout {
    pub(super) table: Table,
    pub(super) ipv4: bool,
    any: ScopeMaps,
    outside: ScopeMaps,
    /// Client and Service address, to the identifier of the endpoint that the client has.
    pub(super) affinity: Set,
    /// Every ClusterIP, whatever the port.
    pub(super) cluster_ips: Set,
    /// Addresses of all pods of the cluster.
    pub(super) pod_ranges: Set,
    /// Service addresses whose clients always see their source rewritten.
    pub(super) masquerade: Set,
    /// Service addresses with `externalTrafficPolicy: Local`.
    pub(super) external_local: Set,
    pub(super) rejected: Set,
    pub(super) dropped: Set,
    /// Pairs of equal addresses, one per endpoint of this node: it may reach itself through a Service.
    pub(super) hairpin: Set,
    /// Service address to the chain with its `loadBalancerSourceRanges`.
    pub(super) firewall: Set,
    /// Ranges of Service addresses.
    pub(super) service_ranges: Set,
    gateway: Option<(Cidr, IpAddr)>,
}

impl Layout {
    pub(super) fn new(config: &ServicesConfig, ipv4: bool) -> Layout {
        // Numbers have the type of marks: the `nft` program cannot list keys with parts of the type integer.
        let address = Kind::address(ipv4);
        let service = [address, Kind::Protocol, Kind::Port];
        let endpoint = [address, Kind::Port];
        let client = [address, address, Kind::Protocol, Kind::Port];
        let maps = |scope: Scope| {
            let name = |name: &str| format!("{}{name}", scope.prefix());
            let numbered = [address, Kind::Protocol, Kind::Port, Kind::Mark];
            ScopeMaps {
                services: Set::map(name("services"), &service, &[Kind::Mark]),
                picks: Set::verdict_map(name("picks"), &[Kind::Mark]),
                endpoints: Set::map(name("endpoints"), &numbered, &endpoint),
                sticky_numbers: Set::map(name("sticky-numbers"), &numbered, &[Kind::Mark]),
                sticky_ids: Set::new(name("sticky-ids"), &numbered),
                sticky_endpoints: Set::map(name("sticky-endpoints"), &numbered, &endpoint),
            }
        };
        let gateway = config.gateways.iter().copied().find(|(range, _)| range.is_ipv4() == ipv4);
        Layout {
            table: Table::new(if ipv4 { Family::Ipv4 } else { Family::Ipv6 }, &config.table),
            ipv4,
            any: maps(Scope::Any),
            outside: maps(Scope::Outside),
            affinity: Set::map("affinity", &client, &[Kind::Mark])
                .with_timeout(AFFINITY_MAX_MS)
                .with_size(AFFINITY_CLIENTS_MAX),
            cluster_ips: Set::new("cluster-ips", &[address]),
            pod_ranges: Set::new("pod-ranges", &[address]).with_intervals(),
            masquerade: Set::new("masquerade", &service),
            external_local: Set::new("external-local", &service),
            rejected: Set::new("rejected", &service),
            dropped: Set::new("dropped", &service),
            hairpin: Set::new("hairpin", &[address, address]),
            firewall: Set::verdict_map("firewall", &service),
            service_ranges: Set::new("service-ranges", &[address]).with_intervals(),
            gateway,
        }
    }

    pub(super) fn maps(&self, scope: Scope) -> &ScopeMaps {
        match scope {
            Scope::Any => &self.any,
            Scope::Outside => &self.outside,
        }
    }

    fn sets(&self) -> Vec<&Set> {
        let mut all = Vec::new();
        for maps in [&self.any, &self.outside] {
            all.extend([&maps.services, &maps.picks, &maps.endpoints]);
            all.extend([&maps.sticky_numbers, &maps.sticky_ids, &maps.sticky_endpoints]);
        }
        all.extend([&self.affinity, &self.cluster_ips, &self.pod_ranges, &self.masquerade]);
        all.extend([&self.external_local, &self.rejected, &self.dropped, &self.hairpin]);
        all.extend([&self.firewall, &self.service_ranges]);
        all
    }

    /// Adds what is missing of the table and replaces the rules of its chains. Elements stay.
    pub(super) fn write(&self, batch: &mut Batch) {
        let table = &self.table;
        batch.add_table(table);
        for set in self.sets() {
            batch.add_set(table, set);
        }
        let rules = self.rules();
        for (chain, _) in &rules {
            batch.add_chain(table, chain).flush_chain(table, &chain.name);
        }
        for (chain, rules) in &rules {
            for rule in rules {
                batch.add_rule(table, &chain.name, rule);
            }
        }
    }

    /// Removes the elements of all sets, except remembered clients.
    pub(super) fn empty(&self, batch: &mut Batch) {
        for set in self.sets().into_iter().filter(|set| set.name != self.affinity.name) {
            batch.flush_set(&self.table, &set.name);
        }
    }

    /// The chains in an order in which rules only name earlier ones, with their rules.
    fn rules(&self) -> Vec<(Chain, Vec<Rule>)> {
        let new = || Rule::new().state(Expression::STATE_NEW);
        let (services, checks) = ("services", "unserved");
        let base = |name: &str, kind, hook, priority, rules: Vec<Rule>| {
            (Chain::at(name, kind, hook, priority), rules)
        };
        let (nat, filter) = (ChainKind::Nat, ChainKind::Filter);
        let firewall = || vec![new().verdict_map(&self.service(), &self.firewall)];
        let redirect = || vec![Rule::new().jump(services)];
        let check = || vec![new().jump(checks)];
        vec![
            (Chain::new("outside"), self.pick_rules(Scope::Outside).into()),
            (Chain::new(services), self.service_rules()),
            (Chain::new(checks), self.unserved_rules()),
            base(
                "firewall-prerouting",
                filter,
                Hook::Prerouting,
                BEFORE_DESTINATION_NAT,
                firewall(),
            ),
            base("firewall-output", filter, Hook::Output, BEFORE_DESTINATION_NAT, firewall()),
            base("nat-prerouting", nat, Hook::Prerouting, Priority::DESTINATION_NAT, redirect()),
            base("nat-output", nat, Hook::Output, Priority::DESTINATION_NAT, redirect()),
            base("filter-input", filter, Hook::Input, Priority::FILTER, check()),
            base("filter-forward", filter, Hook::Forward, Priority::FILTER, self.forward_rules()),
            base("filter-output", filter, Hook::Output, Priority::FILTER, check()),
            base("masquerading", nat, Hook::Postrouting, Priority::SOURCE_NAT, self.source_rules()),
        ]
    }

    /// The fields of a packet that identify a Service port.
    fn service(&self) -> [Field; 3] {
        let destination = Field::address(self.ipv4, Direction::Destination);
        [destination, Field::Protocol, Field::DestinationPort]
    }

    fn source(&self) -> [Field; 1] {
        [Field::address(self.ipv4, Direction::Source)]
    }

    /// Which sources are rewritten, and which endpoints a packet may get (NET-31).
    fn service_rules(&self) -> Vec<Rule> {
        let external_local = || Rule::new().in_set(&self.service(), &self.external_local);
        let destination = [Field::address(self.ipv4, Direction::Destination)];
        vec![
            external_local().source_is_local().set_mark(MASQUERADE_MARK),
            external_local()
                .not_in_set(&self.source(), &self.pod_ranges)
                .source_is_not_local()
                .goto("outside"),
            Rule::new().in_set(&self.service(), &self.masquerade).set_mark(MASQUERADE_MARK),
            Rule::new()
                .in_set(&destination, &self.cluster_ips)
                .not_in_set(&self.source(), &self.pod_ranges)
                .set_mark(MASQUERADE_MARK),
        ]
        .into_iter()
        .chain(self.pick_rules(Scope::Any))
        .collect()
    }

    /// Looks up the code of the Service port, and then the chain of the code. The code goes through the packet's
    /// queueing priority, which the chain resets: the `nft` program cannot list a rule in which a lookup follows a
    /// lookup. A packet that has the priority for another reason finds no endpoint in the chain, and stays as it is.
    fn pick_rules(&self, scope: Scope) -> [Rule; 2] {
        let maps = self.maps(scope);
        let first = Register::FIRST;
        let code = Rule::new()
            .load(&self.service())
            .with(Expression::Map { map: maps.services.name.clone(), key: first, to: first })
            .with(Expression::SetPriority { from: first });
        let chain = Rule::new()
            .with(Expression::Meta { key: MetaKey::Priority, to: first })
            .with(Expression::VerdictMap { map: maps.picks.name.clone(), key: first });
        [code, chain]
    }

    /// The key of a map that has several elements per Service port.
    fn service_and(&self, field: Field) -> Vec<Field> {
        self.service().into_iter().chain([field]).collect()
    }

    /// Redirects to the endpoint that `map` has for the key that `rule` has loaded, and resets the queueing priority
    /// (after the lookup, although the `nft` program lists the reset first).
    fn redirect_by(&self, rule: Rule, map: &Set) -> Rule {
        let first = Register::FIRST;
        let port = first.plus(self.source()[0].registers());
        let free = port.plus(1);
        rule.with(Expression::Map { map: map.name.clone(), key: first, to: first })
            .with(Expression::Immediate { to: free, value: vec![0; 4] })
            .with(Expression::SetPriority { from: free })
            .with(Expression::Nat {
                kind: NatKind::Destination,
                ipv4: self.ipv4,
                address: first,
                port: Some(port),
            })
    }

    /// Checks of new connections, and packets of pods that belong to no known connection, for example because they are
    /// outside of its window. Addresses of such packets are not translated back, so a client of a Service would get
    /// them from an address to which it has no connection, and would reset the connection (NET-62).
    fn forward_rules(&self) -> Vec<Rule> {
        let invalid = Rule::new()
            .comment("clients of Services would reset their connection")
            .state(Expression::STATE_INVALID)
            .in_set(&self.source(), &self.pod_ranges)
            .drop();
        vec![invalid, Rule::new().state(Expression::STATE_NEW).jump("unserved")]
    }

    /// What happens to packets for Service addresses that were not redirected (NET-34).
    fn unserved_rules(&self) -> Vec<Rule> {
        let destination = [Field::address(self.ipv4, Direction::Destination)];
        let reject = |rule: Rule| rule.reject(Reject::PortUnreachable);
        vec![
            reject(Rule::new().in_set(&self.service(), &self.rejected)),
            Rule::new().in_set(&self.service(), &self.dropped).drop(),
            reject(Rule::new().in_set(&destination, &self.cluster_ips)),
            Rule::new()
                .comment("not the address of any Service")
                .in_set(&destination, &self.service_ranges)
                .drop(),
        ]
    }

    /// Rewrites the source of marked packets, and of those that go back to the pod that sent them.
    fn source_rules(&self) -> Vec<Rule> {
        let pair = [
            Field::address(self.ipv4, Direction::Source),
            Field::address(self.ipv4, Direction::Destination),
        ];
        let marked = || Rule::new().marked(MASQUERADE_MARK).clear_mark(MASQUERADE_MARK);
        let hairpin = || Rule::new().was_redirected().in_set(&pair, &self.hairpin);
        let mut rules = Vec::new();
        // A pod's device has no address, so the kernel would choose any of the node's.
        if let Some((range, gateway)) = self.gateway {
            rules.push(
                Rule::new().marked(MASQUERADE_MARK).destination_in(&range).set_source(gateway),
            );
            rules.push(hairpin().set_source(gateway));
        }
        rules.extend([marked().masquerade(), hairpin().masquerade()]);
        rules
    }

    /// Adds the chain that chooses one of `pick.count` endpoints, and its verdict.
    pub(super) fn add_pick(&self, batch: &mut Batch, scope: Scope, pick: Pick) {
        let (table, chain) = (&self.table, pick.chain(scope));
        batch.add_chain(table, &Chain::new(&chain)).flush_chain(table, &chain);
        if let Some(seconds) = pick.affinity {
            for rule in self.sticky_rules(scope, pick.count, seconds) {
                batch.add_rule(table, &chain, &rule);
            }
        }
        let find = Rule::new().load(&self.service_and(Field::Random { modulus: pick.count }));
        batch.add_rule(table, &chain, &self.redirect_by(find, &self.maps(scope).endpoints));
        let key = Key::new().number(pick.code());
        let verdict = Element::verdict(key, Verdict::Goto(chain));
        batch.add_elements(table, &self.maps(scope).picks, &[verdict]);
    }

    /// Removes what [`Layout::add_pick`] added. No Service may have the code.
    pub(super) fn delete_pick(&self, batch: &mut Batch, scope: Scope, pick: Pick) {
        let verdict = Element::key(Key::new().number(pick.code()));
        batch.delete_elements(&self.table, &self.maps(scope).picks, &[verdict]);
        self.delete_chain(batch, &pick.chain(scope));
    }

    /// Removes a chain to which nothing leads any more.
    pub(super) fn delete_chain(&self, batch: &mut Batch, chain: &str) {
        batch.flush_chain(&self.table, chain).delete_chain(&self.table, chain);
    }

    /// Session affinity (NET-38). A value that a rule looked up goes to the next lookup through the packet's queueing
    /// priority, as in [`Layout::pick_rules`]. If the chosen endpoint leaves at this moment, or if no more clients can
    /// be remembered, a later rule chooses again.
    fn sticky_rules(&self, scope: Scope, count: u32, seconds: u32) -> [Rule; 5] {
        let (maps, first) = (self.maps(scope), Register::FIRST);
        let lookup = |map: &Set| Expression::Map { map: map.name.clone(), key: first, to: first };
        let to_priority = Expression::SetPriority { from: first };
        let client: Vec<Field> = self.source().into_iter().chain(self.service()).collect();
        let chosen = first.plus(client.iter().map(|field| field.registers()).sum());
        // The client in the first registers, and its endpoint after it.
        let with_client = |rule: Rule| rule.load(&client).with(Field::Priority.load(chosen));
        let (set, key, data) = (self.affinity.name.clone(), first, Some(chosen));
        let forget = Expression::Delete { set: set.clone(), key, data };
        let timeout_ms = u64::from(seconds) * 1000;
        let remember = Expression::Update { set, key, data, timeout_ms };
        let by_id = || Rule::new().load(&self.service_and(Field::Priority));

        let reset = Rule::new()
            .with(Expression::Immediate { to: first, value: vec![0; 4] })
            .with(to_priority.clone());
        let recall =
            Rule::new().load(&client).with(lookup(&self.affinity)).with(to_priority.clone());
        // The endpoint is still one of the Service's: the client is remembered for another while.
        let known = by_id().with(Expression::in_set(&maps.sticky_ids));
        let known =
            with_client(known).with(remember.clone()).load(&self.service_and(Field::Priority));
        let known = self.redirect_by(known, &maps.sticky_endpoints);
        let choose = Rule::new()
            .load(&self.service_and(Field::Random { modulus: count }))
            .with(lookup(&maps.sticky_numbers))
            .with(to_priority);
        let choose = with_client(choose).with(forget).with(remember);
        let chosen = self.redirect_by(by_id(), &maps.sticky_endpoints);
        [reset, recall, known, choose, chosen]
    }

    /// Adds a chain that drops packets from other sources than `ranges`.
    pub(super) fn add_firewall(&self, batch: &mut Batch, chain: &str, ranges: &[Cidr]) {
        batch.add_chain(&self.table, &Chain::new(chain)).flush_chain(&self.table, chain);
        for range in ranges.iter().filter(|range| range.is_ipv4() == self.ipv4) {
            let rule = Rule::new().source_in(range).return_from_chain();
            batch.add_rule(&self.table, chain, &rule);
        }
        batch.add_rule(&self.table, chain, &Rule::new().drop());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_stands_for_one_choice() {
        for count in [0, 1, 2, 100, Pick::COUNT_MAX as u32] {
            for affinity in [None, Some(1), Some(10_800), Some(86_400)] {
                let pick = Pick { count, affinity };
                assert_eq!(Pick::from_code(pick.code()), pick);
            }
        }
    }
}
