//! Pods and Services with IPv6 addresses: alone, and beside IPv4 addresses.

use crate::isolated::{
    SHORT, call_tcp, call_tcp_within, call_udp, cidr, config, host_port, inside, ip, isolated,
    outside, rules, run, serve_tcp, serve_udp,
};
use network::Protocol::{Tcp, Udp};
use network::{
    Attachment, Frontend, Pods, PodsConfig, Protocol, ServiceEntry, ServiceRules, Services,
    ServicesConfig, Unserved, ipv6_unavailable,
};
use std::io::ErrorKind::{ConnectionRefused, NetworkUnreachable, TimedOut};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

const POD_RANGE: &str = "fd77:3::/64";
const SERVICE_RANGE: &str = "fd77:96::/112";
/// The node's address for a host outside the cluster, which is `2001:db8::2`.
const NODE_IP: &str = "2001:db8::1";

fn with_both(directory: &Path) -> PodsConfig {
    let mut config = config(directory);
    config.cidrs.push(cidr(POD_RANGE));
    config.cluster_cidrs.push(cidr("fd77:3::/32"));
    config
}

/// A host outside with addresses of both families.
fn outside_with_both(directory: &Path) -> PathBuf {
    let outside = outside(directory);
    run(&format!("ip address add {NODE_IP}/64 dev up0 nodad"));
    inside(&outside, || run("ip address add 2001:db8::2/64 dev down0 nodad"));
    outside
}

async fn server(pods: &Pods, name: &str) -> Attachment {
    let pod = pods.attach(name, &[]).await.unwrap();
    serve_tcp(Some(&pod.netns), 8080, name);
    serve_udp(&pod.netns, 8080, name);
    pod
}

/// NET-1 to NET-5, NET-13: everything that pods do with IPv4 works with IPv6, at once after the attachment.
#[test]
fn net_13_pods_have_an_address_of_each_family_and_use_it_at_once() {
    isolated(|directory| async move {
        assert_eq!(ipv6_unavailable(), None, "these tests need a kernel with IPv6");
        let outside = outside_with_both(&directory);
        let pods = Pods::open(with_both(&directory)).await.unwrap();
        let gateways = pods.gateways().into_iter().map(|(_, gateway)| gateway.to_string());
        assert_eq!(gateways.collect::<Vec<_>>(), ["10.77.3.1", "fd77:3::1"]);
        let (a, b) = (server(&pods, "a").await, server(&pods, "b").await);
        assert_eq!(a.addresses, [ip("10.77.3.2"), ip("fd77:3::2")]);
        assert_eq!(b.addresses, [ip("10.77.3.3"), ip("fd77:3::3")]);
        let (from_a, to_b) = (Some(a.netns.as_path()), "[fd77:3::3]:8080");
        assert_eq!(call_tcp(from_a, to_b), Ok("b fd77:3::2".into()));
        assert_eq!(call_udp(from_a, to_b, 2000), Some("b fd77:3::2".into()));
        assert_eq!(call_tcp(from_a, "10.77.3.3:8080"), Ok("b 10.77.3.2".into()));
        // No duplicate address detection, which would keep the address unusable for a second.
        let shown = inside(&a.netns, || run("ip -6 address show dev eth0 scope global"));
        assert!(shown.contains("fd77:3::2/128") && !shown.contains("tentative"), "{shown}");

        assert_eq!(call_tcp(None, to_b), Ok("b fd77:3::1".into()), "the node");
        serve_tcp(None, 9000, "node");
        assert_eq!(call_tcp(from_a, "[fd77:3::1]:9000"), Ok("node fd77:3::2".into()));
        // The kernel reports the error with the second packet, after a second; with IPv4 it does so with the first.
        let unused = call_tcp(from_a, "[fd77:3::99]:80");
        assert_eq!(unused, Err(NetworkUnreachable), "no such pod");
        serve_tcp(Some(&outside), 80, "outside");
        let seen = call_tcp(from_a, "[2001:db8::2]:80");
        assert_eq!(seen, Ok(format!("outside {NODE_IP}")), "masqueraded");
        pods.remove().await.unwrap();
        assert!(!rules().contains("landfall-pods"), "both tables are gone");
        assert!(!run("ip -6 route show").contains("fd77:3:"), "no route is left");
    });
}

/// NET-2, NET-4: a cluster may have IPv6 only.
#[test]
fn pods_may_have_ipv6_addresses_only() {
    isolated(|directory| async move {
        let only = PodsConfig { cidrs: vec![cidr(POD_RANGE)], ..config(&directory) };
        let pods = Pods::open(only).await.unwrap();
        let (a, b) = (server(&pods, "a").await, server(&pods, "b").await);
        assert_eq!(a.addresses, [ip("fd77:3::2")]);
        let to = format!("[{}]:8080", b.addresses[0]);
        assert_eq!(call_tcp(Some(&a.netns), &to), Ok("b fd77:3::2".into()));
        assert_eq!(call_tcp(None, &to), Ok("b fd77:3::1".into()));
    });
}

