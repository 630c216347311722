//! A local copy of all objects of one kind, kept up to date by a watch.
//!
//!     list ──▶ replace ─┐
//!       ▲               ├─▶ contents ──▶ get, list, by_index
//!     410 ◀── watch ────┘       └──────▶ listeners: queues and subscriptions
//!
//! `cache/contents.rs` holds objects and indexes and computes changes; `cache/reflector.rs` lists and watches;
//! `cache/changes.rs` notifies listeners. Objects are shared, never copied.
//!
//! Only this file knows the Rust type of the kind. Elsewhere objects are `dyn AnyObject`, so that the code is
//! compiled once, not once per kind.

mod changes;
mod contents;
mod event;
mod reflector;
mod undecodable;

pub use changes::Changes;
pub use undecodable::metrics;

use crate::object::{AnyObject, downcast, downcast_ref, version_number};
use crate::queue::Key;
use crate::read::Selection;
use crate::{Client, Object, ObjectKey, Queue};
use changes::Listeners;
use contents::Contents;
use reflector::WatchTarget;
use std::marker::PhantomData;
use std::sync::{Arc, RwLock};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use undecodable::Identity;

/// How long [`Cache::caught_up_with`] waits at most. A watch normally lags by milliseconds. If it lags by more than
/// this, it is broken, and the caller should continue and retry later.
const CATCH_UP_MAX: Duration = Duration::from_secs(5);

/// A handle on a cache. Cheap to clone. The watch ends when the last handle is dropped.
pub struct Cache<K: Object> {
    shared: Arc<Shared>,
    _reflector: Arc<ReflectorTask>,
    kind: PhantomData<fn() -> K>,
}

struct Shared {
    contents: RwLock<Contents>,
    listeners: Listeners,
    progress: watch::Sender<Progress>,
}

/// How far the cache has come.
#[derive(Debug, Clone, Default, PartialEq)]
struct Progress {
    /// The first list is complete.
    synced: bool,
    /// The cache has processed all changes up to this resource version.
    version: Option<u64>,
}

/// Follows how far a cache has come, without keeping the cache alive. See [`Cache::versions`].
#[derive(Debug, Clone)]
pub struct Versions(watch::Receiver<Progress>);

impl Versions {
    /// The cache has processed all changes up to this resource version, and its listeners know of them. Zero before the
    /// first list.
    pub fn current(&self) -> u64 {
        self.0.borrow().version.unwrap_or_default()
    }

    /// Waits for the next change of the cache. False: the cache is gone.
    pub async fn changed(&mut self) -> bool {
        self.0.changed().await.is_ok()
    }
}

/// Configures which objects a cache holds and its indexes. See [`Cache::builder`].
pub struct CacheBuilder<K: Object> {
    client: Client,
    kind: K::DynamicType,
    which: Selection,
    metadata_only: bool,
    contents: Contents,
}

struct ReflectorTask(JoinHandle<()>);

impl ReflectorTask {
    fn start(client: Client, followed: WatchTarget, shared: Arc<Shared>) -> ReflectorTask {
        ReflectorTask(tokio::spawn(reflector::run(client, followed, shared)))
    }
}

impl Drop for ReflectorTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl<K: Object> CacheBuilder<K> {
    pub fn select(mut self, which: Selection) -> Self {
        self.which = which;
        self
    }

    pub fn namespace(mut self, namespace: &str) -> Self {
        self.which.namespace = Some(namespace.to_owned());
        self
    }

    pub fn labels(mut self, selector: &str) -> Self {
        self.which = self.which.labels(selector);
        self
    }

    pub fn fields(mut self, selector: &str) -> Self {
        self.which = self.which.fields(selector);
        self
    }

    /// Requests only metadata; `K` must be a [`crate::PartialObject`].
    pub fn metadata_only(mut self) -> Self {
        self.metadata_only = true;
        self
    }

