//! PUT, and the retry loop that it shares with PATCH and the subresources that write.

use crate::admission;
use crate::object::{Object, store_name};
use crate::request::call::{Call, name_of};
use crate::request::decode;
use crate::request::negotiate::Offer;
use crate::response::error::{ApiError, Result};
use crate::response::views::{self, IncludeObject};
use crate::response::warnings;
use crate::response::{self, ApiResponse};
use crate::service_allocation;
use crate::terminations::Removal;
use crate::verbs::create::{self, Made};
use crate::verbs::removal::{Removed, remove};
use crate::verbs::write::{self, ATTEMPTS, Endpoint, Failed};
use api::value::ValueExt;
use http::StatusCode;
use serde_json::Value;
use std::sync::Arc;
use store::Expect;

pub(crate) async fn update(call: &Call, endpoint: Endpoint) -> Result<ApiResponse> {
    call.check_options()?;
    let dry_run = call.dry_run()?;
    let object = decode::object(call)?;
    let name = name_of(&object);
    if name.is_empty() {
        // Set from the URL below, like a missing namespace.
    } else if name != call.target.name {
        return Err(ApiError::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            call.target.name
        )));
    }
    let mut object = object;
    object.object("metadata")["name"] = call.target.name.clone().into();
    write::settle_namespace(call, &mut object)?;
    let version = object.text(&["metadata", "resourceVersion"]).to_owned();
    if version.is_empty() && !rules::of(&call.kind).unconditional_update {
        let shown = serde_json::json!({"metadata": {"resourceVersion": 0}});
        let root = api::At::root(&shown);
        let metadata = root.field("metadata");
        let mut errors = api::Errors::default();
        errors.invalid(&metadata.field("resourceVersion"), "must be specified for an update");
        return Err(ApiError::invalid(&call.kind, &call.target.name, errors));
    }
    let creates = endpoint == Endpoint::Main && rules::of(&call.kind).create_on_update;
    if creates && call.find().await.is_err() {
        call.server.authorize_also(call, "create")?;
        let made = create::make(call, object, dry_run, create::Origin::Request).await?;
        return shown(call, &made, StatusCode::CREATED);
    }
    let made = change(call, endpoint, dry_run, |_| Ok(Changed::untracked(object.clone()))).await?;
    shown(call, &made, StatusCode::OK)
}

/// The result of a change.
pub(crate) struct Changed {
    pub(crate) object: Value,
    /// managedFields are already up to date (server-side apply).
    pub(crate) tracked: bool,
}

impl Changed {
    /// managedFields still have to be updated.
    pub(crate) fn untracked(object: Value) -> Self {
        Changed { object, tracked: false }
    }
}

/// Reads, changes, checks and stores an object; starts over if it has changed meanwhile.
///
/// `make` gets the stored object and returns the changed one. If that has a resource version, the write is conditional on
/// it.
///
/// The object in memory may be older than what another server has acknowledged. A write would detect that. A refusal, or
/// a change without effect, is decided again with the newest version.
pub(crate) async fn change(
    call: &Call,
    endpoint: Endpoint,
    dry_run: bool,
    mut make: impl FnMut(&Value) -> Result<Changed> + Send,
) -> Result<Made> {
    let mut stored = call.find().await?;
    let mut is_newest = false;
    for _ in 0..ATTEMPTS {
        let decided = match attempt(call, endpoint, dry_run, &mut make, &stored).await {
            Ok(Attempt::Made(made)) => return Ok(made),
            // Retry: a version that the client gave no longer matches, but a patch without one is applied to
            // the new version.
            Ok(Attempt::Overtaken(newer)) => {
                (stored, is_newest) = (newer, true);
                continue;
            }
            Ok(Attempt::Unchanged) => Ok(Made::Stored(stored.clone())),
            Err(refusal) => Err(refusal),
        };
        if is_newest {
            return decided;
        }
        call.server.barrier().await?;
        let newest = call.stored()?;
        if newest.revision() == stored.revision() {
            return decided;
        }
        (stored, is_newest) = (newest, true);
    }
    Err(ApiError::modified(&call.kind, &call.target.name))
}

/// The result of one attempt.
enum Attempt {
    /// Stored, or would be stored by a dry run.
    Made(Made),
    /// The change has no effect.
    Unchanged,
    /// The object has changed meanwhile. This is stored now.
    Overtaken(Arc<Object>),
}

