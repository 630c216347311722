//! Structural schemas: the type of every value is declared in exactly one place.
//!
//! The skeleton (types, properties, items) is outside of `allOf`, `anyOf`, `oneOf` and `not`; these may
//! only restrict values of fields that the skeleton declares.

use api::field::{At, Errors};
use serde_json::Value;

/// Reports errors sorted by message, as upstream does.
pub(super) fn validate(root: &At, errors: &mut Errors) {
    let mut found = Errors::default();
    validate_node(root, Level::Root, &mut found);
    validate_completeness(root, &mut found);
    let mut found: Vec<_> = found.into_iter().collect();
    found.sort_by_cached_key(ToString::to_string);
    for error in found {
        let detail = error.message.split_once(": ").map_or("", |(_title, rest)| rest);
        errors.push(error.wrong, error.field, None, detail);
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Level {
    Root,
    Item,
    Field,
}

const OPEN: &str = "x-kubernetes-preserve-unknown-fields";
const INT_OR_STRING: &str = "x-kubernetes-int-or-string";
const EMBEDDED: &str = "x-kubernetes-embedded-resource";

fn validate_node(schema: &At, level: Level, errors: &mut Errors) {
    let kind = schema.field("type");
    let items = schema.field("items");
    if kind.text() == "array" && !items.is_set() {
        errors.required(&items, "must be specified");
    }
    if items.is_set() {
        validate_node(&items, Level::Item, errors);
    }
    for (_, property) in schema.field("properties").entries() {
        validate_node(&property, Level::Field, errors);
    }
    let additional = schema.field("additionalProperties");
    if additional.value().is_some_and(Value::is_object) {
        validate_node(&additional, Level::Field, errors);
    }
    if additional.is_set() && level == Level::Root {
        errors.forbidden(&additional, "must not be used at the root");
    }
    validate_type(schema, level, errors);
    validate_narrowing(schema, errors);
    if level == Level::Root || schema.field(EMBEDDED).is_true() {
        validate_metadata(schema, level, errors);
    }
    if schema.field(EMBEDDED).is_true()
        && !schema.field(OPEN).is_true()
        && schema.field("properties").is_empty()
    {
        let detail = "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields";
        errors.required(&schema.field("properties"), detail);
    }
}

fn validate_type(schema: &At, level: Level, errors: &mut Errors) {
    let kind = schema.field("type");
    let (either, open) = (schema.field(INT_OR_STRING), schema.field(OPEN));
    let embedded = schema.field(EMBEDDED);
    if embedded.is_true() && kind.text() != "object" {
        let detail = "must be object if x-kubernetes-embedded-resource is true";
        if kind.text().is_empty() {
            errors.required(&kind, detail);
        } else {
            errors.invalid(&kind, detail);
        }
    } else if kind.text().is_empty() && !either.is_true() && !open.is_true() {
        let detail = match level {
            Level::Root => "must not be empty at the root",
            Level::Item => "must not be empty for specified array items",
            Level::Field => "must not be empty for specified object fields",
        };
        errors.required(&kind, detail);
    }
    if either.is_true() {
        for other in [&open, &embedded] {
            if other.is_true() {
                errors.invalid(other, "must be false if x-kubernetes-int-or-string is true");
            }
        }
    }
    let known = ["array", "boolean", "integer", "number", "object", "string"];
    if !kind.text().is_empty() && !known.contains(&kind.text()) {
        errors.not_supported(&kind, &known);
    } else if level == Level::Root && !["", "object"].contains(&kind.text()) {
        errors.invalid(&kind, "must be object at the root");
    }
    let additional = schema.field("additionalProperties");
    if embedded.is_true() && additional.is_set() {
        let detail = "must not be used if x-kubernetes-embedded-resource is set";
        errors.forbidden(&additional, detail);
    }
}

/// Metadata has a fixed type; a schema can only restrict its names.
fn validate_metadata(schema: &At, level: Level, errors: &mut Errors) {
    let properties = schema.field("properties");
    for (name, expected) in [("kind", "string"), ("apiVersion", "string"), ("metadata", "object")] {
        let property = properties.key(name);
        let kind = property.field("type");
        if property.is_set() && kind.text() != expected {
            errors.invalid_value(&kind, kind.text(), &format!("must be {expected}"));
        }
    }
    let metadata = properties.key("metadata");
    let inner = metadata.field("properties");
    let only_names = inner.entries().all(|(name, _)| name == "name" || name == "generateName");
    let only_known =
        metadata.entries().all(|(word, _)| ["type", "properties", "default"].contains(&word));
    if level == Level::Root && !(only_names && only_known) {
        let detail = "must not specify anything other than name and generateName, but metadata is implicitly specified";
        errors.forbidden(&metadata, detail);
    }
}

/// Keywords that may not be used inside `allOf` and the others, and the error message.
const SKELETON: [(&str, &str); 13] = [
    ("type", "must be empty to be structural"),
    ("additionalProperties", "must be undefined to be structural"),
    ("default", "must be undefined to be structural"),
    ("title", "must be empty to be structural"),
    ("description", "must be empty to be structural"),
    ("nullable", "must be false to be structural"),
    (OPEN, "must be false to be structural"),
    (EMBEDDED, "must be false to be structural"),
    (INT_OR_STRING, "must be false to be structural"),
    ("x-kubernetes-list-map-keys", "must be empty to be structural"),
    ("x-kubernetes-list-type", "must be undefined to be structural"),
    ("x-kubernetes-map-type", "must be undefined to be structural"),
    ("x-kubernetes-validations", "must be empty to be structural"),
];

fn validate_narrowing(schema: &At, errors: &mut Errors) {
    // The usual form of int-or-string in plain OpenAPI is allowed.
    let all = schema.field("allOf");
    let any = schema.field("anyOf");
    let first_is_either = all.items().next().is_some_and(|p| is_either(&p.field("anyOf")));
    for (place, part) in all.items().enumerate() {
        validate_nested(&part, place == 0 && first_is_either, errors);
    }
    if !is_either(&any) {
        for part in any.items() {
            validate_nested(&part, false, errors);
        }
    }
    for part in schema.field("oneOf").items() {
        validate_nested(&part, false, errors);
    }
    let not = schema.field("not");
    if not.is_set() {
        validate_nested(&not, false, errors);
    }
}

/// `anyOf: [{type: integer}, {type: string}]`
fn is_either(any: &At) -> bool {
    let types: Vec<&str> = any.items().map(|part| part.field("type").text()).collect();
    types == ["integer", "string"] && any.items().all(|part| part.len() == 1)
}

fn validate_nested(part: &At, skip_any: bool, errors: &mut Errors) {
    for (keyword, detail) in SKELETON {
        let at = part.field(keyword);
        let empty = at.value().and_then(Value::as_array).is_some_and(Vec::is_empty);
        let unset = !at.is_set() || at.str() == Some("") || at.bool() == Some(false) || empty;
        if !unset {
            errors.forbidden(&at, detail);
        }
    }
    let items = part.field("items");
    if items.is_set() {
        validate_nested(&items, false, errors);
    }
    for (name, property) in part.field("properties").entries() {
        validate_nested(&property, false, errors);
        if name == "metadata" {
            errors.forbidden(&property, "must not be specified in a nested context");
        }
    }
    for keyword in ["allOf", "anyOf", "oneOf"] {
        if keyword == "anyOf" && skip_any {
            continue;
        }
        for inner in part.field(keyword).items() {
            validate_nested(&inner, false, errors);
        }
    }
    let not = part.field("not");
    if not.is_set() {
        validate_nested(&not, false, errors);
    }
}

/// The skeleton must declare every field that a restricting part names.
fn validate_completeness(schema: &At, errors: &mut Errors) {
    for_each_narrowing(schema, |part| named_outside(part, schema, errors));
    let items = schema.field("items");
    if items.is_set() {
        validate_completeness(&items, errors);
    }
    for (_, property) in schema.field("properties").entries() {
        validate_completeness(&property, errors);
    }
    let additional = schema.field("additionalProperties");
    if additional.value().is_some_and(Value::is_object) {
        validate_completeness(&additional, errors);
    }
}

fn for_each_narrowing(schema: &At, mut visit: impl FnMut(&At)) {
    for keyword in ["allOf", "anyOf", "oneOf"] {
        for part in schema.field(keyword).items() {
            visit(&part);
        }
    }
    let not = schema.field("not");
    if not.is_set() {
        visit(&not);
    }
}

fn named_outside(part: &At, skeleton: &At, errors: &mut Errors) {
    let items = part.field("items");
    if items.is_set() {
        let outside = skeleton.field("items");
        needs(&items, &outside, errors);
    }
    for (name, property) in part.field("properties").entries() {
        let properties = skeleton.field("properties");
        let own = properties.key(name);
        let additional = skeleton.field("additionalProperties");
        if !own.is_set() && additional.value().is_some_and(Value::is_object) {
            needs(&property, &additional, errors);
        } else {
            needs(&property, &own, errors);
        }
    }
    for_each_narrowing(part, |inner| named_outside(inner, skeleton, errors));
}

fn needs(part: &At, outside: &At, errors: &mut Errors) {
    if outside.is_set() {
        named_outside(part, outside, errors);
    } else {
        errors.required(outside, &format!("because it is defined in {}", part.path()));
    }
}
