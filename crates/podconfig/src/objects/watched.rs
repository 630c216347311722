//! Objects of one kind, each with its own watch as long as some pod uses it.

use client::{Cache, Client, Object, ObjectKey, Selection};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// How long [`WatchedObjects::get`] waits for the API server.
const READ_MAX: Duration = Duration::from_secs(10);

/// The pods that use an object that has changed. Bounded by the number of pods.
#[derive(Default)]
pub(super) struct ChangedPods {
    pods: Mutex<BTreeSet<String>>,
    added: Notify,
}

impl ChangedPods {
    fn add(&self, uids: impl IntoIterator<Item = String>) {
        locked(&self.pods).extend(uids);
        self.added.notify_one();
    }

    pub(super) fn remove(&self, uid: &str) {
        locked(&self.pods).remove(uid);
    }

    pub(super) async fn next(&self) -> String {
        loop {
            if let Some(uid) = locked(&self.pods).pop_first() {
                return uid;
            }
            self.added.notified().await;
        }
    }
}

pub(super) trait Watchable: Object<DynamicType = ()> {
    /// The kind's name in messages.
    const NAME: &'static str;
    /// It never changes again (N-135).
    fn is_immutable(&self) -> bool;
}

impl Watchable for ConfigMap {
    const NAME: &'static str = "configmap";

    fn is_immutable(&self) -> bool {
        self.immutable == Some(true)
    }
}

impl Watchable for Secret {
    const NAME: &'static str = "secret";

    fn is_immutable(&self) -> bool {
        self.immutable == Some(true)
    }
}

pub(super) struct WatchedObjects<K: Watchable> {
    client: Client,
    objects: Arc<Mutex<BTreeMap<ObjectKey, Entry<K>>>>,
    changed: Arc<ChangedPods>,
}

struct Entry<K: Watchable> {
    users: BTreeSet<String>,
    state: State<K>,
}

enum State<K: Watchable> {
    Watched {
        cache: Cache<K>,
        _task: Task,
        freshness: Freshness,
    },
    /// Needs no watch.
    Immutable(Arc<K>),
}

/// The state of an entry, copied so that its lock can be released.
enum Snapshot<K: Watchable> {
    Watched(Cache<K>, Freshness),
    Immutable(Arc<K>),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Freshness {
    /// The cache was listed after the last pod registered.
    Fresh,
    /// A pod registered after the list: `get` must read from the API server (N-135).
    Stale,
}

struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl<K: Watchable> WatchedObjects<K> {
    pub(super) fn new(client: &Client, changed: &Arc<ChangedPods>) -> WatchedObjects<K> {
        let objects = Arc::new(Mutex::new(BTreeMap::new()));
        WatchedObjects { client: client.clone(), objects, changed: changed.clone() }
    }

    /// From now on the pod uses these objects and no others.
    pub(super) fn register(&self, uid: &str, keys: BTreeSet<ObjectKey>) {
        let mut objects = locked(&self.objects);
        objects.retain(|key, entry| {
            if !keys.contains(key) {
                entry.users.remove(uid);
            }
            !entry.users.is_empty()
        });
        for key in keys {
            let entry = objects.entry(key.clone());
            let entry = entry
                .and_modify(|entry| {
                    if let (false, State::Watched { freshness, .. }) =
                        (entry.users.contains(uid), &mut entry.state)
                    {
                        *freshness = Freshness::Stale;
                    }
                })
                .or_insert_with(|| Entry { users: BTreeSet::new(), state: self.watch(&key) });
            entry.users.insert(uid.to_owned());
        }
    }

    fn watch(&self, key: &ObjectKey) -> State<K> {
        let which = Selection::namespace(key.namespace());
        let which = which.fields(&format!("metadata.name={}", key.name()));
        let cache = Cache::<K>::builder(&self.client).select(which).start();
        let notifying =
            notify_users(key.clone(), cache.clone(), self.objects.clone(), self.changed.clone());
        State::Watched { cache, _task: Task(tokio::spawn(notifying)), freshness: Freshness::Fresh }
    }

    /// Reads an object that no pod registered from the API server.
    pub(super) async fn get(&self, key: &ObjectKey) -> Result<Option<Arc<K>>, String> {
        let (cache, freshness) = match self.snapshot(key) {
            None => return Ok(self.fetch(key).await?.map(Arc::new)),
            Some(Snapshot::Immutable(object)) => return Ok(Some(object)),
            Some(Snapshot::Watched(cache, freshness)) => (cache, freshness),
        };
        if freshness == Freshness::Fresh {
            if tokio::time::timeout(READ_MAX, cache.synced()).await.is_err() {
                return Err(not_synced::<K>());
            }
            let found = cache.get(key);
            self.keep_if_immutable(key, found.as_ref());
            return Ok(found);
        }
        // Wait for the cache, or the next call could return an older object than this one.
        let found = self.fetch(key).await?.map(Arc::new);
        if let Some(object) = &found {
            cache.caught_up_with_all([object.as_ref()]).await;
        }
        if let Some(Entry { state: State::Watched { freshness, .. }, .. }) =
            locked(&self.objects).get_mut(key)
        {
            *freshness = Freshness::Fresh;
        }
        self.keep_if_immutable(key, found.as_ref());
        Ok(found)
    }

    fn snapshot(&self, key: &ObjectKey) -> Option<Snapshot<K>> {
        Some(match &locked(&self.objects).get(key)?.state {
            State::Immutable(object) => Snapshot::Immutable(object.clone()),
            State::Watched { cache, freshness, .. } => Snapshot::Watched(cache.clone(), *freshness),
        })
    }

    fn keep_if_immutable(&self, key: &ObjectKey, found: Option<&Arc<K>>) {
        let Some(object) = found.filter(|object| object.is_immutable()) else { return };
        if let Some(entry) = locked(&self.objects).get_mut(key) {
            entry.state = State::Immutable(object.clone());
        }
    }

    async fn fetch(&self, key: &ObjectKey) -> Result<Option<K>, String> {
        let found = tokio::time::timeout(READ_MAX, self.client.find::<K>(key)).await;
        match found {
            Ok(Ok(found)) => Ok(found),
            Ok(Err(error)) if error.is_forbidden() => Err(error.to_string()),
            Ok(Err(_)) | Err(_) => Err(not_synced::<K>()),
        }
    }
}

/// Upstream's message. It covers a server that does not answer as well.
fn not_synced<K: Watchable>() -> String {
    format!("failed to sync {} cache: timed out waiting for the condition", K::NAME)
}

/// Adds the users of an object to `changed` whenever the object has a new version.
async fn notify_users<K: Watchable>(
    key: ObjectKey,
    cache: Cache<K>,
    objects: Arc<Mutex<BTreeMap<ObjectKey, Entry<K>>>>,
    changed: Arc<ChangedPods>,
) {
    cache.synced().await;
    let version = || cache.get(&key).map(|object| object.meta().resource_version.clone());
    let mut known = version();
    let mut changes = cache.subscribe();
    loop {
        changes.next().await;
        let now = version();
        if now != known {
            known = now;
            let users = locked(&objects).get(&key).map(|entry| entry.users.clone());
            changed.add(users.into_iter().flatten());
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
