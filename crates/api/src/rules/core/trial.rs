//! Writes objects the way the server does, for tests: what becomes of them, and what is wrong with them.

use super::rules;
use crate::field::{At, Errors};
use crate::metadata;
use serde_json::{Value, json};

/// A new object after defaults and preparation.
pub(super) fn created(kind: &str, mut object: Value) -> Value {
    let rules = rules(kind);
    (rules.default)(&mut object);
    (rules.prepare_create)(&mut object);
    object
}

/// Only defaults.
pub(super) fn defaulted(kind: &str, mut object: Value) -> Value {
    (rules(kind).default)(&mut object);
    object
}

/// What is wrong with a new object. Metadata without a name is not looked at.
pub(super) fn create(kind: &str, object: Value) -> Vec<String> {
    let mut object = created(kind, object);
    if kind == "Pod" {
        object["spec"]["serviceAccountName"] = "default".into();
    }
    let mut errors = Errors::default();
    let at = At::root(&object);
    if at.field("metadata").field("name").is_set() {
        let namespaced = at.field("metadata").field("namespace").is_set();
        metadata::validate(&at, rules(kind).name, namespaced, &mut errors);
    }
    (rules(kind).validate)(&at, &mut errors);
    said(&errors)
}

/// What is wrong with a change, merged into an old object.
pub(super) fn update(kind: &str, old: &Value, change: Value) -> Vec<String> {
    let (new, errors) = updated(kind, old, change);
    drop(new);
    errors
}

/// The changed object as it would be stored, and what is wrong with it.
pub(super) fn updated(kind: &str, old: &Value, change: Value) -> (Value, Vec<String>) {
    let rules = rules(kind);
    let mut old = old.clone();
    old["metadata"]["resourceVersion"] = "1".into();
    let mut new = old.clone();
    merge(&mut new, change);
    (rules.default)(&mut new);
    (rules.prepare_update)(&mut new, &old);
    let mut errors = Errors::default();
    (rules.validate)(&At::root(&new), &mut errors);
    (rules.validate_update)(&At::root(&new), &At::root(&old), &mut errors);
    (new, said(&errors))
}

/// What is wrong with a new status.
pub(super) fn update_status(kind: &str, old: &Value, change: Value) -> Vec<String> {
    let mut new = old.clone();
    merge(&mut new, json!({ "status": change }));
    let mut errors = Errors::default();
    (rules(kind).validate_status_update)(&At::root(&new), &At::root(old), &mut errors);
    said(&errors)
}

pub(super) fn said(errors: &Errors) -> Vec<String> {
    errors.iter().map(ToString::to_string).collect()
}

/// A JSON merge patch.
pub(super) fn merge(target: &mut Value, change: Value) {
    let Value::Object(change) = change else {
        *target = change;
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, value) in change {
        match value {
            Value::Null => {
                target.as_object_mut().and_then(|map| map.remove(&key));
            }
            value => merge(&mut target[key], value),
        }
    }
}

/// A pod with one container and more in its spec.
pub(super) fn pod(more: Value) -> Value {
    let mut pod = json!({"spec": {"containers": [{"name": "app", "image": "nginx:1.27"}]}});
    merge(&mut pod["spec"], more);
    pod
}

/// A pod whose one container has more fields.
pub(super) fn pod_with(container: Value) -> Value {
    let mut pod = pod(json!({}));
    merge(&mut pod["spec"]["containers"][0], container);
    pod
}

pub(super) const NOTHING: [&str; 0] = [];
