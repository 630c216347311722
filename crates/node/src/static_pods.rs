//! Pods from a directory, and their mirrors in the API (N-22 to N-26).
//!
//!     directory ──▶ folder ──▶ manifest ──▶ a set of pods, as the API's watch delivers one
//!                                             │
//!                                 mirror ◀────┘   what people see of them through the API
//!
//! Not here: how such a pod runs and ends, which is as any other (`worker`).

mod folder;
mod manifest;
mod mirror;
mod references;

pub(crate) use folder::{StaticPods, follow};
pub(crate) use mirror::{delete_mirror, reconcile_mirror};

use k8s_openapi::api::core::v1::Pod;

const CONFIG_SOURCE: &str = "kubernetes.io/config.source";
const CONFIG_HASH: &str = "kubernetes.io/config.hash";
const CONFIG_SEEN: &str = "kubernetes.io/config.seen";
const CONFIG_MIRROR: &str = "kubernetes.io/config.mirror";

/// From here on a priority is the system's.
pub(crate) const CRITICAL: i32 = 2_000_000_000;

fn annotation<'p>(pod: &'p Pod, name: &str) -> Option<&'p str> {
    pod.metadata.annotations.as_ref()?.get(name).map(String::as_str)
}

/// The pod came from this node, not from the API.
pub(crate) fn is_static(pod: &Pod) -> bool {
    annotation(pod, CONFIG_SOURCE).is_some_and(|source| source != "api")
}

/// The API's image of a static pod. It never runs.
pub(crate) fn is_mirror(pod: &Pod) -> bool {
    annotation(pod, CONFIG_MIRROR).is_some()
}

/// N-26.
pub(crate) fn is_critical(pod: &Pod) -> bool {
    let priority = pod.spec.as_ref().and_then(|spec| spec.priority);
    is_static(pod) || is_mirror(pod) || priority.is_some_and(|priority| priority >= CRITICAL)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn n_26_static_mirrored_and_highest_priority_pods_are_critical() {
        let pod = |annotations: Value, priority: Value| -> Pod {
            typed::from_value(json!({
                "metadata": { "annotations": annotations },
                "spec": { "containers": [], "priority": priority },
            }))
            .unwrap()
        };
        let rows = [
            (pod(json!({}), json!(null)), false),
            (pod(json!({}), json!(1_999_999_999)), false),
            (pod(json!({}), json!(2_000_000_000)), true),
            (pod(json!({ "kubernetes.io/config.source": "file" }), json!(0)), true),
            (pod(json!({ "kubernetes.io/config.source": "api" }), json!(0)), false),
            (pod(json!({ "kubernetes.io/config.mirror": "x" }), json!(0)), true),
        ];
        for (pod, expected) in rows {
            assert_eq!(is_critical(&pod), expected, "{pod:?}");
        }
    }
}
