//! Connections between pods, the node and other hosts, with the source addresses that servers see.

use crate::isolated::{
    POD_RANGE, SHORT, address, call_tcp, call_tcp_within, call_udp, cidr, config, host_port,
    inside, ip, isolated, open, outside, rules, run, serve_tcp, serve_udp,
};
use network::Protocol::{Tcp, Udp};
use std::collections::BTreeSet;
use tokio::io::AsyncReadExt;

#[test]
fn two_pods_talk_and_see_each_others_addresses() {
    // NET-1, NET-2, NET-3, NET-8: pods reach each other and themselves by pod address, without NAT.
    isolated(|directory| async move {
        let pods = open(&directory).await;
        let (a, b) = (pods.attach("a", &[]).await.unwrap(), pods.attach("b", &[]).await.unwrap());
        assert_eq!((address(&a), address(&b)), ("10.77.3.2".into(), "10.77.3.3".into()));
        serve_tcp(Some(&b.netns), 8083, "b");
        serve_udp(&b.netns, 8081, "b");
        assert_eq!(call_tcp(Some(&a.netns), "10.77.3.3:8083"), Ok("b 10.77.3.2".into()));
        assert_eq!(call_udp(Some(&a.netns), "10.77.3.3:8081", 2000), Some("b 10.77.3.2".into()));
        // The pod reaches itself by loopback and by its own address.
        assert_eq!(call_tcp(Some(&b.netns), "127.0.0.1:8083"), Ok("b 127.0.0.1".into()));
        assert_eq!(call_tcp(Some(&b.netns), "10.77.3.3:8083"), Ok("b 10.77.3.3".into()));
    });
}

#[test]
fn pods_in_a_user_namespace_have_a_working_network() {
    // N-124, NET-1: also with users of its own, a pod has an address that other pods reach.
    isolated(|directory| async move {
        let pods = open(&directory).await;
        let users = network::UserRange { first: 1 << 16, count: 1 << 16 };
        let own = pods.attach_for("a", &[], Some(users)).await.unwrap();
        let other = pods.attach("b", &[]).await.unwrap();
        let root = |netns: &std::path::Path| {
            inside(netns, || run("stat -c %u /proc/sys/net/ipv4/ip_forward").trim().to_owned())
        };
        assert_eq!((root(&own.netns).as_str(), root(&other.netns).as_str()), ("65536", "0"));
        serve_tcp(Some(&own.netns), 80, "own");
        assert_eq!(call_tcp(Some(&other.netns), "10.77.3.2:80"), Ok("own 10.77.3.3".into()));
        pods.detach("a").await.unwrap();
        assert!(!own.netns.exists() && pods.find("a").is_none());
    });
}

#[test]
fn the_node_reaches_pods_and_pods_reach_the_node() {
    // NET-4: node and pods reach each other.
    isolated(|directory| async move {
        let pods = open(&directory).await;
        let pod = pods.attach("a", &[]).await.unwrap();
        serve_tcp(Some(&pod.netns), 80, "pod");
        serve_tcp(None, 9000, "node");
        assert_eq!(call_tcp(None, "10.77.3.2:80"), Ok("pod 10.77.3.1".into()));
        assert_eq!(call_tcp(Some(&pod.netns), "10.77.3.1:9000"), Ok("node 10.77.3.2".into()));
        assert_eq!(pods.gateways(), [(cidr(POD_RANGE), ip("10.77.3.1"))]);
    });
}

#[test]
fn an_unused_pod_address_is_unreachable_immediately() {
    isolated(|directory| async move {
        let pods = open(&directory).await;
        let pod = pods.attach("a", &[]).await.unwrap();
        let error = call_tcp(Some(&pod.netns), "10.77.3.99:80").unwrap_err();
        assert_eq!(error, std::io::ErrorKind::HostUnreachable);
    });
}

#[test]
fn only_traffic_that_leaves_the_cluster_is_masqueraded() {
    // NET-5: pods keep their address inside the cluster and get the node's outside.
    isolated(|directory| async move {
        let outside = outside(&directory);
        let pods = open(&directory).await;
        let pod = pods.attach("a", &[]).await.unwrap();
        serve_tcp(Some(&outside), 80, "outside");
        assert_eq!(call_tcp(Some(&pod.netns), "192.0.2.2:80"), Ok("outside 192.0.2.1".into()));
        // The same host with an address in the cluster's range, like a pod on another node.
        inside(&outside, || {
            run("ip address add 10.77.9.9/32 dev lo; ip route add 10.77.3.0/24 via 192.0.2.1")
        });
        run("ip route add 10.77.9.0/24 via 192.0.2.2");
        assert_eq!(call_tcp(Some(&pod.netns), "10.77.9.9:80"), Ok("outside 10.77.3.2".into()));
    });
}

