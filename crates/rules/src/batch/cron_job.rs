//! CronJobs: a job template and its schedule.

use super::job;
use crate::check;
use crate::core::pod_template;
use api::field::{At, Errors};
use api::names;
use api::schedule::Schedule;
use api::time_zone::time_zone;
use api::value::ValueExt;
use serde_json::Value;

/// Leaves room for the timestamp in the names of jobs.
const NAME_MAX: usize = 52;

/// Defaults of a CronJob. The job template is not defaulted; its jobs are when they are created.
pub(super) fn default(cron: &mut Value) {
    let spec = cron.object("spec");
    if spec.text(&["concurrencyPolicy"]).is_empty() {
        spec.map().insert("concurrencyPolicy".into(), "Allow".into());
    }
    spec.set_default("suspend", false);
    spec.set_default("successfulJobsHistoryLimit", 3);
    spec.set_default("failedJobsHistoryLimit", 1);
    let template = spec.object("jobTemplate");
    template.object("metadata");
    let pod = template.object("spec").object("template");
    pod.object("metadata");
    pod_template::default_template(pod);
    cron.object("status");
}

pub(super) fn validate(cron: &At, errors: &mut Errors) {
    let metadata = cron.field("metadata");
    let name = metadata.field("name");
    check::text(&name, names::dns1123_subdomain, errors);
    let spec = cron.field("spec");
    validate_schedule(&spec, errors);
    if check::is_new(cron) {
        if name.text().len() > NAME_MAX {
            errors.invalid(&name, "must be no more than 52 characters");
        }
        validate_zone(&spec.field("timeZone"), errors);
    }
    check::not_negative(&spec.field("startingDeadlineSeconds"), errors);
    let policy = spec.field("concurrencyPolicy");
    check::one_of(&policy, &["Allow", "Forbid", "Replace"], errors);
    let template = spec.field("jobTemplate");
    let job_spec = template.field("spec");
    job::validate_spec(&job_spec, errors);
    if job_spec.field("manualSelector").is_true() {
        errors.not_supported(&job_spec.field("manualSelector"), &["nil", "false"]);
    }
    if job_spec.field("selector").is_set() {
        errors.invalid(&job_spec.field("selector"), "`selector` will be auto-generated");
    }
    let limits = ["successfulJobsHistoryLimit", "failedJobsHistoryLimit"];
    check::fields_not_negative(&spec, &limits, errors);
}

/// A stored time zone is not validated again: the list of zones may change between releases.
pub(super) fn validate_update(cron: &At, old: &At, errors: &mut Errors) {
    let (spec, old) = (cron.field("spec"), old.field("spec"));
    let named = spec.field("timeZone");
    if named.value() != old.field("timeZone").value() {
        validate_zone(&named, errors);
    }
}

fn validate_schedule(spec: &At, errors: &mut Errors) {
    let schedule = spec.field("schedule");
    if schedule.text().is_empty() {
        errors.required(&schedule, "");
    } else {
        if let Err(why) = Schedule::parse(schedule.text()) {
            errors.invalid(&schedule, &why);
        }
        if schedule.text().contains("TZ") {
            let detail = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead";
            errors.invalid(&schedule, detail);
        }
    }
}

fn validate_zone(named: &At, errors: &mut Errors) {
    match named.str() {
        None => {}
        Some("") => errors.invalid(named, "timeZone must be nil or non-empty string"),
        Some(name) if name.eq_ignore_ascii_case("local") => {
            let detail = "timeZone must be an explicit time zone as defined in \
                          https://www.iana.org/time-zones";
            errors.invalid(named, detail);
        }
        Some(name) if time_zone(name).is_none() => {
            errors.invalid(named, &format!("unknown time zone {name}"));
        }
        Some(_) => {}
    }
}
