//! Routes between nodes: direct to neighbours, through the overlay to the others.

use crate::isolated::{SHORT, call_tcp, call_udp, inside, ip, isolated};
use crate::three_nodes::{Known, Node, connect, start, start_connected};
use network::{Cidr, Error, OverlayState};
use std::io::{BufRead, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;

/// Every pod calls every pod of another node by TCP and with 2000 bytes of UDP, over IPv4 and IPv6, and the
/// server sees the address of the calling pod.
fn check_all_pairs(nodes: &[Node]) {
    for from in nodes {
        for to in nodes.iter().filter(|to| to.name != from.name) {
            check_pair(from, to);
        }
    }
}

fn check_pair(from: &Node, to: &Node) {
    for ipv4 in [true, false] {
        let server = std::net::SocketAddr::new(to.pod_ip(ipv4), 80).to_string();
        let expected = format!("{} {}", to.name, from.pod_ip(ipv4));
        let netns = Some(from.pod.netns.as_path());
        assert_eq!(call_tcp(netns, &server).as_ref(), Ok(&expected), "from {}", from.name);
        assert_eq!(call_udp(netns, &server, 2000).as_ref(), Some(&expected), "from {}", from.name);
    }
}

#[test]
fn pods_of_all_nodes_reach_each_other_with_their_own_addresses() {
    // NET-2, NET-3, NET-8: no address translation between pods, and fragments arrive.
    isolated(|directory| async move {
        let nodes = start_connected(&directory).await;
        check_all_pairs(&nodes);
        let routes = nodes[0].run("ip route show proto 108; ip -6 route show proto 108");
        let expected = [
            "10.77.2.0/24 via 192.0.2.2 dev eth0 src 10.77.1.1 metric 108 mtu 1450",
            "10.77.3.0/24 via 10.77.3.1 dev lf0v src 10.77.1.1 metric 108 onlink",
            "fd77:2::/64 via 2001:db8:1::2 dev eth0 src fd77:1::1 metric 108 mtu 1450 pref medium",
            "fd77:3::/64 via fe80::26c:aff:fe4d:300 dev lf0v src fd77:1::1 metric 108 onlink pref medium",
        ];
        let found: Vec<&str> = routes.lines().map(str::trim).collect();
        assert_eq!(found, expected);
    });
}

#[test]
fn a_node_reaches_pods_on_all_nodes() {
    // NET-4: the pod's reply goes to the node's own address in the pod range.
    isolated(|directory| async move {
        let nodes = start_connected(&directory).await;
        for from in &nodes {
            for to in &nodes {
                for ipv4 in [true, false] {
                    let server = std::net::SocketAddr::new(to.pod_ip(ipv4), 80).to_string();
                    let source = from.pods.gateways()[usize::from(!ipv4)].1;
                    let expected = format!("{} {source}", to.name);
                    let (tcp, udp) = (server.clone(), server);
                    let netns = Some(from.netns.as_path());
                    assert_eq!(call_tcp(netns, &tcp).as_ref(), Ok(&expected), "{}", from.name);
                    assert_eq!(call_udp(netns, &udp, 2000), Some(expected), "{}", from.name);
                }
            }
        }
    });
}

#[test]
fn packets_that_leave_the_cluster_are_still_masqueraded() {
    // NET-5: masquerading ends at the pod ranges of all nodes.
    isolated(|directory| async move {
        let nodes = start_connected(&directory).await;
        crate::isolated::serve_tcp(None, 8000, "router");
        let answer = call_tcp(Some(&nodes[0].pod.netns), "192.0.2.254:8000");
        assert_eq!(answer, Ok("router 192.0.2.1".into()));
        // Without the range of node b its pods see the address of node a.
        nodes[0].pods.set_cluster_ranges(&nodes[2].config.cidrs).await.unwrap();
        let answer = call_tcp(Some(&nodes[0].pod.netns), "10.77.2.2:80");
        assert_eq!(answer, Ok("b 192.0.2.1".into()));
        connect(&nodes[0], &nodes).await;
        check_pair(&nodes[0], &nodes[1]);
    });
}

#[test]
fn cluster_ranges_survive_a_deleted_table() {
    isolated(|directory| async move {
        let nodes = start_connected(&directory).await;
        nodes[0].run("nft delete table ip landfall-pods");
        let more: Vec<Cidr> = vec!["10.99.0.0/16".parse().unwrap()];
        let ranges = [&nodes[1].config.cidrs[..], &nodes[2].config.cidrs, &more].concat();
        nodes[0].pods.set_cluster_ranges(&ranges).await.unwrap();
        let set = nodes[0].run("nft list set ip landfall-pods cluster-ranges");
        for range in ["10.77.1.0/24", "10.77.2.0/24", "10.77.3.0/24", "10.99.0.0/16"] {
            assert!(set.contains(range), "{set}");
        }
        check_pair(&nodes[0], &nodes[1]);
    });
}

#[test]
fn routes_to_a_node_that_left_are_removed_and_foreign_routes_stay() {
    isolated(|directory| async move {
        let nodes = start_connected(&directory).await;
        let a = &nodes[0];
        // A route of another program, one that looks like ours but belongs to another instance, and one that
        // an administrator prefers to ours.
        a.run("ip route add 203.0.113.0/24 via 192.0.2.2");
        a.run("ip address add 10.88.0.1/32 dev lo");
        a.run("ip route add 10.88.9.0/24 via 192.0.2.2 proto 108 src 10.88.0.1");
        a.run("ip route add 10.77.2.0/24 via 192.0.2.254");
        connect(a, &nodes).await;
        let foreign = "grep -v 'proto 108.* src 10.77.1.1'";
        let before = a.run(&format!("ip route | {foreign}"));
        assert!(before.contains("10.88.9.0/24") && before.contains("10.77.2.0/24"), "{before}");

        a.set_routes(&[nodes[1].known()]).await.unwrap();
        let routes = a.run("ip route show proto 108; ip -6 route show proto 108");
        assert!(routes.contains("10.77.2.0/24") && !routes.contains("77:3"), "{routes}");
        assert!(!routes.contains("10.77.3.0"), "{routes}");
        assert!(!a.run("bridge fdb show dev lf0v").contains("198.51.100.3"));
        assert_eq!(a.run("ip neighbour show dev lf0v; ip -6 neighbour show dev lf0v"), "");

        let state = a.set_routes(&[]).await.unwrap();
        assert_eq!(state, OverlayState::Unused);
        assert_eq!(a.run("ip route show proto 108 src 10.77.1.1; ip -6 route show proto 108"), "");
        assert!(!a.run("ip -o link").contains("lf0v"));
        assert!(!a.run("nft list tables").contains("overlay"));
        assert_eq!(a.run(&format!("ip route | {foreign}")), before);
    });
}

#[test]
fn a_node_that_changes_its_address_stays_reachable() {
    isolated(|directory| async move {
        let mut nodes = start_connected(&directory).await;
        let overlay = nodes[0].run("ip -o link show lf0v");
        nodes[2].run(
            "ip address add 198.51.100.33/24 dev eth0; ip address del 198.51.100.3/24 dev eth0",
        );
        nodes[2].run("ip address add 198.51.100.33/24 dev eth0 || true; ip route replace default via 198.51.100.254");
        nodes[2].addresses[0] = ip("198.51.100.33");
        // A neighbour as well.
        nodes[1].run("ip address add 192.0.2.22/24 dev eth0; ip address del 192.0.2.2/24 dev eth0");
        nodes[1].run("ip address add 192.0.2.22/24 dev eth0 || true; ip route replace default via 192.0.2.254");
        nodes[1].addresses[0] = ip("192.0.2.22");
        for node in &nodes {
            connect(node, &nodes).await;
        }
        check_all_pairs(&nodes);
        let entries = nodes[0].run("bridge fdb show dev lf0v");
        assert!(
            entries.contains("198.51.100.33") && !entries.contains("198.51.100.3 "),
            "{entries}"
        );
        assert_eq!(nodes[0].run("ip -o link show lf0v"), overlay, "the device was not replaced");
    });
}

/// A connection that stays open: every call sends a line and waits for the same line.
struct Echo(TcpStream);

impl Echo {
    fn connect(server: &Path, client: &Path, address: &str) -> Echo {
        let listener = inside(server, || TcpListener::bind("0.0.0.0:7")).unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut buffer = [0; 64];
            while let Ok(length @ 1..) = stream.read(&mut buffer) {
                let _ = stream.write_all(&buffer[..length]);
            }
        });
        let address = format!("{address}:7");
        let stream = inside(client, move || TcpStream::connect(address)).unwrap();
        stream.set_read_timeout(Some(crate::isolated::PATIENCE)).unwrap();
        Echo(stream)
    }

    fn check(&mut self) {
        self.0.write_all(b"still here").unwrap();
        let mut answer = [0; 10];
        self.0.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"still here");
    }
}

