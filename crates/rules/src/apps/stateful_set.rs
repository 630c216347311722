//! StatefulSets: defaults, validation, immutable fields.

use super::{check, validate_counts, validate_selector, validate_selector_matches};
use crate::core::pod_template;
use crate::label_selector;
use api::field::{At, Errors};
use api::names;
use api::value::ValueExt;
use serde_json::{Value, json};

/// Defaults of a StatefulSet.
pub(super) fn default(set: &mut Value) {
    super::default_template(set);
    let spec = set.object("spec");
    spec.set_default("replicas", 1);
    spec.set_default("revisionHistoryLimit", 10);
    spec.set_default("serviceName", "");
    if spec.text(&["podManagementPolicy"]).is_empty() {
        spec.map().insert("podManagementPolicy".into(), json!("OrderedReady"));
    }
    let retention = spec.object("persistentVolumeClaimRetentionPolicy");
    retention.set_default("whenDeleted", "Retain");
    retention.set_default("whenScaled", "Retain");
    let update = spec.object("updateStrategy");
    if update.text(&["type"]).is_empty() {
        update["type"] = "RollingUpdate".into();
        update.object("rollingUpdate");
    }
    // If the client names the strategy but no `rollingUpdate`, upstream sets no default there.
    if update.text(&["type"]) == "RollingUpdate" && update.at(&["rollingUpdate"]).is_some() {
        update.object("rollingUpdate").set_default("partition", 0);
    }
    for claim in spec.list_mut("volumeClaimTemplates") {
        claim.set_default("apiVersion", "v1");
        claim.set_default("kind", "PersistentVolumeClaim");
        pod_template::default_claim(claim);
        claim.object("metadata");
        claim.object("status").set_default("phase", "Pending");
    }
    zero_status(set);
}

pub(super) fn prepare_create(set: &mut Value) {
    zero_status(set);
    drop_max_unavailable(set);
}

pub(super) fn prepare_update(new: &mut Value, old: &Value) {
    if old.at(&MAX_UNAVAILABLE).is_none() {
        drop_max_unavailable(new);
    }
}

const MAX_UNAVAILABLE: [&str; 4] = ["spec", "updateStrategy", "rollingUpdate", "maxUnavailable"];

/// The feature is off by default (C-76): pods are updated one at a time, so the field is dropped.
fn drop_max_unavailable(set: &mut Value) {
    if set.at(&MAX_UNAVAILABLE).is_some() {
        let update = set.object("spec").object("updateStrategy");
        update.object("rollingUpdate").remove("maxUnavailable");
    }
}

fn zero_status(set: &mut Value) {
    check::zeroes(set.object("status"), &["replicas", "availableReplicas"]);
}

pub(super) fn validate(set: &At, errors: &mut Errors) {
    let spec = set.field("spec");
    let order = spec.field("podManagementPolicy");
    if !["OrderedReady", "Parallel"].contains(&order.text()) {
        errors.invalid(&order, "must be 'OrderedReady' or 'Parallel'");
    }
    validate_update_strategy(&spec.field("updateStrategy"), errors);
    let retention = spec.field("persistentVolumeClaimRetentionPolicy");
    if retention.is_set() {
        check::one_of(&retention.field("whenDeleted"), &["Retain", "Delete"], errors);
        check::one_of(&retention.field("whenScaled"), &["Retain", "Delete"], errors);
    }
    check::fields_not_negative(&spec, &["replicas", "minReadySeconds"], errors);
    check::not_negative(&spec.field("ordinals").field("start"), errors);
    if !spec.field("serviceName").text().is_empty() {
        check::text(&spec.field("serviceName"), names::dns1123_label, errors);
    }
    validate_selector(&spec, "statefulset", errors);
    if !(spec.field("selector").is_set() && label_selector::is_empty(&spec.field("selector"))) {
        validate_selector_matches(&spec, errors);
    }
    let whole = with_claimed_volumes(set);
    super::validate_template(&At::root(&whole).field("spec"), "StatefulSet", errors);
    check::not_negative(&spec.field("revisionHistoryLimit"), errors);
}

/// The set with a volume for each claim template, which containers can mount.
fn with_claimed_volumes(set: &At) -> Value {
    let mut whole = set.value().cloned().unwrap_or_default();
    let list = |value: Option<&Value>| value.and_then(Value::as_array).cloned().unwrap_or_default();
    let claims = list(whole.at(&["spec", "volumeClaimTemplates"]));
    let mut volumes = list(whole.at(&["spec", "template", "spec", "volumes"]));
    for claim in &claims {
        let name = claim.text(&["metadata", "name"]);
        if volumes.iter().all(|volume| volume["name"] != name) {
            volumes.push(json!({"name": name, "emptyDir": {}}));
        }
    }
    if !claims.is_empty() {
        whole.object("spec").object("template").object("spec")["volumes"] = volumes.into();
    }
    whole
}

fn validate_update_strategy(strategy: &At, errors: &mut Errors) {
    let rolling = strategy.field("rollingUpdate");
    match strategy.field("type").text() {
        "OnDelete" => {
            if rolling.is_set() {
                errors.invalid(&rolling, "only allowed for updateStrategy 'RollingUpdate'");
            }
        }
        "RollingUpdate" => {
            check::not_negative(&rolling.field("partition"), errors);
            let down = rolling.field("maxUnavailable");
            if down.is_set() {
                check::int_or_percent(&down, errors);
                if check::int_or_percent_value(&down) == 0 {
                    errors.invalid(&down, "cannot be 0");
                }
                check::at_most_100_percent(&down, errors);
            }
        }
        _ => errors.invalid(strategy, "must be 'RollingUpdate' or 'OnDelete'"),
    }
}

/// The mutable fields; those that determine names and volumes of the set's pods are immutable.
const CHANGEABLE: [&str; 7] = [
    "replicas",
    "ordinals",
    "template",
    "updateStrategy",
    "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy",
    "minReadySeconds",
];

pub(super) fn validate_update(new: &At, old: &At, errors: &mut Errors) {
    let fixed = |set: &At| {
        let mut spec = set.field("spec").value().cloned().unwrap_or_default();
        for name in CHANGEABLE {
            spec.remove(name);
        }
        for claim in spec.list_mut("volumeClaimTemplates") {
            claim.remove("status");
        }
        spec
    };
    if fixed(new) != fixed(old) {
        let detail = "updates to statefulset spec for fields other than 'replicas', 'ordinals', \
                      'template', 'updateStrategy', 'revisionHistoryLimit', \
                      'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden";
        errors.forbidden(&new.field("spec"), detail);
    }
}

pub(super) fn validate_status(new: &At, old: &At, errors: &mut Errors) {
    let (status, before) = (new.field("status"), old.field("status"));
    let counts =
        ["replicas", "readyReplicas", "currentReplicas", "updatedReplicas", "availableReplicas"];
    check::fields_not_negative(&status, &counts, errors);
    check::not_negative(&status.field("observedGeneration"), errors);
    validate_counts(&status, &counts[1..], "replicas", "status.replicas", errors);
    let maximum = "status.readyReplicas";
    validate_counts(&status, &["availableReplicas"], "readyReplicas", maximum, errors);
    super::validate_collisions(&status, &before, errors);
}
