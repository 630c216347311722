//! Jobs: defaults, generated selector and labels, validation, immutable fields.

use crate::core::pod_template;
use crate::{check, label_selector};
use api::field::{At, Errors};
use api::names;
use api::value::ValueExt;
use serde_json::{Value, json};

mod policies;
mod status;

pub(super) use status::validate as validate_status;

const CONTROLLER_UID: &str = "batch.kubernetes.io/controller-uid";
const JOB_NAME: &str = "batch.kubernetes.io/job-name";
const OLD_CONTROLLER_UID: &str = "controller-uid";
const OLD_JOB_NAME: &str = "job-name";

/// Bounds the list of indexes in the status of Indexed jobs.
const PARALLELISM_MAX_INDEXED: i64 = 100_000;
const FAILED_INDEXES_MAX: i64 = 100_000;
/// Jobs with more completions have stricter limits.
const COMPLETIONS_SOFT_MAX: i64 = 100_000;
const FAILED_INDEXES_SOFT_MAX: i64 = 10_000;
const PARALLELISM_SOFT_MAX: i64 = 10_000;

/// Defaults of a Job.
pub(super) fn default(job: &mut Value) {
    let spec = job.object("spec");
    let template = spec.object("template");
    template.object("metadata");
    pod_template::default_template(template);
    if spec.at(&["completions"]).is_none() && spec.at(&["parallelism"]).is_none() {
        spec.set_default("completions", 1);
    }
    spec.set_default("parallelism", 1);
    let backoff = if spec.at(&["backoffLimitPerIndex"]).is_some() { i32::MAX } else { 6 };
    spec.set_default("backoffLimit", backoff);
    spec.set_default("completionMode", "NonIndexed");
    spec.set_default("suspend", false);
    spec.set_default("manualSelector", false);
    let failure_policy = spec.at(&["podFailurePolicy"]).is_some();
    let replacement = if failure_policy { "Failed" } else { "TerminatingOrFailed" };
    spec.set_default("podReplacementPolicy", replacement);
    if let Some(policy) = spec.get_mut("podFailurePolicy") {
        for pattern in policy.list_mut("rules").flat_map(|rule| rule.list_mut("onPodConditions")) {
            pattern.set_default("status", "True");
        }
    }
    // A new job without labels gets them from its template later, in `prepare_create`.
    if job.at(&["spec", "template", "metadata", "labels", CONTROLLER_UID]).is_some() {
        labels_from_template(job);
    }
    job.object("status");
}

fn labels_from_template(job: &mut Value) {
    if let Some(labels) = job.at(&["spec", "template", "metadata", "labels"]).cloned()
        && job.at(&["metadata", "labels"]).and_then(Value::as_object).is_none_or(|l| l.is_empty())
    {
        job.object("metadata").map().insert("labels".into(), labels);
    }
}

/// Generates a selector from the job's own uid, so that no two jobs select the same pods, unless the client
/// sets `manualSelector`. Labels that the client set stay; validation compares them.
pub(super) fn prepare_create(job: &mut Value) {
    job.object("status");
    if job.at(&["spec", "manualSelector"]) != Some(&Value::Bool(true)) {
        let uid = job.text(&["metadata", "uid"]).to_owned();
        let name = job.text(&["metadata", "name"]).to_owned();
        let spec = job.object("spec");
        let labels = spec.object("template").object("metadata").object("labels");
        for (key, value) in [
            (OLD_CONTROLLER_UID, &uid),
            (OLD_JOB_NAME, &name),
            (CONTROLLER_UID, &uid),
            (JOB_NAME, &name),
        ] {
            labels.set_default(key, value.as_str());
        }
        spec.object("selector").object("matchLabels").set_default(CONTROLLER_UID, uid);
    }
    labels_from_template(job);
}

pub(super) fn validate(job: &At, errors: &mut Errors) {
    validate_generated_selector(job, errors);
    let spec = job.field("spec");
    validate_spec(&spec, errors);
    let selector = spec.field("selector");
    if !selector.is_set() {
        errors.required(&selector, "");
    }
    label_selector::validate(&selector, errors);
    let template = spec.field("template");
    let metadata = template.field("metadata");
    let labels = metadata.field("labels");
    if !label_selector::matches(&selector, &labels) {
        errors.invalid(&labels, "`selector` does not match template `labels`");
    }
    validate_hostnames(job, errors);
}

