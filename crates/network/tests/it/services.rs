//! Services with real connections: pods, the node and a host outside connect to Service addresses.

mod affinity;
mod changes;
mod host_network;
mod invalid_packets;

use crate::isolated::{
    SHORT, address, call_tcp, call_tcp_within, call_udp, cidr, inside, ip, isolated, open, outside,
    run, serve_tcp, serve_udp,
};
use network::{
    Attachment, Frontend, Pods, Protocol, ServiceEntry, ServiceRules, Services, ServicesConfig,
    Unserved,
};
use std::collections::{BTreeSet, HashMap};
use std::io::ErrorKind::{ConnectionRefused, TimedOut};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const TABLE: &str = "landfall-services";
const CLUSTER_IP: &str = "10.96.0.9";
/// The node's address for a host outside.
const NODE_IP: &str = "192.0.2.1";

fn config() -> ServicesConfig {
    ServicesConfig {
        table: TABLE.into(),
        service_ranges: vec![cidr("10.96.0.0/16")],
        pod_ranges: vec![cidr("10.77.0.0/16")],
        gateways: vec![(cidr("10.77.3.0/24"), ip("10.77.3.1"))],
    }
}

/// A node with pods and a host outside the cluster.
struct Node {
    pods: Pods,
    services: Services,
    outside: PathBuf,
}

impl Node {
    async fn new(directory: &Path) -> Node {
        let pods = open(directory).await;
        let outside = outside(directory);
        // A node without a route to Service addresses cannot send to them.
        run("ip route add default via 192.0.2.2");
        Node { pods, services: Services::open(&config()).unwrap(), outside }
    }

    /// Attaches a pod that answers on port 8080 with its name.
    async fn pod(&self, name: &str) -> Attachment {
        let pod = self.pods.attach(name, &[]).await.unwrap();
        serve_tcp(Some(&pod.netns), 8080, name);
        pod
    }

    fn set(&mut self, name: &str, rules: ServiceRules) -> usize {
        self.services.apply(vec![(name.into(), Some(rules))]).unwrap()
    }
}

fn frontend(address: &str, port: u16) -> Frontend {
    Frontend { address: ip(address), protocol: Protocol::Tcp, port }
}

fn endpoint(pod: &Attachment) -> SocketAddr {
    SocketAddr::new(pod.addresses[0], 8080)
}

fn endpoints(pods: &[&Attachment]) -> Arc<[SocketAddr]> {
    pods.iter().map(|pod| endpoint(pod)).collect()
}

fn entry(pods: &[&Attachment]) -> ServiceEntry {
    ServiceEntry { endpoints: endpoints(pods), ..ServiceEntry::default() }
}

/// A Service with a ClusterIP.
fn service(pods: &[&Attachment], entry: ServiceEntry) -> ServiceRules {
    ServiceRules {
        entries: [(frontend(CLUSTER_IP, 80), entry)].into(),
        cluster_ips: [ip(CLUSTER_IP)].into(),
        local_endpoints: pods.iter().map(|pod| pod.addresses[0]).collect(),
    }
}

fn names(from: Option<&Path>, to: &str, calls: usize) -> BTreeSet<String> {
    let answer = |_| call_tcp(from, to).unwrap().split(' ').next().unwrap().to_string();
    (0..calls).map(answer).collect()
}

/// NET-3, NET-6, NET-7, NET-31: who sees which source, at the ClusterIP.
#[test]
fn a_cluster_ip_is_reached_by_pods_by_the_node_and_by_an_endpoint_itself() {
    isolated(|directory| async move {
        let mut node = Node::new(&directory).await;
        let (client, server) = (node.pod("client").await, node.pod("server").await);
        node.set("d/s", service(&[&server], entry(&[&server])));
        let to = "10.96.0.9:80";
        let seen = call_tcp(Some(&client.netns), to).unwrap();
        assert_eq!(seen, format!("server {}", address(&client)), "the client's address is kept");
        assert_eq!(call_tcp(None, to).unwrap(), "server 10.77.3.1", "the node's is rewritten");
        let itself = call_tcp(Some(&server.netns), to).unwrap();
        assert_eq!(itself, "server 10.77.3.1", "a pod that connects to itself sees the node");
    });
}

