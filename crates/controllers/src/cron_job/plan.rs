//! What a look at a CronJob and its Jobs leads to (C-124…C-130). Pure.

use super::times::Times;
use crate::workload::{name, namespace, owner_reference, uid};
use api::rules::Schedule;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::{CronJob, CronJobStatus, Job};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use std::sync::Arc;
use std::time::Duration;

const SCHEDULED: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";

/// So much after a time it is looked whether it is due. Upstream: `nextScheduleDelta`.
const LAG: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct Plan {
    /// Active by the status, but not in the cache.
    pub(super) doubtful: Vec<ObjectReference>,
    /// Finished, and beyond the limits of history.
    pub(super) old: Vec<Arc<Job>>,
    /// Must go before another starts.
    pub(super) replace: Vec<Arc<Job>>,
    pub(super) start: Option<Start>,
    pub(super) said: Vec<Said>,
    pub(super) status: CronJobStatus,
    pub(super) next: Option<Duration>,
}

#[derive(Debug)]
pub(super) struct Start {
    pub(super) at: Timestamp,
    pub(super) job: Job,
}

#[derive(Debug, PartialEq)]
pub(super) struct Said {
    pub(super) warns: bool,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

impl Said {
    pub(super) fn normal(reason: &'static str, message: impl Into<String>) -> Said {
        Said { warns: false, reason, message: message.into() }
    }

