//! Which of the nodes that can take a pod is best (N-195).
//!
//! Each rule gives every node 0 to 100; they are weighed and added. Ties are decided by chance.

mod affinity;
mod images;
mod neighbours;
mod resources;
mod spread;

use crate::filters::Cycle;
use crate::node::NodeState;

const BEST: i64 = 100;

/// Gives each of the nodes its score, in their order.
type Rule = fn(&Cycle, &[&NodeState]) -> Vec<i64>;

/// Upstream: `default_plugins.go`.
const RULES: [(i64, Rule); 7] = [
    (3, affinity::taints),
    (2, affinity::wishes),
    (2, spread::score),
    (2, neighbours::score),
    (1, resources::least_allocated),
    (1, resources::balanced),
    (1, images::score),
];

/// The best of `nodes`, of which there is at least one.
pub(crate) fn best<'a>(
    cycle: &Cycle,
    nodes: &[&'a NodeState],
    chance: &mut impl FnMut() -> u64,
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
        many => best[(chance() % many as u64) as usize],
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

/// The largest becomes 100, the others in proportion.
fn in_proportion(mut raw: Vec<i64>) -> Vec<i64> {
    let most = raw.iter().copied().max().unwrap_or_default();
    if most > 0 {
        raw.iter_mut().for_each(|score| *score = *score * BEST / most);
    }
    raw
}

/// The fewer the better.
fn reversed(raw: Vec<i64>) -> Vec<i64> {
    in_proportion(raw).into_iter().map(|score| BEST - score).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::node::tests::node;
    use crate::pod::PodInfo;
    use crate::pod::tests::{asking, pod, pod_with};
    use crate::view::View;
    use crate::world::World;
    use crate::world::tests::world;
    use serde_json::{Value, json};

    /// What a rule gives the nodes of a world, in the order of their names.
    pub(crate) fn scored(world: &World, pod: &PodInfo, rule: Rule) -> Vec<i64> {
        let cycle = Cycle::begin(View::of(world), pod).unwrap();
        let nodes: Vec<&NodeState> = world.nodes().collect();
        rule(&cycle, &nodes)
    }

    #[test]
    fn n_195_the_emptier_node_wins_and_ties_are_decided_by_chance() {
        let mut world = world([node("a", json!({})), node("b", json!({}))], []);
        let pod = asking("p", "1", "1Gi");
        let best_of = |world: &World, chance: u64| {
            let cycle = Cycle::begin(View::of(world), &pod).unwrap();
            let nodes: Vec<&NodeState> = world.nodes().collect();
            best(&cycle, &nodes, &mut || chance).name.to_string()
        };
        assert_eq!([best_of(&world, 6), best_of(&world, 7)], ["a", "b"]);
        world.put_pod(asking("there", "1", "1Gi").on(&"a".into()));
        assert_eq!([best_of(&world, 6), best_of(&world, 7)], ["b", "b"]);
    }

    fn zoned(name: &str, zone: &str) -> NodeState {
        node(name, json!({ "metadata": { "labels": { "zone": zone } } }))
    }

    #[test]
    fn n_195_fewer_taints_that_are_not_tolerated_are_better() {
        let taint = |key: &str| json!({ "key": key, "effect": "PreferNoSchedule" });
        let tainted =
            |name: &str, taints: Value| node(name, json!({ "spec": { "taints": taints } }));
        let nodes = [
            tainted("a", json!([taint("x"), taint("y")])),
            tainted("b", json!([taint("x")])),
            tainted("c", json!([])),
        ];
        let world = world(nodes, []);
        assert_eq!(scored(&world, &pod("p", json!({})), affinity::taints), [0, 50, 100]);
        let tolerant = pod("p", json!({ "tolerations": [{ "key": "y", "operator": "Exists" }] }));
        assert_eq!(scored(&world, &tolerant, affinity::taints), [0, 0, 100]);
    }

    #[test]
    fn n_195_wishes_for_nodes_are_weighed() {
        let wish = |weight: i32, zone: &str| {
            json!({ "weight": weight, "preference": { "matchExpressions": [
                { "key": "zone", "operator": "In", "values": [zone] } ] } })
        };
        let pod = pod(
            "p",
            json!({ "affinity": { "nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [wish(80, "x"), wish(20, "y")],
        } } }),
        );
        let world = world([zoned("a", "x"), zoned("b", "y"), zoned("c", "z")], []);
        assert_eq!(scored(&world, &pod, affinity::wishes), [100, 25, 0]);
    }

    #[test]
    fn n_195_wished_neighbours_draw_and_push() {
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
        let world = world([zoned("a", "x"), zoned("b", "x"), zoned("c", "y")], [db]);
        assert_eq!(scored(&world, &wishing("podAffinity"), neighbours::score), [100, 100, 0]);
        assert_eq!(scored(&world, &wishing("podAntiAffinity"), neighbours::score), [0, 0, 100]);
    }

    #[test]
    fn n_195_those_that_are_there_have_wishes_too() {
        let there = pod(
            "there",
            json!({ "nodeName": "a", "affinity": { "podAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [{
                "topologyKey": "zone", "labelSelector": { "matchLabels": { "app": "web" } },
            }],
        } } }),
        );
        let world = world([zoned("a", "x"), zoned("b", "y")], [there]);
        let web = pod_with("web", json!({ "app": "web" }), json!({}));
        assert_eq!(scored(&world, &web, neighbours::score), [100, 0]);
        assert_eq!(scored(&world, &pod("other", json!({})), neighbours::score), [0, 0]);
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
        let world = world(nodes, [web("1", "a"), web("2", "a"), web("3", "b")]);
        let scores = scored(&world, &spreading, spread::score);
        assert!(scores[1] > scores[0], "{scores:?}");
    }

    #[test]
    fn n_192_siblings_are_spread_even_if_nobody_asks() {
        let mut world = world(
            [node("a", json!({})), node("b", json!({}))],
            [pod_with("1", json!({ "app": "web" }), json!({ "nodeName": "a" }))],
        );
        let web = pod_with("p", json!({ "app": "web" }), json!({}));
        let before = scored(&world, &web, spread::score);
        assert_eq!(before[0], before[1]);
        let selector = api::selector::LabelSelector::from_labels(&json!({ "app": "web" }));
        let service = client::ObjectKey::new("default", "web");
        world.workloads.put_service(&service, Some(selector));
        let scores = scored(&world, &web, spread::score);
        assert!(scores[1] > scores[0], "{scores:?}");
    }

    #[test]
    fn n_195_images_that_are_there_save_a_pull() {
        let mib = 1024 * 1024;
        let with = |name: &str, size: i64| {
            node(
                name,
                json!({ "status": { "images": [{ "names": ["web:1"], "sizeBytes": size }] } }),
            )
        };
        let world = world([with("a", 1000 * mib), node("b", json!({})), with("c", 10 * mib)], []);
        let pod = pod("p", json!({ "containers": [{ "name": "c", "image": "web:1" }] }));
        let scores = scored(&world, &pod, images::score);
        assert!(scores[0] > 60 && scores[1] == 0 && scores[2] == 0, "{scores:?}");
    }
}