/// NET-34, T-NET-17: refused, dropped, undeclared and unallocated.
#[test]
fn addresses_without_endpoints_are_rejected_or_dropped() {
    isolated(|directory| async move {
        let mut node = Node::new(&directory).await;
        let (client, server) = (node.pod("client").await, node.pod("server").await);
        let from = Some(client.netns.as_path());
        let none = |unserved| ServiceEntry { unserved, ..ServiceEntry::default() };
        node.set("d/s", service(&[], none(Unserved::Reject)));
        for from in [from, None] {
            let refused = call_tcp(from, "10.96.0.9:80");
            assert_eq!(refused, Err(ConnectionRefused), "no endpoint anywhere");
            assert_eq!(call_tcp(from, "10.96.0.9:81"), Err(ConnectionRefused), "undeclared port");
            let unknown = call_tcp_within(from, "10.96.7.7:80", SHORT);
            assert_eq!(unknown, Err(TimedOut), "unallocated");
        }
        node.set("d/s", service(&[], none(Unserved::Drop)));
        assert_eq!(
            call_tcp_within(from, "10.96.0.9:80", SHORT),
            Err(TimedOut),
            "none on this node"
        );
        node.set("d/s", service(&[&server], entry(&[&server])));
        assert!(call_tcp(from, "10.96.0.9:80").is_ok());
        node.services.apply(vec![("d/s".into(), None)]).unwrap();
        assert_eq!(call_tcp_within(from, "10.96.0.9:80", SHORT), Err(TimedOut), "deleted");
        assert!(node.services.verify().unwrap());
    });
}

/// NET-34: packets to an address that no Service has do not leave the node, even if another host has the address.
#[test]
fn addresses_of_services_are_not_reached_outside_the_cluster() {
    isolated(|directory| async move {
        let node = Node::new(&directory).await;
        let client = node.pod("client").await;
        inside(&node.outside, || run("ip address add 10.96.0.1/32 dev lo"));
        serve_tcp(Some(&node.outside), 443, "other host");
        for from in [Some(client.netns.as_path()), None] {
            assert_eq!(call_tcp_within(from, "10.96.0.1:443", SHORT), Err(TimedOut));
            assert!(call_tcp(from, "192.0.2.2:443").is_ok(), "other addresses are reached");
        }
    });
}

/// NET-31, NET-35, T-NET-18: external addresses with both policies, for all kinds of clients.
#[test]
fn external_addresses_follow_the_external_traffic_policy() {
    isolated(|directory| async move {
        let mut node = Node::new(&directory).await;
        let (client, here) = (node.pod("client").await, node.pod("here").await);
        // Stands for an endpoint on another node.
        let there = node.pod("there").await;
        let clients = [Some(client.netns.clone()), None, Some(node.outside.clone())];
        let external = |entry: ServiceEntry| ServiceRules {
            entries: [(frontend(NODE_IP, 30080), entry)].into(),
            ..ServiceRules::default()
        };
        let both = entry(&[&here, &there]);
        node.set("d/s", external(ServiceEntry { masquerade: true, ..both.clone() }));
        for from in &clients {
            let seen = call_tcp(from.as_deref(), "192.0.2.1:30080").unwrap();
            assert!(seen.ends_with(" 10.77.3.1"), "{from:?} is rewritten: {seen}");
        }
        let local = ServiceEntry { outside: Some(endpoints(&[&here])), ..both.clone() };
        node.set("d/s", external(local));
        let seen = call_tcp(Some(&node.outside), "192.0.2.1:30080").unwrap();
        assert_eq!(seen, "here 192.0.2.2", "outside: only this node's endpoint, source kept");
        for (from, source) in [(&clients[0], address(&client)), (&clients[1], "10.77.3.1".into())] {
            let mut names = BTreeSet::new();
            for _ in 0..64 {
                let seen = call_tcp(from.as_deref(), "192.0.2.1:30080").unwrap();
                let (name, by) = seen.split_once(' ').unwrap();
                assert_eq!(by, source, "{from:?}");
                names.insert(name.to_owned());
            }
            assert_eq!(names.len(), 2, "pods and the node reach all endpoints");
        }
        let none_here = ServiceEntry { outside: Some([].into()), unserved: Unserved::Drop, ..both };
        node.set("d/s", external(none_here));
        let dropped = call_tcp_within(Some(&node.outside), "192.0.2.1:30080", SHORT);
        assert_eq!(dropped, Err(TimedOut));
        assert!(call_tcp(Some(&client.netns), "192.0.2.1:30080").is_ok());
        assert!(node.services.verify().unwrap());
    });
}

