//! Validation of pod specs, in pods and in templates.

use super::checks::{self, Duplicates};
use super::container::{self, Pod};
use super::{resources, scheduling, security, volumes};
use api::field::{At, Errors, Wrong};
use api::metadata;
use api::names;

const NAMESERVERS_MAX: usize = 3;
const SEARCHES_MAX: usize = 32;
const SEARCH_TEXT_MAX: usize = 2048;
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
const MIRROR: &str = "kubernetes.io/config.mirror";

/// Validates `spec`. `pod` is the metadata of a pod, `None` for templates.
pub(super) fn validate(spec: &At, pod: Option<&At>, errors: &mut Errors) {
    let grace = spec.field("terminationGracePeriodSeconds");
    if !grace.is_set() {
        errors.required(&grace, "");
    }
    let volumes = volumes::validate(&spec.field("volumes"), pod, errors);
    let claims = resource_claims(&spec.field("resourceClaims"), errors);
    let context = Pod {
        volumes,
        claims,
        grace: grace.int(),
        restart_policy: spec.field("restartPolicy").text(),
        host_users: spec.field("hostUsers").bool() != Some(false),
        os: Some(spec.field("os").field("name").text()).filter(|name| !name.is_empty()),
    };
    container::containers(spec, &context, errors);
    container::init_containers(spec, &context, errors);
    container::ephemeral_containers(spec, &context, errors);
    pod_resources(spec, errors);
    host_network_ports(spec, pod.is_some(), errors);
    checks::one_of(&spec.field("restartPolicy"), &["Always", "OnFailure", "Never"], errors);
    let dns = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
    checks::one_of(&spec.field("dnsPolicy"), &dns, errors);
    metadata::labels(&spec.field("nodeSelector"), errors);
    security::pod(spec, errors);
    scheduling::affinity(&spec.field("affinity"), errors);
    dns_config(spec, errors);
    for gate in spec.field("readinessGates").items() {
        scheduling::label_name(&gate.field("conditionType"), errors);
    }
    scheduling::gates(&spec.field("schedulingGates"), errors);
    scheduling::spread(&spec.field("topologySpreadConstraints"), errors);
    host_users(spec, errors);
    names_and_numbers(spec, errors);
    security::operating_system(spec, errors);
}

fn names_and_numbers(spec: &At, errors: &mut Errors) {
    for field in ["serviceAccountName", "nodeName"] {
        checks::optional_name(&spec.field(field), names::dns1123_subdomain, errors);
    }
    checks::in_range(&spec.field("activeDeadlineSeconds"), 1, i32::MAX.into(), errors);
    for field in ["hostname", "subdomain"] {
        checks::optional_name(&spec.field(field), names::dns1123_label, errors);
    }
    scheduling::tolerations(&spec.field("tolerations"), errors);
    host_aliases(&spec.field("hostAliases"), errors);
    checks::optional_name(&spec.field("priorityClassName"), names::dns1123_subdomain, errors);
    let runtime = spec.field("runtimeClassName");
    if runtime.is_set() {
        checks::each(&runtime, names::dns1123_subdomain(runtime.text()), errors);
    }
    let preemption = spec.field("preemptionPolicy");
    if preemption.is_set() {
        checks::one_of(&preemption, &["PreemptLowerPriority", "Never"], errors);
    }
    overhead(&spec.field("overhead"), errors);
}

/// Annotations that have a meaning for pods.
pub(super) fn annotations(annotations: &At, shown: &At, spec: &At, errors: &mut Errors) {
    let mirror = annotations.key(MIRROR);
    if mirror.is_set() && spec.field("nodeName").text().is_empty() {
        let detail = "must set spec.nodeName if mirror pod annotation is set";
        errors.invalid_value(&shown.key(MIRROR), mirror.text(), detail);
    }
    let cost = annotations.key(DELETION_COST);
    if cost.is_set() && !is_int32(cost.text()) {
        let shown = shown.key(DELETION_COST);
        errors.invalid_value(&shown, cost.text(), "must be a 32bit integer");
    }
}

/// As in upstream: no leading plus, no leading zeros.
fn is_int32(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    text.parse::<i32>().is_ok()
        && !text.starts_with('+')
        && (digits == "0" || !digits.starts_with('0'))
}

fn resource_claims<'v>(claims: &At<'_, 'v>, errors: &mut Errors) -> Vec<&'v str> {
    let mut seen = Duplicates::default();
    for claim in claims.items() {
        let name = claim.field("name");
        if name.text().is_empty() {
            errors.required(&name, "");
        } else if seen.repeats(name.text()) {
            errors.duplicate(&name);
        } else {
            checks::each(&name, names::dns1123_label(name.text()), errors);
        }
        let fields = ["resourceClaimName", "resourceClaimTemplateName"];
        match fields.iter().filter(|field| claim.field(field).is_set()).count() {
            0 => errors.invalid(
                &claim,
                "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`",
            ),
            1 => {}
            _ => errors.invalid(&claim, "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"),
        }
        for field in fields {
            let name = claim.field(field);
            if name.is_set() {
                checks::each(&name, names::dns1123_subdomain(name.text()), errors);
            }
        }
    }
    let mut names: Vec<&str> = claims.items().map(|claim| claim.field("name").text()).collect();
    names.retain(|name| !name.is_empty());
    names.sort_unstable();
    names
}

