//! The state in memory that all reads use: the current objects, and a ring of recent events per collection.
//!
//! An object may have a partition key ([`Index::partition_key`]). Then the object and its events are also kept in that
//! partition: readers of one partition do not read the others, and are not woken for them.
//!
//! One lock protects everything, and a batch is published as a whole, so every list is a snapshot at the store's
//! revision. Objects are laid out and indexed before the lock is taken, and nothing blocks while it is held.
//!
//! Not here: writes (`embedded`, `etcd`, `memory`).

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::partition::{Bounds, Events, Partition, SharedList, reaches};
use crate::wakeups::WatcherWakeups;
use crate::{Compacted, Event, EventKind, Index, Object, Options, Watcher};

/// The state, shared by readers and the engine.
pub(crate) struct Shared<I> {
    state: RwLock<State<I>>,
    revision: watch::Sender<u64>,
    trouble: Mutex<Option<String>>,
}

pub(crate) struct State<I> {
    revision: u64,
    /// No collection has history up to this revision, not even a new one.
    floor: u64,
    /// The newest revision that is older than the history limit. Lists of earlier states are refused in every collection,
    /// even in one that has not changed since: the result must not depend on writes elsewhere.
    aged: u64,
    collections: Vec<Collection<I>>,
    by_name: HashMap<Arc<str>, usize>,
    /// One entry per event in the collections' rings, oldest first.
    order: VecDeque<Kept>,
    order_bytes: usize,
    limits: Limits,
}

struct Collection<I> {
    name: Arc<str>,
    whole: Partition<I>,
    /// The objects with a partition key, by key.
    partitions: HashMap<Arc<str>, Partition<I>>,
}

#[derive(Clone)]
struct Kept {
    since: Instant,
    collection: usize,
    bytes: usize,
}

#[derive(Clone)]
struct Limits {
    age: Duration,
    events: usize,
    bytes: usize,
}

/// An event that was dropped from the ring.
pub(crate) struct DroppedEvent {
    pub(crate) revision: u64,
    pub(crate) kind: EventKind,
    pub(crate) previous: Option<u64>,
}

/// An event to be published, with its collection.
pub(crate) type Published<I> = (Arc<str>, Arc<Event<I>>);