    /// Adds an index: [`Cache::by_index`] finds objects by the strings that `keys` returns for them.
    pub fn index(
        mut self,
        name: &'static str,
        keys: impl Fn(&K) -> Vec<String> + Send + Sync + 'static,
    ) -> Self {
        self.contents.add_index(name, Box::new(move |object| keys(downcast_ref(object))));
        self
    }

    /// Starts the cache. Needs a tokio runtime.
    pub fn start(self) -> Cache<K> {
        let followed = WatchTarget::new::<K>(&self.kind, self.which, self.metadata_only);
        let shared = Shared::new(self.contents);
        let follower = ReflectorTask::start(self.client, followed, shared.clone());
        Cache { shared, _reflector: Arc::new(follower), kind: PhantomData }
    }
}

impl<K: Object<DynamicType = ()>> Cache<K> {
    /// Starts a cache of all objects of the kind, in all namespaces.
    pub fn start(client: &Client) -> Cache<K> {
        Cache::builder(client).start()
    }

    pub fn builder(client: &Client) -> CacheBuilder<K> {
        Cache::builder_of(client, ())
    }
}

impl<K: Object> Cache<K> {
    /// As [`Cache::builder`], for a kind known only at run time.
    pub fn builder_of(client: &Client, kind: K::DynamicType) -> CacheBuilder<K> {
        CacheBuilder {
            client: client.clone(),
            kind,
            which: Selection::default(),
            metadata_only: false,
            contents: Contents::new(),
        }
    }

    /// Waits until the first list is complete. Until then the cache is empty.
    pub async fn synced(&self) {
        self.shared.synced().await;
    }

    pub fn is_synced(&self) -> bool {
        self.shared.progress.borrow().synced
    }

    /// Waits until the cache has received the write with resource version `version`, so that the next reconcile does
    /// not repeat it. False if that took too long or `version` is not a number.
    pub async fn caught_up_with(&self, version: &str) -> bool {
        match version_number(version) {
            Some(version) => self.shared.reached(version).await,
            None => false,
        }
    }

    /// Every change of the cache from now on, and how far it has come. Unlike [`Cache::subscribe`] it says nothing about
    /// single objects.
    pub fn versions(&self) -> Versions {
        Versions(self.shared.progress.subscribe())
    }

