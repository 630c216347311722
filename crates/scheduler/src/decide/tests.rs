//! Decisions, and the messages for unschedulable pods (N-186, N-197, N-200).

use super::*;
use crate::cluster_state::tests::cluster;
use crate::messages;
use crate::node::tests::node;
use crate::pod::tests::{asking, pod, read};
use crate::preempt::{Preemption, preempt};
use serde_json::{Value, json};

#[test]
fn n_186_in_a_large_cluster_some_feasible_nodes_are_enough() {
    let cases = [(1, 1), (100, 100), (101, 100), (1000, 420), (5000, 500), (10_000, 500)];
    for (nodes, expected) in cases {
        assert_eq!(enough(nodes), expected, "{nodes}");
    }
}

#[test]
fn n_186_in_a_large_cluster_the_search_rotates_over_all_nodes() {
    let nodes = (0..300).map(|n| node(&format!("n{n:03}"), json!({})));
    let cluster = cluster(nodes, []);
    let mut start = 0;
    let mut starts = Vec::new();
    for _ in 0..3 {
        decide(&cluster, &pod("p", json!({})), &mut start, || 0);
        starts.push(start);
    }
    assert_eq!(starts, [144, 288, 132]);
}

/// The decision, or the message for an unschedulable pod.
fn outcome(cluster: &ClusterState, pod: &PodInfo) -> String {
    match decide(cluster, pod, &mut 0, || 0) {
        Decision::Node { name, .. } => format!("goes to {name}"),
        Decision::Unschedulable(unschedulable) => match preempt(cluster, pod, &unschedulable, 0) {
            Preemption::Victims { node, victims } => format!("{} go from {node}", victims.len()),
            Preemption::InProgress(message) => {
                messages::unschedulable(&unschedulable, Some(message))
            }
            Preemption::NotHelpful(message) => {
                messages::unschedulable(&unschedulable, message.as_deref())
            }
        },
    }
}

/// Nodes that differ only in their name.
fn alike(count: usize, more: &Value) -> Vec<NodeState> {
    (0..count).map(|n| node(&format!("n{n}"), more.clone())).collect()
}

#[test]
fn n_197_the_message_of_each_filter_for_zero_one_and_three_nodes() {
    let plain = json!({});
    let tainted = json!({ "spec": { "taints": [{ "key": "k", "effect": "NoSchedule" }] } });
    let cordoned = json!({ "spec": { "unschedulable": true } });
    let full = json!({ "status": { "allocatable": { "pods": "0" } } });
    let hard = "Preemption is not helpful for scheduling";
    let no_victims = "No preemption victims found for incoming pod";
    let claim =
        json!({ "volumes": [{ "name": "v", "persistentVolumeClaim": { "claimName": "c" } }] });
    let spread = json!({ "topologySpreadConstraints": [{
        "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule" }] });
    let near = json!({ "affinity": { "podAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [{
            "topologyKey": "kubernetes.io/hostname",
            "labelSelector": { "matchLabels": { "app": "none" } } }] } } });
    let cases: [(Value, PodInfo, &str, Option<&str>); 11] = [
        (cordoned, pod("p", json!({})), "node(s) were unschedulable", Some(hard)),
        (
            plain.clone(),
            pod("p", json!({ "nodeName": "x" })),
            "node(s) didn't match the requested node name",
            Some(hard),
        ),
        (tainted, pod("p", json!({})), "node(s) had untolerated taint(s)", Some(hard)),
        (
            plain.clone(),
            pod("p", json!({ "nodeSelector": { "a": "b" } })),
            "node(s) didn't match Pod's node affinity/selector",
            Some(hard),
        ),
        (full, pod("p", json!({})), "Too many pods", Some(no_victims)),
        (plain.clone(), asking("p", "8", "1Gi"), "Insufficient cpu", Some(hard)),
        (plain.clone(), asking("p", "1", "80Gi"), "Insufficient memory", Some(hard)),
        (
            plain.clone(),
            pod(
                "p",
                json!({ "containers": [{ "name": "c", "resources": {
            "requests": { "example.com/gpu": "1" } } }] }),
            ),
            "Insufficient example.com/gpu",
            Some(hard),
        ),
        (
            plain.clone(),
            pod("p", spread),
            "node(s) didn't match pod topology spread constraints (missing required label)",
            Some(hard),
        ),
        (plain.clone(), pod("p", near), "node(s) didn't match pod affinity rules", Some(hard)),
        (plain, pod("p", claim), "persistentvolumeclaim \"c\" not found", None),
    ];
    for (nodes, pod, reason, preemption) in cases {
        assert_eq!(outcome(&cluster([], []), &pod), "no nodes available to schedule pods");
        for count in [1, 3] {
            let expected = match preemption {
                Some(preemption) => format!(
                    "0/{count} nodes are available: {count} {reason}. no new claims to deallocate, \
                     preemption: 0/{count} nodes are available: {count} {preemption}."
                ),
                None => format!("0/{count} nodes are available: {reason}."),
            };
            assert_eq!(outcome(&cluster(alike(count, &nodes), []), &pod), expected);
        }
    }
}

