//! A collection, or the part of it that has one topic: its objects, its recent events and whom to wake.
//!
//! Not here: which events belong to which part, and when they are forgotten (`state`).

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use crate::bell::Bell;
use crate::{Compacted, Event, Object};

pub(crate) type Events<I> = Vec<Arc<Event<I>>>;

pub(crate) struct Part<I> {
    pub(crate) objects: BTreeMap<Arc<str>, Arc<Object<I>>>,
    pub(crate) ring: VecDeque<Arc<Event<I>>>,
    /// The newest revision that may have left this ring. States from here on can be told.
    pub(crate) floor: u64,
    pub(crate) changed: Arc<Bell>,
    /// Who watch, if that is counted: a topic is kept for them although there is nothing in it.
    pub(crate) watchers: usize,
}

impl<I> Part<I> {
    pub(crate) fn new(floor: u64) -> Self {
        Part {
            objects: BTreeMap::new(),
            ring: VecDeque::new(),
            floor,
            changed: Bell::new(0),
            watchers: 0,
        }
    }

    /// The same objects, with this history, for others to watch.
    pub(crate) fn copied(&self, history: (VecDeque<Arc<Event<I>>>, u64), revision: u64) -> Self {
        let (ring, floor) = history;
        let (objects, changed) = (self.objects.clone(), Bell::new(revision));
        Part { objects, ring, floor, changed, watchers: 0 }
    }

    /// Nobody would miss it.
    pub(crate) fn is_idle(&self) -> bool {
        self.objects.is_empty() && self.ring.is_empty() && self.watchers == 0
    }

    pub(crate) fn put(&mut self, object: &Arc<Object<I>>) {
        match self.objects.get_mut(object.name()) {
            Some(slot) => *slot = object.clone(),
            None => drop(self.objects.insert(object.shared_name().clone(), object.clone())),
        }
    }

    /// Bounded on both sides, so that no name has to be looked at on the way.
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
        // A range that ends before it starts is a mistake to the map.
        let empty = matches!((after, &behind), (Some(after), Some(end)) if after >= end.as_str());
        let range = (!empty).then(|| self.objects.range::<str, _>((start, end)));
        range.into_iter().flatten()
    }

    /// The place in the ring of the first event after `revision`.
    pub(crate) fn first_after(&self, revision: u64) -> usize {
        self.ring.partition_point(|event| event.revision <= revision)
    }

    /// Up to `max` events after `cursor`, and the revision up to which they are complete, if that is
    /// not the store's.
    pub(crate) fn events_after(
        &self,
        cursor: u64,
        max: usize,
    ) -> Result<(Events<I>, Option<u64>), Compacted> {
        reaches(self.floor, cursor)?;
        let first = self.first_after(cursor);
        let last = first.saturating_add(max).min(self.ring.len());
        let events: Events<I> = self.ring.range(first..last).cloned().collect();
        let more = last < self.ring.len();
        let complete = more.then(|| events.last().map_or(cursor, |event| event.revision));
        Ok((events, complete))
    }
}

pub(crate) fn reaches(floor: u64, revision: u64) -> Result<(), Compacted> {
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
