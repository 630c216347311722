//! The objects of one kind, kept as they are on the server, to be read without asking it.
//!
//!     list ──▶ replace ─┐
//!       ▲               ├─▶ contents ──▶ get, list, by_index
//!     410 ◀── watch ────┘       └──────▶ listeners: queues and subscriptions
//!
//! `cache/contents.rs` holds objects and indexes and says what changed; `cache/follow.rs` lists and
//! watches; `cache/changes.rs` tells those who want to know. Objects are shared, never copied.
//!
//! Only this file knows the Rust type of the kind. Behind it objects are `dyn AnyObject`, so that following
//! and indexing is compiled once, not once per kind.

mod changes;
mod contents;
mod event;
mod follow;

pub use changes::Changes;

use crate::object::{AnyObject, known, known_ref, version_number};
use crate::queue::Key;
use crate::read::Selection;
use crate::{Client, Object, ObjectKey, Queue};
use changes::Listeners;
use contents::Contents;
use follow::Followed;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use std::marker::PhantomData;
use std::sync::{Arc, RwLock};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// How long [`Cache::caught_up_with`] waits at most. A watch is behind by milliseconds; if it is
/// behind by more than this, it is broken, and whoever waits does better to go on and try again.
const CATCH_UP_MAX: Duration = Duration::from_secs(5);

/// A handle on a cache. Cheap to clone. Following ends when the last handle is dropped.
pub struct Cache<K: Object> {
    shared: Arc<Shared>,
    _follower: Arc<Follower>,
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
    /// The first list is in.
    synced: bool,
    /// Everything up to here has been seen.
    version: Option<u64>,
}

/// What to keep, and how it is looked up. See [`Cache::builder`].
pub struct CacheBuilder<K: Object> {
    client: Client,
    kind: K::DynamicType,
    which: Selection,
    metadata_only: bool,
    contents: Contents,
}

struct Follower(JoinHandle<()>);

impl Follower {
    fn start(client: Client, followed: Followed, shared: Arc<Shared>) -> Follower {
        Follower(tokio::spawn(follow::follow(client, followed, shared)))
    }
}

impl Drop for Follower {
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

    /// Asks for metadata only; `K` is a `PartialObjectMeta` then.
    pub fn metadata_only(mut self) -> Self {
        self.metadata_only = true;
        self
    }

    /// Objects can be looked up by whatever `keys` returns for them: see [`Cache::by_index`].
    pub fn index(
        mut self,
        name: &'static str,
        keys: impl Fn(&K) -> Vec<String> + Send + Sync + 'static,
    ) -> Self {
        self.contents.add_index(name, Box::new(move |object| keys(known_ref(object))));
        self
    }

    /// Begins to follow. Needs a tokio runtime.
    pub fn start(self) -> Cache<K> {
        let followed = Followed::new::<K>(&self.kind, self.which, self.metadata_only);
        let shared = Shared::new(self.contents);
        let follower = Follower::start(self.client, followed, shared.clone());
        Cache { shared, _follower: Arc::new(follower), kind: PhantomData }
    }
}

impl<K: Object<DynamicType = ()>> Cache<K> {
    /// All objects of the kind, in all namespaces, as they change.
    pub fn start(client: &Client) -> Cache<K> {
        Cache::builder(client).start()
    }

    pub fn builder(client: &Client) -> CacheBuilder<K> {
        Cache::builder_of(client, ())
    }
}

impl<K: Object> Cache<K> {
    /// As [`Cache::builder`], for a kind known at run time only.
    pub fn builder_of(client: &Client, kind: K::DynamicType) -> CacheBuilder<K> {
        CacheBuilder {
            client: client.clone(),
            kind,
            which: Selection::default(),
            metadata_only: false,
            contents: Contents::new(),
        }
    }

    /// Returns once the first list is in. Until then there is nothing in the cache.
    pub async fn synced(&self) {
        self.shared.synced().await;
    }

    pub fn is_synced(&self) -> bool {
        self.shared.progress.borrow().synced
    }

    /// Waits until the cache has seen what was written as `version`, so that a reconcile that follows
    /// its own writes does not do them twice. False if it took too long, or the version is none.
    pub async fn caught_up_with(&self, version: &str) -> bool {
        match version_number(version) {
            Some(version) => self.shared.reached(version).await,
            None => false,
        }
    }