async fn attempt(
    call: &Call,
    endpoint: Endpoint,
    dry_run: bool,
    make: &mut (impl FnMut(&Value) -> Result<Changed> + Send),
    stored: &Arc<Object>,
) -> Result<Attempt> {
    let old = views::whole(&call.kind, stored)?;
    let Changed { object: mut new, tracked } = make(&old)?;
    check_identity(call, &mut new, &old)?;
    let version = new.text(&["metadata", "resourceVersion"]).to_owned();
    let current = stored.revision().to_string();
    if !version.is_empty() && version != current {
        return Err(ApiError::modified(&call.kind, &call.target.name));
    }
    write::dedup_owners(call, &mut new);
    prepare(call, endpoint, &mut new, &old);
    new.object("metadata")["resourceVersion"] = current.clone().into();
    if !tracked {
        write::track(call, Some(&old), &mut new, endpoint)?;
    }
    admission::admit_update(call, &mut new, &old).await?;
    let mut claims = service_allocation::allocate(call, &mut new, Some(&old), dry_run).await?;
    if !matches!(endpoint, Endpoint::Status | Endpoint::Approval | Endpoint::Other) {
        write::bump_generation(&call.kind, &mut new, &old);
    }
    write::check_update(&call.kind, &new, &old, endpoint)?;
    if endpoint == Endpoint::Main {
        warnings::update(call, &new, &old);
    }
    admission::check_update(call, &new, &old, dry_run).await?;
    if should_be_removed(&new) {
        if dry_run {
            return Ok(Attempt::Made(Made::Only(new)));
        }
        let name = &call.target.name;
        return Ok(match remove(call, name, stored, &new, Removal::LastFinalizer).await? {
            // The response is the object as the client changed it, not as it was removed.
            Removed::Now(_) | Removed::Before => Attempt::Made(Made::Only(new)),
            Removed::Overtaken(newer) => {
                claims.release().await;
                Attempt::Overtaken(newer)
            }
        });
    }
    api::apply::settle(&old, &mut new);
    if new == old {
        return Ok(Attempt::Unchanged);
    }
    if dry_run {
        return Ok(Attempt::Made(Made::Only(new)));
    }
    let expect = Expect::Revision(stored.revision());
    match write::write(call, &call.target.name, expect, Some(&new)).await {
        Ok(written) => {
            claims.keep();
            service_allocation::release_changed(call, &old, &new).await;
            call.server.after_write(&call.kind, &call.target.name).await;
            Ok(Attempt::Made(Made::Stored(written)))
        }
        Err(Failed::Api(error)) => Err(error),
        Err(Failed::Conflict(None)) => Err(ApiError::not_found(&call.kind, &call.target.name)),
        Err(Failed::Conflict(Some(newer))) => {
            claims.release().await;
            Ok(Attempt::Overtaken(newer))
        }
    }
}

/// A uid in the request is a precondition; name and namespace must not change.
fn check_identity(call: &Call, new: &mut Value, old: &Value) -> Result<()> {
    let uid = new.text(&["metadata", "uid"]);
    let real = old.text(&["metadata", "uid"]);
    if !uid.is_empty() && uid != real {
        let key = store_name(&call.target.namespace_of(&call.kind), &call.target.name);
        return Err(ApiError::conflict(
            &call.kind,
            &call.target.name,
            format!(
                "StorageError: invalid object, Code: 4, Key: /registry/{}/{key}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: {uid}, UID in object meta: {real}",
                call.kind.storage.collection
            ),
        ));
    }
    let name = new.text(&["metadata", "name"]);
    if name != call.target.name {
        return Err(ApiError::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            call.target.name
        )));
    }
    write::settle_namespace(call, new)
}

fn prepare(call: &Call, endpoint: Endpoint, new: &mut Value, old: &Value) {
    let kind = &call.kind;
    write::restore_metadata(kind, new, old);
    match endpoint {
        Endpoint::Status => only_status(call, new, old),
        Endpoint::Main if kind.has_subresource("status") => match old.get("status") {
            Some(status) => new["status"] = status.clone(),
            None => drop(new.remove("status")),
        },
        Endpoint::Approval => only_conditions(new, old),
        Endpoint::EphemeralContainers => rules::prepare_ephemeral_update(new, old),
        Endpoint::Resize => rules::prepare_resize(new, old),
        Endpoint::Main | Endpoint::Scale | Endpoint::Other => {}
    }
    if kind.kind == "CertificateSigningRequest" && endpoint != Endpoint::Main {
        if endpoint == Endpoint::Status {
            keep_decisions(new, old);
        }
        time_conditions(new, old, &call.now());
    }
    create::default(call, new);
    if endpoint == Endpoint::Main {
        (rules::of(kind).prepare_update)(new, old);
    }
}

