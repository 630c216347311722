//! Encodes objects as etcd keys and values.
//!
//!     key    prefix · collection · "//" · name        /landfall/apps/deployments//default/web
//!     value  revision_at u32 (little-endian) · the object's bytes without its revision
//!
//! The double slash ends the collection, which may contain slashes. The revision is the pair's mod_revision (plus the base,
//! `base.rs`) and is inserted when the value is read.

use std::sync::Arc;

use etcd_client::KeyValue;

use super::base::Base;
use crate::object::Identity;
use crate::{Draft, Envelope, Error, EventKind, Index, Object};

const SEPARATOR: &str = "//";
const OFFSET_LEN: usize = 4;

pub(super) fn key(prefix: &str, collection: &str, name: &str) -> String {
    format!("{prefix}{collection}{SEPARATOR}{name}")
}

/// Not an object: written only to get a new revision.
pub(super) fn tick_key(prefix: &str) -> String {
    key(prefix, "", "tick")
}

/// The base to add to etcd's revisions; written by a restore.
pub(super) fn base_key(prefix: &str) -> String {
    key(prefix, "", "base")
}

/// Exists while a restore is in progress.
pub(super) fn restoring_key(prefix: &str) -> String {
    key(prefix, "", "restoring")
}

/// Collection and name. None for our keys that are not objects.
pub(super) fn parse_key<'a>(
    prefix: &str,
    key: &'a [u8],
) -> Result<Option<(&'a str, &'a str)>, Error> {
    let parsed = std::str::from_utf8(key)
        .ok()
        .and_then(|key| key.strip_prefix(prefix)?.split_once(SEPARATOR));
    let damaged = || Error::EtcdValue {
        key: String::from_utf8_lossy(key).into_owned(),
        what: "it was not written by landfall",
    };
    let (collection, name) = parsed.ok_or_else(damaged)?;
    Ok((!collection.is_empty()).then_some((collection, name)))
}

pub(super) fn value(name: &str, draft: &Draft) -> Result<Vec<u8>, Error> {
    draft.split(name)?;
    let mut value = Vec::with_capacity(OFFSET_LEN + draft.bytes.len());
    value.extend_from_slice(&(draft.revision_at as u32).to_le_bytes());
    value.extend_from_slice(&draft.bytes);
    Ok(value)
}

/// The object that a pair holds.
pub(super) fn object<I: Index>(
    envelope: &Envelope,
    collection: &str,
    name: Arc<str>,
    pair: &KeyValue,
    base: Base,
) -> Result<Object<I>, Error> {
    let revision = base.ours(pair.mod_revision());
    let created = base.ours(pair.create_revision());
    let kind = if created == revision { EventKind::Created } else { EventKind::Updated };
    let (before, after) = split(pair.value()).ok_or_else(|| Error::EtcdValue {
        key: String::from_utf8_lossy(pair.key()).into_owned(),
        what: "its value is cut short",
    })?;
    let identity = Identity { collection, name, kind, revision, created };
    Ok(Object::new(envelope, identity, before, after))
}

fn split(value: &[u8]) -> Option<(&[u8], &[u8])> {
    let (offset, bytes) = value.split_first_chunk::<OFFSET_LEN>()?;
    bytes.split_at_checked(u32::from_le_bytes(*offset) as usize)
}
