//! Encodes the OpenAPI v2 document as the protobuf message `openapi.v2.Document`, which is the only
//! form that old kubectl versions read.
//!
//! The message mirrors Swagger's JSON, so encoding is a walk over the parts that `v2` makes: each
//! kind of object has a table of its members with their numbers. What Swagger does not define (vendor
//! extensions, defaults, enums) is encoded as YAML text; we use JSON, which is valid YAML.

use super::v2;
use api::Registry;
use serde_json::{Map, Value};
use std::convert::Infallible;

/// `GET /openapi/v2` as protobuf.
pub fn document_bytes(registry: &Registry) -> Vec<u8> {
    let mut document = Message::default();
    document.string(1, "2.0");
    document.object(2, INFO, &v2::info());

    let mut paths = Message::default();
    let Ok(()) = v2::each_path(registry, |name, body| {
        paths.message(2, &named(name, encode(PATH_ITEM, &body)));
        Ok::<(), Infallible>(())
    });
    document.message(8, &paths);
    drop(paths);

    let mut definitions = Message::default();
    let Ok(()) = v2::each_definition(registry, |name, body| {
        definitions.message(1, &named(name, encode(SCHEMA, &body)));
        Ok::<(), Infallible>(())
    });
    document.message(9, &definitions);
    drop(definitions);

    let mut parameters = Message::default();
    for (name, body) in &v2::shared_parameters(registry) {
        parameters.message(1, &named(name, parameter(body)));
    }
    document.message(10, &parameters);

    let mut requirement = Message::default();
    requirement.message(1, &named("BearerToken", Message::default()));
    document.message(12, &requirement);
    let mut api_key = Message::default();
    api_key.object(2, API_KEY, &v2::security());
    let mut security = Message::default();
    security.message(1, &named("BearerToken", api_key));
    document.message(13, &security);
    document.bytes
}

/// How a member of a JSON object is written.
#[derive(Clone, Copy)]
enum As {
    String,
    Strings,
    Bool,
    Integer,
    Double,
    /// `Any`: YAML text.
    Any,
    Anys,
    Object(Table),
    /// Schemas, one after the other.
    Schemas,
    /// `Properties`: a message that holds schemas by name.
    Properties,
    /// `TypeItem`: a message that holds strings.
    Type,
    /// `ItemsItem`: a message that holds schemas.
    Items,
    /// `AdditionalPropertiesItem`: a schema or a boolean.
    SchemaOrBool,
    /// `ParametersItem`: a parameter or a reference to one.
    Parameters,
    Responses,
    /// `SchemaItem`: a schema, not a file.
    SchemaItem,
}

/// The members of one kind of object, with their field numbers. `x-` stands for all extensions.
type Table = &'static [(&'static str, u32, As)];

const INFO: Table = &[("title", 1, As::String), ("version", 2, As::String)];

const API_KEY: Table = &[
    ("type", 1, As::String),
    ("name", 2, As::String),
    ("in", 3, As::String),
    ("description", 4, As::String),
];

const PATH_ITEM: Table = &[
    ("get", 2, As::Object(OPERATION)),
    ("put", 3, As::Object(OPERATION)),
    ("post", 4, As::Object(OPERATION)),
    ("delete", 5, As::Object(OPERATION)),
    ("options", 6, As::Object(OPERATION)),
    ("head", 7, As::Object(OPERATION)),
    ("patch", 8, As::Object(OPERATION)),
    ("parameters", 9, As::Parameters),
];

const OPERATION: Table = &[
    ("tags", 1, As::Strings),
    ("description", 3, As::String),
    ("operationId", 5, As::String),
    ("produces", 6, As::Strings),
    ("consumes", 7, As::Strings),
    ("parameters", 8, As::Parameters),
    ("responses", 9, As::Responses),
    ("schemes", 10, As::Strings),
    ("x-", 13, As::Any),
];

const RESPONSE: Table = &[("description", 1, As::String), ("schema", 2, As::SchemaItem)];

const BODY_PARAMETER: Table = &[
    ("description", 1, As::String),
    ("name", 2, As::String),
    ("in", 3, As::String),
    ("required", 4, As::Bool),
    ("schema", 5, As::Object(SCHEMA)),
];

const PATH_PARAMETER: Table = &[
    ("required", 1, As::Bool),
    ("in", 2, As::String),
    ("description", 3, As::String),
    ("name", 4, As::String),
    ("type", 5, As::String),
    ("uniqueItems", 19, As::Bool),
];

const QUERY_PARAMETER: Table = &[
    ("required", 1, As::Bool),
    ("in", 2, As::String),
    ("description", 3, As::String),
    ("name", 4, As::String),
    ("type", 6, As::String),
    ("uniqueItems", 20, As::Bool),
];

const EXTERNAL_DOCS: Table = &[("description", 1, As::String), ("url", 2, As::String)];

const SCHEMA: Table = &[
    ("$ref", 1, As::String),
    ("format", 2, As::String),
    ("title", 3, As::String),
    ("description", 4, As::String),
    ("default", 5, As::Any),
    ("multipleOf", 6, As::Double),
    ("maximum", 7, As::Double),
    ("exclusiveMaximum", 8, As::Bool),
    ("minimum", 9, As::Double),
    ("exclusiveMinimum", 10, As::Bool),
    ("maxLength", 11, As::Integer),
    ("minLength", 12, As::Integer),
    ("pattern", 13, As::String),
    ("maxItems", 14, As::Integer),
    ("minItems", 15, As::Integer),
    ("uniqueItems", 16, As::Bool),
    ("maxProperties", 17, As::Integer),
    ("minProperties", 18, As::Integer),
    ("required", 19, As::Strings),
    ("enum", 20, As::Anys),
    ("additionalProperties", 21, As::SchemaOrBool),
    ("type", 22, As::Type),
    ("items", 23, As::Items),
    ("allOf", 24, As::Schemas),
    ("properties", 25, As::Properties),
    ("externalDocs", 29, As::Object(EXTERNAL_DOCS)),
    ("example", 30, As::Any),
    ("x-", 31, As::Any),
];