/// Sets missing times of conditions; an existing condition keeps its transition time.
fn time_conditions(request: &mut Value, old: &Value, now: &str) {
    let before = old.at(&["status", "conditions"]).and_then(Value::as_array);
    for condition in request.object("status").list_mut("conditions") {
        condition.set_default("lastUpdateTime", now);
        let same =
            |old: &&Value| old["type"] == condition["type"] && old["status"] == condition["status"];
        let since = before.and_then(|list| list.iter().find(same));
        let since = since.and_then(|old| old.get("lastTransitionTime")).cloned();
        condition.set_default("lastTransitionTime", since.unwrap_or_else(|| now.into()));
    }
}

/// A write of the status cannot change existing decisions.
fn keep_decisions(request: &mut Value, old: &Value) {
    let before = old.at(&["status", "conditions"]).and_then(Value::as_array);
    for kind in ["Approved", "Denied"] {
        let decides = |condition: &&Value| condition["type"] == kind;
        let kept: Vec<&Value> = before.into_iter().flatten().filter(decides).collect();
        let status = request.object("status");
        if status.list_mut("conditions").filter(|one| one["type"] == kind).count() != kept.len() {
            continue;
        }
        let now = status.list_mut("conditions").filter(|one| one["type"] == kind);
        for (condition, kept) in now.zip(kept) {
            *condition = kept.clone();
        }
    }
}

/// `/approval` changes only the conditions and metadata.
fn only_conditions(new: &mut Value, old: &Value) {
    let conditions = new.at(&["status", "conditions"]).cloned();
    restore(new, old, |field| field == "metadata");
    let status = new.object("status");
    match conditions {
        Some(conditions) => status["conditions"] = conditions,
        None => drop(status.remove("conditions")),
    }
}

/// `/status` changes only the status and, for built-in kinds, some metadata.
fn only_status(call: &Call, new: &mut Value, old: &Value) {
    let kind = &call.kind;
    let keeps_metadata = kind.custom.is_some()
        || matches!(
            kind.kind.as_str(),
            "ServiceCIDR" | "VolumeAttachment" | "ResourceClaim" | "ValidatingAdmissionPolicy"
        );
    let fields: &[&str] = match kind.kind.as_str() {
        _ if keeps_metadata => &[],
        "Deployment" => &["annotations", "finalizers"],
        "Pod" => &["annotations", "labels", "finalizers"],
        _ => &["annotations", "labels", "finalizers", "ownerReferences"],
    };
    let mut keeps = fields.to_vec();
    // If the client omits these, they stay.
    keeps.extend(
        ["managedFields", "resourceVersion"]
            .into_iter()
            .filter(|field| new["metadata"].get(field).is_some()),
    );
    restore(new.object("metadata"), &old["metadata"], |field| keeps.contains(&field));
    restore(new, old, |field| matches!(field, "status" | "metadata"));
    if kind.kind == "Pod" {
        keep_observed_generation(new, old);
    }
}

/// Restores all fields except those that may change. Copies only fields that differ.
fn restore(object: &mut Value, old: &Value, keeps: impl Fn(&str) -> bool) {
    let (Value::Object(fields), Value::Object(old)) = (object, old) else { return };
    fields.retain(|name, _| keeps(name) || old.contains_key(name));
    for (name, value) in old.iter().filter(|(name, _)| !keeps(name)) {
        if fields.get(name) != Some(value) {
            fields.insert(name.clone(), value.clone());
        }
    }
}

/// Older clients do not know the field, so an update without it keeps the value (T-API-56).
fn keep_observed_generation(pod: &mut Value, old: &Value) {
    let observed = |pod: &Value| pod["status"]["observedGeneration"].as_i64().unwrap_or(0);
    if observed(pod) == 0 && observed(old) != 0 {
        pod.object("status")["observedGeneration"] = observed(old).into();
    }
}

/// Marked for deletion, without finalizers and grace period: any update removes it (T-API-15, T-API-37).
fn should_be_removed(object: &Value) -> bool {
    let metadata = &object["metadata"];
    let finalizers = metadata["finalizers"].as_array().map_or(0, Vec::len)
        + object.pointer("/spec/finalizers").and_then(Value::as_array).map_or(0, |list| {
            // The finalizers in the spec of a Namespace count too.
            if object["kind"] == "Namespace" { list.len() } else { 0 }
        });
    metadata.get("deletionTimestamp").is_some()
        && lifecycle::deletion::may_go(metadata["deletionGracePeriodSeconds"].as_i64(), finalizers)
}

pub(crate) fn shown(call: &Call, made: &Made, code: StatusCode) -> Result<ApiResponse> {
    let form = call.form(Offer::Object)?;
    let include = IncludeObject::parse(call.query.text("includeObject"))?;
    Ok(response::bytes(code, form, made.bytes(call, form, include)))
}