/// NET-69: every endpoint is chosen, and an endpoint that left never is.
#[test]
fn endpoints_are_chosen_at_random_and_change_one_by_one() {
    isolated(|directory| async move {
        let mut node = Node::new(&directory).await;
        let client = node.pod("client").await;
        let mut pods = Vec::new();
        for name in ["a", "b", "c", "d"] {
            pods.push(node.pod(name).await);
        }
        let all: Vec<&Attachment> = pods.iter().collect();
        let from = Some(client.netns.as_path());
        let to = "10.96.0.9:80";
        let set =
            |node: &mut Node, pods: &[&Attachment]| node.set("d/s", service(pods, entry(pods)));
        set(&mut node, &all);
        assert_eq!(names(from, to, 200), ["a", "b", "c", "d"].map(String::from).into());
        let shown = run(&format!("nft list table ip {TABLE}"));
        assert!(shown.contains("10.96.0.9 . tcp . 80"), "people can read the table: {shown}");
        let sent = set(&mut node, &all[1..]);
        // The code, the number that the last endpoint moves to, and the pair of equal addresses.
        assert!(sent <= 5, "{sent} elements");
        assert_eq!(names(from, to, 100), ["b", "c", "d"].map(String::from).into());
        set(&mut node, &all[1..2]);
        assert_eq!(names(from, to, 20), ["b".to_owned()].into());
        set(&mut node, &all);
        assert_eq!(names(from, to, 200).len(), 4);
        node.services.sweep().unwrap();
        assert!(node.services.verify().unwrap(), "{}", run("nft list ruleset"));
    });
}

/// NET-38, NET-41, T-NET-30: a client keeps its endpoint while that is usable.
#[test]
fn session_affinity_ends_with_the_endpoint_or_the_setting() {
    isolated(|directory| async move {
        let mut node = Node::new(&directory).await;
        let client = node.pod("client").await;
        let mut pods = Vec::new();
        for name in ["a", "b", "c"] {
            pods.push(node.pod(name).await);
        }
        let all: Vec<&Attachment> = pods.iter().collect();
        let affinity_seconds = Some(10_800);
        let sticky = |pods: &[&Attachment]| {
            let entry = ServiceEntry { affinity_seconds, ..entry(pods) };
            service(pods, entry)
        };
        node.set("d/s", sticky(&all));
        let from = Some(client.netns.as_path());
        let first = names(from, "10.96.0.9:80", 30);
        assert_eq!(first.len(), 1, "one endpoint for one client");

        let left: Vec<&Attachment> = ["a", "b", "c"]
            .iter()
            .zip(&all)
            .filter(|(name, _)| !first.contains(**name))
            .map(|(_, pod)| *pod)
            .collect();
        node.set("d/s", sticky(&left));
        let second = names(from, "10.96.0.9:80", 30);
        assert!(second.len() == 1 && second != first, "{first:?} then {second:?}");
        node.set("d/s", sticky(&all));
        assert_eq!(names(from, "10.96.0.9:80", 30), second, "it keeps its new endpoint");
        node.set("d/s", service(&all, entry(&all)));
        assert_eq!(names(from, "10.96.0.9:80", 100).len(), 3, "without affinity");
        let remembered = || run(&format!("nft list map ip {TABLE} affinity")).contains("elements");
        assert!(!remembered(), "leaving affinity forgets all clients");
        node.set("d/s", sticky(&all));
        assert_eq!(names(from, "10.96.0.9:80", 10).len(), 1);
        assert!(remembered());
        assert!(node.services.verify().unwrap());
    });
}

