//! Chooses the best of the feasible nodes (N-195).
//!
//! Each rule scores every node from 0 to 100; the weighted scores are added. A random number decides ties.

mod images;
mod node_preferences;
mod pod_affinity;
mod resources;
mod spread;

use crate::filters::Cycle;
use crate::node::NodeState;

const BEST: i64 = 100;

/// Returns the score of each node, in the same order.
type Rule = fn(&Cycle, &[&NodeState]) -> Vec<i64>;

/// Upstream: `default_plugins.go`.
const RULES: [(i64, Rule); 7] = [
    (3, node_preferences::taints),
    (2, node_preferences::preferred_terms),
    (2, spread::score),
    (2, pod_affinity::score),
    (1, resources::least_allocated),
    (1, resources::balanced),
    (1, images::score),
];

/// The best of `nodes`, of which there is at least one.
pub(crate) fn best<'a>(
    cycle: &Cycle,
    nodes: &[&'a NodeState],
    random: &mut impl FnMut() -> u64,
) -> &'a NodeState {
    if let [only] = nodes {
        return only;
    }
    let scores = totals(cycle, nodes);
    let most = scores.iter().copied().max().unwrap_or_default();
    let best: Vec<&NodeState> = nodes
        .iter()
        .zip(&scores)
        .filter(|(_, score)| **score == most)
        .map(|(node, _)| *node)
        .collect();
    match best.len() {
        1 => best[0],
        many => best[(random() % many as u64) as usize],
    }
}

fn totals(cycle: &Cycle, nodes: &[&NodeState]) -> Vec<i64> {
    let mut totals = vec![0; nodes.len()];
    for (weight, rule) in RULES {
        for (total, score) in totals.iter_mut().zip(rule(cycle, nodes)) {
            *total += weight * score;
        }
    }
    totals
}

/// Scales scores so that the highest is 100.
fn in_proportion(mut raw: Vec<i64>) -> Vec<i64> {
    let most = raw.iter().copied().max().unwrap_or_default();
    if most > 0 {
        raw.iter_mut().for_each(|score| *score = *score * BEST / most);
    }
    raw
}

