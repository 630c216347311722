//! Rules of the `flowcontrol.apiserver.k8s.io` kinds: API priority and fairness.

use super::{Generation, Rules, check};
use api::field::{At, Errors};
use api::value::ValueExt;
use serde_json::{Value, json};

const PRECEDENCE_MAX: i64 = 10_000;
const QUEUES_MAX: i64 = 10_000_000;

pub(crate) fn rules(kind: &str) -> Rules {
    let common = Rules {
        prepare_create: |object| {
            object.map().insert("status".into(), json!({}));
        },
        generation: Generation::Spec,
        ..Rules::NONE
    };
    match kind {
        "FlowSchema" => Rules { default: default_schema, validate: validate_schema, ..common },
        "PriorityLevelConfiguration" => {
            Rules { default: default_level, validate: validate_level, ..common }
        }
        _ => Rules::NONE,
    }
}

/// Defaults of a FlowSchema. Zero means "not set".
fn default_schema(schema: &mut Value) {
    let spec = schema.object("spec");
    if spec.at(&["matchingPrecedence"]).and_then(Value::as_i64).unwrap_or(0) == 0 {
        spec.map().insert("matchingPrecedence".into(), json!(1000));
    }
    schema.object("status");
}

/// Defaults of a PriorityLevelConfiguration.
fn default_level(level: &mut Value) {
    let spec = level.object("spec");
    match spec.text(&["type"]) {
        "Exempt" => {
            let exempt = spec.object("exempt");
            exempt.set_default("nominalConcurrencyShares", 0);
            exempt.set_default("lendablePercent", 0);
        }
        _ if spec.at(&["limited"]).is_some() => {
            let limited = spec.object("limited");
            limited.set_default("nominalConcurrencyShares", 30);
            limited.set_default("lendablePercent", 0);
            let response = limited.object("limitResponse");
            if response.at(&["queuing"]).is_some() {
                let queuing = response.object("queuing");
                for (name, value) in [("queues", 64), ("handSize", 8), ("queueLengthLimit", 50)] {
                    if queuing.at(&[name]).and_then(Value::as_i64).unwrap_or(0) == 0 {
                        queuing.map().insert(name.into(), json!(value));
                    }
                }
            }
        }
        _ => {}
    }
    level.object("status");
}

fn validate_schema(schema: &At, errors: &mut Errors) {
    let (metadata, spec) = (schema.field("metadata"), schema.field("spec"));
    let precedence = spec.field("matchingPrecedence");
    match precedence.int().unwrap_or(0) {
        ..=0 => errors.invalid(&precedence, "must be a positive value"),
        1 if metadata.field("name").text() != "exempt" => {
            let detail = "only the schema named 'exempt' may have matchingPrecedence 1";
            errors.invalid(&precedence, detail);
        }
        value if value > PRECEDENCE_MAX => {
            errors.invalid(&precedence, &format!("must not be greater than {PRECEDENCE_MAX}"));
        }
        _ => {}
    }
    let method = spec.field("distinguisherMethod");
    if method.is_set() {
        check::one_of(&method.field("type"), &["ByNamespace", "ByUser"], errors);
    }
    let level = spec.field("priorityLevelConfiguration");
    let name = level.field("name");
    check::required_text(&name, "must reference a priority level", errors);
    for rule in spec.field("rules").items() {
        validate_rule(&rule, errors);
    }
}

fn validate_rule(rule: &At, errors: &mut Errors) {
    let subjects = rule.field("subjects");
    if subjects.is_empty() {
        errors.required(&subjects, "subjects must contain at least one value");
    }
    for subject in subjects.items() {
        let kind = subject.field("kind");
        let field = match kind.text() {
            "Group" => "group",
            "ServiceAccount" => "serviceAccount",
            "User" => "user",
            _ => {
                errors.not_supported(&kind, &["Group", "ServiceAccount", "User"]);
                continue;
            }
        };
        let detail = format!("{field} is required when subject kind is '{}'", kind.text());
        if !subject.field(field).is_set() {
            errors.required(&subject.field(field), &detail);
        } else {
            check::required_text(&subject.field(field).field("name"), "", errors);
        }
    }
    let (resources, urls) = (rule.field("resourceRules"), rule.field("nonResourceRules"));
    if resources.is_empty() && urls.is_empty() {
        let detail = "at least one of resourceRules and nonResourceRules has to be non-empty";
        errors.required(rule, detail);
    }
    for resource in resources.items() {
        for (name, detail) in [
            ("verbs", "verbs must contain at least one value"),
            ("apiGroups", "resource rules must supply at least one api group"),
            ("resources", "resource rules must supply at least one resource"),
        ] {
            if resource.field(name).is_empty() {
                errors.required(&resource.field(name), detail);
            }
        }
        if resource.field("namespaces").is_empty() && !resource.field("clusterScope").is_true() {
            let detail =
                "resource rules that are not cluster scoped must supply at least one namespace";
            errors.required(&resource.field("namespaces"), detail);
        }
    }
    for url in urls.items() {
        for (name, detail) in [
            ("verbs", "verbs must contain at least one value"),
            ("nonResourceURLs", "nonResourceURLs must contain at least one value"),
        ] {
            if url.field(name).is_empty() {
                errors.required(&url.field(name), detail);
            }
        }
    }
}

