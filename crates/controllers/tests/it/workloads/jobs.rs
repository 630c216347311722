//! Jobs.

use super::cluster::{Cluster, NAMESPACE, key, lives, names};
use client::{DeleteOptions, ObjectKey, Propagation, Selection};
use k8s_openapi::api::batch::v1::{Job, JobStatus};
use k8s_openapi::api::core::v1::{Event, Namespace, Pod, ResourceQuota};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::Instant;

fn job(more: Value) -> Value {
    let mut spec = json!({
        "template": { "spec": { "restartPolicy": "Never",
            "containers": [{ "name": "c", "image": "i" }] } },
    });
    if let (Some(spec), Some(more)) = (spec.as_object_mut(), more.as_object()) {
        spec.extend(more.clone());
    }
    json!({ "metadata": { "namespace": NAMESPACE, "name": "sum" }, "spec": spec })
}

fn status(job: &Job) -> JobStatus {
    job.status.clone().unwrap_or_default()
}

fn reasons(job: &Job) -> Vec<String> {
    let conditions = status(job).conditions.unwrap_or_default();
    conditions.iter().map(|c| format!("{}={}", c.type_, c.reason.clone().unwrap())).collect()
}

async fn ends(cluster: &Cluster, pod: &Pod, phase: &str) {
    cluster.bind(pod).await;
    cluster.ended(pod, phase).await;
}

