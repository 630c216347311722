//! NamespaceLifecycle: no new objects in a namespace that does not exist or is being deleted, and no deletion of
//! the namespaces that the cluster needs.

use crate::object::Stored;
use crate::request::call::{Call, name_of};
use crate::response::error::{ApiError, Result};
use api::status::Cause;
use serde_json::Value;

const PROTECTED: [&str; 3] = ["default", "kube-system", "kube-public"];

pub(crate) fn check_create(call: &Call, object: &Value) -> Result<()> {
    check(call, name_of(object))
}

/// The same for subresources that count as creations.
pub(crate) fn check_namespace(call: &Call) -> Result<()> {
    check(call, &call.target.name)
}

fn check(call: &Call, name: &str) -> Result<()> {
    if !call.kind.namespaced {
        return Ok(());
    }
    let namespace = &call.target.namespace;
    let Some(stored) = call.store().get("namespaces", namespace) else {
        return Err(ApiError::NotFound {
            resource: "namespaces".into(),
            group: String::new(),
            name: namespace.clone(),
        });
    };
    if stored.meta().deletion_timestamp.is_none() {
        return Ok(());
    }
    let why = format!(
        "unable to create new content in namespace {namespace} because it is being terminated"
    );
    let mut refusal = ApiError::forbidden(&call.kind, name, &why);
    if let ApiError::Forbidden { causes, .. } = &mut refusal {
        causes.push(Cause {
            reason: "NamespaceTerminating".into(),
            message: format!("namespace {namespace} is being terminated"),
            field: "metadata.namespace".into(),
        });
    }
    Err(refusal)
}

pub(crate) fn check_delete(call: &Call, name: &str) -> Result<()> {
    if call.kind.plural == "namespaces" && call.kind.group.is_empty() && PROTECTED.contains(&name) {
        return Err(ApiError::forbidden(&call.kind, name, "this namespace may not be deleted"));
    }
    Ok(())
}
