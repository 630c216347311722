//! Reconciles a volume: it is free, bound to its claim, or has lost it (C-167, C-171).

use super::super::matching::{self, BOUND_BY_CONTROLLER};
use super::Binder;
use client::{ObjectKey, reference};
use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim};
use serde_json::json;
use std::sync::Arc;

const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";

type Volume = PersistentVolume;

impl Binder<'_> {
    pub(super) async fn volume(&self, name: &str) -> client::Result<()> {
        let Some(volume) = self.storage.volumes.get(&ObjectKey::cluster(name)) else {
            return Ok(());
        };
        let done = match matching::claim_ref(&volume) {
            Some(claim_ref) if claim_ref.uid.as_deref().is_some_and(|uid| !uid.is_empty()) => {
                self.claimed_volume(&volume, claim_ref).await
            }
            // Free, or reserved for a claim of that name.
            _ => self.volume_phase(&volume, "Available", None).await,
        };
        match done {
            Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
            done => done,
        }
    }

    async fn claimed_volume(
        &self,
        volume: &Volume,
        claim_ref: &ObjectReference,
    ) -> client::Result<()> {
        let Some(claim) = self.owner(volume, claim_ref).await? else {
            let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
            if phase != Some("Failed") {
                self.volume_phase(volume, "Released", None).await?;
            }
            return self.reclaim(volume).await;
        };
        let named = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone());
        match named.filter(|name| !name.is_empty()) {
            None => Ok(()), // The reconcile of the claim binds it.
            Some(name) if Some(&name) == volume.metadata.name.as_ref() => {
                self.volume_phase(volume, "Bound", None).await
            }
            // The claim has another volume.
            Some(_) if has(volume, PROVISIONED_BY) && policy(volume) == "Delete" => {
                self.volume_phase(volume, "Released", None).await?;
                self.reclaim(volume).await
            }
            Some(_) => self.unbind(volume).await,
        }
    }

    /// The claim in `claimRef`, compared by UID.
    async fn owner(
        &self,
        volume: &Volume,
        claim_ref: &ObjectReference,
    ) -> client::Result<Option<Arc<PersistentVolumeClaim>>> {
        let Some(key) = matching::claim_key(volume) else { return Ok(None) };
        let is_it = |claim: &Arc<PersistentVolumeClaim>| claim.metadata.uid == claim_ref.uid;
        if let Some(claim) = self.storage.claims.get(&key).filter(is_it) {
            return Ok(Some(claim));
        }
        // Releasing a volume by mistake loses data, so ask the server instead of trusting the cache.
        let claim = self.cluster.client.find::<PersistentVolumeClaim>(&key).await?;
        Ok(claim.map(Arc::new).filter(is_it))
    }

    async fn unbind(&self, volume: &Volume) -> client::Result<()> {
        let mut patch = json!({
            "metadata": { "resourceVersion": volume.metadata.resource_version },
            "spec": { "claimRef": { "uid": null } },
        });
        if has(volume, BOUND_BY_CONTROLLER) {
            patch["spec"]["claimRef"] = json!(null);
            patch["metadata"]["annotations"] = json!({ BOUND_BY_CONTROLLER: null });
        }
        let key = ObjectKey::of(volume);
        self.cluster.client.patch_merge::<Volume>(&key, &patch).await?;
        self.volume_phase(volume, "Available", None).await
    }

    /// Applies the reclaim policy. Provisioners delete their own volumes (C-171).
    async fn reclaim(&self, volume: &Volume) -> client::Result<()> {
        let on = reference(volume);
        let csi = volume.spec.as_ref().is_some_and(|spec| spec.csi.is_some());
        let failed = volume.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Failed");
        match policy(volume) {
            "Delete" if has(volume, PROVISIONED_BY) || csi || failed => Ok(()),
            "Delete" => {
                let name = volume.metadata.name.as_deref().unwrap_or_default();
                let why = format!(
                    "error getting deleter volume plugin for volume {name:?}: no deletable volume plugin matched"
                );
                self.recorder.warning(&on, "VolumeFailedDelete", why.clone());
                self.volume_phase(volume, "Failed", Some(&why)).await
            }
            "Recycle" if !failed => {
                let why = "No recycler plugin found for the volume!";
                self.recorder.warning(&on, "VolumeFailedRecycle", why);
                self.volume_phase(volume, "Failed", Some(why)).await
            }
            _ => Ok(()),
        }
    }

    pub(super) async fn volume_phase(
        &self,
        volume: &Volume,
        phase: &str,
        message: Option<&str>,
    ) -> client::Result<()> {
        let before = volume.status.as_ref().and_then(|status| status.phase.as_deref());
        if before == Some(phase) {
            return Ok(());
        }
        let status = json!({
            "phase": phase, "message": message, "lastPhaseTransitionTime": clock::now_rfc3339(),
        });
        let key = ObjectKey::of(volume);
        let patch = json!({ "status": status });
        let patched = self.cluster.client.patch_status::<Volume>(&key, &patch).await?;
        self.storage.volumes.caught_up_with_all([patched.as_ref()]).await;
        Ok(())
    }
}

fn has(volume: &Volume, key: &str) -> bool {
    volume.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(key))
}

fn policy(volume: &Volume) -> &str {
    let spec = volume.spec.as_ref();
    spec.and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref()).unwrap_or("Retain")
}
