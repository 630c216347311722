//! What all writes have in common: preparing, checking and storing a changed object.
//!
//! A write reads the stored object, decides, and stores under the condition that nobody wrote in
//! between; if somebody did, it starts over (unless the client named the version it had read).
//!
//!     body ▸ defaults ▸ admission ▸ prepare ▸ validate ▸ managedFields ▸ store

use crate::call::{Call, name_of};
use crate::error::{ApiError, Result};
use crate::object::{self, Object, Stored, store_name};
use api::apply::{self, FieldSet, Manager};
use api::metadata;
use api::rules::{Generation, NameRule};
use api::value::ValueExt;
use api::{At, Errors, Kind};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;
use store::{Change, Expect, Write, WriteError};

/// How often a write that found the object changed starts over. One of the contenders gets its way
/// every time, so this is how many may fall upon one object before anybody sees a conflict.
pub(crate) const ATTEMPTS: usize = 1000;

/// Fields the server sets and a client's create may not.
pub(crate) fn clear_system_fields(object: &mut Value) {
    let metadata = object.object("metadata");
    for field in [
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "selfLink",
        "generation",
    ] {
        metadata.remove(field);
    }
}

/// Namespace from the URL, or cleared for cluster-scoped kinds.
pub(crate) fn settle_namespace(call: &Call, object: &mut Value) -> Result<()> {
    let metadata = object.object("metadata");
    if !call.kind.namespaced {
        metadata.remove("namespace");
        return Ok(());
    }
    match metadata.text(&["namespace"]) {
        "" => metadata["namespace"] = call.target.namespace.clone().into(),
        said if said != call.target.namespace => {
            return Err(ApiError::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
        _ => {}
    }
    Ok(())
}

/// The same owner named twice is named once, and the client told.
pub(crate) fn dedup_owners(call: &Call, object: &mut Value) {
    let Some(Value::Array(owners)) = object.object("metadata").get_mut("ownerReferences") else {
        return;
    };
    let mut seen = BTreeSet::new();
    let mut twice = BTreeSet::new();
    owners.retain(|owner| {
        let new = seen.insert(owner.to_string());
        if !new {
            twice.insert(owner.text(&["uid"]).to_owned());
        }
        new
    });
    if !twice.is_empty() {
        let twice: Vec<String> = twice.into_iter().collect();
        call.warn(format!(
            ".metadata.ownerReferences contains duplicate entries; API server dedups owner references in 1.20+, and may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: {}",
            twice.join(", ")
        ));
    }
}

/// Metadata and kind rules of a new object.
pub(crate) fn check_new(kind: &Kind, object: &Value) -> Result<()> {
    check_depth(object)?;
    let mut errors = Errors::default();
    let root = At::root(object);
    let metadata = if is_core(kind) { metadata::validate } else { metadata::validate_custom };
    metadata(&root, kind.rules.name, kind.namespaced, &mut errors);
    (kind.rules.validate)(&root, &mut errors);
    if let Some(custom) = &kind.custom {
        custom.validate(&root, None, &mut errors);
    }
    refuse(kind, name_of(object), errors)
}

/// With its managedFields, which repeat its fields a few levels deeper.
fn check_depth(object: &Value) -> Result<()> {
    if object::depth(object) > object::DEPTH_MAX {
        return Err(ApiError::bad_request("exceeded max depth"));
    }
    Ok(())
}

/// Rules of an update, as the endpoint it came through has them.
pub(crate) fn check_update(
    kind: &Kind,
    new: &Value,
    old: &Value,
    endpoint: Endpoint,
) -> Result<()> {
    check_depth(new)?;
    let mut errors = Errors::default();
    let (new_root, old_root) = (At::root(new), At::root(old));
    if is_core(kind) {
        metadata::validate(&new_root, NameRule::Own, kind.namespaced, &mut errors);
        metadata::validate_update(&new_root, &old_root, &mut errors);
    } else {
        metadata::validate_custom(&new_root, NameRule::Own, kind.namespaced, &mut errors);
        metadata::validate_custom_update(&new_root, &old_root, &mut errors);
    }
    check_endpoint(kind, &new_root, &old_root, endpoint, &mut errors);
    if let Some(custom) = &kind.custom {
        custom.validate(&new_root, Some(&old_root), &mut errors);
    }
    refuse(kind, name_of(new), errors)
}

/// Upstream serves definitions, aggregated APIs and custom resources from servers of their own,
/// which are less particular about finalizers.
fn is_core(kind: &Kind) -> bool {
    let group = kind.group.as_str();
    kind.custom.is_none() && !matches!(group, "apiextensions.k8s.io" | "apiregistration.k8s.io")
}

fn check_endpoint(kind: &Kind, new: &At, old: &At, endpoint: Endpoint, errors: &mut Errors) {
    match endpoint {
        Endpoint::Status => (kind.rules.validate_status_update)(new, old, errors),
        Endpoint::EphemeralContainers => api::rules::validate_ephemeral_update(new, old, errors),
        Endpoint::Resize => api::rules::validate_resize(new, old, errors),
        Endpoint::Main | Endpoint::Scale => {
            (kind.rules.validate)(new, errors);
            (kind.rules.validate_update)(new, old, errors);
        }
        // What these change is not for validate_update, which guards the main endpoint.
        Endpoint::Approval | Endpoint::Other => (kind.rules.validate)(new, errors),
    }
}

fn refuse(kind: &Kind, name: &str, errors: Errors) -> Result<()> {
    if errors.is_empty() { Ok(()) } else { Err(ApiError::invalid(kind, name, errors)) }
}

/// Keeps what an update may not change, whatever the client sent (A-68, T-API-22).
pub(crate) fn restore_metadata(kind: &Kind, new: &mut Value, old: &Value) {
    let metadata = new.object("metadata");
    metadata.remove("selfLink");
    for field in ["uid", "creationTimestamp", "deletionTimestamp", "generation"] {
        match old["metadata"].get(field) {
            Some(value) => metadata[field] = value.clone(),
            None => drop(metadata.remove(field)),
        }
    }
    if metadata.at(&["deletionGracePeriodSeconds"]).is_none()
        && let Some(grace) = old["metadata"].get("deletionGracePeriodSeconds")
    {
        metadata["deletionGracePeriodSeconds"] = grace.clone();
    }
    if kind.namespaced {
        metadata["namespace"] = old["metadata"]["namespace"].clone();
    }
}

/// Raises metadata.generation if what it counts has changed.
pub(crate) fn bump_generation(kind: &Kind, new: &mut Value, old: &Value) {
    let differs = |field: &str| new.get(field) != old.get(field);
    let content = || {
        let keys = new.as_object().into_iter().chain(old.as_object()).flat_map(|map| map.keys());
        let status = kind.has_subresource("status");
        keys.filter(|key| *key != "metadata" && !(status && *key == "status"))
            .any(|key| differs(key))
    };
    let meta = |field: &str| new["metadata"].get(field) != old["metadata"].get(field);
    let changed = match kind.rules.generation {
        Generation::Never | Generation::Fixed => false,
        Generation::Spec => differs("spec") || (kind.kind == "PodTemplate" && differs("template")),
        Generation::SpecOrAnnotations => differs("spec") || meta("annotations"),
        Generation::Content => content(),
        Generation::ContentOrLabels => content() || meta("labels"),
    };
    if changed {
        let generation = old["metadata"]["generation"].as_i64().unwrap_or(0) + 1;
        new.object("metadata")["generation"] = generation.into();
    }
}

/// What an endpoint leaves alone, and so never owns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Endpoint {
    Main,
    Status,
    Scale,
    Approval,
    EphemeralContainers,
    Resize,
    /// Any other subresource that writes the object.
    Other,
}

impl Endpoint {
    pub(crate) fn named(subresource: &str) -> Endpoint {
        match subresource {
            "" => Endpoint::Main,
            "status" => Endpoint::Status,
            "scale" => Endpoint::Scale,
            "approval" => Endpoint::Approval,
            "ephemeralcontainers" => Endpoint::EphemeralContainers,
            "resize" => Endpoint::Resize,
            _ => Endpoint::Other,
        }
    }

    pub(crate) fn subresource(self) -> &'static str {
        match self {
            Endpoint::Main | Endpoint::Other => "",
            Endpoint::Status => "status",
            Endpoint::Scale => "scale",
            Endpoint::Approval => "approval",
            Endpoint::EphemeralContainers => "ephemeralcontainers",
            Endpoint::Resize => "resize",
        }
    }
}