#[test]
fn packets_for_a_service_without_endpoints_do_not_leave_the_node() {
    isolated(|directory| async move {
        let outside = outside(&directory);
        inside(&outside, || run("ip address add 10.96.0.1/32 dev lo"));
        run("ip route add default via 192.0.2.2");
        let pods = open(&directory).await;
        let pod = pods.attach("a", &[]).await.unwrap();
        serve_tcp(Some(&outside), 443, "other host");
        serve_udp(&outside, 53, "other host");
        let refused = call_tcp(Some(&pod.netns), "10.96.0.1:443").unwrap_err();
        assert_eq!(refused, std::io::ErrorKind::ConnectionRefused);
        assert_eq!(call_udp(Some(&pod.netns), "10.96.0.1:53", 9), None);
        // Other destinations work, and so does the same address from the node itself.
        assert!(call_tcp(Some(&pod.netns), "192.0.2.2:443").is_ok());
        assert!(call_tcp(None, "10.96.0.1:443").is_ok());
    });
}

#[test]
fn host_ports_reach_the_pod_from_everywhere() {
    // N-51, NET-9, NET-11: a host port works for TCP and UDP from all clients and closes with the pod.
    isolated(|directory| async move {
        let outside = outside(&directory);
        let pods = open(&directory).await;
        let ports = [host_port(Tcp, None, 8080, 80), host_port(Udp, None, 8080, 53)];
        let pod = pods.attach("a", &ports).await.unwrap();
        let other = pods.attach("b", &[]).await.unwrap();
        serve_tcp(Some(&pod.netns), 80, "pod");
        serve_udp(&pod.netns, 53, "udp");
        assert_eq!(call_tcp(Some(&outside), "192.0.2.1:8080"), Ok("pod 192.0.2.2".into()));
        assert_eq!(call_udp(Some(&outside), "192.0.2.1:8080", 9), Some("udp 192.0.2.2".into()));
        assert_eq!(call_tcp(None, "127.0.0.1:8080"), Ok("pod 10.77.3.1".into()));
        assert_eq!(call_udp(None, "127.0.0.1:8080", 9), Some("udp 10.77.3.1".into()));
        assert_eq!(call_tcp(None, "192.0.2.1:8080"), Ok("pod 192.0.2.1".into()));
        assert_eq!(call_tcp(Some(&other.netns), "192.0.2.1:8080"), Ok("pod 10.77.3.3".into()));
        // From the pod itself: the client's address must not be the pod's own.
        assert_eq!(call_tcp(Some(&pod.netns), "192.0.2.1:8080"), Ok("pod 10.77.3.1".into()));
        pods.detach("a").await.unwrap();
        let error = call_tcp(None, "127.0.0.1:8080").unwrap_err();
        assert_eq!(error, std::io::ErrorKind::ConnectionRefused);
    });
}

#[test]
fn one_host_port_on_several_addresses_or_protocols_reaches_several_pods() {
    // N-51, NET-9: three pods on port 54323.
    isolated(|directory| async move {
        run("ip address add 192.0.2.7/32 dev lo");
        let pods = open(&directory).await;
        let host_ports = [
            ("one", host_port(Tcp, Some("127.0.0.1"), 54323, 80)),
            ("two", host_port(Tcp, Some("192.0.2.7"), 54323, 80)),
            ("three", host_port(Udp, Some("192.0.2.7"), 54323, 80)),
        ];
        for (name, port) in host_ports {
            let pod = pods.attach(name, &[port]).await.unwrap();
            serve_tcp(Some(&pod.netns), 80, name);
            serve_udp(&pod.netns, 80, name);
        }
        let server = |answer: String| answer.split(' ').next().unwrap().to_string();
        assert_eq!(server(call_tcp(None, "127.0.0.1:54323").unwrap()), "one");
        assert_eq!(server(call_tcp(None, "192.0.2.7:54323").unwrap()), "two");
        assert_eq!(server(call_udp(None, "192.0.2.7:54323", 9).unwrap()), "three");
        // As in the conformance test: to the loopback address, from the node's address.
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind("192.0.2.7:0".parse().unwrap()).unwrap();
        let mut stream = socket.connect("127.0.0.1:54323".parse().unwrap()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "one 192.0.2.7");
        let same = pods.attach("four", &[host_port(Tcp, Some("127.0.0.1"), 54323, 1)]).await;
        assert_eq!(same.unwrap_err().to_string(), "host port 54323/TCP is in use by one");
        assert!(pods.find("four").is_none());
    });
}

