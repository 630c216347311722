//! Questions that several controllers ask of a pod, the indexes by which pods are found, and the two
//! writes by which a controller ends one.

use crate::workload;
use client::{Client, DeleteOptions, ObjectKey};
use k8s_openapi::api::core::v1::{Pod, PodCondition};
use serde_json::json;

/// Pods of a node, by its name.
pub(crate) const BY_NODE: &str = "node";
/// Pods by each of their labels: see [`label`].
pub(crate) const BY_LABEL: &str = "label";
/// Pods by the claims that they use, as `namespace/name`.
pub(crate) const BY_CLAIM: &str = "claim";
/// Pods that have ended, under [`ENDED`].
pub(crate) const BY_END: &str = "end";
pub(crate) const ENDED: &str = "ended";

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
        .index(BY_END, |pod| is_terminal(pod).then(|| ENDED.to_owned()).into_iter().collect())
        .index(workload::ORPHANS, workload::orphan_keys)
        .start()
}

/// Under which key of [`BY_LABEL`] the pods of a namespace with this label are.
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

/// Names of the claims that a pod's volumes stand for, its generic ephemeral ones too.
pub(crate) fn claims(pod: &Pod) -> impl Iterator<Item = String> {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.filter_map(move |volume| match (&volume.persistent_volume_claim, &volume.ephemeral) {
        (Some(claim), _) => Some(claim.claim_name.clone()),
        (None, Some(_)) => Some(format!("{name}-{}", volume.name)),
        (None, None) => None,
    })
}

pub(crate) fn is_terminal(pod: &Pod) -> bool {
    pod.status.as_ref().is_some_and(lifecycle::status::is_terminal)
}

pub(crate) fn is_ending(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

pub(crate) fn condition<'a>(pod: &'a Pod, type_: &str) -> Option<&'a PodCondition> {
    let mut conditions = pod.status.as_ref()?.conditions.iter().flatten();
    conditions.find(|condition| condition.type_ == type_)
}

pub(crate) fn is_ready(pod: &Pod) -> bool {
    condition(pod, "Ready").is_some_and(|ready| ready.status == "True")
}

/// Why a pod is ended before its time: reason and message of `DisruptionTarget` (T-EVICT-14).
pub(crate) type Disruption = (&'static str, &'static str);

/// Says why, before the pod is deleted. Nothing is written if that is said already.
pub(crate) async fn say_why(client: &Client, pod: &Pod, why: Disruption) -> client::Result<()> {
    let there = condition(pod, "DisruptionTarget");
    if there.is_some_and(|c| c.status == "True" && c.reason.as_deref() == Some(why.0)) {
        return Ok(());
    }
    let patch = json!({
        "metadata": { "uid": pod.metadata.uid },
        "status": { "conditions": [disruption(why)] },
    });
    client.patch_status::<Pod>(&ObjectKey::of(pod), &patch).await.map(drop)
}

/// Makes a pod Failed if it has not ended, and removes it at once. For pods that no node will ever
/// end. Upstream: `markFailedAndDeletePodWithCondition`.
pub(crate) async fn fail_and_remove(
    client: &Client,
    pod: &Pod,
    why: Option<Disruption>,
) -> client::Result<()> {
    let key = ObjectKey::of(pod);
    let ended = async {
        if !is_terminal(pod) {
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
        // Somebody else was faster, or it is another pod now.
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
