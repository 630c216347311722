//! In which order the elements of a merged list come.
//!
//! What the patch names comes in the patch's order. What only the server has keeps its order, and
//! its place before those named elements that it stood before, as far as both can be had.

use super::{DIRECTIVE, PatchError, go_format};
use serde_json::Value;
use std::collections::HashMap;

/// Where each element stands.
pub(super) type Places = HashMap<String, usize>;

/// Orders a merged list: `wanted` is the patch's order, `live` the one the list had.
pub(super) fn arrange(
    merged: Vec<Value>,
    wanted: &Places,
    live: &Places,
    key: Option<&str>,
) -> Vec<Value> {
    let (mut named, mut server_only): (Vec<_>, Vec<_>) = merged
        .into_iter()
        .map(|value| (identity(&value, key), value))
        .partition(|(identity, _)| wanted.contains_key(identity));
    named.sort_by_key(|(identity, _)| wanted.get(identity).copied());
    server_only.sort_by_key(|(identity, _)| live.get(identity).copied().unwrap_or(usize::MAX));

    let mut arranged = Vec::with_capacity(named.len() + server_only.len());
    let mut named = named.into_iter().peekable();
    let mut server_only = server_only.into_iter().peekable();
    loop {
        let server_first = match (server_only.peek(), named.peek()) {
            (None, None) => return arranged,
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (Some((left, _)), Some((right, _))) => {
                matches!((live.get(left), live.get(right)), (Some(l), Some(r)) if l < r)
            }
        };
        let next = if server_first { server_only.next() } else { named.next() };
        arranged.extend(next.map(|(_, value)| value));
    }
}

/// The elements of a patch must come in the order the same patch prescribes.
pub(super) fn check(patch: &[Value], order: &[Value], key: Option<&str>) -> Result<(), PatchError> {
    let mut rest = order.iter();
    let kept = patch.iter().filter(|element| element.get(DIRECTIVE).is_none());
    for element in kept {
        let wanted = identity(element, key);
        if !rest.any(|element| identity(element, key) == wanted) {
            let show = |list: &[Value]| go_format(&Value::Array(list.to_vec()));
            return Err(PatchError::Unmergeable(format!(
                "The order in patch list:\n{}\n doesn't match $setElementOrder list:\n{}\n",
                show(patch),
                show(order),
            )));
        }
    }
    Ok(())
}

pub(super) fn places(list: &[Value], key: Option<&str>) -> Places {
    let places = list.iter().enumerate().rev();
    places.map(|(place, value)| (identity(value, key), place)).collect()
}

/// What tells an element from the others.
fn identity(value: &Value, key: Option<&str>) -> String {
    match key {
        Some(key) => value.get(key).unwrap_or(&Value::Null).to_string(),
        None => value.to_string(),
    }
}