/// Changes of routes and neighbours that the kernel reports.
struct Monitor {
    process: std::process::Child,
    lines: std::sync::mpsc::Receiver<String>,
}

impl Monitor {
    fn start(node: &Node) -> Monitor {
        let mut process = inside(&node.netns, || {
            let mut command = std::process::Command::new("ip");
            command.args(["-o", "monitor", "route", "neigh"]);
            command.stdout(std::process::Stdio::piped()).spawn().unwrap()
        });
        let output = std::io::BufReader::new(process.stdout.take().unwrap());
        let (sender, lines) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let monitor = Monitor { process, lines };
        let heard = (0..100).any(|_| monitor.hears_a_change(node));
        assert!(heard, "ip monitor reports nothing");
        monitor
    }

    fn hears_a_change(&self, node: &Node) -> bool {
        node.run("ip route add blackhole 203.0.113.1; ip route del blackhole 203.0.113.1");
        self.lines.recv_timeout(SHORT).is_ok()
    }

    /// All changes since the start.
    fn stop(mut self, node: &Node) -> Vec<String> {
        node.run("ip route add blackhole 203.0.113.2; ip route del blackhole 203.0.113.2");
        let mut seen = Vec::new();
        while let Ok(line) = self.lines.recv_timeout(crate::isolated::PATIENCE) {
            if line.contains("203.0.113.2") {
                break;
            }
            seen.push(line);
        }
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        seen
    }
}

