//! Cases of the rules, one by one.

use super::{NODE, Node, pod, policy, with_ports};
use client::ObjectKey;
use k8s_openapi::api::core::v1::Pod;
use network::Protocol;
use serde_json::{Value, json};
use std::net::IpAddr;

const A: &str = "10.77.3.2";
const B: &str = "10.77.3.3";
/// On another node, in another namespace.
const C: &str = "10.77.9.4";
const OUTSIDE: &str = "192.0.2.2";

/// Pods x/a and x/b on this node, y/c on another one. The namespace y has the label team=red.
fn three_pods() -> Node {
    let mut node = Node::new();
    node.namespace("x", json!({"kubernetes.io/metadata.name": "x"}));
    node.namespace("y", json!({"kubernetes.io/metadata.name": "y", "team": "red"}));
    for (key, on, address) in [("x/a", NODE, A), ("x/b", NODE, B), ("y/c", "n2", C)] {
        node.pod(&named(key, on, address));
    }
    node
}

fn named(key: &str, on: &str, address: &str) -> Pod {
    let name = key.split('/').nth(1).unwrap();
    pod(key, &format!("uid-{name}"), json!({"pod": name}), on, &[address])
}

/// Which of a, b, c and a host outside reach port 80 of `to` or are reached from it.
fn reachable(node: &Node, pod: &str, inbound: bool) -> String {
    let all = [("a", A), ("b", B), ("c", C), ("o", OUTSIDE)];
    let reached = all.iter().filter(|(_, address)| match inbound {
        true => node.tcp(address, pod, 80),
        false => node.tcp(pod, address, 80),
    });
    reached.map(|(name, _)| *name).collect()
}

