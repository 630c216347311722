//! ReplicaSets: defaults, selector, status.

use super::{check, validate_counts, validate_selector, validate_selector_matches};
use crate::label_selector;
use api::field::{At, Errors};
use api::value::ValueExt;
use serde_json::Value;

/// Defaults of a ReplicaSet.
pub(super) fn default(set: &mut Value) {
    super::default_template(set);
    set.object("spec").set_default("replicas", 1);
    zero_status(set);
}

pub(super) fn zero_status(set: &mut Value) {
    check::zeroes(set.object("status"), &["replicas"]);
}

pub(super) fn validate(set: &At, errors: &mut Errors) {
    let spec = set.field("spec");
    check::fields_not_negative(&spec, &["replicas", "minReadySeconds"], errors);
    validate_selector(&spec, "deployment", errors);
    if !(spec.field("selector").is_set() && label_selector::is_empty(&spec.field("selector"))) {
        validate_selector_matches(&spec, errors);
    }
    super::validate_template(&spec, "ReplicaSet", errors);
}

pub(super) fn validate_status(new: &At, _old: &At, errors: &mut Errors) {
    let status = new.field("status");
    let counts = ["replicas", "fullyLabeledReplicas", "readyReplicas", "availableReplicas"];
    check::fields_not_negative(&status, &counts, errors);
    check::fields_not_negative(&status, &["terminatingReplicas", "observedGeneration"], errors);
    validate_counts(&status, &counts[1..], "replicas", "status.replicas", errors);
    validate_counts(&status, &["availableReplicas"], "readyReplicas", "readyReplicas", errors);
}
