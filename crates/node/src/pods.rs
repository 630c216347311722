//! What the agent knows of its pods: written by the workers, read by the endpoint and the probes.

use k8s_openapi::api::core::v1::Pod;
use std::collections::BTreeMap;
use std::sync::{Arc, RwLock};

/// Each pod with the status this node last computed for it.
#[derive(Default)]
pub struct Pods {
    known: RwLock<BTreeMap<String, Arc<Pod>>>,
    /// Those that are gone, while somebody wants to know how they ended.
    gone: RwLock<Option<BTreeMap<String, Arc<Pod>>>>,
}

impl Pods {
    pub fn by_uid(&self, uid: &str) -> Option<Arc<Pod>> {
        self.read().get(uid).cloned()
    }

    /// The pod of that name that is not on its way out, else any.
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
        let mut gone = self.gone.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let (Some(gone), Some(pod)) = (gone.as_mut(), removed) {
            gone.insert(uid.to_owned(), pod);
        }
    }

    /// From now on pods are remembered also when they are gone, or no longer.
    pub(crate) fn remember(&self, remember: bool) {
        *self.gone.write().unwrap_or_else(|poisoned| poisoned.into_inner()) =
            remember.then(BTreeMap::new);
    }

    /// As it was last, also if it is gone since [`Pods::remember`].
    pub(crate) fn last_of(&self, uid: &str) -> Option<Arc<Pod>> {
        let gone = || {
            let gone = self.gone.read().unwrap_or_else(|poisoned| poisoned.into_inner());
            gone.as_ref()?.get(uid).cloned()
        };
        self.by_uid(uid).or_else(gone)
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, BTreeMap<String, Arc<Pod>>> {
        self.known.read().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
