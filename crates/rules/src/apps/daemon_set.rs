//! DaemonSets: defaults, update strategy, template generation.

use super::{check, validate_selector_matches};
use crate::label_selector;
use api::field::{At, Errors, Wrong};
use api::value::ValueExt;
use serde_json::{Value, json};

/// Counts changes of the template; for clients that still read this annotation.
const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

/// Defaults of a DaemonSet.
pub(super) fn default(set: &mut Value) {
    super::default_template(set);
    let spec = set.object("spec");
    spec.set_default("revisionHistoryLimit", 10);
    let update = spec.object("updateStrategy");
    if update.text(&["type"]).is_empty() {
        update.map().insert("type".into(), json!("RollingUpdate"));
    }
    if update.text(&["type"]) == "RollingUpdate" {
        let rolling = update.object("rollingUpdate");
        rolling.set_default("maxUnavailable", 1);
        rolling.set_default("maxSurge", 0);
    }
    zero_status(set);
}

fn zero_status(set: &mut Value) {
    let counts =
        ["currentNumberScheduled", "desiredNumberScheduled", "numberMisscheduled", "numberReady"];
    check::zeroes(set.object("status"), &counts);
}

pub(super) fn prepare_create(set: &mut Value) {
    zero_status(set);
    set_template_generation(set, 1);
}

pub(super) fn prepare_update(set: &mut Value, old: &Value) {
    let before =
        old.text(&["metadata", "annotations", TEMPLATE_GENERATION]).parse().unwrap_or(1i64);
    let changed = set.at(&["spec", "template"]) != old.at(&["spec", "template"]);
    set_template_generation(set, before.saturating_add(i64::from(changed)));
}

fn set_template_generation(set: &mut Value, generation: i64) {
    let annotations = set.object("metadata").object("annotations");
    annotations.map().insert(TEMPLATE_GENERATION.into(), json!(generation.to_string()));
}

pub(super) fn validate(set: &At, errors: &mut Errors) {
    let spec = set.field("spec");
    let selector = spec.field("selector");
    label_selector::validate(&selector, errors);
    validate_selector_matches(&spec, errors);
    if selector.is_set() && label_selector::is_empty(&selector) {
        errors.invalid(&selector, "empty selector is invalid for daemonset");
    }
    super::validate_template(&spec, "DaemonSet", errors);
    check::not_negative(&spec.field("minReadySeconds"), errors);
    validate_strategy(&spec.field("updateStrategy"), errors);
    check::not_negative(&spec.field("revisionHistoryLimit"), errors);
}

fn validate_strategy(strategy: &At, errors: &mut Errors) {
    match strategy.field("type").text() {
        "OnDelete" => {}
        "RollingUpdate" => {
            let rolling = strategy.field("rollingUpdate");
            let (down, up) = (rolling.field("maxUnavailable"), rolling.field("maxSurge"));
            check::int_or_percent(&down, errors);
            check::int_or_percent(&up, errors);
            check::at_most_100_percent(&down, errors);
            check::at_most_100_percent(&up, errors);
            let zero = |at: &At| check::int_or_percent_value(at) == 0;
            match (zero(&down), zero(&up)) {
                (false, false) => {
                    errors.invalid(&up, "may not be set when maxUnavailable is non-zero");
                }
                (true, true) => errors.required(&down, "cannot be 0 when maxSurge is 0"),
                (true, false) | (false, true) => {}
            }
        }
        other => {
            // Upstream prints the whole Go struct.
            let shown = format!("{{\"Type\":{},\"RollingUpdate\":null}}", json!(other));
            let detail = format!("{shown}: supported values: \"RollingUpdate\", \"OnDelete\"");
            errors.push(Wrong::NotSupported, strategy.path(), None, &detail);
        }
    }
}

pub(super) fn validate_status(new: &At, old: &At, errors: &mut Errors) {
    let (status, before) = (new.field("status"), old.field("status"));
    let counts = [
        "currentNumberScheduled",
        "numberMisscheduled",
        "desiredNumberScheduled",
        "numberReady",
        "observedGeneration",
        "updatedNumberScheduled",
        "numberAvailable",
        "numberUnavailable",
    ];
    check::fields_not_negative(&status, &counts, errors);
    super::validate_collisions(&status, &before, errors);
}
