//! Tracks writes that the cache may not have received yet, per owner (C-10, C-11).
//!
//! A reconcile begins with [`PendingWrites::are_cached`]: it waits until the cache has the writes of the previous
//! reconcile, so that it does not repeat them. This replaces upstream's expectations.

use super::Workload;
use client::{Cache, ObjectKey};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

pub(crate) struct PendingWrites<K: Workload> {
    cache: Cache<K>,
    uncached: Mutex<BTreeMap<ObjectKey, Uncached<K>>>,
}

struct Uncached<K> {
    /// The highest resource version that we wrote.
    version: u64,
    deleted: Vec<Arc<K>>,
}

impl<K> Default for Uncached<K> {
    fn default() -> Self {
        Uncached { version: 0, deleted: Vec::new() }
    }
}

impl<K: Workload> PendingWrites<K> {
    pub(crate) fn new(cache: &Cache<K>) -> Self {
        PendingWrites { cache: cache.clone(), uncached: Mutex::default() }
    }

    /// Records that one of the owner's objects was created or changed.
    pub(crate) fn wrote(&self, owner: &ObjectKey, object: &K) {
        let version = object.metadata().resource_version.as_deref();
        let version = version.and_then(|version| version.parse().ok()).unwrap_or(0);
        let mut uncached = self.uncached();
        let uncached = uncached.entry(owner.clone()).or_default();
        uncached.version = uncached.version.max(version);
    }

    /// Records that some of the owner's objects were deleted.
    pub(crate) fn deleted(&self, owner: &ObjectKey, objects: impl IntoIterator<Item = Arc<K>>) {
        let mut uncached = self.uncached();
        uncached.entry(owner.clone()).or_default().deleted.extend(objects);
    }

    /// Waits until the cache has all writes for this owner. False if that takes too long.
    pub(crate) async fn are_cached(&self, owner: &ObjectKey) -> bool {
        // Only one reconcile at a time works on an owner, so nothing else reads this entry meanwhile.
        let Some(uncached) = self.uncached().remove(owner) else {
            return true;
        };
        let caught_up =
            uncached.version == 0 || self.cache.caught_up_with(&uncached.version.to_string()).await;
        if caught_up && self.cache.caught_up_with_deletes(&uncached.deleted).await {
            return true;
        }
        self.uncached().insert(owner.clone(), uncached);
        false
    }

    fn uncached(&self) -> MutexGuard<'_, BTreeMap<ObjectKey, Uncached<K>>> {
        self.uncached.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::test_cluster::{self, TestCluster};
    use client::DeleteOptions;
    use k8s_openapi::api::core::v1::Pod;

    /// C-11, T-CTRL-8: controllers wait until their cache has their own writes; the controller waits for its own
    /// writes.
    #[tokio::test(start_paused = true)]
    async fn c_11_t_ctrl_8_are_cached_waits_for_our_own_writes() {
        let cluster = TestCluster::start().await;
        let cache = Cache::<Pod>::start(&cluster.client);
        cache.synced().await;
        let (writes, owner) = (PendingWrites::new(&cache), ObjectKey::new("default", "web"));
        assert!(writes.are_cached(&owner).await, "nothing was written");
        let mut pod: Pod = cluster.create(test_cluster::pod("default", "p", "web")).await;
        writes.wrote(&owner, &pod);
        assert!(writes.are_cached(&owner).await);

        // The watch lags: our write is newer than everything that the cache has.
        let version = |pod: &Pod| pod.metadata.resource_version.as_ref()?.parse::<u64>().ok();
        let next = version(&pod).unwrap() + 1;
        pod.metadata.resource_version = Some(next.to_string());
        writes.wrote(&owner, &pod);
        assert!(!writes.are_cached(&owner).await);
        assert!(!writes.are_cached(&owner).await, "a second call still waits");
        assert!(
            writes.are_cached(&ObjectKey::new("default", "other")).await,
            "other owners are not affected"
        );
        let later: Pod = cluster.create(test_cluster::pod("default", "later", "web")).await;
        assert!(version(&later).unwrap() >= next);
        assert!(writes.are_cached(&owner).await);
        cluster.stop().await;
    }

    #[tokio::test(start_paused = true)]
    async fn t_ctrl_8_a_deletion_is_cached_when_the_pod_has_a_deletion_timestamp() {
        let cluster = TestCluster::start().await;
        let cache = Cache::<Pod>::start(&cluster.client);
        cache.synced().await;
        let (writes, owner) = (PendingWrites::new(&cache), ObjectKey::new("default", "web"));
        let mut wanted = test_cluster::pod("default", "p", "web");
        wanted["metadata"]["finalizers"] = serde_json::json!(["example.com/hold"]);
        let pod: Arc<Pod> = Arc::new(cluster.create(wanted).await);
        assert!(cache.caught_up_with_all([pod.as_ref()]).await);
        writes.deleted(&owner, [pod.clone()]);
        assert!(!writes.are_cached(&owner).await, "the cache does not have the deletion");
        let key = ObjectKey::of(pod.as_ref());
        cluster.client.delete::<Pod>(&key, &DeleteOptions::default()).await.unwrap();
        assert!(writes.are_cached(&owner).await, "the deletion timestamp is enough");
        assert!(cluster.client.find::<Pod>(&key).await.unwrap().is_some());
        cluster.stop().await;
    }
}
