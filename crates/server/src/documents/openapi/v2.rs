//! OpenAPI 2.0, also called Swagger: one document for the whole API.
//!
//! Definitions and paths are generated one by one, and encoded as JSON here and as protobuf in `gnostic`, without building the
//! whole document as a tree.

use super::operations::{self, Endpoint, Operation};
use super::parameters::{self as p, Parameter, Place};
use super::types::{Dialect, Types};
use super::write::Members;
use super::{custom, names, v3};
use crate::documents::discovery;
use api::Registry;
use api::kind::Kind;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::io::{self, Write};

/// `GET /openapi/v2` as JSON text.
pub fn document_bytes(registry: &Registry) -> Vec<u8> {
    let mut out = Vec::new();
    // Writing to memory cannot fail.
    let _ = write(registry, &mut out);
    out
}

/// The document as a tree. It is large: for tests.
pub fn document(registry: &Registry) -> Value {
    serde_json::from_slice(&document_bytes(registry)).unwrap_or_default()
}

fn write(registry: &Registry, out: &mut impl Write) -> io::Result<()> {
    let mut document = Members::begin(out)?;
    let mut definitions = Members::begin(document.name("definitions")?)?;
    each_definition(registry, |name, body| definitions.value(name, &body))?;
    definitions.end()?;
    document.value("info", &info())?;
    document.value("parameters", &Value::Object(shared_parameters(registry)))?;
    let mut paths = Members::begin(document.name("paths")?)?;
    each_path(registry, |name, body| paths.value(name, &body))?;
    paths.end()?;
    document.value("security", &json!([{"BearerToken": []}]))?;
    document.value("securityDefinitions", &json!({"BearerToken": security()}))?;
    document.value("swagger", &json!("2.0"))?;
    document.end()
}

pub(super) fn info() -> Value {
    json!({"title": "Kubernetes", "version": discovery::git_version()})
}

pub(super) fn security() -> Value {
    json!({
        "description": "Bearer Token authentication",
        "in": "header",
        "name": "authorization",
        "type": "apiKey",
    })
}

/// Every type, by name: built-in ones, then custom ones.
pub(super) fn each_definition<E>(
    registry: &Registry,
    mut f: impl FnMut(&str, Value) -> Result<(), E>,
) -> Result<(), E> {
    let types = Types::new(registry, Dialect::V2);
    let kinds: Vec<&Kind> = registry.kinds().iter().map(AsRef::as_ref).collect();
    let roots = v3::roots(&kinds);
    for name in types.reachable(roots.iter().map(String::as_str)) {
        f(&name, types.definition(&name))?;
    }
    for kind in kinds {
        if let Some(custom) = &kind.custom {
            let definition = custom::definition(kind, &custom.open_api, Dialect::V2);
            f(&names::definition(kind), definition)?;
            f(&names::list_definition(kind), custom::list_definition(kind, Dialect::V2))?;
        }
    }
    Ok(())
}

/// Every path of the API.
pub(super) fn each_path<E>(
    registry: &Registry,
    mut f: impl FnMut(&str, Value) -> Result<(), E>,
) -> Result<(), E> {
    for (group, version) in v3::documents(registry) {
        let list = operations::resources(group, version);
        f(&list.path, path_item(&list))?;
        for kind in discovery::resources(registry, group, version) {
            for endpoint in operations::of(kind) {
                f(&endpoint.path, path_item(&endpoint))?;
            }
        }
    }
    Ok(())
}

/// The parameters that paths refer to, by name.
pub(super) fn shared_parameters(registry: &Registry) -> Map<String, Value> {
    let mut shared: BTreeMap<String, &'static Parameter> = BTreeMap::new();
    for kind in registry.kinds() {
        for endpoint in operations::of(kind) {
            let all = endpoint.operations.iter().flat_map(|operation| &operation.parameters);
            for parameter in endpoint.parameters.iter().chain(all) {
                shared.insert(shared_name(parameter), parameter);
            }
        }
    }
    shared.into_iter().map(|(name, parameter)| (name, parameter_body(parameter))).collect()
}

fn shared_name(parameter: &Parameter) -> String {
    match parameter.place {
        Place::Path => format!("{}-in-path", parameter.name),
        Place::Query => parameter.name.to_owned(),
    }
}

fn path_item(endpoint: &Endpoint) -> Value {
    let mut item = Map::new();
    for operation in &endpoint.operations {
        item.insert(operation.method.into(), operation_body(operation));
    }
    if !endpoint.parameters.is_empty() {
        item.insert("parameters".into(), endpoint.parameters.iter().map(|p| shared(p)).collect());
    }
    Value::Object(item)
}

fn operation_body(operation: &Operation) -> Value {
    let mut body = json!({
        "description": operation.description,
        "operationId": operation.id,
        "consumes": operation.consumes,
        "produces": operation.produces,
        "schemes": ["https"],
        "tags": [operation.tag],
        "responses": responses(operation),
    });
    let mut parameters: Vec<Value> = Vec::new();
    if let Some((name, required)) = &operation.body {
        let mut parameter = json!({
            "in": "body",
            "name": "body",
            "schema": {"$ref": Dialect::V2.reference(name)},
        });
        if *required {
            parameter["required"] = true.into();
        }
        parameters.push(parameter);
    }
    for parameter in &operation.parameters {
        // Old clients do not follow references when they check what a PATCH supports.
        let in_place = operation.method == "patch" && p::WRITE.contains(parameter);
        parameters.push(if in_place { parameter_body(parameter) } else { shared(parameter) });
    }
    if !parameters.is_empty() {
        body["parameters"] = parameters.into();
    }
    if let Some(action) = operation.action {
        body["x-kubernetes-action"] = action.into();
    }
    if let Some(gvk) = &operation.gvk {
        body["x-kubernetes-group-version-kind"] = gvk.json();
    }
    body
}

fn responses(operation: &Operation) -> Value {
    let schema = match &operation.answer {
        Some(name) => json!({"$ref": Dialect::V2.reference(name)}),
        None => json!({"type": "string"}),
    };
    let mut responses = json!({"401": {"description": "Unauthorized"}});
    for (code, description) in operation.codes {
        responses[code.to_string()] = json!({"description": description, "schema": schema});
    }
    responses
}

fn shared(parameter: &Parameter) -> Value {
    json!({"$ref": format!("#/parameters/{}", shared_name(parameter))})
}

fn parameter_body(parameter: &Parameter) -> Value {
    let mut body = json!({
        "name": parameter.name,
        "description": parameter.about,
        "type": parameter.ty,
        "uniqueItems": true,
    });
    match parameter.place {
        Place::Path => {
            body["in"] = "path".into();
            body["required"] = true.into();
        }
        Place::Query => body["in"] = "query".into(),
    }
    body
}

#[cfg(test)]
mod tests;