#[test]
fn a_pod_cannot_reach_servers_on_the_nodes_loopback() {
    isolated(|directory| async move {
        let pods = open(&directory).await;
        let ports = [host_port(Tcp, None, 8080, 80)];
        let pod = pods.attach("a", &ports).await.unwrap();
        serve_tcp(None, 9000, "node");
        inside(&pod.netns, || {
            run("ip address del 127.0.0.1/8 dev lo");
            run("echo 1 > /proc/sys/net/ipv4/conf/all/route_localnet");
            run("ip route add 127.0.0.1/32 via 10.77.3.1 dev eth0 onlink src 10.77.3.2");
        });
        let error = call_tcp_within(Some(&pod.netns), "127.0.0.1:9000", SHORT).unwrap_err();
        assert_eq!(error, std::io::ErrorKind::TimedOut);
        // Without the guard it would reach the server.
        run("nft flush chain ip landfall-pods loopback-guard");
        assert_eq!(call_tcp(Some(&pod.netns), "127.0.0.1:9000"), Ok("node 10.77.3.2".into()));
    });
}

#[test]
fn a_udp_client_that_keeps_its_port_reaches_the_current_pod() {
    // NET-11: no conntrack entry of the old pod is left.
    isolated(|directory| async move {
        let outside = outside(&directory);
        let pods = open(&directory).await;
        let ports = [host_port(Udp, None, 8125, 53)];
        let client = inside(&outside, || std::net::UdpSocket::bind("0.0.0.0:5000").unwrap());
        client.set_read_timeout(Some(SHORT)).unwrap();
        let ask = || {
            client.send_to(b"x", "192.0.2.1:8125").ok()?;
            let mut buffer = [0; 100];
            let length = client.recv(&mut buffer).ok()?;
            Some(String::from_utf8_lossy(&buffer[..length]).to_string())
        };
        assert_eq!(ask(), None);
        for name in ["first", "second"] {
            let pod = pods.attach(name, &ports).await.unwrap();
            serve_udp(&pod.netns, 53, name);
            assert_eq!(ask(), Some(format!("{name} 192.0.2.2")));
            pods.detach(name).await.unwrap();
        }
    });
}

#[test]
fn a_second_attach_replaces_the_host_ports() {
    isolated(|directory| async move {
        let pods = open(&directory).await;
        let pod = pods.attach("a", &[]).await.unwrap();
        serve_tcp(Some(&pod.netns), 80, "pod");
        let again = pods.attach("a", &[host_port(Tcp, None, 8080, 80)]).await.unwrap();
        assert_eq!(again, pod);
        assert_eq!(call_tcp(None, "127.0.0.1:8080"), Ok("pod 10.77.3.1".into()));
        pods.attach("a", &[host_port(Tcp, None, 8081, 80)]).await.unwrap();
        assert_eq!(call_tcp(None, "127.0.0.1:8081"), Ok("pod 10.77.3.1".into()));
        assert!(call_tcp(None, "127.0.0.1:8080").is_err());
    });
}

#[test]
fn a_new_process_keeps_complete_attachments_and_removes_the_rest() {
    isolated(|directory| async move {
        let before = open(&directory).await;
        let ports = [host_port(Tcp, None, 8080, 80)];
        let pod = before.attach("kept", &ports).await.unwrap();
        before.attach("broken", &[]).await.unwrap();
        before.attach("unknown", &[]).await.unwrap();
        serve_tcp(Some(&pod.netns), 80, "pod");
        std::mem::forget(before); // The process was killed.
        // Attaching "broken" had not finished, and another program has emptied the table.
        let record = directory.join("state/pods/broken.json");
        let text = std::fs::read_to_string(&record).unwrap();
        std::fs::write(&record, text.replace("\"complete\":true", "\"complete\":false")).unwrap();
        run("nft flush table ip landfall-pods");

        let after = open(&directory).await;
        assert_eq!(after.find("kept"), Some(pod.clone()));
        assert_eq!(after.find("broken"), None);
        assert!(!directory.join("netns/broken").exists());
        assert_eq!(call_tcp(None, "127.0.0.1:8080"), Ok("pod 10.77.3.1".into()));
        after.retain(&BTreeSet::from(["kept".to_string()])).await.unwrap();
        assert_eq!(after.find("unknown"), None);
        assert_eq!(run("ip -o link").matches("lf0p").count(), 1);
        // A new pod gets an address that is not in use and was not in use recently.
        let next = after.attach("next", &[]).await.unwrap();
        assert_eq!(address(&next), "10.77.3.5");
        assert_eq!(after.attach("kept", &ports).await.unwrap(), pod);
    });
}

