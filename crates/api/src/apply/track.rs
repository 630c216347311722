//! Ownership on ordinary writes: create, update and every patch but apply.
//!
//! After a write, its manager is the only owner of the fields that it changed; fields that it removed
//! have no owner. This runs on every write, so it reads the two objects once and touches only the
//! differences.

use super::managers::{self, Entry, Managers, Operation};
use super::walk::{self, Walk};
use super::{FieldSet, Manager};
use crate::schema::{Schema, TypeId};
use serde_json::{Map, Value};

/// Updates `metadata.managedFields` of `new`. `old` is the stored object, `None` on create; `reset`
/// are the fields that this endpoint ignores; a write through it never gives them an owner.
///
/// Call it with both objects decoded and defaulted, before admission changes the new one.
pub fn track_update(
    schema: &Schema,
    ty: TypeId,
    old: Option<&Value>,
    new: &mut Value,
    who: &Manager,
    reset: &FieldSet,
) {
    let sent = managers::remove_from(new).filter(|sent| !sent.is_null());
    let stored = old.and_then(|old| old.get("metadata")?.get("managedFields"));
    let claimed = claimed(sent, stored, old, who);
    if claimed.as_ref().is_none_or(Managers::is_empty) && old.is_some() {
        return; // Not tracked so far. Only a first apply starts tracking.
    }
    let mut managers = claimed.unwrap_or_default();

    let walk = Walk::new(schema, ty);
    if let Some(old) = old {
        walk.reconcile(&mut managers, old);
    }
    let mut difference = walk.compare(old, new);
    if !reset.is_empty() {
        difference.changed.subtract_below(reset);
        difference.removed.subtract_below(reset);
    }
    managers.subtract(&difference.removed);
    managers.subtract(&difference.changed);
    let mut fields = difference.changed;
    walk::strip(&mut fields);
    if !fields.is_empty() {
        managers.add(Entry {
            manager: who.name.into(),
            operation: Operation::Update,
            api_version: who.api_version.into(),
            subresource: who.subresource.into(),
            time: Some(who.now.into()),
            fields,
        });
    }
    managers::write_into(new, managers);
}

/// The managers to start from: those in the request, if it may send any and does; else the stored
/// ones. `None` if the request reset tracking.
fn claimed(
    sent: Option<Value>,
    stored: Option<&Value>,
    old: Option<&Value>,
    who: &Manager,
) -> Option<Managers> {
    let from_old = || old.map(Managers::stored).unwrap_or_default();
    let Some(sent) = sent.filter(|_| who.subresource.is_empty()) else {
        return Some(from_old());
    };
    if Some(&sent) == stored {
        return Some(from_old());
    }
    if is_reset(&sent) {
        return None;
    }
    match Managers::parse(&sent) {
        Some(managers) if !managers.is_empty() => Some(managers),
        _ => Some(from_old()),
    }
}

/// `[]` or `[{}]`.
fn is_reset(sent: &Value) -> bool {
    match sent.as_array().map(Vec::as_slice) {
        Some([]) => true,
        Some([entry]) => entry.as_object().is_some_and(Map::is_empty),
        _ => false,
    }
}

/// If only the times in `managedFields` differ, restores the old times, so that a write without effect
/// does not change the object. Call it last, on the object as it would be stored.
pub fn settle(old: &Value, new: &mut Value) {
    let (Some(was), Some(is)) = (old.as_object(), new.as_object()) else { return };
    if !same_but_for(was, is, &["metadata"]) {
        return;
    }
    let metadata = |object: &'_ Value| object.get("metadata").and_then(Value::as_object).cloned();
    let (Some(was), Some(is)) = (metadata(old), metadata(new)) else { return };
    if let Some(managed_fields) = was.get("managedFields")
        && same_but_for(&was, &is, &["managedFields", "resourceVersion", "generation"])
        && Managers::stored(old).without_times() == Managers::stored(new).without_times()
    {
        managers::write_json_into(new, managed_fields.clone());
    }
}

fn same_but_for(a: &Map<String, Value>, b: &Map<String, Value>, ignored: &[&str]) -> bool {
    let kept = |(name, _): &(&String, &Value)| !ignored.contains(&name.as_str());
    a.iter().filter(kept).eq(b.iter().filter(kept))
}