#[test]
fn n_197_different_reasons_are_counted_separately() {
    let tainted =
        node("a", json!({ "spec": { "taints": [{ "key": "k", "effect": "NoSchedule" }] } }));
    let nodes = [tainted, node("b", json!({})), node("c", json!({}))];
    let pods = [asking("1", "3", "1Gi").on(&"b".into()), asking("2", "3", "1Gi").on(&"c".into())];
    assert_eq!(
        outcome(&cluster(nodes, pods), &asking("p", "2", "1Gi")),
        "0/3 nodes are available: 1 node(s) had untolerated taint(s), 2 Insufficient cpu. no new \
         claims to deallocate, preemption: 0/3 nodes are available: 1 Preemption is not helpful \
         for scheduling, 2 No preemption victims found for incoming pod."
    );
}

#[test]
fn n_197_nodes_excluded_by_name_are_counted_too() {
    let named = json!({ "affinity": { "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [{ "matchFields": [
            { "key": "metadata.name", "operator": "In", "values": ["n1"] } ] }] } } } });
    let full = json!({ "status": { "allocatable": { "pods": "0" } } });
    let text = outcome(&cluster(alike(3, &full), []), &pod("p", named.clone()));
    let expected = "0/3 nodes are available: 1 Too many pods, 2 node(s) didn't satisfy plugin(s) \
                    [NodeAffinity].";
    assert!(text.starts_with(expected), "{text}");
    assert_eq!(outcome(&cluster(alike(3, &json!({})), []), &pod("p", named)), "goes to n1");
}

fn with_priority(name: &str, priority: i32, cpu: &str) -> PodInfo {
    read(json!({
        "metadata": { "namespace": "default", "name": name, "uid": name },
        "spec": { "priority": priority, "containers": [{ "name": "c", "resources": {
            "requests": { "cpu": cpu } } }] },
    }))
}

#[test]
fn n_200_nominated_pods_count_for_pods_of_the_same_or_lower_priority() {
    let mut cluster = cluster([node("n", json!({}))], []);
    cluster.nominate(&Arc::new(with_priority("promised", 10, "3")), "n");
    assert!(outcome(&cluster, &with_priority("p", 5, "2")).contains("1 Insufficient cpu"));
    assert!(outcome(&cluster, &with_priority("p", 10, "2")).contains("1 Insufficient cpu"));
    assert_eq!(outcome(&cluster, &with_priority("p", 11, "2")), "goes to n");
    assert_eq!(outcome(&cluster, &with_priority("promised", 10, "3")), "goes to n");
}

#[test]
fn n_200_a_pod_is_bound_to_its_nominated_node_if_it_fits() {
    let mut cluster = cluster(
        [node("a", json!({})), node("b", json!({}))],
        [with_priority("there", 0, "1").on(&"b".into())],
    );
    let promised = Arc::new(with_priority("p", 10, "2"));
    cluster.nominate(&promised, "b");
    assert_eq!(outcome(&cluster, &promised), "goes to b", "although a is emptier");
    cluster.put_pod(with_priority("more", 0, "2").on(&"b".into()));
    assert_eq!(outcome(&cluster, &promised), "goes to a");
}
