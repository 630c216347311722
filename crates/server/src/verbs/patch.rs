//! PATCH in its four forms.

use crate::request::call::{Call, FieldValidation, invalid_options};
use crate::request::decode;
use crate::request::negotiate;
use crate::response::ApiResponse;
use crate::response::error::{ApiError, Result};
use crate::verbs::create::{self, Made, Origin};
use crate::verbs::update::{Changed, change, shown};
use crate::verbs::write::{self, Endpoint};
use api::apply::{self, ApplyError, Manager};
use api::patch::PatchError;
use api::value::ValueExt;
use api::{Errors, Status};
use http::StatusCode;
use serde_json::{Map, Value, json};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Json,
    Merge,
    Strategic,
    Apply,
}

/// Custom resources have no strategic merge.
const CUSTOM_FORMS: &str =
    "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml";

pub(crate) fn form(call: &Call) -> Result<Form> {
    match negotiate::content_type(&call.headers) {
        "application/json-patch+json" => Ok(Form::Json),
        "application/merge-patch+json" => Ok(Form::Merge),
        "application/strategic-merge-patch+json" if call.kind.custom.is_some() => {
            Err(ApiError::UnsupportedMediaType(CUSTOM_FORMS))
        }
        "application/strategic-merge-patch+json" => Ok(Form::Strategic),
        "application/apply-patch+yaml" => Ok(Form::Apply),
        _ => Err(ApiError::Status(Box::new(
            Status::failure(415, "UnsupportedMediaType", "415: Unsupported Media Type")
                .with_details(api::status::Details::default()),
        ))),
    }
}

pub(crate) async fn patch(call: &Call, endpoint: Endpoint) -> Result<ApiResponse> {
    let form = form(call)?;
    call.check_options()?;
    let dry_run = call.dry_run()?;
    check_options(call, form)?;
    if form == Form::Apply {
        return apply(call, endpoint, dry_run).await;
    }
    let made = change(call, endpoint, dry_run, |old| {
        let patched = patched(call, form, old)?;
        Ok(Changed::untracked(decoded(call, patched, old)?))
    })
    .await?;
    shown(call, &made, StatusCode::OK)
}

/// `force` and a required `fieldManager` belong to apply.
fn check_options(call: &Call, form: Form) -> Result<()> {
    let value = json!({ "force": call.query.get("force"), "fieldManager": "" });
    let root = api::At::root(&value);
    let mut errors = Errors::default();
    if form == Form::Apply {
        if call.query.text("fieldManager").is_none() {
            errors.required(&root.field("fieldManager"), "is required for apply patch");
        }
    } else if call.query.get("force").is_some() {
        errors.forbidden(&root.field("force"), "may not be specified for non-apply patch");
    }
    if errors.is_empty() { Ok(()) } else { Err(invalid_options("PatchOptions", errors)) }
}

/// The object with the patch applied, not yet checked.
pub(crate) fn patched(call: &Call, form: Form, old: &Value) -> Result<Value> {
    let parse = || {
        api::decode::json_any(&call.body)
            .map_err(|error| ApiError::bad_request(format!("error decoding patch: {error}")))
            .and_then(|(patch, duplicates)| {
                decode::take_problems(call, &duplicates, |text| unprocessable(call, &text))?;
                Ok(patch)
            })
    };
    let result = match form {
        Form::Json => api::patch::json(old, &call.body),
        Form::Merge => api::patch::merge(old, &parse()?),
        Form::Strategic => api::patch::strategic(&call.kind.schema, call.kind.ty, old, parse()?),
        Form::Apply => return Err(ApiError::Internal("apply is not a patch of this form".into())),
    };
    result.map_err(|error| match error {
        PatchError::NotApplicable(why) => not_applicable(&why),
        error => ApiError::Status(Box::new(error.status())),
    })
}

/// Upstream does not report the failed operation or the object; kubectl shows the message only because the details are
/// empty.
fn not_applicable(why: &str) -> ApiError {
    tracing::debug!(why, "patch does not apply");
    let message = "the server rejected our request due to an error in our request";
    ApiError::Invalid(Box::new(
        Status::failure(422, "Invalid", message).with_details(api::status::Details::default()),
    ))
}

/// 422 without causes: the patch is well-formed but does not apply to this object.
fn unprocessable(call: &Call, why: &str) -> ApiError {
    ApiError::Invalid(Box::new(
        Status::failure(
            422,
            "Invalid",
            format!("the server rejected our request due to an error in our request: {why}"),
        )
        .with_details(api::status::Details {
            name: call.target.name.clone(),
            group: call.kind.group.clone(),
            kind: call.kind.plural.clone(),
            ..Default::default()
        }),
    ))
}

