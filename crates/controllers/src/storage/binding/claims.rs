//! Reconciles a claim: finds a volume, or reports why there is none.

use super::super::matching::{self, BIND_COMPLETED, BOUND_BY_CONTROLLER, SELECTED_NODE};
use super::super::{BY_CLAIM, FREE};
use super::Binder;
use crate::pods;
use client::{ObjectKey, reference};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use serde_json::{Value, json};
use std::sync::Arc;

const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";
const PROVISIONER: [&str; 2] =
    ["volume.beta.kubernetes.io/storage-provisioner", "volume.kubernetes.io/storage-provisioner"];
const IS_DEFAULT: [&str; 2] = [
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
];

type Claim = PersistentVolumeClaim;
type Volume = PersistentVolume;

impl Binder<'_> {
    pub(super) async fn claim(&self, key: &ObjectKey) -> client::Result<()> {
        let Some(claim) = self.storage.claims.get(key) else { return Ok(()) };
        let done = match has(&claim, BIND_COMPLETED) {
            true => self.bound_claim(&claim).await,
            false => self.unbound_claim(&claim).await,
        };
        match done {
            Err(error) if error.is_not_found() => Ok(()),
            done => done,
        }
    }

    async fn unbound_claim(&self, claim: &Claim) -> client::Result<()> {
        let named = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone());
        let Some(name) = named.filter(|name| !name.is_empty()) else {
            return self.find_volume(claim).await;
        };
        let on = reference(claim);
        let Some(volume) = self.storage.volumes.get(&ObjectKey::cluster(&name)) else {
            return self.pending(claim).await;
        };
        if matching::claim_ref(&volume).is_some() && !matching::refers_to(&volume, claim) {
            if !has(claim, BOUND_BY_CONTROLLER) {
                let message = format!("volume {name:?} already bound to a different claim.");
                self.recorder.warning(&on, "FailedBinding", message);
            }
            return self.pending(claim).await;
        }
        if matching::claim_ref(&volume).is_none()
            && let Some(why) = matching::misfit(claim, &volume)
        {
            let message = format!("Cannot bind to requested volume {name:?}: {why}");
            self.recorder.warning(&on, "VolumeMismatch", message);
            return self.pending(claim).await;
        }
        self.bind(claim, &volume).await
    }

    async fn find_volume(&self, claim: &Claim) -> client::Result<()> {
        let key = ObjectKey::of(claim);
        if matching::class_of_claim(claim).is_none() && self.take_default(claim).await? {
            return Ok(()); // The watch brings the new version.
        }
        let class = matching::class_of_claim(claim).unwrap_or_default();
        let known = self.storage.classes.get(&ObjectKey::cluster(class));
        let waits = waits(claim, known.as_deref());
        let referring = self.storage.volumes.by_index(BY_CLAIM, &key.to_string());
        // Before the scheduler has chosen a node, only a volume that refers to the claim can be used (C-168).
        let free = if waits { Vec::new() } else { self.storage.volumes.by_index(FREE, class) };
        if let Some(volume) = matching::best(claim, &referring, &free) {
            return self.bind(claim, volume).await;
        }
        if waits {
            self.report_waiting(claim, &key);
        } else if class.is_empty() {
            let message =
                "no persistent volumes available for this claim and no storage class is set";
            self.recorder.normal(&reference(claim), "FailedBinding", message);
        } else {
            self.request_volume(claim, class, known).await?;
        }
        self.pending(claim).await
    }

    /// Sets the default class, which may be created later than the claim (C-170).
    async fn take_default(&self, claim: &Claim) -> client::Result<bool> {
        let is_default = |class: &Arc<StorageClass>| {
            let annotations = class.metadata.annotations.as_ref();
            IS_DEFAULT
                .iter()
                .any(|key| annotations.and_then(|all| all.get(*key)).is_some_and(|v| v == "true"))
        };
        let classes = self.storage.classes.list().into_iter().filter(is_default);
        let newest = classes.max_by_key(|class| {
            let time = class.metadata.creation_timestamp.as_ref().map(|time| time.0);
            (time, std::cmp::Reverse(class.metadata.name.clone()))
        });
        let Some(class) = newest else { return Ok(false) };
        let patch = json!({
            "metadata": { "resourceVersion": claim.metadata.resource_version },
            "spec": { "storageClassName": class.metadata.name },
        });
        self.patch(claim, &patch).await?;
        Ok(true)
    }

    fn report_waiting(&self, claim: &Claim, key: &ObjectKey) {
        let pods = self.cluster.pods.by_index(pods::BY_CLAIM, &key.to_string());
        let waiting = pods.iter().filter(|pod| is_waited_for(pod));
        let names: Vec<&str> = waiting.filter_map(|pod| pod.metadata.name.as_deref()).collect();
        let on = reference(claim);
        match names.as_slice() {
            [] => self.recorder.normal(
                &on,
                "WaitForFirstConsumer",
                "waiting for first consumer to be created before binding",
            ),
            [pod] => {
                let message = format!("waiting for pod {pod} to be scheduled");
                self.recorder.normal(&on, "WaitForPodScheduled", message);
            }
            pods => {
                let message = format!("waiting for pods {} to be scheduled", pods.join(","));
                self.recorder.normal(&on, "WaitForPodScheduled", message);
            }
        }
    }

    /// Requests a volume from the provisioner of the class by an annotation (C-169).
    async fn request_volume(
        &self,
        claim: &Claim,
        class: &str,
        known: Option<Arc<StorageClass>>,
    ) -> client::Result<()> {
        let on = reference(claim);
        let Some(provisioner) = known.map(|class| class.provisioner.clone()) else {
            let message = format!("storageclass.storage.k8s.io {class:?} not found");
            self.recorder.warning(&on, "ProvisioningFailed", message);
            return Ok(());
        };
        if provisioner == NO_PROVISIONER {
            let message = format!("no volume plugin matched name: {NO_PROVISIONER}");
            self.recorder.warning(&on, "ProvisioningFailed", message);
            return Ok(());
        }
        if PROVISIONER.iter().any(|key| annotation(claim, key) != Some(provisioner.as_str())) {
            let mut annotations = json!({});
            PROVISIONER.iter().for_each(|key| annotations[*key] = provisioner.as_str().into());
            self.patch(claim, &json!({ "metadata": { "annotations": annotations } })).await?;
        }
        let message = format!(
            "Waiting for a volume to be created either by the external provisioner '{provisioner}' or manually by the system administrator. If volume creation is delayed, please verify that the provisioner is running and correctly registered."
        );
        self.recorder.normal(&on, "ExternalProvisioning", message);
        Ok(())
    }

    async fn bound_claim(&self, claim: &Claim) -> client::Result<()> {
        let named = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone());
        let Some(name) = named.filter(|name| !name.is_empty()) else {
            let message =
                "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!";
            return self.lost(claim, "ClaimLost", message).await;
        };
        let key = ObjectKey::cluster(&name);
        let volume = match self.storage.volumes.get(&key) {
            Some(volume) => Some(volume),
            None => self.cluster.client.find::<Volume>(&key).await?.map(Arc::new),
        };
        let Some(volume) = volume else {
            let message = "Bound claim has lost its PersistentVolume. Data on the volume is lost!";
            return self.lost(claim, "ClaimLost", message).await;
        };
        match matching::claim_ref(&volume) {
            None => self.bind(claim, &volume).await,
            Some(claim_ref) if claim_ref.uid == claim.metadata.uid => {
                self.bind(claim, &volume).await
            }
            Some(_) => {
                let message =
                    "Two claims are bound to the same volume, this one is bound incorrectly";
                self.lost(claim, "ClaimMisbound", message).await
            }
        }
    }

    /// Performs those of the four writes that are missing (C-165).
    async fn bind(&self, claim: &Claim, volume: &Volume) -> client::Result<()> {
        let name = volume.metadata.name.clone().unwrap_or_default();
        let referring = matching::claim_ref(volume).and_then(|claim_ref| claim_ref.uid.clone());
        if referring != claim.metadata.uid {
            let by_us = matching::claim_ref(volume).is_none();
            let mut patch = json!({
                "metadata": { "resourceVersion": volume.metadata.resource_version },
                "spec": { "claimRef": {
                    "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                    "namespace": claim.metadata.namespace, "name": claim.metadata.name,
                    "uid": claim.metadata.uid, "resourceVersion": claim.metadata.resource_version,
                } },
            });
            if by_us {
                patch["metadata"]["annotations"] = json!({ BOUND_BY_CONTROLLER: "yes" });
            }
            let key = ObjectKey::cluster(&name);
            let volume = self.cluster.client.patch_merge::<Volume>(&key, &patch).await?;
            // The next claim must not get the same volume.
            self.storage.volumes.caught_up_with_all([&volume]).await;
        }
        self.volume_phase(volume, "Bound", None).await?;
        let by_us = matching::is_pending(claim);
        if by_us || !has(claim, BIND_COMPLETED) {
            let mut annotations = json!({ BIND_COMPLETED: "yes" });
            if by_us {
                annotations[BOUND_BY_CONTROLLER] = "yes".into();
            }
            let patch = json!({
                "metadata": { "uid": claim.metadata.uid, "annotations": annotations },
                "spec": { "volumeName": name },
            });
            self.patch(claim, &patch).await?;
        }
        self.bound(claim, volume).await
    }

    /// Copies capacity and modes of the volume to the claim's status.
    async fn bound(&self, claim: &Claim, volume: &Volume) -> client::Result<()> {
        let spec = volume.spec.clone().unwrap_or_default();
        let size = spec.capacity.as_ref().and_then(|all| all.get("storage")).cloned();
        let before = claim.status.clone().unwrap_or_default();
        let mut after = before.clone();
        after.phase = Some("Bound".to_owned());
        after.access_modes = spec.access_modes.clone();
        // Later the volume may be larger than its file system, so the capacity is set only once.
        if before.phase.as_deref() != Some("Bound") || before.capacity.is_none() {
            after.capacity = size.map(|size| [("storage".to_owned(), size)].into());
            after.current_volume_attributes_class_name = spec.volume_attributes_class_name.clone();
        }
        if after == before {
            return Ok(());
        }
        let patch = json!({ "status": after });
        self.cluster.client.patch_status::<Claim>(&ObjectKey::of(claim), &patch).await.map(drop)
    }

    async fn pending(&self, claim: &Claim) -> client::Result<()> {
        self.claim_phase(claim, "Pending").await.map(drop)
    }

    async fn lost(&self, claim: &Claim, reason: &str, message: &str) -> client::Result<()> {
        if self.claim_phase(claim, "Lost").await? {
            self.recorder.warning(&reference(claim), reason, message);
        }
        Ok(())
    }

    /// Returns whether the phase changed.
    async fn claim_phase(&self, claim: &Claim, phase: &str) -> client::Result<bool> {
        let before = claim.status.as_ref().and_then(|status| status.phase.as_deref());
        if before == Some(phase) {
            return Ok(false);
        }
        let patch = json!({ "status": { "phase": phase } });
        self.cluster.client.patch_status::<Claim>(&ObjectKey::of(claim), &patch).await?;
        Ok(true)
    }

    async fn patch(&self, claim: &Claim, patch: &Value) -> client::Result<()> {
        let key = ObjectKey::of(claim);
        let patched = self.cluster.client.patch_merge::<Claim>(&key, patch).await?;
        self.storage.claims.caught_up_with_all([&patched]).await;
        Ok(())
    }
}

fn annotation<'a>(claim: &'a Claim, key: &str) -> Option<&'a str> {
    claim.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

fn has(claim: &Claim, key: &str) -> bool {
    annotation(claim, key).is_some()
}

/// Whether a claim of this class waits until the scheduler has chosen a node.
pub(super) fn waits(claim: &Claim, class: Option<&StorageClass>) -> bool {
    let mode = class.and_then(|class| class.volume_binding_mode.as_deref());
    mode == Some("WaitForFirstConsumer") && !has(claim, SELECTED_NODE)
}

/// Whether claims of this pod wait until it is scheduled.
pub(super) fn is_waited_for(pod: &Pod) -> bool {
    pods::node_name(pod).is_none() && !pods::is_terminal_pod(pod)
}
