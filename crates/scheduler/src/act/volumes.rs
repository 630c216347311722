//! Before a pod is bound: its claims get the volumes that were chosen, and are waited for (N-194).

use super::{Hands, said};
use crate::filters::Choice;
use crate::pod::PodInfo;
use crate::volumes::{SELECTED_NODE, bound_to};
use client::ObjectKey;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use serde_json::json;
use std::time::Duration;

/// Upstream: `DefaultBindTimeoutSeconds`.
const BOUND_WITHIN: Duration = Duration::from_secs(600);

/// An error is what people are told.
pub(super) async fn prepare(
    hands: &Hands,
    pod: &PodInfo,
    node: &str,
    choice: &Choice,
) -> Result<(), String> {
    for (claim, volume) in &choice.bind {
        promise(hands, claim, volume).await?;
    }
    for claim in &choice.provision {
        let mut patch = json!({ "metadata": { "annotations": {} } });
        patch["metadata"]["annotations"][SELECTED_NODE] = node.into();
        let patched = hands.client.patch_merge::<PersistentVolumeClaim>(claim, &patch).await;
        patched.map_err(|error| said(&error))?;
    }
    let claims = choice.bind.iter().map(|(claim, _)| claim).chain(&choice.provision);
    let claims: Vec<&ObjectKey> = claims.collect();
    match tokio::time::timeout(BOUND_WITHIN, all_bound(hands, &claims)).await {
        Ok(bound) => bound,
        Err(_) => Err(format!(
            "running PreBind plugin \"VolumeBinding\": binding volumes: context deadline exceeded \
             (pod {})",
            pod.key
        )),
    }
}

/// Says on the volume whose it is; whoever binds claims sees to the rest.
async fn promise(hands: &Hands, claim: &ObjectKey, volume: &str) -> Result<(), String> {
    let Some(owner) = hands.claims.get(claim) else {
        return Err(format!("persistentvolumeclaim {:?} not found", claim.name()));
    };
    let patch = json!({ "spec": { "claimRef": {
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "namespace": claim.namespace(), "name": claim.name(), "uid": owner.metadata.uid,
        "resourceVersion": owner.metadata.resource_version,
    } } });
    let patched =
        hands.client.patch_merge::<PersistentVolume>(&ObjectKey::cluster(volume), &patch).await;
    patched.map(drop).map_err(|error| said(&error))
}

async fn all_bound(hands: &Hands, claims: &[&ObjectKey]) -> Result<(), String> {
    let mut changes = hands.claims.subscribe();
    loop {
        let mut missing = false;
        for key in claims {
            match hands.claims.get(key) {
                Some(claim) => missing |= bound_to(&claim).is_none(),
                None => return Err(format!("persistentvolumeclaim {:?} not found", key.name())),
            }
        }
        if !missing {
            return Ok(());
        }
        changes.next().await;
    }
}
