//! Waits until cached objects match a condition, and shows them if they never do.

use client::{Cache, Client, Object, ObjectKey};
use std::sync::Arc;
use std::time::Duration;

/// No wait takes that long, in real or in simulated time. The limit makes a failing test end.
const WAIT_MAX: Duration = Duration::from_secs(600);

/// All objects of one kind, as a cache sees them.
pub struct Observed<K: Object> {
    pub cache: Cache<K>,
}

impl<K: Object<DynamicType = ()>> Observed<K> {
    pub fn start(client: &Client) -> Observed<K> {
        Observed { cache: Cache::start(client) }
    }
}

impl<K: Object> Observed<K> {
    /// Waits until the object, or its absence (`None`), matches.
    pub async fn when(&self, key: &ObjectKey, matches: impl Fn(Option<&K>) -> bool) {
        self.cache.synced().await;
        let found = self.until(|| matches(self.cache.get(key).as_deref()).then_some(())).await;
        found.unwrap_or_else(|| panic!("{key} does not match: {:#?}", self.cache.get(key)));
    }

    /// Waits until the object exists and matches.
    pub async fn when_found(&self, key: &ObjectKey, matches: impl Fn(&K) -> bool) -> Arc<K> {
        let found = self.until(|| self.cache.get(key).filter(|object| matches(object))).await;
        found.unwrap_or_else(|| panic!("{key} does not match: {:#?}", self.cache.get(key)))
    }

    pub async fn gone(&self, key: &ObjectKey) {
        self.when(key, |object| object.is_none()).await;
    }

    /// Waits until any object matches.
    pub async fn find(&self, matches: impl Fn(&K) -> bool) -> Arc<K> {
        let find = || self.cache.list().into_iter().find(|object| matches(object));
        let found = self.until(find).await;
        found.unwrap_or_else(|| panic!("no object matches: {:#?}", self.cache.list()))
    }

    /// Waits until all objects together match.
    pub async fn all(&self, matches: impl Fn(&[Arc<K>]) -> bool) {
        self.cache.synced().await;
        let found = self.until(|| matches(&self.cache.list()).then_some(())).await;
        found.unwrap_or_else(|| panic!("the objects do not match: {:#?}", self.cache.list()));
    }

    async fn until<T>(&self, look: impl Fn() -> Option<T>) -> Option<T> {
        let mut changes = self.cache.subscribe();
        let found = async {
            loop {
                match look() {
                    Some(found) => return found,
                    None => drop(changes.next().await),
                }
            }
        };
        tokio::time::timeout(WAIT_MAX, found).await.ok()
    }
}