/// NET-38: people can read the rules and elements of session affinity with the `nft` program, in both families.
#[test]
fn net_38_nft_lists_the_rules_of_session_affinity() {
    isolated(|directory| async move {
        let pods = open(&directory).await;
        let (client, server) =
            (pods.attach("client", &[]).await.unwrap(), pods.attach("server", &[]).await.unwrap());
        serve_tcp(Some(&server.netns), 8080, "server");
        let mut config = config();
        config.service_ranges.push(cidr("fd00:96::/112"));
        let mut services = Services::open(&config).unwrap();
        let sticky = |endpoints: Arc<[SocketAddr]>| ServiceEntry {
            outside: Some(endpoints.clone()),
            endpoints,
            affinity_seconds: Some(10_800),
            ..ServiceEntry::default()
        };
        let v6: Arc<[SocketAddr]> =
            ["[fd00:77::2]:8080", "[fd00:77::3]:8080"].map(|text| text.parse().unwrap()).into();
        let rules = ServiceRules {
            entries: [
                (frontend(CLUSTER_IP, 80), sticky(endpoints(&[&server]))),
                (frontend("fd00:96::9", 80), sticky(v6)),
            ]
            .into(),
            cluster_ips: [ip(CLUSTER_IP), ip("fd00:96::9")].into(),
            ..ServiceRules::default()
        };
        services.apply(vec![("d/s".into(), Some(rules))]).unwrap();
        call_tcp(Some(&client.netns), "10.96.0.9:80").unwrap();
        let v4 = run(&format!("nft list table ip {TABLE}"));
        let v6 = run(&format!("nft list table ip6 {TABLE}"));
        for (shown, chain) in [
            (&v4, "chain pick-1-sticky-10800"),
            (&v4, "chain outside-pick-1-sticky-10800"),
            (&v6, "chain pick-2-sticky-10800"),
        ] {
            let start = shown.find(chain).unwrap_or_else(|| panic!("{chain} is not in {shown}"));
            let rules = shown[start..].split('}').take(4).collect::<String>();
            assert!(rules.contains("update @affinity") && rules.contains("timeout 3h"), "{rules}");
            assert!(rules.contains("sticky-ids update") && rules.contains("dnat"), "{rules}");
        }
        let remembered = format!("{} . 10.96.0.9 . tcp . 80 timeout 3h", address(&client));
        assert!(v4.contains(&remembered), "{remembered} is not in {v4}");
    });
}

