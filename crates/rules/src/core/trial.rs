//! Test code that writes objects as the server does, and returns the result and the errors.

use super::rules;
use api::field::{At, Errors};
use api::metadata;
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

/// The errors of a new object. Metadata without a name is not validated.
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
    messages(&errors)
}

/// The errors of an update that merges `change` into an old object.
pub(super) fn update(kind: &str, old: &Value, change: Value) -> Vec<String> {
    let (new, errors) = updated(kind, old, change);
    drop(new);
    errors
}

/// The updated object as it would be stored, and its errors.
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
    (new, messages(&errors))
}

/// The errors of a status update.
pub(super) fn update_status(kind: &str, old: &Value, change: Value) -> Vec<String> {
    let mut new = old.clone();
    merge(&mut new, json!({ "status": change }));
    let mut errors = Errors::default();
    (rules(kind).validate_status_update)(&At::root(&new), &At::root(old), &mut errors);
    messages(&errors)
}

pub(super) fn messages(errors: &Errors) -> Vec<String> {
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

/// A pod with one container and additional fields in its spec.
pub(super) fn pod(more: Value) -> Value {
    let mut pod = json!({"spec": {"containers": [{"name": "app", "image": "nginx:1.27"}]}});
    merge(&mut pod["spec"], more);
    pod
}

/// A pod whose only container has additional fields.
pub(super) fn pod_with(container: Value) -> Value {
    let mut pod = pod(json!({}));
    merge(&mut pod["spec"]["containers"][0], container);
    pod
}

pub(super) const NOTHING: [&str; 0] = [];
