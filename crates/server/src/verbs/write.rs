//! What all writes have in common: preparing, checking and storing an object.
//!
//! A write reads the stored object, decides, and stores on condition that the object has not changed since. If it has,
//! the write starts over (unless the client named the version that it had read).
//!
//!     create: body ▸ defaults ▸ managedFields ▸ mutating admission ▸ prepare ▸ validate ▸ validating admission ▸ store
//!     update: body ▸ defaults, prepare ▸ managedFields ▸ mutating admission ▸ validate ▸ validating admission ▸ store
//!
//! managedFields come before admission, as upstream: fields that mutating admission changes get no manager.

use crate::object::{self, Object, Stored, store_name};
use crate::request::call::{Call, name_of};
use crate::response::error::{ApiError, Result};
use api::apply::{self, FieldSet, Manager};
use api::metadata;
use api::names::NameRule;
use api::status::{Details, Status};
use api::value::ValueExt;
use api::{At, Errors, Kind};
use rules::Generation;
use serde_json::Value;
use std::collections::BTreeSet;
use std::sync::Arc;
use store::{Change, Expect, Write, WriteError};

/// How often a write starts over because the object has changed. One of the competing writes succeeds every time, so this
/// many can write one object at the same time without a conflict.
pub(crate) const ATTEMPTS: usize = 1000;

/// Removes fields that only the server may set.
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

/// Sets the namespace from the URL, or removes it for cluster-scoped kinds.
pub(crate) fn settle_namespace(call: &Call, object: &mut Value) -> Result<()> {
    let metadata = object.object("metadata");
    if !call.kind.namespaced {
        metadata.remove("namespace");
        return Ok(());
    }
    match metadata.text(&["namespace"]) {
        "" => metadata["namespace"] = call.target.namespace.clone().into(),
        given if given != call.target.namespace => {
            return Err(ApiError::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
        _ => {}
    }
    Ok(())
}

/// Removes duplicate owner references, with a warning.
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

/// Validates a new object: metadata and the rules of its kind.
pub(crate) fn check_new(kind: &Kind, object: &Value) -> Result<()> {
    check_depth(object)?;
    let mut errors = Errors::default();
    let root = At::root(object);
    let metadata = if is_core(kind) { metadata::validate } else { metadata::validate_custom };
    let rules = rules::of(kind);
    metadata(&root, rules.name, kind.namespaced, &mut errors);
    (rules.validate)(&root, &mut errors);
    if let Some(custom) = &kind.custom {
        custom.validate(&root, None, &mut errors);
    }
    refuse(kind, name_of(object), errors)
}

/// Includes managedFields, which repeat the fields a few levels deeper.
fn check_depth(object: &Value) -> Result<()> {
    if object::depth(object) > object::DEPTH_MAX {
        return Err(ApiError::bad_request("exceeded max depth"));
    }
    Ok(())
}

/// Validates an update with the rules of its endpoint.
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

/// Upstream serves CRDs, APIServices and custom resources from servers of their own, which check finalizers less
/// strictly.
fn is_core(kind: &Kind) -> bool {
    let group = kind.group.as_str();
    kind.custom.is_none() && !matches!(group, "apiextensions.k8s.io" | "apiregistration.k8s.io")
}

fn check_endpoint(kind: &Kind, new: &At, old: &At, endpoint: Endpoint, errors: &mut Errors) {
    let rules = rules::of(kind);
    match endpoint {
        Endpoint::Status => (rules.validate_status_update)(new, old, errors),
        Endpoint::EphemeralContainers => rules::validate_ephemeral_update(new, old, errors),
        Endpoint::Resize => rules::validate_resize(new, old, errors),
        Endpoint::Main | Endpoint::Scale => {
            (rules.validate)(new, errors);
            (rules.validate_update)(new, old, errors);
        }
        Endpoint::Approval => rules::validate_approval_update(new, old, errors),
        // validate_update is for the main endpoint; these change other fields.
        Endpoint::Other => (rules.validate)(new, errors),
    }
}

fn refuse(kind: &Kind, name: &str, errors: Errors) -> Result<()> {
    if errors.is_empty() { Ok(()) } else { Err(ApiError::invalid(kind, name, errors)) }
}

/// Restores fields that an update must not change (A-68, T-API-22).
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

/// Increments metadata.generation if the content that it counts has changed.
pub(crate) fn bump_generation(kind: &Kind, new: &mut Value, old: &Value) {
    let differs = |field: &str| new.get(field) != old.get(field);
    let content = || {
        let keys = new.as_object().into_iter().chain(old.as_object()).flat_map(|map| map.keys());
        let status = kind.has_subresource("status");
        keys.filter(|key| *key != "metadata" && !(status && *key == "status"))
            .any(|key| differs(key))
    };
    let meta = |field: &str| new["metadata"].get(field) != old["metadata"].get(field);
    let changed = match rules::of(kind).generation {
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

/// The endpoint of a write. Each ignores other fields, and never owns those.
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

/// Fields that an endpoint ignores, so that no manager owns them through it.
pub(crate) fn reset_fields(kind: &Kind, endpoint: Endpoint) -> FieldSet {
    match endpoint {
        Endpoint::Main if kind.has_subresource("status") => FieldSet::of_fields(&[&["status"]]),
        Endpoint::Status if kind.custom.is_some() => {
            FieldSet::of_fields(&[&["spec"], &["metadata", "labels"], &["metadata", "annotations"]])
        }
        Endpoint::Status if kind.kind == "CertificateSigningRequest" => {
            FieldSet::of_fields(&[&["spec"], &["status", "conditions"]])
        }
        Endpoint::Status => FieldSet::of_fields(&[&["spec"]]),
        Endpoint::Approval => FieldSet::of_fields(&[&["spec"], &["status", "certificate"]]),
        _ => FieldSet::default(),
    }
}

/// Records in managedFields which fields this write has changed. Runs before mutating admission, so fields that
/// admission changes get no manager.
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
    let writer = Manager { name: &manager, api_version: &api_version, subresource, now: &now };
    let reset = reset_fields(&call.kind, endpoint);
    apply::track_update(&call.kind.schema, call.kind.ty, old, new, &writer, &reset);
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

/// Fails if the name is taken. For dry runs, which do not store.
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

/// Why a conditional write failed.
pub(crate) enum Failed {
    /// The object has changed. This is stored now, if anything.
    Conflict(Option<Arc<Object>>),
    Api(ApiError),
}

/// Writes, or without an object removes, on condition `expect`.
pub(crate) async fn write(
    call: &Call,
    name: &str,
    expect: Expect,
    object: Option<&Value>,
) -> std::result::Result<Arc<Object>, Failed> {
    let namespace = call.target.namespace_of(&call.kind);
    let change = match object {
        Some(object) if rules::convert::is_identity(&call.kind) => {
            Change::Put(object::draft(&call.kind, object))
        }
        Some(object) => {
            Change::Put(object::draft(&call.kind, &rules::convert::to_storage(&call.kind, object)))
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

/// The Status for a removed object, for kinds that do not return the object (A-82, T-API-27).
pub(crate) fn receipt(kind: &Kind, name: &str, uid: &str) -> Status {
    Status::success().with_details(Details {
        name: name.into(),
        group: kind.group.clone(),
        kind: kind.plural.clone(),
        uid: uid.into(),
        ..Details::default()
    })
}