    /// As [`Cache::caught_up_with`], for all objects that writes returned.
    pub async fn caught_up_with_all<'a>(&self, written: impl IntoIterator<Item = &'a K>) -> bool {
        let versions = written
            .into_iter()
            .filter_map(|object| version_number(object.meta().resource_version.as_deref()?));
        match versions.max() {
            Some(version) => self.shared.reached(version).await,
            None => true,
        }
    }

    /// As [`Cache::caught_up_with`], after deletes: waits until the cache no longer has the objects, or has their
    /// deletion timestamps. Otherwise the next reconcile would count them and might delete others as well.
    pub async fn caught_up_with_deletes(&self, deleted: &[Arc<K>]) -> bool {
        let deleted = deleted.iter().map(|object| object.clone() as Arc<dyn AnyObject>).collect();
        self.shared.deleted_all(deleted).await
    }

    pub fn get(&self, key: &ObjectKey) -> Option<Arc<K>> {
        self.read(|contents| contents.get(key)).map(downcast)
    }

    /// All objects, sorted by namespace and name, like all methods that return several.
    pub fn list(&self) -> Vec<Arc<K>> {
        downcast_all(self.shared.all())
    }

    pub fn in_namespace(&self, namespace: &str) -> Vec<Arc<K>> {
        downcast_all(self.read(|contents| contents.in_namespace(namespace).cloned().collect()))
    }

    /// Whether the namespace has any object. Takes constant time.
    pub fn any_in_namespace(&self, namespace: &str) -> bool {
        self.read(|contents| contents.in_namespace(namespace).next().is_some())
    }

    /// The objects whose controller is `owner`, compared by UID.
    pub fn controlled_by<O: kube::Resource>(&self, owner: &O) -> Vec<Arc<K>> {
        let uid = owner.meta().uid.as_deref().unwrap_or_default();
        self.controlled_by_uid(uid)
    }

    pub fn controlled_by_uid(&self, uid: &str) -> Vec<Arc<K>> {
        self.by_index(contents::CONTROLLER, uid)
    }

    /// The objects under `key` in the index `name`. An index that does not exist is empty.
    pub fn by_index(&self, name: &'static str, key: &str) -> Vec<Arc<K>> {
        downcast_all(self.read(|contents| contents.by_index(name, key)))
    }

    /// The number of objects that [`Cache::by_index`] would return.
    pub fn count(&self, name: &'static str, key: &str) -> usize {
        self.read(|contents| contents.count(name, key))
    }

    pub fn len(&self) -> usize {
        self.read(Contents::len)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the keys of all present objects, then the keys of objects as they change. A key that changes several
    /// times before the subscriber reads it comes once.
    pub fn subscribe(&self) -> Changes {
        let (changes, sender) = changes::channel();
        self.listen(move |key, _, _| sender.send(key));
        changes
    }

    /// Adds to `queue` the keys that `keys` returns for each object that is added, changed or deleted; for a changed
    /// object, those of the old and of the new version. Starts with all present objects.
    ///
    /// `keys` may read caches, including this one. The reflector task calls it, so it must be fast.
    pub fn feed<Q: Key>(
        &self,
        queue: &Queue<Q>,
        keys: impl Fn(&K) -> Vec<Q> + Send + Sync + 'static,
    ) {
        let queue = queue.clone();
        self.listen(move |_, before, after| {
            for object in [before, after].into_iter().flatten() {
                keys(object).into_iter().for_each(|key| queue.add(key));
            }
            true
        });
    }

    /// As [`Cache::feed`], but adds each key only after `delay`. For objects that users or other controllers also
    /// write, so that two writers that disagree do not overwrite each other in a tight loop.
    pub fn feed_after<Q: Key>(
        &self,
        queue: &Queue<Q>,
        delay: Duration,
        keys: impl Fn(&K) -> Vec<Q> + Send + Sync + 'static,
    ) {
        let queue = queue.clone();
        self.listen(move |_, before, after| {
            for object in [before, after].into_iter().flatten() {
                keys(object).into_iter().for_each(|key| queue.add_after(key, delay));
            }
            true
        });
    }

    /// Adds the key of every object that is added, changed or deleted to `queue`.
    pub fn feed_keys(&self, queue: &Queue<ObjectKey>) {
        self.feed(queue, |object| vec![ObjectKey::of(object)]);
    }

    /// As [`Cache::feed`], for keys that depend on the change: `keys` gets the old and the new version. It decides
    /// only which keys to reconcile; the reconcile itself never learns what changed.
    pub fn feed_changes<Q: Key>(
        &self,
        queue: &Queue<Q>,
        keys: impl Fn(Option<&K>, Option<&K>) -> Vec<Q> + Send + Sync + 'static,
    ) {
        let queue = queue.clone();
        self.listen(move |_, before, after| {
            keys(before, after).into_iter().for_each(|key| queue.add(key));
            true
        });
    }

    fn listen(
        &self,
        listener: impl Fn(&ObjectKey, Option<&K>, Option<&K>) -> bool + Send + Sync + 'static,
    ) {
        let listener = move |key: &ObjectKey,
                             before: Option<&dyn AnyObject>,
                             after: Option<&dyn AnyObject>| {
            listener(key, before.map(downcast_ref), after.map(downcast_ref))
        };
        self.shared.listeners.add(Box::new(listener), || self.shared.all());
    }

    fn read<T>(&self, f: impl FnOnce(&Contents) -> T) -> T {
        self.shared.read(f)
    }
}

