//! Ingresses and IngressClasses.

use crate::check;
use api::field::{At, Errors, Wrong};
use api::names;
use api::value::ValueExt;
use serde_json::Value;
use std::net::IpAddr;

const CONTROLLER_MAX: usize = 250;

/// Sequences that no path may contain, because proxies interpret them differently.
const BAD_SEQUENCES: [&str; 5] = ["//", "/./", "/../", "%2f", "%2F"];
const BAD_ENDINGS: [&str; 2] = ["/..", "/."];

pub(super) fn default(ingress: &mut Value) {
    ingress.object("spec");
    ingress.object("status").object("loadBalancer");
}

pub(super) fn validate(ingress: &At, errors: &mut Errors) {
    let spec = ingress.field("spec");
    let (rules, fallback) = (spec.field("rules"), spec.field("defaultBackend"));
    if rules.is_empty() && !fallback.is_set() {
        let shown = rules.value().cloned().unwrap_or_default();
        let detail = "either `defaultBackend` or `rules` must be specified";
        errors.invalid_value(&spec, shown, detail);
    }
    if fallback.is_set() {
        validate_backend(&fallback, errors);
    }
    for rule in rules.items() {
        validate_rule(&rule, errors);
    }
    for tls in spec.field("tls").items() {
        for host in tls.field("hosts").items() {
            let form = if host.text().contains('*') {
                names::wildcard_subdomain
            } else {
                names::dns1123_subdomain
            };
            check::text(&host, form, errors);
        }
        let secret = tls.field("secretName");
        if !secret.text().is_empty() {
            check::text(&secret, names::dns1123_subdomain, errors);
        }
    }
    let class = spec.field("ingressClassName");
    if class.is_set() {
        check::text(&class, names::dns1123_subdomain, errors);
        if check::is_new(ingress) {
            classes_agree(ingress, &class, errors);
        }
    }
}

/// The class can also be named by an annotation, the form before there was a field (NET-140).
fn classes_agree(ingress: &At, class: &At, errors: &mut Errors) {
    const ANNOTATION: &str = "kubernetes.io/ingress.class";
    let metadata = ingress.field("metadata");
    let annotations = metadata.field("annotations");
    let annotation = annotations.field(ANNOTATION);
    if annotation.is_set() && annotation.text() != class.text() {
        let detail = "must match `ingressClassName` when both are specified";
        errors.push(
            Wrong::Invalid,
            format!("annotations.{ANNOTATION}"),
            annotation.value(),
            detail,
        );
    }
}

fn validate_rule(rule: &At, errors: &mut Errors) {
    let host = rule.field("host");
    if !host.text().is_empty() {
        if host.text().parse::<IpAddr>().is_ok() {
            errors.invalid(&host, "must be a DNS name, not an IP address");
        }
        let wildcard = host.text().contains('*');
        let form = if wildcard { names::wildcard_subdomain } else { names::dns1123_subdomain };
        check::text(&host, form, errors);
    }
    let http = rule.field("http");
    if http.is_set() {
        let paths = http.field("paths");
        if paths.is_empty() {
            errors.required(&paths, "");
        }
        for path in paths.items() {
            validate_path(&path, errors);
        }
    }
}

fn validate_path(entry: &At, errors: &mut Errors) {
    let (kind, path) = (entry.field("pathType"), entry.field("path"));
    let absolute = path.text().starts_with('/');
    match kind.str() {
        None => errors.required(&kind, "pathType must be specified"),
        Some("Exact" | "Prefix") => {
            if !absolute {
                errors.invalid_value(&path, path.text(), "must be an absolute path");
            }
            for bad in BAD_SEQUENCES {
                if path.text().contains(bad) {
                    errors.invalid(&path, &format!("must not contain '{bad}'"));
                }
            }
            for bad in BAD_ENDINGS {
                if path.text().ends_with(bad) {
                    errors.invalid(&path, &format!("cannot end with '{bad}'"));
                }
            }
        }
        Some("ImplementationSpecific") => {
            if !path.text().is_empty() && !absolute {
                errors.invalid(&path, "must be an absolute path");
            }
        }
        Some(_) => errors.not_supported(&kind, &["Exact", "ImplementationSpecific", "Prefix"]),
    }
    validate_backend(&entry.field("backend"), errors);
}

fn validate_backend(backend: &At, errors: &mut Errors) {
    let (resource, service) = (backend.field("resource"), backend.field("service"));
    match (resource.is_set(), service.is_set()) {
        (true, true) => {
            errors.invalid_value(backend, "", "cannot set both resource and service backends");
        }
        (true, false) => {
            for name in ["kind", "name"] {
                check::required_text(&resource.field(name), "", errors);
            }
        }
        (false, true) => validate_service(backend, &service, errors),
        (false, false) => {
            errors.invalid_value(backend, "", "resource or service backend is required");
        }
    }
}

fn validate_service(backend: &At, service: &At, errors: &mut Errors) {
    let name = service.field("name");
    if name.text().is_empty() {
        errors.required(&name, "");
    } else {
        check::text(&name, names::dns1123_label, errors);
    }
    let port = service.field("port");
    let (port_name, number) = (port.field("name"), port.field("number"));
    let has_number = number.int().is_some_and(|number| number != 0);
    match (!port_name.text().is_empty(), has_number) {
        (true, true) => {
            errors.invalid_value(backend, "", "cannot set both port name & port number");
        }
        (true, false) => check::text(&port_name, names::port_name, errors),
        (false, true) => check::port_number(&number, errors),
        (false, false) => errors.required(backend, "port name or number is required"),
    }
}

pub(super) fn validate_class(class: &At, errors: &mut Errors) {
    let spec = class.field("spec");
    let controller = spec.field("controller");
    if controller.text().is_empty() {
        errors.required(&controller, "");
    } else {
        if controller.text().len() > CONTROLLER_MAX {
            errors.too_long(&controller, CONTROLLER_MAX);
        }
        check::domain_prefixed_path(&controller, errors);
    }
    let parameters = spec.field("parameters");
    if !parameters.is_set() {
        return;
    }
    for name in ["kind", "name"] {
        check::required_text(&parameters.field(name), "", errors);
    }
    let (scope, namespace) = (parameters.field("scope"), parameters.field("namespace"));
    match scope.text() {
        "" => errors.required(&scope, ""),
        "Namespace" if namespace.text().is_empty() => {
            errors.required(&namespace, "`parameters.scope` is set to 'Namespace'");
        }
        "Cluster" if namespace.is_set() => {
            errors.forbidden(&namespace, "`parameters.scope` is set to 'Cluster'");
        }
        "Namespace" => check::text(&namespace, names::dns1123_label, errors),
        "Cluster" => {}
        _ => errors.not_supported(&scope, &["Cluster", "Namespace"]),
    }
}
