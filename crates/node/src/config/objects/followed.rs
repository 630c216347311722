//! Objects of one kind, each followed by a watch of its own as long as some pod uses it.

use client::{Cache, Client, Object, ObjectKey, Selection};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// How long a reader waits for an object to be read the first time.
const READ_MAX: Duration = Duration::from_secs(10);

/// Which pods should look again. Bounded by the number of pods.
#[derive(Default)]
pub(super) struct Wanted {
    pods: Mutex<BTreeSet<String>>,
    more: Notify,
}

impl Wanted {
    fn add(&self, uids: impl IntoIterator<Item = String>) {
        locked(&self.pods).extend(uids);
        self.more.notify_one();
    }

    pub(super) fn forget(&self, uid: &str) {
        locked(&self.pods).remove(uid);
    }

    pub(super) async fn next(&self) -> String {
        loop {
            if let Some(uid) = locked(&self.pods).pop_first() {
                return uid;
            }
            self.more.notified().await;
        }
    }
}

/// What a kind must say for itself.
pub(super) trait Followable: Object<DynamicType = ()> {
    /// In messages.
    const NAME: &'static str;
    /// It never changes again (N-135).
    fn is_final(&self) -> bool;
}

impl Followable for ConfigMap {
    const NAME: &'static str = "configmap";

    fn is_final(&self) -> bool {
        self.immutable == Some(true)
    }
}

impl Followable for Secret {
    const NAME: &'static str = "secret";

    fn is_final(&self) -> bool {
        self.immutable == Some(true)
    }
}

pub(super) struct Followed<K: Followable> {
    client: Client,
    objects: Arc<Mutex<BTreeMap<ObjectKey, Entry<K>>>>,
    wanted: Arc<Wanted>,
}

struct Entry<K: Followable> {
    users: BTreeSet<String>,
    state: State<K>,
}

enum State<K: Followable> {
    Watched {
        cache: Cache<K>,
        _task: Task,
        fresh: Freshness,
    },
    /// Immutable: read for good.
    Final(Arc<K>),
}

/// What an entry says, taken out from under its lock.
enum Known<K: Followable> {
    Watched(Cache<K>, Freshness),
    Final(Arc<K>),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Freshness {
    /// What is in the cache was listed after the last pod came.
    Good,
    /// A pod came after the list: the server is asked once more (N-135).
    Due,
}

struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl<K: Followable> Followed<K> {
    pub(super) fn new(client: &Client, wanted: &Arc<Wanted>) -> Followed<K> {
        let objects = Arc::new(Mutex::new(BTreeMap::new()));
        Followed { client: client.clone(), objects, wanted: wanted.clone() }
    }

    /// From now on the pod uses these and no others.
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
                    if let (false, State::Watched { fresh, .. }) =
                        (entry.users.contains(uid), &mut entry.state)
                    {
                        *fresh = Freshness::Due;
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
        let telling = tell(key.clone(), cache.clone(), self.objects.clone(), self.wanted.clone());
        State::Watched { cache, _task: Task(tokio::spawn(telling)), fresh: Freshness::Good }
    }

    /// What nobody registered is read from the server.
    pub(super) async fn get(&self, key: &ObjectKey) -> Result<Option<Arc<K>>, String> {
        let (cache, fresh) = match self.known(key) {
            None => return Ok(self.ask(key).await?.map(Arc::new)),
            Some(Known::Final(object)) => return Ok(Some(object)),
            Some(Known::Watched(cache, fresh)) => (cache, fresh),
        };
        if fresh == Freshness::Good {
            if tokio::time::timeout(READ_MAX, cache.synced()).await.is_err() {
                return Err(not_synced::<K>());
            }
            let found = cache.get(key);
            self.keep_if_final(key, found.as_ref());
            return Ok(found);
        }
        // Also what is older than the answer must not be handed out after it.
        let found = self.ask(key).await?.map(Arc::new);
        if let Some(object) = &found {
            cache.caught_up_with_all([object.as_ref()]).await;
        }
        if let Some(Entry { state: State::Watched { fresh, .. }, .. }) =
            locked(&self.objects).get_mut(key)
        {
            *fresh = Freshness::Good;
        }
        self.keep_if_final(key, found.as_ref());
        Ok(found)
    }

    fn known(&self, key: &ObjectKey) -> Option<Known<K>> {
        Some(match &locked(&self.objects).get(key)?.state {
            State::Final(object) => Known::Final(object.clone()),
            State::Watched { cache, fresh, .. } => Known::Watched(cache.clone(), *fresh),
        })
    }

    fn keep_if_final(&self, key: &ObjectKey, found: Option<&Arc<K>>) {
        let Some(object) = found.filter(|object| object.is_final()) else { return };
        if let Some(entry) = locked(&self.objects).get_mut(key) {
            entry.state = State::Final(object.clone());
        }
    }

    async fn ask(&self, key: &ObjectKey) -> Result<Option<K>, String> {
        let found = tokio::time::timeout(READ_MAX, self.client.find::<K>(key)).await;
        match found {
            Ok(Ok(found)) => Ok(found),
            Ok(Err(error)) if error.is_forbidden() => Err(error.to_string()),
            Ok(Err(_)) | Err(_) => Err(not_synced::<K>()),
        }
    }
}

/// Upstream's words, which also stand for a server that does not answer.
fn not_synced<K: Followable>() -> String {
    format!("failed to sync {} cache: timed out waiting for the condition", K::NAME)
}

/// Tells the users of an object when it is another one than it was when it was first read.
async fn tell<K: Followable>(
    key: ObjectKey,
    cache: Cache<K>,
    objects: Arc<Mutex<BTreeMap<ObjectKey, Entry<K>>>>,
    wanted: Arc<Wanted>,
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
            wanted.add(users.into_iter().flatten());
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
