//! Claims, volumes, classes and attachment limits of nodes, for `filters/claims.rs`.

use client::ObjectKey;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{CSINode, StorageClass};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
pub(crate) const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

#[derive(Debug, Default)]
pub(crate) struct Volumes {
    pub(crate) claims: HashMap<ObjectKey, Arc<PersistentVolumeClaim>>,
    /// Sorted by name, so that the choice among equal volumes is stable.
    pub(crate) volumes: BTreeMap<String, Arc<PersistentVolume>>,
    pub(crate) classes: HashMap<String, Arc<StorageClass>>,
    pub(crate) attachments: HashMap<String, Arc<CSINode>>,
    /// Volumes that were chosen for a claim and are not bound yet.
    reserved: HashMap<String, ObjectKey>,
}

impl Volumes {
    pub(crate) fn class_of(&self, claim: &PersistentVolumeClaim) -> Option<&StorageClass> {
        self.classes.get(class_name(claim)).map(Arc::as_ref)
    }

    /// Whether the claim is bound only when its first pod is scheduled.
    pub(crate) fn waits_for_consumer(&self, claim: &PersistentVolumeClaim) -> bool {
        let class = self.class_of(claim);
        let mode = class.and_then(|class| class.volume_binding_mode.as_deref());
        mode == Some("WaitForFirstConsumer")
    }

    /// Whether the class has a provisioner.
    pub(crate) fn has_provisioner(&self, claim: &PersistentVolumeClaim) -> bool {
        self.class_of(claim).is_some_and(|class| {
            !class.provisioner.is_empty() && class.provisioner != NO_PROVISIONER
        })
    }

    pub(crate) fn reserve(&mut self, volume: &str, claim: &ObjectKey) {
        self.reserved.insert(volume.to_owned(), claim.clone());
    }

    pub(crate) fn release(&mut self, volume: &str) {
        self.reserved.remove(volume);
    }

    pub(crate) fn reserved_for(&self, volume: &str) -> Option<&ObjectKey> {
        self.reserved.get(volume)
    }
}

pub(crate) fn class_name(claim: &PersistentVolumeClaim) -> &str {
    let spec = claim.spec.as_ref();
    spec.and_then(|spec| spec.storage_class_name.as_deref()).unwrap_or_default()
}

/// The volume that the claim is bound to.
pub(crate) fn bound_to(claim: &PersistentVolumeClaim) -> Option<&str> {
    let volume = claim.spec.as_ref()?.volume_name.as_deref().filter(|name| !name.is_empty())?;
    let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
    let completed = claim.metadata.annotations.as_ref();
    let completed = completed.is_some_and(|all| all.contains_key(BIND_COMPLETED));
    (completed || phase == Some("Bound")).then_some(volume)
}

pub(crate) fn selected_node(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.metadata.annotations.as_ref()?.get(SELECTED_NODE).map(String::as_str)
}
