//! Admission policies in CEL, and their bindings.

use super::{default_matching, validate_conditions, validate_rule, validate_selectors};
use crate::{check, label_selector};
use api::field::{At, Errors};
use api::names;
use api::value::ValueExt;
use serde_json::Value;

/// Defaults of an admission policy.
pub(super) fn default(policy: &mut Value) {
    let spec = policy.object("spec");
    spec.set_default("failurePolicy", "Fail");
    if spec.at(&["matchConstraints"]).is_some() {
        let constraints = spec.object("matchConstraints");
        default_matching(constraints, "resourceRules");
        for rule in constraints.list_mut("excludeResourceRules") {
            rule.set_default("scope", "*");
        }
    }
}

pub(super) fn default_binding(binding: &mut Value) {
    let spec = binding.object("spec");
    if spec.at(&["matchResources"]).is_some() {
        let resources = spec.object("matchResources");
        default_matching(resources, "resourceRules");
        for rule in resources.list_mut("excludeResourceRules") {
            rule.set_default("scope", "*");
        }
    }
}

pub(super) fn validate_validating(policy: &At, errors: &mut Errors) {
    let spec = policy.field("spec");
    validate_common(&spec, errors);
    let (validations, annotations) = (spec.field("validations"), spec.field("auditAnnotations"));
    if validations.is_empty() && annotations.is_empty() {
        let detail = "validations or auditAnnotations must contain at least one item";
        errors.required(&validations, detail);
    }
    for validation in validations.items() {
        validate_validation(&validation, errors);
    }
    let mut seen = check::Unique::new();
    for annotation in annotations.items() {
        let (key, expression) = (annotation.field("key"), annotation.field("valueExpression"));
        if key.text().is_empty() {
            errors.required(&key, "");
        } else if !seen.add(key.text()) {
            errors.duplicate(&key);
        }
        if expression.text().trim().is_empty() {
            errors.required(&expression, "valueExpression is not specified");
        }
    }
}

fn validate_validation(validation: &At, errors: &mut Errors) {
    let (expression, message) = (validation.field("expression"), validation.field("message"));
    if expression.text().trim().is_empty() {
        errors.required(&expression, "expression is not specified");
    } else if expression.text().contains('\n') && message.text().is_empty() {
        let detail = "message must be specified if expression contains line breaks";
        errors.required(&message, detail);
    }
    if message.is_set() && message.text().trim().is_empty() {
        errors.invalid(&message, "message must be non-empty if specified");
    } else if message.text().contains('\n') {
        errors.invalid(&message, "message must not contain line breaks");
    }
    let reasons = ["Forbidden", "Invalid", "RequestEntityTooLarge", "Unauthorized"];
    check::one_of_if_set(&validation.field("reason"), &reasons, errors);
}

pub(super) fn validate_mutating(policy: &At, errors: &mut Errors) {
    let spec = policy.field("spec");
    validate_common(&spec, errors);
    let mutations = spec.field("mutations");
    if mutations.is_empty() {
        errors.required(&mutations, "mutations must contain at least one item");
    }
    for mutation in mutations.items() {
        let kind = mutation.field("patchType");
        let (expected, other) = match kind.text() {
            "ApplyConfiguration" => ("applyConfiguration", "jsonPatch"),
            "JSONPatch" => ("jsonPatch", "applyConfiguration"),
            "" => {
                errors.required(&kind, "");
                continue;
            }
            _ => {
                errors.not_supported(&kind, &["ApplyConfiguration", "JSONPatch"]);
                continue;
            }
        };
        let patch = mutation.field(expected);
        if !patch.is_set() {
            errors
                .required(&patch, &format!("must be specified when patchType is {}", kind.text()));
        } else if patch.field("expression").text().trim().is_empty() {
            errors.required(&patch.field("expression"), "expression is not specified");
        }
        if mutation.field(other).is_set() {
            let detail = format!("must not be specified when patchType is {}", kind.text());
            errors.forbidden(&mutation.field(other), &detail);
        }
    }
    let again = spec.field("reinvocationPolicy");
    if again.text().is_empty() {
        errors.required(&again, "");
    } else {
        check::one_of(&again, &["IfNeeded", "Never"], errors);
    }
}

