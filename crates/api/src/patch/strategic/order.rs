//! The order of elements in a merged list.
//!
//! Elements in the patch come in the patch's order. Elements that only the live list has keep their order,
//! and stay before those elements of the patch that they preceded, as far as both are possible.

use super::{DIRECTIVE, PatchError, go_format};
use serde_json::Value;
use std::collections::HashMap;

/// The position of each element.
pub(super) type Places = HashMap<String, usize>;

/// Orders a merged list: `requested` is the patch's order, `live` the order of the live list.
pub(super) fn arrange(
    merged: Vec<Value>,
    requested: &Places,
    live: &Places,
    key: Option<&str>,
) -> Vec<Value> {
    let (mut named, mut server_only): (Vec<_>, Vec<_>) = merged
        .into_iter()
        .map(|value| (identity(&value, key), value))
        .partition(|(identity, _)| requested.contains_key(identity));
    named.sort_by_key(|(identity, _)| requested.get(identity).copied());
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

/// The elements of a patch must be in the order that its directive sets.
pub(super) fn check(patch: &[Value], order: &[Value], key: Option<&str>) -> Result<(), PatchError> {
    let mut rest = order.iter();
    let kept = patch.iter().filter(|element| element.get(DIRECTIVE).is_none());
    for element in kept {
        let expected = identity(element, key);
        if !rest.any(|element| identity(element, key) == expected) {
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

/// The key of an element, or its value if there is no key.
fn identity(value: &Value, key: Option<&str>) -> String {
    match key {
        Some(key) => value.get(key).unwrap_or(&Value::Null).to_string(),
        None => value.to_string(),
    }
}
