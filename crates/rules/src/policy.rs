//! Rules of the `policy` kinds: PodDisruptionBudgets.

use super::{Generation, Rules, check, label_selector};
use api::field::{At, Errors};
use api::value::ValueExt;
use serde_json::Value;

pub(crate) fn rules(kind: &str) -> Rules {
    match kind {
        "PodDisruptionBudget" => Rules {
            default: zero_status,
            prepare_create: zero_status,
            validate,
            validate_status_update: validate_status,
            generation: Generation::Spec,
            unconditional_update: false,
            ..Rules::NONE
        },
        _ => Rules::NONE,
    }
}

const COUNTS: [&str; 4] =
    ["currentHealthy", "desiredHealthy", "disruptionsAllowed", "expectedPods"];

fn zero_status(budget: &mut Value) {
    check::zeroes(budget.object("status"), &COUNTS);
}

fn validate(budget: &At, errors: &mut Errors) {
    let spec = budget.field("spec");
    let (min, max) = (spec.field("minAvailable"), spec.field("maxUnavailable"));
    if min.is_set() && max.is_set() {
        let detail = "minAvailable and maxUnavailable cannot be both set";
        check::invalid_shown(errors, &spec, &show(&spec), detail);
    }
    for bound in [&min, &max] {
        if bound.is_set() {
            check::int_or_percent(bound, errors);
            check::at_most_100_percent(bound, errors);
        }
    }
    label_selector::validate(&spec.field("selector"), errors);
    let unhealthy = spec.field("unhealthyPodEvictionPolicy");
    check::one_of_if_set(&unhealthy, &["AlwaysAllow", "IfHealthyBudget"], errors);
}

/// The spec as upstream prints it: as a Go struct, not as JSON.
fn show(spec: &At) -> String {
    let field = |name: &str| spec.field(name).value().cloned().unwrap_or_default();
    format!(
        "{{\"MinAvailable\":{},\"Selector\":{},\"MaxUnavailable\":{},\"UnhealthyPodEvictionPolicy\":{}}}",
        field("minAvailable"),
        field("selector"),
        field("maxUnavailable"),
        field("unhealthyPodEvictionPolicy"),
    )
}

fn validate_status(new: &At, _old: &At, errors: &mut Errors) {
    let status = new.field("status");
    let order = ["disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"];
    check::fields_not_negative(&status, &order, errors);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn messages(spec: Value) -> Vec<String> {
        let budget = json!({"metadata": {"name": "b"}, "spec": spec});
        let mut errors = Errors::default();
        validate(&At::root(&budget), &mut errors);
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_92_invalid_budgets_are_rejected_with_upstreams_messages() {
        assert!(messages(json!({"minAvailable": "50%", "selector": {}})).is_empty());
        assert_eq!(
            messages(json!({"minAvailable": 1, "maxUnavailable": 1, "selector": {}})),
            [
                "spec: Invalid value: {\"MinAvailable\":1,\"Selector\":{},\"MaxUnavailable\":1,\"UnhealthyPodEvictionPolicy\":null}: minAvailable and maxUnavailable cannot be both set"
            ]
        );
        assert_eq!(
            messages(json!({"minAvailable": "200%"})),
            ["spec.minAvailable: Invalid value: \"200%\": must not be greater than 100%"]
        );
        assert_eq!(
            messages(json!({"maxUnavailable": -1})),
            ["spec.maxUnavailable: Invalid value: -1: must be greater than or equal to 0"]
        );
    }

    #[test]
    fn a_63_the_counts_of_a_new_budget_are_zero() {
        let mut budget = json!({"spec": {}});
        zero_status(&mut budget);
        assert_eq!(
            budget["status"],
            json!({"currentHealthy": 0, "desiredHealthy": 0, "disruptionsAllowed": 0, "expectedPods": 0})
        );
    }
}
