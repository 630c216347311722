//! Strategic merge patch: a merge patch that also merges lists, by key or as sets.
//!
//! [`Merge`] walks patch and object together. Maps merge by key, lists by the [`PatchRule`] of their
//! field; directives (keys that begin with `$`) override this. `order.rs` orders merged lists.

mod order;
#[cfg(test)]
mod tests;

use super::{MAX_DEPTH, PatchError, depth};
use crate::schema::{PatchRule, Schema, Shape, TypeId};
use serde_json::{Map, Value};
use std::collections::BTreeSet;

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_FROM_LIST: &str = "$deleteFromPrimitiveList";
const ELEMENT_ORDER: &str = "$setElementOrder";

/// The object of this type with the patch merged into it.
pub fn strategic(
    schema: &Schema,
    ty: TypeId,
    target: &Value,
    patch: Value,
) -> Result<Value, PatchError> {
    let (Value::Object(target), Value::Object(patch)) = (target, patch) else {
        return Err(PatchError::Malformed("invalid JSON document".into()));
    };
    if patch.values().any(|value| depth(value) > MAX_DEPTH) {
        return Err(PatchError::Malformed("invalid JSON document".into()));
    }
    Merge { schema }.map(Some(ty), target.clone(), patch).map(Value::Object)
}

/// What the schema says about one field; unknown fields merge like plain JSON.
#[derive(Default)]
struct FieldRule<'s> {
    ty: Option<TypeId>,
    patch: Option<&'s PatchRule>,
}

impl<'s> FieldRule<'s> {
    fn merges(&self) -> bool {
        self.patch.is_some_and(|rule| rule.merge)
    }

    fn key(&self) -> Option<&'s str> {
        self.patch.and_then(|rule| rule.merge_key.as_deref())
    }
}

struct Merge<'s> {
    schema: &'s Schema,
}

impl<'s> Merge<'s> {
    fn map(
        &self,
        ty: Option<TypeId>,
        mut original: Map<String, Value>,
        mut patch: Map<String, Value>,
    ) -> Result<Map<String, Value>, PatchError> {
        match patch.remove(DIRECTIVE).as_ref().map(Value::as_str) {
            None | Some(Some("merge")) => {}
            Some(Some("replace")) => return Ok(without_directives_in_map(patch)),
            Some(Some("delete")) => return Ok(Map::new()),
            Some(other) => {
                let other = other.map(str::to_owned).unwrap_or_else(|| "<nil>".into());
                let map = go_format(&Value::Object(patch));
                return Err(PatchError::Unmergeable(format!(
                    "unknown patch type: {other} in map: {map}"
                )));
            }
        }
        retain_keys(&mut original, &mut patch)?;
        self.ordered_lists(ty, &mut original, &mut patch)?;
        for (key, value) in patch {
            match key.strip_prefix(DELETE_FROM_LIST) {
                Some(rest) => delete_from_list(&mut original, rest, value)?,
                None => self.field(ty, &mut original, key, value)?,
            }
        }
        Ok(original)
    }

    fn field(
        &self,
        ty: Option<TypeId>,
        original: &mut Map<String, Value>,
        key: String,
        patch: Value,
    ) -> Result<(), PatchError> {
        if patch.is_null() {
            original.remove(&key);
            return Ok(());
        }
        let rule = self.rule(ty, &key);
        let merged = match (original.remove(&key), patch) {
            (Some(Value::Object(old)), Value::Object(patch)) => {
                if rule.patch.is_some_and(|rule| rule.replace) {
                    Value::Object(without_directives_in_map(patch))
                } else {
                    Value::Object(self.map(rule.ty, old, patch)?)
                }
            }
            (Some(Value::Array(old)), Value::Array(patch)) if rule.merges() => {
                Value::Array(self.list(&rule, old, patch)?)
            }
            (_, patch) => match without_directives(patch) {
                Some(patch) => patch,
                None => return Ok(()),
            },
        };
        original.insert(key, merged);
        Ok(())
    }

    /// Merges a list by key, or as a set if there is no key. Elements of the patch come in the patch's
    /// order, the others keep their position relative to them.
    fn list(
        &self,
        rule: &FieldRule,
        mut original: Vec<Value>,
        mut patch: Vec<Value>,
    ) -> Result<Vec<Value>, PatchError> {
        if original.is_empty() && patch.is_empty() {
            return Ok(original);
        }
        let key = match (are_maps(&original, &patch)?, rule.key()) {
            (false, _) => None,
            (true, Some(key)) => Some(key),
            (true, None) => {
                return Err(PatchError::Unmergeable("cannot merge lists without merge key".into()));
            }
        };
        if let Some(key) = key
            && special_elements(&mut original, &mut patch, key)?
        {
            return Ok(patch); // `$patch: replace` among the elements
        }
        let [requested, live] = [&patch, &original].map(|list| order::places(list, rule.key()));
        let merged = match key {
            Some(key) => self.elements(rule.ty, original, patch, key)?,
            None => {
                let mut seen = BTreeSet::new();
                let both = original.into_iter().chain(patch);
                both.filter(|value| seen.insert(value.to_string())).collect()
            }
        };
        Ok(order::arrange(merged, &requested, &live, rule.key()))
    }

