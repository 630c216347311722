//! Names of resources, and amounts of them in containers, quotas and limits.

use super::checks::{self, Duplicates, NEGATIVE};
use api::field::{At, Errors, Wrong};
use api::names;
use api::quantity::Quantity;

const CONTAINER: &[&str] = &["cpu", "memory", "ephemeral-storage"];
const INTEGER: &[&str] = &[
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "services.nodeports",
    "services.loadbalancers",
];
const COMPUTE_QUOTA: &[&str] = &[
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
    "requests.storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
];

pub(super) fn is_huge_page(name: &str) -> bool {
    name.starts_with("hugepages-")
}

fn is_quota_huge_page(name: &str) -> bool {
    is_huge_page(name) || name.starts_with("requests.hugepages-")
}

/// A resource that Kubernetes itself defines.
fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

pub(super) fn is_extended(name: &str) -> bool {
    !is_native(name)
        && !name.starts_with("requests.")
        && names::qualified_name(&format!("requests.{name}")).is_empty()
}

pub(super) fn is_quota_name(name: &str) -> bool {
    CONTAINER.contains(&name)
        || INTEGER.contains(&name)
        || COMPUTE_QUOTA.contains(&name)
        || is_quota_huge_page(name)
}

/// Whether the limit may exceed the request.
pub(super) fn may_overcommit(name: &str) -> bool {
    is_native(name) && !is_huge_page(name)
}

/// Validates the name of any resource.
pub(super) fn name(at: &At, name: &str, errors: &mut Errors) -> bool {
    let wrong = names::qualified_name(name);
    let good = wrong.is_empty();
    for wrong in wrong {
        errors.invalid_value(at, name, &wrong);
    }
    if good && !name.contains('/') && name != "storage" && !is_quota_name(name) {
        errors.invalid_value(at, name, "must be a standard resource type or fully qualified");
        return false;
    }
    good
}

/// Validates the name of a resource in a container's requests or limits.
pub(super) fn container_name(at: &At, resource: &str, errors: &mut Errors) {
    name(at, resource, errors);
    if !resource.contains('/') {
        if !CONTAINER.contains(&resource) && !is_huge_page(resource) {
            errors.invalid_value(at, resource, "must be a standard resource for containers");
        }
    } else if !is_native(resource) && !is_extended(resource) {
        errors.invalid_value(at, resource, "doesn't follow extended resource name standard");
    }
}

/// Validates the name of a resource in pod-level requests or limits.
pub(super) fn pod_name(at: &At, resource: &str, errors: &mut Errors) {
    let supported = ["cpu", "memory"];
    if name(at, resource, errors) && !supported.contains(&resource) && !is_huge_page(resource) {
        errors.push(
            Wrong::NotSupported,
            at.path(),
            Some(&resource.into()),
            "supported values: \"cpu\", \"hugepages-\", \"memory\"",
        );
    }
}

pub(super) fn quota_name(at: &At, resource: &str, errors: &mut Errors) {
    name(at, resource, errors);
    if !resource.contains('/') && !is_quota_name(resource) {
        errors.invalid_value(at, resource, "must be a standard resource for quota");
    }
}

/// An amount must not be negative, and must be an integer for indivisible resources.
pub(super) fn amount(at: &At, resource: &str, errors: &mut Errors) {
    if let Some(quantity) = checks::quantity(at) {
        amount_as(at, quantity, resource, errors);
    }
}

/// The same for a given quantity, reported at `at`.
pub(super) fn amount_as(at: &At, quantity: Quantity, resource: &str, errors: &mut Errors) {
    if quantity.is_negative() {
        errors.invalid_value(at, quantity.to_string(), NEGATIVE);
    }
    if (INTEGER.contains(&resource) || is_extended(resource)) && !quantity.is_whole() {
        errors.invalid_value(at, quantity.to_string(), "must be an integer");
    }
}

/// `resources` of a container or of a pod, whose claims must be among the pod's.
pub(super) fn requirements(
    at: &At,
    check_name: fn(&At, &str, &mut Errors),
    claims: &[&str],
    errors: &mut Errors,
) {
    let (limits, requests) = (at.field("limits"), at.field("requests"));
    for (resource, limit) in limits.entries() {
        check_name(&limit, resource, errors);
        amount(&limit, resource, errors);
        huge_pages(&limit, resource, errors);
    }
    for (resource, request) in requests.entries() {
        check_name(&request, resource, errors);
        amount(&request, resource, errors);
        request_within_limit(&requests, &limits, resource, errors);
        huge_pages(&request, resource, errors);
    }
    let names = || limits.entries().chain(requests.entries()).map(|(name, _)| name);
    if names().any(is_huge_page) && !names().any(|name| name == "cpu" || name == "memory") {
        errors.forbidden(at, "HugePages require cpu or memory");
    }
    claim_names(&at.field("claims"), claims, errors);
}

fn request_within_limit(requests: &At, limits: &At, resource: &str, errors: &mut Errors) {
    let Some(request) = checks::quantity(&requests.key(resource)) else {
        return;
    };
    let Some(limit) = checks::quantity(&limits.key(resource)) else {
        if !may_overcommit(resource) {
            errors.required(limits, "Limit must be set for non overcommitable resources");
        }
        return;
    };
    let value = request.to_string();
    if request != limit && !may_overcommit(resource) {
        let detail = format!("must be equal to {resource} limit of {limit}");
        errors.invalid_value(requests, value, &detail);
    } else if request > limit {
        let detail = format!("must be less than or equal to {resource} limit of {limit}");
        errors.invalid_value(requests, value, &detail);
    }
}

fn huge_pages(at: &At, resource: &str, errors: &mut Errors) {
    let (Some(size), Some(quantity)) = (resource.strip_prefix("hugepages-"), checks::quantity(at))
    else {
        return;
    };
    let page = Quantity::parse(size).map(|page| page.value()).unwrap_or_default();
    if page <= 0 || !quantity.is_whole() || quantity.value() % page != 0 {
        let detail = format!("{quantity} is not positive integer multiple of {resource}");
        errors.invalid_value(at, quantity.to_string(), &detail);
    }
}

fn claim_names(claims: &At, known: &[&str], errors: &mut Errors) {
    let mut seen = Duplicates::default();
    for claim in claims.items() {
        let name = claim.field("name").text();
        if name.is_empty() {
            errors.required(&claim, "");
            continue;
        }
        let request = claim.field("request");
        checks::optional_name(&request, names::dns1123_label, errors);
        let key = match request.text() {
            "" => name.to_owned(),
            request => format!("{name}/{request}"),
        };
        if seen.repeats(key.clone()) {
            errors.push(Wrong::Duplicate, claim.path(), Some(&key.into()), "");
        }
        if !known.contains(&name) {
            let known = match known {
                [] => " which is empty".to_owned(),
                known => format!(": {}", known.join(", ")),
            };
            let detail = format!("must be one of the names in pod.spec.resourceClaims{known}");
            errors.push(Wrong::NotFound, claim.path(), Some(&name.into()), &detail);
        }
    }
}