/// Pod-level resources: requests must be at least the sum of the containers' requests.
fn pod_resources(spec: &At, errors: &mut Errors) {
    let whole = spec.field("resources");
    if !whole.is_set() {
        return;
    }
    if !whole.field("claims").is_empty() {
        let detail = "claims cannot be set for Resources at pod-level";
        errors.forbidden(&whole.field("claims"), detail);
    }
    resources::requirements(&whole, resources::pod_name, &[], errors);
    let requests = whole.field("requests");
    let empty = serde_json::Value::Null;
    for (name, sum) in api::pod::json::container_requests(spec.value().unwrap_or(&empty)) {
        let at = requests.key(&name);
        let requested = checks::quantity(&at).unwrap_or(api::quantity::Quantity::ZERO);
        if sum > requested {
            let detail =
                format!("must be greater than or equal to aggregate container requests of {sum}");
            errors.invalid_value(&at, requested.to_string(), &detail);
        }
    }
    let limits = whole.field("limits");
    for (index, container) in spec.field("containers").items().enumerate() {
        let resources = container.field("resources");
        for (name, at) in resources.field("limits").entries() {
            let (Some(own), Some(all)) =
                (checks::quantity(&at), checks::quantity(&limits.key(name)))
            else {
                continue;
            };
            if own > all {
                let path = format!("{}.containers[{index}][{name}].limits", whole.path());
                let detail = format!("must be less than or equal to pod limits of {all}");
                errors.push(Wrong::Invalid, path, Some(&own.to_string().into()), &detail);
            }
        }
    }
}

/// Overhead is validated like limits, with `limits` in the path as in upstream.
fn overhead(overhead: &At, errors: &mut Errors) {
    let shown = overhead.field("limits");
    for (resource, amount) in overhead.entries() {
        let shown = shown.key(resource);
        resources::container_name(&shown, resource, errors);
        if let Some(amount) = checks::quantity(&amount) {
            resources::amount_as(&shown, amount, resource, errors);
        }
    }
}

/// With `hostNetwork`, a container port must equal its host port.
fn host_network_ports(spec: &At, in_pod: bool, errors: &mut Errors) {
    if !spec.field("hostNetwork").is_true() {
        return;
    }
    for container in spec.field("containers").items() {
        for port in container.field("ports").items() {
            let host = port.field("hostPort").int().unwrap_or_default();
            let own = port.field("containerPort").int().unwrap_or_default();
            if (in_pod || host != 0) && host != own {
                let detail = "must match `containerPort` when `hostNetwork` is true";
                errors.invalid_value(&port.field("hostPort"), host, detail);
            }
        }
    }
}

fn dns_config(spec: &At, errors: &mut Errors) {
    let config = spec.field("dnsConfig");
    let servers = config.field("nameservers");
    if spec.field("dnsPolicy").text() == "None" {
        if !config.is_set() {
            errors.required(&config, "must provide `dnsConfig` when `dnsPolicy` is None");
            return;
        }
        if servers.is_empty() {
            let detail = "must provide at least one DNS nameserver when `dnsPolicy` is None";
            errors.required(&servers, detail);
            return;
        }
    }
    if servers.len() > NAMESERVERS_MAX {
        let detail = format!("must not have more than {NAMESERVERS_MAX} nameservers");
        errors.invalid(&servers, &detail);
    }
    for server in servers.items() {
        checks::ip(&server, errors);
    }
    let searches = config.field("searches");
    if searches.len() > SEARCHES_MAX {
        errors.invalid(&searches, &format!("must not have more than {SEARCHES_MAX} search paths"));
    }
    let length: usize = searches.items().map(|search| search.text().len() + 1).sum();
    if length > SEARCH_TEXT_MAX + 1 {
        let detail = format!(
            "must not have more than {SEARCH_TEXT_MAX} characters (including spaces) in the search list"
        );
        errors.invalid(&searches, &detail);
    }
    for search in searches.items().filter(|search| search.text() != ".") {
        let plain = search.text().strip_suffix('.').unwrap_or(search.text());
        for wrong in names::dns1123_subdomain_with_underscore(plain) {
            errors.invalid_value(&search, plain, &wrong);
        }
    }
    for option in config.field("options").items() {
        if option.field("name").text().is_empty() {
            errors.required(&option, "must not be empty");
        }
    }
}

fn host_users(spec: &At, errors: &mut Errors) {
    if spec.field("hostUsers").bool() != Some(false) {
        return;
    }
    for (field, shown) in
        [("hostNetwork", "hostNetwork"), ("hostPID", "HostPID"), ("hostIPC", "HostIPC")]
    {
        if spec.field(field).is_true() {
            errors.forbidden(&spec.field(shown), "when `hostUsers` is false");
        }
    }
    // The user IDs of block devices cannot be mapped.
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        for container in spec.field(list).items() {
            let devices = container.field("volumeDevices");
            if devices.items().next().is_some() {
                errors.forbidden(&devices, "when `hostUsers` is false");
            }
        }
    }
}

fn host_aliases(aliases: &At, errors: &mut Errors) {
    for alias in aliases.items() {
        checks::ip(&alias.field("ip"), errors);
        for hostname in alias.field("hostnames").items() {
            checks::each(&hostname, names::dns1123_subdomain(hostname.text()), errors);
        }
    }
}
