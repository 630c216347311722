//! The cost of changes in a large cluster with many policies.

use super::{NODE, Node, pod, policy};
use crate::policies::compile::compile;
use crate::policies::engine::Engine;
use crate::policies::pod::PodFacts;
use client::ObjectKey;
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use std::time::Duration;
use tokio::time::Instant;

const POLICIES: usize = 1000;
const PEERS: usize = 10_000;
const LOCAL: usize = 100;

/// A thousand policies with different selectors that all select a hundred local pods. Every tenth peer matches all of
/// their namespace selectors and one of their pod selectors.
fn large_cluster() -> Node {
    let mut node = Node::new();
    for namespace in 0..100 {
        let labels = json!({ "team": (namespace % 10).to_string() });
        let labels = serde_json::from_value(labels).unwrap();
        node.engine.namespace_changed(&format!("n{namespace}"), labels);
    }
    for i in 0..POLICIES {
        let client = json!({ "matchLabels": { "client": i.to_string() } });
        let team = json!({ "matchLabels": { "team": "1" } });
        let from = json!([{ "podSelector": client, "namespaceSelector": team }]);
        let spec =
            json!({ "podSelector": {}, "ingress": [{ "from": from, "ports": [{ "port": 80 }] }] });
        let made = policy(&format!("n1/p{i}"), spec);
        node.engine.policy_changed(&ObjectKey::of(&made), Some(compile(&made)));
    }
    for i in 0..LOCAL {
        let made = pod(
            &format!("n1/l{i}"),
            &format!("l{i}"),
            json!({}),
            NODE,
            &[&format!("10.77.3.{}", i + 2)],
        );
        node.engine.pod_changed(&ObjectKey::of(&made), Some(PodFacts::of(&made)));
    }
    for i in 0..PEERS {
        let made = peer(i, i % POLICIES);
        node.engine.pod_changed(&ObjectKey::of(&made), Some(PodFacts::of(&made)));
    }
    node.commit();
    node
}

fn peer(i: usize, client: usize) -> Pod {
    let labels = json!({ "client": client.to_string() });
    let address = format!("10.80.{}.{}", i / 250, i % 250 + 1);
    pod(&format!("n{}/r{i}", i % 100), &format!("r{i}"), labels, "n2", &[&address])
}

/// Returns the number of changes, and fails if computing them takes too long. Builds for tests are many times slower
/// than others.
fn changes(node: &mut Node, what: &str, work: impl FnOnce(&mut Engine)) -> usize {
    const LIMIT: Duration = Duration::from_secs(5);
    let start = Instant::now();
    work(&mut node.engine);
    let change = node.engine.take_changes();
    let took = start.elapsed();
    let before = node.kernel.changes;
    node.kernel.apply(change);
    println!("{what}: {took:?}, {} changes", node.kernel.changes - before);
    assert!(took < LIMIT, "{what} took {took:?}");
    node.kernel.changes - before
}

#[test]
fn net_136_changes_are_cheap_with_a_thousand_policies_and_ten_thousand_peers() {
    let start = Instant::now();
    let mut node = large_cluster();
    println!("start: {:?}", start.elapsed());
    assert!(start.elapsed() < Duration::from_secs(60));
    let put = |engine: &mut Engine, pod: &Pod| {
        engine.pod_changed(&ObjectKey::of(pod), Some(PodFacts::of(pod)));
    };
    // A peer of namespace n1 changes from one set to another.
    assert_eq!(changes(&mut node, "a peer", |engine| put(engine, &peer(1, 7))), 2);
    assert_eq!(changes(&mut node, "another pod", |engine| put(engine, &peer(2, 7))), 0);
    let labels = serde_json::from_value(json!({ "team": "1" })).unwrap();
    let relabel = |engine: &mut Engine| engine.namespace_changed("n2", labels);
    assert_eq!(changes(&mut node, "a namespace", relabel), PEERS / 100);
    assert!(node.tcp("10.80.0.3", "10.77.3.2", 80));
    let local = pod("n1/new", "new", json!({}), NODE, &["10.77.3.200"]);
    assert_eq!(changes(&mut node, "a local pod", |engine| put(engine, &local)), 1);
    let deny = policy("n1/deny", json!({ "podSelector": {} }));
    let deny_all = |engine: &mut Engine| {
        engine.policy_changed(&ObjectKey::of(&deny), Some(compile(&deny)));
    };
    assert_eq!(changes(&mut node, "a policy", deny_all), 0, "the pods are isolated already");
}

#[test]
fn too_many_rules_or_policies_isolate_more_and_never_less() {
    let mut node = Node::new();
    node.pod(&pod("x/a", "a", json!({}), NODE, &["10.77.3.2"]));
    let peers: Vec<_> = (0..2000)
        .map(|i| json!({ "podSelector": { "matchLabels": { "n": i.to_string() } } }))
        .collect();
    let many = policy(
        "x/p",
        json!({ "podSelector": {}, "ingress": [{ "ports": [{ "port": 80 }] }, { "from": peers }, {}] }),
    );
    node.policy(&many);
    assert!(node.tcp("10.80.0.1", "10.77.3.2", 80) && !node.tcp("10.80.0.1", "10.77.3.2", 81));
    assert!(node.kernel.sets.is_empty(), "no set for rules that are not written");
    for i in 0..1100 {
        let port = 1000 + i;
        let one = json!({ "podSelector": {}, "ingress": [{ "ports": [{ "port": port }] }] });
        let made = policy(&format!("x/q{i:04}"), one);
        node.engine.policy_changed(&ObjectKey::of(&made), Some(compile(&made)));
    }
    node.commit();
    assert!(node.tcp("10.80.0.1", "10.77.3.2", 1001) && !node.tcp("10.80.0.1", "10.77.3.2", 2099));
    assert_eq!(node.kernel.pods.values().map(Vec::len).sum::<usize>(), 1000);
}
