//! Victims of preemption, and the messages if it does not help (N-198, N-199).

use super::*;
use crate::cluster_state::tests::cluster;
use crate::decide::{Decision, decide};
use crate::node::tests::node;
use crate::pod::tests::read;
use client::ObjectKey;
use serde_json::{Value, json};

/// A pod with this priority, CPU request, node (if not empty) and start minute.
fn pod(name: &str, priority: i32, cpu: &str, node: &str, minute: u32) -> PodInfo {
    let node = if node.is_empty() { Value::Null } else { node.into() };
    read(json!({
        "metadata": { "namespace": "default", "name": name, "uid": name, "labels": { "app": name } },
        "spec": { "priority": priority, "nodeName": node, "containers": [{ "name": "c",
            "resources": { "requests": { "cpu": cpu } } }] },
        "status": { "startTime": format!("2026-01-01T00:{minute:02}:00Z") },
    }))
}

fn outcome(cluster: &ClusterState, pod: &PodInfo) -> String {
    let Decision::Unschedulable(unschedulable) = decide(cluster, pod, &mut 0, || 0) else {
        return "it fits".into();
    };
    match preempt(cluster, pod, &unschedulable, 0) {
        Preemption::Victims { node, victims } => {
            let names: Vec<&str> = victims.iter().map(|pod| pod.key.name()).collect();
            format!("{node}: {}", names.join(" "))
        }
        Preemption::InProgress(message) => message.into(),
        Preemption::NotHelpful(message) => message.unwrap_or_default(),
    }
}

fn nodes() -> [NodeState; 2] {
    [node("a", json!({})), node("b", json!({}))]
}

#[test]
fn n_199_victims_and_the_best_node() {
    let high = |cpu: &str| pod("high", 100, cpu, "", 0);
    let cases: Vec<(&str, Vec<PodInfo>, PodInfo, &str)> = vec![
        (
            "as few as needed, lowest priority first",
            vec![pod("x", 1, "2", "a", 0), pod("y", 2, "2", "a", 0), pod("z", 200, "4", "b", 0)],
            high("2"),
            "a: x",
        ),
        (
            "of equal priority the younger",
            vec![pod("x", 1, "2", "a", 5), pod("y", 1, "2", "a", 9), pod("z", 200, "4", "b", 0)],
            high("2"),
            "a: y",
        ),
        (
            "all, if all are needed, the most important first",
            vec![pod("x", 1, "2", "a", 0), pod("y", 2, "2", "a", 0), pod("z", 200, "4", "b", 0)],
            high("4"),
            "a: y x",
        ),
        (
            "the node with the lowest victim priority",
            vec![pod("x", 5, "4", "a", 0), pod("y", 3, "4", "b", 0)],
            high("1"),
            "b: y",
        ),
        (
            "the smaller sum",
            vec![
                pod("x", 5, "2", "a", 0),
                pod("x2", 5, "2", "a", 0),
                pod("y", 5, "3", "b", 0),
                pod("y2", 3, "1", "b", 0),
            ],
            high("4"),
            "b: y y2",
        ),
        (
            "fewer victims",
            vec![pod("x", 5, "2", "a", 0), pod("x2", 5, "2", "a", 0), pod("y", 5, "4", "b", 0)],
            high("4"),
            "b: y",
        ),
        (
            "the node whose victim started last",
            vec![pod("x", 5, "4", "a", 1), pod("y", 5, "4", "b", 2)],
            high("4"),
            "b: y",
        ),
        (
            "no victims of the same priority",
            vec![pod("x", 100, "4", "a", 0), pod("y", 200, "4", "b", 0)],
            high("1"),
            "preemption: 0/2 nodes are available: 2 No preemption victims found for incoming pod.",
        ),
        (
            "not enough even without all victims",
            vec![pod("x", 100, "3", "a", 0), pod("x2", 1, "1", "a", 0), pod("y", 200, "4", "b", 0)],
            high("2"),
            "preemption: 0/2 nodes are available: 1 Insufficient cpu, \
             1 No preemption victims found for incoming pod.",
        ),
        (
            "too large for any node",
            vec![pod("x", 1, "1", "a", 0)],
            high("5"),
            "preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.",
        ),
    ];
    for (what, pods, high, expected) in cases {
        assert_eq!(outcome(&cluster(nodes(), pods), &high), expected, "{what}");
    }
}

fn budget(app: &str, allowed: i32) -> Budget {
    let budget = json!({
        "spec": { "selector": { "matchLabels": { "app": app } } },
        "status": { "disruptionsAllowed": allowed, "currentHealthy": 1, "desiredHealthy": 1,
                    "expectedPods": 1 },
    });
    Budget::read(&typed::from_value(budget).unwrap())
}

#[test]
fn n_199_budgets_are_avoided_and_not_guaranteed() {
    let key = ObjectKey::new("default", "guard");
    let pods = [pod("x", 1, "4", "a", 0), pod("y", 5, "4", "b", 0)];
    let mut there = cluster(nodes(), pods);
    let high = pod("high", 100, "4", "", 0);
    assert_eq!(outcome(&there, &high), "a: x");
    there.budgets.put(&key, Some(budget("x", 0)));
    assert_eq!(outcome(&there, &high), "b: y", "although y has a higher priority");
    there.budgets.put(&key, Some(budget("x", 1)));
    assert_eq!(outcome(&there, &high), "a: x");
    let mut alone = cluster([node("a", json!({}))], [pod("x", 1, "4", "a", 0)]);
    alone.budgets.put(&key, Some(budget("x", 0)));
    assert_eq!(outcome(&alone, &high), "a: x", "there is no other victim");
}

#[test]
fn n_199_pods_protected_by_a_budget_are_kept_first() {
    let pods = [pod("guarded", 1, "2", "a", 0), pod("free", 5, "2", "a", 0)];
    let mut cluster = cluster([node("a", json!({}))], pods);
    cluster.budgets.put(&ObjectKey::new("default", "guard"), Some(budget("guarded", 0)));
    assert_eq!(outcome(&cluster, &pod("high", 100, "2", "", 0)), "a: free");
}

#[test]
fn n_198_no_further_preemption_while_victims_terminate() {
    let leaving = read(json!({
        "metadata": { "namespace": "default", "name": "x", "uid": "x",
                      "deletionTimestamp": "2026-01-01T00:00:00Z" },
        "spec": { "nodeName": "a", "containers": [{ "name": "c", "resources": {
            "requests": { "cpu": "4" } } }] },
        "status": { "conditions": [{ "type": "DisruptionTarget", "status": "True",
                                     "reason": "PreemptionByScheduler" }] },
    }));
    let mut cluster = cluster(nodes(), [leaving, pod("y", 1, "4", "b", 0)]);
    let high = Arc::new(pod("high", 100, "4", "", 0));
    cluster.nominate(&high, "a");
    assert_eq!(
        outcome(&cluster, &high),
        "preemption: not eligible due to a terminating pod on the nominated node."
    );
    cluster.withdraw(&high.key);
    cluster.nominate(&high, "b");
    assert!(outcome(&cluster, &high).contains(": "), "no victim is terminating there");
}
