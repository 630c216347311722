//! The chain of admission plugins, in upstream's order.
//!
//! Mutating plugins run before an object is prepared and validated, validating ones after. Each is a file of its own that
//! changes the object, refuses it, or does nothing. Only the plugins for the object's kind run, and each makes its
//! cheapest check first: a pod in a namespace without limits and quotas costs a few lookups in memory.

mod mirror_references;
mod namespace;

mod limit_ranger;
mod pod_resize;
mod service_account;

mod node_restriction;
mod node_taint;
mod step_author;

mod pod_security;

mod priority;
mod runtime_class;
mod toleration;
mod topology;

mod default_storage_class;
mod storage_protection;
mod volume_resize;

mod audience;
mod certificate;
mod default_ingress_class;
mod escalation;

mod quota;

use crate::request::call::{Call, name_of};
use crate::response::error::{ApiError, Result};
use api::value::ValueExt;
use lifecycle::timeline::{Steps, Subject};
use serde_json::Value;

/// The mutating plugins for a new object.
pub(crate) async fn admit_create(call: &Call, object: &mut Value) -> Result<()> {
    namespace::check_create(call, object)?;
    match resource(call) {
        ("", "pods") => {
            limit_ranger::default_pod(call, object);
            service_account::admit(call, object).await?;
            priority::admit(call, object)?;
            toleration::admit(object);
            runtime_class::admit(call, object)?;
            topology::admit(call, object);
        }
        ("", "nodes") => node_taint::admit(object),
        ("", "persistentvolumeclaims") => {
            default_storage_class::admit(call, object);
            storage_protection::admit(object, "kubernetes.io/pvc-protection");
        }
        ("", "persistentvolumes") => {
            storage_protection::admit(object, "kubernetes.io/pv-protection");
        }
        ("storage.k8s.io", "volumeattributesclasses") => {
            storage_protection::admit(object, "kubernetes.io/vac-protection");
        }
        ("certificates.k8s.io", "certificatesigningrequests") => {
            certificate::record_requester(&call.user, object);
        }
        ("networking.k8s.io", "ingresses") => default_ingress_class::admit(call, object),
        _ => {}
    }
    // Mutating policies and webhooks belong here, after the plugins.
    // Upstream checks escalation when storing begins, before the object is validated.
    escalation::check(call, object, None)
}

/// The validating plugins for a new object; quota is always last.
pub(crate) async fn check_create(call: &Call, object: &Value, dry_run: bool) -> Result<()> {
    if let Some(node) = node_restriction::Node::of(call)? {
        node.check_create(call, object)?;
    }
    match resource(call) {
        ("", "pods") => {
            limit_ranger::check_pod(call, object)?;
            pod_security::check_pod(call, object, None)?;
            runtime_class::check(call, object)?;
        }
        ("", "namespaces") => pod_security::check_namespace(call, object, None)?,
        ("", "persistentvolumeclaims") => limit_ranger::check_claim(call, object)?,
        ("scheduling.k8s.io", "priorityclasses") => priority::check_class(call, object, true)?,
        ("certificates.k8s.io", "certificatesigningrequests") => {
            certificate::check_subject(call, object)?;
        }
        _ => pod_security::check_template(call, object),
    }
    // Validating policies and webhooks belong here, before quota.
    quota::check(call, object, None, dry_run).await
}

/// The mutating plugins for an update, through any endpoint.
pub(crate) async fn admit_update(call: &Call, new: &mut Value, old: &Value) -> Result<()> {
    if call.target.subresource.is_empty() {
        if resource(call) == ("", "pods") {
            priority::keep(new, old);
            toleration::admit(new);
        }
        // Mutating policies and webhooks belong here, after the plugins.
        escalation::check(call, new, Some(old))?;
    }
    Ok(())
}