    /// As [`Cache::caught_up_with`], for all of these, as they were answered by a write.
    pub async fn caught_up_with_all<'a>(&self, written: impl IntoIterator<Item = &'a K>) -> bool {
        let versions = written
            .into_iter()
            .filter_map(|object| version_number(object.meta().resource_version.as_deref()?));
        match versions.max() {
            Some(version) => self.shared.reached(version).await,
            None => true,
        }
    }

    /// As [`Cache::caught_up_with`], after a delete: until each of these is gone or going. Otherwise
    /// a reconcile would count them as living, and might choose others to delete as well.
    pub async fn caught_up_with_deletes(&self, deleted: &[Arc<K>]) -> bool {
        let deleted = deleted.iter().map(|object| object.clone() as Arc<dyn AnyObject>).collect();
        self.shared.lost_all_of(deleted).await
    }

    pub fn get(&self, key: &ObjectKey) -> Option<Arc<K>> {
        self.read(|contents| contents.get(key)).map(known)
    }

    /// Ordered by namespace and name, as everything that returns several.
    pub fn list(&self) -> Vec<Arc<K>> {
        all_known(self.shared.all())
    }

    pub fn in_namespace(&self, namespace: &str) -> Vec<Arc<K>> {
        all_known(self.read(|contents| contents.in_namespace(namespace).cloned().collect()))
    }

    /// Whether there is anything in the namespace. Costs the same however much it is.
    pub fn any_in_namespace(&self, namespace: &str) -> bool {
        self.read(|contents| contents.in_namespace(namespace).next().is_some())
    }

    /// Those whose controller is `owner`: the very one, by uid.
    pub fn controlled_by<O: kube::Resource>(&self, owner: &O) -> Vec<Arc<K>> {
        let uid = owner.meta().uid.as_deref().unwrap_or_default();
        self.controlled_by_uid(uid)
    }

    pub fn controlled_by_uid(&self, uid: &str) -> Vec<Arc<K>> {
        self.by_index(contents::CONTROLLER, uid)
    }

    /// Those for which the index `name` has `key`. There is nothing in an index that was not made.
    pub fn by_index(&self, name: &'static str, key: &str) -> Vec<Arc<K>> {
        all_known(self.read(|contents| contents.by_index(name, key)))
    }

    /// How many [`Cache::by_index`] would return.
    pub fn count(&self, name: &'static str, key: &str) -> usize {
        self.read(|contents| contents.count(name, key))
    }

    pub fn len(&self) -> usize {
        self.read(Contents::len)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The keys of what changes from now on, beginning with all that is there. A key that changes
    /// several times before it is taken comes once.
    pub fn subscribe(&self) -> Changes {
        let (changes, sender) = changes::channel();
        let tell = move |key: &ObjectKey, _: Option<&K>, _: Option<&K>| sender.send(key);
        self.listen(tell);
        changes
    }

    /// Adds to `queue` whatever `keys` returns for an object that comes, changes or goes; when it
    /// changes, for what it was and for what it is. Begins with all that is there.
    ///
    /// `keys` may read caches, also this one. It is called on the task that follows the server, so
    /// it must be quick.
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

    /// As [`Cache::feed`], but each key only after `delay`: for objects that others may write as well, so
    /// that two who do not agree do not answer each other as fast as they can.
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

    /// Adds the key of every object that comes, changes or goes to `queue`.
    pub fn feed_keys(&self, queue: &Queue<ObjectKey>) {
        self.feed(queue, |object| vec![ObjectKey::of(object)]);
    }

    /// As [`Cache::feed`], for keys that depend on what changed: `keys` is given what was and what
    /// is. Not for deciding what to do: a reconcile is never told what changed.
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
            listener(key, before.map(known_ref), after.map(known_ref))
        };
        self.shared.listeners.add(Box::new(listener), || self.shared.all());
    }

    fn read<T>(&self, f: impl FnOnce(&Contents) -> T) -> T {
        self.shared.read(f)
    }
}

fn all_known<K: Object>(objects: Vec<Arc<dyn AnyObject>>) -> Vec<Arc<K>> {
    objects.into_iter().map(known).collect()
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
        let seen = progress.wait_for(|progress| progress.version >= Some(version));
        matches!(tokio::time::timeout(CATCH_UP_MAX, seen).await, Ok(Ok(_)))
    }

    /// Waits until each of these is gone or going. False if it took too long.
    async fn lost_all_of(&self, deleted: Vec<Arc<dyn AnyObject>>) -> bool {
        let left = |object: &Arc<dyn AnyObject>| {
            let key = ObjectKey::named(object.metadata());
            self.read(|contents| contents.get(&key)).is_some_and(|now| {
                let going = now.metadata().deletion_timestamp.is_some();
                now.metadata().uid == object.metadata().uid && !going
            })
        };
        let mut progress = self.progress.subscribe();
        let seen = progress.wait_for(|_| !deleted.iter().any(left));
        matches!(tokio::time::timeout(CATCH_UP_MAX, seen).await, Ok(Ok(_)))
    }

    /// Everything there is, as of `version`.
    fn replace(&self, objects: Vec<Arc<dyn AnyObject>>, version: &str) {
        self.change(|contents| contents.replace(objects));
        self.advance(version, true);
    }

    fn put(&self, object: Arc<dyn AnyObject>, version: &str) {
        self.change(|contents| contents.put(object).into_iter().collect());
        self.advance(version, false);
    }

    fn remove(&self, object: &ObjectMeta, version: &str) {
        self.change(|contents| contents.remove(&ObjectKey::named(object)).into_iter().collect());
        self.advance(version, false);
    }

    fn change(&self, change: impl FnOnce(&mut Contents) -> Vec<contents::Change>) {
        self.listeners.tell(|| {
            let mut contents =
                self.contents.write().unwrap_or_else(|poisoned| poisoned.into_inner());
            change(&mut contents)
        });
    }

    /// Last of all, so that whoever waits for a version finds it in the contents and in the queues.
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
        Cache { shared: self.shared.clone(), _follower: self._follower.clone(), kind: PhantomData }
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
