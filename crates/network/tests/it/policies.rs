//! The policy tables, with real connections between pods.

mod changes;

use crate::isolated::{
    POD_RANGE, SHORT, address, call_tcp_within, call_udp, cidr, config, inside, ip, isolated, open,
    outside, rules, run, serve_tcp, serve_udp,
};
use network::Protocol::{Sctp, Tcp, Udp};
use network::policies::{
    ChainChange, Change, Direction, Life, Member, Peers, PodChange, PolicyConfig, PolicyRule,
    PolicyTables, Ports, SetChange, SetKind, Target,
};
use network::{Attachment, Cidr, Pods};
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::TcpStream;
use std::path::Path;
use tokio::time::Instant;

const TABLE: &str = "landfall-pods-policies";

async fn tables(cidrs: &[&str]) -> PolicyTables {
    let cidrs: Vec<Cidr> = cidrs.iter().map(|text| cidr(text)).collect();
    let config = PolicyConfig { table: TABLE.into(), link: "lf0".into(), cidrs };
    PolicyTables::open(config).await.unwrap()
}

fn link(pod: &Attachment) -> String {
    let links = network::policies::PodLinks { link: "lf0".into(), cidrs: vec![cidr(POD_RANGE)] };
    links.of(pod.addresses[0]).unwrap()
}

/// Builds changes of tables that have nothing of it yet.
#[derive(Default)]
struct Plan(Change);

impl Plan {
    fn set(mut self, name: &str, kind: SetKind, members: &[Member]) -> Plan {
        let added = members.iter().copied().collect();
        let set = SetChange { kind, life: Life::New, added, removed: BTreeSet::new() };
        self.0.sets.insert(name.into(), set);
        self
    }

    fn chain(mut self, direction: Direction, name: &str, rules: &[PolicyRule]) -> Plan {
        let (life, rules) = (Life::New, rules.to_vec());
        let chain = ChainChange { life, direction, comment: "default/test".into(), rules };
        self.0.chains.insert(name.into(), chain);
        self
    }

    fn isolate(mut self, direction: Direction, pod: &Attachment, policies: &[&str]) -> Plan {
        let policies = policies.iter().map(ToString::to_string).collect();
        let pod_change = PodChange { life: Life::New, policies };
        self.0.pods.insert((direction, link(pod)), pod_change);
        self
    }
}

fn allow(peers: Option<&str>, ports: Ports) -> PolicyRule {
    let peers = peers.map_or(Peers::Any, |set| Peers::In(set.into()));
    PolicyRule { peers, ports, target: Target::Accept }
}

fn addresses(pods: &[&Attachment]) -> Vec<Member> {
    pods.iter().map(|pod| Member::Address(pod.addresses[0])).collect()
}

/// Whether a TCP connection from the pod, or from the node, is possible.
fn reaches(from: Option<&Attachment>, to: &str) -> bool {
    let netns = from.map(|pod| pod.netns.as_path());
    match call_tcp_within(netns, to, SHORT) {
        Ok(_) => true,
        Err(ErrorKind::TimedOut) => false,
        Err(other) => panic!("{to}: {other:?}"),
    }
}

async fn three_pods(directory: &Path) -> (Pods, [Attachment; 3]) {
    let pods = open(directory).await;
    let mut attached = Vec::new();
    for name in ["a", "b", "c"] {
        let pod = pods.attach(name, &[]).await.unwrap();
        for port in [80, 81] {
            serve_tcp(Some(&pod.netns), port, name);
            serve_udp(&pod.netns, port, name);
        }
        attached.push(pod);
    }
    (pods, attached.try_into().unwrap())
}

