//! The pods of this node with their statuses: written by the workers, read by the endpoint and the probes.

use endpoint::PodLookup;
use k8s_openapi::api::core::v1::Pod;
use std::collections::BTreeMap;
use std::sync::{Arc, RwLock};

/// Each pod with the status that this node last computed for it.
#[derive(Default)]
pub struct Pods {
    known: RwLock<BTreeMap<String, Arc<Pod>>>,
    /// Removed pods, while [`Pods::keep_removed`] is on.
    removed: RwLock<Option<BTreeMap<String, Arc<Pod>>>>,
}

impl Pods {
    pub fn by_uid(&self, uid: &str) -> Option<Arc<Pod>> {
        self.read().get(uid).cloned()
    }

    /// The pod of that name that is not terminating, or a terminating one if there is no other.
    pub fn by_name(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        let known = self.read();
        let mut named = known.values().filter(|pod| {
            pod.metadata.name.as_deref() == Some(name)
                && pod.metadata.namespace.as_deref() == Some(namespace)
        });
        let first = named.next()?;
        let alive = |pod: &&Arc<Pod>| pod.metadata.deletion_timestamp.is_none();
        Some(std::iter::once(first).chain(named).find(alive).unwrap_or(first).clone())
    }

    pub fn list(&self) -> Vec<Arc<Pod>> {
        self.read().values().cloned().collect()
    }

    pub fn put(&self, pod: Arc<Pod>) {
        let Some(uid) = pod.metadata.uid.clone() else { return };
        self.known.write().unwrap_or_else(|poisoned| poisoned.into_inner()).insert(uid, pod);
    }

    pub fn remove(&self, uid: &str) {
        let removed =
            self.known.write().unwrap_or_else(|poisoned| poisoned.into_inner()).remove(uid);
        let mut kept = self.removed.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let (Some(kept), Some(pod)) = (kept.as_mut(), removed) {
            kept.insert(uid.to_owned(), pod);
        }
    }

    /// Whether to keep pods that are removed from now on.
    pub(crate) fn keep_removed(&self, keep: bool) {
        *self.removed.write().unwrap_or_else(|poisoned| poisoned.into_inner()) =
            keep.then(BTreeMap::new);
    }

    /// The last state of the pod, even if it was removed since [`Pods::keep_removed`].
    pub(crate) fn last_known(&self, uid: &str) -> Option<Arc<Pod>> {
        let removed = || {
            let kept = self.removed.read().unwrap_or_else(|poisoned| poisoned.into_inner());
            kept.as_ref()?.get(uid).cloned()
        };
        self.by_uid(uid).or_else(removed)
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, BTreeMap<String, Arc<Pod>>> {
        self.known.read().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl PodLookup for Pods {
    fn by_uid(&self, uid: &str) -> Option<Arc<Pod>> {
        Pods::by_uid(self, uid)
    }

    fn by_name(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        Pods::by_name(self, namespace, name)
    }

    fn list(&self) -> Vec<Arc<Pod>> {
        Pods::list(self)
    }
}