fn validate_common(spec: &At, errors: &mut Errors) {
    check::one_of_if_set(&spec.field("failurePolicy"), &["Fail", "Ignore"], errors);
    let param = spec.field("paramKind");
    if param.is_set() {
        check::required_text(&param.field("apiVersion"), "", errors);
        check::required_text(&param.field("kind"), "", errors);
    }
    let constraints = spec.field("matchConstraints");
    if constraints.is_set() {
        validate_match_resources(&constraints, errors);
        let rules = constraints.field("resourceRules");
        if rules.is_empty() {
            errors.required(&rules, "");
        }
    } else {
        errors.required(&constraints, "");
    }
    validate_conditions(&spec.field("matchConditions"), errors);
    let mut seen = check::Unique::new();
    for variable in spec.field("variables").items() {
        let (name, expression) = (variable.field("name"), variable.field("expression"));
        if name.text().is_empty() {
            errors.required(&name, "name is not specified");
        } else if !is_identifier(name.text()) {
            errors.invalid(&name, "name is not a valid CEL identifier");
        } else if !seen.add(name.text()) {
            errors.duplicate(&name);
        }
        if expression.text().trim().is_empty() {
            errors.required(&expression, "expression is not specified");
        }
    }
}

fn is_identifier(name: &str) -> bool {
    name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        && !name.starts_with(|c: char| c.is_ascii_digit())
}

fn validate_match_resources(resources: &At, errors: &mut Errors) {
    check::one_of_if_set(&resources.field("matchPolicy"), &["Equivalent", "Exact"], errors);
    validate_selectors(resources, errors);
    for list in ["resourceRules", "excludeResourceRules"] {
        for rule in resources.field(list).items() {
            validate_rule(&rule, errors);
            for name in rule.field("resourceNames").items() {
                check::text(&name, names::path_segment, errors);
            }
        }
    }
}

pub(super) fn validate_binding(binding: &At, validating: bool, errors: &mut Errors) {
    let spec = binding.field("spec");
    let policy = spec.field("policyName");
    if policy.text().is_empty() {
        errors.required(&policy, "");
    } else {
        check::text(&policy, names::dns1123_subdomain, errors);
    }
    let param = spec.field("paramRef");
    if param.is_set() {
        validate_param(&param, errors);
    }
    if spec.field("matchResources").is_set() {
        validate_match_resources(&spec.field("matchResources"), errors);
    }
    if validating {
        validate_actions(&spec.field("validationActions"), errors);
    }
}

fn validate_param(param: &At, errors: &mut Errors) {
    let (name, selector) = (param.field("name"), param.field("selector"));
    if !name.text().is_empty() {
        check::text(&name, names::path_segment, errors);
        if selector.is_set() {
            let detail = "name and selector are mutually exclusive";
            errors.forbidden(&name, detail);
        }
    } else if selector.is_set() {
        label_selector::validate(&selector, errors);
    } else {
        errors.required(param, "one of name or selector must be specified");
    }
    let action = param.field("parameterNotFoundAction");
    if action.is_set() {
        check::one_of(&action, &["Allow", "Deny"], errors);
    } else {
        errors.required(&action, "");
    }
}

fn validate_actions(actions: &At, errors: &mut Errors) {
    if actions.is_empty() {
        errors.required(actions, "at least one validation action is required");
    }
    let mut seen = check::Unique::new();
    for action in actions.items() {
        check::one_of(&action, &["Audit", "Deny", "Warn"], errors);
        if !seen.add(action.text()) {
            errors.duplicate(&action);
        }
    }
    let has = |name: &str| actions.items().any(|action| action.text() == name);
    if has("Deny") && has("Warn") {
        let detail = "must not contain both Deny and Warn (repeating the same validation failure \
                    information in the API response and headers serves no purpose)";
        errors.invalid(actions, detail);
    }
}
