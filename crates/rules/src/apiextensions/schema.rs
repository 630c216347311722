//! The schema of a custom resource: which keywords may be used, and where.
//!
//! First, forbidden and contradictory keywords are reported; only a schema without those is checked for
//! being structural (`structural`). Not checked: that defaults fit their schema, that patterns compile,
//! and CEL rules.

use super::structural;
use crate::check;
use api::field::{At, Errors};
use serde_json::Value;

pub(super) fn validate(root: &At, errors: &mut Errors) {
    let before = errors.iter().len();
    if root.field("nullable").is_true() {
        errors.forbidden(&root.field("nullable"), "nullable cannot be true at the root");
    }
    validate_keywords(root, errors);
    if errors.iter().len() == before {
        structural::validate(root, errors);
    }
}

/// Keywords that no schema may use, with the error message.
const UNSUPPORTED: [(&str, &str); 6] = [
    ("id", "id is not supported"),
    ("additionalItems", "additionalItems is not supported"),
    ("patternProperties", "patternProperties is not supported"),
    ("definitions", "definitions is not supported"),
    ("dependencies", "dependencies is not supported"),
    ("$ref", "$ref is not supported"),
];

fn validate_keywords(schema: &At, errors: &mut Errors) {
    for (keyword, detail) in UNSUPPORTED {
        let at = schema.field(keyword);
        let empty = at
            .value()
            .is_some_and(|value| *value == "" || value.as_object().is_some_and(|m| m.is_empty()));
        if at.is_set() && !empty {
            errors.forbidden(&at, detail);
        }
    }
    if schema.field("type").text() == "null" {
        let detail = "type cannot be set to null, use nullable as an alternative";
        errors.forbidden(&schema.field("type"), detail);
    }
    if schema.field("uniqueItems").is_true() {
        let detail =
            "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
        errors.forbidden(&schema.field("uniqueItems"), detail);
    }
    validate_additional(schema, errors);
    let items = schema.field("items");
    if items.value().is_some_and(Value::is_array) {
        errors.forbidden(&items, "items must be a schema object and not an array");
    }
    validate_extensions(schema, errors);
    for_each_child(schema, |child| validate_keywords(child, errors));
}

/// Every schema directly inside this one.
fn for_each_child(schema: &At, mut visit: impl FnMut(&At)) {
    for (_, property) in schema.field("properties").entries() {
        visit(&property);
    }
    for keyword in ["additionalProperties", "items", "not"] {
        let at = schema.field(keyword);
        if at.value().is_some_and(Value::is_object) {
            visit(&at);
        }
    }
    for keyword in ["allOf", "anyOf", "oneOf"] {
        for part in schema.field(keyword).items() {
            visit(&part);
        }
    }
}

fn validate_additional(schema: &At, errors: &mut Errors) {
    let additional = schema.field("additionalProperties");
    if additional.bool() == Some(false) {
        errors.forbidden(&additional, "additionalProperties cannot be set to false");
    }
    if !schema.field("properties").is_empty()
        && additional.is_set()
        && additional.bool() != Some(false)
    {
        errors.forbidden(&additional, "additionalProperties and properties are mutual exclusive");
    }
}

fn validate_extensions(schema: &At, errors: &mut Errors) {
    let open = schema.field("x-kubernetes-preserve-unknown-fields");
    if open.bool() == Some(false) {
        errors.invalid(&open, "must be true or undefined");
    }
    let map_type = schema.field("x-kubernetes-map-type");
    if map_type.is_set() {
        type_must_be(schema, "object", "x-kubernetes-map-type", errors);
        check::one_of(&map_type, &["atomic", "granular"], errors);
    }
    let list_type = schema.field("x-kubernetes-list-type");
    let keys = schema.field("x-kubernetes-list-map-keys");
    if list_type.is_set() {
        type_must_be(schema, "array", "x-kubernetes-list-type", errors);
        check::one_of(&list_type, &["atomic", "map", "set"], errors);
    }
    if !keys.is_empty() && list_type.text() != "map" {
        let detail = "must be map if x-kubernetes-list-map-keys is non-empty";
        if list_type.is_set() {
            errors.invalid(&list_type, detail);
        } else {
            errors.required(&list_type, detail);
        }
    }
    if list_type.text() == "map" {
        validate_map_list(schema, errors);
    }
}

fn type_must_be(schema: &At, expected: &str, extension: &str, errors: &mut Errors) {
    let at = schema.field("type");
    let detail = format!("must be {expected} if {extension} is true");
    match at.text() {
        "" => errors.required(&at, &detail),
        found if found != expected => errors.invalid(&at, &detail),
        _ => {}
    }
}

/// A list map: its keys must be declared, required or defaulted, and scalar.
fn validate_map_list(schema: &At, errors: &mut Errors) {
    let keys = schema.field("x-kubernetes-list-map-keys");
    let items = schema.field("items");
    if keys.is_empty() {
        errors.required(&keys, "must not be empty if x-kubernetes-list-type is map");
    }
    if !items.is_set() {
        errors.required(&items, "must have a schema if x-kubernetes-list-type is map");
        return;
    }
    if items.field("type").text() != "object" {
        let detail = "must be object if parent array's x-kubernetes-list-type is map";
        errors.invalid_value(&items.field("type"), items.field("type").text(), detail);
    }
    let properties = items.field("properties");
    let mut seen = check::Unique::new();
    for key in keys.items() {
        if !seen.add(key.text()) {
            errors.invalid(&keys, "all entries must be unique");
        }
        let property = properties.key(key.text());
        if !property.is_set() {
            errors.invalid(&key, "entries must all be names of item properties");
        } else if ["object", "array"].contains(&property.field("type").text()) {
            let detail = "must be a scalar type if parent array's x-kubernetes-list-type is map";
            errors.invalid(&property.field("type"), detail);
        }
        let required = items.field("required");
        let is_required = required.items().any(|name| name.text() == key.text());
        if property.is_set() && !is_required && !property.field("default").is_set() {
            let detail = "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property";
            errors.required(&property.field("default"), detail);
        }
    }
}