#[test]
fn connections_survive_a_crash_and_routes_are_adopted() {
    isolated(|directory| async move {
        let mut nodes = start_connected(&directory).await;
        let (server, client) = (nodes[2].pod.netns.clone(), nodes[0].pod.netns.clone());
        let mut connection = Echo::connect(&server, &client, "10.77.3.2");
        let mut from_outside = Echo::connect(&client, &server, "10.77.1.2");
        let state = "ip -o link show lf0v; ip route; ip -6 route; bridge fdb show dev lf0v";
        let before = nodes[0].run(state);

        nodes[0].restart();
        connection.check();
        from_outside.check();
        // The list of Nodes is not known yet. New connections work and keep their source.
        check_pair(&nodes[0], &nodes[2]);
        check_pair(&nodes[2], &nodes[0]);
        assert_eq!(nodes[0].run(state), before);

        // Nothing changes in the kernel if the Nodes are the same.
        let monitor = Monitor::start(&nodes[0]);
        connect(&nodes[0], &nodes).await;
        let seen = monitor.stop(&nodes[0]);
        assert!(
            !seen.iter().any(|line| line.contains("10.77.") || line.contains("lf0")),
            "{seen:?}"
        );
        connection.check();
        from_outside.check();
        assert_eq!(nodes[0].run(state), before);
    });
}

