//! Rules of the `apps` kinds: workloads and their revisions.

use super::core::pod_template;
use super::{Generation, Rules, check, label_selector};
use api::field::{At, Errors};
use api::names::NameRule;
use api::value::ValueExt;
use serde_json::Value;

mod daemon_set;
mod deployment;
mod replica_set;
mod stateful_set;

pub(crate) fn rules(kind: &str) -> Rules {
    match kind {
        "Deployment" => Rules {
            default: deployment::default,
            prepare_create: deployment::prepare_create,
            validate: deployment::validate,
            validate_update: selector_is_immutable,
            validate_status_update: deployment::validate_status,
            generation: Generation::SpecOrAnnotations,
            ..Rules::NONE
        },
        "ReplicaSet" => Rules {
            default: replica_set::default,
            prepare_create: replica_set::zero_status,
            validate: replica_set::validate,
            validate_update: selector_is_immutable,
            validate_status_update: replica_set::validate_status,
            generation: Generation::Spec,
            ..Rules::NONE
        },
        "StatefulSet" => Rules {
            default: stateful_set::default,
            prepare_create: stateful_set::prepare_create,
            prepare_update: stateful_set::prepare_update,
            validate: stateful_set::validate,
            validate_update: stateful_set::validate_update,
            validate_status_update: stateful_set::validate_status,
            name: NameRule::Label,
            generation: Generation::Spec,
            ..Rules::NONE
        },
        "DaemonSet" => Rules {
            default: daemon_set::default,
            prepare_create: daemon_set::prepare_create,
            prepare_update: daemon_set::prepare_update,
            validate: daemon_set::validate,
            validate_update: selector_is_immutable,
            validate_status_update: daemon_set::validate_status,
            generation: Generation::Spec,
            ..Rules::NONE
        },
        "ControllerRevision" => Rules {
            default: |revision| revision.set_default("revision", 0),
            validate: validate_revision,
            validate_update: |new, old, errors| {
                // Compared exactly: an empty value in it matters to the controller that applies it.
                let (new, old) = (new.field("data"), old.field("data"));
                if new.value() != old.value() {
                    errors.invalid(&new, check::IMMUTABLE);
                }
            },
            ..Rules::NONE
        },
        _ => Rules::NONE,
    }
}

fn selector_is_immutable(new: &At, old: &At, errors: &mut Errors) {
    let (new, old) = (new.field("spec"), old.field("spec"));
    check::immutable(&new.field("selector"), &old.field("selector"), errors);
}

fn validate_revision(revision: &At, errors: &mut Errors) {
    let data = revision.field("data");
    match data.value() {
        None | Some(Value::Null) => errors.required(&data, "data is mandatory"),
        Some(Value::Object(_)) => (),
        Some(_) => errors.invalid(&data, "must be a valid JSON object"),
    }
    check::not_negative(&revision.field("revision"), errors);
}

/// Defaults of the pod template under `spec.template`.
fn default_template(object: &mut Value) {
    let template = object.object("spec").object("template");
    template.object("metadata");
    pod_template::default_template(template);
}

/// Validates the selector of a workload; an empty one would select every pod.
fn validate_selector(spec: &At, whose: &str, errors: &mut Errors) {
    let selector = spec.field("selector");
    if !selector.is_set() {
        errors.required(&selector, "");
        return;
    }
    label_selector::validate(&selector, errors);
    if label_selector::is_empty(&selector) {
        errors.invalid(&selector, &format!("empty selector is invalid for {whose}"));
    }
}

/// The selector must match the labels of the template.
fn validate_selector_matches(spec: &At, errors: &mut Errors) {
    let (selector, template) = (spec.field("selector"), spec.field("template"));
    let metadata = template.field("metadata");
    let labels = metadata.field("labels");
    if !label_selector::matches(&selector, &labels) {
        errors.invalid(&labels, "`selector` does not match template `labels`");
    }
}

/// Validates a template whose pods must restart forever: no other restart policy, no deadline.
fn validate_template(spec: &At, whose: &str, errors: &mut Errors) {
    let template = spec.field("template");
    pod_template::validate_template(&template, errors);
    let pod = template.field("spec");
    let restart = pod.field("restartPolicy");
    if restart.text() != "Always" {
        errors.not_supported(&restart, &["Always"]);
    }
    let deadline = pod.field("activeDeadlineSeconds");
    if deadline.is_set() {
        let detail = format!("activeDeadlineSeconds in {whose} is not Supported");
        errors.forbidden(&deadline, &detail);
    }
}

/// Counters that may not exceed another counter.
fn validate_counts(status: &At, names: &[&str], limit: &str, maximum: &str, errors: &mut Errors) {
    let most = status.field(limit).int().unwrap_or(0);
    for name in names {
        let count = status.field(name);
        if count.int().unwrap_or(0) > most {
            errors.invalid_value(
                &count,
                count.int().unwrap_or(0),
                &format!("cannot be greater than {maximum}"),
            );
        }
    }
}

/// The count of hash collisions cannot decrease.
fn validate_collisions(new: &At, old: &At, errors: &mut Errors) {
    let count = new.field("collisionCount");
    check::not_negative(&count, errors);
    if let Some(before) = old.field("collisionCount").int()
        && count.int().is_none_or(|now| now < before)
    {
        errors.invalid_value(&count, count.int().unwrap_or(0), "cannot be decremented");
    }
}

#[cfg(test)]
mod tests;
