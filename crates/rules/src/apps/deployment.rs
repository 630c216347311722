//! Deployments: defaults, strategy, status.

use super::{check, validate_counts, validate_selector, validate_selector_matches};
use crate::label_selector;
use api::field::{At, Errors, Wrong};
use api::value::ValueExt;
use serde_json::{Value, json};

/// Defaults of a Deployment.
pub(super) fn default(deployment: &mut Value) {
    super::default_template(deployment);
    let spec = deployment.object("spec");
    spec.set_default("replicas", 1);
    spec.set_default("revisionHistoryLimit", 10);
    spec.set_default("progressDeadlineSeconds", 600);
    let strategy = spec.object("strategy");
    if strategy.text(&["type"]).is_empty() {
        strategy.map().insert("type".into(), json!("RollingUpdate"));
    }
    if strategy.text(&["type"]) == "RollingUpdate" {
        let rolling = strategy.object("rollingUpdate");
        rolling.set_default("maxUnavailable", "25%");
        rolling.set_default("maxSurge", "25%");
    }
    deployment.object("status");
}

pub(super) fn prepare_create(deployment: &mut Value) {
    deployment.object("status");
}

pub(super) fn validate(deployment: &At, errors: &mut Errors) {
    let spec = deployment.field("spec");
    check::not_negative(&spec.field("replicas"), errors);
    validate_selector(&spec, "deployment", errors);
    if !(spec.field("selector").is_set() && label_selector::is_empty(&spec.field("selector"))) {
        validate_selector_matches(&spec, errors);
    }
    super::validate_template(&spec, "ReplicaSet", errors);
    validate_strategy(&spec.field("strategy"), errors);
    check::fields_not_negative(&spec, &["minReadySeconds", "revisionHistoryLimit"], errors);
    let deadline = spec.field("progressDeadlineSeconds");
    check::not_negative(&deadline, errors);
    let ready = spec.field("minReadySeconds").int().unwrap_or(0);
    if deadline.int().is_some_and(|deadline| deadline <= ready) {
        errors.invalid(&deadline, "must be greater than minReadySeconds");
    }
}

fn validate_strategy(strategy: &At, errors: &mut Errors) {
    let rolling = strategy.field("rollingUpdate");
    match strategy.field("type").text() {
        "Recreate" => {
            if rolling.is_set() {
                let detail = "may not be specified when strategy `type` is 'Recreate'";
                errors.forbidden(&rolling, detail);
            }
        }
        "RollingUpdate" => {
            let (down, up) = (rolling.field("maxUnavailable"), rolling.field("maxSurge"));
            check::int_or_percent(&down, errors);
            check::int_or_percent(&up, errors);
            if check::int_or_percent_value(&down) == 0 && check::int_or_percent_value(&up) == 0 {
                errors.invalid(&down, "may not be 0 when `maxSurge` is 0");
            }
            check::at_most_100_percent(&down, errors);
        }
        other => {
            // Upstream prints the whole Go struct.
            let shown = format!("{{\"Type\":{},\"RollingUpdate\":null}}", json!(other));
            let detail = format!("{shown}: supported values: \"Recreate\", \"RollingUpdate\"");
            errors.push(Wrong::NotSupported, strategy.path(), None, &detail);
        }
    }
}

pub(super) fn validate_status(new: &At, old: &At, errors: &mut Errors) {
    let (status, before) = (new.field("status"), old.field("status"));
    let counts = ["replicas", "updatedReplicas", "readyReplicas", "availableReplicas"];
    check::not_negative(&status.field("observedGeneration"), errors);
    check::fields_not_negative(&status, &counts, errors);
    let more = ["unavailableReplicas", "terminatingReplicas"];
    check::fields_not_negative(&status, &more, errors);
    validate_counts(&status, &counts[1..], "replicas", "status.replicas", errors);
    validate_counts(&status, &["availableReplicas"], "readyReplicas", "readyReplicas", errors);
    super::validate_collisions(&status, &before, errors);
}
