//! Validation of metadata: names, labels, annotations, owners, finalizers.
//!
//! [`validate`] checks the metadata of new and of changed objects, [`validate_update`] compares with the
//! old object. Upstream checks an update twice, generically and per kind, so some errors are reported
//! twice here as well. Not here: the server sets uid, times and generation, and requires a
//! resourceVersion.

use crate::field::{At, Errors, Wrong};
use crate::names::{self, NameRule};
use serde_json::Value;

/// Total size of an object's annotations, keys and values.
const ANNOTATIONS_MAX: usize = 256 * 1024;
const MANAGER_MAX: usize = 128;
const SUBRESOURCE_MAX: usize = 256;
/// Finalizers that need no domain.
const STANDARD_FINALIZERS: &[&str] = &["kubernetes", "orphan", "foregroundDeletion"];

pub const IMMUTABLE: &str = "field is immutable";

/// Checks `metadata` of an object of a built-in kind. `object` is the object itself.
pub fn validate(object: &At, name: NameRule, namespaced: bool, errors: &mut Errors) {
    validate_custom(object, name, namespaced, errors);
    kube_finalizers(&object.field("metadata"), errors);
}

/// The same for custom resources, whose finalizers need no domain.
pub fn validate_custom(object: &At, name: NameRule, namespaced: bool, errors: &mut Errors) {
    let metadata = object.field("metadata");
    name_and_namespace(&metadata, name, namespaced, errors);
    let generation = metadata.field("generation");
    if generation.int().unwrap_or_default() < 0 {
        errors.invalid(&generation, "must be greater than or equal to 0");
    }
    labels(&metadata.field("labels"), errors);
    annotations(&metadata.field("annotations"), errors);
    owner_references(&metadata.field("ownerReferences"), errors);
    finalizers(&metadata.field("finalizers"), errors);
    managed_fields(&metadata.field("managedFields"), errors);
}

/// Checks what an update does to `metadata` of a built-in kind. [`validate`] runs as well.
pub fn validate_update(new: &At, old: &At, errors: &mut Errors) {
    // Upstream checks once generically and once per kind, and both report errors.
    validate_custom_update(new, old, errors);
    validate_custom_update(new, old, errors);
    kube_finalizers(&new.field("metadata"), errors);
}

/// The same for custom resources, which upstream checks only once.
pub fn validate_custom_update(new: &At, old: &At, errors: &mut Errors) {
    let (new, old) = (new.field("metadata"), old.field("metadata"));
    if old.field("deletionTimestamp").is_set() {
        no_new_finalizers(&new.field("finalizers"), &old.field("finalizers"), errors);
    }
    let generation = new.field("generation");
    let before = old.field("generation").int().unwrap_or_default();
    if generation.int().unwrap_or_default() < before {
        let now = generation.int().unwrap_or_default();
        errors.invalid_value(&generation, now, "must not be decremented");
    }
    for fixed in ["name", "namespace", "uid"] {
        if new.field(fixed).text() != old.field(fixed).text() {
            errors.invalid_value(&new.field(fixed), new.field(fixed).text(), IMMUTABLE);
        }
    }
    for fixed in ["creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"] {
        immutable(&new.field(fixed), &old.field(fixed), errors);
    }
    labels(&new.field("labels"), errors);
    annotations(&new.field("annotations"), errors);
    owner_references(&new.field("ownerReferences"), errors);
    managed_fields(&new.field("managedFields"), errors);
}

/// Reports a field that differs from the old one.
pub fn immutable(new: &At, old: &At, errors: &mut Errors) {
    if !same(new.value(), old.value()) {
        errors.invalid(new, IMMUTABLE);
    }
}

/// Equal as clients see it: absent, null and empty values are the same.
pub fn same(a: Option<&Value>, b: Option<&Value>) -> bool {
    match (non_empty(a), non_empty(b)) {
        (None, None) => true,
        (Some(Value::Object(a)), Some(Value::Object(b))) => {
            a.iter().all(|(key, value)| same(Some(value), b.get(key)))
                && b.iter()
                    .all(|(key, value)| a.contains_key(key) || non_empty(Some(value)).is_none())
        }
        (Some(Value::Array(a)), Some(Value::Array(b))) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(Some(a), Some(b)))
        }
        (a, b) => a == b,
    }
}

fn non_empty(value: Option<&Value>) -> Option<&Value> {
    value.filter(|value| match value {
        Value::Null | Value::Bool(false) => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(map) => map.values().any(|value| non_empty(Some(value)).is_some()),
        _ => true,
    })
}

