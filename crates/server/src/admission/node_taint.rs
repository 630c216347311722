//! TaintNodesByCondition: a new Node gets no pods until it has reported that it is ready.

use api::value::ValueExt;
use serde_json::{Value, json};

const NOT_READY: &str = "node.kubernetes.io/not-ready";

pub(super) fn admit(node: &mut Value) {
    let spec = node.object("spec");
    spec.set_default("taints", json!([]));
    let Some(Value::Array(taints)) = spec.get_mut("taints") else { return };
    let same = |taint: &Value| taint["key"] == NOT_READY && taint["effect"] == "NoSchedule";
    if !taints.iter().any(same) {
        taints.push(json!({ "key": NOT_READY, "effect": "NoSchedule" }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_154_a_new_node_is_tainted_not_ready_once() {
        let mut node = json!({"spec": {"taints": [{"key": "own", "effect": "NoExecute"}]}});
        admit(&mut node);
        admit(&mut node);
        assert_eq!(
            node["spec"]["taints"],
            json!([
                {"key": "own", "effect": "NoExecute"},
                {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"},
            ])
        );
    }
}
