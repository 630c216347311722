//! The schema of fields, for the types of `landfall.dev`, which are written by hand.

use serde_json::{Map, Value, json};

pub(super) const PREFIX: &str = "dev.landfall.v1";
pub(super) const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";

pub(super) fn object(
    description: &str,
    required: &[&str],
    fields: &[(&str, Value, &str)],
) -> Value {
    let mut properties = Map::new();
    for (name, schema, description) in fields {
        let mut schema = schema.clone();
        schema["description"] = (*description).into();
        properties.insert((*name).to_owned(), schema);
    }
    json!({"description": description, "type": "object", "properties": properties, "required": required})
}

pub(super) fn string() -> Value {
    json!({"type": "string"})
}

pub(super) fn integer() -> Value {
    json!({"type": "integer", "format": "int64"})
}

pub(super) fn int32() -> Value {
    json!({"type": "integer", "format": "int32"})
}

pub(super) fn micro_time() -> Value {
    reference(META, "MicroTime")
}

pub(super) fn own(name: &str) -> Value {
    reference(PREFIX, name)
}

pub(super) fn reference(package: &str, name: &str) -> Value {
    json!({"$ref": format!("#/definitions/{package}.{name}")})
}
