//! Custom resources: kinds that a CustomResourceDefinition adds at run time (A-204 on).
//!
//! `kinds` turns a definition into kinds of the registry, one per served version. Each has a [`Custom`]
//! with the version's schema, parsed once into nodes (`node`). Types for decoding and pruning (`types`),
//! defaults (`default`) and validation (`validate`, `lists`, `embedded`) all use these nodes.
//!
//! Not here: what makes a definition itself valid (the crate `rules`), its status and its
//! instances (the server). Rules written in CEL (`x-kubernetes-validations`, A-213) are not
//! evaluated: the definition is accepted, its CEL rules are ignored, and [`Custom::unsupported`] reports
//! this. The server would have to call conversion webhooks.

mod kinds;
mod node;
mod types;

mod default;

mod embedded;
mod format;
mod lists;
mod pattern;
mod validate;

#[cfg(test)]
mod tests;

pub use kinds::kinds;
pub use types::schema_of;

use crate::field::{At, Errors};
use node::Node;
use serde_json::Value;

/// What a custom kind has beyond a built-in one.
#[derive(Debug, Clone, Default)]
pub struct Custom {
    /// The CRD's name, `<plural>.<group>`.
    pub definition: String,
    /// The CRD's uid: a recreated definition of the same name is another kind.
    pub uid: String,
    /// The revision of the CRD this was read from. Objects written later are pruned and defaulted
    /// as this schema says; older ones may not be.
    pub since: u64,
    pub list_kind: String,
    /// The version's openAPIV3Schema as the CRD gives it.
    pub open_api: Value,
    pub has_status: bool,
    pub scale: Option<Value>,
    /// additionalPrinterColumns
    pub columns: Vec<Value>,
    /// Fields that selectors may name: paths without the leading dot.
    pub selectable: Vec<String>,
    /// The warning for clients of a deprecated version.
    pub deprecation: Option<String>,
    /// The definition is being deleted: no new objects may be created.
    pub terminating: bool,
    /// `spec.conversion.webhook`, if versions are converted by one.
    pub webhook: Option<Value>,
    node: Node,
}

impl Custom {
    /// Reads a version's schema.
    pub fn new(open_api: Value) -> Self {
        Custom { node: Node::read(&open_api), open_api, ..Default::default() }
    }

    /// Sets the schema's defaults and drops nulls that mean "not set".
    pub fn default(&self, object: &mut Value) {
        default::apply(&self.node, object);
    }

    /// Validates an object against the schema, with upstream's messages. Values that an update
    /// does not change may stay invalid.
    pub fn validate(&self, new: &At, old: Option<&At>, errors: &mut Errors) {
        let before = old.and_then(At::value);
        validate::check(&self.node, new, before, errors);
        self.validate_scale(new, errors);
        embedded::check(&self.node, new, errors);
        let was_valid = before.is_none_or(|old| {
            let mut found = Errors::default();
            lists::check(&self.node, &At::root(old), &mut found);
            found.is_empty()
        });
        if was_valid {
            lists::check(&self.node, new, errors);
        }
    }

    /// Replicas must fit into a Scale.
    fn validate_scale(&self, object: &At, errors: &mut Errors) {
        for path in ["specReplicasPath", "statusReplicasPath"] {
            let Some(path) = self.scale.as_ref().and_then(|scale| scale[path].as_str()) else {
                continue;
            };
            let path = path.trim_start_matches('.');
            let Some(replicas) = object.value().and_then(|object| read(object, path)) else {
                continue;
            };
            let detail = match replicas.as_i64() {
                Some(..0) => "should be a non-negative integer",
                Some(replicas) if replicas > i64::from(i32::MAX) => {
                    "should be less than or equal to 2147483647"
                }
                _ => continue,
            };
            errors.push(crate::field::Wrong::Invalid, path.into(), Some(replicas), detail);
        }
    }

    /// Whether a field selector may name this field, besides metadata.name and .namespace.
    pub fn selects(&self, field: &str) -> bool {
        self.selectable.iter().any(|known| known == field)
    }

    /// The value of a selectable field, empty if the object lacks it; `None` if the field is not
    /// selectable.
    pub fn selected(&self, field: &str, object: &Value) -> Option<String> {
        if !self.selects(field) {
            return None;
        }
        Some(match read(object, field) {
            Some(Value::String(text)) => text.clone(),
            Some(value @ (Value::Bool(_) | Value::Number(_))) => value.to_string(),
            _ => String::new(),
        })
    }

    /// Features that the definition uses and the server does not support, one sentence each.
    pub fn unsupported(&self) -> Vec<String> {
        let mut notes = Vec::new();
        self.node.unsupported("", &mut notes);
        if self.webhook.is_some() {
            notes.push("spec.conversion: conversion webhooks are not called".into());
        }
        notes
    }
}

/// The value at a path of plain fields, `spec.color`.
fn read<'v>(object: &'v Value, path: &str) -> Option<&'v Value> {
    path.split('.').try_fold(object, |value, field| value.get(field))
}
