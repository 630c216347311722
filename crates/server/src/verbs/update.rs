//! PUT, and the loop that PATCH and the writing subresources share.

use crate::admission;
use crate::answer::{self, Answer};
use crate::call::{Call, name_of};
use crate::error::{ApiError, Result};
use crate::negotiate::Offer;
use crate::object::{Object, store_name};
use crate::terminations::{self, Removal};
use crate::verbs::create::{self, Made};
use crate::verbs::write::{self, ATTEMPTS, Endpoint, Failed};
use crate::views::{self, IncludeObject};
use crate::{decode, services, warnings};
use api::value::ValueExt;
use http::StatusCode;
use serde_json::Value;
use std::sync::Arc;
use store::Expect;

pub(crate) async fn update(call: &Call, endpoint: Endpoint) -> Result<Answer> {
    call.check_options()?;
    let dry_run = call.dry_run()?;
    let object = decode::object(call)?;
    let name = name_of(&object);
    if name.is_empty() {
        // Filled from the URL, like an absent namespace.
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
    if version.is_empty() && !call.kind.rules.unconditional_update {
        let shown = serde_json::json!({"metadata": {"resourceVersion": 0}});
        let root = api::At::root(&shown);
        let metadata = root.field("metadata");
        let mut errors = api::Errors::default();
        errors.invalid(&metadata.field("resourceVersion"), "must be specified for an update");
        return Err(ApiError::invalid(&call.kind, &call.target.name, errors));
    }
    if endpoint == Endpoint::Main && call.kind.rules.create_on_update && call.stored().is_err() {
        call.server.authorize_also(call, "create")?;
        let made = create::make(call, object, dry_run, create::Origin::Request).await?;
        return shown(call, &made, StatusCode::CREATED);
    }
    let made = change(call, endpoint, dry_run, |_| Ok(Changed::tracked(object.clone()))).await?;
    shown(call, &made, StatusCode::OK)
}

/// What a change makes of an object.
pub(crate) struct Changed {
    pub(crate) object: Value,
    /// managedFields are already right (server-side apply).
    pub(crate) tracked: bool,
}

impl Changed {
    /// The server still has to note who changed what.
    pub(crate) fn tracked(object: Value) -> Self {
        Changed { object, tracked: false }
    }
}

/// Reads, changes, checks and stores; starts over when somebody else wrote in between.
///
/// `make` gets the object as it is and answers what it should become. If what it makes carries a
/// resource version, the write is conditional on it.
pub(crate) async fn change(
    call: &Call,
    endpoint: Endpoint,
    dry_run: bool,
    mut make: impl FnMut(&Value) -> Result<Changed> + Send,
) -> Result<Made> {
    let mut stored = call.stored()?;
    for _ in 0..ATTEMPTS {
        let old = views::whole(&call.kind, &stored)?;
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
        let mut lease = services::allocate(call, &mut new, Some(&old), dry_run).await?;
        if !matches!(endpoint, Endpoint::Status | Endpoint::Approval | Endpoint::Other) {
            write::bump_generation(&call.kind, &mut new, &old);
        }
        write::check_update(&call.kind, &new, &old, endpoint)?;
        if endpoint == Endpoint::Main {
            warnings::update(call, &new, &old);
        }
        admission::check_update(call, &new, &old, dry_run).await?;
        if should_go(&new) {
            match finish_deletion(call, &stored, new, dry_run).await? {
                Ok(made) => return Ok(made),
                Err(newer) => {
                    lease.give_back().await;
                    stored = newer;
                    continue;
                }
            }
        }
        api::apply::settle(&old, &mut new);
        if new == old {
            return Ok(Made::Stored(stored));
        }
        if dry_run {
            return Ok(Made::Only(new));
        }
        match write::write(call, &call.target.name, Expect::Revision(stored.revision()), Some(&new))
            .await
        {
            Ok(written) => {
                lease.keep();
                services::release_changed(call, &old, &new).await;
                call.server.written(&call.kind, &call.target.name).await;
                return Ok(Made::Stored(written));
            }
            Err(Failed::Api(error)) => return Err(error),
            Err(Failed::Conflict(None)) => {
                return Err(ApiError::not_found(&call.kind, &call.target.name));
            }
            // Around again: a version that the client gave is now the wrong one, but a patch that
            // gave none carries the version of whatever it is laid over.
            Err(Failed::Conflict(Some(newer))) => {
                lease.give_back().await;
                stored = newer;
            }
        }
    }
    Err(ApiError::modified(&call.kind, &call.target.name))
}

/// The uid, if the client names one, is a precondition; name and namespace may not change.
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
        Endpoint::EphemeralContainers | Endpoint::Resize | Endpoint::Approval => {
            only_its_part(endpoint, new, old);
        }
        Endpoint::Main | Endpoint::Scale | Endpoint::Other => {}
    }
    if kind.kind == "CertificateSigningRequest" && endpoint != Endpoint::Main {
        time_conditions(new, old, &call.now());
    }
    create::default(call, new);
    if endpoint == Endpoint::Main {
        (kind.rules.prepare_update)(new, old);
    }
}