#[test]
fn entries_that_a_crashed_process_left_are_removed() {
    isolated(|directory| async move {
        let mut nodes = start_connected(&directory).await;
        // Node c leaves while node a is down. A process was killed before it marked the device.
        nodes[0].run("ip link set lf0v alias ''");
        nodes[0].restart();
        nodes[0].set_routes(&[nodes[1].known()]).await.unwrap();
        assert!(
            !nodes[0].run("ip route; ip -6 route; bridge fdb show dev lf0v").contains(".3.0/24")
        );
        assert!(!nodes[0].run("bridge fdb show dev lf0v").contains("198.51.100.3"));
        check_pair(&nodes[0], &nodes[1]);
    });
}

#[test]
fn routes_that_the_kernel_or_another_program_deleted_return() {
    isolated(|directory| async move {
        let nodes = start_connected(&directory).await;
        nodes[0].run("ip link set eth0 down; ip link set eth0 up");
        nodes[0].run("ip address replace 2001:db8:1::1/64 dev eth0 nodad");
        nodes[0].run(
            "ip route add default via 192.0.2.254; ip -6 route replace default via 2001:db8:1::fe",
        );
        nodes[0].run("bridge fdb del 02:6c:0a:4d:03:00 dst 198.51.100.3 dev lf0v");
        assert!(call_udp(Some(&nodes[0].pod.netns), "10.77.3.2:80", 9).is_none());
        connect(&nodes[0], &nodes).await;
        for to in &nodes[1..] {
            let server = format!("{}:80", to.pod_ip(true));
            let expected = format!("{} 10.77.1.2", to.name);
            assert_eq!(call_tcp(Some(&nodes[0].pod.netns), &server), Ok(expected));
        }
        nodes[0].run("ip link delete lf0v");
        connect(&nodes[0], &nodes).await;
        check_pair(&nodes[0], &nodes[2]);
    });
}

#[test]
fn one_node_may_route_directly_while_the_other_uses_the_overlay() {
    isolated(|directory| async move {
        let nodes = start_connected(&directory).await;
        let others = [nodes[1].known(), nodes[2].known()];
        let routes = nodes[0].plan(&others, false).await;
        assert!(routes.direct.is_empty());
        nodes[0].pods.set_routes(&routes).await.unwrap();
        let to_b = nodes[0].run("ip route show 10.77.2.0/24 proto 108");
        assert!(to_b.contains("dev lf0v"), "{to_b}");
        check_all_pairs(&nodes);
        // Also if the kernel checks source addresses strictly by default.
        nodes[1].run("echo 1 > /proc/sys/net/ipv4/conf/all/rp_filter");
        check_pair(&nodes[0], &nodes[1]);
        check_pair(&nodes[1], &nodes[2]);
    });
}

#[test]
fn remove_leaves_nothing_of_the_routes_behind() {
    isolated(|directory| async move {
        let mut nodes = start(&directory).await;
        let state = "ip -br link | grep -v lf0; ip route; ip -6 route; nft list tables";
        nodes[0].pods.remove().await.unwrap();
        let before = nodes[0].run(state);
        // Also after a crash, with a process that knows only the configuration of the node.
        for crash in [false, true] {
            nodes[0].restart();
            connect(&nodes[0], &nodes).await;
            assert!(nodes[0].run("ip -o link").contains("lf0v"));
            if crash {
                nodes[0].restart();
            }
            nodes[0].pods.remove().await.unwrap();
            assert_eq!(nodes[0].run(state), before, "after a crash: {crash}");
            assert!(!nodes[0].run("ip -o link").contains("lf0"));
        }
    });
}

#[test]
fn a_foreign_device_with_the_overlays_name_is_reported_and_direct_routes_work() {
    isolated(|directory| async move {
        let nodes = start(&directory).await;
        nodes[0].run("ip link add lf0v type bridge");
        connect(&nodes[1], &nodes).await;
        let others: Vec<Known> = nodes[1..].iter().map(Node::known).collect();
        let error = nodes[0].set_routes(&others).await.unwrap_err();
        assert!(matches!(error, Error::LinkTaken { .. }), "{error}");
        check_pair(&nodes[0], &nodes[1]);
        nodes[0].pods.remove().await.unwrap();
        assert!(nodes[0].run("ip -o link").contains("lf0v"));
    });
}
