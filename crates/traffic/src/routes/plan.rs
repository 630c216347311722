//! Decides by which way each node is reached. Pure.
//!
//! | the kernel's route to the other node | way |
//! |---|---|
//! | none needed: an address of this machine | no route: another instance on this machine has its own |
//! | without a gateway: a neighbour | directly, via the node's address of the same family as the pod range |
//! | through a gateway, or none | through the overlay |
//!
//! Two nodes may decide differently, for example if their subnets have different sizes. Packets then take one
//! way forth and another way back. Both nodes accept both: every node has the overlay device and entries for
//! all other nodes, whichever way it sends.

use super::peer::Peer;
use super::ranges::Ranges;
use network::{Cidr, NextHop, Overlay, Reach, Routes, Tunnel, overlay_address};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// What is known about this node.
#[derive(Debug, Clone)]
pub(super) struct ThisNode {
    pub(super) ranges: Vec<Cidr>,
    pub(super) addresses: Vec<IpAddr>,
    pub(super) vni: u32,
    pub(super) port: u16,
    /// Whether neighbours are reached directly.
    pub(super) direct: bool,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) routes: Routes,
    /// Pod ranges of all other nodes.
    pub(super) cluster_ranges: Vec<Cidr>,
    /// Names of nodes whose pods are reached through the overlay.
    pub(super) overlay_nodes: Vec<String>,
    /// Pods that are not reachable, and why.
    pub(super) problems: Vec<String>,
}

/// All addresses whose [`Reach`] the plan depends on.
pub(super) fn addresses_of(peers: &BTreeMap<String, Peer>) -> Vec<IpAddr> {
    let all: BTreeSet<IpAddr> = peers.values().flat_map(|peer| peer.addresses.clone()).collect();
    all.into_iter().collect()
}

/// `peers` are the other nodes.
pub(super) fn plan(
    this: &ThisNode,
    peers: &BTreeMap<String, Peer>,
    reach: &BTreeMap<IpAddr, Reach>,
) -> Plan {
    let mut ranges = Ranges::new(&this.ranges, &this.addresses, peers);
    let overlay = overlay_address(&this.addresses);
    let mut plan = Plan::default();
    let mut in_order: Vec<&Peer> = peers.values().collect();
    // Of two nodes with the same range the older one keeps it.
    in_order.sort_by_key(|peer| (peer.created, &peer.name));
    for peer in in_order {
        let accepted = ranges.accept(peer, &mut plan.problems);
        plan.cluster_ranges.extend(&accepted);
        plan.add(this, peer, accepted, overlay, reach);
    }
    plan.routes.overlay = overlay
        .filter(|_| !plan.routes.tunnels.is_empty())
        .map(|address| Overlay { vni: this.vni, port: this.port, address });
    plan.cluster_ranges.sort();
    plan
}

impl Plan {
    fn add(
        &mut self,
        this: &ThisNode,
        peer: &Peer,
        ranges: Vec<Cidr>,
        overlay: Option<IpAddr>,
        reach: &BTreeMap<IpAddr, Reach>,
    ) {
        let is_here = |address| reach.get(address) == Some(&Reach::ThisNode);
        if peer.addresses.iter().any(is_here) || ranges.is_empty() {
            return;
        }
        let mut tunnelled = Vec::new();
        for range in ranges {
            match neighbour(peer, &range, reach).filter(|_| this.direct) {
                Some(next) => drop(self.routes.direct.insert(range, next)),
                None => tunnelled.push(range),
            }
        }
        let same_family = |overlay: IpAddr| {
            let mut addresses = peer.addresses.iter();
            addresses.find(|address| address.is_ipv4() == overlay.is_ipv4()).copied()
        };
        match overlay.and_then(same_family) {
            Some(address) => {
                if !tunnelled.is_empty() {
                    self.overlay_nodes.push(peer.name.clone());
                }
                let first_range = peer.ranges[0];
                self.routes.tunnels.push(Tunnel { address, first_range, ranges: tunnelled });
            }
            None => {
                let texts: Vec<String> = tunnelled.iter().map(Cidr::to_string).collect();
                if !texts.is_empty() {
                    self.problems.push(unreachable(peer, &texts.join(", "), overlay));
                }
            }
        }
    }
}

fn unreachable(peer: &Peer, ranges: &str, overlay: Option<IpAddr>) -> String {
    let name = &peer.name;
    let missing = match overlay {
        _ if peer.addresses.is_empty() => "it has no InternalIP",
        None => "this node has no address",
        Some(address) if address.is_ipv4() => "it has no IPv4 InternalIP",
        Some(_) => "it has no IPv6 InternalIP",
    };
    format!("pods of node {name} ({ranges}) are unreachable: {missing}")
}

