//! Static pods from a directory, and their mirror pods in the API (N-22 to N-26).
//!
//!     directory ──▶ manifest ──▶ the set of static pods, like that of the API
//!                                   │
//!                       mirror ◀────┘   how they are visible in the API
//!
//! Not here: how such a pod runs and terminates, which is as for any other (`worker`).

mod directory;
mod manifest;
mod mirror;
mod references;

pub(crate) use directory::{StaticPods, follow};
pub(crate) use mirror::{delete_mirror, reconcile_mirror};

use k8s_openapi::api::core::v1::Pod;
pub(crate) use lifecycle::status::is_static;

const CONFIG_SOURCE: &str = "kubernetes.io/config.source";
const CONFIG_HASH: &str = "kubernetes.io/config.hash";
const CONFIG_SEEN: &str = "kubernetes.io/config.seen";
const CONFIG_MIRROR: &str = "kubernetes.io/config.mirror";

/// Priorities from here on are those of the system.
pub(crate) const CRITICAL: i32 = 2_000_000_000;

fn annotation<'p>(pod: &'p Pod, name: &str) -> Option<&'p str> {
    pod.metadata.annotations.as_ref()?.get(name).map(String::as_str)
}

/// The mirror of a static pod in the API. It never runs.
pub(crate) fn is_mirror(pod: &Pod) -> bool {
    annotation(pod, CONFIG_MIRROR).is_some()
}

/// Static pods, mirrors and pods with a system priority are critical (N-26).
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
