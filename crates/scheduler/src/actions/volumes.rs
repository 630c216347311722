//! Before a pod is bound: assigns the chosen volumes to its claims, and waits until the claims are bound (N-194).

use super::{Actions, error_text};
use crate::filters::VolumeChoice;
use crate::pod::PodInfo;
use crate::volumes::{SELECTED_NODE, bound_to, selected_node};
use client::ObjectKey;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use serde_json::{Value, json};
use std::time::Duration;

/// Upstream: `DefaultBindTimeoutSeconds`.
const BOUND_WITHIN: Duration = Duration::from_secs(600);

const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
const BINDING: &str = "running PreBind plugin \"VolumeBinding\": binding volumes";

/// Errors are messages for users.
pub(super) async fn prepare(
    actions: &Actions,
    pod: &PodInfo,
    node: &str,
    choice: &VolumeChoice,
) -> Result<(), String> {
    for (claim, volume) in &choice.bind {
        set_claim_ref(actions, claim, volume).await?;
    }
    for claim in &choice.provision {
        let mut patch = json!({ "metadata": { "annotations": {} } });
        patch["metadata"]["annotations"][SELECTED_NODE] = node.into();
        let patched = actions.client.patch_merge::<PersistentVolumeClaim>(claim, &patch).await;
        let patched = patched.map_err(|error| error_text(&error))?;
        // Wait for the cache, so that a later removal of the annotation is noticed.
        let version = patched.metadata.resource_version.unwrap_or_default();
        actions.claims.caught_up_with(&version).await;
    }
    match tokio::time::timeout(BOUND_WITHIN, all_bound(actions, node, choice)).await {
        Ok(bound) => bound,
        Err(_) => Err(format!("{BINDING}: context deadline exceeded (pod {})", pod.key)),
    }
}

/// Sets the `claimRef` of the volume; the volume controller does the rest.
async fn set_claim_ref(actions: &Actions, claim: &ObjectKey, volume: &str) -> Result<(), String> {
    let Some(owner) = actions.claims.get(claim) else {
        return Err(format!("persistentvolumeclaim {:?} not found", claim.name()));
    };
    let key = ObjectKey::cluster(volume);
    let there =
        actions.client.get::<PersistentVolume>(&key).await.map_err(|error| error_text(&error))?;
    let Some(patch) = claim_ref_patch(&there, &owner)? else { return Ok(()) };
    let patched = actions.client.patch_merge::<PersistentVolume>(&key, &patch).await;
    patched.map(drop).map_err(|error| error_text(&error))
}

/// The patch that sets `claimRef`; `None` if it is set already, an error if the volume has another claim. If the volume
/// had no `claimRef`, an annotation lets the controller remove it with the claim (C-168).
fn claim_ref_patch(
    volume: &PersistentVolume,
    claim: &PersistentVolumeClaim,
) -> Result<Option<Value>, String> {
    let (meta, owner) = (&claim.metadata, volume.spec.as_ref().and_then(|s| s.claim_ref.as_ref()));
    if let Some(owner) = owner {
        let uid = owner.uid.as_ref().filter(|uid| !uid.is_empty());
        let named = (&owner.namespace, &owner.name) == (&meta.namespace, &meta.name);
        if !named || uid.is_some_and(|uid| Some(uid) != meta.uid.as_ref()) {
            let name = volume.metadata.name.as_deref().unwrap_or_default();
            return Err(format!("{BINDING}: volume {name:?} already bound to a different claim."));
        }
        if uid.is_some() {
            return Ok(None);
        }
    }
    let mut patch = json!({
        "metadata": { "resourceVersion": volume.metadata.resource_version },
        "spec": { "claimRef": {
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "namespace": meta.namespace, "name": meta.name, "uid": meta.uid,
            "resourceVersion": meta.resource_version,
        } },
    });
    if owner.is_none() {
        patch["metadata"]["annotations"] = json!({ BOUND_BY_CONTROLLER: "yes" });
    }
    Ok(Some(patch))
}

