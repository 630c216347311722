//! What we wrote and our cache may not have seen yet, per owner (C-10, C-11).
//!
//! A reconcile begins with [`Writes::seen`]: it does not look at a world in which its own last deeds
//! have not happened, and so does nothing twice. This takes the place of upstream's expectations.

use super::Workload;
use client::{Cache, ObjectKey};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

pub(crate) struct Writes<K: Workload> {
    cache: Cache<K>,
    unseen: Mutex<BTreeMap<ObjectKey, Unseen<K>>>,
}

struct Unseen<K> {
    /// The latest version that we made.
    version: u64,
    deleted: Vec<Arc<K>>,
}

impl<K> Default for Unseen<K> {
    fn default() -> Self {
        Unseen { version: 0, deleted: Vec::new() }
    }
}

impl<K: Workload> Writes<K> {
    pub(crate) fn new(cache: &Cache<K>) -> Self {
        Writes { cache: cache.clone(), unseen: Mutex::default() }
    }

    /// One of the owner's objects was created or changed.
    pub(crate) fn wrote(&self, owner: &ObjectKey, object: &K) {
        let version = object.metadata().resource_version.as_deref();
        let version = version.and_then(|version| version.parse().ok()).unwrap_or(0);
        let mut unseen = self.unseen();
        let unseen = unseen.entry(owner.clone()).or_default();
        unseen.version = unseen.version.max(version);
    }

    pub(crate) fn deleted(&self, owner: &ObjectKey, objects: impl IntoIterator<Item = Arc<K>>) {
        let mut unseen = self.unseen();
        unseen.entry(owner.clone()).or_default().deleted.extend(objects);
    }

    /// Waits until the cache shows all that we did for this owner. False if that takes too long.
    pub(crate) async fn seen(&self, owner: &ObjectKey) -> bool {
        // Nobody else works on this owner, so what is taken out here is not missed meanwhile.
        let Some(unseen) = self.unseen().remove(owner) else {
            return true;
        };
        let caught_up =
            unseen.version == 0 || self.cache.caught_up_with(&unseen.version.to_string()).await;
        if caught_up && self.cache.caught_up_with_deletes(&unseen.deleted).await {
            return true;
        }
        self.unseen().insert(owner.clone(), unseen);
        false
    }

    fn unseen(&self) -> MutexGuard<'_, BTreeMap<ObjectKey, Unseen<K>>> {
        self.unseen.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
