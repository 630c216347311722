//! NodeResourcesFit: the node must have free resources for the requests. Limits do not count (N-188).

use super::{Plugin, Rejection};
use crate::node::{NodeInfo, NodeState};
use crate::pod::PodInfo;
use std::borrow::Cow;

/// Names every insufficient resource, not only the first.
pub(super) fn check(pod: &PodInfo, node: &NodeState, info: &NodeInfo) -> Result<(), Rejection> {
    let mut reasons: Vec<Cow<'static, str>> = Vec::new();
    let mut hard = false;
    if node.pods.len() as i64 + 1 > info.pods_max {
        reasons.push("Too many pods".into());
    }
    for (name, wanted) in pod.requests.positive() {
        let there = info.allocatable.get(name);
        if wanted > there.saturating_sub(node.used.get(name)) {
            reasons.push(format!("Insufficient {name}").into());
            hard |= wanted > there;
        }
    }
    if reasons.is_empty() {
        return Ok(());
    }
    Err(Rejection { plugin: Plugin::NodeResourcesFit, reasons, hard })
}

#[cfg(test)]
mod tests {
    use crate::filters::check_single_node;
    use crate::filters::tests::reasons;
    use crate::node::tests::node;
    use crate::pod::tests::{asking, pod};
    use serde_json::json;
    use std::sync::Arc;

    #[test]
    fn n_189_every_insufficient_resource_is_named() {
        let mut n = node("n", json!({ "status": { "allocatable": { "example.com/gpu": "2" } } }));
        n.add(Arc::new(asking("there", "3", "6Gi")));
        let cases = [
            ("1", "2Gi", "fits"),
            ("1001m", "1Gi", "Insufficient cpu"),
            ("1", "3Gi", "Insufficient memory"),
            ("2", "3Gi", "Insufficient cpu, Insufficient memory"),
            ("5", "1Gi", "Insufficient cpu (hard)"),
            ("0", "0", "fits"),
        ];
        for (cpu, memory, expected) in cases {
            assert_eq!(
                reasons(check_single_node(&asking("p", cpu, memory), &n)),
                expected,
                "{cpu} {memory}"
            );
        }
        let gpus = |count: &str| {
            pod(
                "p",
                json!({ "containers": [{ "name": "c", "resources": {
                "requests": { "example.com/gpu": count, "ephemeral-storage": "1Gi" },
                "limits": { "cpu": "100" },
            } }] }),
            )
        };
        assert_eq!(reasons(check_single_node(&gpus("2"), &n)), "fits");
        assert_eq!(
            reasons(check_single_node(&gpus("3"), &n)),
            "Insufficient example.com/gpu (hard)"
        );
    }

    #[test]
    fn n_188_the_number_of_pods_per_node_is_limited() {
        let mut n = node("n", json!({ "status": { "allocatable": { "pods": "2" } } }));
        n.add(Arc::new(pod("a", json!({}))));
        assert_eq!(reasons(check_single_node(&pod("p", json!({})), &n)), "fits");
        n.add(Arc::new(pod("b", json!({}))));
        assert_eq!(reasons(check_single_node(&pod("p", json!({})), &n)), "Too many pods");
    }
}