#[test]
fn the_policy_table_has_the_expected_rules() {
    isolated(|directory| async move {
        let pods = open(&directory).await;
        let pod = pods.attach("a", &[]).await.unwrap();
        let before = rules();
        let tables = tables(&[POD_RANGE]).await;
        let range = Member::AddressRange(ip("10.0.0.0"), ip("10.127.255.255"));
        let top = Member::AddressRange(ip("255.0.0.0"), ip("255.255.255.255"));
        let plan = Plan::default()
            .set("pods-1", SetKind::Addresses, &addresses(&[&pod]))
            .set("blocks-2", SetKind::AddressRanges, &[range, top])
            .set(
                "ports-3",
                SetKind::PortRanges,
                &[Member::PortRange(80, 90), Member::PortRange(65000, 65535)],
            )
            .set("named-ports-4", SetKind::NamedPorts, &[Member::NamedPort(pod.addresses[0], 8080)])
            .chain(
                Direction::Ingress,
                "ingress-policy-1",
                &[
                    allow(Some("pods-1"), Ports::Any),
                    allow(Some("blocks-2"), Ports::Range(Tcp, 80, 80)),
                    allow(None, Ports::Range(Udp, 1000, 2000)),
                    allow(None, Ports::In(Tcp, "ports-3".into())),
                ],
            )
            .chain(
                Direction::Egress,
                "egress-policy-1",
                &[
                    allow(Some("blocks-2"), Ports::All(Sctp)),
                    allow(None, Ports::Named(Tcp, "named-ports-4".into())),
                ],
            )
            .isolate(Direction::Ingress, &pod, &["ingress-policy-1"])
            .isolate(Direction::Egress, &pod, &["egress-policy-1"]);
        tables.replace(plan.0).await.unwrap();
        let shown = run(&format!("nft list table ip {TABLE}"));
        for expected in [
            "iifname vmap @egress-pods",
            "oifname vmap @ingress-pods",
            "elements = { \"lf0p2\" : goto egress-lf0p2 }",
            "elements = { 10.0.0.0/9, 255.0.0.0/8 }",
            "elements = { 80-90, 65000-65535 }",
            "elements = { 10.77.3.2 . 8080 }",
            "type filter hook forward priority filter; policy accept;",
            "type filter hook input priority filter; policy accept;",
            "ct state established,related accept",
            "iifname \"lf0p*\" fib saddr . iif oif 0 drop",
            "ip saddr @pods-1 accept comment \"default/test\"",
            "ip saddr @blocks-2 tcp dport 80 accept",
            "udp dport 1000-2000 accept",
            "tcp dport @ports-3 accept",
            "ip daddr @blocks-2 meta l4proto sctp accept",
            "ip daddr . tcp dport @named-ports-4 accept",
            "oifname \"lf0p2\" accept comment \"a pod reaches itself\"",
            "jump egress-policy-1",
        ] {
            assert!(shown.contains(expected), "{expected} is not in {shown}");
        }
        tables.remove().await.unwrap();
        assert_eq!(rules(), before, "other tables are not touched");
    });
}

#[test]
fn net_125_net_126_ingress_isolation_blocks_one_direction_only() {
    isolated(|directory| async move {
        let (_pods, [a, b, c]) = three_pods(&directory).await;
        let tables = tables(&[POD_RANGE]).await;
        let plan = Plan::default()
            .set("peers", SetKind::Addresses, &addresses(&[&a]))
            .chain(Direction::Ingress, "policy", &[allow(Some("peers"), Ports::Range(Tcp, 80, 80))])
            .isolate(Direction::Ingress, &b, &["policy"]);
        tables.replace(plan.0).await.unwrap();
        let to = |pod: &Attachment, port: u16| format!("{}:{port}", address(pod));
        assert!(reaches(Some(&a), &to(&b, 80)));
        assert!(!reaches(Some(&a), &to(&b, 81)), "another port");
        assert!(!reaches(Some(&c), &to(&b, 80)), "another pod");
        assert!(reaches(Some(&b), &to(&c, 80)), "the other direction");
        assert!(reaches(Some(&c), &to(&a, 81)), "pods without policy");
        // NET-129: a TCP rule does not allow UDP.
        assert_eq!(call_udp(Some(&a.netns), &to(&b, 80), 9), None);
        // NET-131: from the node and to itself.
        assert!(reaches(None, &to(&b, 81)));
        assert!(reaches(Some(&b), &to(&b, 81)));
    });
}

#[test]
fn net_135_egress_isolation_covers_the_node_and_everything_outside() {
    isolated(|directory| async move {
        let outside = outside(&directory);
        serve_tcp(Some(&outside), 80, "outside");
        serve_tcp(None, 53, "node");
        let (_pods, [a, b, _]) = three_pods(&directory).await;
        let tables = tables(&[POD_RANGE]).await;
        let block = Member::AddressRange(ip("192.0.2.2"), ip("192.0.2.3"));
        let plan = Plan::default()
            .set("blocks", SetKind::AddressRanges, &[block])
            .chain(Direction::Egress, "policy", &[allow(Some("blocks"), Ports::Any)])
            .isolate(Direction::Egress, &a, &["policy"])
            .isolate(Direction::Egress, &b, &[]);
        tables.replace(plan.0).await.unwrap();
        assert!(reaches(Some(&a), "192.0.2.2:80"));
        assert!(!reaches(Some(&b), "192.0.2.2:80"));
        assert!(!reaches(Some(&a), &format!("{}:80", address(&b))));
        assert!(!reaches(Some(&a), "10.77.3.1:53"), "the node is not exempt");
        // Probes of the node get their replies.
        assert!(reaches(None, &format!("{}:80", address(&a))));
    });
}

