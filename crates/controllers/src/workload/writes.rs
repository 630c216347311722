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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::testbed::{self, Bed};
    use client::DeleteOptions;
    use k8s_openapi::api::core::v1::Pod;

    /// C-11, T-CTRL-8
    #[tokio::test(start_paused = true)]
    async fn c_11_t_ctrl_8_nothing_is_decided_before_our_own_writes_are_seen() {
        let bed = Bed::start().await;
        let cache = Cache::<Pod>::start(&bed.client);
        cache.synced().await;
        let (writes, owner) = (Writes::new(&cache), ObjectKey::new("default", "web"));
        assert!(writes.seen(&owner).await, "nothing was written");
        let mut pod: Pod = bed.create(testbed::pod("default", "p", "web")).await;
        writes.wrote(&owner, &pod);
        assert!(writes.seen(&owner).await);

        // As if the watch were late: what we wrote is newer than all that it has shown.
        let version = |pod: &Pod| pod.metadata.resource_version.as_ref()?.parse::<u64>().ok();
        let next = version(&pod).unwrap() + 1;
        pod.metadata.resource_version = Some(next.to_string());
        writes.wrote(&owner, &pod);
        assert!(!writes.seen(&owner).await);
        assert!(!writes.seen(&owner).await, "and it is not forgotten by asking");
        assert!(writes.seen(&ObjectKey::new("default", "other")).await, "others go on");
        let later: Pod = bed.create(testbed::pod("default", "later", "web")).await;
        assert!(version(&later).unwrap() >= next);
        assert!(writes.seen(&owner).await);
        bed.stop().await;
    }

    #[tokio::test(start_paused = true)]
    async fn t_ctrl_8_a_deletion_is_seen_when_the_pod_is_going() {
        let bed = Bed::start().await;
        let cache = Cache::<Pod>::start(&bed.client);
        cache.synced().await;
        let (writes, owner) = (Writes::new(&cache), ObjectKey::new("default", "web"));
        let mut wanted = testbed::pod("default", "p", "web");
        wanted["metadata"]["finalizers"] = serde_json::json!(["example.com/hold"]);
        let pod: Arc<Pod> = Arc::new(bed.create(wanted).await);
        assert!(cache.caught_up_with_all([pod.as_ref()]).await);
        writes.deleted(&owner, [pod.clone()]);
        assert!(!writes.seen(&owner).await, "the cache shows it alive");
        let key = ObjectKey::of(pod.as_ref());
        bed.client.delete::<Pod>(&key, &DeleteOptions::default()).await.unwrap();
        assert!(writes.seen(&owner).await, "marked is enough");
        assert!(bed.client.find::<Pod>(&key).await.unwrap().is_some());
        bed.stop().await;
    }
}
