//! Stores values in annotations of sandboxes and containers that CRI does not return itself.
//!
//! A CRI runtime returns labels and annotations. It does not return the cgroup and the log directory of a sandbox,
//! although it needs both again for every container. Older runtimes do not return limits either.

use crate::{Resources, SandboxSpec};
use std::collections::{BTreeMap, HashMap};

const SANDBOX: &str = "landfall.dev/sandbox";
const CONTAINER: &str = "landfall.dev/container";

#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub(super) struct StoredContainer {
    /// The image's name in the pod spec. Older runtimes return only the image id.
    pub(super) image_name: String,
    pub(super) resources: Resources,
    pub(super) oom_score_adj: i32,
}

pub(super) fn with_sandbox(spec: &SandboxSpec) -> HashMap<String, String> {
    // Labels and annotations are stored by the runtime itself.
    let stripped =
        SandboxSpec { labels: BTreeMap::new(), annotations: BTreeMap::new(), ..spec.clone() };
    with(&spec.annotations, SANDBOX, serde_json::to_string(&stripped).unwrap_or_default())
}

pub(super) fn with_container(
    annotations: &BTreeMap<String, String>,
    stored: &StoredContainer,
) -> HashMap<String, String> {
    with(annotations, CONTAINER, serde_json::to_string(stored).unwrap_or_default())
}

fn with(
    annotations: &BTreeMap<String, String>,
    name: &str,
    value: String,
) -> HashMap<String, String> {
    let own = std::iter::once((name.to_string(), value));
    annotations.clone().into_iter().chain(own).collect()
}

/// `None` if landfall did not create the sandbox.
pub(super) fn sandbox(annotations: &HashMap<String, String>) -> Option<SandboxSpec> {
    let mut spec: SandboxSpec = serde_json::from_str(annotations.get(SANDBOX)?).ok()?;
    spec.annotations = without(annotations);
    Some(spec)
}

pub(super) fn container(annotations: &HashMap<String, String>) -> Option<StoredContainer> {
    serde_json::from_str(annotations.get(CONTAINER)?).ok()
}

/// The annotations without ours.
pub(super) fn without(annotations: &HashMap<String, String>) -> BTreeMap<String, String> {
    let others = annotations.iter().filter(|(name, _)| *name != SANDBOX && *name != CONTAINER);
    others.map(|(name, value)| (name.clone(), value.clone())).collect()
}