/// Pods of an Indexed job have their index in the hostname, which must be a valid name.
fn validate_hostnames(job: &At, errors: &mut Errors) {
    let spec = job.field("spec");
    let completions = spec.field("completions").int().unwrap_or(0);
    if spec.field("completionMode").text() == "Indexed" && completions > 0 {
        let metadata = job.field("metadata");
        let name = metadata.field("name");
        let longest = format!("{}-{}", name.text(), completions - 1);
        if !names::dns1123_label(&longest).is_empty() {
            let detail = format!("will not able to create pod with invalid DNS label: {longest}");
            errors.invalid(&name, &detail);
        }
    }
}

fn validate_generated_selector(job: &At, errors: &mut Errors) {
    let (metadata, spec) = (job.field("metadata"), job.field("spec"));
    if spec.field("manualSelector").is_true() {
        return;
    }
    let (uid, name) = (metadata.field("uid").text(), metadata.field("name").text());
    let template = spec.field("template");
    let template_metadata = template.field("metadata");
    let labels = template_metadata.field("labels");
    for (key, expected) in
        [(OLD_CONTROLLER_UID, uid), (OLD_JOB_NAME, name), (CONTROLLER_UID, uid), (JOB_NAME, name)]
    {
        let label = labels.key(key);
        let detail = format!("must be '{expected}'");
        match label.str() {
            None => errors.required(&label, &detail),
            Some(found) if found != expected => {
                let shown = labels.value().cloned().unwrap_or_default();
                errors.invalid_value(&label, shown, &detail);
            }
            Some(_) => {}
        }
    }
    let own =
        json!({CONTROLLER_UID: uid, OLD_CONTROLLER_UID: uid, JOB_NAME: name, OLD_JOB_NAME: name});
    if !label_selector::matches(&spec.field("selector"), &At::root(&own)) {
        errors.invalid(&spec.field("selector"), "`selector` not auto-generated");
    }
}

/// Validates a job's spec except its selector, which the template of a CronJob does not have yet.
pub(super) fn validate_spec(spec: &At, errors: &mut Errors) {
    let counts = [
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
        "maxFailedIndexes",
    ];
    check::fields_not_negative(spec, &counts, errors);
    let per_index = spec.field("backoffLimitPerIndex");
    if spec.field("maxFailedIndexes").is_set() && !per_index.is_set() {
        errors.required(&per_index, "when maxFailedIndexes is specified");
    }
    validate_managed_by(&spec.field("managedBy"), errors);
    validate_completion_mode(spec, errors);
    if spec.field("podFailurePolicy").is_set() {
        policies::validate_failure(spec, errors);
    }
    if spec.field("successPolicy").is_set() {
        policies::validate_success(spec, errors);
    }
    let replacement = spec.field("podReplacementPolicy");
    if spec.field("podFailurePolicy").is_set() {
        check::one_of_if_set(&replacement, &["Failed"], errors);
    } else {
        check::one_of_if_set(&replacement, &["Failed", "TerminatingOrFailed"], errors);
    }
    let template = spec.field("template");
    pod_template::validate_template(&template, errors);
    let pod = template.field("spec");
    let restart = pod.field("restartPolicy");
    match restart.text() {
        "" | "Always" => errors.required(&restart, "valid values: \"OnFailure\", \"Never\""),
        "OnFailure" if spec.field("podFailurePolicy").is_set() => {
            let detail = "only \"Never\" is supported when podFailurePolicy is specified";
            errors.invalid(&restart, detail);
        }
        "OnFailure" | "Never" => {}
        _ => errors.not_supported(&restart, &["OnFailure", "Never"]),
    }
}

fn validate_managed_by(by: &At, errors: &mut Errors) {
    let Some(text) = by.str() else { return };
    check::domain_prefixed_path(by, errors);
    if text.len() > 63 {
        errors.too_long(by, 63);
    }
}

fn validate_completion_mode(spec: &At, errors: &mut Errors) {
    let mode = spec.field("completionMode");
    let (completions, parallelism) = (spec.field("completions"), spec.field("parallelism"));
    let per_index = spec.field("backoffLimitPerIndex");
    let failed = spec.field("maxFailedIndexes");
    check::one_of_if_set(&mode, &["NonIndexed", "Indexed"], errors);
    if mode.text() == "Indexed" {
        if !completions.is_set() {
            errors.required(&completions, "when completion mode is Indexed");
        }
        if parallelism.int().is_some_and(|p| p > PARALLELISM_MAX_INDEXED) {
            let most = format!("must be less than or equal to {PARALLELISM_MAX_INDEXED}");
            errors.invalid(&parallelism, &format!("{most} when completion mode is Indexed"));
        }
        validate_failed_indexes(spec, errors);
    } else {
        if per_index.is_set() {
            errors.invalid(&per_index, "requires indexed completion mode");
        }
        if failed.is_set() {
            errors.invalid(&failed, "requires indexed completion mode");
        }
    }
}