#[test]
fn net_135_icmp_errors_of_allowed_flows_pass() {
    isolated(|directory| async move {
        let (_pods, [a, b, _]) = three_pods(&directory).await;
        let tables = tables(&[POD_RANGE]).await;
        let any_udp = [allow(None, Ports::All(Udp))];
        let plan = Plan::default()
            .chain(Direction::Egress, "out", &any_udp)
            .chain(Direction::Ingress, "in", &any_udp)
            .isolate(Direction::Egress, &a, &["out"])
            .isolate(Direction::Ingress, &a, &[])
            .isolate(Direction::Ingress, &b, &["in"])
            .isolate(Direction::Egress, &b, &[]);
        tables.replace(plan.0).await.unwrap();
        let to = format!("{}:9", address(&b));
        let error = inside(&a.netns, move || {
            let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.connect(to).unwrap();
            socket.set_read_timeout(Some(crate::isolated::PATIENCE)).unwrap();
            socket.send(b"x").unwrap();
            socket.recv(&mut [0; 9]).unwrap_err().kind()
        });
        assert_eq!(error, ErrorKind::ConnectionRefused, "port unreachable arrives");
    });
}

#[test]
fn net_129_ports_ranges_and_names() {
    isolated(|directory| async move {
        let (_pods, [a, b, c]) = three_pods(&directory).await;
        let tables = tables(&[POD_RANGE]).await;
        let ranges = [Member::PortRange(1, 79), Member::PortRange(81, 65535)];
        let names = [Member::NamedPort(b.addresses[0], 81), Member::NamedPort(c.addresses[0], 80)];
        let plan = Plan::default()
            .set("ranges", SetKind::PortRanges, &ranges)
            .set("names", SetKind::NamedPorts, &names)
            .chain(Direction::Ingress, "in", &[allow(None, Ports::In(Tcp, "ranges".into()))])
            .chain(Direction::Egress, "out", &[allow(None, Ports::Named(Tcp, "names".into()))])
            .chain(Direction::Ingress, "udp", &[allow(None, Ports::Range(Udp, 79, 80))])
            .isolate(Direction::Ingress, &a, &["in"])
            .isolate(Direction::Ingress, &b, &["in"])
            .isolate(Direction::Egress, &a, &["out"])
            .isolate(Direction::Ingress, &c, &["in", "udp"]);
        tables.replace(plan.0).await.unwrap();
        let to = |pod: &Attachment, port: u16| format!("{}:{port}", address(pod));
        assert!(!reaches(Some(&b), &to(&a, 80)) && reaches(Some(&b), &to(&a, 81)));
        // The name is port 81 of b and port 80 of c, which c does not allow.
        assert!(reaches(Some(&a), &to(&b, 81)) && !reaches(Some(&a), &to(&b, 80)));
        assert!(!reaches(Some(&a), &to(&c, 80)) && !reaches(Some(&a), &to(&c, 81)));
        // Two policies: their union. UDP and TCP are independent.
        assert!(call_udp(Some(&b.netns), &to(&c, 80), 9).is_some());
        assert_eq!(call_udp(Some(&b.netns), &to(&c, 81), 9), None);
        assert!(!reaches(Some(&b), &to(&c, 80)) && reaches(Some(&b), &to(&c, 81)));
    });
}

#[test]
fn net_130_policies_see_pods_behind_a_service_address() {
    isolated(|directory| async move {
        let (_pods, [a, b, c]) = three_pods(&directory).await;
        run(
            "nft 'add table ip proxy; add chain ip proxy services { type nat hook prerouting priority dstnat; }'",
        );
        run(
            "nft add rule ip proxy services ip daddr 10.96.0.10 tcp dport 8080 dnat to 10.77.3.3:80",
        );
        run(
            "nft add rule ip proxy services ip daddr 10.96.0.11 tcp dport 8080 dnat to 10.77.3.4:80",
        );
        run("nft 'add chain ip proxy hairpin { type nat hook postrouting priority srcnat; }'");
        run("nft add rule ip proxy hairpin ip saddr 10.77.3.3 ip daddr 10.77.3.3 masquerade");
        let tables = tables(&[POD_RANGE]).await;
        let plan = Plan::default()
            .set("peers", SetKind::Addresses, &addresses(&[&a]))
            .set(
                "services",
                SetKind::AddressRanges,
                &[Member::AddressRange(ip("10.96.0.0"), ip("10.96.255.255"))],
            )
            .chain(Direction::Ingress, "in", &[allow(Some("peers"), Ports::Range(Tcp, 80, 80))])
            .chain(Direction::Egress, "out", &[allow(Some("services"), Ports::Any)])
            .isolate(Direction::Ingress, &b, &["in"])
            .isolate(Direction::Egress, &b, &["out"]);
        tables.replace(plan.0).await.unwrap();
        assert!(reaches(Some(&a), "10.96.0.10:8080"), "the pod's address and port count");
        assert!(!reaches(Some(&c), "10.96.0.10:8080"));
        assert!(
            !reaches(Some(&b), "10.96.0.11:8080"),
            "a block of Service addresses does not match"
        );
        assert!(reaches(Some(&b), "10.96.0.10:8080"), "a pod reaches itself");
    });
}