/// Fields that an endpoint ignores, so that nobody comes to own them through it.
pub(crate) fn reset_fields(kind: &Kind, endpoint: Endpoint) -> FieldSet {
    match endpoint {
        Endpoint::Main if kind.has_subresource("status") => FieldSet::of_fields(&[&["status"]]),
        Endpoint::Status if kind.custom.is_some() => {
            FieldSet::of_fields(&[&["spec"], &["metadata", "labels"], &["metadata", "annotations"]])
        }
        Endpoint::Status => FieldSet::of_fields(&[&["spec"]]),
        _ => FieldSet::default(),
    }
}

/// Notes in managedFields who changed what. Comes before admission, whose changes belong
/// to nobody.
pub(crate) fn track(
    call: &Call,
    old: Option<&Value>,
    new: &mut Value,
    endpoint: Endpoint,
) -> Result<()> {
    let manager = call.manager()?;
    let api_version = call.kind.api_version();
    let now = call.now();
    let subresource = endpoint.subresource();
    let who = Manager { name: &manager, api_version: &api_version, subresource, now: &now };
    let reset = reset_fields(&call.kind, endpoint);
    apply::track_update(&call.kind.schema, call.kind.ty, old, new, &who, &reset);
    Ok(())
}

/// Stores a new object.
pub(crate) async fn store_new(call: &Call, object: &Value) -> Result<Arc<Object>> {
    let name = name_of(object);
    let stored = write(call, name, Expect::Absent, Some(object)).await;
    stored.map_err(|error| match error {
        Failed::Conflict(current) => already_exists(call, name, current.as_deref()),
        Failed::Api(error) => error,
    })
}

