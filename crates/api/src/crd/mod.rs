//! Custom resources: kinds that a CustomResourceDefinition adds at run time (A-204 on).
//!
//! `kinds` turns a definition into the rows of the registry, one per served version. Each row
//! carries a [`Custom`], which knows what no built-in kind needs to know: the version's schema, read
//! once into nodes (`node`), from which come the types that decoding prunes by (`types`), defaults
//! (`default`) and validation (`validate`, `lists`, `embedded`).
//!
//! Not here: what makes a definition itself valid (`rules::apiextensions`), its status and its
//! instances (the server). Rules written in CEL (`x-kubernetes-validations`, A-213) are not
//! evaluated: such a definition is accepted, its rules check nothing, and [`Custom::unsupported`]
//! says so. Conversion webhooks are the server's to call.

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
    /// The CRD's uid: another definition of the same name is another kind.
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
    /// What clients of a deprecated version are told.
    pub deprecation: Option<String>,
    /// The definition is being deleted: nothing may be created any more.
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

    /// Fills in what the schema gives a default, and drops nulls that mean nothing.
    pub fn default(&self, object: &mut Value) {
        default::apply(&self.node, object);
    }

    /// Everything the schema says about an object, in upstream's words. What an update
    /// leaves as it was may stay wrong.
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
            let said = match replicas.as_i64() {
                Some(..0) => "should be a non-negative integer",
                Some(replicas) if replicas > i64::from(i32::MAX) => {
                    "should be less than or equal to 2147483647"
                }
                _ => continue,
            };
            errors.push(crate::field::Wrong::Invalid, path.into(), Some(replicas), said);
        }
    }

    /// Whether a field selector may name this field, besides metadata.name and .namespace.
    pub fn selects(&self, field: &str) -> bool {
        self.selectable.iter().any(|known| known == field)
    }

    /// The value of a selectable field; empty if the object has none, none if the field cannot be
    /// selected by.
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

    /// What the definition asks for that is not done, one sentence each.
    pub fn unsupported(&self) -> Vec<String> {
        let mut said = Vec::new();
        self.node.unsupported("", &mut said);
        if self.webhook.is_some() {
            said.push("spec.conversion: conversion webhooks are not called".into());
        }
        said
    }
}

/// The value at a path of plain fields, `spec.color`.
fn read<'v>(object: &'v Value, path: &str) -> Option<&'v Value> {
    path.split('.').try_fold(object, |value, field| value.get(field))
}