    fn elements(
        &self,
        ty: Option<TypeId>,
        mut merged: Vec<Value>,
        patch: Vec<Value>,
        key: &str,
    ) -> Result<Vec<Value>, PatchError> {
        let mut places: std::collections::HashMap<String, usize> = merged
            .iter()
            .enumerate()
            .rev() // the first of several elements with one key is the one that is merged
            .filter_map(|(place, element)| Some((element.get(key)?.to_string(), place)))
            .collect();
        for element in patch {
            let Value::Object(element) = element else { continue };
            let Some(identity) = element.get(key).map(Value::to_string) else {
                return Err(no_merge_key(&element, key));
            };
            match places.get(&identity) {
                Some(&place) => {
                    let old = match merged[place].take() {
                        Value::Object(old) => old,
                        _ => Map::new(),
                    };
                    merged[place] = Value::Object(self.map(ty, old, element)?);
                }
                None => {
                    if let Some(added) = without_directives(Value::Object(element)) {
                        places.insert(identity, merged.len());
                        merged.push(added);
                    }
                }
            }
        }
        Ok(merged)
    }

    /// Merges the lists whose order the patch sets with `$setElementOrder/<field>`, and removes both the
    /// directive and the list from the patch.
    fn ordered_lists(
        &self,
        ty: Option<TypeId>,
        original: &mut Map<String, Value>,
        patch: &mut Map<String, Value>,
    ) -> Result<(), PatchError> {
        let directives: Vec<String> =
            patch.keys().filter(|key| key.starts_with(ELEMENT_ORDER)).cloned().collect();
        for directive in directives {
            let malformed =
                || PatchError::Malformed("invalid patch format of setElementOrder list".into());
            let field = directive[ELEMENT_ORDER.len()..].strip_prefix('/').ok_or_else(malformed)?;
            let Some(Value::Array(order)) = patch.remove(&directive) else {
                return Err(malformed());
            };
            let rule = self.rule(ty, field);
            let old = match original.get(field) {
                Some(Value::Array(list)) => list.clone(),
                Some(Value::Null) | None => Vec::new(),
                Some(_) => return Err(malformed()),
            };
            let merged = match patch.remove(field) {
                None if old.is_empty() => continue,
                None => old.clone(),
                Some(Value::Array(list)) => {
                    order::check(&list, &order, rule.key())?;
                    match (old.is_empty(), rule.merges()) {
                        (false, true) => self.list(&rule, old.clone(), list)?,
                        _ => without_directives_in_list(list),
                    }
                }
                Some(Value::Null) => {
                    original.remove(field);
                    continue;
                }
                Some(_) => return Err(malformed()),
            };
            if let (Some(key), Some(Value::Object(nameless))) = (
                rule.key(),
                order
                    .iter()
                    .find(|element| rule.key().is_some_and(|key| element.get(key).is_none())),
            ) {
                return Err(no_merge_key(nameless, key));
            }
            let [requested, live] = [&order, &old].map(|list| order::places(list, rule.key()));
            let arranged = order::arrange(merged, &requested, &live, rule.key());
            original.insert(field.to_owned(), Value::Array(arranged));
        }
        Ok(())
    }

    /// The rule of a field; for lists with the type of their elements.
    fn rule(&self, ty: Option<TypeId>, key: &str) -> FieldRule<'s> {
        let Some(ty) = ty else { return FieldRule::default() };
        match self.schema.shape(ty) {
            Shape::Object(object) => match object.fields.get(key) {
                Some(field) => {
                    let ty = match self.schema.shape(field.ty) {
                        Shape::List { items, .. } => *items,
                        _ => field.ty,
                    };
                    FieldRule { ty: Some(ty), patch: Some(&field.patch) }
                }
                None => FieldRule::default(),
            },
            Shape::Map { values, .. } => FieldRule { ty: Some(*values), patch: None },
            _ => FieldRule::default(),
        }
    }
}

/// `$retainKeys` lists all keys that stay; the patch may not set others.
fn retain_keys(
    original: &mut Map<String, Value>,
    patch: &mut Map<String, Value>,
) -> Result<(), PatchError> {
    let Some(keys) = patch.remove(RETAIN_KEYS) else { return Ok(()) };
    let malformed = || PatchError::Malformed("invalid patch format of retainKeys".into());
    let keys = keys.as_array().ok_or_else(malformed)?;
    let keys = keys.iter().map(|key| key.as_str().ok_or_else(malformed));
    let keys = keys.collect::<Result<BTreeSet<&str>, _>>()?;
    let contradicts = patch.iter().any(|(key, value)| {
        !value.is_null()
            && !key.starts_with(DELETE_FROM_LIST)
            && !key.starts_with(ELEMENT_ORDER)
            && !keys.contains(key.as_str())
    });
    if contradicts {
        return Err(PatchError::NotApplicable(
            "patch content doesn't match retainKeys list".into(),
        ));
    }
    original.retain(|key, _| keys.contains(key.as_str()));
    Ok(())
}

