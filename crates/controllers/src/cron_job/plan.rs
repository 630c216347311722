//! Decides one reconcile of a CronJob and its Jobs (C-124…C-130). Pure.

use super::times::Times;
use crate::job::finished_condition;
use crate::workload::{name, namespace, owner_reference, uid};
use api::schedule::Schedule;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::{CronJob, CronJobStatus, Job};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use std::sync::Arc;
use std::time::Duration;

const SCHEDULED: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";

/// The next reconcile is this long after the next scheduled time. Upstream: `nextScheduleDelta`.
const LAG: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct Plan {
    /// Jobs that are active in the status but not in the cache.
    pub(super) missing: Vec<ObjectReference>,
    /// Finished Jobs beyond the history limits.
    pub(super) old: Vec<Arc<Job>>,
    /// Jobs to delete before the next one starts.
    pub(super) replace: Vec<Arc<Job>>,
    pub(super) start: Option<Start>,
    pub(super) events: Vec<PlannedEvent>,
    pub(super) status: CronJobStatus,
    pub(super) next: Option<Duration>,
}

#[derive(Debug)]
pub(super) struct Start {
    pub(super) at: Timestamp,
    pub(super) job: Job,
}

#[derive(Debug, PartialEq)]
pub(super) struct PlannedEvent {
    pub(super) is_warning: bool,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

impl PlannedEvent {
    pub(super) fn normal(reason: &'static str, message: impl Into<String>) -> PlannedEvent {
        PlannedEvent { is_warning: false, reason, message: message.into() }
    }

