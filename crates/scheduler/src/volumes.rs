//! Claims, volumes, classes and what nodes can attach: what the rules of `filters/claims.rs` ask.

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
    /// By name, so that the smallest fitting one is always the same.
    pub(crate) volumes: BTreeMap<String, Arc<PersistentVolume>>,
    pub(crate) classes: HashMap<String, Arc<StorageClass>>,
    pub(crate) attachments: HashMap<String, Arc<CSINode>>,
    /// Volumes that were chosen for a claim and are not yet bound to it.
    reserved: HashMap<String, ObjectKey>,
}

impl Volumes {
    pub(crate) fn class_of(&self, claim: &PersistentVolumeClaim) -> Option<&StorageClass> {
        self.classes.get(class_name(claim)).map(Arc::as_ref)
    }

    /// Bound only when the first pod that uses it is scheduled.
    pub(crate) fn waits_for_consumer(&self, claim: &PersistentVolumeClaim) -> bool {
        let class = self.class_of(claim);
        let mode = class.and_then(|class| class.volume_binding_mode.as_deref());
        mode == Some("WaitForFirstConsumer")
    }

    /// The class makes volumes when one is needed.
    pub(crate) fn is_made_on_demand(&self, claim: &PersistentVolumeClaim) -> bool {
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

/// The volume it is bound to, for good.
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
