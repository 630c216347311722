//! Failure and success policies of jobs.

use crate::check;
use api::field::{At, Errors, Wrong};
use api::names;

const RULES_MAX: usize = 20;
const CONDITIONS_MAX: usize = 20;
const EXIT_CODES_MAX: usize = 255;
const INDEXES_TEXT_MAX: usize = 64 * 1024;

pub(super) fn validate_failure(spec: &At, errors: &mut Errors) {
    let policy = spec.field("podFailurePolicy");
    let rules = policy.field("rules");
    if rules.len() > RULES_MAX {
        errors.too_many(&rules, RULES_MAX);
    }
    for rule in rules.items() {
        let action = rule.field("action");
        if action.text() == "FailIndex" {
            if !spec.field("backoffLimitPerIndex").is_set() {
                errors.invalid(&action, "requires the backoffLimitPerIndex to be set");
            }
        } else {
            required_one_of(&action, &["Count", "FailIndex", "FailJob", "Ignore"], errors);
        }
        let (codes, conditions) = (rule.field("onExitCodes"), rule.field("onPodConditions"));
        if codes.is_set() {
            validate_exit_codes(spec, &codes, errors);
        }
        validate_conditions(&conditions, errors);
        let detail = match (codes.is_set(), !conditions.is_empty()) {
            (true, true) => "specifying both OnExitCodes and OnPodConditions is not supported",
            (false, false) => "specifying one of OnExitCodes and OnPodConditions is required",
            (true, false) | (false, true) => continue,
        };
        errors.push(Wrong::Invalid, rule.path(), None, detail);
    }
}

/// Go prints a list of words as `["a" "b"]`.
fn required_one_of(at: &At, supported: &[&str], errors: &mut Errors) {
    if at.text().is_empty() {
        let words: Vec<_> = supported.iter().map(|word| format!("{word:?}")).collect();
        errors.required(at, &format!("valid values: [{}]", words.join(" ")));
    } else {
        check::one_of(at, supported, errors);
    }
}

fn validate_conditions(conditions: &At, errors: &mut Errors) {
    if conditions.len() > CONDITIONS_MAX {
        errors.too_many(conditions, CONDITIONS_MAX);
    }
    for pattern in conditions.items() {
        check::text(&pattern.field("type"), names::qualified_name, errors);
        required_one_of(&pattern.field("status"), &["False", "True", "Unknown"], errors);
    }
}

fn validate_exit_codes(spec: &At, codes: &At, errors: &mut Errors) {
    let (operator, values) = (codes.field("operator"), codes.field("values"));
    required_one_of(&operator, &["In", "NotIn"], errors);
    let container = codes.field("containerName");
    let template = spec.field("template");
    let pod = template.field("spec");
    let exists = ["containers", "initContainers"].iter().any(|list| {
        pod.field(list).items().any(|known| known.field("name").text() == container.text())
    });
    if container.is_set() && !exists {
        let detail = "must be one of the container or initContainer names in the pod template";
        errors.invalid(&container, detail);
    }
    if values.is_empty() {
        errors.invalid(&values, "at least one value is required");
    } else if values.len() > EXIT_CODES_MAX {
        errors.too_many(&values, EXIT_CODES_MAX);
    }
    let mut seen = check::Unique::new();
    for value in values.items() {
        if operator.text() == "In" && value.int() == Some(0) {
            errors.invalid(&value, "must not be 0 for the In operator");
        }
        if !seen.add(value.value().cloned().unwrap_or_default()) {
            errors.duplicate(&value);
        }
    }
    if !values.items().map(|value| value.int()).is_sorted() {
        errors.invalid(&values, "must be ordered");
    }
}

pub(super) fn validate_success(spec: &At, errors: &mut Errors) {
    let policy = spec.field("successPolicy");
    if spec.field("completionMode").text() != "Indexed" {
        errors.invalid(&policy, "requires indexed completion mode");
        return;
    }
    let rules = policy.field("rules");
    if rules.is_empty() {
        let detail = "at least one rules must be specified when the successPolicy is specified";
        errors.required(&rules, detail);
    }
    if rules.len() > RULES_MAX {
        errors.too_many(&rules, RULES_MAX);
    }
    for rule in rules.items() {
        let (indexes, count) = (rule.field("succeededIndexes"), rule.field("succeededCount"));
        if !indexes.is_set() && !count.is_set() {
            let detail = "at least one of succeededCount or succeededIndexes must be specified";
            errors.required(&rule, detail);
        }
        if indexes.text().len() > INDEXES_TEXT_MAX {
            errors.too_long(&indexes, INDEXES_TEXT_MAX);
        }
        check::not_negative(&count, errors);
        let most = spec.field("completions").int().unwrap_or(0);
        if count.int().is_some_and(|count| count > most) {
            let limit = "(the number of specified completions)";
            errors.invalid(&count, &format!("must be less than or equal to {most} {limit}"));
        }
    }
}