/// Foreground deletion: the Job has a deletion timestamp and stays until its pods are gone.
#[tokio::test(start_paused = true)]
async fn t_ctrl_62_a_finished_job_with_ttl_0_is_deleted_at_once_after_its_pods() {
    let cluster = Cluster::start().await;
    cluster.create::<Job>(job(json!({ "ttlSecondsAfterFinished": 0 }))).await;
    let pod = cluster.living(1).await.remove(0);
    let name = pod.metadata.name.clone().unwrap();
    let mut held = pod.metadata.finalizers.clone().unwrap_or_default();
    held.push("example.com/held".to_owned());
    cluster.patch::<Pod>(&name, json!({ "metadata": { "finalizers": held } })).await;
    ends(&cluster, &pod, "Succeeded").await;
    let going = cluster.when::<Job>("sum", |job| job.metadata.deletion_timestamp.is_some()).await;
    assert_eq!(going.metadata.finalizers, Some(vec!["foregroundDeletion".to_owned()]));
    cluster.when::<Pod>(&name, |pod| pod.metadata.deletion_timestamp.is_some()).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(cluster.all::<Job>().await.len(), 1, "its pod is there");
    cluster.patch::<Pod>(&name, json!({ "metadata": { "finalizers": null } })).await;
    cluster.when_all::<Job>(|jobs| jobs.is_empty()).await;
    assert!(cluster.all::<Pod>().await.is_empty());
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_101_c_114_a_job_completes_and_every_pod_is_counted_once() {
    let mut cluster = Cluster::start().await;
    cluster.create::<Job>(job(json!({ "parallelism": 2, "completions": 3 }))).await;
    let pods = cluster.living(2).await;
    assert!(pods.iter().all(|pod| {
        pod.metadata.finalizers.iter().flatten().any(|f| f == "batch.kubernetes.io/job-tracking")
    }));
    ends(&cluster, &pods[0], "Succeeded").await;
    cluster.when::<Job>("sum", |job| status(job).succeeded == Some(1)).await;
    cluster.restart_controllers().await;
    for pod in cluster.living(2).await {
        ends(&cluster, &pod, "Succeeded").await;
    }
    let done = cluster.when::<Job>("sum", |job| status(job).completion_time.is_some()).await;
    assert_eq!(
        reasons(&done),
        ["SuccessCriteriaMet=CompletionsReached", "Complete=CompletionsReached"]
    );
    let status = status(&done);
    assert_eq!((status.succeeded, status.active, status.ready), (Some(3), None, Some(0)));
    assert_eq!(status.terminating, Some(0));
    let free = |pods: &[Pod]| pods.iter().all(|pod| pod.metadata.finalizers.is_none());
    assert_eq!(cluster.when_all::<Pod>(free).await.len(), 3);
    assert_eq!(cluster.event("Completed").await, "Job completed");
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_112_c_114_t_ctrl_29_failed_pods_are_replaced_with_backoff_until_the_limit() {
    let cluster = Cluster::start().await;
    cluster.create::<Job>(job(json!({ "backoffLimit": 2 }))).await;
    let mut gaps = Vec::new();
    for _ in 0..2 {
        let pod = cluster.living(1).await.remove(0);
        ends(&cluster, &pod, "Failed").await;
        let failed = Instant::now();
        cluster.when_all::<Pod>(|pods| pods.iter().any(lives)).await;
        gaps.push(failed.elapsed().as_secs());
    }
    // Without container statuses a pod counts as failed at its creation.
    assert!(gaps[1] > gaps[0], "{gaps:?}");
    let pod = cluster.living(1).await.remove(0);
    ends(&cluster, &pod, "Failed").await;
    let failed = |job: &Job| reasons(job).len() == 2;
    let job = cluster.when::<Job>("sum", failed).await;
    assert_eq!(
        reasons(&job),
        ["FailureTarget=BackoffLimitExceeded", "Failed=BackoffLimitExceeded"]
    );
    assert_eq!(status(&job).failed, Some(3));
    let message = cluster.event("BackoffLimitExceeded").await;
    assert_eq!(message, "Job has reached the specified backoff limit");
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_110_a_new_job_is_reconciled_at_once_and_changes_of_its_pods_a_second_later() {
    let cluster = Cluster::start().await;
    let created = Instant::now();
    cluster.create::<Job>(job(json!({ "parallelism": 2, "completions": 4 }))).await;
    let pods = cluster.when_all::<Pod>(|pods| pods.len() == 2).await;
    assert!(created.elapsed() < Duration::from_millis(500), "{:?}", created.elapsed());
    tokio::time::sleep(Duration::from_secs(5)).await;
    ends(&cluster, &pods[0], "Succeeded").await;
    let ended = Instant::now();
    tokio::time::sleep(Duration::from_millis(500)).await;
    ends(&cluster, &pods[1], "Succeeded").await;
    // Both pods are counted in one reconcile.
    let counted = cluster.when::<Job>("sum", |job| status(job).succeeded.is_some()).await;
    let took = ended.elapsed();
    assert!((900..1500).contains(&took.as_millis()), "{took:?}");
    assert_eq!(status(&counted).succeeded, Some(2));
    // Changes of the spec are not delayed.
    let changed = Instant::now();
    cluster.patch::<Job>("sum", json!({ "spec": { "suspend": true } })).await;
    cluster.when_all::<Pod>(|pods| !pods.iter().any(lives)).await;
    assert!(changed.elapsed() < Duration::from_millis(500), "{:?}", changed.elapsed());
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_103_c_104_an_indexed_job_gives_each_pod_its_index() {
    let cluster = Cluster::start().await;
    let indexed = json!({ "parallelism": 3, "completions": 3, "completionMode": "Indexed" });
    cluster.create::<Job>(job(indexed)).await;
    let pods = cluster.living(3).await;
    let mut hosts: Vec<String> =
        pods.iter().map(|pod| pod.spec.as_ref().unwrap().hostname.clone().unwrap()).collect();
    hosts.sort();
    assert_eq!(hosts, ["sum-0", "sum-1", "sum-2"]);
    let spec = pods[0].spec.as_ref().unwrap();
    assert_eq!(spec.containers[0].env.as_ref().unwrap()[0].name, "JOB_COMPLETION_INDEX");
    assert!(names(&pods).iter().any(|name| name.starts_with("sum-1-")));
    for pod in &pods {
        ends(&cluster, pod, "Succeeded").await;
    }
    let done = cluster.when::<Job>("sum", |job| status(job).completion_time.is_some()).await;
    assert_eq!(status(&done).completed_indexes.as_deref(), Some("0-2"));
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_116_a_disrupted_pod_does_not_count_and_is_replaced() {
    let cluster = Cluster::start().await;
    let policy = json!({ "backoffLimit": 0, "podFailurePolicy": { "rules": [
        { "action": "Ignore", "onPodConditions": [{ "type": "DisruptionTarget", "status": "True" }] }] } });
    cluster.create::<Job>(job(policy)).await;
    let pod = cluster.living(1).await.remove(0);
    cluster.bind(&pod).await;
    let evicted = json!({ "status": { "phase": "Failed", "conditions": [
        { "type": "DisruptionTarget", "status": "True" }] } });
    let name = names(std::slice::from_ref(&pod)).remove(0);
    cluster.client.patch_status::<Pod>(&key(&name), &evicted).await.unwrap();
    let again = cluster.when_all::<Pod>(|pods| pods.iter().any(lives)).await;
    let again = again.into_iter().find(lives).unwrap();
    ends(&cluster, &again, "Succeeded").await;
    let done = cluster.when::<Job>("sum", |job| status(job).completion_time.is_some()).await;
    assert_eq!(status(&done).failed, None);
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_119_t_ctrl_27_a_suspended_job_has_no_pods_and_counts_no_failures() {
    let cluster = Cluster::start().await;
    cluster.create::<Job>(job(json!({ "parallelism": 2, "completions": 2 }))).await;
    cluster.living(2).await;
    cluster.patch::<Job>("sum", json!({ "spec": { "suspend": true } })).await;
    cluster.when_all::<Pod>(|pods| pods.is_empty()).await;
    let suspended =
        cluster.when::<Job>("sum", |job| reasons(job) == ["Suspended=JobSuspended"]).await;
    assert_eq!((status(&suspended).failed, status(&suspended).start_time), (None, None));
    cluster.patch::<Job>("sum", json!({ "spec": { "suspend": false } })).await;
    cluster.living(2).await;
    let resumed = cluster.when::<Job>("sum", |job| reasons(job) == ["Suspended=JobResumed"]).await;
    assert!(status(&resumed).start_time.is_some());
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_114_t_ctrl_26_a_job_past_its_deadline_fails_when_its_pods_are_gone() {
    let cluster = Cluster::start().await;
    cluster.create::<Job>(job(json!({ "activeDeadlineSeconds": 30 }))).await;
    cluster.all_run(1).await;
    let begun = Instant::now();
    let interim = |job: &Job| reasons(job) == ["FailureTarget=DeadlineExceeded"];
    cluster.when::<Job>("sum", interim).await;
    let after = begun.elapsed();
    assert!((25..=35).contains(&after.as_secs()), "{after:?}");
    cluster.quiet().await;
    assert!(interim(&cluster.get::<Job>("sum").await), "its pod is in its grace");
    cluster.clear().await;
    let failed = cluster.when::<Job>("sum", |job| reasons(job).len() == 2).await;
    assert_eq!(status(&failed).failed, Some(1));
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn t_ctrl_24_t_ctrl_28_a_deleted_pod_is_counted_and_an_orphan_released() {
    let cluster = Cluster::start().await;
    cluster.create::<Job>(job(json!({ "parallelism": 2, "completions": 2 }))).await;
    let pods = cluster.all_run(2).await;
    cluster.gone(&pods[0]).await;
    cluster.when::<Job>("sum", |job| status(job).failed == Some(1)).await;
    let orphan = DeleteOptions::default().propagation(Propagation::Orphan);
    cluster.client.delete::<Job>(&key("sum"), &orphan).await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let job = cluster.client.find::<Job>(&key("sum")).await.unwrap();
    if job.is_some() {
        // The test does what the garbage collector would do.
        let free = json!({ "metadata": { "finalizers": null } });
        cluster.patch::<Job>("sum", free).await;
    }
    let free = |pods: &[Pod]| pods.iter().all(|pod| pod.metadata.finalizers.is_none());
    cluster.when_all::<Pod>(free).await;
    cluster.stop().await;
}

/// Failed pods must not wait for new pods of their index, because none will be created.
#[tokio::test(start_paused = true)]
async fn c_117_t_ctrl_28_a_job_with_a_limit_per_index_is_deleted_after_its_pods() {
    let cluster = Cluster::start().await;
    let per_index = json!({ "parallelism": 2, "completions": 2, "completionMode": "Indexed",
                            "backoffLimitPerIndex": 1 });
    cluster.create::<Job>(job(per_index)).await;
    cluster.all_run(2).await;
    let foreground = DeleteOptions::default().propagation(Propagation::Foreground);
    cluster.client.delete::<Job>(&key("sum"), &foreground).await.unwrap();
    let going = |pods: &[Pod]| pods.iter().all(|pod| pod.metadata.deletion_timestamp.is_some());
    cluster.when_all::<Pod>(going).await;
    cluster.clear().await;
    cluster.when_all::<Pod>(|pods| pods.is_empty()).await;
    cluster.when_all::<Job>(|jobs| jobs.is_empty()).await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_117_t_ctrl_53_a_job_with_a_limit_per_index_does_not_block_its_namespace() {
    let cluster = Cluster::start().await;
    cluster.create::<Namespace>(json!({ "metadata": { "name": "away" } })).await;
    let mut per_index = job(json!({ "parallelism": 2, "completions": 2,
        "completionMode": "Indexed", "backoffLimitPerIndex": 1 }));
    per_index["metadata"]["namespace"] = json!("away");
    cluster.create::<Job>(per_index).await;
    let here = Selection::namespace("away");
    let pods = || cluster.client.list::<Pod>(&here);
    while pods().await.unwrap().len() < 2 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // Deleted before its namespace: the namespace controller does not touch it.
    let first = pods().await.unwrap().remove(0);
    cluster.gone(&first).await;
    let away = ObjectKey::cluster("away");
    cluster.client.delete::<Namespace>(&away, &DeleteOptions::default()).await.unwrap();
    let start = Instant::now();
    while cluster.client.find::<Namespace>(&away).await.unwrap().is_some() {
        assert!(start.elapsed().as_secs() < 120, "{:#?}", pods().await);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_6_the_finalizer_is_added_and_removed_with_ownership() {
    let cluster = Cluster::start().await;
    cluster.create::<Job>(job(json!({}))).await;
    let pod = cluster.living(1).await.remove(0);
    let name = names(&[pod])[0].clone();
    let tracked = |pod: &Pod| {
        let finalizers = pod.metadata.finalizers.iter().flatten();
        finalizers.into_iter().any(|one| one == "batch.kubernetes.io/job-tracking")
    };
    let owned = |pod: &Pod| pod.metadata.owner_references.is_some();
    let free = json!({ "metadata": { "ownerReferences": null, "finalizers": null } });
    let freed = cluster.patch::<Pod>(&name, free).await;
    assert!(!owned(&freed) && !tracked(&freed));
    cluster.when::<Pod>(&name, |pod| owned(pod) && tracked(pod)).await;
    cluster.living(1).await;
    let other = json!({ "metadata": { "labels": { "batch.kubernetes.io/controller-uid": "x" } } });
    cluster.patch::<Pod>(&name, other).await;
    cluster.when::<Pod>(&name, |pod| !owned(pod) && !tracked(pod)).await;
    cluster.living(2).await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_108_a_job_with_another_manager_is_left_alone() {
    let cluster = Cluster::start().await;
    let managed = json!({ "managedBy": "example.com/mine", "activeDeadlineSeconds": 5 });
    let job = cluster.create::<Job>(job(managed)).await;
    let owner = json!([{ "apiVersion": "batch/v1", "kind": "Job", "name": "sum",
                         "uid": job.metadata.uid, "controller": true }]);
    let pod = json!({
        "metadata": { "namespace": NAMESPACE, "name": "theirs", "ownerReferences": owner,
                      "finalizers": ["batch.kubernetes.io/job-tracking"],
                      "labels": job.spec.as_ref().unwrap().template.metadata.as_ref().unwrap().labels },
        "spec": { "containers": [{ "name": "c", "image": "i" }] },
    });
    let pod = cluster.create::<Pod>(pod).await;
    ends(&cluster, &pod, "Succeeded").await;
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(names(&cluster.all::<Pod>().await), ["theirs"], "none is made");
    let finalizers = cluster.get::<Pod>("theirs").await.metadata.finalizers;
    assert_eq!(finalizers.as_deref().unwrap_or_default().len(), 1, "and none is counted");
    let after = cluster.get::<Job>("sum").await;
    assert_eq!(after.metadata.resource_version, job.metadata.resource_version);
    let mine = json!({ "spec": { "managedBy": "kubernetes.io/job-controller" } });
    let refused = cluster.client.patch_merge::<Job>(&key("sum"), &mine).await.unwrap_err();
    assert!(refused.is_invalid(), "{refused}");
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_121_refused_requests_are_retried_with_backoff_up_to_a_minute() {
    let cluster = Cluster::start().await;
    let quota = json!({ "metadata": { "namespace": NAMESPACE, "name": "q" },
                        "spec": { "hard": { "pods": "0" } } });
    cluster.create::<ResourceQuota>(quota).await;
    let counted =
        |quota: &ResourceQuota| quota.status.as_ref().is_some_and(|status| status.hard.is_some());
    cluster.when::<ResourceQuota>("q", counted).await;
    cluster.create::<Job>(job(json!({}))).await;
    tokio::time::sleep(Duration::from_secs(240)).await;
    let events = cluster.all::<Event>().await;
    let mut times: Vec<i64> = events
        .iter()
        .filter(|event| event.reason.as_deref() == Some("FailedCreate"))
        .map(|event| event.first_timestamp.as_ref().unwrap().0.as_second())
        .collect();
    times.sort_unstable();
    let gaps: Vec<i64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(gaps, [1, 2, 4, 8, 16, 32, 60, 60]);
    cluster.stop().await;
}
