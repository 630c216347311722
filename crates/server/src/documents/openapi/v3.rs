//! OpenAPI 3.0: an index and one document per group and version.

use super::operations::{self, Endpoint, Operation};
use super::parameters::{Parameter, Place};
use super::types::{Dialect, Types};
use super::write::Members;
use super::{custom, hex, names};
use crate::documents::discovery;
use api::Registry;
use api::kind::Kind;
use ring::digest::{Context, SHA512};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::io::{self, Write};

/// `GET /openapi/v3`. Encodes every document to compute its hash; with cached hashes, use [`index_with`].
pub fn index(registry: &Registry) -> Value {
    index_with(registry, |group, version| document_hash(registry, group, version))
}

/// `GET /openapi/v3` with given hashes, as [`document_hash`] computes them.
pub fn index_with(
    registry: &Registry,
    mut hash: impl FnMut(&str, &str) -> Option<String>,
) -> Value {
    let mut paths = Map::new();
    for (group, version) in documents(registry) {
        let Some(hash) = hash(group, version) else { continue };
        let path = names::root(group, version);
        let url = format!("/openapi/v3{path}?hash={hash}");
        paths.insert(path[1..].to_owned(), json!({"serverRelativeURL": url}));
    }
    json!({"paths": paths})
}

/// Every group and version that has a document.
pub fn documents(registry: &Registry) -> Vec<(&str, &str)> {
    let named = discovery::named_groups(registry);
    let named = named.into_iter().flat_map(|(group, versions)| {
        versions.into_iter().map(move |version| (group, version)).collect::<Vec<_>>()
    });
    std::iter::once(("", "v1")).chain(named).collect()
}

/// A document of built-in kinds only: the same for as long as the program runs.
pub fn is_constant(registry: &Registry, group: &str, version: &str) -> bool {
    discovery::resources(registry, group, version).iter().all(|kind| kind.custom.is_none())
}

/// `GET /openapi/v3/apis/{group}/{version}` as JSON text.
pub fn document_bytes(registry: &Registry, group: &str, version: &str) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    write(registry, group, version, &mut out).ok()?.then_some(out)
}

/// The hash of [`document_bytes`], without keeping the document in memory.
pub fn document_hash(registry: &Registry, group: &str, version: &str) -> Option<String> {
    let mut hash = Hash(Context::new(&SHA512));
    write(registry, group, version, &mut hash).ok()?.then(|| hex(hash.0.finish().as_ref()))
}

struct Hash(Context);

impl Write for Hash {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The document as a tree. It is large: for tests and small groups.
pub fn document(registry: &Registry, group: &str, version: &str) -> Option<Value> {
    serde_json::from_slice(&document_bytes(registry, group, version)?).ok()
}

/// False if there is no such group and version.
fn write(
    registry: &Registry,
    group: &str,
    version: &str,
    out: &mut impl Write,
) -> io::Result<bool> {
    let kinds = discovery::resources(registry, group, version);
    if kinds.is_empty() {
        return Ok(false);
    }
    let mut document = Members::begin(out)?;
    let components = document.name("components")?;
    let mut components = Members::begin(components)?;
    write_schemas(registry, &kinds, components.name("schemas")?)?;
    components.value("securitySchemes", &security_schemes())?;
    components.end()?;
    document.value("info", &json!({"title": "Kubernetes", "version": "unversioned"}))?;
    document.value("openapi", &json!("3.0.0"))?;
    let mut paths = Members::begin(document.name("paths")?)?;
    let list = operations::resources(group, version);
    paths.value(&list.path, &path_item(&list))?;
    for endpoint in kinds.iter().flat_map(|kind| operations::of(kind)) {
        paths.value(&endpoint.path, &path_item(&endpoint))?;
    }
    paths.end()?;
    document.value("security", &json!([{"BearerToken": []}]))?;
    document.end()?;
    Ok(true)
}

fn security_schemes() -> Value {
    json!({"BearerToken": {
        "description": "Bearer Token authentication",
        "in": "header",
        "name": "authorization",
        "type": "apiKey",
    }})
}

fn write_schemas(registry: &Registry, kinds: &[&Kind], out: &mut impl Write) -> io::Result<()> {
    let types = Types::new(registry, Dialect::V3);
    let mut schemas = Members::begin(out)?;
    for kind in kinds {
        if let Some(custom) = &kind.custom {
            let definition = custom::definition(kind, &custom.open_api, Dialect::V3);
            schemas.value(&names::definition(kind), &definition)?;
            let list = custom::list_definition(kind, Dialect::V3);
            schemas.value(&names::list_definition(kind), &list)?;
        }
    }
    let roots = roots(kinds);
    for name in types.reachable(roots.iter().map(String::as_str)) {
        schemas.value(&name, &types.definition(&name))?;
    }
    schemas.end()
}

/// The types that the requests of these kinds use.
pub(super) fn roots(kinds: &[&Kind]) -> BTreeSet<String> {
    let mut roots: BTreeSet<String> =
        ["APIResourceList", "ListMeta", "ObjectMeta", "Status"].map(names::meta).into();
    for kind in kinds {
        for operation in operations::of(kind).into_iter().flat_map(|e| e.operations) {
            roots.extend(operation.body.map(|(name, _)| name));
            roots.extend(operation.answer);
        }
    }
    roots
}

fn path_item(endpoint: &Endpoint) -> Value {
    let mut item = Map::new();
    for operation in &endpoint.operations {
        item.insert(operation.method.into(), operation_body(operation));
    }
    if !endpoint.parameters.is_empty() {
        item.insert("parameters".into(), parameters(&endpoint.parameters));
    }
    Value::Object(item)
}

fn operation_body(operation: &Operation) -> Value {
    let mut body = json!({
        "description": operation.description,
        "operationId": operation.id,
        "tags": [operation.tag],
        "responses": responses(operation),
    });
    if !operation.parameters.is_empty() {
        body["parameters"] = parameters(&operation.parameters);
    }
    if let Some((name, required)) = &operation.body {
        let schema = json!({"schema": {"$ref": Dialect::V3.reference(name)}});
        // Types other than those of patches are negotiated; upstream says so with `*/*`.
        let types = if operation.method == "patch" { operation.consumes } else { &["*/*"] };
        let content: Map<String, Value> =
            types.iter().map(|ty| ((*ty).to_owned(), schema.clone())).collect();
        body["requestBody"] = json!({"content": content});
        if *required {
            body["requestBody"]["required"] = true.into();
        }
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
        Some(name) => json!({"schema": {"$ref": Dialect::V3.reference(name)}}),
        None => json!({"schema": {"type": "string"}}),
    };
    let content: Map<String, Value> =
        operation.produces.iter().map(|ty| ((*ty).to_owned(), schema.clone())).collect();
    let mut responses = json!({"401": {"description": "Unauthorized"}});
    for (code, description) in operation.codes {
        responses[code.to_string()] = json!({"description": description, "content": content});
    }
    responses
}

fn parameters(list: &[&Parameter]) -> Value {
    list.iter().map(|parameter| parameter_body(parameter)).collect()
}

/// Not as a reference, because kubectl does not follow references when it looks for `fieldValidation`.
fn parameter_body(parameter: &Parameter) -> Value {
    let mut body = json!({
        "name": parameter.name,
        "description": parameter.about,
        "schema": {"type": parameter.ty, "uniqueItems": true},
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