fn name_and_namespace(metadata: &At, rule: NameRule, namespaced: bool, errors: &mut Errors) {
    let prefix = metadata.field("generateName");
    if !prefix.text().is_empty() {
        for wrong in names::object_name_prefix(rule, prefix.text()) {
            errors.invalid(&prefix, &wrong);
        }
    }
    let name = metadata.field("name");
    if name.text().is_empty() {
        errors.required(&name, "name or generateName is required");
    } else {
        for wrong in names::object_name(rule, name.text()) {
            errors.invalid(&name, &wrong);
        }
    }
    let namespace = metadata.field("namespace");
    if !namespaced {
        if !namespace.text().is_empty() {
            errors.forbidden(&namespace, "not allowed on this type");
        }
    } else if namespace.text().is_empty() {
        errors.required(&namespace, "");
    } else {
        for wrong in names::dns1123_label(namespace.text()) {
            errors.invalid(&namespace, &wrong);
        }
    }
}

/// Validates the labels of an object, a template or a selector.
pub fn labels(labels: &At, errors: &mut Errors) {
    labels_as(labels, labels, errors);
}

/// Validates labels and reports errors at another path: upstream omits `metadata` in templates.
pub fn labels_as(labels: &At, shown: &At, errors: &mut Errors) {
    for (key, value) in labels.entries() {
        for wrong in names::qualified_name(key) {
            errors.invalid_value(shown, key, &wrong);
        }
        for wrong in names::label_value(value.text()) {
            errors.invalid_value(shown, value.text(), &wrong);
        }
    }
}

pub fn annotations(annotations: &At, errors: &mut Errors) {
    annotations_as(annotations, annotations, errors);
}

pub fn annotations_as(annotations: &At, shown: &At, errors: &mut Errors) {
    let mut size = 0;
    for (key, value) in annotations.entries() {
        // The prefix may have upper case as well.
        for wrong in names::qualified_name(&key.to_lowercase()) {
            errors.invalid_value(shown, key, &wrong);
        }
        size += key.len() + value.text().len();
    }
    if size > ANNOTATIONS_MAX {
        errors.too_long(shown, ANNOTATIONS_MAX);
    }
}

/// Owner references are complete, and at most one of them is the controller.
fn owner_references(owners: &At, errors: &mut Errors) {
    let mut controller: Option<String> = None;
    for owner in owners.items() {
        let version = owner.field("apiVersion").text();
        let mut empty = |field: &str, detail: &str| {
            let path = format!("{}.{field}", owners.path());
            errors.push(Wrong::Invalid, path, Some(&"".into()), detail);
        };
        if version.is_empty() {
            empty("apiVersion", "version must not be empty");
        }
        for field in ["kind", "name", "uid"] {
            if owner.field(field).text().is_empty() {
                empty(field, "must not be empty");
            }
        }
        let kind = owner.field("kind").text();
        if version == "v1" && kind == "Event" {
            let value = owner.value().cloned().unwrap_or_default();
            errors.invalid_value(
                owners,
                value,
                "/v1, Kind=Event is disallowed from being an owner",
            );
        }
        if owner.field("controller").is_true() {
            let this = format!("{kind}/{}", owner.field("name").text());
            match &controller {
                Some(first) => errors.invalid(
                    owners,
                    &format!("Only one reference can have Controller set to true. Found \"true\" in references for {first} and {this}"),
                ),
                None => controller = Some(this),
            }
        }
    }
}

fn finalizers(finalizers: &At, errors: &mut Errors) {
    for finalizer in finalizers.items() {
        for wrong in names::qualified_name(finalizer.text()) {
            errors.invalid_value(finalizers, finalizer.text(), &wrong);
        }
    }
    let has = |name| finalizers.items().any(|finalizer| finalizer.text() == name);
    if has("orphan") && has("foregroundDeletion") {
        errors.invalid(finalizers, "finalizer orphan and foregroundDeletion cannot be both set");
    }
}

fn kube_finalizers(metadata: &At, errors: &mut Errors) {
    for finalizer in metadata.field("finalizers").items() {
        let name = finalizer.text();
        if !name.contains('/') && !STANDARD_FINALIZERS.contains(&name) {
            errors.invalid(
                &finalizer,
                "name is neither a standard finalizer name nor is it fully qualified",
            );
        }
    }
}

fn no_new_finalizers(new: &At, old: &At, errors: &mut Errors) {
    let known: Vec<&str> = old.items().map(|finalizer| finalizer.text()).collect();
    let mut extra: Vec<&str> =
        new.items().map(|f| f.text()).filter(|name| !known.contains(name)).collect();
    extra.sort_unstable();
    extra.dedup();
    if !extra.is_empty() {
        let extra: Vec<String> = extra.iter().map(|name| format!("{name:?}")).collect();
        errors.forbidden(new, &format!(
            "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
            extra.join(", ")
        ));
    }
}