/// Whether there is room for a new object, for those who only ask.
pub(crate) fn check_absent(call: &Call, object: &Value) -> Result<()> {
    let name = name_of(object);
    let key = store_name(&call.target.namespace_of(&call.kind), name);
    match call.store().get(&call.kind.storage.collection, &key) {
        None => Ok(()),
        Some(current) => Err(already_exists(call, name, Some(&current))),
    }
}

fn already_exists(call: &Call, name: &str, current: Option<&Object>) -> ApiError {
    let deleting = current.is_some_and(|current| current.meta().deletion_timestamp.is_some());
    ApiError::AlreadyExists {
        resource: call.kind.resource_group(),
        group: call.kind.group.clone(),
        name: name.into(),
        prefix: if deleting { "object is being deleted: " } else { "" },
    }
}

/// Why a conditional write did not happen.
pub(crate) enum Failed {
    /// The object is not what it was expected to be; this is what it is.
    Conflict(Option<Arc<Object>>),
    Api(ApiError),
}

/// Writes (or, without an object, removes) under a condition.
pub(crate) async fn write(
    call: &Call,
    name: &str,
    expect: Expect,
    object: Option<&Value>,
) -> std::result::Result<Arc<Object>, Failed> {
    let namespace = call.target.namespace_of(&call.kind);
    let change = match object {
        Some(object) if api::convert::is_identity(&call.kind) => {
            Change::Put(object::draft(&call.kind, object))
        }
        Some(object) => {
            Change::Put(object::draft(&call.kind, &api::convert::to_storage(&call.kind, object)))
        }
        None => Change::Delete,
    };
    let write = Write {
        collection: call.kind.storage.collection.clone(),
        name: store_name(&namespace, name),
        expect,
        change,
    };
    call.store().write(write).await.map_err(|error| match error {
        WriteError::Conflict { current } => Failed::Conflict(current),
        WriteError::Backend(error) => Failed::Api(ApiError::store("writing to the store", &error)),
    })
}

/// The removed object's receipt, for kinds that do not answer with the object (A-82, T-API-27).
pub(crate) fn receipt(kind: &Kind, name: &str, uid: &str) -> Value {
    let mut details = json!({ "name": name, "kind": kind.plural, "uid": uid });
    if !kind.group.is_empty() {
        details["group"] = kind.group.clone().into();
    }
    json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details })
}
