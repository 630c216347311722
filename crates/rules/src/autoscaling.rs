//! Rules of the `autoscaling` kinds: the HorizontalPodAutoscaler in both its versions.
//!
//! Version 1 is stored as version 2 (`convert`), and validated in that form.

use super::{Rules, check};
use crate::convert::autoscaler;
use api::field::{At, Errors};
use api::names;
use api::quantity::Quantity;
use api::value::ValueExt;
use serde_json::{Value, json};

/// Maximum stabilization window in seconds.
const STABILIZATION_MAX: i64 = 3600;
const PERIOD_MAX: i64 = 1800;

pub(crate) fn rules(kind: &str) -> Rules {
    match kind {
        "HorizontalPodAutoscaler" => Rules {
            default,
            prepare_create: zero_status,
            validate,
            validate_status_update: |new, _, errors| {
                let status = new.field("status");
                let counts = ["currentReplicas", "desiredReplicas"];
                check::fields_not_negative(&status, &counts, errors);
            },
            ..Rules::NONE
        },
        _ => Rules::NONE,
    }
}

/// Defaults of a HorizontalPodAutoscaler.
fn default(scaler: &mut Value) {
    let old_version = autoscaler::is_version_1(scaler);
    let spec = scaler.object("spec");
    spec.set_default("minReplicas", 1);
    if !old_version {
        default_metrics(spec);
        if spec.at(&["behavior"]).is_some() {
            default_behavior(spec.object("behavior"));
        }
    }
    zero_status(scaler);
}

/// The default metric is CPU utilization.
pub(crate) fn default_metrics(spec: &mut Value) {
    if spec.at(&["metrics"]).and_then(Value::as_array).is_none_or(Vec::is_empty) {
        let target = json!({"type": "Utilization", "averageUtilization": 80});
        let metric = json!({"type": "Resource", "resource": {"name": "cpu", "target": target}});
        spec.map().insert("metrics".into(), json!([metric]));
    }
}

/// Defaults of scaling behavior: no window for scaling up, the controller's window for scaling down.
pub(crate) fn default_behavior(behavior: &mut Value) {
    let up = behavior.object("scaleUp");
    up.set_default("stabilizationWindowSeconds", 0);
    up.set_default("selectPolicy", "Max");
    up.set_default(
        "policies",
        json!([
            {"type": "Pods", "value": 4, "periodSeconds": 15},
            {"type": "Percent", "value": 100, "periodSeconds": 15},
        ]),
    );
    let down = behavior.object("scaleDown");
    down.set_default("selectPolicy", "Max");
    down.set_default("policies", json!([{"type": "Percent", "value": 100, "periodSeconds": 15}]));
}

fn zero_status(scaler: &mut Value) {
    let old_version = autoscaler::is_version_1(scaler);
    let status = scaler.object("status");
    status.set_default("desiredReplicas", 0);
    if old_version {
        status.set_default("currentReplicas", 0);
    } else {
        status.set_default("currentMetrics", Value::Null);
    }
}

fn validate(scaler: &At, errors: &mut Errors) {
    match scaler.value() {
        Some(value) if autoscaler::is_version_1(value) => {
            validate_2(&At::root(&autoscaler::to_version_2(value)), errors);
        }
        _ => validate_2(scaler, errors),
    }
}

fn validate_2(scaler: &At, errors: &mut Errors) {
    let spec = scaler.field("spec");
    let (min, max) = (spec.field("minReplicas"), spec.field("maxReplicas"));
    if min.int().is_some_and(|min| min < 1) {
        errors.invalid(&min, "must be greater than or equal to 1");
    }
    let most = max.int().unwrap_or(0);
    if most < 1 {
        errors.invalid_value(&max, most, "must be greater than 0");
    }
    if min.int().is_some_and(|min| most < min) {
        errors.invalid_value(&max, most, "must be greater than or equal to `minReplicas`");
    }
    let target = spec.field("scaleTargetRef");
    for name in ["kind", "name"] {
        validate_segment(&target.field(name), errors);
    }
    for metric in spec.field("metrics").items() {
        validate_metric(&metric, errors);
    }
    let behavior = spec.field("behavior");
    for direction in ["scaleUp", "scaleDown"] {
        let rules = behavior.field(direction);
        if rules.is_set() {
            validate_scaling_rules(&rules, errors);
        }
    }
}

