//! CronJobs.

use super::cluster::{Cluster, NAMESPACE, names};
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use std::time::Duration;

fn cron(more: Value) -> Value {
    let mut spec = json!({
        "schedule": "*/1 * * * ?",
        "jobTemplate": { "spec": { "template": { "spec": { "restartPolicy": "Never",
            "containers": [{ "name": "c", "image": "i" }] } } } },
    });
    if let (Some(spec), Some(more)) = (spec.as_object_mut(), more.as_object()) {
        spec.extend(more.clone());
    }
    json!({ "metadata": { "namespace": NAMESPACE, "name": "tick" }, "spec": spec })
}

fn active(cron: &CronJob) -> usize {
    cron.status.as_ref().and_then(|status| status.active.as_ref()).map_or(0, Vec::len)
}

async fn minutes(number: u64) {
    tokio::time::sleep(Duration::from_secs(60 * number)).await;
}

/// All pods that run succeed.
async fn succeed(cluster: &Cluster) {
    for pod in cluster.all::<Pod>().await {
        cluster.bind(&pod).await;
        cluster.ended(&pod, "Succeeded").await;
    }
}

#[tokio::test(start_paused = true)]
async fn c_124_c_125_c_127_c_129_a_job_is_started_every_minute_and_old_ones_are_deleted() {
    let cluster = Cluster::start().await;
    cluster.create::<CronJob>(cron(json!({ "successfulJobsHistoryLimit": 1 }))).await;
    let jobs = cluster.when_all::<Job>(|jobs| jobs.len() == 1).await;
    assert_eq!(names(&jobs), [format!("tick-{}", 1_767_225_600 / 60 + 1)]);
    let message = cluster.event_on("CronJob", "SuccessfulCreate").await;
    assert_eq!(message, format!("Created job {}", names(&jobs)[0]));
    cluster.when::<CronJob>("tick", |cron| active(cron) == 1).await;
    for _ in 0..3 {
        cluster.when_all::<Pod>(|pods| !pods.is_empty()).await;
        succeed(&cluster).await;
        minutes(1).await;
    }
    let done = cluster
        .when::<CronJob>("tick", |cron| {
            cron.status.as_ref().is_some_and(|status| status.last_successful_time.is_some())
        })
        .await;
    assert!(active(&done) <= 1);
    let finished = |jobs: &[Job]| {
        let done =
            |job: &&Job| job.status.as_ref().is_some_and(|status| status.completion_time.is_some());
        jobs.iter().filter(done).count() == 1
    };
    cluster.when_all::<Job>(finished).await;
    assert!(cluster.event("SawCompletedJob").await.ends_with("condition: Complete"));
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_126_a_forbidden_second_run_waits_for_the_first() {
    let cluster = Cluster::start().await;
    cluster.create::<CronJob>(cron(json!({ "concurrencyPolicy": "Forbid" }))).await;
    cluster.when_all::<Job>(|jobs| jobs.len() == 1).await;
    minutes(3).await;
    assert_eq!(cluster.all::<Job>().await.len(), 1);
    let message = cluster.event("JobAlreadyActive").await;
    assert!(
        message.starts_with("Not starting job because prior execution is running"),
        "{message}"
    );
    succeed(&cluster).await;
    cluster.when_all::<Job>(|jobs| jobs.len() == 2).await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_126_a_second_run_replaces_the_first() {
    let cluster = Cluster::start().await;
    cluster.create::<CronJob>(cron(json!({ "concurrencyPolicy": "Replace" }))).await;
    let first = names(&cluster.when_all::<Job>(|jobs| jobs.len() == 1).await);
    minutes(1).await;
    let second = |jobs: &[Job]| jobs.len() == 1 && names(jobs) != first;
    cluster.when_all::<Job>(second).await;
    cluster.when::<CronJob>("tick", |cron| active(cron) == 1).await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_125_c_128_a_suspended_cron_job_starts_nothing_and_a_restart_starts_nothing_twice() {
    let mut cluster = Cluster::start().await;
    cluster.create::<CronJob>(cron(json!({ "suspend": true }))).await;
    minutes(5).await;
    assert!(cluster.all::<Job>().await.is_empty());
    cluster.patch::<CronJob>("tick", json!({ "spec": { "suspend": false } })).await;
    cluster.when_all::<Job>(|jobs| jobs.len() == 1).await;
    cluster.restart_controllers().await;
    cluster.quiet().await;
    assert_eq!(cluster.all::<Job>().await.len(), 1, "only the last missed time, and once");
    cluster.stop().await;
}