impl<I: Index> Shared<I> {
    pub(crate) fn new(state: State<I>) -> Arc<Self> {
        let (revision, _) = watch::channel(state.revision);
        Arc::new(Shared { state: RwLock::new(state), revision, trouble: Mutex::new(None) })
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, State<I>> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> RwLockWriteGuard<'_, State<I>> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a batch visible, all of it at once, and wakes the watchers.
    pub(crate) fn publish(&self, events: Vec<Published<I>>) {
        let now = Instant::now();
        let mut touched: Vec<(Arc<WatcherWakeups>, u64)> = Vec::new();
        let revision = {
            let mut state = self.lock();
            for (collection, event) in events {
                let revision = event.revision;
                for changed in state.apply(&collection, event, now) {
                    match touched.iter_mut().find(|(wakeups, _)| Arc::ptr_eq(wakeups, &changed)) {
                        Some((_, last)) => *last = revision,
                        None => touched.push((changed, revision)),
                    }
                }
            }
            state.revision
        };
        for (changed, last) in touched {
            changed.wake(last);
        }
        self.revision.send_replace(revision);
    }

    /// Advances the revision without an event.
    pub(crate) fn advance(&self, revision: u64) {
        let revision = {
            let mut state = self.lock();
            state.revision = state.revision.max(revision);
            state.revision
        };
        self.revision.send_replace(revision);
    }

    /// Replaces the state by a newly loaded one. Watchers that its history does not reach get an error; the others
    /// continue.
    pub(crate) fn replace(&self, fresh: State<I>) {
        let (old, changed) = {
            let mut state = self.lock();
            let mut old = std::mem::replace(&mut *state, fresh);
            let mut changed = Vec::new();
            // The channels of existing watchers must stay.
            for old in &mut old.collections {
                let at = state.collection(&old.name);
                changed.extend(state.collections[at].take_watchers(old));
            }
            (old, changed)
        };
        drop(old);
        for wakeups in changed {
            wakeups.wake_all();
        }
        self.revision.send_replace(self.read().revision);
    }

    /// Drops old events. Returns them, oldest first, so that the log can drop them too.
    pub(crate) fn trim(&self) -> Vec<DroppedEvent> {
        let now = Instant::now();
        let mut gone = Vec::new();
        {
            let mut state = self.lock();
            while let Some(event) = state.pop_expired(now) {
                gone.push(event);
            }
        }
        // Dropped here, without holding the lock.
        gone.into_iter()
            .map(|event| DroppedEvent {
                revision: event.revision,
                kind: event.kind,
                previous: event.previous.as_ref().map(|object| object.revision()),
            })
            .collect()
    }

    pub(crate) async fn wait_for(&self, revision: u64) {
        let mut seen = self.revision.subscribe();
        // The sender lives in self, so this cannot fail.
        let _ = seen.wait_for(|now| *now >= revision).await;
    }

    pub(crate) fn watch(
        this: &Arc<Self>,
        collection: &str,
        key: Option<&str>,
        after: u64,
    ) -> Result<Watcher<I>, Compacted> {
        let (watcher, floor) = Shared::subscribe(this, collection, key, after);
        if after < floor {
            return Err(Compacted { oldest: floor });
        }
        Ok(watcher)
    }

    pub(crate) fn list_and_watch(
        this: &Arc<Self>,
        collection: &str,
        key: Option<&str>,
        prefix: &str,
    ) -> (u64, SharedList<I>, Watcher<I>) {
        let (mut watcher, _) = Shared::subscribe(this, collection, key, 0);
        let state = this.read();
        let found = state.find(collection).and_then(|found| found.partition(key));
        let objects = found.map(|partition| partition.snapshot(prefix)).unwrap_or_default();
        let revision = state.revision;
        drop(state);
        watcher.begin_at(revision);
        (revision, objects, watcher)
    }

    /// A watcher, and the floor of what it watches. Creates the collection and the partition if they are new.
    fn subscribe(
        this: &Arc<Self>,
        collection: &str,
        key: Option<&str>,
        after: u64,
    ) -> (Watcher<I>, u64) {
        let watcher = |name: &Arc<str>, key: Option<Arc<str>>, partition: &Partition<I>| {
            let wakeups = partition.changed.subscribe();
            (Watcher::new(this.clone(), (name.clone(), key), after, wakeups), partition.floor)
        };
        if key.is_none()
            && let Some(found) = this.read().find(collection)
        {
            return watcher(&found.name, None, &found.whole);
        }
        let mut state = this.lock();
        let at = state.collection(collection);
        let found = &mut state.collections[at];
        let Some(key) = key else { return watcher(&found.name, None, &found.whole) };
        let key: Arc<str> = key.into();
        let name = found.name.clone();
        let partition = found.partition_mut(&key);
        partition.watchers += 1;
        watcher(&name, Some(key), partition)
    }

    /// A watcher of this partition was dropped.
    pub(crate) fn unsubscribe(&self, collection: &str, key: &str) {
        let mut state = self.lock();
        let Some(at) = state.by_name.get(collection).copied() else { return };
        let found = &mut state.collections[at];
        if let Some(partition) = found.partitions.get_mut(key) {
            partition.watchers = partition.watchers.saturating_sub(1);
        }
        found.remove_if_idle(key);
    }

    pub(crate) fn health(&self) -> Result<(), String> {
        let trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        trouble.clone().map_or(Ok(()), Err)
    }

    /// Sets what [`Shared::health`] returns.
    pub(crate) fn set_trouble(&self, trouble: Option<String>) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
    }
}

impl<I: Index> State<I> {
    /// An empty state at `revision`, with no history before it.
    pub(crate) fn new(revision: u64, options: &Options) -> Self {
        State {
            revision,
            floor: revision,
            aged: revision,
            collections: Vec::new(),
            by_name: HashMap::new(),
            order: VecDeque::new(),
            order_bytes: 0,
            limits: Limits {
                age: options.history,
                events: options.history_events,
                bytes: options.history_bytes,
            },
        }
    }

    /// A copy with the same objects and history, without watchers.
    pub(crate) fn copy(&self) -> Self {
        self.copied(|partition| (partition.ring.clone(), partition.floor), self.order.clone())
    }

    /// A copy with the same objects, without history and watchers.
    pub(crate) fn copy_without_history(&self) -> Self {
        let revision = self.revision;
        State { floor: revision, ..self.copied(|_| (VecDeque::new(), revision), VecDeque::new()) }
    }