fn validate_segment(at: &At, errors: &mut Errors) {
    if at.text().is_empty() {
        errors.required(at, "");
    } else {
        check::text(at, names::path_segment, errors);
    }
}

/// The type of each metric source and its field, in the order of validation.
const SOURCES: [(&str, &str); 5] = [
    ("Object", "object"),
    ("External", "external"),
    ("Pods", "pods"),
    ("Resource", "resource"),
    ("ContainerResource", "containerResource"),
];

/// Validates the first source; any further source is an error.
fn validate_metric(metric: &At, errors: &mut Errors) {
    let kind = metric.field("type");
    if kind.text().is_empty() {
        errors.required(&kind, "must specify a metric source type");
    }
    let present: Vec<_> =
        SOURCES.iter().filter(|(_, field)| metric.field(field).is_set()).collect();
    if let Some((source, field)) = present.first() {
        validate_source(source, &metric.field(field), errors);
    }
    match SOURCES.iter().find(|(source, _)| *source == kind.text()) {
        Some((_, field)) if !metric.field(field).is_set() => {
            let detail = "must populate information for the given metric source";
            errors.required(&metric.field(field), detail);
        }
        Some(_) => {}
        None => {
            let known = ["ContainerResource", "External", "Object", "Pods", "Resource"];
            errors.not_supported(&kind, &known);
        }
    }
    if present.len() > 1 {
        for (_, field) in present.iter().filter(|(source, _)| *source != kind.text()) {
            errors.forbidden(&metric.field(field), "must populate the given metric source only");
        }
    }
}

fn validate_source(source: &str, at: &At, errors: &mut Errors) {
    let target = at.field("target");
    if source.ends_with("Resource") {
        let name = at.field("name");
        check::required_text(&name, "must specify a resource name", errors);
        if source == "ContainerResource" {
            check::required_text(&at.field("container"), "must specify a container", errors);
        }
        validate_target(&target, errors);
        let (share, amount) = (target.field("averageUtilization"), target.field("averageValue"));
        if !share.is_set() && !amount.is_set() {
            errors.required(&share, "must set either a target raw value or a target utilization");
        }
        if share.is_set() && amount.is_set() {
            let detail = "may not set both a target raw value and a target utilization";
            errors.forbidden(&amount, detail);
        }
        return;
    }
    if source == "Object" {
        let object = at.field("describedObject");
        validate_segment(&object.field("kind"), errors);
        validate_segment(&object.field("name"), errors);
    }
    let metric = at.field("metric");
    validate_segment(&metric.field("name"), errors);
    super::label_selector::validate(&metric.field("selector"), errors);
    validate_target(&target, errors);
    let (value, average) = (target.field("value"), target.field("averageValue"));
    match source {
        "Pods" if !average.is_set() => {
            errors.required(&average, "must specify a positive target averageValue");
        }
        "Object" | "External" if !value.is_set() && !average.is_set() => {
            let detail = if source == "Object" {
                "must set either a target value or averageValue"
            } else {
                "must set either a target value for metric or a per-pod target"
            };
            errors.required(&average, detail);
        }
        "External" if value.is_set() && average.is_set() => {
            let detail = "may not set both a target value for metric and a per-pod target";
            errors.forbidden(&value, detail);
        }
        _ => {}
    }
}

fn validate_target(target: &At, errors: &mut Errors) {
    let kind = target.field("type");
    match kind.text() {
        "" => errors.required(&kind, "must specify a metric target type"),
        "Utilization" | "Value" | "AverageValue" => {}
        _ => errors.invalid(&kind, "must be either Utilization, Value, or AverageValue"),
    }
    for name in ["value", "averageValue"] {
        let amount = target.field(name);
        let positive = |value: &Value| {
            Quantity::from_value(value).is_some_and(|q| !q.is_negative() && !q.is_zero())
        };
        if amount.is_set() && !amount.value().is_some_and(positive) {
            errors.invalid(&amount, "must be positive");
        }
    }
    let share = target.field("averageUtilization");
    if share.int().is_some_and(|share| share < 1) {
        errors.invalid(&share, "must be greater than 0");
    }
}

