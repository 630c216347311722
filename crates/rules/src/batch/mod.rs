//! Rules of the `batch` kinds: Jobs and CronJobs.

use super::{Generation, Rules};
use api::names::NameRule;
use api::value::ValueExt;

mod cron_job;
mod job;

pub(crate) fn rules(kind: &str) -> Rules {
    match kind {
        "Job" => Rules {
            default: job::default,
            prepare_create: job::prepare_create,
            validate: job::validate,
            validate_update: job::validate_update,
            validate_status_update: job::validate_status,
            fields: &[("status.successful", |job| {
                job.at(&["status", "succeeded"]).map_or("0".into(), ToString::to_string)
            })],
            generation: Generation::Spec,
            orphans_by_default: true,
            ..Rules::NONE
        },
        "CronJob" => Rules {
            default: cron_job::default,
            prepare_create: |cron| {
                cron.object("status");
            },
            validate: cron_job::validate,
            validate_update: cron_job::validate_update,
            name: NameRule::Own,
            generation: Generation::Spec,
            ..Rules::NONE
        },
        _ => Rules::NONE,
    }
}