#[test]
fn a_table_that_another_program_deleted_is_restored() {
    isolated(|directory| async move {
        let pods = open(&directory).await;
        let pod = pods.attach("a", &[host_port(Tcp, None, 8080, 80)]).await.unwrap();
        serve_tcp(Some(&pod.netns), 80, "pod");
        run("nft delete table ip landfall-pods");
        pods.attach("b", &[host_port(Tcp, None, 8081, 80)]).await.unwrap();
        assert_eq!(call_tcp(None, "127.0.0.1:8080"), Ok("pod 10.77.3.1".into()));
        pods.detach("a").await.unwrap();
        assert!(!rules().contains("8080") && rules().contains("8081"));
    });
}

#[test]
fn remove_leaves_nothing_behind() {
    isolated(|directory| async move {
        let (links, routes) = (run("ip -br link"), run("ip route show table all"));
        let pods = open(&directory).await;
        for key in ["a", "b", "c"] {
            pods.attach(key, &[]).await.unwrap();
        }
        pods.detach("b").await.unwrap();
        pods.detach("b").await.unwrap();
        pods.detach("never").await.unwrap();
        pods.remove().await.unwrap();
        assert_eq!(run("ip -br link"), links);
        assert_eq!(run("ip route show table all"), routes);
        assert_eq!(rules(), "");
        let left: Vec<_> = std::fs::read_dir(&directory).unwrap().flatten().collect();
        let left: Vec<_> = left.iter().map(|entry| entry.file_name()).collect();
        assert_eq!(left, ["state"], "{left:?}");
        let path = directory.display().to_string();
        assert!(!run("cat /proc/self/mountinfo").contains(&path));
    });
}

#[test]
fn an_exhausted_range_is_an_error_until_an_address_is_released() {
    isolated(|directory| async move {
        let small = network::PodsConfig { cidrs: vec![cidr("10.77.3.0/30")], ..config(&directory) };
        let pods = network::Pods::open(small).await.unwrap();
        pods.attach("a", &[]).await.unwrap();
        let full = pods.attach("b", &[]).await.unwrap_err();
        assert_eq!(full.to_string(), "no pod address is free in 10.77.3.0/30");
        pods.detach("a").await.unwrap();
        pods.attach("b", &[]).await.unwrap();
        assert!(pods.attach("../b", &[]).await.is_err());
    });
}

#[test]
fn dual_stack_pods_have_one_address_per_family() {
    // NET-13, N-73: at most one address per family.
    isolated(|directory| async move {
        let both = network::PodsConfig {
            cidrs: vec![cidr(POD_RANGE), cidr("fd77:3::/64")],
            ..config(&directory)
        };
        let pods = network::Pods::open(both).await.unwrap();
        let a = pods.attach("a", &[host_port(Tcp, None, 8080, 80)]).await.unwrap();
        let b = pods.attach("b", &[]).await.unwrap();
        assert_eq!(b.addresses, [ip("10.77.3.3"), ip("fd77:3::3")]);
        serve_tcp(Some(&a.netns), 80, "a");
        assert_eq!(call_tcp(Some(&b.netns), "[fd77:3::2]:80"), Ok("a fd77:3::3".into()));
        assert_eq!(call_tcp(None, "[fd77:3::2]:80"), Ok("a fd77:3::1".into()));
        assert_eq!(call_tcp(None, "[fd77:3::1]:8080"), Ok("a fd77:3::1".into()));
        assert_eq!(call_tcp(Some(&b.netns), "[fd77:3::1]:8080"), Ok("a fd77:3::3".into()));
        assert_eq!(call_tcp(Some(&a.netns), "[fd77:3::1]:8080"), Ok("a fd77:3::1".into()));
        pods.remove().await.unwrap();
        assert_eq!(rules(), "");
    });
}
