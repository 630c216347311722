//! Pods on the real kernel: who reaches whom, and as whom.

use crate::world::{
    POD_RANGE, SHORT, address, alone, call_tcp, call_tcp_within, call_udp, cidr, config, host_port,
    inside, ip, open, outside, rules, run, serve_tcp, serve_udp,
};
use network::Protocol::{Tcp, Udp};
use std::collections::BTreeSet;
use tokio::io::AsyncReadExt;

#[test]
fn two_pods_talk_and_see_each_others_addresses() {
    // NET-1, NET-2, NET-3, NET-8.
    alone(|directory| async move {
        let pods = open(&directory).await;
        let (a, b) = (pods.attach("a", &[]).await.unwrap(), pods.attach("b", &[]).await.unwrap());
        assert_eq!((address(&a), address(&b)), ("10.77.3.2".into(), "10.77.3.3".into()));
        serve_tcp(Some(&b.netns), 8083, "b");
        serve_udp(&b.netns, 8081, "b");
        assert_eq!(call_tcp(Some(&a.netns), "10.77.3.3:8083"), Ok("b 10.77.3.2".into()));
        assert_eq!(call_udp(Some(&a.netns), "10.77.3.3:8081", 2000), Some("b 10.77.3.2".into()));
        // Its own loopback, and itself by its own address.
        assert_eq!(call_tcp(Some(&b.netns), "127.0.0.1:8083"), Ok("b 127.0.0.1".into()));
        assert_eq!(call_tcp(Some(&b.netns), "10.77.3.3:8083"), Ok("b 10.77.3.3".into()));
    });
}

#[test]
fn the_node_reaches_pods_and_pods_reach_the_node() {
    // NET-4.
    alone(|directory| async move {
        let pods = open(&directory).await;
        let pod = pods.attach("a", &[]).await.unwrap();
        serve_tcp(Some(&pod.netns), 80, "pod");
        serve_tcp(None, 9000, "node");
        assert_eq!(call_tcp(None, "10.77.3.2:80"), Ok("pod 10.77.3.1".into()));
        assert_eq!(call_tcp(Some(&pod.netns), "10.77.3.1:9000"), Ok("node 10.77.3.2".into()));
        assert_eq!(pods.gateways(), [ip("10.77.3.1")]);
    });
}

#[test]
fn an_address_that_nobody_has_is_unreachable_at_once() {
    alone(|directory| async move {
        let pods = open(&directory).await;
        let pod = pods.attach("a", &[]).await.unwrap();
        let error = call_tcp(Some(&pod.netns), "10.77.3.99:80").unwrap_err();
        assert_eq!(error, std::io::ErrorKind::HostUnreachable);
    });
}

#[test]
fn only_what_leaves_the_cluster_is_masqueraded() {
    // NET-5.
    alone(|directory| async move {
        let outside = outside(&directory);
        let pods = open(&directory).await;
        let pod = pods.attach("a", &[]).await.unwrap();
        serve_tcp(Some(&outside), 80, "outside");
        assert_eq!(call_tcp(Some(&pod.netns), "192.0.2.2:80"), Ok("outside 192.0.2.1".into()));
        // The same place under an address of the cluster's range: a pod of another node.
        inside(&outside, || {
            run("ip address add 10.77.9.9/32 dev lo; ip route add 10.77.3.0/24 via 192.0.2.1")
        });
        run("ip route add 10.77.9.0/24 via 192.0.2.2");
        assert_eq!(call_tcp(Some(&pod.netns), "10.77.9.9:80"), Ok("outside 10.77.3.2".into()));
    });
}

#[test]
fn what_is_for_a_service_that_nobody_answers_for_does_not_leave_the_node() {
    alone(|directory| async move {
        let outside = outside(&directory);
        inside(&outside, || run("ip address add 10.96.0.1/32 dev lo"));
        run("ip route add default via 192.0.2.2");
        let pods = open(&directory).await;
        let pod = pods.attach("a", &[]).await.unwrap();
        serve_tcp(Some(&outside), 443, "a stranger");
        serve_udp(&outside, 53, "a stranger");
        let refused = call_tcp(Some(&pod.netns), "10.96.0.1:443").unwrap_err();
        assert_eq!(refused, std::io::ErrorKind::ConnectionRefused);
        assert_eq!(call_udp(Some(&pod.netns), "10.96.0.1:53", 9), None);
        // Others may have that address to themselves.
        assert!(call_tcp(Some(&pod.netns), "192.0.2.2:443").is_ok());
        assert!(call_tcp(None, "10.96.0.1:443").is_ok());
    });
}