async fn all_bound(actions: &Actions, node: &str, choice: &VolumeChoice) -> Result<(), String> {
    let mut changes = actions.claims.subscribe();
    let bind = choice.bind.iter().map(|(claim, _)| (claim, None));
    let claims: Vec<(&ObjectKey, Option<&str>)> =
        bind.chain(choice.provision.iter().map(|claim| (claim, Some(node)))).collect();
    loop {
        let mut missing = false;
        for (key, made_near) in &claims {
            match actions.claims.get(key) {
                Some(claim) => missing |= !is_bound(&claim, *made_near)?,
                None => return Err(format!("persistentvolumeclaim {:?} not found", key.name())),
            }
        }
        if !missing {
            return Ok(());
        }
        changes.next().await;
    }
}

/// Whether the claim has its volume. A provisioner that cannot provide one for this node removes the annotation, and
/// the scheduler must choose another node (C-168).
fn is_bound(claim: &PersistentVolumeClaim, made_near: Option<&str>) -> Result<bool, String> {
    if bound_to(claim).is_some() {
        return Ok(true);
    }
    if made_near.is_some() && selected_node(claim) != made_near {
        let name = claim.metadata.name.as_deref().unwrap_or_default();
        return Err(format!("{BINDING}: provisioning failed for PVC {name:?}"));
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(more: Value) -> PersistentVolumeClaim {
        let mut claim = json!({ "metadata": {
            "namespace": "a", "name": "c", "uid": "u", "resourceVersion": "3" } });
        crate::node::tests::merge(&mut claim, more);
        typed::from_value(claim).unwrap()
    }

    #[test]
    fn c_168_a_claim_ref_is_set_once_and_never_replaced() {
        let promised = |owner: Value| {
            let volume = json!({ "metadata": { "name": "v", "resourceVersion": "9" },
                                 "spec": { "claimRef": owner } });
            claim_ref_patch(&typed::from_value(volume).unwrap(), &claim(json!({})))
        };
        let free = promised(Value::Null).unwrap().unwrap();
        let meta = json!({ "resourceVersion": "9",
                           "annotations": { "pv.kubernetes.io/bound-by-controller": "yes" } });
        assert_eq!(free["metadata"], meta);
        assert_eq!(free["spec"]["claimRef"]["uid"], "u");
        let by_name = promised(json!({ "namespace": "a", "name": "c" })).unwrap().unwrap();
        assert_eq!(by_name["metadata"], json!({ "resourceVersion": "9" }), "the user set it");
        let ours = json!({ "namespace": "a", "name": "c", "uid": "u" });
        assert_eq!(promised(ours), Ok(None));
        for other in [
            json!({ "namespace": "a", "name": "d", "uid": "x" }),
            json!({ "namespace": "b", "name": "c" }),
            json!({ "namespace": "a", "name": "c", "uid": "before" }),
        ] {
            assert!(promised(other).unwrap_err().contains("\"v\" already bound"));
        }
    }

    #[test]
    fn c_168_a_node_without_a_provisionable_volume_is_rejected() {
        let near = |node: &str| json!({ "metadata": { "annotations": { SELECTED_NODE: node } } });
        let bound = json!({ "spec": { "volumeName": "v" }, "status": { "phase": "Bound" } });
        let failed = Err(format!("{BINDING}: provisioning failed for PVC \"c\""));
        let cases = [
            (near("n"), Some("n"), Ok(false)),
            (near("other"), Some("n"), failed.clone()),
            (json!({}), Some("n"), failed),
            (json!({}), None, Ok(false)),
            (bound.clone(), Some("n"), Ok(true)),
            (bound, None, Ok(true)),
        ];
        for (story, made_near, expected) in cases {
            assert_eq!(is_bound(&claim(story.clone()), made_near), expected, "{story}");
        }
    }
}