#[test]
fn a_pod_cannot_pretend_to_be_an_allowed_peer() {
    isolated(|directory| async move {
        let (_pods, [a, b, c]) = three_pods(&directory).await;
        let tables = tables(&[POD_RANGE]).await;
        let plan = Plan::default()
            .set("peers", SetKind::Addresses, &addresses(&[&a]))
            .chain(Direction::Ingress, "policy", &[allow(Some("peers"), Ports::Any)])
            .isolate(Direction::Ingress, &b, &["policy"]);
        tables.replace(plan.0).await.unwrap();
        let listener = inside(&b.netns, || std::net::UdpSocket::bind("0.0.0.0:99").unwrap());
        listener.set_read_timeout(Some(SHORT)).unwrap();
        let (forged, to) = (address(&a), format!("{}:99", address(&b)));
        let send = move || {
            run(&format!("ip address replace {forged}/32 dev eth0"));
            let socket = std::net::UdpSocket::bind((forged.as_str(), 0)).unwrap();
            socket.send_to(b"forged", to).unwrap();
        };
        inside(&c.netns, send.clone());
        assert!(listener.recv(&mut [0; 9]).is_err());
        // Without the rule it would arrive.
        run(&format!("nft flush chain ip {TABLE} egress"));
        inside(&c.netns, send);
        assert_eq!(listener.recv(&mut [0; 9]).unwrap(), 6);
    });
}

#[test]
fn net_135_neighbour_discovery_passes_in_dual_stack() {
    isolated(|directory| async move {
        let ranges = [POD_RANGE, "fd77:3::/64"];
        let cidrs = ranges.iter().map(|range| cidr(range)).collect();
        let both = network::PodsConfig { cidrs, ..config(&directory) };
        let pods = Pods::open(both).await.unwrap();
        let (a, b) = (pods.attach("a", &[]).await.unwrap(), pods.attach("b", &[]).await.unwrap());
        serve_tcp(Some(&a.netns), 80, "a");
        serve_tcp(Some(&b.netns), 80, "b");
        let tables = tables(&ranges).await;
        let peers = Member::Address(b.addresses[1]);
        let plan = Plan::default()
            .set("peers", SetKind::Addresses, &[peers])
            .chain(Direction::Ingress, "policy", &[allow(Some("peers"), Ports::Any)])
            .isolate(Direction::Ingress, &a, &["policy"])
            .isolate(Direction::Egress, &a, &[]);
        tables.replace(plan.0).await.unwrap();
        assert!(reaches(None, "[fd77:3::2]:80") && reaches(Some(&b), "[fd77:3::2]:80"));
        assert!(!reaches(Some(&b), "10.77.3.2:80"), "only the IPv6 address is a peer");
        assert!(!reaches(Some(&a), "[fd77:3::3]:80"));
        // The node has to find the pod's link-local address: the pod answers, although it may send nothing.
        let local = inside(&a.netns, || link_local("eth0"));
        assert!(eventually(|| connect(&local, 80, "lf0p2").is_ok()));
        // From a link-local address to the node: the sender is known by its link.
        serve_tcp(None, 9000, "node");
        let node = link_local("lf0p3");
        assert!(eventually(|| {
            let node = node.clone();
            inside(&b.netns, move || connect(&node, 9000, "eth0").is_ok())
        }));
        let node = link_local("lf0p2");
        let refused = inside(&a.netns, move || connect(&node, 9000, "eth0")).unwrap_err();
        assert_eq!(refused, ErrorKind::TimedOut);
    });
}

fn link_local(device: &str) -> String {
    let text = run(&format!("ip -6 -o address show dev {device} scope link"));
    text.split_whitespace().nth(3).unwrap().split('/').next().unwrap().to_string()
}

fn connect(to: &str, port: u16, device: &str) -> Result<TcpStream, ErrorKind> {
    let scope = nix::net::if_::if_nametoindex(device).unwrap();
    let to = std::net::SocketAddrV6::new(to.parse().unwrap(), port, 0, scope);
    TcpStream::connect_timeout(&to.into(), SHORT).map_err(|error| error.kind())
}

/// The kernel needs a moment until a link-local address can be used. Every failed attempt takes time.
fn eventually(attempt: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    while start.elapsed() < 5 * crate::isolated::PATIENCE {
        if attempt() {
            return true;
        }
    }
    false
}