fn downcast_all<K: Object>(objects: Vec<Arc<dyn AnyObject>>) -> Vec<Arc<K>> {
    objects.into_iter().map(downcast).collect()
}

impl Shared {
    fn new(contents: Contents) -> Arc<Shared> {
        Arc::new(Shared {
            contents: RwLock::new(contents),
            listeners: Listeners::default(),
            progress: watch::Sender::default(),
        })
    }

    fn read<T>(&self, f: impl FnOnce(&Contents) -> T) -> T {
        f(&self.contents.read().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }

    fn all(&self) -> Vec<Arc<dyn AnyObject>> {
        self.read(|contents| contents.all().cloned().collect())
    }

    async fn synced(&self) {
        let mut progress = self.progress.subscribe();
        // We hold the sender, so it cannot be closed.
        let _ = progress.wait_for(|progress| progress.synced).await;
    }

    /// False if it took too long.
    async fn reached(&self, version: u64) -> bool {
        let mut progress = self.progress.subscribe();
        let reached = progress.wait_for(|progress| progress.version >= Some(version));
        matches!(tokio::time::timeout(CATCH_UP_MAX, reached).await, Ok(Ok(_)))
    }

    /// Waits until each of these is deleted or has a deletion timestamp. False if it took too long.
    async fn deleted_all(&self, deleted: Vec<Arc<dyn AnyObject>>) -> bool {
        let is_left = |object: &Arc<dyn AnyObject>| {
            let key = ObjectKey::from_meta(object.metadata());
            self.read(|contents| contents.get(&key)).is_some_and(|now| {
                let terminating = now.metadata().deletion_timestamp.is_some();
                now.metadata().uid == object.metadata().uid && !terminating
            })
        };
        let mut progress = self.progress.subscribe();
        let gone = progress.wait_for(|_| !deleted.iter().any(is_left));
        matches!(tokio::time::timeout(CATCH_UP_MAX, gone).await, Ok(Ok(_)))
    }

    /// The last version of the same object that could be decoded.
    fn last_decoded(&self, which: &Identity) -> Option<Arc<dyn AnyObject>> {
        let last = self.read(|contents| contents.get(&which.key()))?;
        (last.metadata().uid == which.uid).then_some(last)
    }

    /// Replaces the contents by `objects`, a list at `version`.
    fn replace(&self, objects: Vec<Arc<dyn AnyObject>>, version: &str) {
        self.change(|contents| contents.replace(objects));
        self.advance(version, true);
    }

    fn put(&self, object: Arc<dyn AnyObject>, version: &str) {
        self.change(|contents| contents.put(object).into_iter().collect());
        self.advance(version, false);
    }

    fn remove(&self, key: &ObjectKey, version: &str) {
        self.change(|contents| contents.remove(key).into_iter().collect());
        self.advance(version, false);
    }

    fn change(&self, change: impl FnOnce(&mut Contents) -> Vec<contents::Change>) {
        self.listeners.notify(|| {
            let mut contents =
                self.contents.write().unwrap_or_else(|poisoned| poisoned.into_inner());
            change(&mut contents)
        });
    }

    /// Called last, so that a caller that waits for a version finds the change in the contents and in the queues.
    fn advance(&self, version: &str, listed: bool) {
        let version = version_number(version);
        self.progress.send_if_modified(|progress| {
            let next = Progress { synced: progress.synced || listed, version };
            let changed = next != *progress;
            *progress = next;
            changed
        });
    }
}

impl<K: Object> Clone for Cache<K> {
    fn clone(&self) -> Self {
        Cache {
            shared: self.shared.clone(),
            _reflector: self._reflector.clone(),
            kind: PhantomData,
        }
    }
}

impl<K: Object> std::fmt::Debug for Cache<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache")
            .field("objects", &self.len())
            .field("progress", &*self.shared.progress.borrow())
            .finish()
    }
}
