//! Defaults of custom resources.
//!
//! A null where the schema does not allow null means "not set": it takes the default if there is
//! one, and otherwise disappears from an object (but stays in a list, where validation finds it).
//! Defaults apply inside what exists; a default `{}` on a parent makes those below it apply.

use super::node::{Additional, Node};
use serde_json::Value;

pub(super) fn apply(node: &Node, object: &mut Value) {
    drop_nulls(Some(node), object);
    fill(node, object);
}

/// Both walks are bounded by the depth of the object and of the schema: defaults that are added come
/// from the schema and are walked with the part of the schema below them.
fn drop_nulls(node: Option<&Node>, value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|name, value| {
                let node = node.and_then(|node| node.field(name));
                let means_nothing =
                    value.is_null() && node.is_some_and(|n| !n.nullable && n.default.is_none());
                if !means_nothing && node.is_some() {
                    drop_nulls(node, value);
                }
                !means_nothing
            });
        }
        Value::Array(list) => {
            if let Some(items) = node.and_then(|node| node.items.as_deref()) {
                list.iter_mut().for_each(|item| drop_nulls(Some(items), item));
            }
        }
        _ => {}
    }
}

fn fill(node: &Node, value: &mut Value) {
    match value {
        Value::Object(map) => {
            for (name, property) in &node.properties {
                let unset = match map.get(name) {
                    None => true,
                    Some(value) => value.is_null() && !property.nullable,
                };
                if let Some(default) = property.default.as_ref().filter(|_| unset) {
                    map.insert(name.clone(), default.clone());
                }
            }
            for (name, value) in map.iter_mut() {
                match (node.properties.get(name), &node.additional) {
                    (Some(property), _) => fill(property, value),
                    (None, Additional::Of(values)) => {
                        replace_null(values, value);
                        fill(values, value);
                    }
                    (None, Additional::Unsaid | Additional::Allowed | Additional::Refused) => {}
                }
            }
        }
        Value::Array(list) => {
            if let Some(items) = node.items.as_deref() {
                for item in list {
                    replace_null(items, item);
                    fill(items, item);
                }
            }
        }
        _ => {}
    }
}

/// Replaces a null that is not allowed by the default.
fn replace_null(node: &Node, value: &mut Value) {
    if let Some(default) = node.default.as_ref().filter(|_| value.is_null() && !node.nullable) {
        *value = default.clone();
    }
}
