//! The schema of a custom kind: that of its definition, plus the fields of every object.
//!
//! OpenAPI v2 omits what old clients cannot handle: unions, nullable values, and the content of everything that
//! preserves unknown fields.

use super::names::{self, Gvk};
use super::types::{Dialect, as_map};
use api::kind::Kind;
use api::schema::docs;
use serde_json::{Map, Value, json};

const EMBEDDED: &str = "x-kubernetes-embedded-resource";
const PRESERVE: &str = "x-kubernetes-preserve-unknown-fields";
/// Any type, because all describe apiVersion, kind and metadata in the same way.
const DESCRIBED: &str = "io.k8s.api.core.v1.Pod";

/// The definition of the kind itself.
pub(super) fn definition(kind: &Kind, open_api: &Value, dialect: Dialect) -> Value {
    let mut body = match open_api {
        // Old clients refuse unknown fields as soon as any property is declared.
        _ if dialect == Dialect::V2 && is_true(open_api, PRESERVE) => Map::new(),
        Value::Object(schema) => schema.clone(),
        _ => Map::new(),
    };
    if body.is_empty() {
        body.insert("type".into(), "object".into());
    } else {
        if dialect == Dialect::V2 {
            simplify(&mut body);
        }
        add_embedded(&mut body, dialect);
        add_object_fields(&mut body, dialect);
    }
    let gvk = Gvk::new(&kind.group, &kind.version, &kind.kind);
    body.insert("x-kubernetes-group-version-kind".into(), json!([gvk.json()]));
    Value::Object(body)
}

/// The definition of the kind's list.
pub(super) fn list_definition(kind: &Kind, dialect: Dialect) -> Value {
    let item = json!({"$ref": dialect.reference(&names::definition(kind))});
    let list_kind = kind.list_kind();
    let gvk = Gvk::new(&kind.group, &kind.version, &list_kind);
    let mut body = as_map(json!({
        "description": format!("{list_kind} is a list of {}", kind.kind),
        "type": "object",
        "required": ["items"],
        "properties": {
            "items": {"type": "array", "items": item, "description": format!("The {}.", kind.plural)},
        },
        "x-kubernetes-group-version-kind": [gvk.json()],
    }));
    add_object_fields(&mut body, dialect);
    let metadata = reference("ListMeta", "Standard list metadata.", dialect);
    if let Some(properties) = body.get_mut("properties") {
        properties["metadata"] = metadata;
    }
    Value::Object(body)
}

fn is_true(schema: &Value, key: &str) -> bool {
    schema.get(key).and_then(Value::as_bool).unwrap_or(false)
}

fn add_object_fields(body: &mut Map<String, Value>, dialect: Dialect) {
    let words = |field| docs::of_field(DESCRIBED, field).unwrap_or_default();
    let properties = body.entry("properties").or_insert_with(|| json!({}));
    if let Value::Object(properties) = properties {
        for field in ["apiVersion", "kind"] {
            let body = json!({"type": "string", "description": words(field)});
            properties.insert(field.into(), body);
        }
        let metadata = reference("ObjectMeta", &words("metadata"), dialect);
        properties.insert("metadata".into(), metadata);
    }
}

fn reference(ty: &str, description: &str, dialect: Dialect) -> Value {
    let reference = json!({"$ref": dialect.reference(&names::meta(ty))});
    match dialect {
        Dialect::V2 => {
            json!({"$ref": reference["$ref"], "description": description})
        }
        Dialect::V3 => json!({"allOf": [reference], "description": description}),
    }
}

/// Calls `f` for each schema directly inside this one.
fn for_each_inner(body: &mut Map<String, Value>, mut f: impl FnMut(&mut Map<String, Value>)) {
    if let Some(Value::Object(properties)) = body.get_mut("properties") {
        properties.values_mut().filter_map(Value::as_object_mut).for_each(&mut f);
    }
    for key in ["items", "additionalProperties"] {
        if let Some(Value::Object(inner)) = body.get_mut(key) {
            f(inner);
        }
    }
}

/// Embedded objects, which have a kind and metadata too.
fn add_embedded(body: &mut Map<String, Value>, dialect: Dialect) {
    for_each_inner(body, |inner| add_embedded(inner, dialect));
    let marked = |key| body.get(key).and_then(Value::as_bool).unwrap_or(false);
    if !marked(EMBEDDED) || (dialect == Dialect::V2 && marked(PRESERVE)) {
        return;
    }
    add_object_fields(body, dialect);
    if let Value::Array(required) = body.entry("required").or_insert_with(|| json!([])) {
        for field in ["kind", "apiVersion"] {
            if !required.iter().any(|name| name == field) {
                required.push(field.into());
            }
        }
    }
}

/// Removes what OpenAPI v2 or an old kubectl cannot handle.
fn simplify(body: &mut Map<String, Value>) {
    for key in ["allOf", "oneOf", "anyOf", "not", "default"] {
        body.remove(key);
    }
    let takes = |body: &mut Map<String, Value>, key| {
        body.get(key).and_then(Value::as_bool).unwrap_or(false)
    };
    if takes(body, "nullable") {
        for key in ["type", "items", "properties"] {
            body.remove(key);
        }
    }
    body.remove("nullable");
    if takes(body, PRESERVE) {
        body.remove("items");
        body.remove("properties");
        if body.get("type").is_some_and(|ty| ty == "object") {
            body.remove("type");
        }
    }
    if body.get("type").is_some_and(|ty| ty == "array") && !body.contains_key("items") {
        body.remove("type");
    }
    forget_nullable_requirements(body);
    for_each_inner(body, simplify);
}

/// A required field that may be null would be refused when it is.
fn forget_nullable_requirements(body: &mut Map<String, Value>) {
    if body.get("additionalProperties").is_some_and(|inner| is_true(inner, "nullable")) {
        body.remove("required");
        return;
    }
    let nullable: Vec<String> = match body.get("properties") {
        Some(Value::Object(properties)) => properties
            .iter()
            .filter(|(_, inner)| is_true(inner, "nullable"))
            .map(|(name, _)| name.clone())
            .collect(),
        _ => return,
    };
    if let Some(Value::Array(required)) = body.get_mut("required") {
        required.retain(|name| !nullable.iter().any(|other| name == other));
        if required.is_empty() {
            body.remove("required");
        }
    }
}
