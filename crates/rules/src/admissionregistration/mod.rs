//! Rules of the `admissionregistration.k8s.io` kinds: webhooks and policies that admit writes.
//!
//! Not checked here: that CEL expressions compile.

use super::{Generation, Rules, check, label_selector};
use api::field::{At, Errors};
use api::names;
use api::value::ValueExt;
use serde_json::{Value, json};

mod policy;
mod webhook;

const MATCH_CONDITIONS_MAX: usize = 64;

pub(crate) fn rules(kind: &str) -> Rules {
    let common =
        Rules { generation: Generation::Content, unconditional_update: false, ..Rules::NONE };
    match kind {
        "ValidatingWebhookConfiguration" => Rules {
            default: |configuration| webhook::default(configuration, false),
            validate: |configuration, errors| webhook::validate(configuration, false, errors),
            ..common
        },
        "MutatingWebhookConfiguration" => Rules {
            default: |configuration| webhook::default(configuration, true),
            validate: |configuration, errors| webhook::validate(configuration, true, errors),
            ..common
        },
        "ValidatingAdmissionPolicy" => Rules {
            default: |policy| {
                policy::default(policy);
                policy.object("status");
            },
            prepare_create: |policy| {
                policy.map().insert("status".into(), json!({}));
            },
            validate: policy::validate_validating,
            ..common
        },
        "MutatingAdmissionPolicy" => {
            Rules { default: policy::default, validate: policy::validate_mutating, ..common }
        }
        "ValidatingAdmissionPolicyBinding" => Rules {
            default: policy::default_binding,
            validate: |binding, errors| policy::validate_binding(binding, true, errors),
            ..common
        },
        "MutatingAdmissionPolicyBinding" => Rules {
            default: policy::default_binding,
            validate: |binding, errors| policy::validate_binding(binding, false, errors),
            ..common
        },
        _ => Rules::NONE,
    }
}

/// Defaults that webhooks and policies share: which objects they match.
fn default_matching(at: &mut Value, rules: &str) {
    at.set_default("matchPolicy", "Equivalent");
    at.set_default("namespaceSelector", json!({}));
    at.set_default("objectSelector", json!({}));
    for rule in at.list_mut(rules) {
        rule.set_default("scope", "*");
    }
}

fn validate_rule(rule: &At, errors: &mut Errors) {
    let operations = rule.field("operations");
    validate_wildcard_list(&operations, "operations", errors);
    for operation in operations.items() {
        let known = ["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
        check::one_of(&operation, &known, errors);
    }
    validate_wildcard_list(&rule.field("apiGroups"), "API groups", errors);
    let versions = rule.field("apiVersions");
    validate_wildcard_list(&versions, "API versions", errors);
    for version in versions.items() {
        check::required_text(&version, "", errors);
    }
    validate_resources(&rule.field("resources"), errors);
    check::one_of_if_set(&rule.field("scope"), &["*", "Cluster", "Namespaced"], errors);
}

/// A star matches everything, so the list may not have other entries.
fn validate_wildcard_list(list: &At, plural: &str, errors: &mut Errors) {
    if list.is_empty() {
        errors.required(list, "");
    } else if list.len() > 1 && list.items().any(|item| item.text() == "*") {
        errors.invalid(list, &format!("if '*' is present, must not specify other {plural}"));
    }
}

fn validate_resources(resources: &At, errors: &mut Errors) {
    if resources.is_empty() {
        errors.required(resources, "");
    }
    let has = |name: &str| resources.items().any(|resource| resource.text() == name);
    if has("*/*") && resources.len() > 1 {
        let detail = "if '*/*' is present, must not specify other resources";
        errors.invalid(resources, detail);
    }
    let whole = has("*") && resources.items().any(|r| r.text() != "*" && !r.text().contains('/'));
    if whole {
        let detail = "if '*' is present, must not specify other resources without subresources";
        errors.invalid(resources, detail);
    }
    for resource in resources.items() {
        check::required_text(&resource, "", errors);
    }
}

fn validate_selectors(at: &At, errors: &mut Errors) {
    label_selector::validate(&at.field("namespaceSelector"), errors);
    label_selector::validate(&at.field("objectSelector"), errors);
}

fn validate_conditions(conditions: &At, errors: &mut Errors) {
    if conditions.len() > MATCH_CONDITIONS_MAX {
        errors.too_many(conditions, MATCH_CONDITIONS_MAX);
    }
    let mut seen = check::Unique::new();
    for condition in conditions.items() {
        let (name, expression) = (condition.field("name"), condition.field("expression"));
        if expression.text().trim().is_empty() {
            errors.required(&expression, "");
        }
        if name.text().is_empty() {
            errors.required(&name, "");
        } else {
            check::text(&name, names::qualified_name, errors);
            if !seen.add(name.text()) {
                errors.duplicate(&name);
            }
        }
    }
}

#[cfg(test)]
mod tests;
