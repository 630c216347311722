//! Who has to go, and what is said if that does not help (N-198, N-199).

use super::*;
use crate::decide::{Decision, decide};
use crate::node::tests::node;
use crate::pod::tests::read;
use crate::world::tests::world;
use client::ObjectKey;
use serde_json::{Value, json};

/// A pod of this importance, on a node or not, that takes so many CPUs and has run since that minute.
fn pod(name: &str, priority: i32, cpu: &str, node: &str, minute: u32) -> PodInfo {
    let node = if node.is_empty() { Value::Null } else { node.into() };
    read(json!({
        "metadata": { "namespace": "default", "name": name, "uid": name, "labels": { "app": name } },
        "spec": { "priority": priority, "nodeName": node, "containers": [{ "name": "c",
            "resources": { "requests": { "cpu": cpu } } }] },
        "status": { "startTime": format!("2026-01-01T00:{minute:02}:00Z") },
    }))
}

fn told(world: &World, pod: &PodInfo) -> String {
    let Decision::Unfit(unfit) = decide(world, pod, &mut 0, || 0) else {
        return "it fits".into();
    };
    match preempt(world, pod, &unfit, 0) {
        Preemption::MakeRoom { node, victims } => {
            let names: Vec<&str> = victims.iter().map(|pod| pod.key.name()).collect();
            format!("{node}: {}", names.join(" "))
        }
        Preemption::UnderWay(said) => said.into(),
        Preemption::NoHelp(said) => said.unwrap_or_default(),
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
            "as few as needed, the less important first",
            vec![pod("x", 1, "2", "a", 0), pod("y", 2, "2", "a", 0), pod("z", 200, "4", "b", 0)],
            high("2"),
            "a: x",
        ),
        (
            "of equals the younger goes",
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
            "the node with the least important victim",
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
            "rather those who have just begun",
            vec![pod("x", 5, "4", "a", 1), pod("y", 5, "4", "b", 2)],
            high("4"),
            "b: y",
        ),
        (
            "nobody of the same importance",
            vec![pod("x", 100, "4", "a", 0), pod("y", 200, "4", "b", 0)],
            high("1"),
            "preemption: 0/2 nodes are available: 2 No preemption victims found for incoming pod.",
        ),
        (
            "it would not be enough",
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
        assert_eq!(told(&world(nodes(), pods), &high), expected, "{what}");
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
    let mut there = world(nodes(), pods);
    let high = pod("high", 100, "4", "", 0);
    assert_eq!(told(&there, &high), "a: x");
    there.budgets.put(&key, Some(budget("x", 0)));
    assert_eq!(told(&there, &high), "b: y", "though y is more important");
    there.budgets.put(&key, Some(budget("x", 1)));
    assert_eq!(told(&there, &high), "a: x");
    let mut alone = world([node("a", json!({}))], [pod("x", 1, "4", "a", 0)]);
    alone.budgets.put(&key, Some(budget("x", 0)));
    assert_eq!(told(&alone, &high), "a: x", "nobody else can go");
}

#[test]
fn n_199_whom_a_budget_protects_comes_back_first() {
    let pods = [pod("guarded", 1, "2", "a", 0), pod("free", 5, "2", "a", 0)];
    let mut world = world([node("a", json!({}))], pods);
    world.budgets.put(&ObjectKey::new("default", "guard"), Some(budget("guarded", 0)));
    assert_eq!(told(&world, &pod("high", 100, "2", "", 0)), "a: free");
}

#[test]
fn n_198_while_victims_leave_nobody_else_is_asked_to() {
    let leaving = read(json!({
        "metadata": { "namespace": "default", "name": "x", "uid": "x",
                      "deletionTimestamp": "2026-01-01T00:00:00Z" },
        "spec": { "nodeName": "a", "containers": [{ "name": "c", "resources": {
            "requests": { "cpu": "4" } } }] },
        "status": { "conditions": [{ "type": "DisruptionTarget", "status": "True",
                                     "reason": "PreemptionByScheduler" }] },
    }));
    let mut world = world(nodes(), [leaving, pod("y", 1, "4", "b", 0)]);
    let high = Arc::new(pod("high", 100, "4", "", 0));
    world.nominate(&high, "a");
    assert_eq!(
        told(&world, &high),
        "preemption: not eligible due to a terminating pod on the nominated node."
    );
    world.withdraw(&high.key);
    world.nominate(&high, "b");
    assert!(told(&world, &high).contains(": "), "nobody leaves there");
}