fn encode(table: Table, value: &Value) -> Message {
    let mut message = Message::default();
    let Value::Object(members) = value else { return message };
    for (name, number, form) in table {
        if *name == "x-" {
            message.extensions(*number, members);
        } else if let Some(value) = members.get(*name) {
            message.member(*number, *form, value);
        }
    }
    message
}

/// A message of the form `Named…`: a name (1) and a value (2).
fn named(name: &str, value: Message) -> Message {
    let mut message = Message::default();
    message.string(1, name);
    message.message(2, &value);
    message
}

/// `Any`, whose `yaml` (2) holds the value.
fn any(value: &Value) -> Message {
    let mut message = Message::default();
    message.string(2, &format!("{value}\n"));
    message
}

/// `Parameter`: a body (1), or (2) one of the other places.
fn parameter(value: &Value) -> Message {
    let mut other = Message::default();
    let mut message = Message::default();
    match value["in"].as_str() {
        Some("body") => {
            message.object(1, BODY_PARAMETER, value);
            return message;
        }
        Some("path") => other.object(4, PATH_PARAMETER, value),
        _ => other.object(3, QUERY_PARAMETER, value),
    }
    message.message(2, &other);
    message
}

/// `JsonReference`
fn reference(value: &Value) -> Option<Message> {
    let target = value.get("$ref")?.as_str()?;
    let mut message = Message::default();
    message.string(1, target);
    Some(message)
}

/// A protobuf message that is being encoded.
#[derive(Default)]
struct Message {
    bytes: Vec<u8>,
}

impl Message {
    fn member(&mut self, number: u32, form: As, value: &Value) {
        match form {
            As::String => self.string(number, value.as_str().unwrap_or_default()),
            As::Strings => self.strings(number, value),
            As::Bool => self.varint_field(number, value.as_bool().unwrap_or(false).into()),
            As::Integer => self.varint_field(number, value.as_i64().unwrap_or(0) as u64),
            As::Double => self.double(number, value.as_f64().unwrap_or(0.0)),
            As::Any => self.message(number, &any(value)),
            As::Anys => items(value).for_each(|value| self.message(number, &any(value))),
            As::Object(table) => self.object(number, table, value),
            As::Schemas => items(value).for_each(|v| self.object(number, SCHEMA, v)),
            As::Properties => {
                let mut all = Message::default();
                for (name, value) in value.as_object().into_iter().flatten() {
                    all.message(1, &named(name, encode(SCHEMA, value)));
                }
                self.message(number, &all);
            }
            As::Type => {
                let mut types = Message::default();
                match value {
                    Value::String(ty) => types.string(1, ty),
                    list => types.strings(1, list),
                }
                self.message(number, &types);
            }
            As::Items | As::SchemaItem => {
                let mut wrapper = Message::default();
                wrapper.object(1, SCHEMA, value);
                self.message(number, &wrapper);
            }
            As::SchemaOrBool => {
                let mut item = Message::default();
                match value.as_bool() {
                    Some(allowed) => item.bool_in_oneof(2, allowed),
                    None => item.object(1, SCHEMA, value),
                }
                self.message(number, &item);
            }
            As::Parameters => items(value).for_each(|value| {
                let mut item = Message::default();
                match reference(value) {
                    Some(reference) => item.message(2, &reference),
                    None => item.message(1, &parameter(value)),
                }
                self.message(number, &item);
            }),
            As::Responses => {
                let mut responses = Message::default();
                for (code, response) in value.as_object().into_iter().flatten() {
                    let mut value = Message::default();
                    value.object(1, RESPONSE, response);
                    responses.message(1, &named(code, value));
                }
                self.message(number, &responses);
            }
        }
    }

    fn object(&mut self, number: u32, table: Table, value: &Value) {
        self.message(number, &encode(table, value));
    }

    fn extensions(&mut self, number: u32, members: &Map<String, Value>) {
        for (name, value) in members.iter().filter(|(name, _)| name.starts_with("x-")) {
            self.message(number, &named(name, any(value)));
        }
    }

    fn strings(&mut self, number: u32, value: &Value) {
        // A repeated field has no default: empty strings count.
        for text in items(value).filter_map(Value::as_str) {
            self.bytes_field(number, text.as_bytes());
        }
    }

    fn string(&mut self, number: u32, text: &str) {
        if !text.is_empty() {
            self.bytes_field(number, text.as_bytes());
        }
    }

    fn message(&mut self, number: u32, message: &Message) {
        self.bytes_field(number, &message.bytes);
    }

    fn bytes_field(&mut self, number: u32, bytes: &[u8]) {
        self.varint(u64::from(number) << 3 | 2);
        self.varint(bytes.len() as u64);
        self.bytes.extend_from_slice(bytes);
    }

    /// Zero and false are what an absent field means.
    fn varint_field(&mut self, number: u32, value: u64) {
        if value != 0 {
            self.varint(u64::from(number) << 3);
            self.varint(value);
        }
    }

    /// In a oneof, false is not the same as absent.
    fn bool_in_oneof(&mut self, number: u32, value: bool) {
        self.varint(u64::from(number) << 3);
        self.varint(value.into());
    }

    fn double(&mut self, number: u32, value: f64) {
        if value != 0.0 {
            self.varint(u64::from(number) << 3 | 1);
            self.bytes.extend_from_slice(&value.to_le_bytes());
        }
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

#[cfg(test)]
mod tests;