    pub(super) fn warning(reason: &'static str, message: impl Into<String>) -> Said {
        Said { warns: true, reason, message: message.into() }
    }
}

pub(super) fn decide(
    cron: &CronJob,
    jobs: &[Arc<Job>],
    zone: &Result<TimeZone, String>,
    now: Timestamp,
) -> Plan {
    let mut plan = Plan {
        doubtful: Vec::new(),
        old: old(cron, jobs),
        replace: Vec::new(),
        start: None,
        said: Vec::new(),
        status: cron.status.clone().unwrap_or_default(),
        next: None,
    };
    follow(cron, jobs, &mut plan);
    let spec = &cron.spec;
    let zone = match zone {
        Ok(zone) => zone,
        Err(why) => {
            let named = spec.time_zone.as_deref().unwrap_or_default();
            let message = format!("invalid timeZone: {named:?}: {why}");
            plan.said.push(Said::warning("UnknownTimeZone", message));
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
            plan.said.push(Said::warning("UnparseableSchedule", message));
        }
    }
    plan
}

/// Brings the list of active Jobs and the time of the last success up to date (C-127).
fn follow(cron: &CronJob, jobs: &[Arc<Job>], plan: &mut Plan) {
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
                plan.said.push(Said::warning("UnexpectedJob", message));
            }
            None => (),
            Some(condition) => {
                if is_active {
                    forget(&mut plan.status, uid(job.as_ref()));
                    let message = format!("Saw completed job: {named}, condition: {condition}");
                    plan.said.push(Said::normal("SawCompletedJob", message));
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
    plan.doubtful =
        active.iter().filter(|active| !is_there(active)).map(|active| (*active).clone()).collect();
}

/// `Complete` or `Failed`, if it is one of them.
fn finished(job: &Job) -> Option<&str> {
    let mut conditions = job.status.as_ref()?.conditions.iter().flatten();
    let found = conditions.find(|condition| {
        matches!(condition.type_.as_str(), "Complete" | "Failed") && condition.status == "True"
    });
    found.map(|condition| condition.type_.as_str())
}

pub(super) fn forget(status: &mut CronJobStatus, uid: &str) {
    if let Some(active) = &mut status.active {
        active.retain(|active| active.uid.as_deref() != Some(uid));
    }
    status.active = status.active.take().filter(|active| !active.is_empty());
}

/// A Job was started for its time.
pub(super) fn began(status: &mut CronJobStatus, job: &Job, at: Timestamp) {
    status.last_schedule_time = Some(Time(at));
    if finished(job).is_some() {
        return;
    }
    let active = status.active.get_or_insert_default();
    if !active.iter().any(|active| active.uid == job.metadata.uid) {
        active.push(client::reference(job));
    }
}

/// Finished Jobs beyond the limits, oldest first (C-129).
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

/// Starts what is due, if it may (C-124, C-126).
fn due(cron: &CronJob, jobs: &[Arc<Job>], times: &Times, now: Timestamp, plan: &mut Plan) {
    let spec = &cron.spec;
    let last = cron.status.as_ref().and_then(|status| status.last_schedule_time.as_ref());
    let base = last.or(cron.metadata.creation_timestamp.as_ref()).map_or(now, |time| time.0);
    let deadline = spec.starting_deadline_seconds.map(SignedDuration::from_secs);
    let earliest = deadline.and_then(|deadline| now.checked_sub(deadline).ok());
    let from = earliest.map_or(base, |earliest| earliest.max(base));
    let due = times.due(base, from, now);
    // Also one that was missed for good: what comes then is counted from it.
    let missed = times.due(base, base, now);
    let after = missed.as_ref().map_or(base, |missed| missed.last);
    plan.next = times.next(after).map(|next| {
        let wait = Duration::try_from(next.duration_since(now)).unwrap_or_default();
        wait + LAG
    });
    let Some(due) = due else {
        // With a deadline a time can be missed for good, and is said to be.
        if let Some(missed) = missed {
            let at = missed.last.strftime("%a, %d %b %Y %H:%M:%S +0000");
            let message = format!("Missed scheduled time to start a job: {at}");
            plan.said.push(Said::warning("MissSchedule", message));
        }
        return;
    };
    if due.too_many {
        let message = "too many missed start times. Set or decrease .spec.startingDeadlineSeconds \
                       or check clock skew";
        plan.said.push(Said::warning("TooManyMissedTimes", message));
    }
    let job = make(cron, due.last, times);
    let active = plan.status.active.as_deref().unwrap_or_default();
    if active.iter().any(|active| active.name.as_deref() == Some(name(&job))) {
        return;
    }
    match spec.concurrency_policy.as_deref() {
        Some("Forbid") if !active.is_empty() => {
            let message = "Not starting job because prior execution is running and concurrency policy is Forbid";
            plan.said.push(Said::normal("JobAlreadyActive", message));
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

/// C-125.
fn make(cron: &CronJob, at: Timestamp, times: &Times) -> Job {
    let template = cron.spec.job_template.clone();
    let meta = template.metadata.unwrap_or_default();
    let mut annotations = meta.annotations.unwrap_or_default();
    annotations.insert(SCHEDULED.to_owned(), times.written(at));
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

    /// What is started, and the reasons of what is said.
    fn told(plan: &Plan) -> (Option<String>, Vec<&'static str>) {
        let started = plan.start.as_ref().map(|start| start.at.strftime("%H:%M").to_string());
        (started, plan.said.iter().map(|said| said.reason).collect())
    }

    /// Name, spec, status, jobs, now, what is started, what is said.
    type Row<'a> = (&'a str, Value, Value, &'a [Arc<Job>], &'a str, Option<&'a str>, &'a [&'a str]);

    #[test]
    fn c_124_c_126_c_128_what_is_due_is_started_if_it_may() {
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
        for (what, spec, status, jobs, at, started, said) in cases {
            let plan = decided(&cron(spec, status), jobs, &format!("2026-01-01T{at}:00Z"));
            assert_eq!(told(&plan), (started.map(str::to_owned), said.to_vec()), "{what}");
        }
        let replacing = cron(json!({ "concurrencyPolicy": "Replace" }), active("r"));
        let plan = decided(&replacing, &running, "2026-01-01T00:20:00Z");
        assert_eq!((plan.replace.len(), plan.start.is_some()), (1, true));
    }

    #[test]
    fn c_125_a_job_is_named_and_marked_by_its_time() {
        let plan = decided(&cron(json!({}), json!({})), &[], "2026-01-01T00:12:00Z");
        let job = plan.start.unwrap().job;
        assert_eq!(name(&job), format!("c-{}", 1_767_225_600 / 60 + 10));
        let annotations = job.metadata.annotations.unwrap();
        assert_eq!(annotations[SCHEDULED], "2026-01-01T00:10:00Z");
        assert_eq!(job.metadata.labels.unwrap()["a"], "b");
    }

    #[test]
    fn c_127_c_129_finished_jobs_leave_the_list_and_old_ones_go() {
        let spec = json!({ "successfulJobsHistoryLimit": 1, "failedJobsHistoryLimit": 0 });
        let jobs = [
            job("one", "Complete", "2026-01-01T00:01:00Z"),
            job("two", "Complete", "2026-01-01T00:02:00Z"),
            job("bad", "Failed", "2026-01-01T00:03:00Z"),
        ];
        let plan = decided(&cron(spec, active("two")), &jobs, "2026-01-01T00:05:00Z");
        assert_eq!(plan.status.active, None);
        assert_eq!(
            plan.said,
            [Said::normal("SawCompletedJob", "Saw completed job: two, condition: Complete")]
        );
        let at = plan.status.last_successful_time.unwrap().0;
        assert_eq!(at, "2026-01-01T00:02:00Z".parse().unwrap());
        let old: Vec<&str> = plan.old.iter().map(|job| name(job.as_ref())).collect();
        assert_eq!(old, ["one", "bad"]);
        let plan = decided(&cron(json!({}), active("gone")), &[], "2026-01-01T00:05:00Z");
        assert_eq!(plan.doubtful.len(), 1);
    }

    #[test]
    fn c_130_it_looks_again_just_after_the_next_time() {
        let plan = decided(&cron(json!({}), json!({})), &[], "2026-01-01T00:09:00Z");
        assert_eq!(plan.next, Some(Duration::from_millis(60_100)));
        let plan = decided(&cron(json!({}), json!({})), &[], "2026-01-01T00:10:00Z");
        assert_eq!(plan.next, Some(Duration::from_millis(600_100)));
        // Nothing is due any more: it does not look ten times a second until something is.
        let late = cron(json!({ "startingDeadlineSeconds": 60 }), json!({}));
        let plan = decided(&late, &[], "2026-01-01T00:55:00Z");
        assert_eq!(plan.next, Some(Duration::from_millis(300_100)));
    }

    /// Whenever it is looked at, as after a restart.
    #[test]
    fn c_122_c_130_every_so_often_counts_from_the_last_time() {
        let last = json!({ "lastScheduleTime": "2026-01-01T00:00:00Z" });
        let daily = cron(json!({ "schedule": "@every 24h" }), last.clone());
        let plan = decided(&daily, &[], "2026-01-01T20:00:00Z");
        assert_eq!(told(&plan), (None, vec![]));
        assert_eq!(plan.next, Some(Duration::from_millis(4 * 3_600_000 + 100)));
        // A deadline does not shift it: what is due is started, and what is too late is passed over.
        let limited =
            cron(json!({ "schedule": "@every 24h", "startingDeadlineSeconds": 60 }), last);
        let plan = decided(&limited, &[], "2026-01-02T00:00:01Z");
        assert_eq!(told(&plan), (Some("00:00".to_owned()), vec![]));
        let plan = decided(&limited, &[], "2026-01-02T20:00:00Z");
        assert_eq!(told(&plan), (None, vec!["MissSchedule"]));
        assert_eq!(plan.next, Some(Duration::from_millis(4 * 3_600_000 + 100)));
    }
}