    pub(super) fn warning(reason: &'static str, message: impl Into<String>) -> PlannedEvent {
        PlannedEvent { is_warning: true, reason, message: message.into() }
    }
}

pub(super) fn decide(
    cron: &CronJob,
    jobs: &[Arc<Job>],
    zone: &Result<TimeZone, String>,
    now: Timestamp,
) -> Plan {
    let mut plan = Plan {
        missing: Vec::new(),
        old: old(cron, jobs),
        replace: Vec::new(),
        start: None,
        events: Vec::new(),
        status: cron.status.clone().unwrap_or_default(),
        next: None,
    };
    update_active(cron, jobs, &mut plan);
    let spec = &cron.spec;
    let zone = match zone {
        Ok(zone) => zone,
        Err(why) => {
            let named = spec.time_zone.as_deref().unwrap_or_default();
            let message = format!("invalid timeZone: {named:?}: {why}");
            plan.events.push(PlannedEvent::warning("UnknownTimeZone", message));
            return plan;
        }
    };
    if spec.suspend == Some(true) {
        return plan;
    }
    match Schedule::parse(&spec.schedule) {
        Ok(schedule) => due(cron, jobs, &Times::new(schedule, zone.clone()), now, &mut plan),
        Err(why) => {
            let message = format!("unparseable schedule: {:?} : {why}", spec.schedule);
            plan.events.push(PlannedEvent::warning("UnparseableSchedule", message));
        }
    }
    plan
}

/// Updates the list of active Jobs and the time of the last success (C-127).
fn update_active(cron: &CronJob, jobs: &[Arc<Job>], plan: &mut Plan) {
    let active = cron.status.iter().flat_map(|status| status.active.iter().flatten());
    let active: Vec<&ObjectReference> = active.collect();
    for job in jobs {
        let is_active =
            active.iter().any(|active| active.uid.as_deref() == Some(uid(job.as_ref())));
        let named = name(job.as_ref());
        match finished(job) {
            None if !is_active => {
                let message =
                    format!("Saw a job that the controller did not create or forgot: {named}");
                plan.events.push(PlannedEvent::warning("UnexpectedJob", message));
            }
            None => (),
            Some(condition) => {
                if is_active {
                    remove_active(&mut plan.status, uid(job.as_ref()));
                    let message = format!("Saw completed job: {named}, condition: {condition}");
                    plan.events.push(PlannedEvent::normal("SawCompletedJob", message));
                }
                let done = job.status.as_ref().and_then(|status| status.completion_time.clone());
                if done.as_ref().map(|time| time.0)
                    > plan.status.last_successful_time.as_ref().map(|time| time.0)
                {
                    plan.status.last_successful_time = done;
                }
            }
        }
    }
    let is_there = |active: &&&ObjectReference| {
        jobs.iter().any(|job| active.uid.as_deref() == Some(uid(job.as_ref())))
    };
    plan.missing =
        active.iter().filter(|active| !is_there(active)).map(|active| (*active).clone()).collect();
}

/// `Complete` or `Failed`, if the Job has finished.
fn finished(job: &Job) -> Option<&str> {
    finished_condition(job).map(|condition| condition.type_.as_str())
}

/// Removes a Job from the list of active ones.
pub(super) fn remove_active(status: &mut CronJobStatus, uid: &str) {
    if let Some(active) = &mut status.active {
        active.retain(|active| active.uid.as_deref() != Some(uid));
    }
    status.active = status.active.take().filter(|active| !active.is_empty());
}

/// Records that a Job was created for its scheduled time.
pub(super) fn job_started(status: &mut CronJobStatus, job: &Job, at: Timestamp) {
    status.last_schedule_time = Some(Time(at));
    if finished(job).is_some() {
        return;
    }
    let active = status.active.get_or_insert_default();
    if !active.iter().any(|active| active.uid == job.metadata.uid) {
        active.push(client::reference(job));
    }
}

/// Finished Jobs beyond the history limits, oldest first (C-129).
fn old(cron: &CronJob, jobs: &[Arc<Job>]) -> Vec<Arc<Job>> {
    let spec = &cron.spec;
    let limits = [
        ("Complete", spec.successful_jobs_history_limit),
        ("Failed", spec.failed_jobs_history_limit),
    ];
    let mut old = Vec::new();
    for (condition, limit) in limits {
        let Some(limit) = limit.and_then(|limit| usize::try_from(limit).ok()) else { continue };
        let mut these: Vec<&Arc<Job>> =
            jobs.iter().filter(|job| finished(job) == Some(condition)).collect();
        these.sort_by_key(|job| {
            let start = job.status.as_ref().and_then(|status| status.start_time.as_ref());
            (start.map(|start| start.0), job.metadata.name.clone())
        });
        let surplus = these.len().saturating_sub(limit);
        old.extend(these.into_iter().take(surplus).cloned());
    }
    old
}

/// Plans the Job that is due, if the concurrency policy allows it (C-124, C-126).
fn due(cron: &CronJob, jobs: &[Arc<Job>], times: &Times, now: Timestamp, plan: &mut Plan) {
    let spec = &cron.spec;
    let last = cron.status.as_ref().and_then(|status| status.last_schedule_time.as_ref());
    let base = last.or(cron.metadata.creation_timestamp.as_ref()).map_or(now, |time| time.0);
    let deadline = spec.starting_deadline_seconds.map(SignedDuration::from_secs);
    let earliest = deadline.and_then(|deadline| now.checked_sub(deadline).ok());
    let from = earliest.map_or(base, |earliest| earliest.max(base));
    let due = times.due(base, from, now);
    // The next time is counted from the last missed one, even if its starting deadline has passed.
    let missed = times.due(base, base, now);
    let after = missed.as_ref().map_or(base, |missed| missed.last);
    plan.next = times.next(after).map(|next| {
        let wait = Duration::try_from(next.duration_since(now)).unwrap_or_default();
        wait + LAG
    });
    let Some(due) = due else {
        // A time whose starting deadline has passed is reported as missed.
        if let Some(missed) = missed {
            let at = missed.last.strftime("%a, %d %b %Y %H:%M:%S +0000");
            let message = format!("Missed scheduled time to start a job: {at}");
            plan.events.push(PlannedEvent::warning("MissSchedule", message));
        }
        return;
    };
    if due.too_many {
        let message = "too many missed start times. Set or decrease .spec.startingDeadlineSeconds \
                       or check clock skew";
        plan.events.push(PlannedEvent::warning("TooManyMissedTimes", message));
    }
    let job = make(cron, due.last, times);
    let active = plan.status.active.as_deref().unwrap_or_default();
    if active.iter().any(|active| active.name.as_deref() == Some(name(&job))) {
        return;
    }
    match spec.concurrency_policy.as_deref() {
        Some("Forbid") if !active.is_empty() => {
            let message = "Not starting job because prior execution is running and concurrency policy is Forbid";
            plan.events.push(PlannedEvent::normal("JobAlreadyActive", message));
            return;
        }
        Some("Replace") => {
            let is_active = |job: &&Arc<Job>| {
                active.iter().any(|active| active.uid.as_deref() == Some(uid(job.as_ref())))
            };
            plan.replace = jobs.iter().filter(is_active).cloned().collect();
        }
        _ => (),
    }
    plan.start = Some(Start { at: due.last, job });
}

/// The Job for a scheduled time (C-125).
fn make(cron: &CronJob, at: Timestamp, times: &Times) -> Job {
    let template = cron.spec.job_template.clone();
    let meta = template.metadata.unwrap_or_default();
    let mut annotations = meta.annotations.unwrap_or_default();
    annotations.insert(SCHEDULED.to_owned(), times.format(at));
    Job {
        metadata: ObjectMeta {
            name: Some(format!("{}-{}", name(cron), at.as_second().div_euclid(60))),
            namespace: Some(namespace(cron).to_owned()),
            labels: meta.labels,
            annotations: Some(annotations),
            owner_references: Some(vec![owner_reference(cron)]),
            ..ObjectMeta::default()
        },
        spec: template.spec,
        status: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn cron(spec: Value, status: Value) -> CronJob {
        let mut spec = spec;
        spec["schedule"] = spec.get("schedule").cloned().unwrap_or(json!("*/10 * * * *"));
        spec["jobTemplate"] = json!({ "metadata": { "labels": { "a": "b" } },
            "spec": { "template": { "spec": { "containers": [] } } } });
        typed::from_value(json!({
            "metadata": { "namespace": "a", "name": "c", "uid": "c",
                          "creationTimestamp": "2026-01-01T00:00:00Z" },
            "spec": spec, "status": status,
        }))
        .unwrap()
    }

    fn job(named: &str, condition: &str, start: &str) -> Arc<Job> {
        let conditions = match condition {
            "" => json!([]),
            type_ => json!([{ "type": type_, "status": "True" }]),
        };
        let done = (condition == "Complete").then_some(start);
        Arc::new(
            typed::from_value(json!({
                "metadata": { "namespace": "a", "name": named, "uid": named },
                "status": { "conditions": conditions, "startTime": start, "completionTime": done },
            }))
            .unwrap(),
        )
    }

    fn decided(cron: &CronJob, jobs: &[Arc<Job>], now: &str) -> Plan {
        decide(cron, jobs, &Ok(TimeZone::UTC), now.parse().unwrap())
    }

    fn active(named: &str) -> Value {
        json!({ "active": [{ "name": named, "uid": named }] })
    }

    /// The Job that is started, and the reasons of events.
    fn started_and_reasons(plan: &Plan) -> (Option<String>, Vec<&'static str>) {
        let started = plan.start.as_ref().map(|start| start.at.strftime("%H:%M").to_string());
        (started, plan.events.iter().map(|event| event.reason).collect())
    }

    /// Name, spec, status, jobs, now, started Job, reasons of events.
    type Row<'a> = (&'a str, Value, Value, &'a [Arc<Job>], &'a str, Option<&'a str>, &'a [&'a str]);

    #[test]
    fn c_124_c_126_c_128_due_jobs_are_started_if_the_policy_allows() {
        let last = |at: &str| json!({ "lastScheduleTime": format!("2026-01-01T{at}:00Z") });
        let running = [job("r", "", "2026-01-01T00:10:00Z")];
        let cases: [Row<'_>; 11] = [
            ("not yet", json!({}), json!({}), &[], "00:09", None, &[]),
            ("due", json!({}), json!({}), &[], "00:10", Some("00:10"), &[]),
            ("only the last", json!({}), json!({}), &[], "00:55", Some("00:50"), &[]),
            ("done already", json!({}), last("00:50"), &[], "00:55", None, &[]),
            ("suspended", json!({ "suspend": true }), json!({}), &[], "00:55", None, &[]),
            (
                "too late",
                json!({ "startingDeadlineSeconds": 60 }),
                json!({}),
                &[],
                "00:55",
                None,
                &["MissSchedule"],
            ),
            (
                "in time",
                json!({ "startingDeadlineSeconds": 360 }),
                json!({}),
                &[],
                "00:55",
                Some("00:50"),
                &[],
            ),
            ("beside", json!({}), active("r"), &running, "00:20", Some("00:20"), &[]),
            (
                "forbidden",
                json!({ "concurrencyPolicy": "Forbid" }),
                active("r"),
                &running,
                "00:20",
                None,
                &["JobAlreadyActive"],
            ),
            (
                "a long time",
                json!({ "schedule": "* * * * *" }),
                json!({}),
                &[],
                "20:00",
                Some("20:00"),
                &["TooManyMissedTimes"],
            ),
            (
                "nonsense",
                json!({ "schedule": "often" }),
                json!({}),
                &[],
                "00:20",
                None,
                &["UnparseableSchedule"],
            ),
        ];
        for (what, spec, status, jobs, at, started, reasons) in cases {
            let plan = decided(&cron(spec, status), jobs, &format!("2026-01-01T{at}:00Z"));
            assert_eq!(
                started_and_reasons(&plan),
                (started.map(str::to_owned), reasons.to_vec()),
                "{what}"
            );
        }
        let replacing = cron(json!({ "concurrencyPolicy": "Replace" }), active("r"));
        let plan = decided(&replacing, &running, "2026-01-01T00:20:00Z");
        assert_eq!((plan.replace.len(), plan.start.is_some()), (1, true));
    }

    #[test]
    fn c_125_name_and_annotation_of_a_job_contain_its_time() {
        let plan = decided(&cron(json!({}), json!({})), &[], "2026-01-01T00:12:00Z");
        let job = plan.start.unwrap().job;
        assert_eq!(name(&job), format!("c-{}", 1_767_225_600 / 60 + 10));
        let annotations = job.metadata.annotations.unwrap();
        assert_eq!(annotations[SCHEDULED], "2026-01-01T00:10:00Z");
        assert_eq!(job.metadata.labels.unwrap()["a"], "b");
    }

    #[test]
    fn c_127_c_129_finished_jobs_become_inactive_and_old_ones_are_deleted() {
        let spec = json!({ "successfulJobsHistoryLimit": 1, "failedJobsHistoryLimit": 0 });
        let jobs = [
            job("one", "Complete", "2026-01-01T00:01:00Z"),
            job("two", "Complete", "2026-01-01T00:02:00Z"),
            job("bad", "Failed", "2026-01-01T00:03:00Z"),
        ];
        let plan = decided(&cron(spec, active("two")), &jobs, "2026-01-01T00:05:00Z");
        assert_eq!(plan.status.active, None);
        assert_eq!(
            plan.events,
            [PlannedEvent::normal(
                "SawCompletedJob",
                "Saw completed job: two, condition: Complete"
            )]
        );
        let at = plan.status.last_successful_time.unwrap().0;
        assert_eq!(at, "2026-01-01T00:02:00Z".parse().unwrap());
        let old: Vec<&str> = plan.old.iter().map(|job| name(job.as_ref())).collect();
        assert_eq!(old, ["one", "bad"]);
        let plan = decided(&cron(json!({}), active("gone")), &[], "2026-01-01T00:05:00Z");
        assert_eq!(plan.missing.len(), 1);
    }

    #[test]
    fn c_130_next_reconcile_is_just_after_the_next_time() {
        let plan = decided(&cron(json!({}), json!({})), &[], "2026-01-01T00:09:00Z");
        assert_eq!(plan.next, Some(Duration::from_millis(60_100)));
        let plan = decided(&cron(json!({}), json!({})), &[], "2026-01-01T00:10:00Z");
        assert_eq!(plan.next, Some(Duration::from_millis(600_100)));
        // The last time is in the past and too late: the next reconcile is after the next time, not at once.
        let late = cron(json!({ "startingDeadlineSeconds": 60 }), json!({}));
        let plan = decided(&late, &[], "2026-01-01T00:55:00Z");
        assert_eq!(plan.next, Some(Duration::from_millis(300_100)));
    }

    /// The time of the reconcile does not matter, for example after a restart.
    #[test]
    fn c_122_c_130_intervals_count_from_the_last_time() {
        let last = json!({ "lastScheduleTime": "2026-01-01T00:00:00Z" });
        let daily = cron(json!({ "schedule": "@every 24h" }), last.clone());
        let plan = decided(&daily, &[], "2026-01-01T20:00:00Z");
        assert_eq!(started_and_reasons(&plan), (None, vec![]));
        assert_eq!(plan.next, Some(Duration::from_millis(4 * 3_600_000 + 100)));
        // A starting deadline does not shift the times: due ones are started, late ones skipped.
        let limited =
            cron(json!({ "schedule": "@every 24h", "startingDeadlineSeconds": 60 }), last);
        let plan = decided(&limited, &[], "2026-01-02T00:00:01Z");
        assert_eq!(started_and_reasons(&plan), (Some("00:00".to_owned()), vec![]));
        let plan = decided(&limited, &[], "2026-01-02T20:00:00Z");
        assert_eq!(started_and_reasons(&plan), (None, vec!["MissSchedule"]));
        assert_eq!(plan.next, Some(Duration::from_millis(4 * 3_600_000 + 100)));
    }
}