/// Checks that the patched object is still an object of its kind. Unchanged parts need no check.
fn decoded(call: &Call, mut patched: Value, old: &Value) -> Result<Value> {
    let kind = &call.kind;
    let same = if kind.custom.is_none() { take_equal(&mut patched, old) } else { Map::new() };
    let decoded = decode::value(kind, patched).map_err(|error| {
        let shown = json!({ "patch": "" });
        let root = api::At::root(&shown);
        let mut errors = Errors::default();
        errors.invalid(&root.field("patch"), &error.to_string());
        ApiError::invalid(kind, &call.target.name, errors)
    })?;
    decode::take_problems(call, &decoded.problems, |text| {
        ApiError::Invalid(Box::new(Status::failure(
            422,
            "Invalid",
            format!(
                "{} \"{}\" is invalid: patch: Invalid value: {text}",
                kind.kind, call.target.name
            ),
        )))
    })?;
    let mut object = decoded.value;
    if !object.is_object() {
        return Err(unprocessable(call, "the result of the patch is not an object"));
    }
    if let Value::Object(fields) = &mut object {
        fields.extend(same);
    }
    object["kind"] = kind.kind.clone().into();
    object["apiVersion"] = kind.api_version().into();
    Ok(object)
}

/// Removes the fields that are equal in `other`, and returns them.
fn take_equal(object: &mut Value, other: &Value) -> Map<String, Value> {
    let Value::Object(fields) = object else { return Map::new() };
    let (same, rest) = std::mem::take(fields)
        .into_iter()
        .partition(|(name, value)| other.get(name) == Some(value));
    *fields = rest;
    same
}

/// The applied configuration: YAML or JSON, without defaults.
fn configuration(call: &Call) -> Result<Value> {
    let kind = &call.kind;
    let bad =
        |why: &dyn std::fmt::Display| ApiError::bad_request(format!("error decoding YAML: {why}"));
    let api::yaml::Document { value, duplicates } =
        api::yaml::to_json(&call.body).map_err(|error| bad(&error))?;
    if call.field_validation()? == FieldValidation::Strict && !duplicates.is_empty() {
        return Err(ApiError::bad_request(format!("error strict decoding YAML: {duplicates}")));
    }
    if !value.is_object() {
        return Err(bad(&"the applied configuration is not an object"));
    }
    let wanted = kind.api_version();
    if value.text(&["apiVersion"]) != wanted || value.text(&["kind"]) != kind.kind {
        return Err(ApiError::bad_request(format!(
            "invalid object type: apiVersion {:?}, kind {:?}; the URL says {wanted:?}, {:?}",
            value.text(&["apiVersion"]),
            value.text(&["kind"]),
            kind.kind
        )));
    }
    if value.at(&["metadata", "managedFields"]).is_some() {
        return Err(ApiError::bad_request("metadata.managedFields must be nil"));
    }
    let name = value.text(&["metadata", "name"]);
    if !name.is_empty() && name != call.target.name {
        return Err(ApiError::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            call.target.name
        )));
    }
    let mut value = value;
    value.object("metadata")["name"] = call.target.name.clone().into();
    if kind.namespaced {
        let namespace = value.text(&["metadata", "namespace"]);
        if !namespace.is_empty() && namespace != call.target.namespace {
            return Err(ApiError::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
        value.object("metadata")["namespace"] = call.target.namespace.clone().into();
    }
    Ok(value)
}

async fn apply(call: &Call, endpoint: Endpoint, dry_run: bool) -> Result<ApiResponse> {
    let applied = configuration(call)?;
    let force = call.query.flag("force");
    let manager = call.manager()?;
    let api_version = call.kind.api_version();
    let now = call.now();
    let writer = Manager {
        name: &manager,
        api_version: &api_version,
        subresource: endpoint.subresource(),
        now: &now,
    };
    let reset = write::reset_fields(&call.kind, endpoint);
    let merge = |live: Option<&Value>| -> Result<Value> {
        let merged =
            apply::apply(&call.kind.schema, call.kind.ty, live, &applied, &writer, &reset, force)
                .map_err(|error| refused(call, error))?;
        let decoded = decode::value(&call.kind, merged)
            .map_err(|error| ApiError::bad_request(error.to_string()))?;
        Ok(decoded.value)
    };
    if endpoint == Endpoint::Main && call.find().await.is_err() {
        call.server.authorize_also(call, "create")?;
        let made = create::make(call, merge(None)?, dry_run, Origin::Apply).await;
        match made {
            // Created by another request meanwhile: apply is an update then.
            Err(ApiError::AlreadyExists { .. }) => {}
            made => return shown(call, &made?, StatusCode::CREATED),
        }
    }
    let made: Made = change(call, endpoint, dry_run, |old| {
        Ok(Changed { object: merge(Some(old))?, tracked: true })
    })
    .await?;
    shown(call, &made, StatusCode::OK)
}

pub(crate) fn refused(call: &Call, error: ApplyError) -> ApiError {
    match error {
        ApplyError::Conflicts(_) | ApplyError::BadRequest(_) => {
            ApiError::Status(Box::new(error.status()))
        }
        ApplyError::Schema(why) => {
            let place = crate::object::store_name(&call.target.namespace, &call.target.name);
            let group_version = if call.kind.group.is_empty() {
                format!("/{}", call.kind.version)
            } else {
                call.kind.api_version()
            };
            ApiError::Status(Box::new(Status::failure(
                500,
                "",
                format!(
                    "failed to create typed patch object ({place}; {group_version}, Kind={}): {why}",
                    call.kind.kind
                ),
            )))
        }
    }
}
