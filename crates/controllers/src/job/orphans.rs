//! Removes the tracking finalizer from pods that no Job will count (T-CTRL-28), because their Job is gone or finished,
//! or they have none.

use super::pods::{TRACKING, has_finalizer};
use super::{is_ours, plan};
use crate::start::Cluster;
use crate::workload::{controller_ref, namespace, uid};
use client::{Cache, Client, Next, ObjectKey, Queue, run_controller};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

const WORKERS: usize = 2;

pub(super) async fn run(cluster: &Cluster, jobs: &Cache<Job>) {
    let queue = Queue::new();
    let tracked = |pod: &Pod| has_finalizer(pod).then(|| ObjectKey::of(pod)).into_iter().collect();
    cluster.pods.feed(&queue, tracked);
    let (pods, there) = (cluster.pods.clone(), jobs.clone());
    jobs.feed(&queue, move |job| {
        let now = there.get(&ObjectKey::of(job)).filter(|now| uid(now.as_ref()) == uid(job));
        if now.is_some_and(|now| !plan::is_finished(&now)) {
            return Vec::new();
        }
        let left = pods.controlled_by_uid(uid(job));
        left.iter()
            .filter(|pod| has_finalizer(pod))
            .map(|pod| ObjectKey::of(pod.as_ref()))
            .collect()
    });
    run_controller("job-orphans", &queue, WORKERS, |key| reconcile(cluster, jobs, key)).await;
}

async fn reconcile(cluster: &Cluster, jobs: &Cache<Job>, key: ObjectKey) -> client::Result<Next> {
    let Some(pod) = cluster.pods.get(&key).filter(|pod| has_finalizer(pod)) else {
        return Ok(Next::Change);
    };
    if is_tracked(&cluster.client, jobs, &pod).await? {
        return Ok(Next::Change);
    }
    remove_finalizer(&cluster.client, &pod).await?;
    Ok(Next::Change)
}

/// Whether there is a Job that will count the pod, or a Job with another manager.
async fn is_tracked(client: &Client, jobs: &Cache<Job>, pod: &Pod) -> client::Result<bool> {
    let Some(owner) =
        controller_ref(pod).filter(|owner| owner.kind == <Job as k8s_openapi::Resource>::KIND)
    else {
        return Ok(false);
    };
    let key = ObjectKey::new(namespace(pod), &owner.name);
    let counts = |job: &Job| !is_ours(job) || !plan::is_finished(job);
    if let Some(job) = jobs.get(&key).filter(|job| uid(job.as_ref()) == owner.uid) {
        return Ok(counts(&job));
    }
    // The pod cache may be ahead of the Job cache, which may have no Job of that name yet, or an earlier one.
    let job = client.find::<Job>(&key).await?.filter(|job| uid(job) == owner.uid);
    Ok(job.is_some_and(|job| counts(&job)))
}

/// Removes the finalizer. `None` if the pod is gone.
pub(super) async fn remove_finalizer(client: &Client, pod: &Pod) -> client::Result<Option<Pod>> {
    let patch = json!({ "metadata": {
        "uid": uid(pod),
        "$deleteFromPrimitiveList/finalizers": [TRACKING],
    }});
    match client.patch_strategic::<Pod>(&ObjectKey::of(pod), &patch).await {
        Ok(pod) => Ok(Some(pod)),
        Err(error) if crate::workload::is_outdated(&error) => Ok(None),
        Err(error) => Err(error),
    }
}
