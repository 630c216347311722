//! Everything that reads are answered from: all current objects, and a ring of recent events per
//! collection.
//!
//! One lock over all of it: a batch is published as a whole, so a list is a snapshot at the store's
//! revision without further thought. Objects are laid out and indexed before the lock is taken; no
//! one waits for anything while holding it.
//!
//! Not here: who may change it and when (`embedded`, `etcd`).

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Bound;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::bell::Bell;
use crate::{Compacted, Event, EventKind, Object, Options, Watcher};

/// The state as readers and the one engine share it.
pub(crate) struct Shared<I> {
    state: RwLock<State<I>>,
    revision: watch::Sender<u64>,
    trouble: Mutex<Option<String>>,
}

pub(crate) struct State<I> {
    revision: u64,
    /// History up to here is unknown to every collection, also to those not seen yet.
    floor: u64,
    collections: Vec<Collection<I>>,
    by_name: HashMap<Arc<str>, usize>,
    /// One entry per event in the collections' rings, oldest first: what leaves when.
    order: VecDeque<Kept>,
    order_bytes: usize,
    limits: Limits,
}

struct Collection<I> {
    name: Arc<str>,
    objects: BTreeMap<Arc<str>, Arc<Object<I>>>,
    ring: VecDeque<Arc<Event<I>>>,
    /// The newest revision that has left this ring. States from here on can be told.
    floor: u64,
    changed: Arc<Bell>,
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

/// An event that has left the ring.
pub(crate) struct Forgotten {
    pub(crate) revision: u64,
    pub(crate) kind: EventKind,
    pub(crate) previous: Option<u64>,
}

type Events<I> = Vec<Arc<Event<I>>>;

/// An event on its way in.
pub(crate) type Published<I> = (Arc<str>, Arc<Event<I>>);

impl<I> Shared<I> {
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

    /// Makes a batch visible, all of it at once, and rings for the watchers.
    pub(crate) fn publish(&self, events: Vec<Published<I>>) {
        let now = Instant::now();
        let mut touched: Vec<(Arc<Bell>, u64)> = Vec::new();
        let revision = {
            let mut state = self.lock();
            for (collection, event) in events {
                let revision = event.revision;
                let changed = state.apply(&collection, event, now);
                match touched.iter_mut().find(|(bell, _)| Arc::ptr_eq(bell, &changed)) {
                    Some((_, last)) => *last = revision,
                    None => touched.push((changed, revision)),
                }
            }
            state.revision
        };
        for (changed, last) in touched {
            changed.ring(last);
        }
        self.revision.send_replace(revision);
    }

    /// Says that everything up to `revision` is known although no event said so.
    pub(crate) fn advance(&self, revision: u64) {
        let revision = {
            let mut state = self.lock();
            state.revision = state.revision.max(revision);
            state.revision
        };
        self.revision.send_replace(revision);
    }

    /// Starts over from a fresh reading. Watchers whose place its history does not reach learn
    /// that they have missed something; the others go on.
    pub(crate) fn replace(&self, fresh: State<I>) {
        let (old, changed) = {
            let mut state = self.lock();
            let changed: Vec<_> = state.collections.iter().map(|c| c.changed.clone()).collect();
            let mut old = std::mem::replace(&mut *state, fresh);
            // The channels that watchers listen on must outlive the change.
            for collection in old.collections.drain(..) {
                let at = state.collection(&collection.name);
                state.collections[at].changed = collection.changed;
            }
            (old, changed)
        };
        drop(old);
        for bell in changed {
            bell.ring_now();
        }
        self.revision.send_replace(self.read().revision);
    }