fn validate_level(level: &At, errors: &mut Errors) {
    let spec = level.field("spec");
    let (limited, exempt) = (spec.field("limited"), spec.field("exempt"));
    match spec.field("type").text() {
        "Exempt" => {
            if limited.is_set() {
                errors.forbidden(&limited, "must be nil if the type is not Limited");
            }
            validate_shares(&exempt, 0, errors);
        }
        "Limited" => {
            if exempt.is_set() {
                errors.forbidden(&exempt, "must be nil if the type is Limited");
            }
            if limited.is_set() {
                validate_limited(&limited, errors);
            } else {
                errors.required(&limited, "must not be empty when type is Limited");
            }
        }
        _ => errors.not_supported(&spec.field("type"), &["Exempt", "Limited"]),
    }
}

fn validate_shares(at: &At, min: i64, errors: &mut Errors) {
    let shares = at.field("nominalConcurrencyShares");
    if shares.int().is_some_and(|shares| shares < min) {
        errors.invalid(&shares, "must be a non-negative integer");
    }
    for name in ["lendablePercent", "borrowingLimitPercent"] {
        let percent = at.field(name);
        let most = if name == "lendablePercent" { 100 } else { i64::MAX };
        if percent.int().is_some_and(|percent| !(0..=most).contains(&percent)) {
            let detail = if name == "lendablePercent" {
                "must be between 0 and 100, inclusive"
            } else {
                "if specified, must be a non-negative integer"
            };
            errors.invalid(&percent, detail);
        }
    }
}

fn validate_limited(limited: &At, errors: &mut Errors) {
    validate_shares(limited, 0, errors);
    let response = limited.field("limitResponse");
    let queuing = response.field("queuing");
    match response.field("type").text() {
        "Reject" => {
            if queuing.is_set() {
                errors.forbidden(
                    &queuing,
                    "must be nil if limited.limitResponse.type is not Limited",
                );
            }
        }
        "Queue" => {
            if !queuing.is_set() {
                errors.required(
                    &queuing,
                    "must not be empty if limited.limitResponse.type is Limited",
                );
                return;
            }
            for name in ["queueLengthLimit", "queues", "handSize"] {
                let at = queuing.field(name);
                if at.int().unwrap_or(0) <= 0 {
                    errors.invalid(&at, "must be positive");
                }
            }
            let (queues, hand) = (queuing.field("queues"), queuing.field("handSize"));
            if queues.int().is_some_and(|queues| queues > QUEUES_MAX) {
                errors.invalid(&queues, &format!("must not be greater than {QUEUES_MAX}"));
            }
            if hand.int() > queues.int() {
                let most = queues.int().unwrap_or(0);
                errors.invalid(&hand, &format!("should not be greater than queues ({most})"));
            }
        }
        _ => errors.not_supported(&response.field("type"), &["Queue", "Reject"]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_147_priority_levels_get_their_defaults() {
        let mut level = json!({"spec": {"type": "Limited",
            "limited": {"limitResponse": {"type": "Queue", "queuing": {}}}}});
        default_level(&mut level);
        assert_eq!(
            level["spec"]["limited"],
            json!({"nominalConcurrencyShares": 30, "lendablePercent": 0, "limitResponse":
                {"type": "Queue", "queuing": {"queues": 64, "handSize": 8, "queueLengthLimit": 50}}})
        );
        let mut errors = Errors::default();
        validate_level(&At::root(&level), &mut errors);
        assert!(errors.is_empty(), "{errors:?}");
    }

    #[test]
    fn a_92_invalid_flow_schemas_are_rejected() {
        let mut schema = json!({"metadata": {"name": "s"}, "spec": {"rules": [{}]}});
        default_schema(&mut schema);
        let mut errors = Errors::default();
        validate_schema(&At::root(&schema), &mut errors);
        let messages: Vec<_> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(
            messages,
            [
                "spec.priorityLevelConfiguration.name: Required value: must reference a priority level",
                "spec.rules[0].subjects: Required value: subjects must contain at least one value",
                "spec.rules[0]: Required value: at least one of resourceRules and nonResourceRules has to be non-empty",
            ]
        );
    }
}
