//! Functions about pods that several controllers share: indexes, states, and deleting pods.

use crate::workload;
use client::{Client, DeleteOptions, ObjectKey};
use k8s_openapi::api::core::v1::{Pod, PodCondition};
pub(crate) use lifecycle::status::is_terminal_pod;
use serde_json::json;

/// Pods of a node, by its name.
pub(crate) const BY_NODE: &str = "node";
/// Pods by each of their labels: see [`label`].
pub(crate) const BY_LABEL: &str = "label";
/// Pods by the claims that they use, as `namespace/name`.
pub(crate) const BY_CLAIM: &str = "claim";
/// Terminal pods, under the key [`TERMINAL`].
pub(crate) const BY_STATE: &str = "state";
pub(crate) const TERMINAL: &str = "terminal";

pub(crate) fn cache(client: &Client) -> client::Cache<Pod> {
    client::Cache::builder(client)
        .index(BY_NODE, |pod| node_name(pod).map(str::to_owned).into_iter().collect())
        .index(BY_LABEL, |pod: &Pod| {
            let labels = pod.metadata.labels.iter().flatten();
            labels.map(|(key, value)| label(namespace(pod), key, value)).collect()
        })
        .index(BY_CLAIM, |pod| {
            claims(pod).map(|name| format!("{}/{name}", namespace(pod))).collect()
        })
        .index(BY_STATE, |pod| {
            is_terminal_pod(pod).then(|| TERMINAL.to_owned()).into_iter().collect()
        })
        .index(workload::ORPHANS, workload::orphan_keys)
        .start()
}

/// The key in [`BY_LABEL`] of pods in a namespace with this label.
pub(crate) fn label(namespace: &str, key: &str, value: &str) -> String {
    format!("{namespace}/{key}={value}")
}

pub(crate) fn namespace(pod: &Pod) -> &str {
    pod.metadata.namespace.as_deref().unwrap_or_default()
}

pub(crate) fn node_name(pod: &Pod) -> Option<&str> {
    let name = pod.spec.as_ref()?.node_name.as_deref()?;
    (!name.is_empty()).then_some(name)
}

/// Names of the claims of a pod's volumes, including generic ephemeral ones.
pub(crate) fn claims(pod: &Pod) -> impl Iterator<Item = String> {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.filter_map(move |volume| match (&volume.persistent_volume_claim, &volume.ephemeral) {
        (Some(claim), _) => Some(claim.claim_name.clone()),
        (None, Some(_)) => Some(format!("{name}-{}", volume.name)),
        (None, None) => None,
    })
}

pub(crate) fn is_being_deleted(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

pub(crate) fn condition<'a>(pod: &'a Pod, type_: &str) -> Option<&'a PodCondition> {
    let mut conditions = pod.status.as_ref()?.conditions.iter().flatten();
    conditions.find(|condition| condition.type_ == type_)
}

pub(crate) fn is_ready(pod: &Pod) -> bool {
    condition(pod, "Ready").is_some_and(|ready| ready.status == "True")
}

/// Reason and message of the condition `DisruptionTarget`: why a pod is deleted early (T-EVICT-14).
pub(crate) type Disruption = (&'static str, &'static str);

/// Sets the condition `DisruptionTarget` before the pod is deleted, unless it is already set.
pub(crate) async fn set_disruption_target(
    client: &Client,
    pod: &Pod,
    why: Disruption,
) -> client::Result<()> {
    let current = condition(pod, "DisruptionTarget");
    if current.is_some_and(|c| c.status == "True" && c.reason.as_deref() == Some(why.0)) {
        return Ok(());
    }
    let patch = json!({
        "metadata": { "uid": pod.metadata.uid },
        "status": { "conditions": [disruption(why)] },
    });
    client.patch_status::<Pod>(&ObjectKey::of(pod), &patch).await.map(drop)
}

/// Marks a pod as Failed unless it is terminal, and deletes it with grace period 0. For pods that no node will
/// terminate. Upstream: `markFailedAndDeletePodWithCondition`.
pub(crate) async fn fail_and_delete(
    client: &Client,
    pod: &Pod,
    why: Option<Disruption>,
) -> client::Result<()> {
    let key = ObjectKey::of(pod);
    let ended = async {
        if !is_terminal_pod(pod) {
            let conditions: Vec<_> = why.into_iter().map(disruption).collect();
            let patch = json!({
                "metadata": { "uid": pod.metadata.uid },
                "status": { "phase": "Failed", "conditions": conditions },
            });
            client.patch_status::<Pod>(&key, &patch).await?;
        }
        client.delete::<Pod>(&key, &DeleteOptions::only(pod).grace(0)).await
    };
    match ended.await {
        // The pod is gone, or replaced by another one.
        Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
        ended => ended.map(drop),
    }
}

fn disruption((reason, message): Disruption) -> serde_json::Value {
    json!({
        "type": "DisruptionTarget", "status": "True", "reason": reason, "message": message,
        "lastTransitionTime": clock::now_rfc3339(),
    })
}
