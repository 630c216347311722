//! Objects inside custom objects (`x-kubernetes-embedded-resource`) need kind and apiVersion, and their
//! metadata is validated like that of any object.

use super::node::{Additional, Node};
use crate::field::{At, Errors};
use crate::metadata;
use serde_json::Value;

pub(super) fn check(node: &Node, at: &At, errors: &mut Errors) {
    match at.value() {
        Some(Value::Object(map)) => {
            if node.embedded {
                resource(at, errors);
            }
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
        Some(Value::Array(_)) => {
            if let Some(items) = node.items.as_deref() {
                for item in at.items() {
                    check(items, &item, errors);
                }
            }
        }
        _ => {}
    }
}

fn resource(at: &At, errors: &mut Errors) {
    for name in ["apiVersion", "kind"] {
        let field = at.field(name);
        match field.value() {
            None | Some(Value::Null) => errors.required(&field, "must not be empty"),
            Some(Value::String(text)) if text.is_empty() => {
                errors.required(&field, "must not be empty");
            }
            _ => {}
        }
    }
    let metadata = at.field("metadata");
    metadata::labels(&metadata.field("labels"), errors);
    metadata::annotations(&metadata.field("annotations"), errors);
}
