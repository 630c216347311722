//! NodeResourcesFit: what is asked for must be left. Limits are never looked at (N-188).

use super::{Plugin, Rejection};
use crate::node::{NodeState, Offer};
use crate::pod::PodInfo;
use std::borrow::Cow;

/// Says every resource that is short, not only the first.
pub(super) fn check(pod: &PodInfo, node: &NodeState, offer: &Offer) -> Result<(), Rejection> {
    let mut reasons: Vec<Cow<'static, str>> = Vec::new();
    let mut hard = false;
    if node.pods.len() as i64 + 1 > offer.pods_max {
        reasons.push("Too many pods".into());
    }
    for (name, wanted) in pod.requests.positive() {
        let there = offer.allocatable.get(name);
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
    use crate::filters::check_alone;
    use crate::filters::tests::said;
    use crate::node::tests::node;
    use crate::pod::tests::{asking, pod};
    use serde_json::json;
    use std::sync::Arc;

    #[test]
    fn n_189_every_short_resource_is_said() {
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
                said(check_alone(&asking("p", cpu, memory), &n)),
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
        assert_eq!(said(check_alone(&gpus("2"), &n)), "fits");
        assert_eq!(said(check_alone(&gpus("3"), &n)), "Insufficient example.com/gpu (hard)");
    }

    #[test]
    fn n_188_a_node_takes_so_many_pods() {
        let mut n = node("n", json!({ "status": { "allocatable": { "pods": "2" } } }));
        n.add(Arc::new(pod("a", json!({}))));
        assert_eq!(said(check_alone(&pod("p", json!({})), &n)), "fits");
        n.add(Arc::new(pod("b", json!({}))));
        assert_eq!(said(check_alone(&pod("p", json!({})), &n)), "Too many pods");
    }
}
