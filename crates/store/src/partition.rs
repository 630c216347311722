//! A collection, or one partition of it: objects, recent events, and the wakeups of its watchers.
//!
//! Not here: which events belong to which partition, and when they are dropped (`state`).

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Bound;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::wakeups::WatcherWakeups;
use crate::{Compacted, Event, Object};

pub(crate) type Events<I> = Vec<Arc<Event<I>>>;

pub(crate) struct Partition<I> {
    pub(crate) objects: BTreeMap<Arc<str>, Arc<Object<I>>>,
    pub(crate) ring: VecDeque<Arc<Event<I>>>,
    /// The newest revision that may have been dropped from this ring. Later states are known.
    pub(crate) floor: u64,
    pub(crate) changed: Arc<WatcherWakeups>,
    /// The number of watchers of a partition, which is kept for them even if it is empty. Not counted for collections.
    pub(crate) watchers: usize,
    /// Lists that are still in use, by prefix, so that other readers can share them. Any change invalidates them.
    lists: Mutex<Lists<I>>,
}

type Lists<I> = HashMap<String, Weak<Vec<Arc<Object<I>>>>>;

/// A list that several readers share.
pub type SharedList<I> = Arc<Vec<Arc<Object<I>>>>;

/// How many lists of different prefixes are shared.
const LISTS_MAX: usize = 64;

impl<I> Partition<I> {
    pub(crate) fn new(floor: u64) -> Self {
        Partition {
            objects: BTreeMap::new(),
            ring: VecDeque::new(),
            floor,
            changed: WatcherWakeups::new(0),
            watchers: 0,
            lists: Mutex::default(),
        }
    }

    /// The objects whose name starts with `prefix`. Callers share one list until the next change.
    pub(crate) fn snapshot(&self, prefix: &str) -> SharedList<I> {
        let mut lists = self.lists.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(list) = lists.get(prefix).and_then(Weak::upgrade) {
            return list;
        }
        let list = self.range(prefix, None).map(|(_, object)| object.clone()).collect();
        let list: SharedList<I> = Arc::new(list);
        if lists.len() >= LISTS_MAX {
            lists.retain(|_, list| list.strong_count() > 0);
        }
        if lists.len() < LISTS_MAX {
            lists.insert(prefix.to_owned(), Arc::downgrade(&list));
        }
        list
    }

    fn invalidate_lists(&mut self) {
        let lists = self.lists.get_mut().unwrap_or_else(PoisonError::into_inner);
        if !lists.is_empty() {
            lists.clear();
        }
    }

    pub(crate) fn remove(&mut self, name: &str) {
        self.invalidate_lists();
        self.objects.remove(name);
    }

    /// A copy with the same objects and this history, without watchers.
    pub(crate) fn copied(&self, history: (VecDeque<Arc<Event<I>>>, u64), revision: u64) -> Self {
        let (ring, floor) = history;
        let (objects, changed) = (self.objects.clone(), WatcherWakeups::new(revision));
        Partition { objects, ring, floor, changed, watchers: 0, lists: Mutex::default() }
    }

    /// Whether it can be removed.
    pub(crate) fn is_idle(&self) -> bool {
        self.objects.is_empty() && self.ring.is_empty() && self.watchers == 0
    }

    pub(crate) fn put(&mut self, object: &Arc<Object<I>>) {
        self.invalidate_lists();
        match self.objects.get_mut(object.name()) {
            Some(slot) => *slot = object.clone(),
            None => drop(self.objects.insert(object.shared_name().clone(), object.clone())),
        }
    }

    /// The objects in the range. Both ends are bounds of the map, so no name has to be compared.
    pub(crate) fn range<'a>(
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
        // The map panics for a range that ends before it starts.
        let empty = matches!((after, &behind), (Some(after), Some(end)) if after >= end.as_str());
        let range = (!empty).then(|| self.objects.range::<str, _>((start, end)));
        range.into_iter().flatten()
    }

    /// The index in the ring of the first event after `revision`.
    pub(crate) fn first_after(&self, revision: u64) -> usize {
        self.ring.partition_point(|event| event.revision <= revision)
    }

    /// Events after `cursor` within `bounds`, at least one if there is one, and the revision up to which
    /// they are complete, if that is not the store's.
    pub(crate) fn events_after(
        &self,
        cursor: u64,
        bounds: Bounds,
    ) -> Result<(Events<I>, Option<u64>), Compacted> {
        reaches(self.floor, cursor)?;
        let first = self.first_after(cursor);
        let last = first.saturating_add(bounds.events).min(self.ring.len());
        let mut bytes = 0;
        let fits = |event: &&Arc<Event<I>>| {
            let before = bytes;
            bytes += event.object.frame_len();
            before < bounds.bytes
        };
        let events: Events<I> = self.ring.range(first..last).take_while(fits).cloned().collect();
        let more = first + events.len() < self.ring.len();
        let complete = more.then(|| events.last().map_or(cursor, |event| event.revision));
        Ok((events, complete))
    }
}

/// How much a reader gets at a time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) events: usize,
    /// No more events are added beyond this many bytes.
    pub(crate) bytes: usize,
}

pub(crate) fn reaches(floor: u64, revision: u64) -> Result<(), Compacted> {
    if revision < floor { Err(Compacted { oldest: floor }) } else { Ok(()) }
}

/// The smallest string that is greater than all with this prefix; None if there is none.
fn first_behind(prefix: &str) -> Option<String> {
    let mut behind = prefix.to_owned();
    while let Some(last) = behind.pop() {
        // `char` skips the surrogates.
        if let Some(next) = (last..=char::MAX).nth(1) {
            behind.push(next);
            return Some(behind);
        }
    }
    None
}
