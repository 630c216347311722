//! Puts back what a drill changed: at its end, when it is interrupted, and after a crash.
//!
//! Before the first change, the original values are written into an annotation of the workload. The
//! annotation is enough to restore the workload later.

use crate::error::{Error, Result};
use crate::hook;
use crate::rollout::RESTARTED_AT;
use crate::workload::{Workload, WorkloadRef};
use client::{Client, ObjectKey, Selection};
use k8s_openapi::api::core::v1::Node;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The annotation of a workload that is being drilled.
pub const ANNOTATION: &str = "landfall.dev/drill-restore";
/// The annotation of a Node that delays its packet rules.
pub(crate) const PROXY_DELAY: &str = "landfall.dev/proxy-delay";

/// What the workload was like before the drill.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Original {
    /// When the drill began.
    pub started: String,
    pub container: String,
    /// The container's `lifecycle`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifecycle: Option<Value>,
    pub grace_seconds: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restarted_at: Option<String>,
    /// The delay annotation of each node that the drill changes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub nodes: BTreeMap<String, Option<String>>,
}

impl Original {
    pub(crate) fn of(workload: &Workload, container: &str, started: &str) -> Original {
        Original {
            started: started.to_owned(),
            container: container.to_owned(),
            lifecycle: lifecycle(workload, container),
            grace_seconds: workload.grace(),
            restarted_at: workload.template_annotation(RESTARTED_AT).cloned(),
            nodes: BTreeMap::new(),
        }
    }

    /// What an earlier drill left behind. None: nothing.
    pub fn left_behind(workload: &Workload) -> Result<Option<Original>> {
        let Some(text) = workload.annotations.get(ANNOTATION) else { return Ok(None) };
        serde_json::from_str(text).map(Some).map_err(|error| Error::BadRestoreRecord {
            workload: workload.id.to_string(),
            why: error.to_string(),
        })
    }

    /// The patch that makes the workload what it was. It changes only what a drill changes.
    pub(crate) fn patch(&self, current: &Workload) -> Value {
        let mut patch = json!({ "metadata": { "annotations": { ANNOTATION: null } } });
        if current.annotations.keys().all(|name| name == ANNOTATION) {
            // Otherwise an empty map would be left where there was none.
            patch["metadata"]["annotations"] = Value::Null;
        }
        let mut template = json!({});
        if current.template_annotation(RESTARTED_AT) != self.restarted_at.as_ref() {
            let annotations =
                current.template.metadata.as_ref().and_then(|meta| meta.annotations.as_ref());
            let only_ours =
                annotations.is_none_or(|all| all.keys().all(|name| name == RESTARTED_AT));
            template["metadata"]["annotations"] = match (&self.restarted_at, only_ours) {
                (None, true) => Value::Null,
                (original, _) => json!({ RESTARTED_AT: original }),
            };
        }
        if current.grace() != self.grace_seconds {
            template["spec"]["terminationGracePeriodSeconds"] = self.grace_seconds.into();
        }
        let exists = current.container(&self.container).is_some();
        if exists && lifecycle(current, &self.container) != self.lifecycle {
            let lifecycle = hook::original_patch(self.lifecycle.as_ref());
            let container = json!({ "name": self.container, "lifecycle": lifecycle });
            template["spec"]["containers"] = json!([container]);
        }
        if template != json!({}) {
            patch["spec"]["template"] = template;
        }
        patch
    }
}

fn lifecycle(workload: &Workload, container: &str) -> Option<Value> {
    let template = typed::to_value(&workload.template).ok()?;
    let containers = template["spec"]["containers"].as_array()?;
    let found = containers.iter().find(|one| one["name"] == container)?;
    found.get("lifecycle").filter(|value| !value.is_null()).cloned()
}

/// Writes down what will be changed. Nothing may be changed before.
pub(crate) async fn begin(
    client: &Client,
    workload: &Workload,
    original: &Original,
) -> Result<Workload> {
    let record = serde_json::to_string(original).unwrap_or_default();
    let patch = json!({ "metadata": { "annotations": { ANNOTATION: record } } });
    Workload::patch(client, &workload.id, &patch).await
}

/// What was put back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Restored {
    /// The workload exists and has its own values again.
    pub workload: bool,
    /// The pod template was changed back, so pods are being replaced.
    pub template: bool,
    pub nodes: usize,
}

/// Restores a workload by its annotation. Fails if it has none.
pub async fn restore(client: &Client, id: &WorkloadRef) -> Result<Restored> {
    let workload = Workload::load(client, id).await?;
    match Original::left_behind(&workload)? {
        Some(original) => put_back(client, id, &original).await,
        None => Err(Error::NothingToRestore(id.to_string())),
    }
}

