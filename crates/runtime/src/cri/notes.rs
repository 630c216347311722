//! What CRI does not keep for us, kept in annotations of what we make.
//!
//! A runtime tells back labels and annotations, but not the cgroup or the log directory of a
//! sandbox, which it wants to be told again for every container; nor, in older versions, limits.

use crate::{Resources, SandboxSpec};
use std::collections::{BTreeMap, HashMap};

const SANDBOX: &str = "landfall.dev/sandbox";
const CONTAINER: &str = "landfall.dev/container";

#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub(super) struct ContainerNotes {
    /// How the pod named it; older runtimes only know the id they were told.
    pub(super) image_name: String,
    pub(super) resources: Resources,
    pub(super) oom_score_adj: i32,
}

pub(super) fn with_sandbox(spec: &SandboxSpec) -> HashMap<String, String> {
    // Its own labels and annotations are kept as what they are.
    let bare =
        SandboxSpec { labels: BTreeMap::new(), annotations: BTreeMap::new(), ..spec.clone() };
    with(&spec.annotations, SANDBOX, serde_json::to_string(&bare).unwrap_or_default())
}

pub(super) fn with_container(
    annotations: &BTreeMap<String, String>,
    notes: &ContainerNotes,
) -> HashMap<String, String> {
    with(annotations, CONTAINER, serde_json::to_string(notes).unwrap_or_default())
}

fn with(
    annotations: &BTreeMap<String, String>,
    name: &str,
    note: String,
) -> HashMap<String, String> {
    let own = std::iter::once((name.to_string(), note));
    annotations.clone().into_iter().chain(own).collect()
}

/// None: somebody else made it.
pub(super) fn sandbox(annotations: &HashMap<String, String>) -> Option<SandboxSpec> {
    let mut spec: SandboxSpec = serde_json::from_str(annotations.get(SANDBOX)?).ok()?;
    spec.annotations = without(annotations);
    Some(spec)
}

pub(super) fn container(annotations: &HashMap<String, String>) -> Option<ContainerNotes> {
    serde_json::from_str(annotations.get(CONTAINER)?).ok()
}

/// What the caller gave us to keep.
pub(super) fn without(annotations: &HashMap<String, String>) -> BTreeMap<String, String> {
    let theirs = annotations.iter().filter(|(name, _)| *name != SANDBOX && *name != CONTAINER);
    theirs.map(|(name, value)| (name.clone(), value.clone())).collect()
}
