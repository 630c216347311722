//! What is decided, and what people read if nothing is (N-186, N-197, N-200).

use super::*;
use crate::node::tests::node;
use crate::pod::tests::{asking, pod, read};
use crate::preempt::{Preemption, preempt};
use crate::text;
use crate::world::tests::world;
use serde_json::{Value, json};

#[test]
fn n_186_in_a_large_cluster_some_feasible_nodes_are_enough() {
    let cases = [(1, 1), (100, 100), (101, 100), (1000, 420), (5000, 500), (10_000, 500)];
    for (nodes, expected) in cases {
        assert_eq!(enough(nodes), expected, "{nodes}");
    }
}

#[test]
fn n_186_in_a_large_cluster_all_nodes_have_their_turn() {
    let nodes = (0..300).map(|n| node(&format!("n{n:03}"), json!({})));
    let world = world(nodes, []);
    let mut start = 0;
    let mut starts = Vec::new();
    for _ in 0..3 {
        decide(&world, &pod("p", json!({})), &mut start, || 0);
        starts.push(start);
    }
    assert_eq!(starts, [144, 288, 132]);
}

/// What is said of a pod that fits nowhere.
fn said(world: &World, pod: &PodInfo) -> String {
    match decide(world, pod, &mut 0, || 0) {
        Decision::Node { name, .. } => format!("goes to {name}"),
        Decision::Unfit(unfit) => match preempt(world, pod, &unfit, 0) {
            Preemption::MakeRoom { node, victims } => format!("{} go from {node}", victims.len()),
            Preemption::UnderWay(said) => text::unfit(&unfit, Some(said)),
            Preemption::NoHelp(said) => text::unfit(&unfit, said.as_deref()),
        },
    }
}

/// Nodes that differ in nothing but their name.
fn alike(count: usize, more: &Value) -> Vec<NodeState> {
    (0..count).map(|n| node(&format!("n{n}"), more.clone())).collect()
}

#[test]
fn n_197_the_text_for_each_filter_with_no_one_and_three_nodes() {
    let plain = json!({});
    let tainted = json!({ "spec": { "taints": [{ "key": "k", "effect": "NoSchedule" }] } });
    let cordoned = json!({ "spec": { "unschedulable": true } });
    let full = json!({ "status": { "allocatable": { "pods": "0" } } });
    let hard = "Preemption is not helpful for scheduling";
    let nobody = "No preemption victims found for incoming pod";
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
        (full, pod("p", json!({})), "Too many pods", Some(nobody)),
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
        assert_eq!(said(&world([], []), &pod), "no nodes available to schedule pods");
        for count in [1, 3] {
            let expected = match preemption {
                Some(preemption) => format!(
                    "0/{count} nodes are available: {count} {reason}. no new claims to deallocate, \
                     preemption: 0/{count} nodes are available: {count} {preemption}."
                ),
                None => format!("0/{count} nodes are available: {reason}."),
            };
            assert_eq!(said(&world(alike(count, &nodes), []), &pod), expected);
        }
    }
}

#[test]
fn n_197_different_reasons_are_counted_apart() {
    let tainted =
        node("a", json!({ "spec": { "taints": [{ "key": "k", "effect": "NoSchedule" }] } }));
    let nodes = [tainted, node("b", json!({})), node("c", json!({}))];
    let pods = [asking("1", "3", "1Gi").on(&"b".into()), asking("2", "3", "1Gi").on(&"c".into())];
    assert_eq!(
        said(&world(nodes, pods), &asking("p", "2", "1Gi")),
        "0/3 nodes are available: 1 node(s) had untolerated taint(s), 2 Insufficient cpu. no new \
         claims to deallocate, preemption: 0/3 nodes are available: 1 Preemption is not helpful \
         for scheduling, 2 No preemption victims found for incoming pod."
    );
}

#[test]
fn n_197_nodes_that_are_not_meant_are_counted_too() {
    let named = json!({ "affinity": { "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [{ "matchFields": [
            { "key": "metadata.name", "operator": "In", "values": ["n1"] } ] }] } } } });
    let full = json!({ "status": { "allocatable": { "pods": "0" } } });
    let text = said(&world(alike(3, &full), []), &pod("p", named.clone()));
    let expected = "0/3 nodes are available: 1 Too many pods, 2 node(s) didn't satisfy plugin(s) \
                    [NodeAffinity].";
    assert!(text.starts_with(expected), "{text}");
    assert_eq!(said(&world(alike(3, &json!({})), []), &pod("p", named)), "goes to n1");
}

fn with_priority(name: &str, priority: i32, cpu: &str) -> PodInfo {
    read(json!({
        "metadata": { "namespace": "default", "name": name, "uid": name },
        "spec": { "priority": priority, "containers": [{ "name": "c", "resources": {
            "requests": { "cpu": cpu } } }] },
    }))
}

#[test]
fn n_200_promised_room_counts_for_those_who_are_not_more_important() {
    let mut world = world([node("n", json!({}))], []);
    world.nominate(&Arc::new(with_priority("promised", 10, "3")), "n");
    assert!(said(&world, &with_priority("p", 5, "2")).contains("1 Insufficient cpu"));
    assert!(said(&world, &with_priority("p", 10, "2")).contains("1 Insufficient cpu"));
    assert_eq!(said(&world, &with_priority("p", 11, "2")), "goes to n");
    assert_eq!(said(&world, &with_priority("promised", 10, "3")), "goes to n");
}

#[test]
fn n_200_a_pod_goes_where_room_was_made_for_it_if_it_fits() {
    let mut world = world(
        [node("a", json!({})), node("b", json!({}))],
        [with_priority("there", 0, "1").on(&"b".into())],
    );
    let promised = Arc::new(with_priority("p", 10, "2"));
    world.nominate(&promised, "b");
    assert_eq!(said(&world, &promised), "goes to b", "though a is emptier");
    world.put_pod(with_priority("more", 0, "2").on(&"b".into()));
    assert_eq!(said(&world, &promised), "goes to a");
}
