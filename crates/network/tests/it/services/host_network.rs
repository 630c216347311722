//! Endpoints in the network of a host, and clients that are pods of another node.

use super::*;

fn at(endpoint: &str) -> ServiceEntry {
    ServiceEntry { endpoints: [endpoint.parse().unwrap()].into(), ..ServiceEntry::default() }
}

/// NET-33: an endpoint may be a node's address, of this node or of another one. Pods, this node and a host outside
/// reach it by ClusterIP and node port.
#[test]
fn net_33_endpoints_may_be_addresses_of_nodes() {
    isolated(|directory| async move {
        let mut node = Node::new(&directory).await;
        let client = node.pod("client").await;
        serve_tcp(None, 9090, "this-node");
        serve_tcp(Some(&node.outside), 9090, "other-node");
        for (endpoint, name) in [("192.0.2.1:9090", "this-node"), ("192.0.2.2:9090", "other-node")]
        {
            let mut rules = service(&[], at(endpoint));
            rules.entries.insert(
                frontend(NODE_IP, 30080),
                ServiceEntry { masquerade: true, ..at(endpoint) },
            );
            if name == "this-node" {
                rules.local_endpoints.insert(ip(NODE_IP));
            }
            node.set("d/s", rules);
            let clients = [Some(client.netns.clone()), None];
            for from in clients.iter().map(|netns| netns.as_deref()) {
                for to in ["10.96.0.9:80", "192.0.2.1:30080"] {
                    let seen = call_tcp(from, to).unwrap();
                    assert!(seen.starts_with(name), "{from:?} {to}: {seen}");
                }
            }
            // The second one is the endpoint's own node, which gets its own connection back.
            let seen = call_tcp(Some(&node.outside), "192.0.2.1:30080").unwrap();
            assert!(seen.starts_with(name), "{seen}");
            if name == "this-node" {
                let seen = call_tcp(Some(&client.netns), "10.96.0.9:80").unwrap();
                assert_eq!(seen, format!("this-node {}", address(&client)), "the source is kept");
            }
        }
        assert!(node.services.verify().unwrap());
    });
}

/// NET-32: sources in a pod range of the cluster are pods, also those of other nodes. Their address is kept at a
/// ClusterIP, and with the policy Local they reach all endpoints at a node port.
#[test]
fn net_32_pods_of_other_nodes_are_pods() {
    isolated(|directory| async move {
        let mut node = Node::new(&directory).await;
        let (here, there) = (node.pod("here").await, node.pod("there").await);
        run("ip address add 198.51.100.1/32 dev lo; ip route add 10.77.9.0/24 via 192.0.2.2");
        // The host outside is another node for destinations that it reaches with the address of a pod.
        inside(&node.outside, || {
            run("ip address add 10.77.9.5/32 dev lo
                 ip route add 10.96.0.9 via 192.0.2.1 src 10.77.9.5
                 ip route add 198.51.100.1 via 192.0.2.1 src 10.77.9.5
                 ip route add 10.96.0.10 via 192.0.2.1")
        });
        let both = entry(&[&here, &there]);
        let local = ServiceEntry { outside: Some(endpoints(&[&here])), ..both.clone() };
        let mut rules = service(&[&here, &there], both.clone());
        rules.entries.extend([
            (frontend("10.96.0.10", 80), both),
            (frontend(NODE_IP, 30080), local.clone()),
            (frontend("198.51.100.1", 30080), local),
        ]);
        rules.cluster_ips.insert(ip("10.96.0.10"));
        node.set("d/s", rules);
        let outside = Some(node.outside.as_path());
        let sources = |to: &str| {
            let source = |_| call_tcp(outside, to).unwrap().split(' ').nth(1).unwrap().to_owned();
            (0..3).map(source).collect::<BTreeSet<String>>()
        };
        assert_eq!(sources("10.96.0.9:80"), ["10.77.9.5".to_owned()].into(), "a pod");
        assert_eq!(sources("10.96.0.10:80"), ["10.77.3.1".to_owned()].into(), "not a pod");
        assert_eq!(sources("198.51.100.1:30080"), ["10.77.9.5".to_owned()].into());
        assert_eq!(names(outside, "198.51.100.1:30080", 64).len(), 2, "a pod reaches all");
        assert_eq!(names(outside, "192.0.2.1:30080", 20), ["here".to_owned()].into());
    });
}
