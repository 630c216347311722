//! PodTopologyLabels: a pod that is created with a node name gets the node's zone and region. Other pods get them
//! when they are bound.

use crate::object::Stored;
use crate::request::call::Call;
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
