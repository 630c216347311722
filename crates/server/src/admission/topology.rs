//! PodTopologyLabels: a pod that comes with its node gets the node's zone and region. Pods
//! that are bound later get them from the binding.

use crate::call::Call;
use crate::object::Stored;
use api::value::ValueExt;
use serde_json::Value;

const LABELS: [&str; 2] = ["topology.kubernetes.io/zone", "topology.kubernetes.io/region"];

pub(super) fn admit(call: &Call, pod: &mut Value) {
    let name = pod.text(&["spec", "nodeName"]);
    if name.is_empty() {
        return;
    }
    let Some(node) = call.store().get("nodes", name) else { return };
    for label in LABELS {
        if let Some(value) = node.label(label) {
            pod.object("metadata").object("labels").set_default(label, value);
        }
    }
}
