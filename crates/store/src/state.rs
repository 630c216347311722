//! Everything that reads are answered from: all current objects, and a ring of recent events per
//! collection.
//!
//! An object may have a topic ([`Index::topic`]). Then it and its events are kept under that as well:
//! who wants one topic neither looks through the others nor is woken for them.
//!
//! One lock over all of it: a batch is published as a whole, so a list is a snapshot at the store's
//! revision without further thought. Objects are laid out and indexed before the lock is taken; no
//! one waits for anything while holding it.
//!
//! Not here: who may change it and when (`embedded`, `etcd`).

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::bell::Bell;
use crate::part::{Events, Part, reaches};
use crate::{Compacted, Event, EventKind, Index, Object, Options, Watcher};

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
    whole: Part<I>,
    /// What of it has a topic, by topic.
    topics: HashMap<Arc<str>, Part<I>>,
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

/// An event on its way in.
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

    /// Makes a batch visible, all of it at once, and rings for the watchers.
    pub(crate) fn publish(&self, events: Vec<Published<I>>) {
        let now = Instant::now();
        let mut touched: Vec<(Arc<Bell>, u64)> = Vec::new();
        let revision = {
            let mut state = self.lock();
            for (collection, event) in events {
                let revision = event.revision;
                for changed in state.apply(&collection, event, now) {
                    match touched.iter_mut().find(|(bell, _)| Arc::ptr_eq(bell, &changed)) {
                        Some((_, last)) => *last = revision,
                        None => touched.push((changed, revision)),
                    }
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
            let mut old = std::mem::replace(&mut *state, fresh);
            let mut changed = Vec::new();
            // The channels that watchers listen on must outlive the change.
            for old in &mut old.collections {
                let at = state.collection(&old.name);
                changed.extend(state.collections[at].go_on_from(old));
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
        topic: Option<&str>,
        after: u64,
    ) -> Result<Watcher<I>, Compacted> {
        let (watcher, floor) = Shared::subscribe(this, collection, topic, after);
        if after < floor {
            return Err(Compacted { oldest: floor });
        }
        Ok(watcher)
    }

    pub(crate) fn list_and_watch(
        this: &Arc<Self>,
        collection: &str,
        topic: Option<&str>,
        prefix: &str,
    ) -> (u64, Vec<Arc<Object<I>>>, Watcher<I>) {
        let (mut watcher, _) = Shared::subscribe(this, collection, topic, 0);
        let state = this.read();
        let (revision, objects) = (state.revision, state.list(collection, topic, prefix, None));
        drop(state);
        watcher.begin_at(revision);
        (revision, objects, watcher)
    }

    /// A watcher and the floor of what it watches; makes the collection and the topic if they are new.
    fn subscribe(
        this: &Arc<Self>,
        collection: &str,
        topic: Option<&str>,
        after: u64,
    ) -> (Watcher<I>, u64) {
        let watcher = |name: &Arc<str>, topic: Option<Arc<str>>, part: &Part<I>| {
            let places = part.changed.subscribe();
            (Watcher::new(this.clone(), (name.clone(), topic), after, places), part.floor)
        };
        if topic.is_none()
            && let Some(found) = this.read().find(collection)
        {
            return watcher(&found.name, None, &found.whole);
        }
        let mut state = this.lock();
        let at = state.collection(collection);
        let found = &mut state.collections[at];
        let Some(topic) = topic else { return watcher(&found.name, None, &found.whole) };
        let topic: Arc<str> = topic.into();
        let name = found.name.clone();
        let part = found.topic(&topic);
        part.watchers += 1;
        watcher(&name, Some(topic), part)
    }

    /// Somebody who watched a topic does so no longer.
    pub(crate) fn leave(&self, collection: &str, topic: &str) {
        let mut state = self.lock();
        let Some(at) = state.by_name.get(collection).copied() else { return };
        let found = &mut state.collections[at];
        if let Some(part) = found.topics.get_mut(topic) {
            part.watchers = part.watchers.saturating_sub(1);
        }
        found.forget_if_idle(topic);
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

impl<I: Index> State<I> {
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
        self.copied(|part| (part.ring.clone(), part.floor), self.order.clone())
    }

    /// The same objects, from before history begins.
    pub(crate) fn settled(&self) -> Self {
        let revision = self.revision;
        State { floor: revision, ..self.copied(|_| (VecDeque::new(), revision), VecDeque::new()) }
    }

    fn copied(
        &self,
        history: impl Fn(&Part<I>) -> (VecDeque<Arc<Event<I>>>, u64),
        order: VecDeque<Kept>,
    ) -> Self {
        let copy = |part: &Part<I>| part.copied(history(part), self.revision);
        let copied = |collection: &Collection<I>| {
            let topics = collection.topics.iter().map(|(topic, part)| (topic.clone(), copy(part)));
            let topics = topics.filter(|(_, part)| !part.is_idle()).collect();
            Collection { name: collection.name.clone(), whole: copy(&collection.whole), topics }
        };
        State {
            revision: self.revision,
            floor: self.floor,
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
        topic: Option<&str>,
        prefix: &str,
        after: Option<&str>,
    ) -> Vec<Arc<Object<I>>> {
        let found = self.find(collection).and_then(|found| found.part(topic));
        let range = found.into_iter().flat_map(|part| part.range(prefix, after));
        range.map(|(_, object)| object.clone()).collect()
    }

    pub(crate) fn list_at(
        &self,
        collection: &str,
        prefix: &str,
        after: Option<&str>,
        revision: u64,
    ) -> Result<Vec<Arc<Object<I>>>, Compacted> {
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

    /// Up to `max` events after `cursor`, and the revision up to which they are complete.
    pub(crate) fn events_after(
        &self,
        collection: &str,
        topic: Option<&str>,
        cursor: u64,
        max: usize,
    ) -> Result<(Events<I>, u64), Compacted> {
        let Some(found) = self.find(collection).and_then(|found| found.part(topic)) else {
            return Ok((Vec::new(), self.revision));
        };
        let (events, complete) = found.events_after(cursor, max)?;
        Ok((events, complete.unwrap_or(self.revision)))
    }

    pub(crate) fn counts(&self) -> Vec<(Arc<str>, usize)> {
        self.collections.iter().map(|c| (c.name.clone(), c.whole.objects.len())).collect()
    }

    /// Puts in an object that was there before history begins.
    pub(crate) fn load(&mut self, collection: &str, object: Arc<Object<I>>) {
        self.revision = self.revision.max(object.revision());
        let at = self.collection(collection);
        self.collections[at].load(&object);
    }

    /// Puts in an event; its revision must be greater than all before. Returns whom to wake.
    pub(crate) fn apply(
        &mut self,
        collection: &str,
        event: Arc<Event<I>>,
        now: Instant,
    ) -> impl Iterator<Item = Arc<Bell>> + use<I> {
        let at = self.collection(collection);
        let bytes = event.object.weight() + size_of::<Event<I>>();
        self.order.push_back(Kept { since: now, collection: at, bytes });
        self.order_bytes += bytes;
        self.revision = event.revision;
        self.collections[at].apply(event)
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
        self.collections[oldest.collection].forget()
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
            whole: Part::new(self.floor),
            topics: HashMap::new(),
        });
        at
    }
}

impl<I: Index> Collection<I> {
    /// All of it, or what has the topic.
    fn part(&self, topic: Option<&str>) -> Option<&Part<I>> {
        match topic {
            None => Some(&self.whole),
            Some(topic) => self.topics.get(topic),
        }
    }

    /// Made if it is new. What it may have been before is as old as all that is forgotten.
    fn topic(&mut self, topic: &Arc<str>) -> &mut Part<I> {
        let floor = self.whole.floor;
        self.topics.entry(topic.clone()).or_insert_with(|| Part::new(floor))
    }

    fn load(&mut self, object: &Arc<Object<I>>) {
        self.whole.put(object);
        if let Some(topic) = object.index().topic() {
            self.topic(topic).put(object);
        }
    }

    /// Whom to wake: who watch everything, and who watch where the object was or is.
    fn apply(&mut self, event: Arc<Event<I>>) -> impl Iterator<Item = Arc<Bell>> + use<I> {
        let object = &event.object;
        let stays = event.kind != EventKind::Deleted;
        let bells = topics(&event).map(|topic| {
            let part = self.topic(topic?);
            match stays && object.index().topic() == Some(topic?) {
                true => part.put(object),
                false => drop(part.objects.remove(object.name())),
            }
            part.ring.push_back(event.clone());
            Some(part.changed.clone())
        });
        match stays {
            true => self.whole.put(object),
            false => drop(self.whole.objects.remove(object.name())),
        }
        self.whole.ring.push_back(event);
        std::iter::once(self.whole.changed.clone()).chain(bells.into_iter().flatten())
    }

    /// The oldest event leaves.
    fn forget(&mut self) -> Option<Arc<Event<I>>> {
        let event = self.whole.ring.pop_front()?;
        self.whole.floor = event.revision;
        for topic in topics(&event).into_iter().flatten() {
            if let Some(part) = self.topics.get_mut(topic) {
                // They leave in the order in which they came, so it is the first here too.
                part.ring.pop_front();
                part.floor = event.revision;
            }
            self.forget_if_idle(topic);
        }
        Some(event)
    }

    fn forget_if_idle(&mut self, topic: &str) {
        if self.topics.get(topic).is_some_and(Part::is_idle) {
            self.topics.remove(topic);
        }
    }

    /// Those who watched `old` watch this. All of them have to look.
    fn go_on_from(&mut self, old: &mut Collection<I>) -> Vec<Arc<Bell>> {
        self.whole.changed = old.whole.changed.clone();
        let mut bells = vec![self.whole.changed.clone()];
        for (topic, old) in old.topics.iter().filter(|(_, part)| part.watchers > 0) {
            let part = self.topic(topic);
            (part.changed, part.watchers) = (old.changed.clone(), old.watchers);
            bells.push(part.changed.clone());
        }
        bells
    }
}

/// Where the object is and, if that is somewhere else, where it was.
fn topics<I: Index>(event: &Event<I>) -> [Option<&Arc<str>>; 2] {
    let is = event.object.index().topic();
    let was = event.previous.as_ref().and_then(|previous| previous.index().topic());
    [is, was.filter(|was| Some(*was) != is)]
}
