//! Lists that are sets or maps have no duplicates (A-210: `x-kubernetes-list-type`).

use super::node::{Additional, ListType, Node};
use crate::field::{At, Errors, Wrong};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

pub(super) fn check(node: &Node, at: &At, errors: &mut Errors) {
    match at.value() {
        Some(Value::Object(map)) => {
            if let Additional::Of(values) = &node.additional {
                for (_, value) in at.entries() {
                    check(values, &value, errors);
                }
            }
            for name in map.keys() {
                if let Some(property) = node.properties.get(name) {
                    check(property, &at.field(name), errors);
                }
            }
        }
        Some(Value::Array(list)) => {
            match &node.list {
                ListType::Atomic => {}
                ListType::Set => report(at, list.iter().cloned(), errors),
                ListType::Map(keys) => map(at, list, keys, errors),
            }
            if let Some(items) = node.items.as_deref() {
                for item in at.items() {
                    check(items, &item, errors);
                }
            }
        }
        _ => {}
    }
}

fn map(at: &At, list: &[Value], keys: &[String], errors: &mut Errors) {
    let stranger =
        at.items().find(|item| item.is_set() && !item.value().is_some_and(Value::is_object));
    if let Some(item) = stranger {
        errors.invalid(&item, "must be an object for an array of list-type map");
        return;
    }
    let key_of = |item: &Value| {
        let present = keys.iter().filter_map(|key| Some((key.clone(), item.get(key)?.clone())));
        Value::Object(present.collect::<Map<_, _>>())
    };
    report(at, list.iter().map(key_of), errors);
}

/// Reports each duplicate value once, at its second occurrence.
fn report(at: &At, values: impl Iterator<Item = Value>, errors: &mut Errors) {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for (index, value) in values.enumerate() {
        let times = seen.entry(value.to_string()).or_default();
        *times += 1;
        if *times == 2 {
            let path = format!("{}[{index}]", at.path());
            errors.push(Wrong::Duplicate, path, Some(&value), "");
        }
    }
}
