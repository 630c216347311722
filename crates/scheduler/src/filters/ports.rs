//! NodePorts: a host port can be used only once (N-191).

use super::{Plugin, Rejection};
use crate::node::NodeState;
use crate::pod::PodInfo;

pub(super) fn check(pod: &PodInfo, node: &NodeState) -> Result<(), Rejection> {
    if pod.ports.iter().any(|port| node.is_port_taken(port)) {
        let reason = "node(s) didn't have free ports for the requested pod ports";
        return Err(Rejection::soft(Plugin::NodePorts, reason));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::filters::check_single_node;
    use crate::filters::tests::reasons;
    use crate::node::tests::node;
    use crate::pod::tests::pod;
    use serde_json::json;
    use std::sync::Arc;

    #[test]
    fn n_191_a_used_port_rejects_until_its_pod_is_gone() {
        let listening = |name: &str, ip: &str, protocol: &str| {
            pod(
                name,
                json!({ "containers": [{ "name": "c", "ports": [
                    { "containerPort": 80, "hostPort": 8080, "hostIP": ip, "protocol": protocol },
                ] }] }),
            )
        };
        let mut n = node("n", json!({}));
        n.add(Arc::new(listening("one", "127.0.0.1", "TCP")));
        let no = "node(s) didn't have free ports for the requested pod ports";
        assert_eq!(reasons(check_single_node(&listening("two", "", "TCP"), &n)), no);
        assert_eq!(reasons(check_single_node(&listening("two", "127.0.0.1", "TCP"), &n)), no);
        assert_eq!(reasons(check_single_node(&listening("two", "127.0.0.2", "TCP"), &n)), "fits");
        assert_eq!(reasons(check_single_node(&listening("two", "127.0.0.1", "UDP"), &n)), "fits");
        n.remove(&listening("one", "", "TCP").key);
        assert_eq!(reasons(check_single_node(&listening("two", "", "TCP"), &n)), "fits");
    }
}
