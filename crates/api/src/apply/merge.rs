//! Merging an applied document into the live object, by the schema.

use super::walk::{Form, Index, Ty, Walk};
use crate::schema::{ListMerge, TypeId};
use serde_json::{Map, Value};
use std::collections::{HashMap, HashSet};

impl Walk<'_> {
    /// The live object with the fields of the applied one.
    pub(super) fn merge(&self, live: &Value, applied: &Value) -> Value {
        self.merged(Some(self.ty), Some(live), Some(applied)).unwrap_or(Value::Null)
    }

    fn merged(&self, ty: Ty, live: Option<&Value>, applied: Option<&Value>) -> Option<Value> {
        let (Some(old), Some(new)) = (live, applied) else {
            return applied.or(live).cloned();
        };
        let sample = if new.is_null() { old } else { new };
        match self.form(ty, sample) {
            Form::Leaf => Some(new.clone()),
            Form::Struct(object) => {
                self.merged_fields(old, new, |name| object.fields.get(name).map(|field| field.ty))
            }
            Form::Map(values) => self.merged_fields(old, new, |_| values),
            Form::List(items, merge) => self.merged_items(items, merge, old, new),
        }
    }

    fn merged_fields(&self, old: &Value, new: &Value, ty: impl Fn(&str) -> Ty) -> Option<Value> {
        let empty = Map::new();
        let (left, right) = (old.as_object().unwrap_or(&empty), new.as_object().unwrap_or(&empty));
        if left.is_empty() && right.is_empty() {
            return Some(new.clone());
        }
        let mut merged = Map::new();
        for (name, old) in left {
            let value = self.merged(ty(name), Some(old), right.get(name));
            merged.extend(value.map(|value| (name.clone(), value)));
        }
        for (name, new) in right.iter().filter(|(name, _)| !left.contains_key(*name)) {
            merged.insert(name.clone(), new.clone());
        }
        Some(Value::Object(merged))
    }

    fn merged_items(
        &self,
        items: TypeId,
        merge: &ListMerge,
        old: &Value,
        new: &Value,
    ) -> Option<Value> {
        let list = |value: &'_ Value| value.as_array().is_some_and(|list| !list.is_empty());
        if !list(old) && !list(new) {
            return Some(new.clone());
        }
        let slice = |value| -> Option<Index> {
            Index::of(Value::as_array(value).map_or(&[], Vec::as_slice), merge)
        };
        let (Some(left), Some(right)) = (slice(old), slice(new)) else {
            return Some(new.clone());
        };
        Some(Value::Array(
            Zipper::new(&left, &right).zip(|old, new| self.merged(Some(items), old, new)),
        ))
    }
}

/// Merges the order of two lists: shared elements come in the order of the applied list, elements that
/// only the live list has keep their position relative to them, and new ones come where they were applied.
struct Zipper<'a, 'v> {
    left: &'a Index<'v>,
    right: &'a Index<'v>,
    in_left: HashMap<&'a str, &'v Value>,
    in_right: HashSet<&'a str>,
}

impl<'a, 'v> Zipper<'a, 'v> {
    fn new(left: &'a Index<'v>, right: &'a Index<'v>) -> Self {
        let in_left = left.items.iter().rev().map(|(name, item)| (name.as_str(), *item)).collect();
        let in_right = right.items.iter().map(|(name, _)| name.as_str()).collect();
        Zipper { left, right, in_left, in_right }
    }

    fn zip(&self, merge: impl Fn(Option<&Value>, Option<&Value>) -> Option<Value>) -> Vec<Value> {
        let mut out = Vec::with_capacity(self.left.items.len().max(self.right.items.len()));
        let mut shared = self.right.items.iter().map(|(name, _)| name.as_str());
        let mut next_shared = || shared.find(|name| self.in_left.contains_key(name));
        let mut awaited = next_shared();
        let mut done: HashSet<&str> = HashSet::new();
        let (mut l, mut r) = (0, 0);
        loop {
            let left = self.left.items.get(l).map(|(name, item)| (name.as_str(), *item));
            let right = self.right.items.get(r).map(|(name, item)| (name.as_str(), *item));
            match (left, right) {
                (None, None) => return out,
                // Merged at its position in the applied list.
                (Some((name, _)), _) if done.contains(name) => l += 1,
                (Some((name, _)), Some((other, _)))
                    if name != other && self.in_right.contains(name) && awaited != Some(name) =>
                {
                    l += 1;
                }
                (Some((name, item)), _) if !self.in_right.contains(name) => {
                    out.extend(merge(Some(item), None));
                    l += 1;
                }
                (_, Some((name, item))) => {
                    out.extend(merge(self.in_left.get(name).copied(), Some(item)));
                    done.insert(name);
                    if awaited == Some(name) {
                        awaited = next_shared();
                    }
                    r += 1;
                }
                // The applied list is used up, so this shared element was merged before.
                (Some(_), None) => l += 1,
            }
        }
    }
}