/// Restores the nodes, then the workload. A workload that was deleted needs nothing.
pub(crate) async fn put_back(
    client: &Client,
    id: &WorkloadRef,
    original: &Original,
) -> Result<Restored> {
    for (node, value) in &original.nodes {
        set_proxy_delay(client, node, value.as_deref()).await?;
    }
    let nodes = original.nodes.len();
    // Without the annotation it is restored already, or another workload of the same name.
    let current = Workload::find(client, id).await?;
    let Some(current) = current.filter(|current| current.annotations.contains_key(ANNOTATION))
    else {
        return Ok(Restored { workload: false, template: false, nodes });
    };
    let patch = original.patch(&current);
    let restored = Workload::patch(client, id, &patch).await?;
    Ok(Restored { workload: true, template: restored.template != current.template, nodes })
}

/// The present delay annotation of all nodes.
pub(crate) async fn proxy_delays(client: &Client) -> Result<BTreeMap<String, Option<String>>> {
    let nodes = client.list::<Node>(&Selection::default()).await?;
    let delay = |node: Node| {
        let annotations = node.metadata.annotations.unwrap_or_default();
        (node.metadata.name.unwrap_or_default(), annotations.get(PROXY_DELAY).cloned())
    };
    Ok(nodes.into_iter().map(delay).collect())
}

/// Sets or removes the delay annotation of a node. A node that is gone needs nothing.
pub(crate) async fn set_proxy_delay(
    client: &Client,
    node: &str,
    value: Option<&str>,
) -> Result<()> {
    let patch = json!({ "metadata": { "annotations": { PROXY_DELAY: value } } });
    match client.patch_merge::<Node>(&ObjectKey::cluster(node), &patch).await {
        Ok(_) => Ok(()),
        Err(error) if error.is_not_found() => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::tests::deployment;

    fn template(annotations: Value, grace: i64, lifecycle: Value) -> Workload {
        let mut container = json!({"name": "server"});
        if !lifecycle.is_null() {
            container["lifecycle"] = lifecycle;
        }
        deployment(json!({"template": {"metadata": {"annotations": annotations},
            "spec": {"terminationGracePeriodSeconds": grace, "containers": [container]}}}))
    }

    #[test]
    fn only_what_differs_is_put_back() {
        let sleep = json!({"preStop": {"sleep": {"seconds": 5}}});
        let before = template(Value::Null, 30, Value::Null);
        let original = Original::of(&before, "server", "t");
        assert_eq!(original.patch(&before).get("spec"), None, "nothing was changed");

        let after = template(json!({RESTARTED_AT: "x"}), 35, sleep.clone());
        let patch = original.patch(&after);
        let template_patch = &patch["spec"]["template"];
        assert_eq!(template_patch["metadata"]["annotations"], Value::Null);
        assert_eq!(template_patch["spec"]["terminationGracePeriodSeconds"], 30);
        assert_eq!(template_patch["spec"]["containers"][0]["lifecycle"], Value::Null);

        // Annotations of others stay.
        let foreign = template(json!({RESTARTED_AT: "x", "a": "b"}), 30, Value::Null);
        let annotations = &original.patch(&foreign)["spec"]["template"]["metadata"]["annotations"];
        assert_eq!(*annotations, json!({RESTARTED_AT: null}));
    }

    #[test]
    fn the_annotation_holds_all_that_is_needed() {
        let exec = json!({"preStop": {"exec": {"command": ["sleep", "2"]}}});
        let mut workload = template(json!({RESTARTED_AT: "before"}), 40, exec.clone());
        let original = Original::of(&workload, "server", "2026-01-01T00:00:00Z");
        let text = serde_json::to_string(&original).unwrap();
        workload.annotations.insert(ANNOTATION.to_owned(), text);
        let read = Original::left_behind(&workload).unwrap().unwrap();
        assert_eq!(read, original);
        assert_eq!(read.lifecycle, Some(exec));
        workload.annotations.insert(ANNOTATION.to_owned(), "{".to_owned());
        assert!(Original::left_behind(&workload).unwrap_err().to_string().contains("by hand"));
    }

    #[test]
    fn a_container_that_is_gone_is_not_added() {
        let before = template(Value::Null, 30, json!({"preStop": {"sleep": {"seconds": 5}}}));
        let original = Original::of(&before, "server", "t");
        let other = deployment(json!({"template": {"spec": {"containers": [{"name": "other"}]}}}));
        assert_eq!(original.patch(&other).get("spec"), None);
    }
}