/// `$deleteFromPrimitiveList/<field>: [value, ...]`
fn delete_from_list(
    original: &mut Map<String, Value>,
    rest: &str,
    doomed: Value,
) -> Result<(), PatchError> {
    let malformed = || PatchError::Malformed("invalid patch format of primitive list".into());
    let field = rest.strip_prefix('/').ok_or_else(malformed)?;
    let doomed = doomed.as_array().ok_or_else(malformed)?;
    if doomed.iter().any(|value| value.is_object() || value.is_array()) {
        return Err(malformed());
    }
    if let Some(Value::Array(list)) = original.get_mut(field) {
        let doomed: BTreeSet<String> = doomed.iter().map(Value::to_string).collect();
        list.retain(|value| !doomed.contains(&value.to_string()));
    }
    Ok(())
}

/// Applies the directives among the elements of a patch and removes them from it. True if the rest of
/// the patch replaces the list.
fn special_elements(
    original: &mut Vec<Value>,
    patch: &mut Vec<Value>,
    key: &str,
) -> Result<bool, PatchError> {
    let mut replace = false;
    let mut doomed = BTreeSet::new();
    let mut plain = Vec::with_capacity(patch.len());
    for element in patch.drain(..) {
        let Value::Object(mut map) = element else { continue };
        let Some(directive) = map.remove(DIRECTIVE) else {
            plain.push(Value::Object(map));
            continue;
        };
        match directive.as_str() {
            Some("merge") => plain.push(Value::Object(map)),
            Some("replace") => replace = true,
            Some("delete") => {
                let identity = map.get(key).ok_or_else(|| no_merge_key(&map, key))?;
                doomed.insert(identity.to_string());
            }
            _ => {
                let directive = go_format(&directive);
                let map = go_format(&Value::Object(map));
                return Err(PatchError::Unmergeable(format!(
                    "unknown patch type: {directive} in map: {map}"
                )));
            }
        }
    }
    if !doomed.is_empty() {
        original.retain(|element| {
            element.get(key).is_none_or(|identity| !doomed.contains(&identity.to_string()))
        });
    }
    *patch = if replace { without_directives_in_list(plain) } else { plain };
    Ok(replace)
}

/// Whether both lists hold maps; they must not mix maps and scalars, nor hold lists.
fn are_maps(original: &[Value], patch: &[Value]) -> Result<bool, PatchError> {
    let mut all = original.iter().chain(patch);
    if all.clone().any(Value::is_array) {
        return Err(PatchError::NotApplicable("lists of lists are not supported".into()));
    }
    let maps = all.next().is_some_and(Value::is_object);
    if all.any(|value| value.is_object() != maps) {
        return Err(PatchError::Unmergeable("list element types are not identical".into()));
    }
    Ok(maps)
}

/// A value that the object lacks: it is taken from the patch, without directives.
fn without_directives(value: Value) -> Option<Value> {
    match value {
        Value::Object(map) => match map.get(DIRECTIVE).and_then(Value::as_str) {
            Some("delete") => None,
            Some("replace") if map.len() == 1 => None,
            _ => Some(Value::Object(without_directives_in_map(map))),
        },
        Value::Array(list) => Some(Value::Array(without_directives_in_list(list))),
        other => Some(other),
    }
}

fn without_directives_in_map(map: Map<String, Value>) -> Map<String, Value> {
    let is_directive = |key: &str| {
        key == DIRECTIVE
            || key == RETAIN_KEYS
            || key.starts_with(DELETE_FROM_LIST)
            || key.starts_with(ELEMENT_ORDER)
    };
    map.into_iter()
        .filter(|(key, value)| !is_directive(key) && !value.is_null())
        .filter_map(|(key, value)| Some((key, without_directives(value)?)))
        .collect()
}

fn without_directives_in_list(list: Vec<Value>) -> Vec<Value> {
    list.into_iter().filter_map(without_directives).collect()
}

fn no_merge_key(element: &Map<String, Value>, key: &str) -> PatchError {
    let element = go_format(&Value::Object(element.clone()));
    PatchError::Unmergeable(format!("map: {element} does not contain declared merge key: {key}"))
}

/// Formats a value like Go's `%v`, which upstream's messages use for maps.
pub(crate) fn go_format(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".into(),
        Value::String(text) => text.clone(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::Array(list) => {
            format!("[{}]", list.iter().map(go_format).collect::<Vec<_>>().join(" "))
        }
        Value::Object(map) => {
            let entries = map.iter().map(|(key, value)| format!("{key}:{}", go_format(value)));
            format!("map[{}]", entries.collect::<Vec<_>>().join(" "))
        }
    }
}
