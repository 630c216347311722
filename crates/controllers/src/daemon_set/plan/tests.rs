//! Each row is a few nodes with their pods, and what is created and deleted.

use super::*;
use serde_json::{Value, json};

const NOW: &str = "2026-01-01T01:00:00Z";

fn set(rolling: Value) -> DaemonSet {
    let strategy = match rolling {
        Value::Null => json!({ "type": "OnDelete" }),
        rolling => json!({ "type": "RollingUpdate", "rollingUpdate": rolling }),
    };
    typed::from_value(json!({
        "metadata": { "namespace": "a", "name": "d", "uid": "u", "generation": 1 },
        "spec": { "selector": {}, "updateStrategy": strategy,
                  "template": { "spec": { "containers": [], "nodeSelector": { "in": "y" } } } },
    }))
    .unwrap()
}

/// Each word is a node: `a:` without a pod, `a:n+` with a new available one, `a:o-` with an old one that is not ready;
/// `t` instead of the sign means terminating, `f` failed, `w` failed and in backoff. A node in capitals does not match.
fn nodes_and_pods(text: &str) -> (Vec<Arc<Node>>, Vec<Arc<Pod>>) {
    let (mut nodes, mut pods) = (Vec::new(), Vec::new());
    for word in text.split_whitespace() {
        let (node, there) = word.split_once(':').unwrap();
        let suits = if node.chars().all(char::is_lowercase) { "y" } else { "n" };
        nodes.push(Arc::new(
            typed::from_value(json!({ "metadata": { "name": node, "labels": { "in": suits } } }))
                .unwrap(),
        ));
        let letters: Vec<char> = there.chars().collect();
        for (number, pair) in letters.chunks(2).enumerate() {
            pods.push(Arc::new(pod(node, number, pair[0], pair[1])));
        }
    }
    (nodes, pods)
}

fn pod(node: &str, number: usize, revision: char, state: char) -> Pod {
    let ready = if matches!(state, '+' | 't') { "True" } else { "False" };
    let hash = if revision == 'n' { "new" } else { "old" };
    let phase = if matches!(state, 'f' | 'w') { "Failed" } else { "Running" };
    typed::from_value(json!({
        "metadata": { "name": format!("{node}{number}"), "uid": format!("{node}{number}"),
            "labels": { "controller-revision-hash": hash },
            "deletionTimestamp": (state == 't').then_some(NOW),
            "creationTimestamp": format!("2026-01-01T00:00:{number:02}Z") },
        "spec": { "nodeName": node, "containers": [] },
        "status": { "phase": phase, "conditions": [{ "type": "Ready", "status": ready,
                    "lastTransitionTime": "2026-01-01T00:00:00Z" }] },
    }))
    .unwrap()
}

fn decided(set: &DaemonSet, text: &str) -> Plan {
    let (nodes, pods) = nodes_and_pods(text);
    let waits = |node: &str| {
        let mut words = text.split_whitespace().filter_map(|word| word.split_once(':'));
        words.any(|(named, pods)| named == node && pods.contains('w'))
    };
    Plan::decide(set, &nodes, &pods, "new", waits, NOW.parse().unwrap())
}

fn changes(plan: &Plan) -> String {
    let made = plan.create.iter().map(|pod| format!("+{}", node_of(pod).unwrap()));
    let deleted = plan.delete.iter().map(|pod| format!("-{}", name(pod.as_ref())));
    let finished = plan.finished.iter().map(|finished| format!("x{}", name(finished.pod.as_ref())));
    made.chain(deleted).chain(finished).collect::<Vec<_>>().join(" ")
}

#[test]
fn c_81_c_83_c_87_t_ctrl_30_one_pod_on_each_matching_node() {
    let set = set(json!({ "maxUnavailable": 1 }));
    let cases = [
        ("a: b:n+ c:", "+a +c"),
        ("a:nt", ""),
        ("a:nf", "xa0"),
        ("a:n+n+", "-a1"),
        ("A:n+", "-A0"),
        ("A:", ""),
    ];
    for (world, expected) in cases {
        assert_eq!(changes(&decided(&set, world)), expected, "{world}");
    }
}

/// C-98: with OnDelete nothing is deleted; with RollingUpdate the same pods are.
#[test]
fn c_96_without_surge_old_pods_are_deleted_up_to_max_unavailable() {
    let cases = [
        (json!({ "maxUnavailable": 1 }), "a:o+ b:o+ c:o+", "-a0"),
        (json!({ "maxUnavailable": 2 }), "a:o+ b:o+ c:o+", "-a0 -b0"),
        (json!({ "maxUnavailable": "34%" }), "a:o+ b:o+ c:o+", "-a0 -b0"),
        (json!({ "maxUnavailable": 1 }), "a:n- b:o+ c:o+", ""),
        (json!({ "maxUnavailable": 1 }), "a:ot b:o+ c:o+", ""),
        (json!({ "maxUnavailable": 1 }), "a:n+ b:o- c:o+", "-b0"),
        (json!({ "maxUnavailable": 1 }), "a:o- b:o- c:o+", "-a0 -b0"),
        (json!({ "maxUnavailable": 1 }), "a:n+ b:n+ c:n+", ""),
        // A failed pod in backoff is unavailable; the others are rolled.
        (json!({ "maxUnavailable": 2 }), "a:nw b:o+ c:o+", "-b0"),
        (json!({ "maxUnavailable": 1 }), "a:nw b:o+ c:o+", ""),
        (json!({ "maxUnavailable": 1 }), "a:ow b:o+ c:o+", "-a0"),
        (json!({ "maxUnavailable": 2 }), "a:nf b:o+ c:o+", "xa0"),
        (Value::Null, "a:o+ b:o+", ""),
    ];
    for (rolling, world, expected) in cases {
        assert_eq!(changes(&decided(&set(rolling.clone()), world)), expected, "{rolling} {world}");
    }
}

