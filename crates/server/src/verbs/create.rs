//! POST: a new object.

use crate::admission;
use crate::answer::{self, Answer};
use crate::call::{Call, name_of};
use crate::error::{ApiError, Result};
use crate::negotiate::{Form, Offer};
use crate::verbs::write::{self, Endpoint};
use crate::views::{self, IncludeObject};
use crate::{decode, services, warnings};
use api::rules::Generation;
use api::value::ValueExt;
use bytes::Bytes;
use http::StatusCode;
use serde_json::Value;

/// How often a generated name that is taken is tried anew.
const NAME_ATTEMPTS: usize = 8;
/// What is kept of a `generateName` prefix, so that five letters more still fit.
const NAME_PREFIX_MAX: usize = 58;

pub(crate) async fn create(call: &Call) -> Result<Answer> {
    call.check_options()?;
    let form = call.form(Offer::Object)?;
    let dry_run = call.dry_run()?;
    let object = decode::object(call)?;
    if !object.text(&["metadata", "resourceVersion"]).is_empty() {
        return Err(ApiError::Said(Box::new(api::Status::failure(
            500,
            "",
            "resourceVersion should not be set on objects to be created",
        ))));
    }
    let include = IncludeObject::parse(call.query.text("includeObject"))?;
    let made = make(call, object, dry_run, Origin::Request).await?;
    Ok(answer::bytes(StatusCode::CREATED, form, made.bytes(call, form, include)))
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
    /// The object in the form that was asked for; stored bytes as they are where that will do.
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

/// Brings a decoded object into the world, or refuses it.
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
    (call.kind.rules.prepare_create)(&mut object);
    if call.kind.kind == "PersistentVolume" {
        // The one time in a new object's status; rules have no clock.
        object.object("status")["lastPhaseTransitionTime"] = call.now().into();
    }
    if call.kind.rules.generation != Generation::Never {
        object.object("metadata")["generation"] = 1.into();
    }
    let mut lease = services::allocate(call, &mut object, None, dry_run).await?;
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
                lease.keep();
                call.server.written(&call.kind, name_of(&object)).await;
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

/// Applies the kind's defaults, and a custom kind's own.
pub(crate) fn default(call: &Call, object: &mut Value) {
    if let Some(custom) = &call.kind.custom {
        custom.default(object);
    }
    (call.kind.rules.default)(object);
    api::rules::show_unset_times(&call.kind.kind, object);
}

/// Fills in a name from `generateName`; answers the prefix if it did.
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