/// N-51, NET-9: an empty host IP means every address of both families.
#[test]
fn net_9_host_ports_are_open_at_addresses_of_both_families() {
    isolated(|directory| async move {
        let outside = outside_with_both(&directory);
        let pods = Pods::open(with_both(&directory)).await.unwrap();
        let ports = [host_port(Tcp, None, 9080, 8080), host_port(Udp, None, 9080, 8080)];
        let pod = pods.attach("a", &ports).await.unwrap();
        serve_tcp(Some(&pod.netns), 8080, "a");
        serve_udp(&pod.netns, 8080, "a");
        let from = Some(outside.as_path());
        assert_eq!(call_tcp(from, "[2001:db8::1]:9080"), Ok("a 2001:db8::2".into()));
        assert_eq!(call_udp(from, "[2001:db8::1]:9080", 9), Some("a 2001:db8::2".into()));
        assert_eq!(call_tcp(from, "192.0.2.1:9080"), Ok("a 192.0.2.2".into()));
        let itself = call_tcp(Some(&pod.netns), "[2001:db8::1]:9080");
        assert_eq!(itself, Ok("a fd77:3::1".into()), "the pod itself");
    });
}

fn at(address: &str, protocol: Protocol, port: u16) -> Frontend {
    Frontend { address: ip(address), protocol, port }
}

/// A Service with a ClusterIP and a node port in both families.
fn service(pods: &[&Attachment]) -> ServiceRules {
    let mut rules = ServiceRules::default();
    for (index, cluster_ip, node) in [(0, "10.96.0.9", "192.0.2.1"), (1, "fd77:96::9", NODE_IP)] {
        let endpoints: Vec<SocketAddr> =
            pods.iter().map(|pod| SocketAddr::new(pod.addresses[index], 8080)).collect();
        let unserved = if pods.is_empty() { Unserved::Reject } else { Unserved::Served };
        let entry =
            ServiceEntry { endpoints: endpoints.into(), unserved, ..ServiceEntry::default() };
        for protocol in [Tcp, Udp] {
            rules.entries.insert(at(cluster_ip, protocol, 80), entry.clone());
            let masqueraded = ServiceEntry { masquerade: true, ..entry.clone() };
            rules.entries.insert(at(node, protocol, 30080), masqueraded);
        }
        rules.cluster_ips.insert(ip(cluster_ip));
        rules.local_endpoints.extend(pods.iter().map(|pod| pod.addresses[index]));
    }
    rules
}

/// NET-26, NET-31, NET-34, NET-35, NET-36: a Service with both families, from pods, the node and a host outside.
#[test]
fn net_26_a_service_is_reached_at_its_addresses_of_both_families() {
    isolated(|directory| async move {
        let outside = outside_with_both(&directory);
        let pods = Pods::open(with_both(&directory)).await.unwrap();
        let ranges = vec![cidr("10.96.0.0/16"), cidr(SERVICE_RANGE)];
        let mut services = Services::open(&ServicesConfig {
            table: "landfall-services".into(),
            service_ranges: ranges.clone(),
            pod_ranges: vec![cidr("10.77.0.0/16"), cidr("fd77:3::/32")],
            gateways: pods.gateways(),
        })
        .unwrap();
        let (client, server) = (server(&pods, "client").await, server(&pods, "server").await);
        services.apply(vec![("d/s".into(), Some(service(&[&server])))]).unwrap();
        let from = Some(client.netns.as_path());
        let to = "[fd77:96::9]:80";
        assert_eq!(call_tcp(from, to), Ok("server fd77:3::2".into()), "the source is kept");
        assert_eq!(call_udp(from, to, 9), Some("server fd77:3::2".into()));
        assert_eq!(call_tcp(from, "10.96.0.9:80"), Ok("server 10.77.3.2".into()));
        let itself = call_tcp(Some(&server.netns), to);
        assert_eq!(itself, Ok("server fd77:3::1".into()), "a pod that connects to itself");

        // This node has no default route of any family.
        assert!(call_tcp_within(None, to, SHORT).is_err(), "no route");
        pods.add_service_routes(&ranges).await.unwrap();
        pods.add_service_routes(&ranges).await.unwrap(); // Idempotent.
        assert_eq!(call_tcp(None, to), Ok("server fd77:3::1".into()), "the node");
        assert_eq!(call_tcp(None, "10.96.0.9:80"), Ok("server 10.77.3.1".into()));

        let outside = Some(outside.as_path());
        let node_port = call_tcp(outside, "[2001:db8::1]:30080");
        assert_eq!(node_port, Ok("server fd77:3::1".into()), "a node port");
        assert_eq!(call_tcp(outside, "192.0.2.1:30080"), Ok("server 10.77.3.1".into()));
        assert_eq!(call_tcp(None, "[2001:db8::1]:30080"), Ok("server fd77:3::1".into()));

        services.apply(vec![("d/s".into(), Some(service(&[])))]).unwrap();
        for from in [from, None] {
            assert_eq!(call_tcp(from, to), Err(ConnectionRefused), "no endpoints");
            let unknown = call_tcp_within(from, "[fd77:96::77]:80", SHORT);
            assert_eq!(unknown, Err(TimedOut), "no such Service");
        }
        assert!(services.verify().unwrap());
        pods.remove().await.unwrap();
        assert!(!run("ip -6 route show").contains("fd77:96:"), "the route ends with the device");
    });
}

/// A host whose IPv6 is disabled is recognised, with the setting to change.
#[test]
fn a_host_with_ipv6_disabled_says_so() {
    isolated(|_| async move {
        run("echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6");
        let why = ipv6_unavailable().expect("it is disabled");
        assert!(why.contains("sysctl -w net.ipv6.conf.all.disable_ipv6=0"), "{why}");
    });
}
