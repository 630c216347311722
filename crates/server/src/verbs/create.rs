//! POST: a new object.

use crate::admission;
use crate::request::call::{Call, name_of};
use crate::request::decode;
use crate::request::negotiate::{Form, Offer};
use crate::response::error::{ApiError, Result};
use crate::response::views::{self, IncludeObject};
use crate::response::warnings;
use crate::response::{self, ApiResponse};
use crate::service_allocation;
use crate::verbs::write::{self, Endpoint};
use api::value::ValueExt;
use bytes::Bytes;
use http::StatusCode;
use rules::Generation;
use serde_json::Value;

/// How many generated names are tried if they are taken.
const NAME_ATTEMPTS: usize = 8;
/// The maximum length of a `generateName` prefix, to which five letters are added.
const NAME_PREFIX_MAX: usize = 58;

pub(crate) async fn create(call: &Call) -> Result<ApiResponse> {
    call.check_options()?;
    let form = call.form(Offer::Object)?;
    let dry_run = call.dry_run()?;
    let object = decode::object(call)?;
    if !object.text(&["metadata", "resourceVersion"]).is_empty() {
        return Err(ApiError::Status(Box::new(api::Status::failure(
            500,
            "",
            "resourceVersion should not be set on objects to be created",
        ))));
    }
    let include = IncludeObject::parse(call.query.text("includeObject"))?;
    let made = make(call, object, dry_run, Origin::Request).await?;
    Ok(response::bytes(StatusCode::CREATED, form, made.bytes(call, form, include)))
}

/// Where a new object's managedFields come from.
pub(crate) enum Origin {
    Request,
    /// Server-side apply has written them already.
    Apply,
}

pub(crate) enum Made {
    Stored(std::sync::Arc<crate::object::Object>),
    /// Dry run: what would have been stored.
    Only(Value),
}

impl Made {
    /// The object in the requested form; the stored bytes if they need no conversion.
    pub(crate) fn bytes(&self, call: &Call, form: Form, include: IncludeObject) -> Bytes {
        match self {
            Made::Stored(stored) if form.is_plain() => views::bytes(&call.kind, stored),
            _ => views::single(&call.kind, self.value(call), form, include),
        }
    }

    pub(crate) fn value(&self, call: &Call) -> Value {
        match self {
            Made::Stored(stored) => views::value(&call.kind, stored),
            Made::Only(value) => value.clone(),
        }
    }
}

/// Creates a decoded object, or refuses it.
pub(crate) async fn make(
    call: &Call,
    mut object: Value,
    dry_run: bool,
    origin: Origin,
) -> Result<Made> {
    if call.kind.custom.as_ref().is_some_and(|custom| custom.terminating) {
        let why = "create not allowed while custom resource definition is terminating";
        return Err(ApiError::forbidden(&call.kind, name_of(&object), why));
    }
    write::clear_system_fields(&mut object);
    write::settle_namespace(call, &mut object)?;
    write::dedup_owners(call, &mut object);
    let generated = prepare_name(call, &mut object)?;
    let now = call.now();
    let metadata = object.object("metadata");
    metadata["uid"] = clock::uuid().into();
    metadata["creationTimestamp"] = now.into();
    if call.kind.has_subresource("status") && call.kind.kind != "Node" {
        object.remove("status");
    }
    default(call, &mut object);
    if matches!(origin, Origin::Request) {
        write::track(call, None, &mut object, Endpoint::Main)?;
    }
    admission::admit_create(call, &mut object).await?;
    let rules = rules::of(&call.kind);
    (rules.prepare_create)(&mut object);
    set_times(call, &mut object);
    if rules.generation != Generation::Never {
        object.object("metadata")["generation"] = 1.into();
    }
    let mut claims = service_allocation::allocate(call, &mut object, None, dry_run).await?;
    write::check_new(&call.kind, &object)?;
    warnings::create(call, &object);
    admission::check_create(call, &object, dry_run).await?;
    if dry_run {
        write::check_absent(call, &object)?;
        return Ok(Made::Only(object));
    }
    for attempt in 1.. {
        match write::store_new(call, &object).await {
            Ok(stored) => {
                claims.keep();
                call.server.after_write(&call.kind, name_of(&object)).await;
                return Ok(Made::Stored(stored));
            }
            Err(ApiError::AlreadyExists { .. })
                if generated.is_some() && attempt < NAME_ATTEMPTS =>
            {
                let prefix = generated.as_deref().unwrap_or_default();
                object.object("metadata")["name"] = generate_name(prefix).into();
            }
            Err(error) => return Err(error),
        }
    }
    unreachable!("the loop above returns")
}

/// Sets the times in a new object's status, because crate `rules` has no clock.
fn set_times(call: &Call, object: &mut Value) {
    match (call.kind.group.as_str(), call.kind.kind.as_str()) {
        ("", "PersistentVolume") => {
            object.object("status")["lastPhaseTransitionTime"] = call.now().into();
        }
        ("", "Pod") => {
            for condition in object.object("status").list_mut("conditions") {
                condition.set_default("lastTransitionTime", call.now());
            }
        }
        _ => {}
    }
}

/// Applies the kind's defaults, and those of a custom kind's schema.
pub(crate) fn default(call: &Call, object: &mut Value) {
    if let Some(custom) = &call.kind.custom {
        custom.default(object);
    }
    (rules::of(&call.kind).default)(object);
    rules::show_unset_times(&call.kind.kind, object);
}

/// Generates a name from `generateName`, and returns the prefix if it did.
fn prepare_name(call: &Call, object: &mut Value) -> Result<Option<String>> {
    let metadata = object.object("metadata");
    if !metadata.text(&["name"]).is_empty() {
        return Ok(None);
    }
    let prefix = metadata.text(&["generateName"]).to_owned();
    if prefix.is_empty() {
        if call.kind.is_stored() {
            let value = serde_json::json!({});
            let root = api::At::root(&value);
            let metadata = root.field("metadata");
            let mut errors = api::Errors::default();
            errors.required(&metadata.field("name"), "name or generateName is required");
            return Err(ApiError::invalid(&call.kind, name_of(object), errors));
        }
        return Ok(None);
    }
    metadata["name"] = generate_name(&prefix).into();
    Ok(Some(prefix))
}

fn generate_name(prefix: &str) -> String {
    let prefix: String = prefix.chars().take(NAME_PREFIX_MAX).collect();
    prefix + &clock::random_name_suffix()
}
