//! Decides a batch of writes: preconditions, revisions, and the resulting events.
//!
//! Not here: how the events become durable (`embedded`, `memory`).

use std::collections::HashMap;
use std::sync::Arc;

use crate::object::Identity;
use crate::state::{Published, Shared};
use crate::{Change, Error, Event, EventKind, Expect, Index, Object, Options, Write, WriteError};

/// The log stores the lengths of names and collections in 16 bits.
pub(crate) const NAME_BYTES_MAX: usize = u16::MAX as usize;

pub(crate) type WriteResult<I> = Result<Arc<Object<I>>, WriteError<I>>;
/// Collection and name.
type Key = (Arc<str>, Arc<str>);

/// A batch in progress: later writes see the changes of earlier ones.
pub(crate) struct Batch<'a, I> {
    state: &'a Shared<I>,
    options: &'a Options,
    revision: u64,
    changed: HashMap<Key, Option<Arc<Object<I>>>>,
    events: Vec<Published<I>>,
    /// Set if only deletions are accepted, with the reason.
    full: Option<Error>,
}

/// An update of an object that is being deleted may add this many bytes, such as a time or a condition.
const LEAVING_GROWTH_MAX: usize = 4096;

/// Whether the write frees space or leads to that. Such a write is accepted even on a full disk.
pub(crate) fn removes<I: Index>(event: &Event<I>) -> bool {
    let before = event.previous.as_ref().map_or(0, |object| object.as_slice().len());
    let bytes = event.object.as_slice();
    event.kind == EventKind::Deleted
        || bytes.len() <= before + LEAVING_GROWTH_MAX && I::is_leaving(bytes)
}

impl<'a, I: Index> Batch<'a, I> {
    pub(crate) fn new(state: &'a Shared<I>, options: &'a Options, writes: usize) -> Self {
        Batch {
            state,
            options,
            revision: state.read().revision(),
            changed: HashMap::new(),
            events: Vec::with_capacity(writes),
            full: None,
        }
    }

    /// Accepts only deletions from now on, if there is a reason.
    pub(crate) fn restrict(&mut self, full: Option<Error>) {
        self.full = full;
    }

    /// The events to make durable and publish.
    pub(crate) fn into_events(self) -> Vec<Published<I>> {
        self.events
    }

    pub(crate) fn decide(&mut self, write: Write) -> WriteResult<I> {
        let Write { collection, name, expect, change } = write;
        if collection.len().max(name.len()) > NAME_BYTES_MAX {
            return Err(Error::Refused { name, what: "its name is too long" }.into());
        }
        let key = (collection, Arc::<str>::from(name));
        let current = match self.changed.get(&key) {
            Some(changed) => changed.clone(),
            None => self.state.read().get(&key.0, &key.1),
        };
        let met = match (expect, &current) {
            (Expect::Absent, None) => true,
            (Expect::Revision(expected), Some(object)) => object.revision() == expected,
            (Expect::Absent, Some(_)) | (Expect::Revision(_), None) => false,
        };
        if !met {
            return Err(WriteError::Conflict { current });
        }
        let event = self.event(&key, current, change)?;
        if let Some(full) = self.full.as_ref().filter(|_| !removes(&event)) {
            return Err(full.clone().into());
        }
        let object = event.object.clone();
        self.revision = event.revision;
        let left = (event.kind != EventKind::Deleted).then(|| object.clone());
        self.events.push((key.0.clone(), Arc::new(event)));
        self.changed.insert(key, left);
        Ok(object)
    }

    fn event(
        &self,
        (collection, name): &Key,
        previous: Option<Arc<Object<I>>>,
        change: Change,
    ) -> Result<Event<I>, WriteError<I>> {
        let envelope = &self.options.envelope;
        let revision = self.revision + 1;
        let (kind, object) = match (change, &previous) {
            (Change::Put(draft), previous) => {
                let (before, after) = draft.split(name)?;
                let (kind, created, name) = match previous {
                    Some(object) => {
                        (EventKind::Updated, object.created(), object.shared_name().clone())
                    }
                    None => (EventKind::Created, revision, name.clone()),
                };
                let identity = Identity { collection, name, kind, revision, created };
                (kind, Object::new(envelope, identity, before, after))
            }
            (Change::Delete, Some(object)) => {
                (EventKind::Deleted, object.deleted(envelope, collection, revision))
            }
            (Change::Delete, None) => return Err(WriteError::Conflict { current: None }),
        };
        Ok(Event { revision, kind, object: Arc::new(object), previous })
    }
}
