//! Room: NodeResourcesFit prefers emptier nodes, NodeResourcesBalancedAllocation those where CPU and
//! memory are used alike.

use super::BEST;
use crate::filters::Cycle;
use crate::node::NodeState;

/// The mean, over CPU and memory, of what would be left.
pub(super) fn least_allocated(cycle: &Cycle, nodes: &[&NodeState]) -> Vec<i64> {
    let wanted = cycle.pod.estimated;
    let score = |node: &&NodeState| {
        let there = capacity(node);
        let left = |n: usize| {
            let used = node.estimated[n] + wanted[n];
            if there[n] == 0 || used > there[n] { 0 } else { (there[n] - used) * BEST / there[n] }
        };
        let counted = there.iter().filter(|there| **there > 0).count().max(1);
        (left(0) + left(1)) / counted as i64
    };
    nodes.iter().map(score).collect()
}

/// How alike the used fractions would be. Who asks for nothing does not care.
pub(super) fn balanced(cycle: &Cycle, nodes: &[&NodeState]) -> Vec<i64> {
    let wanted = [cycle.pod.requests.cpu, cycle.pod.requests.memory];
    if wanted == [0, 0] {
        return vec![0; nodes.len()];
    }
    let score = |node: &&NodeState| {
        let there = capacity(node);
        let used = [node.used.cpu, node.used.memory];
        let fraction = |n: usize| match there[n] {
            0 => 0.0,
            there => ((used[n] + wanted[n]) as f64 / there as f64).min(1.0),
        };
        let apart = (fraction(0) - fraction(1)).abs() / 2.0;
        ((1.0 - apart) * BEST as f64) as i64
    };
    nodes.iter().map(score).collect()
}

fn capacity(node: &NodeState) -> [i64; 2] {
    let offer = node.offer.as_ref();
    offer.map_or([0; 2], |offer| [offer.allocatable.cpu, offer.allocatable.memory])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::tests::node;
    use crate::pod::tests::{asking, pod};
    use crate::scores::tests::scored;
    use crate::world::tests::world;
    use serde_json::json;

    #[test]
    fn n_195_least_allocated_is_the_mean_of_what_is_left() {
        let world = world(
            [node("a", json!({})), node("b", json!({}))],
            [asking("there", "1", "2Gi").on(&"b".into())],
        );
        // 4 CPUs and 8 GiB: half of both is left on a, a quarter on b.
        assert_eq!(scored(&world, &asking("p", "2", "4Gi"), least_allocated), [50, 25]);
    }

    #[test]
    fn n_195_balance_is_for_those_who_ask_for_something() {
        let world = world(
            [node("a", json!({})), node("b", json!({}))],
            [asking("there", "2", "0").on(&"b".into())],
        );
        assert_eq!(scored(&world, &asking("p", "1", "2Gi"), balanced), [100, 75]);
        assert_eq!(scored(&world, &pod("p", json!({})), balanced), [0, 0]);
    }
}