    fn copied(
        &self,
        history: impl Fn(&Partition<I>) -> (VecDeque<Arc<Event<I>>>, u64),
        order: VecDeque<Kept>,
    ) -> Self {
        let copy = |partition: &Partition<I>| partition.copied(history(partition), self.revision);
        let copied = |collection: &Collection<I>| {
            let partitions =
                collection.partitions.iter().map(|(key, partition)| (key.clone(), copy(partition)));
            let partitions = partitions.filter(|(_, partition)| !partition.is_idle()).collect();
            Collection { name: collection.name.clone(), whole: copy(&collection.whole), partitions }
        };
        State {
            revision: self.revision,
            floor: self.floor,
            aged: self.aged,
            collections: self.collections.iter().map(copied).collect(),
            by_name: self.by_name.clone(),
            order_bytes: order.iter().map(|kept| kept.bytes).sum(),
            order,
            limits: self.limits.clone(),
        }
    }

    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    pub(crate) fn set_revision(&mut self, revision: u64) {
        self.revision = revision;
    }

    pub(crate) fn get(&self, collection: &str, name: &str) -> Option<Arc<Object<I>>> {
        self.find(collection)?.whole.objects.get(name).cloned()
    }

    pub(crate) fn list(
        &self,
        collection: &str,
        key: Option<&str>,
        prefix: &str,
        after: Option<&str>,
    ) -> Vec<Arc<Object<I>>> {
        let found = self.find(collection).and_then(|found| found.partition(key));
        let range = found.into_iter().flat_map(|partition| partition.range(prefix, after));
        range.map(|(_, object)| object.clone()).collect()
    }

    pub(crate) fn list_at(
        &self,
        collection: &str,
        prefix: &str,
        after: Option<&str>,
        revision: u64,
    ) -> Result<Vec<Arc<Object<I>>>, Compacted> {
        reaches(self.aged, revision)?;
        let Some(found) = self.find(collection).map(|found| &found.whole) else {
            return reaches(self.floor, revision).map(|()| Vec::new());
        };
        reaches(found.floor, revision)?;
        let first_undone = found.first_after(revision);
        if first_undone == found.ring.len() {
            return Ok(found.range(prefix, after).map(|(_, object)| object.clone()).collect());
        }
        let mut then: BTreeMap<&str, &Arc<Object<I>>> =
            found.range(prefix, after).map(|(name, object)| (&**name, object)).collect();
        for event in found.ring.range(first_undone..).rev() {
            let name = event.object.name();
            if !name.starts_with(prefix) || after.is_some_and(|after| name <= after) {
                continue;
            }
            match &event.previous {
                Some(previous) => then.insert(name, previous),
                None => then.remove(name),
            };
        }
        Ok(then.into_values().cloned().collect())
    }

    /// Events after `cursor` within `bounds`, and the revision up to which they are complete.
    pub(crate) fn events_after(
        &self,
        collection: &str,
        key: Option<&str>,
        cursor: u64,
        bounds: Bounds,
    ) -> Result<(Events<I>, u64), Compacted> {
        let Some(found) = self.find(collection).and_then(|found| found.partition(key)) else {
            return Ok((Vec::new(), self.revision));
        };
        let (events, complete) = found.events_after(cursor, bounds)?;
        Ok((events, complete.unwrap_or(self.revision)))
    }

    /// Every object with its collection.
    pub(crate) fn everything(&self) -> Vec<(Arc<str>, Arc<Object<I>>)> {
        let objects = |collection: &Collection<I>| {
            let name = collection.name.clone();
            let objects: Vec<_> = collection.whole.objects.values().cloned().collect();
            objects.into_iter().map(move |object| (name.clone(), object))
        };
        self.collections.iter().flat_map(objects).collect()
    }

    pub(crate) fn counts(&self) -> Vec<(Arc<str>, usize)> {
        self.collections.iter().map(|c| (c.name.clone(), c.whole.objects.len())).collect()
    }

    /// Adds an object from before the history starts.
    pub(crate) fn load(&mut self, collection: &str, object: Arc<Object<I>>) {
        self.revision = self.revision.max(object.revision());
        let at = self.collection(collection);
        self.collections[at].load(&object);
    }

    /// Applies an event; its revision must be greater than all before. Returns the wakeups to trigger.
    pub(crate) fn apply(
        &mut self,
        collection: &str,
        event: Arc<Event<I>>,
        now: Instant,
    ) -> impl Iterator<Item = Arc<WatcherWakeups>> + use<I> {
        let at = self.collection(collection);
        let bytes = event.object.weight() + size_of::<Event<I>>();
        self.order.push_back(Kept { since: now, collection: at, bytes });
        self.order_bytes += bytes;
        self.revision = event.revision;
        self.collections[at].apply(event)
    }