#[test]
fn net_125_net_128_peers_of_a_policy() {
    let from = |peers: Value| json!([{ "from": peers }]);
    let a = json!({"podSelector": {"matchLabels": {"pod": "a"}}});
    let red = json!({"namespaceSelector": {"matchLabels": {"team": "red"}}});
    let named_y =
        json!({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "y"}}});
    let expression = json!({"podSelector": {"matchExpressions": [{"key": "pod", "operator": "NotIn", "values": ["a"]}]}});
    // `b` always reaches itself (NET-131).
    for (name, ingress, expected) in [
        ("deny", json!([]), "b"),
        ("missing list", json!(null), "b"),
        ("allow all", json!([{}]), "abco"),
        ("empty peers", from(json!([])), "abco"),
        ("pod selector", from(json!([a])), "ab"),
        ("all pods of the namespace", from(json!([{"podSelector": {}}])), "ab"),
        ("namespace selector", from(json!([red])), "bc"),
        ("default namespace label", from(json!([named_y])), "bc"),
        ("all namespaces", from(json!([{"namespaceSelector": {}}])), "abc"),
        ("either", from(json!([a, red])), "abc"),
        (
            "both",
            from(
                json!([{"podSelector": a["podSelector"], "namespaceSelector": red["namespaceSelector"]}]),
            ),
            "b",
        ),
        ("expression", from(json!([expression])), "b"),
        ("block", from(json!([{"ipBlock": {"cidr": "192.0.2.0/24"}}])), "bo"),
        (
            "except",
            from(json!([{"ipBlock": {"cidr": "0.0.0.0/0", "except": ["10.77.9.0/24"]}}])),
            "abo",
        ),
        (
            "except does not override another rule",
            json!([{"from": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": ["10.77.9.0/24"]}}]}, {"from": [red]}]),
            "abco",
        ),
        ("port", json!([{"ports": [{"port": 80}]}]), "abco"),
        ("other port", json!([{"ports": [{"port": 81}]}]), "b"),
        ("peer and port", json!([{"from": [a], "ports": [{"port": 80}]}]), "ab"),
        ("port of another protocol", json!([{"ports": [{"port": 80, "protocol": "UDP"}]}]), "b"),
    ] {
        let mut node = three_pods();
        let spec = json!({"podSelector": {"matchLabels": {"pod": "b"}}, "policyTypes": ["Ingress"], "ingress": ingress});
        node.policy(&policy("x/p", spec));
        assert_eq!(reachable(&node, B, true), expected, "{name}");
        assert_eq!(reachable(&node, B, false), "abco", "{name}: the other direction");
        assert_eq!(reachable(&node, A, true), "abco", "{name}: another pod");
    }
}

#[test]
fn net_126_both_ends_must_allow_a_connection() {
    let mut node = three_pods();
    let b = json!({"matchLabels": {"pod": "b"}});
    let a = json!({"matchLabels": {"pod": "a"}});
    node.policy(&policy("x/out", json!({"podSelector": a, "policyTypes": ["Egress"], "egress": [{"to": [{"podSelector": b}]}]})));
    assert_eq!(reachable(&node, A, false), "ab");
    node.policy(&policy("x/in", json!({"podSelector": b, "policyTypes": ["Ingress"]})));
    assert_eq!(reachable(&node, A, false), "a");
    assert_eq!(reachable(&node, B, false), "abco");
}

#[test]
fn net_122_policy_types_follow_from_the_rules() {
    let mut node = three_pods();
    node.policy(&policy("x/p", json!({"podSelector": {}})));
    assert_eq!((reachable(&node, A, true), reachable(&node, A, false)), ("a".into(), "aco".into()));
    node.policy(&policy(
        "x/p",
        json!({"egress": [{"to": [{"ipBlock": {"cidr": "192.0.2.0/24"}}]}]}),
    ));
    assert_eq!((reachable(&node, A, true), reachable(&node, A, false)), ("a".into(), "ao".into()));
}

#[test]
fn net_129_ports_by_number_range_and_name() {
    let mut node = three_pods();
    let web = |key, on, address, port: u16| {
        with_ports(
            named(key, on, address),
            json!([
                {"name": "web", "containerPort": port}, {"name": "dns", "containerPort": 53, "protocol": "UDP"},
            ]),
        )
    };
    node.pod(&web("x/b", NODE, B, 8080));
    node.pod(&web("y/c", "n2", C, 9090));
    let allows = |node: &Node, to: &str| -> Vec<u16> {
        [53, 80, 81, 443, 8080, 9090].into_iter().filter(|port| node.tcp(A, to, *port)).collect()
    };
    for (ports, b, c) in [
        (json!([{"port": 80}]), vec![80], vec![80]),
        (json!([{"port": 80, "endPort": 443}]), vec![80, 81, 443], vec![80, 81, 443]),
        (json!([{"port": 80}, {"port": 443}, {"port": 81}]), vec![80, 81, 443], vec![80, 81, 443]),
        (json!([{"port": "web"}]), vec![8080], vec![9090]),
        (json!([{"port": "web", "protocol": "UDP"}]), vec![], vec![]),
        (json!([{"port": "dns"}]), vec![], vec![]),
        (json!([{"port": "none"}]), vec![], vec![]),
        (json!([{"protocol": "UDP"}]), vec![], vec![]),
        (
            json!([{"protocol": "TCP"}, {"port": 80}]),
            vec![53, 80, 81, 443, 8080, 9090],
            vec![53, 80, 81, 443, 8080, 9090],
        ),
        (json!([{"port": "web"}, {"port": 80}]), vec![80, 8080], vec![80, 9090]),
    ] {
        node.policy(&policy("x/p", json!({"podSelector": {"matchLabels": {"pod": "a"}}, "policyTypes": ["Egress"], "egress": [{"ports": ports}]})));
        assert_eq!((allows(&node, B), allows(&node, C)), (b, c), "{ports}");
    }
    node.policy(&policy("x/p", json!({"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{"ports": [{"port": "dns", "protocol": "UDP"}, {"protocol": "SCTP"}]}]})));
    assert!(node.allows(A, B, Protocol::Udp, 53) && !node.tcp(A, B, 53));
    assert!(node.allows(A, B, Protocol::Sctp, 9));
}

#[test]
fn net_128_label_changes_apply_like_policy_changes() {
    let mut node = three_pods();
    let red = json!({"namespaceSelector": {"matchLabels": {"team": "red"}}});
    node.policy(&policy("x/p", json!({"podSelector": {"matchLabels": {"pod": "b"}}, "policyTypes": ["Ingress"], "ingress": [{"from": [red]}]})));
    assert_eq!(reachable(&node, B, true), "bc");
    node.namespace("y", json!({"team": "blue"}));
    assert_eq!(reachable(&node, B, true), "b");
    node.namespace("x", json!({"team": "red"}));
    assert_eq!(reachable(&node, B, true), "ab");
    // The pod itself is no longer selected, and another one is.
    node.pod(&pod("x/b", "uid-b", json!({"pod": "other"}), NODE, &[B]));
    assert_eq!(reachable(&node, B, true), "abco");
    node.pod(&pod("x/a", "uid-a", json!({"pod": "b"}), NODE, &[A]));
    assert_eq!(reachable(&node, A, true), "ab");
    node.namespace("x", json!(null));
    assert_eq!(reachable(&node, A, true), "a", "a namespace that is not known matches nothing");
}

#[test]
fn net_136_the_cost_of_a_change_is_one_element() {
    let mut node = three_pods();
    for i in 0..50 {
        let from = json!([{"from": [{"namespaceSelector": {}, "podSelector": {"matchLabels": {"role": "client"}}}]}]);
        node.policy(&policy(
            &format!("x/p{i}"),
            json!({"podSelector": {}, "policyTypes": ["Ingress"], "ingress": from}),
        ));
    }
    assert_eq!(node.kernel.sets.len(), 1, "all rules with the same selector share a set");
    let before = node.kernel.changes;
    let client = pod("y/client", "uid-client", json!({"role": "client"}), "n2", &["10.77.9.9"]);
    node.pod(&client);
    assert_eq!(node.kernel.changes - before, 1);
    assert!(node.tcp("10.77.9.9", A, 80));
    // A status update that changes nothing of interest.
    let mut probed = client.clone();
    probed.status.as_mut().unwrap().message = Some("x".into());
    node.pod(&probed);
    assert_eq!(node.kernel.changes - before, 1);
    // A policy that selects no pod of this node is not in its tables.
    node.policy(&policy("y/p", json!({"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{"from": [{"podSelector": {}}]}]})));
    assert_eq!(node.kernel.changes - before, 1);
}

#[test]
fn net_132_pods_in_the_network_of_their_node_are_neither_subject_nor_peer() {
    let mut node = three_pods();
    let mut host = pod("x/host", "uid-host", json!({"pod": "a"}), NODE, &["192.0.2.1"]);
    host.spec.as_mut().unwrap().host_network = Some(true);
    node.pod(&host);
    node.policy(&policy(
        "x/p",
        json!({"podSelector": {}, "ingress": [{"from": [{"podSelector": {}}]}]}),
    ));
    assert!(!node.tcp("192.0.2.1", B, 80));
    node.policy(&policy(
        "x/p",
        json!({"podSelector": {}, "ingress": [{"from": [{"ipBlock": {"cidr": "192.0.2.1/32"}}]}]}),
    ));
    assert!(node.tcp("192.0.2.1", B, 80));
}

#[test]
fn net_134_a_new_pod_is_isolated_with_its_attachment() {
    let mut node = three_pods();
    node.policy(&policy("x/p", json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]})));
    // The agent knows the pod before this node's cache has it.
    let new = pod("x/new", "uid-new", json!({}), NODE, &[]);
    node.attach(&new, &["10.77.3.9", "fd77:3::9"]);
    assert!(!node.tcp(A, "10.77.3.9", 80) && !node.tcp("10.77.3.9", C, 80));
    assert!(!node.tcp("fd77:3::9", "fd00::1", 80), "one link for both families");
    // It stays isolated when its object is gone, until the address is released.
    node.pod(&new);
    node.delete_pod(&new);
    assert!(!node.tcp(A, "10.77.3.9", 80));
    node.engine.detached("uid-new");
    node.commit();
    assert!(node.tcp(C, "10.77.3.9", 80));
}

#[test]
fn net_134_only_addresses_of_new_isolated_pods_are_reported_as_reused() {
    use crate::policies::pod::PodFacts;
    let mut node = three_pods();
    node.policy(&policy("x/p", json!({"podSelector": {}})));
    let free: IpAddr = "10.77.3.9".parse().unwrap();
    let mut attach = |pod: &Pod| node.engine.attached(PodFacts::of(pod), &[free]);
    let new = pod("x/new", "uid-new", json!({}), NODE, &[]);
    assert_eq!(attach(&new), [free]);
    assert!(attach(&new).is_empty(), "announced twice");
    assert!(attach(&pod("y/new", "uid-y", json!({}), NODE, &[])).is_empty(), "not isolated");
    let known: IpAddr = A.parse().unwrap();
    let a = PodFacts::of(&named("x/a", NODE, A));
    assert!(node.engine.attached(a, &[known]).is_empty(), "it runs already");
}

#[test]
fn net_134_an_address_leaves_all_sets_before_it_is_reused() {
    let mut node = three_pods();
    node.policy(&policy("x/p", json!({"podSelector": {"matchLabels": {"pod": "b"}}, "ingress": [{"from": [{"podSelector": {"matchLabels": {"pod": "a"}}}]}]})));
    let a = named("x/a", NODE, A);
    node.attach(&a, &[A]);
    // A terminating pod is a peer until its address is released.
    let mut terminating = a.clone();
    terminating.metadata.deletion_timestamp =
        Some(serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap());
    node.pod(&terminating);
    assert!(node.tcp(A, B, 80));
    node.engine.detached("uid-a");
    node.commit();
    assert!(!node.tcp(A, B, 80), "although the object still lists the address");
    node.pod(&a);
    assert!(!node.tcp(A, B, 80));
    let next = pod("x/next", "uid-next", json!({"pod": "next"}), NODE, &[]);
    node.attach(&next, &[A]);
    assert!(!node.tcp(A, B, 80));
    // Without a release, the next owner takes the address too.
    node.attach(&pod("x/third", "uid-third", json!({"pod": "a"}), NODE, &[]), &[A]);
    assert!(node.tcp(A, B, 80));
    node.attach(&next, &[A]);
    assert!(!node.tcp(A, B, 80));
}

#[test]
fn net_134_terminal_pods_are_no_peers() {
    let mut node = three_pods();
    node.policy(&policy("x/p", json!({"podSelector": {"matchLabels": {"pod": "b"}}, "ingress": [{"from": [{"namespaceSelector": {}}]}]})));
    assert_eq!(reachable(&node, B, true), "abc");
    let mut ended = named("y/c", "n2", C);
    ended.status.as_mut().unwrap().phase = Some("Failed".into());
    node.pod(&ended);
    assert_eq!(reachable(&node, B, true), "ab");
}

#[test]
fn a_pod_that_is_recreated_under_its_name_replaces_the_old_one() {
    let mut node = three_pods();
    node.policy(&policy("x/p", json!({"podSelector": {"matchLabels": {"pod": "b"}}, "ingress": [{"from": [{"namespaceSelector": {}}]}]})));
    node.pod(&pod("y/c", "uid-c2", json!({"pod": "c"}), "n2", &["10.77.9.5"]));
    assert!(!node.tcp(C, B, 80) && node.tcp("10.77.9.5", B, 80));
    node.engine.pod_changed(&ObjectKey::new("y", "c"), None);
    node.commit();
    assert!(!node.tcp("10.77.9.5", B, 80));
}

#[test]
fn net_134_pods_of_an_earlier_process_stay_until_their_address_is_released() {
    let mut node = three_pods();
    node.policy(&policy("x/p", json!({"podSelector": {"matchLabels": {"pod": "b"}}, "ingress": [{"from": [{"podSelector": {}}]}]})));
    node.engine.adopt();
    node.commit();
    node.delete_pod(&named("x/a", NODE, A));
    node.delete_pod(&named("x/b", NODE, B));
    assert_eq!(reachable(&node, B, true), "ab", "both are still there");
    // The agent never announces the release of a, but the next pod with its address.
    node.attach(&pod("y/next", "uid-next", json!({}), NODE, &[]), &[A]);
    assert_eq!(reachable(&node, B, true), "b");
    node.engine.detached("uid-b");
    node.commit();
    assert_eq!(reachable(&node, B, true), "abco");
}