fn managed_fields(entries: &At, errors: &mut Errors) {
    for entry in entries.items() {
        let operation = entry.field("operation");
        if !["Apply", "Update"].contains(&operation.text()) {
            errors.invalid_value(&operation, operation.text(), "must be `Apply` or `Update`");
        }
        let kind = entry.field("fieldsType");
        if !["", "FieldsV1"].contains(&kind.text()) {
            errors.invalid(&kind, "must be `FieldsV1`");
        }
        let manager = entry.field("manager");
        if manager.text().len() > MANAGER_MAX {
            errors.too_long(&manager, MANAGER_MAX);
        }
        let subresource = entry.field("subresource");
        if subresource.text().len() > SUBRESOURCE_MAX {
            errors.too_long(&subresource, SUBRESOURCE_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn on_create(metadata: Value) -> Vec<String> {
        let object = json!({ "metadata": metadata });
        let mut errors = Errors::default();
        validate(&At::root(&object), NameRule::Subdomain, true, &mut errors);
        errors.iter().map(ToString::to_string).collect()
    }

    fn on_update(mut new: Value, mut old: Value) -> Vec<String> {
        for metadata in [&mut new, &mut old] {
            metadata["name"] = "a".into();
            metadata["namespace"] = "b".into();
            metadata["resourceVersion"] = "1".into();
        }
        let (new, old) = (json!({ "metadata": new }), json!({ "metadata": old }));
        let mut errors = Errors::default();
        validate_update(&At::root(&new), &At::root(&old), &mut errors);
        validate(&At::root(&new), NameRule::Subdomain, true, &mut errors);
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_74_metadata_errors_have_upstreams_messages() {
        let none: [&str; 0] = [];
        assert_eq!(on_create(json!({"name": "a", "namespace": "b"})), none);
        assert_eq!(
            on_create(json!({"namespace": "b"})),
            ["metadata.name: Required value: name or generateName is required"]
        );
        assert_eq!(
            on_create(json!({"name": "a", "namespace": "b", "labels": {"a b": "c"}})),
            [
                "metadata.labels: Invalid value: \"a b\": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
            ]
        );
        let large = "x".repeat(ANNOTATIONS_MAX);
        assert_eq!(
            on_create(json!({"name": "a", "namespace": "b", "annotations": {"A.b/c": large}})),
            ["metadata.annotations: Too long: may not be more than 262144 bytes"]
        );
    }

    #[test]
    fn a_73_owners_are_complete_and_at_most_one_controls() {
        let owner = |name| json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": "u", "controller": true});
        let messages = on_create(
            json!({"name": "a", "namespace": "b", "ownerReferences": [owner("x"), owner("y")]}),
        );
        assert_eq!(messages.len(), 1);
        assert!(messages[0].ends_with("Only one reference can have Controller set to true. Found \"true\" in references for Pod/x and Pod/y"), "{messages:?}");
        let messages = on_create(json!({"name": "a", "namespace": "b", "ownerReferences": [{}]}));
        assert_eq!(messages.len(), 4);
        assert_eq!(
            messages[0],
            "metadata.ownerReferences.apiVersion: Invalid value: \"\": version must not be empty"
        );
    }

    #[test]
    fn a_68_no_finalizer_is_added_during_deletion() {
        let deleting = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
        let mut late = deleting.clone();
        late["finalizers"] = json!(["example.com/late"]);
        let message = "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers []string{\"example.com/late\"}";
        assert_eq!(on_update(late, deleting), [message, message]);
    }

    #[test]
    fn a_74_finalizers_have_a_domain() {
        let message = "metadata.finalizers[0]: Invalid value: \"nodomain\": name is neither a standard finalizer name nor is it fully qualified";
        assert_eq!(on_update(json!({"finalizers": ["nodomain"]}), json!({})), [message, message]);
    }

    #[test]
    fn absent_and_empty_values_are_the_same() {
        let same = |a: Value, b: Value| same(Some(&a), Some(&b));
        assert!(same(json!({"a": [], "b": {}, "c": null}), json!({})));
        assert!(same(json!({"a": {"b": ""}}), json!({})));
        assert!(!same(json!({"a": 0}), json!({})));
        assert!(!same(json!({"a": 1}), json!({"a": 2})));
        assert!(!same(json!({}), json!({"a": 2})));
    }
}
