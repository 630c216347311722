//! NodeResourcesFit prefers emptier nodes, NodeResourcesBalancedAllocation those with similar CPU and memory usage.

use super::BEST;
use crate::filters::Cycle;
use crate::node::NodeState;

/// The mean of the remaining shares of CPU and memory.
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

/// How similar the used fractions of CPU and memory would be. Zero for pods without requests.
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
    let info = node.info.as_ref();
    info.map_or([0; 2], |info| [info.allocatable.cpu, info.allocatable.memory])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster_state::tests::cluster;
    use crate::node::tests::node;
    use crate::pod::tests::{asking, pod};
    use crate::scores::tests::scored;
    use serde_json::json;

    #[test]
    fn n_195_least_allocated_is_the_mean_of_the_remaining_shares() {
        let cluster = cluster(
            [node("a", json!({})), node("b", json!({}))],
            [asking("there", "1", "2Gi").on(&"b".into())],
        );
        // 4 CPUs and 8 GiB: half of both is left on a, a quarter on b.
        assert_eq!(scored(&cluster, &asking("p", "2", "4Gi"), least_allocated), [50, 25]);
    }

    #[test]
    fn n_195_balance_counts_only_for_pods_with_requests() {
        let cluster = cluster(
            [node("a", json!({})), node("b", json!({}))],
            [asking("there", "2", "0").on(&"b".into())],
        );
        assert_eq!(scored(&cluster, &asking("p", "1", "2Gi"), balanced), [100, 75]);
        assert_eq!(scored(&cluster, &pod("p", json!({})), balanced), [0, 0]);
    }
}
