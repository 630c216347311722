//! Decodes the body of a request into an object of the kind that the URL names.

use crate::request::call::{Call, FieldValidation};
use crate::request::negotiate;
use crate::response::error::{ApiError, Result};
use api::Kind;
use api::decode::{DecodeError, Decoded, Problem};
use api::schema::TypeId;
use api::value::ValueExt;
use serde_json::Value;

pub(crate) const BODIES: &str =
    "application/json, application/yaml, application/vnd.kubernetes.protobuf";

const CUSTOM_BODIES: &str = "application/json, application/yaml";

/// The media types a body may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Media {
    Json,
    Yaml,
    Protobuf,
}

fn media(call: &Call) -> Result<Media> {
    match negotiate::content_type(&call.headers) {
        "" | "application/json" => Ok(Media::Json),
        "application/yaml" => Ok(Media::Yaml),
        "application/vnd.kubernetes.protobuf" => Ok(Media::Protobuf),
        _ => Err(ApiError::UnsupportedMediaType(BODIES)),
    }
}

/// The object in the body, checked against its kind's schema.
pub(crate) fn object(call: &Call) -> Result<Value> {
    let kind = &call.kind;
    let decoded = body(call, kind)?;
    if !decoded.value.is_object() {
        return Err(ApiError::bad_request(
            "the object provided is unrecognized: it is not a JSON object",
        ));
    }
    check_type(call, kind, &decoded.value)?;
    let as_what = format!(
        "{} in version \"{}\" cannot be handled as a {}",
        kind.kind, kind.version, kind.kind
    );
    take_problems(call, &decoded.problems, |text| {
        ApiError::bad_request(format!("{as_what}: {text}"))
    })?;
    let mut object = decoded.value;
    object["kind"] = kind.kind.clone().into();
    object["apiVersion"] = kind.api_version().into();
    Ok(object)
}

/// A body of another type than the resource: options, bindings, evictions, scales.
pub(crate) fn other(call: &Call, type_name: &str) -> Result<Value> {
    let built_in = call.server.built_in_schema();
    let Some(ty) = built_in.named(type_name) else {
        return Err(ApiError::Internal(format!("{type_name} has no schema")));
    };
    let kind = type_name.rsplit('.').next().unwrap_or(type_name);
    let form = Form { kind, version: "", schema: &built_in, ty, custom: false };
    Ok(decode(call, &form)?.value)
}

/// An object of this kind that has been parsed already, such as the result of a patch.
pub(crate) fn value(kind: &Kind, value: Value) -> std::result::Result<Decoded, DecodeError> {
    if kind.custom.is_some() {
        return api::decode::custom_value(&kind.schema, kind.ty, value);
    }
    api::decode::value(&kind.schema, kind.ty, value)
}

fn body(call: &Call, kind: &Kind) -> Result<Decoded> {
    let form = Form {
        kind: &kind.kind,
        version: &kind.version,
        schema: &kind.schema,
        ty: kind.ty,
        custom: kind.custom.is_some(),
    };
    decode(call, &form)
}

/// The expected type of a body.
struct Form<'a> {
    kind: &'a str,
    version: &'a str,
    schema: &'a api::Schema,
    ty: TypeId,
    /// Custom resources have no protobuf form, and their types are checked by validation.
    custom: bool,
}

fn decode(call: &Call, form: &Form) -> Result<Decoded> {
    let Form { kind, version, schema, ty, custom } = *form;
    let bad = |why: &dyn std::fmt::Display| {
        ApiError::bad_request(format!(
            "{kind} in version \"{version}\" cannot be handled as a {kind}: {why}"
        ))
    };
    match media(call)? {
        Media::Protobuf if custom => Err(ApiError::UnsupportedMediaType(CUSTOM_BODIES)),
        Media::Json if custom => {
            api::decode::custom_json(schema, ty, &call.body).map_err(|error| bad(&error))
        }
        Media::Json => api::decode::json(schema, ty, &call.body).map_err(|error| bad(&error)),
        Media::Yaml => {
            let document = api::yaml::to_json(&call.body).map_err(|error| bad(&error))?;
            if !document.duplicates.is_empty() {
                duplicates(call, &document.duplicates, &bad)?;
            }
            let decode = if custom { api::decode::custom_value } else { api::decode::value };
            decode(schema, ty, document.value).map_err(|error| bad(&error))
        }
        Media::Protobuf => {
            let registry = call.server.registry();
            let resolve = |api_version: &str, kind: &str| {
                let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
                let known =
                    registry.by_kind(group, version, kind).filter(|kind| kind.custom.is_none());
                known.map(|kind| kind.ty).or(Some(ty))
            };
            let (_, _, value) =
                api::protobuf::decode(schema, resolve, &call.body).map_err(|error| bad(&error))?;
            Ok(Decoded { value, problems: Vec::new() })
        }
    }
}

/// Reports duplicate keys of a YAML body.
fn duplicates(
    call: &Call,
    duplicates: &api::yaml::Duplicates,
    bad: &dyn Fn(&dyn std::fmt::Display) -> ApiError,
) -> Result<()> {
    let message = format!("error converting YAML to JSON: {duplicates}");
    match call.field_validation()? {
        FieldValidation::Ignore => {}
        FieldValidation::Warn => call.warn(message),
        FieldValidation::Strict => return Err(bad(&format!("strict decoding error: {message}"))),
    }
    Ok(())
}

/// Ignores problems, returns them as warnings, or refuses the request, depending on `fieldValidation`.
pub(crate) fn take_problems(
    call: &Call,
    problems: &[Problem],
    refuse: impl Fn(String) -> ApiError,
) -> Result<()> {
    if problems.is_empty() {
        return Ok(());
    }
    match call.field_validation()? {
        FieldValidation::Ignore => Ok(()),
        FieldValidation::Warn => {
            problems.iter().for_each(|problem| call.warn(problem.to_string()));
            Ok(())
        }
        FieldValidation::Strict => {
            let all: Vec<String> = problems.iter().map(ToString::to_string).collect();
            Err(refuse(format!("strict decoding error: {}", all.join(", "))))
        }
    }
}

/// A body may omit its type, but must not have another type.
fn check_type(call: &Call, kind: &Kind, object: &Value) -> Result<()> {
    let given_kind = object.text(&["kind"]);
    let given_version = object.text(&["apiVersion"]);
    let expected = kind.api_version();
    if (given_kind.is_empty() || given_kind == kind.kind)
        && (given_version.is_empty() || given_version == expected)
    {
        return Ok(());
    }
    let given_kind = if given_kind.is_empty() { &kind.kind } else { given_kind };
    let given_version = if given_version.is_empty() { &expected } else { given_version };
    let (group, version) = given_version.split_once('/').unwrap_or(("", given_version));
    let registry = call.server.registry();
    let why = match registry.by_kind(group, version, given_kind) {
        None => format!(
            "no kind \"{given_kind}\" is registered for version \"{given_version}\" in scheme \"pkg/api/legacyscheme/scheme.go:30\""
        ),
        Some(_) if given_kind == kind.kind && group == kind.group => {
            return Err(ApiError::bad_request(format!(
                "the API version in the data ({given_version}) does not match the expected API version ({expected})"
            )));
        }
        Some(_) => {
            let short = match kind.group.as_str() {
                "" => "core",
                group => group.split('.').next().unwrap_or(group),
            };
            format!(
                "converting ({version}.{given_kind}) to ({short}.{}): unknown conversion",
                kind.kind
            )
        }
    };
    Err(ApiError::bad_request(format!(
        "{given_kind} in version \"{given_version}\" cannot be handled as a {}: {why}",
        kind.kind
    )))
}