fn validate_scaling_rules(rules: &At, errors: &mut Errors) {
    let window = rules.field("stabilizationWindowSeconds");
    if let Some(seconds) = window.int() {
        if seconds < 0 {
            errors.invalid(&window, "must be greater than or equal to zero");
        }
        if seconds > STABILIZATION_MAX {
            let detail = format!("must be less than or equal to {STABILIZATION_MAX}");
            errors.invalid(&window, &detail);
        }
    }
    let tolerance = rules.field("tolerance");
    if tolerance.value().and_then(Quantity::from_value).is_some_and(|amount| amount.is_negative()) {
        errors.invalid(&tolerance, "must be greater than or equal to zero");
    }
    check::one_of_if_set(&rules.field("selectPolicy"), &["Disabled", "Max", "Min"], errors);
    let policies = rules.field("policies");
    if policies.is_empty() {
        errors.required(&policies, "must specify at least one Policy");
    }
    for policy in policies.items() {
        check::one_of(&policy.field("type"), &["Percent", "Pods"], errors);
        for name in ["value", "periodSeconds"] {
            let at = policy.field(name);
            if at.int().unwrap_or(0) <= 0 {
                errors.invalid_value(&at, at.int().unwrap_or(0), "must be greater than zero");
            }
        }
        let period = policy.field("periodSeconds");
        if period.int().is_some_and(|seconds| seconds > PERIOD_MAX) {
            errors.invalid(&period, &format!("must be less than or equal to {PERIOD_MAX}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(spec: Value) -> Vec<String> {
        let mut scaler = json!({"apiVersion": "autoscaling/v2", "spec": {
            "maxReplicas": 3, "scaleTargetRef": {"kind": "Deployment", "name": "d"}}});
        api::patch::merge_into(&mut scaler["spec"], &spec);
        default(&mut scaler);
        let mut errors = Errors::default();
        validate(&At::root(&scaler), &mut errors);
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_147_the_default_metric_is_cpu_utilization() {
        let mut scaler = json!({"apiVersion": "autoscaling/v2", "spec": {"maxReplicas": 3}});
        default(&mut scaler);
        let target = json!({"type": "Utilization", "averageUtilization": 80});
        assert_eq!(
            scaler["spec"]["metrics"],
            json!([{"type": "Resource", "resource": {"name": "cpu", "target": target}}])
        );
        assert_eq!(scaler["spec"]["minReplicas"], 1);
        assert_eq!(scaler["status"], json!({"currentMetrics": null, "desiredReplicas": 0}));
    }

    #[test]
    fn a_92_invalid_autoscalers_are_rejected_with_upstreams_messages() {
        assert!(messages(json!({"behavior": {}})).is_empty());
        for (spec, expected) in [
            (
                json!({"maxReplicas": 0}),
                "spec.maxReplicas: Invalid value: 0: must be greater than 0",
            ),
            (
                json!({"minReplicas": 5}),
                "spec.maxReplicas: Invalid value: 3: must be greater than or equal to `minReplicas`",
            ),
            (json!({"scaleTargetRef": {"kind": ""}}), "spec.scaleTargetRef.kind: Required value"),
            (
                json!({"metrics": [{"type": "Pods"}]}),
                "spec.metrics[0].pods: Required value: must populate information for the given metric source",
            ),
            (
                json!({"behavior": {"scaleUp": {"stabilizationWindowSeconds": 4000}}}),
                "spec.behavior.scaleUp.stabilizationWindowSeconds: Invalid value: 4000: must be less than or equal to 3600",
            ),
            (
                json!({"behavior": {"scaleDown": {"tolerance": "-100m"}}}),
                "spec.behavior.scaleDown.tolerance: Invalid value: \"-100m\": must be greater than or equal to zero",
            ),
        ] {
            assert_eq!(messages(spec.clone())[0], expected, "{spec}");
        }
    }

    #[test]
    fn a_201_version_1_is_validated_as_version_2() {
        let scaler = json!({"apiVersion": "autoscaling/v1", "spec": {"maxReplicas": 3,
            "scaleTargetRef": {"kind": "D", "name": "d"}, "targetCPUUtilizationPercentage": 0}});
        let mut errors = Errors::default();
        validate(&At::root(&scaler), &mut errors);
        let messages: Vec<_> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(
            messages,
            [
                "spec.metrics[0].resource.target.averageUtilization: Invalid value: 0: must be greater than 0"
            ]
        );
    }
}
