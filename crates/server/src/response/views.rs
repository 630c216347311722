//! The forms in which objects are returned: whole, metadata only, or as a table.

use crate::object::{self, Object, Stored};
use crate::request::negotiate::{Encoding, Form, View};
use crate::response::error::{ApiError, Result};
use api::Kind;
use api::value::ValueExt;
use bytes::Bytes;
use serde_json::{Value, json};

/// What the rows of a table contain besides their cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum IncludeObject {
    #[default]
    Metadata,
    Object,
    None,
}

impl IncludeObject {
    pub(crate) fn parse(text: Option<&str>) -> Result<Self> {
        match text {
            None | Some("Metadata") => Ok(IncludeObject::Metadata),
            Some("Object") => Ok(IncludeObject::Object),
            Some("None") => Ok(IncludeObject::None),
            Some(other) => {
                Err(ApiError::bad_request(format!("unrecognized includeObject value: {other:?}")))
            }
        }
    }
}

/// The object's bytes in the kind's version: the stored bytes, unless the object is stored in another version (A-148,
///
pub(crate) fn bytes(kind: &Kind, stored: &Object) -> Bytes {
    if is_stored_form(kind, &object::type_prefix(kind), stored) {
        return stored.bytes();
    }
    encode(&value(kind, stored), Form::default())
}

/// The decoded object in the kind's version.
pub(crate) fn value(kind: &Kind, stored: &Object) -> Value {
    of_version(kind, stored, stored.value())
}

/// The same for a caller that writes it back, so it must be complete.
pub(crate) fn whole(kind: &Kind, stored: &Object) -> Result<Value> {
    let object = stored.whole().ok_or_else(|| {
        let name = stored.name();
        ApiError::Internal(format!(
            "{name} is nested too deeply to be changed; it can only be deleted"
        ))
    })?;
    Ok(of_version(kind, stored, object))
}

fn of_version(kind: &Kind, stored: &Object, object: Value) -> Value {
    let as_stored = is_stored_form(kind, &object::type_prefix(kind), stored);
    if as_stored { object } else { convert(kind, &object) }
}

pub(crate) fn convert(kind: &Kind, stored: &Value) -> Value {
    let mut object = match &kind.custom {
        None => rules::convert::from_storage(kind, stored),
        Some(custom) => by_current_definition(kind, custom, stored),
    };
    object["kind"] = kind.kind.clone().into();
    object["apiVersion"] = kind.api_version().into();
    object
}

/// A stored custom object according to its current definition: pruned and with defaults. The definition may have been
/// different when the object was written.
fn by_current_definition(kind: &Kind, custom: &api::crd::Custom, stored: &Value) -> Value {
    let decoded = api::decode::custom_value(&kind.schema, kind.ty, stored.clone());
    let mut object = decoded.map_or_else(|_| stored.clone(), |decoded| decoded.value);
    custom.default(&mut object);
    object
}

/// Whether the stored bytes are those of the kind's version, which begin with `prefix`.
pub(crate) fn is_stored_form(kind: &Kind, prefix: &str, stored: &Object) -> bool {
    stored.as_slice().starts_with(prefix.as_bytes())
        && kind.custom.as_ref().is_none_or(|custom| stored.revision() > custom.since)
}

/// An item of a list, without its opening brace. Items of built-in kinds have no `kind` and `apiVersion`.
pub(crate) fn item(kind: &Kind, stored: &Object) -> Bytes {
    if kind.custom.is_some() {
        return bytes(kind, stored).slice(1..);
    }
    let prefix = object::type_prefix(kind);
    if is_stored_form(kind, &prefix, stored) {
        return stored.bytes().slice(prefix.len()..);
    }
    // In another version the type may be anywhere, so it is removed before encoding.
    let mut object = value(kind, stored);
    if let Some(fields) = object.as_object_mut() {
        fields.remove("kind");
        fields.remove("apiVersion");
    }
    encode(&object, Form::default()).slice(1..)
}

pub(crate) fn encode(value: &Value, form: Form) -> Bytes {
    let text = match form.encoding {
        Encoding::Yaml => api::yaml::from_json(value).into_bytes(),
        Encoding::Json if form.pretty => {
            let mut text = serde_json::to_vec_pretty(value).unwrap_or_default();
            text.push(b'\n');
            text
        }
        Encoding::Json => serde_json::to_vec(value).unwrap_or_default(),
    };
    text.into()
}

/// `{kind, apiVersion, metadata}`
pub(crate) fn partial(object: &Value, beta: bool) -> Value {
    json!({
        "kind": "PartialObjectMetadata",
        "apiVersion": meta_version(beta),
        "metadata": object.get("metadata").cloned().unwrap_or_else(|| json!({})),
    })
}

pub(crate) fn meta_version(beta: bool) -> &'static str {
    if beta { "meta.k8s.io/v1beta1" } else { "meta.k8s.io/v1" }
}

/// A table of these objects. `columns` is false for all but the first event of a watch.
pub(crate) fn table(
    kind: &Kind,
    objects: &[Value],
    metadata: Value,
    beta: bool,
    include: IncludeObject,
    columns: bool,
) -> Value {
    let now = clock::now();
    let rows: Vec<Value> = objects.iter().map(|object| row(kind, object, now, include)).collect();
    let columns = if columns { api::table::columns(kind) } else { Vec::new() };
    json!({
        "kind": "Table",
        "apiVersion": meta_version(beta),
        "metadata": metadata,
        "columnDefinitions": columns,
        "rows": rows,
    })
}

fn row(kind: &Kind, object: &Value, now: jiff::Timestamp, include: IncludeObject) -> Value {
    let mut row = json!({ "cells": api::table::cells(kind, object, now) });
    let conditions = api::table::row_conditions(kind, object);
    if !conditions.is_empty() {
        row["conditions"] = conditions.into();
    }
    row["object"] = match include {
        IncludeObject::Metadata => partial(object, false),
        IncludeObject::Object => object.clone(),
        IncludeObject::None => Value::Null,
    };
    row
}

/// A list of these objects in the requested form.
pub(crate) fn list(
    kind: &Kind,
    objects: Vec<Value>,
    metadata: Value,
    form: Form,
    include: IncludeObject,
) -> Value {
    match form.view {
        View::Table { beta } => table(kind, &objects, metadata, beta, include, true),
        View::PartialList { beta } => json!({
            "kind": "PartialObjectMetadataList",
            "apiVersion": meta_version(beta),
            "metadata": metadata,
            "items": objects.iter().map(|object| partial(object, beta)).collect::<Vec<_>>(),
        }),
        View::Whole | View::Partial { .. } | View::Discovery => {
            let typeless = |mut object: Value| {
                if kind.custom.is_none()
                    && let Some(map) = object.as_object_mut()
                {
                    map.remove("kind");
                    map.remove("apiVersion");
                }
                object
            };
            json!({
                "kind": kind.list_kind(),
                "apiVersion": kind.api_version(),
                "metadata": metadata,
                "items": objects.into_iter().map(typeless).collect::<Vec<_>>(),
            })
        }
    }
}

/// One object in the requested form.
pub(crate) fn single(kind: &Kind, object: Value, form: Form, include: IncludeObject) -> Bytes {
    let shown = match form.view {
        View::Whole | View::Discovery | View::PartialList { .. } => object,
        View::Partial { beta } => partial(&object, beta),
        View::Table { beta } => {
            let metadata =
                json!({ "resourceVersion": object.text(&["metadata", "resourceVersion"]) });
            table(kind, &[object], metadata, beta, include, true)
        }
    };
    encode(&shown, form)
}