#[test]
fn c_97_with_surge_new_pods_are_created_beside_the_old() {
    let surge = set(json!({ "maxSurge": 1, "maxUnavailable": 0 }));
    let cases = [
        ("a:o+ b:o+", "+a"),
        ("a:o+n- b:o+", ""),
        ("a:o+n+ b:o+", "-a0"),
        ("a:n+ b:o+", "+b"),
        ("a:o- b:o+", "+a +b"),
        ("a:o-n- b:n+", "-a0"),
        ("a:otn+ b:o+", "+b"),
        ("a:ot b:n+", "+a"),
        ("a:nt b:n+", "+a"),
        ("A:nt b:n+", ""),
        // A failed pod in backoff (C-87) is not replaced.
        ("a:nw b:n+", ""),
    ];
    for (world, expected) in cases {
        assert_eq!(changes(&decided(&surge, world)), expected, "{world}");
    }
}

/// A `maxSurge` left over from another strategy does not count.
#[test]
fn c_98_t_ctrl_30_with_on_delete_no_node_has_two_pods() {
    let mut left = set(json!({ "maxSurge": 1, "maxUnavailable": 0 }));
    let strategy = left.spec.as_mut().unwrap().update_strategy.as_mut().unwrap();
    strategy.type_ = Some("OnDelete".to_owned());
    for (world, expected) in [("a:ot", ""), ("a:o+n-", "-a1"), ("a:o+ b:o+", ""), ("a:o-", "")] {
        assert_eq!(changes(&decided(&left, world)), expected, "{world}");
    }
}

/// The pod garbage collector deletes bound pods.
#[test]
fn c_82_unbound_pods_of_a_deleted_node_are_deleted() {
    let set = set(json!({ "maxUnavailable": 1 }));
    let (nodes, _) = nodes_and_pods("a:n+");
    let meant = |node: &str, name: &str| {
        let mut pod = placement::make(&placement::template_pod(&set), &set, node, "new");
        pod.metadata.name = Some(name.to_owned());
        pod
    };
    let (stray, there) = (meant("gone", "stray"), meant("a", "there"));
    let (mut bound, mut terminating, mut nowhere) =
        (meant("gone", "bound"), meant("gone", "terminating"), meant("gone", "nowhere"));
    bound.spec.as_mut().unwrap().node_name = Some("gone".to_owned());
    terminating.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(NOW.parse().unwrap()));
    nowhere.spec.as_mut().unwrap().affinity = None;
    let pods: Vec<Arc<Pod>> = [stray, there, bound, terminating, nowhere].map(Arc::new).into();
    let plan = Plan::decide(&set, &nodes, &pods, "new", |_| false, NOW.parse().unwrap());
    assert_eq!(changes(&plan), "-stray");
}

#[test]
fn c_99_the_status_counts_nodes() {
    let status = decided(&set(json!({ "maxUnavailable": 1 })), "a:n+ b:o- c: D:n+ e:o+").status;
    assert_eq!(status.desired_number_scheduled, 4);
    assert_eq!(status.current_number_scheduled, 3);
    assert_eq!(status.number_misscheduled, 1);
    assert_eq!(status.number_ready, 2);
    assert_eq!(status.number_available, Some(2));
    assert_eq!(status.number_unavailable, Some(2));
    assert_eq!(status.updated_number_scheduled, Some(1));
}

#[test]
fn c_95_both_bounds_round_up() {
    let cases = [
        (json!({ "maxUnavailable": "10%" }), 3, (0, 1)),
        (json!({ "maxUnavailable": "34%" }), 3, (0, 2)),
        (json!({ "maxUnavailable": 2 }), 9, (0, 2)),
        (json!({ "maxSurge": "1%", "maxUnavailable": 0 }), 9, (1, 0)),
        (json!({ "maxSurge": "50%", "maxUnavailable": 0 }), 5, (3, 0)),
        (json!({ "maxSurge": 0, "maxUnavailable": 0 }), 5, (0, 1)),
        (json!({ "maxSurge": "0%", "maxUnavailable": "0%" }), 5, (0, 1)),
    ];
    for (rolling, wanted, (surge, unavailable)) in cases {
        let limits = RolloutLimits::of(&set(rolling.clone()), wanted);
        assert_eq!(limits, RolloutLimits { surge, unavailable }, "{rolling} of {wanted}");
    }
}
