//! Times that are written as null when they are unset.
//!
//! Upstream's encoder leaves out an unset time only where its type is a pointer; in conditions it is
//! not, and clients see `null`. Decoding drops nulls, so they are put back here.

use api::value::ValueExt;
use serde_json::Value;

/// The times in `status.conditions` of a kind that are always written.
fn condition_times(kind: &str) -> &'static [&'static str] {
    match kind {
        "Pod" | "Job" | "PersistentVolumeClaim" => &["lastProbeTime", "lastTransitionTime"],
        "Node" => &["lastHeartbeatTime", "lastTransitionTime"],
        "Deployment" => &["lastTransitionTime", "lastUpdateTime"],
        "ReplicaSet"
        | "ReplicationController"
        | "StatefulSet"
        | "DaemonSet"
        | "Namespace"
        | "HorizontalPodAutoscaler" => &["lastTransitionTime"],
        _ => &[],
    }
}

/// Writes `null` for the unset times of an object's conditions.
pub fn show_unset_times(kind: &str, object: &mut Value) {
    let times = condition_times(kind);
    if times.is_empty() {
        return;
    }
    let Some(status) = object.get_mut("status") else { return };
    for condition in status.list_mut("conditions") {
        for time in times {
            condition.set_default(time, Value::Null);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_condition_without_times_shows_them_as_null() {
        let mut pod = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        show_unset_times("Pod", &mut pod);
        let condition = &pod["status"]["conditions"][0];
        assert_eq!(
            condition,
            &json!({"type": "Ready", "status": "True", "lastProbeTime": null, "lastTransitionTime": null})
        );
    }
}