/// The node's address on a subnet of this node, of the family of `range`.
fn neighbour(peer: &Peer, range: &Cidr, reach: &BTreeMap<IpAddr, Reach>) -> Option<NextHop> {
    let mut candidates =
        peer.addresses.iter().filter(|address| address.is_ipv4() == range.is_ipv4());
    candidates.find_map(|address| match reach.get(address) {
        Some(Reach::Neighbour { device }) => Some(NextHop { address: *address, device: *device }),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// `name address,… range,…`
    fn peers(texts: &[&str]) -> BTreeMap<String, Peer> {
        let peer = |text: &&str| {
            let words: Vec<&str> = text.split(' ').collect();
            let list = |i: usize| words[i].split(',').filter(|part| *part != "-");
            let peer = Peer {
                name: words[0].to_owned(),
                created: None,
                addresses: list(1).map(ip).collect(),
                ranges: list(2).map(|range| range.parse().unwrap()).collect(),
            };
            (peer.name.clone(), peer)
        };
        texts.iter().map(peer).collect()
    }

    /// 192.0.2.0/24 and 2001:db8:1::/64 are subnets of this node. It has the addresses that end with 1.
    fn reach(peers: &BTreeMap<String, Peer>) -> BTreeMap<IpAddr, Reach> {
        let near: [Cidr; 2] = ["192.0.2.0/24".parse().unwrap(), "2001:db8:1::/64".parse().unwrap()];
        let this = [ip("192.0.2.1"), ip("2001:db8:1::1")];
        let reach = |address: &IpAddr| match near.iter().any(|range| range.contains(*address)) {
            _ if this.contains(address) => Reach::ThisNode,
            true => Reach::Neighbour { device: 2 },
            false => Reach::Routed,
        };
        addresses_of(peers).iter().map(|address| (*address, reach(address))).collect()
    }

    fn this(addresses: &[&str]) -> ThisNode {
        ThisNode {
            ranges: vec!["10.77.1.0/24".parse().unwrap(), "fd77:1::/64".parse().unwrap()],
            addresses: addresses.iter().map(|text| ip(text)).collect(),
            vni: 1,
            port: 8472,
            direct: true,
        }
    }

    /// One line per range, tunnel and problem.
    fn describe(plan: &Plan) -> Vec<String> {
        let direct = plan.routes.direct.iter();
        let direct = direct.map(|(range, next)| format!("{range} via {}", next.address));
        let tunnels = plan.routes.tunnels.iter().map(|tunnel| {
            let ranges: Vec<String> = tunnel.ranges.iter().map(Cidr::to_string).collect();
            format!("tunnel {} {}", tunnel.address, ranges.join(",")).trim_end().to_owned()
        });
        direct.chain(tunnels).chain(plan.problems.iter().cloned()).collect()
    }

    fn check(name: &str, this: &ThisNode, texts: &[&str], expected: &[&str]) {
        let peers = peers(texts);
        let plan = plan(this, &peers, &reach(&peers));
        assert_eq!(describe(&plan), expected, "{name}");
        let overlay = plan.routes.overlay.map(|overlay| overlay.address);
        let expected = overlay_address(&this.addresses);
        assert_eq!(overlay, expected.filter(|_| !plan.routes.tunnels.is_empty()), "{name}");
    }

    #[test]
    fn neighbours_are_reached_directly_and_others_through_the_overlay() {
        let v4 = this(&["192.0.2.1"]);
        check("no other node", &v4, &[], &[]);
        check(
            "neighbour",
            &v4,
            &["b 192.0.2.2 10.77.2.0/24"],
            &["10.77.2.0/24 via 192.0.2.2", "tunnel 192.0.2.2"],
        );
        check(
            "behind a router",
            &v4,
            &["c 198.51.100.3 10.77.3.0/24"],
            &["tunnel 198.51.100.3 10.77.3.0/24"],
        );
        check("on this machine", &v4, &["b 192.0.2.1 10.77.2.0/24"], &[]);
        check(
            "no address yet",
            &v4,
            &["b - 10.77.2.0/24"],
            &["pods of node b (10.77.2.0/24) are unreachable: it has no InternalIP"],
        );
        check(
            "direct routes are switched off",
            &ThisNode { direct: false, ..v4.clone() },
            &["b 192.0.2.2 10.77.2.0/24"],
            &["tunnel 192.0.2.2 10.77.2.0/24"],
        );
        check(
            "this node has no address",
            &this(&[]),
            &["c 198.51.100.3 10.77.3.0/24"],
            &["pods of node c (10.77.3.0/24) are unreachable: this node has no address"],
        );
    }

    #[test]
    fn each_range_is_routed_by_an_address_of_its_family_or_through_the_overlay() {
        let both = this(&["192.0.2.1", "2001:db8:1::1"]);
        check(
            "dual stack",
            &both,
            &["b 192.0.2.2,2001:db8:1::2 10.77.2.0/24,fd77:2::/64"],
            &["10.77.2.0/24 via 192.0.2.2", "fd77:2::/64 via 2001:db8:1::2", "tunnel 192.0.2.2"],
        );
        check(
            "IPv6 pods on an IPv4 network",
            &both,
            &["b 192.0.2.2 10.77.2.0/24,fd77:2::/64"],
            &["10.77.2.0/24 via 192.0.2.2", "tunnel 192.0.2.2 fd77:2::/64"],
        );
        check(
            "IPv4 pods on an IPv6 network",
            &this(&["2001:db8:1::1"]),
            &["c 2001:db8:2::3 10.77.3.0/24"],
            &["tunnel 2001:db8:2::3 10.77.3.0/24"],
        );
        check(
            "no common family",
            &both,
            &["c 2001:db8:2::3 fd77:3::/64"],
            &["pods of node c (fd77:3::/64) are unreachable: it has no IPv4 InternalIP"],
        );
    }

    #[test]
    fn ranges_that_would_take_packets_of_others_are_rejected() {
        let v4 = this(&["192.0.2.1"]);
        check(
            "our own range",
            &v4,
            &["b 192.0.2.2 10.77.1.128/25"],
            &["pods of node b (10.77.1.128/25) are unreachable: \
               the range overlaps 10.77.1.0/24 of an earlier node"],
        );
        check(
            "the range of another node",
            &v4,
            &["b 192.0.2.2 10.77.2.0/24", "c 198.51.100.3 10.77.0.0/18"],
            &[
                "10.77.2.0/24 via 192.0.2.2",
                "tunnel 192.0.2.2",
                "pods of node c (10.77.0.0/18) are unreachable: \
                 the range overlaps 10.77.1.0/24 of an earlier node",
            ],
        );
        check(
            "everything",
            &v4,
            &["b 192.0.2.2 0.0.0.0/0"],
            &["pods of node b (0.0.0.0/0) are unreachable: \
               the range contains the address of a node, 192.0.2.1"],
        );
        check(
            "multicast",
            &v4,
            &["b 192.0.2.2 224.0.0.0/4"],
            &["pods of node b (224.0.0.0/4) are unreachable: the range is not for pods"],
        );
    }

    #[test]
    fn of_two_nodes_with_one_range_the_older_keeps_it() {
        let mut peers = peers(&["b 192.0.2.2 10.77.2.0/24", "c 192.0.2.3 10.77.2.0/24"]);
        let time = |text: &str| Some(text.parse().unwrap());
        peers.get_mut("b").unwrap().created = time("2026-02-01T00:00:00Z");
        peers.get_mut("c").unwrap().created = time("2026-01-01T00:00:00Z");
        let plan = plan(&this(&["192.0.2.1"]), &peers, &reach(&peers));
        assert_eq!(describe(&plan)[0], "10.77.2.0/24 via 192.0.2.3");
        assert_eq!(plan.problems.len(), 1);
        assert_eq!(plan.cluster_ranges, ["10.77.2.0/24".parse().unwrap()]);
    }

    fn any_peer() -> impl Strategy<Value = (Vec<IpAddr>, Vec<Cidr>)> {
        let address = prop_oneof![
            (0..6_u8).prop_map(|host| IpAddr::from([192, 0, 2, host])),
            (0..6_u8).prop_map(|host| IpAddr::from([198, 51, 100, host])),
            (0..6_u16).prop_map(|host| IpAddr::from([0x2001, 0xdb8, 1, 0, 0, 0, 0, host])),
        ];
        let range = prop_oneof![
            (0..6_u8, 14..26_u8)
                .prop_map(|(third, bits)| Cidr::new(IpAddr::from([10, 77, third, 0]), bits)),
            (0..6_u16).prop_map(|n| Cidr::new(IpAddr::from([0xfd77, n, 0, 0, 0, 0, 0, 0]), 64)),
            (0..4_u8).prop_map(|bits| Cidr::new(IpAddr::from([192, 0, 2, 0]), bits * 8)),
        ];
        let ranges = proptest::collection::vec(range.prop_map(Option::unwrap), 1..3);
        (proptest::collection::vec(address, 0..3), ranges)
    }

    proptest! {
        /// Whatever Nodes say, no route takes packets for this node's pods or for a node, and every range has
        /// one way at most.
        #[test]
        fn no_route_takes_packets_of_others(
            nodes in proptest::collection::vec(any_peer(), 0..6),
            direct in any::<bool>(),
        ) {
            let peers: BTreeMap<String, Peer> = nodes
                .into_iter()
                .enumerate()
                .map(|(i, (addresses, ranges))| {
                    let name = format!("node-{i}");
                    (name.clone(), Peer { name, created: None, ranges, addresses })
                })
                .collect();
            let this = ThisNode { direct, ..this(&["192.0.2.1"]) };
            let plan = plan(&this, &peers, &reach(&peers));
            let tunnelled = plan.routes.tunnels.iter().flat_map(|tunnel| &tunnel.ranges);
            let routed: Vec<&Cidr> = plan.routes.direct.keys().chain(tunnelled).collect();
            for (i, range) in routed.iter().enumerate() {
                prop_assert!(!this.ranges.iter().any(|own| own.overlaps(range)), "{}", range);
                prop_assert!(!routed[..i].iter().any(|other| other.overlaps(range)), "{}", range);
                for address in this.addresses.iter().chain(&addresses_of(&peers)) {
                    prop_assert!(!range.contains(*address), "{} has {}", range, address);
                }
                prop_assert!(plan.cluster_ranges.contains(range));
            }
            prop_assert!(plan.routes.tunnels.iter().all(|tunnel| tunnel.address.is_ipv4()));
            prop_assert!(direct || plan.routes.direct.is_empty());
        }
    }
}