/// NET-72: a new process changes nothing that is right, and keeps the clients of Services with affinity.
#[test]
fn a_restart_adopts_the_rules_and_remembered_clients() {
    isolated(|directory| async move {
        let mut node = Node::new(&directory).await;
        let client = node.pod("client").await;
        let mut pods = Vec::new();
        for name in ["a", "b", "c"] {
            pods.push(node.pod(name).await);
        }
        let all: Vec<&Attachment> = pods.iter().collect();
        let affinity_seconds = Some(10_800);
        let sticky = service(&all, ServiceEntry { affinity_seconds, ..entry(&all) });
        let other = ServiceRules {
            entries: [(frontend("10.96.0.10", 53), entry(&all[..2]))].into(),
            cluster_ips: [ip("10.96.0.10")].into(),
            ..ServiceRules::default()
        };
        node.set("d/s", sticky.clone());
        node.set("d/other", other.clone());
        node.set(
            "d/gone",
            ServiceRules {
                entries: [(frontend("10.96.0.11", 80), entry(&all[..2]))].into(),
                cluster_ips: [ip("10.96.0.11")].into(),
                ..ServiceRules::default()
            },
        );
        let from = Some(client.netns.as_path());
        let first = names(from, "10.96.0.9:80", 10);

        node.services = Services::open(&config()).unwrap();
        assert_eq!(names(from, "10.96.0.9:80", 10), first, "before the first list");
        let desired: HashMap<Arc<str>, ServiceRules> =
            [("d/s".into(), sticky.clone()), ("d/other".into(), other.clone())].into();
        let sent = node.services.replace_all(desired.clone()).unwrap();
        assert!(sent <= 3, "{sent} elements: only the deleted Service");
        assert_eq!(names(from, "10.96.0.9:80", 10), first);
        assert_eq!(names(from, "10.96.0.10:53", 60).len(), 2);
        assert_eq!(call_tcp_within(from, "10.96.0.11:80", SHORT), Err(TimedOut));
        node.services.sweep().unwrap();
        assert!(node.services.verify().unwrap());
        assert_eq!(node.services.replace_all(desired).unwrap(), 0);
    });
}

/// NET-74: what another program does to our table is found and repaired.
#[test]
fn foreign_changes_are_detected_and_repaired() {
    isolated(|directory| async move {
        let mut node = Node::new(&directory).await;
        let (client, server) = (node.pod("client").await, node.pod("server").await);
        run("nft 'add table ip other; add chain ip other c'");
        node.set("d/s", service(&[&server], entry(&[&server])));
        for damage in [
            format!("nft flush map ip {TABLE} endpoints"),
            format!("nft flush set ip {TABLE} cluster-ips"),
            format!("nft delete table ip {TABLE}"),
        ] {
            run(&damage);
            assert!(!node.services.verify().unwrap_or(false), "{damage}");
            node.services.apply(Vec::new()).unwrap();
            assert!(node.services.verify().unwrap(), "{damage}");
            assert!(call_tcp(Some(&client.netns), "10.96.0.9:80").is_ok(), "{damage}");
        }
        run("nft list table ip other");
        node.services.remove().unwrap();
        assert!(!run("nft list tables").contains(TABLE));
    });
}

/// NET-24: only LB addresses are restricted, before the redirection, for pods and the node too.
#[test]
fn source_ranges_restrict_a_load_balancer() {
    isolated(|directory| async move {
        let mut node = Node::new(&directory).await;
        let (client, server) = (node.pod("client").await, node.pod("server").await);
        let sources: Arc<[_]> = [cidr("192.0.2.2/32")].into();
        let balanced =
            ServiceEntry { sources: Some(sources), masquerade: true, ..entry(&[&server]) };
        let mut rules = service(&[&server], entry(&[&server]));
        rules.entries.insert(frontend(NODE_IP, 80), balanced.clone());
        node.set("d/s", rules.clone());
        assert!(call_tcp(Some(&node.outside), "192.0.2.1:80").is_ok());
        let pod = call_tcp_within(Some(&client.netns), "192.0.2.1:80", SHORT);
        assert_eq!(pod, Err(TimedOut));
        assert!(call_tcp(Some(&client.netns), "10.96.0.9:80").is_ok());
        let wider: Arc<[_]> = [cidr("192.0.2.2/32"), cidr("10.77.3.0/24")].into();
        let balanced = ServiceEntry { sources: Some(wider), ..balanced };
        rules.entries.insert(frontend(NODE_IP, 80), balanced);
        node.set("d/s", rules.clone());
        assert!(call_tcp(Some(&client.netns), "192.0.2.1:80").is_ok());
        node.services = Services::open(&config()).unwrap();
        node.services.replace_all([("d/s".into(), rules)].into()).unwrap();
        assert!(call_tcp(Some(&node.outside), "192.0.2.1:80").is_ok());
        assert!(node.services.verify().unwrap());
    });
}