/// Who approves, denies or fails a request need not say when; a condition that stands keeps its
/// time.
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

/// These subresources take the one part they are named for; the rest stays as it is.
fn only_its_part(endpoint: Endpoint, new: &mut Value, old: &Value) {
    let mut result = old.clone();
    result["metadata"]["resourceVersion"] = new["metadata"]["resourceVersion"].clone();
    match endpoint {
        Endpoint::EphemeralContainers => copy(&mut result, new, &["spec", "ephemeralContainers"]),
        Endpoint::Approval => copy(&mut result, new, &["status", "conditions"]),
        Endpoint::Resize => {
            for list in ["containers", "initContainers"] {
                resize(&mut result, new, list);
            }
        }
        _ => {}
    }
    *new = result;
}

fn copy(to: &mut Value, from: &Value, path: &[&str; 2]) {
    let [outer, inner] = path;
    match from.at(path) {
        Some(value) => to.object(outer)[*inner] = value.clone(),
        None => drop(to.object(outer).remove(inner)),
    }
}

/// Resources and resize policy of the containers that are there in both.
fn resize(to: &mut Value, from: &Value, list: &str) {
    let wanted = from.at(&["spec", list]).and_then(Value::as_array);
    for container in to["spec"].list_mut(list) {
        let same = |other: &&Value| other["name"] == container["name"];
        let Some(wanted) = wanted.and_then(|list| list.iter().find(same)) else { continue };
        for field in ["resources", "resizePolicy"] {
            match wanted.get(field) {
                Some(value) => container[field] = value.clone(),
                None => drop(container.remove(field)),
            }
        }
    }
}

/// `/status` takes the status and, for built-in kinds, labels and annotations; everything else
/// stays as it is.
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
    // Who leaves these out leaves them as they are.
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

/// Makes an object what it was, except for the fields it may keep. Most often it is so already, and then
/// nothing is copied.
fn restore(object: &mut Value, old: &Value, keeps: impl Fn(&str) -> bool) {
    let (Value::Object(fields), Value::Object(old)) = (object, old) else { return };
    fields.retain(|name, _| keeps(name) || old.contains_key(name));
    for (name, value) in old.iter().filter(|(name, _)| !keeps(name)) {
        if fields.get(name) != Some(value) {
            fields.insert(name.clone(), value.clone());
        }
    }
}

/// Clients older than the field leave it out; what was observed is not forgotten (T-API-56).
fn keep_observed_generation(pod: &mut Value, old: &Value) {
    let observed = |pod: &Value| pod["status"]["observedGeneration"].as_i64().unwrap_or(0);
    if observed(pod) == 0 && observed(old) != 0 {
        pod.object("status")["observedGeneration"] = observed(old).into();
    }
}

/// Marked for deletion, held by nobody, and no grace left: any update removes it (T-API-15, T-API-37).
fn should_go(object: &Value) -> bool {
    let metadata = &object["metadata"];
    let finalizers = metadata["finalizers"].as_array().map_or(0, Vec::len)
        + object.pointer("/spec/finalizers").and_then(Value::as_array).map_or(0, |list| {
            // A Namespace is also held by the finalizers in its spec.
            if object["kind"] == "Namespace" { list.len() } else { 0 }
        });
    metadata.get("deletionTimestamp").is_some()
        && lifecycle::deletion::may_go(metadata["deletionGracePeriodSeconds"].as_i64(), finalizers)
}

/// Removes what is stored, or answers what is stored instead by now.
async fn finish_deletion(
    call: &Call,
    stored: &Arc<Object>,
    new: Value,
    dry_run: bool,
) -> Result<std::result::Result<Made, Arc<Object>>> {
    if dry_run {
        return Ok(Ok(Made::Only(new)));
    }
    terminations::removing(call, &new, Removal::LastHold).await;
    let expect = Expect::Revision(stored.revision());
    match write::write(call, &call.target.name, expect, None).await {
        Ok(_) => {
            services::release(call, &new).await;
            terminations::removed(call, &new).await;
            call.server.written(&call.kind, &call.target.name).await;
            Ok(Ok(Made::Only(new)))
        }
        Err(Failed::Api(error)) => Err(error),
        Err(Failed::Conflict(None)) => Ok(Ok(Made::Only(new))),
        Err(Failed::Conflict(Some(newer))) => Ok(Err(newer)),
    }
}

pub(crate) fn shown(call: &Call, made: &Made, code: StatusCode) -> Result<Answer> {
    let form = call.form(Offer::Object)?;
    let include = IncludeObject::parse(call.query.text("includeObject"))?;
    Ok(answer::bytes(code, form, made.bytes(call, form, include)))
}