    fn pop_expired(&mut self, now: Instant) -> Option<Arc<Event<I>>> {
        let oldest = self.order.front()?;
        let aged = now.duration_since(oldest.since) >= self.limits.age;
        let expired =
            aged || self.order.len() > self.limits.events || self.order_bytes > self.limits.bytes;
        if !expired {
            return None;
        }
        let oldest = self.order.pop_front()?;
        self.order_bytes -= oldest.bytes;
        let event = self.collections[oldest.collection].drop_oldest()?;
        if aged {
            self.aged = event.revision;
        }
        Some(event)
    }

    fn find(&self, collection: &str) -> Option<&Collection<I>> {
        self.by_name.get(collection).map(|at| &self.collections[*at])
    }

    /// The collection's index; creates it if it is new.
    fn collection(&mut self, name: &str) -> usize {
        if let Some(at) = self.by_name.get(name) {
            return *at;
        }
        let at = self.collections.len();
        let name: Arc<str> = name.into();
        self.by_name.insert(name.clone(), at);
        self.collections.push(Collection {
            name,
            whole: Partition::new(self.floor),
            partitions: HashMap::new(),
        });
        at
    }
}

impl<I: Index> Collection<I> {
    /// The whole collection, or one partition.
    fn partition(&self, key: Option<&str>) -> Option<&Partition<I>> {
        match key {
            None => Some(&self.whole),
            Some(key) => self.partitions.get(key),
        }
    }

    /// Creates the partition if it is new. Its history is as short as the collection's.
    fn partition_mut(&mut self, key: &Arc<str>) -> &mut Partition<I> {
        let floor = self.whole.floor;
        self.partitions.entry(key.clone()).or_insert_with(|| Partition::new(floor))
    }

    fn load(&mut self, object: &Arc<Object<I>>) {
        self.whole.put(object);
        if let Some(key) = object.index().partition_key() {
            self.partition_mut(key).put(object);
        }
    }

    /// Returns the wakeups for the whole collection and for the partitions that the object is or was in.
    fn apply(
        &mut self,
        event: Arc<Event<I>>,
    ) -> impl Iterator<Item = Arc<WatcherWakeups>> + use<I> {
        let object = &event.object;
        let stays = event.kind != EventKind::Deleted;
        let wakeups = partitions(&event).map(|key| {
            let partition = self.partition_mut(key?);
            match stays && object.index().partition_key() == Some(key?) {
                true => partition.put(object),
                false => partition.remove(object.name()),
            }
            partition.ring.push_back(event.clone());
            Some(partition.changed.clone())
        });
        match stays {
            true => self.whole.put(object),
            false => self.whole.remove(object.name()),
        }
        self.whole.ring.push_back(event);
        std::iter::once(self.whole.changed.clone()).chain(wakeups.into_iter().flatten())
    }

    /// Drops the oldest event.
    fn drop_oldest(&mut self) -> Option<Arc<Event<I>>> {
        let event = self.whole.ring.pop_front()?;
        self.whole.floor = event.revision;
        for key in partitions(&event).into_iter().flatten() {
            if let Some(partition) = self.partitions.get_mut(key) {
                // Events are dropped in order, so it is the oldest here too.
                partition.ring.pop_front();
                partition.floor = event.revision;
            }
            self.remove_if_idle(key);
        }
        Some(event)
    }

    fn remove_if_idle(&mut self, key: &str) {
        if self.partitions.get(key).is_some_and(Partition::is_idle) {
            self.partitions.remove(key);
        }
    }

    /// Takes over the watchers of `old`. All of them have to be woken.
    fn take_watchers(&mut self, old: &mut Collection<I>) -> Vec<Arc<WatcherWakeups>> {
        self.whole.changed = old.whole.changed.clone();
        let mut wakeups = vec![self.whole.changed.clone()];
        for (key, old) in old.partitions.iter().filter(|(_, partition)| partition.watchers > 0) {
            let partition = self.partition_mut(key);
            (partition.changed, partition.watchers) = (old.changed.clone(), old.watchers);
            wakeups.push(partition.changed.clone());
        }
        wakeups
    }
}

/// The partition of the object and, if it is another one, the partition before the event.
fn partitions<I: Index>(event: &Event<I>) -> [Option<&Arc<str>>; 2] {
    let is = event.object.index().partition_key();
    let was = event.previous.as_ref().and_then(|previous| previous.index().partition_key());
    [is, was.filter(|was| Some(*was) != is)]
}