    /// Lets old events go. Returns them, oldest first, so that the log can let them go as well.
    pub(crate) fn trim(&self) -> Vec<Forgotten> {
        let now = Instant::now();
        let mut gone = Vec::new();
        {
            let mut state = self.lock();
            while let Some(event) = state.pop_expired(now) {
                gone.push(event);
            }
        }
        // Dropped only here: freeing the objects needs no lock.
        gone.into_iter()
            .map(|event| Forgotten {
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
        after: u64,
    ) -> Result<Watcher<I>, Compacted> {
        let (name, changed, floor) = this.subscribe(collection);
        if after < floor {
            return Err(Compacted { oldest: floor });
        }
        Ok(Watcher::new(this.clone(), name, after, changed))
    }

    pub(crate) fn list_and_watch(
        this: &Arc<Self>,
        collection: &str,
        prefix: &str,
    ) -> (u64, Vec<Arc<Object<I>>>, Watcher<I>) {
        let (name, changed, _) = this.subscribe(collection);
        let state = this.read();
        let (revision, objects) = (state.revision, state.list(collection, prefix, None));
        drop(state);
        (revision, objects, Watcher::new(this.clone(), name, revision, changed))
    }

    /// The collection's wake-up channel and floor; makes the collection if it is new.
    fn subscribe(&self, collection: &str) -> (Arc<str>, watch::Receiver<u64>, u64) {
        {
            let state = self.read();
            if let Some(found) = state.find(collection) {
                return (found.name.clone(), found.changed.subscribe(), found.floor);
            }
        }
        let mut state = self.lock();
        let at = state.collection(collection);
        let found = &state.collections[at];
        (found.name.clone(), found.changed.subscribe(), found.floor)
    }

    pub(crate) fn health(&self) -> Result<(), String> {
        let trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        trouble.clone().map_or(Ok(()), Err)
    }

    /// What [`Shared::health`] says from now on.
    pub(crate) fn set_trouble(&self, trouble: Option<String>) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
    }
}

impl<I> State<I> {
    /// An empty state at `revision`, with no history before it.
    pub(crate) fn new(revision: u64, options: &Options) -> Self {
        State {
            revision,
            floor: revision,
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

    /// The same objects and history, for others to watch.
    pub(crate) fn again(&self) -> Self {
        self.copied(|collection| (collection.ring.clone(), collection.floor), self.order.clone())
    }

    /// The same objects, from before history begins.
    pub(crate) fn settled(&self) -> Self {
        let revision = self.revision;
        State { floor: revision, ..self.copied(|_| (VecDeque::new(), revision), VecDeque::new()) }
    }

    fn copied(
        &self,
        history: impl Fn(&Collection<I>) -> (VecDeque<Arc<Event<I>>>, u64),
        order: VecDeque<Kept>,
    ) -> Self {
        let copy = |collection: &Collection<I>| {
            let (ring, floor) = history(collection);
            Collection {
                name: collection.name.clone(),
                objects: collection.objects.clone(),
                ring,
                floor,
                changed: Bell::new(self.revision),
            }
        };
        State {
            revision: self.revision,
            floor: self.floor,
            collections: self.collections.iter().map(copy).collect(),
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
        self.find(collection)?.objects.get(name).cloned()
    }

    pub(crate) fn list(
        &self,
        collection: &str,
        prefix: &str,
        after: Option<&str>,
    ) -> Vec<Arc<Object<I>>> {
        let Some(found) = self.find(collection) else { return Vec::new() };
        found.range(prefix, after).map(|(_, object)| object.clone()).collect()
    }

    pub(crate) fn list_at(
        &self,
        collection: &str,
        prefix: &str,
        after: Option<&str>,
        revision: u64,
    ) -> Result<Vec<Arc<Object<I>>>, Compacted> {
        let Some(found) = self.find(collection) else {
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

    /// Up to `max` events after `cursor`, and the revision up to which they are complete.
    pub(crate) fn events_after(
        &self,
        collection: &str,
        cursor: u64,
        max: usize,
    ) -> Result<(Events<I>, u64), Compacted> {
        let Some(found) = self.find(collection) else { return Ok((Vec::new(), self.revision)) };
        reaches(found.floor, cursor)?;
        let first = found.first_after(cursor);
        let last = first.saturating_add(max).min(found.ring.len());
        let events: Vec<_> = found.ring.range(first..last).cloned().collect();
        let complete = match events.last() {
            Some(event) if last < found.ring.len() => event.revision,
            None if last < found.ring.len() => cursor,
            Some(_) | None => self.revision,
        };
        Ok((events, complete))
    }

    pub(crate) fn counts(&self) -> Vec<(Arc<str>, usize)> {
        self.collections.iter().map(|c| (c.name.clone(), c.objects.len())).collect()
    }

    /// Puts in an object that was there before history begins.
    pub(crate) fn load(&mut self, collection: &str, object: Arc<Object<I>>) {
        self.revision = self.revision.max(object.revision());
        let at = self.collection(collection);
        self.collections[at].objects.insert(object.shared_name().clone(), object);
    }

    /// Puts in an event; its revision must be greater than all before. Returns whom to wake.
    pub(crate) fn apply(
        &mut self,
        collection: &str,
        event: Arc<Event<I>>,
        now: Instant,
    ) -> Arc<Bell> {
        let at = self.collection(collection);
        let bytes = event.object.weight() + size_of::<Event<I>>();
        self.order.push_back(Kept { since: now, collection: at, bytes });
        self.order_bytes += bytes;
        self.revision = event.revision;
        let found = &mut self.collections[at];
        let object = &event.object;
        match event.kind {
            EventKind::Deleted => {
                found.objects.remove(object.name());
            }
            EventKind::Created => {
                found.objects.insert(object.shared_name().clone(), object.clone());
            }
            EventKind::Updated => match found.objects.get_mut(object.name()) {
                Some(slot) => *slot = object.clone(),
                None => {
                    found.objects.insert(object.shared_name().clone(), object.clone());
                }
            },
        }
        found.ring.push_back(event);
        found.changed.clone()
    }

    fn pop_expired(&mut self, now: Instant) -> Option<Arc<Event<I>>> {
        let oldest = self.order.front()?;
        let expired = now.duration_since(oldest.since) >= self.limits.age
            || self.order.len() > self.limits.events
            || self.order_bytes > self.limits.bytes;
        if !expired {
            return None;
        }
        let oldest = self.order.pop_front()?;
        self.order_bytes -= oldest.bytes;
        let collection = &mut self.collections[oldest.collection];
        let event = collection.ring.pop_front()?;
        collection.floor = event.revision;
        Some(event)
    }

    fn find(&self, collection: &str) -> Option<&Collection<I>> {
        self.by_name.get(collection).map(|at| &self.collections[*at])
    }

    /// The collection's place; makes it if it is new.
    fn collection(&mut self, name: &str) -> usize {
        if let Some(at) = self.by_name.get(name) {
            return *at;
        }
        let at = self.collections.len();
        let name: Arc<str> = name.into();
        self.by_name.insert(name.clone(), at);
        self.collections.push(Collection {
            name,
            objects: BTreeMap::new(),
            ring: VecDeque::new(),
            floor: self.floor,
            changed: Bell::new(0),
        });
        at
    }
}

impl<I> Collection<I> {
    /// Bounded on both sides, so that no name has to be looked at on the way.
    fn range<'a>(
        &'a self,
        prefix: &str,
        after: Option<&str>,
    ) -> impl Iterator<Item = (&'a Arc<str>, &'a Arc<Object<I>>)> {
        let start = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            Some(_) | None => Bound::Included(prefix),
        };
        let behind = first_behind(prefix);
        let end = behind.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        // A range that ends before it starts is a mistake to the map.
        let empty = matches!((after, &behind), (Some(after), Some(end)) if after >= end.as_str());
        let range = (!empty).then(|| self.objects.range::<str, _>((start, end)));
        range.into_iter().flatten()
    }

    /// The place in the ring of the first event after `revision`.
    fn first_after(&self, revision: u64) -> usize {
        self.ring.partition_point(|event| event.revision <= revision)
    }
}

fn reaches(floor: u64, revision: u64) -> Result<(), Compacted> {
    if revision < floor { Err(Compacted { oldest: floor }) } else { Ok(()) }
}

/// The smallest text that is greater than all that start with `prefix`; None if there is none.
fn first_behind(prefix: &str) -> Option<String> {
    let mut behind = prefix.to_owned();
    while let Some(last) = behind.pop() {
        // Surrogates are no characters: skip over them.
        if let Some(next) = (last..=char::MAX).nth(1) {
            behind.push(next);
            return Some(behind);
        }
    }
    None
}