#[test]
fn host_ports_lead_to_the_pod_from_everywhere() {
    // N-51, NET-9, NET-11.
    alone(|directory| async move {
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
        // The pod itself: it must not see itself as the caller.
        assert_eq!(call_tcp(Some(&pod.netns), "192.0.2.1:8080"), Ok("pod 10.77.3.1".into()));
        pods.detach("a").await.unwrap();
        let error = call_tcp(None, "127.0.0.1:8080").unwrap_err();
        assert_eq!(error, std::io::ErrorKind::ConnectionRefused);
    });
}

#[test]
fn one_host_port_with_other_addresses_or_protocols_reaches_other_pods() {
    // N-51, NET-9: three pods on port 54323.
    alone(|directory| async move {
        run("ip address add 192.0.2.7/32 dev lo");
        let pods = open(&directory).await;
        let wanted = [
            ("one", host_port(Tcp, Some("127.0.0.1"), 54323, 80)),
            ("two", host_port(Tcp, Some("192.0.2.7"), 54323, 80)),
            ("three", host_port(Udp, Some("192.0.2.7"), 54323, 80)),
        ];
        for (name, port) in wanted {
            let pod = pods.attach(name, &[port]).await.unwrap();
            serve_tcp(Some(&pod.netns), 80, name);
            serve_udp(&pod.netns, 80, name);
        }
        let said = |said: String| said.split(' ').next().unwrap().to_string();
        assert_eq!(said(call_tcp(None, "127.0.0.1:54323").unwrap()), "one");
        assert_eq!(said(call_tcp(None, "192.0.2.7:54323").unwrap()), "two");
        assert_eq!(said(call_udp(None, "192.0.2.7:54323", 9).unwrap()), "three");
        // As the conformance test dials: the loopback address, from the node's.
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
fn a_pod_cannot_reach_what_listens_on_the_nodes_loopback() {
    alone(|directory| async move {
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
        // It is the guard that stops it, nothing else.
        run("nft flush chain ip landfall-pods loopback-guard");
        assert_eq!(call_tcp(Some(&pod.netns), "127.0.0.1:9000"), Ok("node 10.77.3.2".into()));
    });
}

#[test]
fn a_udp_client_that_keeps_its_port_finds_the_pod_that_is_there_now() {
    // NET-11.
    alone(|directory| async move {
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
fn host_ports_become_those_of_the_last_call() {
    alone(|directory| async move {
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
fn a_new_process_adopts_what_was_finished_and_takes_away_the_rest() {
    alone(|directory| async move {
        let before = open(&directory).await;
        let ports = [host_port(Tcp, None, 8080, 80)];
        let pod = before.attach("kept", &ports).await.unwrap();
        before.attach("broken", &[]).await.unwrap();
        before.attach("unknown", &[]).await.unwrap();
        serve_tcp(Some(&pod.netns), 80, "pod");
        std::mem::forget(before); // A process that is killed says no goodbye.
        // "broken" was being made; the table was damaged by somebody.
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
        // Nobody gets an address that is taken, or was given a moment ago.
        let next = after.attach("next", &[]).await.unwrap();
        assert_eq!(address(&next), "10.77.3.5");
        assert_eq!(after.attach("kept", &ports).await.unwrap(), pod);
    });
}

#[test]
fn a_table_that_somebody_emptied_is_written_anew() {
    alone(|directory| async move {
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
fn nothing_is_left_when_it_is_removed() {
    alone(|directory| async move {
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
        let place = directory.display().to_string();
        assert!(!run("cat /proc/self/mountinfo").contains(&place));
    });
}

#[test]
fn a_range_that_is_used_up_says_so_and_recovers() {
    alone(|directory| async move {
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
fn both_families_at_once() {
    // NET-13, N-73: one address of each family.
    alone(|directory| async move {
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
