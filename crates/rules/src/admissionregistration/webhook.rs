//! Webhook configurations.

use super::{default_matching, validate_conditions, validate_rule, validate_selectors};
use crate::check;
use api::field::{At, Errors};
use api::names;
use api::value::ValueExt;
use serde_json::Value;

/// The versions of AdmissionReview that this server sends.
const REVIEW_VERSIONS: [&str; 2] = ["v1", "v1beta1"];
const URL_FORM: &str = "desired format: https://host[/path]";

/// Defaults of a webhook configuration.
pub(super) fn default(configuration: &mut Value, mutating: bool) {
    for hook in configuration.list_mut("webhooks") {
        hook.set_default("failurePolicy", "Fail");
        hook.set_default("timeoutSeconds", 10);
        default_matching(hook, "rules");
        if mutating {
            hook.set_default("reinvocationPolicy", "Never");
        }
        let service = hook.get_mut("clientConfig").and_then(|config| config.get_mut("service"));
        if let Some(service) = service.filter(|service| service.is_object()) {
            service.set_default("port", 443);
        }
    }
}

pub(super) fn validate(configuration: &At, mutating: bool, errors: &mut Errors) {
    let mut seen = check::Unique::new();
    for hook in configuration.field("webhooks").items() {
        validate_hook(&hook, errors);
        if mutating {
            let again = hook.field("reinvocationPolicy");
            check::one_of_if_set(&again, &["IfNeeded", "Never"], errors);
        }
        validate_review_versions(&hook.field("admissionReviewVersions"), errors);
        let name = hook.field("name");
        if !name.text().is_empty() && !seen.add(name.text()) {
            errors.duplicate(&name);
        }
    }
}

fn validate_hook(hook: &At, errors: &mut Errors) {
    validate_name(&hook.field("name"), errors);
    for rule in hook.field("rules").items() {
        validate_rule(&rule, errors);
    }
    check::one_of_if_set(&hook.field("failurePolicy"), &["Fail", "Ignore"], errors);
    check::one_of_if_set(&hook.field("matchPolicy"), &["Equivalent", "Exact"], errors);
    let effects = hook.field("sideEffects");
    if effects.is_set() {
        check::one_of(&effects, &["None", "NoneOnDryRun"], errors);
    } else {
        errors.required(&effects, "must specify one of None, NoneOnDryRun");
    }
    let timeout = hook.field("timeoutSeconds");
    if timeout.int().is_some_and(|seconds| !(1..=30).contains(&seconds)) {
        errors.invalid(&timeout, "the timeout value must be between 1 and 30 seconds");
    }
    validate_selectors(hook, errors);
    validate_client(&hook.field("clientConfig"), errors);
    validate_conditions(&hook.field("matchConditions"), errors);
}

fn validate_name(name: &At, errors: &mut Errors) {
    if name.text().is_empty() {
        errors.required(name, "");
        return;
    }
    let wrong = names::dns1123_subdomain(name.text());
    if !wrong.is_empty() {
        errors.invalid(name, &wrong.join(","));
    } else if name.text().split('.').count() < 3 {
        let detail = "should be a domain with at least three segments separated by dots";
        errors.invalid(name, detail);
    }
}

fn validate_review_versions(versions: &At, errors: &mut Errors) {
    let known = REVIEW_VERSIONS.join(", ");
    if versions.is_empty() {
        errors.required(versions, &format!("must specify one of {known}"));
        return;
    }
    let mut seen = check::Unique::new();
    for version in versions.items() {
        if !seen.add(version.text()) {
            errors.invalid(&version, "duplicate version");
            continue;
        }
        check::text(&version, names::dns1035_label, errors);
    }
    if !versions.items().any(|version| REVIEW_VERSIONS.contains(&version.text())) {
        errors.invalid(versions, &format!("must include at least one of {known}"));
    }
}

fn validate_client(config: &At, errors: &mut Errors) {
    let (url, service) = (config.field("url"), config.field("service"));
    if url.is_set() == service.is_set() {
        errors.required(config, "exactly one of url or service is required");
    } else if url.is_set() {
        validate_url(&url, errors);
    } else {
        validate_service(&service, errors);
    }
}

fn validate_url(url: &At, errors: &mut Errors) {
    let (scheme, rest) = url.text().split_once("://").unwrap_or(("", url.text()));
    if scheme != "https" {
        let detail = format!("'https' is the only allowed URL scheme; {URL_FORM}");
        errors.invalid_value(url, scheme, &detail);
    }
    let (rest, fragment) = rest.split_once('#').unwrap_or((rest, ""));
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let authority = rest.split('/').next().unwrap_or_default();
    let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    if host.is_empty() {
        errors.invalid_value(url, host, &format!("host must be specified; {URL_FORM}"));
    }
    for (part, detail) in [
        (user, "user information is not permitted in the URL"),
        (fragment, "fragments are not permitted in the URL"),
        (query, "query parameters are not permitted in the URL"),
    ] {
        if !part.is_empty() {
            errors.invalid_value(url, part, detail);
        }
    }
}

fn validate_service(service: &At, errors: &mut Errors) {
    check::required_text(&service.field("name"), "service name is required", errors);
    check::required_text(&service.field("namespace"), "service namespace is required", errors);
    let port = service.field("port");
    for complaint in names::port_number(port.int().unwrap_or(443)) {
        errors.invalid(&port, &format!("port is not valid: {complaint}"));
    }
    let path = service.field("path");
    if let Some(text) = path.str() {
        if !text.starts_with('/') {
            errors.invalid(&path, "must start with a '/'");
        } else if text.len() > 1 && text[1..].trim_end_matches('/').split('/').any(str::is_empty) {
            errors.invalid(&path, "segment may not be empty");
        }
    }
}
