//! Objects and events in memory: encoded once, and only sliced after that.
//!
//! An object is one allocation, `prefix + bytes + end`: a GET returns the middle, a watch sends the whole. Nothing is
//! encoded again per reader.

use std::sync::Arc;

use bytes::Bytes;

use crate::Error;

/// What readers need to know about an object without parsing it again. The server defines it.
pub trait Index: Send + Sync + Sized + 'static {
    /// `bytes` include the revision.
    fn read(collection: &str, name: &str, bytes: &[u8]) -> Self;

    /// The partition that the object belongs to, if any. The cost of listing and watching a partition depends only on its
    /// own objects.
    fn partition_key(&self) -> Option<&Arc<str>> {
        None
    }

    /// Whether the object is being deleted. Its updates lead to its removal, so they are accepted when the disk is full, as
    /// deletions are.
    fn is_leaving(_bytes: &[u8]) -> bool {
        false
    }
}

/// For callers that need no index.
impl Index for () {
    fn read(_collection: &str, _name: &str, _bytes: &[u8]) -> Self {}
}

/// An encoded object without its revision. The decimal revision is inserted at `revision_at` when it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Draft {
    pub bytes: Vec<u8>,
    pub revision_at: usize,
}

/// The text around an object's bytes in a watch event.
#[derive(Debug, Clone, Copy)]
pub struct Envelope {
    pub created: &'static [u8],
    pub updated: &'static [u8],
    pub deleted: &'static [u8],
    pub end: &'static [u8],
}

impl Envelope {
    fn prefix(&self, kind: EventKind) -> &'static [u8] {
        match kind {
            EventKind::Created => self.created,
            EventKind::Updated => self.updated,
            EventKind::Deleted => self.deleted,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    Created,
    Updated,
    Deleted,
}

/// One version of one object. Immutable.
pub struct Object<I> {
    name: Arc<str>,
    revision: u64,
    created: u64,
    frame: Bytes,
    /// Where the object's bytes start and end in `frame`, and the position of the revision in them.
    start: u32,
    end: u32,
    revision_at: u32,
    revision_len: u8,
    kind: EventKind,
    index: I,
}

/// What happened to an object, in revision order.
pub struct Event<I> {
    pub revision: u64,
    pub kind: EventKind,
    /// For [`EventKind::Deleted`]: the last state, with the revision of the deletion.
    pub object: Arc<Object<I>>,
    /// The state before, for readers whose selector may have matched it.
    pub previous: Option<Arc<Object<I>>>,
}

/// The largest object. The server's limit is lower; this one keeps the offsets in range.
pub(crate) const MAX_OBJECT_BYTES: usize = 64 << 20;

/// The properties of an object besides its bytes.
pub(crate) struct Identity<'a> {
    pub(crate) collection: &'a str,
    pub(crate) name: Arc<str>,
    pub(crate) kind: EventKind,
    pub(crate) revision: u64,
    pub(crate) created: u64,
}

impl<I: Index> Object<I> {
    /// `before` and `after` are the bytes on both sides of the revision.
    pub(crate) fn new(
        envelope: &Envelope,
        identity: Identity<'_>,
        before: &[u8],
        after: &[u8],
    ) -> Self {
        let Identity { collection, name, kind, revision, created } = identity;
        let prefix = envelope.prefix(kind);
        let digits = revision.to_string();
        let start = prefix.len();
        let end = start + before.len() + digits.len() + after.len();
        let mut frame = Vec::with_capacity(end + envelope.end.len());
        for part in [prefix, before, digits.as_bytes(), after, envelope.end] {
            frame.extend_from_slice(part);
        }
        let index = I::read(collection, &name, &frame[start..end]);
        Object {
            name,
            revision,
            created,
            frame: Bytes::from(frame),
            start: start as u32,
            end: end as u32,
            revision_at: before.len() as u32,
            revision_len: digits.len() as u8,
            kind,
            index,
        }
    }

    /// The same state, as the deletion event at `revision`.
    pub(crate) fn deleted(&self, envelope: &Envelope, collection: &str, revision: u64) -> Self {
        let (before, after) = self.around_revision();
        let identity = Identity {
            collection,
            name: self.name.clone(),
            kind: EventKind::Deleted,
            revision,
            created: self.created,
        };
        Object::new(envelope, identity, before, after)
    }
}

impl<I> Object<I> {
    /// `namespace/name`, or just `name`.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn shared_name(&self) -> &Arc<str> {
        &self.name
    }

    /// The revision of the write that made this version.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// The revision of the write that created the object.
    pub fn created(&self) -> u64 {
        self.created
    }

    /// The kind of event that created this version, and so the prefix of its frame.
    pub fn kind(&self) -> EventKind {
        self.kind
    }

    /// The object, including its revision. Shares memory with the frame.
    pub fn bytes(&self) -> Bytes {
        self.frame.slice(self.start as usize..self.end as usize)
    }

    /// The same, borrowed.
    pub fn as_slice(&self) -> &[u8] {
        &self.frame[self.start as usize..self.end as usize]
    }

    /// The line that is sent to watchers.
    pub fn frame(&self) -> Bytes {
        self.frame.clone()
    }

    pub(crate) fn frame_len(&self) -> usize {
        self.frame.len()
    }

    pub fn index(&self) -> &I {
        &self.index
    }

    /// The object's bytes without its revision, to be written again.
    pub fn draft(&self) -> Draft {
        let (before, after) = self.around_revision();
        Draft { bytes: [before, after].concat(), revision_at: before.len() }
    }

    /// The object's bytes on both sides of the revision.
    pub(crate) fn around_revision(&self) -> (&[u8], &[u8]) {
        let bytes = self.as_slice();
        let at = self.revision_at as usize;
        (&bytes[..at], &bytes[at + usize::from(self.revision_len)..])
    }

    /// The memory that this version uses.
    pub(crate) fn weight(&self) -> usize {
        size_of::<Self>() + self.frame.len() + self.name.len()
    }
}

impl<I> std::fmt::Debug for Object<I> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Object")
            .field("name", &self.name)
            .field("revision", &self.revision)
            .field("bytes", &String::from_utf8_lossy(self.as_slice()))
            .finish()
    }
}

impl<I> std::fmt::Debug for Event<I> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Event")
            .field("kind", &self.kind)
            .field("object", &self.object)
            .field("previous", &self.previous.as_ref().map(|object| object.revision))
            .finish()
    }
}

impl Draft {
    /// The bytes on both sides of where the revision belongs.
    pub(crate) fn split(&self, name: &str) -> Result<(&[u8], &[u8]), Error> {
        let refused = |what| Error::Refused { name: name.to_owned(), what };
        if self.bytes.len() > MAX_OBJECT_BYTES {
            return Err(refused("it is too large"));
        }
        self.bytes
            .split_at_checked(self.revision_at)
            .ok_or_else(|| refused("the position of its revision is outside its bytes"))
    }
}