fn validate_failed_indexes(spec: &At, errors: &mut Errors) {
    let (completions, failed) = (spec.field("completions"), spec.field("maxFailedIndexes"));
    let total = completions.int().unwrap_or(0);
    let bounded = failed.int();
    if completions.is_set() && bounded.is_some_and(|failed| failed > total) {
        errors.invalid(&failed, "must be less than or equal to completions");
    }
    if bounded.is_some_and(|failed| failed > FAILED_INDEXES_MAX) {
        errors.invalid(&failed, &format!("must be less than or equal to {FAILED_INDEXES_MAX}"));
    }
    if total > COMPLETIONS_SOFT_MAX && spec.field("backoffLimitPerIndex").is_set() {
        if bounded.is_none() {
            let detail = "must be specified when completions is above";
            errors.required(&failed, &format!("{detail} {COMPLETIONS_SOFT_MAX}"));
        }
        let parallelism = spec.field("parallelism");
        for (at, most) in [(&parallelism, PARALLELISM_SOFT_MAX), (&failed, FAILED_INDEXES_SOFT_MAX)]
        {
            if at.int().is_some_and(|value| value > most) {
                let detail = format!(
                    "must be less than or equal to {most} when completions are above \
                     {COMPLETIONS_SOFT_MAX} and used with backoff limit per index"
                );
                errors.invalid(at, &detail);
            }
        }
    }
}

/// Most fields of a Job are immutable.
pub(super) fn validate_update(new: &At, old: &At, errors: &mut Errors) {
    let (spec, before) = (new.field("spec"), old.field("spec"));
    validate_completions_update(&spec, &before, errors);
    check::immutable(&spec.field("selector"), &before.field("selector"), errors);
    validate_template_update(&spec, old, errors);
    for name in
        ["completionMode", "podFailurePolicy", "backoffLimitPerIndex", "managedBy", "successPolicy"]
    {
        check::immutable(&spec.field(name), &before.field(name), errors);
    }
}

fn validate_completions_update(spec: &At, before: &At, errors: &mut Errors) {
    let (new, old) = (spec.field("completions"), before.field("completions"));
    let elastic = spec.field("completionMode").text() == "Indexed" && new.is_set() && old.is_set();
    if !elastic {
        check::immutable(&new, &old, errors);
    } else if !check::same(&new, &old) && !check::same(&new, &spec.field("parallelism")) {
        errors.invalid(&new, "can only be modified in tandem with spec.parallelism");
    }
}

/// Scheduling fields and resources of a suspended job's template may change: a queue may set them before
/// it resumes the job (C-119).
fn validate_template_update(spec: &At, old: &At, errors: &mut Errors) {
    let (before, status) = (old.field("spec"), old.field("status"));
    let idle = status.field("active").int().unwrap_or(0) == 0;
    let waits = !status.field("startTime").is_set() || status::holds(&status, "Suspended");
    let mut fixed = before.field("template").value().cloned().unwrap_or_default();
    let new = spec.field("template").value().cloned().unwrap_or_default();
    if before.field("suspend").is_true() && idle && waits {
        take_changeable(&mut fixed, &new);
    }
    if fixed != new {
        errors.invalid(&spec.field("template"), check::IMMUTABLE);
    }
}

fn take_changeable(fixed: &mut Value, new: &Value) {
    for (parent, name) in [
        ("spec", "nodeSelector"),
        ("spec", "tolerations"),
        ("spec", "schedulingGates"),
        ("metadata", "annotations"),
        ("metadata", "labels"),
    ] {
        take(fixed.object(parent), name, new.at(&[parent, name]));
    }
    // Only node affinity may change, not pod affinity.
    let affinity = fixed.object("spec").object("affinity");
    take(affinity, "nodeAffinity", new.at(&["spec", "affinity", "nodeAffinity"]));
    if affinity.map().is_empty() && new.at(&["spec", "affinity"]).is_none() {
        fixed.object("spec").remove("affinity");
    }
    for list in ["containers", "initContainers"] {
        let requested = new.at(&["spec", list]).and_then(Value::as_array);
        for container in fixed.object("spec").list_mut(list) {
            let mut requested = requested.into_iter().flatten();
            if let Some(same) = requested.find(|one| one["name"] == container["name"]) {
                take(container, "resources", same.at(&["resources"]));
            }
        }
    }
}

fn take(into: &mut Value, name: &str, value: Option<&Value>) {
    match value {
        Some(value) => drop(into.map().insert(name.into(), value.clone())),
        None => drop(into.remove(name)),
    }
}

#[cfg(test)]
mod tests;