/// Scales scores so that lower values are better.
fn reversed(raw: Vec<i64>) -> Vec<i64> {
    in_proportion(raw).into_iter().map(|score| BEST - score).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::cluster_state::ClusterState;
    use crate::cluster_state::tests::cluster;
    use crate::node::tests::node;
    use crate::pod::PodInfo;
    use crate::pod::tests::{asking, pod, pod_with};
    use crate::view::View;
    use serde_json::{Value, json};

    /// The scores of a rule for all nodes, sorted by name.
    pub(crate) fn scored(cluster: &ClusterState, pod: &PodInfo, rule: Rule) -> Vec<i64> {
        let cycle = Cycle::begin(View::of(cluster), pod).unwrap();
        let nodes: Vec<&NodeState> = cluster.nodes().collect();
        rule(&cycle, &nodes)
    }

    #[test]
    fn n_195_the_emptier_node_wins_and_ties_are_random() {
        let mut cluster = cluster([node("a", json!({})), node("b", json!({}))], []);
        let pod = asking("p", "1", "1Gi");
        let best_of = |cluster: &ClusterState, random: u64| {
            let cycle = Cycle::begin(View::of(cluster), &pod).unwrap();
            let nodes: Vec<&NodeState> = cluster.nodes().collect();
            best(&cycle, &nodes, &mut || random).name.to_string()
        };
        assert_eq!([best_of(&cluster, 6), best_of(&cluster, 7)], ["a", "b"]);
        cluster.put_pod(asking("there", "1", "1Gi").on(&"a".into()));
        assert_eq!([best_of(&cluster, 6), best_of(&cluster, 7)], ["b", "b"]);
    }

    fn zoned(name: &str, zone: &str) -> NodeState {
        node(name, json!({ "metadata": { "labels": { "zone": zone } } }))
    }

    #[test]
    fn n_195_fewer_untolerated_taints_are_better() {
        let taint = |key: &str| json!({ "key": key, "effect": "PreferNoSchedule" });
        let tainted =
            |name: &str, taints: Value| node(name, json!({ "spec": { "taints": taints } }));
        let nodes = [
            tainted("a", json!([taint("x"), taint("y")])),
            tainted("b", json!([taint("x")])),
            tainted("c", json!([])),
        ];
        let cluster = cluster(nodes, []);
        assert_eq!(scored(&cluster, &pod("p", json!({})), node_preferences::taints), [0, 50, 100]);
        let tolerant = pod("p", json!({ "tolerations": [{ "key": "y", "operator": "Exists" }] }));
        assert_eq!(scored(&cluster, &tolerant, node_preferences::taints), [0, 0, 100]);
    }

    #[test]
    fn n_195_preferred_node_terms_are_weighted() {
        let preferred = |weight: i32, zone: &str| {
            json!({ "weight": weight, "preference": { "matchExpressions": [
                { "key": "zone", "operator": "In", "values": [zone] } ] } })
        };
        let pod = pod(
            "p",
            json!({ "affinity": { "nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [preferred(80, "x"), preferred(20, "y")],
        } } }),
        );
        let cluster = cluster([zoned("a", "x"), zoned("b", "y"), zoned("c", "z")], []);
        assert_eq!(scored(&cluster, &pod, node_preferences::preferred_terms), [100, 25, 0]);
    }

    #[test]
    fn n_195_preferred_pod_affinity_and_anti_affinity_count() {
        let wishing = |kind: &str| {
            let mut affinity = json!({});
            affinity[kind] = json!({ "preferredDuringSchedulingIgnoredDuringExecution": [{
                "weight": 10,
                "podAffinityTerm": { "topologyKey": "zone",
                                     "labelSelector": { "matchLabels": { "app": "db" } } },
            }] });
            pod("p", json!({ "affinity": affinity }))
        };
        let db = pod_with("db", json!({ "app": "db" }), json!({ "nodeName": "a" }));
        let cluster = cluster([zoned("a", "x"), zoned("b", "x"), zoned("c", "y")], [db]);
        assert_eq!(scored(&cluster, &wishing("podAffinity"), pod_affinity::score), [100, 100, 0]);
        assert_eq!(scored(&cluster, &wishing("podAntiAffinity"), pod_affinity::score), [0, 0, 100]);
    }

    #[test]
    fn n_195_preferences_of_existing_pods_count() {
        let there = pod(
            "there",
            json!({ "nodeName": "a", "affinity": { "podAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [{
                "topologyKey": "zone", "labelSelector": { "matchLabels": { "app": "web" } },
            }],
        } } }),
        );
        let cluster = cluster([zoned("a", "x"), zoned("b", "y")], [there]);
        let web = pod_with("web", json!({ "app": "web" }), json!({}));
        assert_eq!(scored(&cluster, &web, pod_affinity::score), [100, 0]);
        assert_eq!(scored(&cluster, &pod("other", json!({})), pod_affinity::score), [0, 0]);
    }

    #[test]
    fn n_195_soft_constraints_prefer_the_emptier_domain() {
        let labels = json!({ "app": "web" });
        let spreading = pod_with(
            "p",
            labels.clone(),
            json!({ "topologySpreadConstraints": [{
            "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": { "matchLabels": labels },
        }] }),
        );
        let web = |name: &str, node: &str| {
            pod_with(name, json!({ "app": "web" }), json!({ "nodeName": node }))
        };
        let nodes = [zoned("a", "x"), zoned("b", "y")];
        let cluster = cluster(nodes, [web("1", "a"), web("2", "a"), web("3", "b")]);
        let scores = scored(&cluster, &spreading, spread::score);
        assert!(scores[1] > scores[0], "{scores:?}");
    }

    #[test]
    fn n_192_pods_of_a_workload_are_spread_by_default() {
        let mut cluster = cluster(
            [node("a", json!({})), node("b", json!({}))],
            [pod_with("1", json!({ "app": "web" }), json!({ "nodeName": "a" }))],
        );
        let web = pod_with("p", json!({ "app": "web" }), json!({}));
        let before = scored(&cluster, &web, spread::score);
        assert_eq!(before[0], before[1]);
        let selector = api::selector::LabelSelector::from_labels(&json!({ "app": "web" }));
        let service = client::ObjectKey::new("default", "web");
        cluster.workloads.put_service(&service, Some(selector));
        let scores = scored(&cluster, &web, spread::score);
        assert!(scores[1] > scores[0], "{scores:?}");
    }

    #[test]
    fn n_195_nodes_with_the_images_are_better() {
        let mib = 1024 * 1024;
        let with = |name: &str, size: i64| {
            node(
                name,
                json!({ "status": { "images": [{ "names": ["web:1"], "sizeBytes": size }] } }),
            )
        };
        let cluster =
            cluster([with("a", 1000 * mib), node("b", json!({})), with("c", 10 * mib)], []);
        let pod = pod("p", json!({ "containers": [{ "name": "c", "image": "web:1" }] }));
        let scores = scored(&cluster, &pod, images::score);
        assert!(scores[0] > 60 && scores[1] == 0 && scores[2] == 0, "{scores:?}");
    }
}
