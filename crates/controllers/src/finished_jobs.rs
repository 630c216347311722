//! Deletes finished Jobs after their `ttlSecondsAfterFinished` (T-CTRL-62). Not here: running Jobs (`job.rs`).

use crate::job::finished_condition;
use crate::start::Cluster;
use client::{Cache, DeleteOptions, Next, ObjectKey, Propagation, Queue, run_controller};
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use std::time::Duration;

const WORKERS: usize = 5;

pub(crate) async fn run(cluster: &Cluster, jobs: Cache<Job>) {
    let queue = Queue::new();
    jobs.feed_keys(&queue);
    jobs.synced().await;
    run_controller("ttl-after-finished", &queue, WORKERS, |key| reconcile(cluster, &jobs, key))
        .await;
}

async fn reconcile(cluster: &Cluster, jobs: &Cache<Job>, key: ObjectKey) -> client::Result<Next> {
    let Some(left) = jobs.get(&key).and_then(|job| left(&job, clock::now())) else {
        return Ok(Next::Change);
    };
    if !left.is_zero() {
        return Ok(Next::After(left));
    }
    // The TTL may have been extended just now.
    let Some(job) = cluster.client.find::<Job>(&key).await? else {
        return Ok(Next::Change);
    };
    match self::left(&job, clock::now()) {
        None => return Ok(Next::Change),
        Some(left) if !left.is_zero() => return Ok(Next::After(left)),
        Some(_) => (),
    }
    let options = DeleteOptions::only(&job).propagation(Propagation::Foreground);
    match cluster.client.delete::<Job>(&key, &options).await {
        Err(error) if error.is_not_found() || error.is_conflict() => Ok(Next::Change),
        deleted => deleted.map(|_| Next::Change),
    }
}

/// The remaining time to live; `None` if there is no TTL, or the Job has not finished.
fn left(job: &Job, now: Timestamp) -> Option<Duration> {
    let stays = job.spec.as_ref()?.ttl_seconds_after_finished?;
    if job.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let finished = finished_condition(job)?.last_transition_time.as_ref()?.0;
    let until = finished.checked_add(jiff::SignedDuration::from_secs(stays.into())).ok()?;
    Some(until.duration_since(now).try_into().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn t_ctrl_62_finished_jobs_with_a_ttl_expire() {
        let at = |second: i64| Timestamp::from_second(1000 + second).unwrap();
        let condition = |type_: &str, status: &str| json!({ "type": type_, "status": status, "lastTransitionTime": at(0).to_string() });
        let complete = || json!([condition("Complete", "True")]);
        let cases = [
            ("no time", Value::Null, complete(), Value::Null, 50, None),
            ("running", json!(10), json!([]), Value::Null, 50, None),
            (
                "not complete",
                json!(10),
                json!([condition("Complete", "False")]),
                Value::Null,
                50,
                None,
            ),
            (
                "suspended",
                json!(10),
                json!([condition("Suspended", "True")]),
                Value::Null,
                50,
                None,
            ),
            ("complete", json!(10), complete(), Value::Null, 4, Some(6)),
            ("failed", json!(10), json!([condition("Failed", "True")]), Value::Null, 4, Some(6)),
            ("over", json!(10), complete(), Value::Null, 11, Some(0)),
            ("at once", json!(0), complete(), Value::Null, 0, Some(0)),
            ("going", json!(0), complete(), json!(at(0).to_string()), 5, None),
        ];
        for (what, ttl, conditions, deleted, now, expected) in cases {
            let job: Job = typed::from_value(json!({
                "metadata": { "name": "j", "deletionTimestamp": deleted },
                "spec": { "ttlSecondsAfterFinished": ttl, "template": {} },
                "status": { "conditions": conditions },
            }))
            .unwrap();
            assert_eq!(left(&job, at(now)), expected.map(Duration::from_secs), "{what}");
        }
    }
}