/// Chains that no Service needs any more are deleted: those of numbers of endpoints, and those of source ranges.
#[test]
fn unused_chains_do_not_accumulate() {
    isolated(|_| async move {
        let mut services = Services::open(&config()).unwrap();
        let rules = |timeout: u32| {
            let endpoints = [SocketAddr::new(ip("10.77.3.9"), 8080)].into();
            let affinity_seconds = Some(timeout);
            let entry = ServiceEntry { endpoints, affinity_seconds, ..ServiceEntry::default() };
            let sources = Some([cidr("192.0.2.0/24")].into());
            let balanced = ServiceEntry { sources, ..entry.clone() };
            ServiceRules {
                entries: [
                    (frontend(CLUSTER_IP, 80), entry),
                    (frontend(&format!("198.51.100.{}", timeout % 200), 80), balanced),
                ]
                .into(),
                ..ServiceRules::default()
            }
        };
        let count = |prefix: &str| {
            let shown = run(&format!("nft list table ip {TABLE}"));
            shown.lines().filter(|line| line.trim().starts_with(prefix)).count()
        };
        let changes = 600;
        for timeout in 1..=changes {
            services.apply(vec![("d/s".into(), Some(rules(timeout)))]).unwrap();
            if services.needs_sweep() {
                services.sweep().unwrap();
            }
        }
        assert!(count("chain pick-") < 300, "{}", count("chain pick-"));
        assert_eq!(count("chain firewall-198"), 1);
        let last = format!("chain pick-1-sticky-{changes} ");
        assert_eq!(count(&last), 1, "the chain that is in use stays");
        assert!(services.verify().unwrap());
        assert!(services.apply(vec![("d/s".into(), Some(rules(1)))]).unwrap() > 0);
        assert!(services.verify().unwrap(), "a deleted chain is added again");
    });
}

/// NET-28: the protocol is part of every lookup.
#[test]
fn one_port_number_serves_two_protocols() {
    isolated(|directory| async move {
        let mut node = Node::new(&directory).await;
        let (client, server) = (node.pod("client").await, node.pod("server").await);
        serve_udp(&server.netns, 8080, "server");
        let udp = Frontend { protocol: Protocol::Udp, ..frontend(CLUSTER_IP, 80) };
        let mut rules = service(&[&server], entry(&[&server]));
        rules.entries.insert(udp, entry(&[&server]));
        node.set("d/s", rules.clone());
        let from = Some(client.netns.as_path());
        assert!(call_tcp(from, "10.96.0.9:80").is_ok());
        assert!(call_udp(from, "10.96.0.9:80", 2000).is_some(), "NET-8: fragments");
        rules.entries.remove(&udp);
        node.set("d/s", rules);
        assert!(call_tcp(from, "10.96.0.9:80").is_ok());
        assert_eq!(call_udp(from, "10.96.0.9:80", 10), None);
    });
}

/// Two Services want the same external address: the first by name has it, the other when that is gone.
#[test]
fn an_address_belongs_to_one_service_at_a_time() {
    isolated(|directory| async move {
        let mut node = Node::new(&directory).await;
        let (client, one, two) =
            (node.pod("client").await, node.pod("one").await, node.pod("two").await);
        let external = |pod| ServiceRules {
            entries: [(frontend("192.0.2.88", 80), entry(&[pod]))].into(),
            ..ServiceRules::default()
        };
        node.set("d/two", external(&two));
        node.set("d/one", external(&one));
        let from = Some(client.netns.as_path());
        assert_eq!(names(from, "192.0.2.88:80", 5), ["one".to_owned()].into());
        node.services.apply(vec![("d/one".into(), None)]).unwrap();
        assert_eq!(names(from, "192.0.2.88:80", 5), ["two".to_owned()].into());
    });
}