/// The validating plugins for an update; quota is always last.
pub(crate) async fn check_update(
    call: &Call,
    new: &Value,
    old: &Value,
    dry_run: bool,
) -> Result<()> {
    if let Some(node) = node_restriction::Node::of(call)? {
        node.check_update(call, new, old)?;
    }
    let (group, plural) = resource(call);
    match (group, plural, call.target.subresource.as_str()) {
        ("", "pods", "resize") => {
            limit_ranger::check_pod(call, new)?;
            pod_resize::check(call, new)?;
        }
        ("", "pods", "" | "ephemeralcontainers") => {
            pod_security::check_pod(call, new, Some(old))?;
        }
        ("", "namespaces", "") => pod_security::check_namespace(call, new, Some(old))?,
        ("", "persistentvolumeclaims", "") => {
            limit_ranger::check_claim(call, new)?;
            volume_resize::check(call, new, old)?;
        }
        ("scheduling.k8s.io", "priorityclasses", "") => priority::check_class(call, new, false)?,
        ("certificates.k8s.io", "certificatesigningrequests", "approval") => {
            certificate::check_approval(call, old)?;
        }
        ("certificates.k8s.io", "certificatesigningrequests", "status") => {
            certificate::check_signing(call, new, old)?;
        }
        (_, _, "") => pod_security::check_template(call, new),
        _ => {}
    }
    // Validating policies and webhooks belong here, before quota.
    quota::check(call, new, Some(old), dry_run).await
}

/// The plugins for a deletion, which has no mutating ones.
pub(crate) async fn check_delete(call: &Call, name: &str) -> Result<()> {
    namespace::check_delete(call, name)?;
    priority::check_delete(call, name)?;
    if let Some(node) = node_restriction::Node::of(call)? {
        node.check_delete(call, name)?;
    }
    // Validating policies and webhooks belong here.
    Ok(())
}

/// For POST to subresources that store no object of their own (evictions, bindings).
pub(crate) fn check_namespace(call: &Call) -> Result<()> {
    namespace::check_namespace(call)?;
    if let Some(node) = node_restriction::Node::of(call)? {
        node.check_posted(call)?;
    }
    Ok(())
}

/// Before steps are added to a termination record: a caller may only post steps of its own.
pub(crate) fn check_steps(call: &Call, steps: &Steps, subject: &Subject) -> Result<()> {
    if call.store().get("namespaces", &call.target.namespace).is_none() {
        return namespace::check_namespace(call);
    }
    match node_restriction::Node::of(call)? {
        Some(node) => node.check_steps(call, steps, subject),
        None => step_author::check(call, steps),
    }
}

/// Before a service account token is issued.
pub(crate) fn check_token(call: &Call, request: &Value) -> Result<()> {
    match node_restriction::Node::of(call)? {
        Some(node) => node.check_token(call, request),
        None => Ok(()),
    }
}

fn resource(call: &Call) -> (&str, &str) {
    (&call.kind.group, &call.kind.plural)
}

/// `pods "x" is forbidden: why`
fn refuse(call: &Call, object: &Value, why: impl AsRef<str>) -> ApiError {
    ApiError::forbidden(&call.kind, name_of(object), why.as_ref())
}

/// The default among objects that are marked as default by an annotation: the newest, then by name.
fn newest_default(call: &Call, collection: &str, annotations: &[&str]) -> Option<Value> {
    use crate::object::Stored;
    let (_, classes) = call.store().list(collection, "", None);
    let is_default = |class: &Value| {
        annotations.iter().any(|key| class.text(&["metadata", "annotations", key]) == "true")
    };
    // All times have the same format, so their texts sort like the times.
    let created = |class: &Value| class.text(&["metadata", "creationTimestamp"]).to_owned();
    let defaults = classes.iter().map(|class| class.value()).filter(is_default);
    defaults.reduce(|best, class| {
        let newer = created(&class).cmp(&created(&best));
        if newer.then_with(|| name_of(&best).cmp(name_of(&class))).is_gt() { class } else { best }
    })
}
