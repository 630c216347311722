//! Runs pods until enough of them have succeeded (C-101…C-121, T-CTRL-24…T-CTRL-29).
//!
//!     job, pods ──▶ plan::decide ──▶ creates, deletes ──▶ status ──▶ finalizers ──▶ status
//!
//! Every finished pod is counted exactly once, even after a crash: see `counting.rs`. `plan.rs` decides one reconcile,
//! `policy.rs` evaluates failure and success policies, `pods.rs` creates pods, `orphans.rs` removes the finalizer of
//! pods that no Job will count. Not here: the deletion of finished Jobs (`finished_jobs.rs`).

mod backoff;
mod counting;
mod indexes;
mod orphans;
mod plan;
mod pods;
mod policy;

use crate::start::Cluster;
use crate::workload::{
    self, OWNERS_BY_ORPHANS, PendingWrites, PodControl, RETRY_DELAY, claim, is_outdated, name,
    namespace, orphan_index_key, owned_and_orphans, owner_keys, selector, some_count, uid,
};
use backoff::Records;
use client::{CONCURRENT_MAX, Cache, Next, ObjectKey, Queue, Recorder, reference, run_controller};
use futures::future::join_all;
use k8s_openapi::api::batch::v1::{Job, JobStatus};
use k8s_openapi::api::core::v1::{Namespace, Pod};
pub(crate) use plan::finished_condition;
use plan::{Finish, Plan};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const COMPONENT: &str = "job-controller";
const WORKERS: usize = 5;

/// Delay that merges the changes of many pods into one reconcile. Upstream: `SyncJobBatchPeriod`.
const BATCH: Duration = Duration::from_secs(1);

/// The wait between tries after an error (C-121).
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(60);

/// Jobs that name another manager are ignored (C-108).
const MANAGED_BY: &str = "kubernetes.io/job-controller";

struct Controller<'a> {
    cluster: &'a Cluster,
    jobs: Cache<Job>,
    namespaces: Cache<Namespace>,
    pod_control: PodControl,
    job_writes: PendingWrites<Job>,
    records: Records,
}

/// The cache that [`run`] needs; other controllers share it.
pub(crate) fn jobs(client: &client::Client) -> Cache<Job> {
    let places = |job: &Job| vec![orphan_index_key(namespace(job), &selector_of(job))];
    Cache::builder(client).index(OWNERS_BY_ORPHANS, places).start()
}

pub(crate) async fn run(cluster: &Cluster, jobs: Cache<Job>, namespaces: Cache<Namespace>) {
    let queue = Queue::with_backoff(RETRY_FIRST, RETRY_MAX);
    let delayed = Queue::new();
    feed(cluster, &jobs, &queue, &delayed);
    // In a terminating namespace failed pods no longer wait for a replacement of their index.
    let there = jobs.clone();
    namespaces.feed(&delayed, move |namespace| match namespace.metadata.deletion_timestamp {
        Some(_) => there
            .in_namespace(name(namespace))
            .iter()
            .map(|job| ObjectKey::of(job.as_ref()))
            .collect(),
        None => Vec::new(),
    });
    jobs.synced().await;
    namespaces.synced().await;
    cluster.pods.synced().await;
    let controller = Controller {
        cluster,
        pod_control: PodControl {
            client: cluster.client.clone(),
            recorder: Recorder::new(&cluster.client, COMPONENT, ""),
            writes: PendingWrites::new(&cluster.pods),
        },
        job_writes: PendingWrites::new(&jobs),
        records: Records::default(),
        jobs: jobs.clone(),
        namespaces,
    };
    tokio::join!(
        run_controller(COMPONENT, &queue, WORKERS, |key| controller.reconcile(key)),
        delay(&delayed, &queue),
        orphans::run(cluster, &jobs),
    );
}

/// UID and generation of a Job.
type Generation = (Option<String>, Option<i64>);

/// New Jobs and changed specs are queued at once, everything else after a delay (C-110).
fn feed(
    cluster: &Cluster,
    jobs: &Cache<Job>,
    queue: &Queue<ObjectKey>,
    delayed: &Queue<ObjectKey>,
) {
    let known: Mutex<BTreeMap<ObjectKey, Generation>> = Mutex::default();
    let there = jobs.clone();
    jobs.feed(queue, move |job| {
        let key = ObjectKey::of(job);
        let now = there.get(&key).map(|job| {
            let meta = &job.metadata;
            (meta.uid.clone(), meta.generation)
        });
        let mut known = known.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let before = match &now {
            Some(now) => known.insert(key.clone(), now.clone()),
            None => known.remove(&key),
        };
        if before == now { Vec::new() } else { vec![key] }
    });
    jobs.feed_keys(delayed);
    let owners = jobs.clone();
    cluster.pods.feed(delayed, move |pod| owner_keys(&owners, pod));
}

async fn delay(delayed: &Queue<ObjectKey>, queue: &Queue<ObjectKey>) {
    while let Some(key) = delayed.get().await {
        delayed.done(&key);
        queue.add_after(key, BATCH);
    }
}

fn selector_of(job: &Job) -> api::selector::LabelSelector {
    let selects = job.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    selects.map_or_else(nothing, selector)
}

fn nothing() -> api::selector::LabelSelector {
    let null = serde_json::Value::Null;
    api::selector::LabelSelector::from_object(&null).unwrap_or_default()
}

pub(crate) fn is_ours(job: &Job) -> bool {
    let manager = job.spec.as_ref().and_then(|spec| spec.managed_by.as_deref());
    manager.is_none_or(|manager| manager == MANAGED_BY)
}

impl Controller<'_> {
    async fn reconcile(&self, key: ObjectKey) -> client::Result<Next> {
        if !self.pod_control.writes.are_cached(&key).await
            || !self.job_writes.are_cached(&key).await
        {
            return Ok(Next::After(RETRY_DELAY));
        }
        let Some(job) = self.jobs.get(&key) else {
            self.records.forget(&key);
            return Ok(Next::Change); // Deleted. Its pods lose their finalizer and are garbage collected.
        };
        if !is_ours(&job) {
            return Ok(Next::Change);
        }
        if plan::is_finished(&job) {
            self.records.forget(&key);
            return Ok(Next::Change);
        }
        match self.sync(&job).await {
            Err(error) if is_outdated(&error) => Ok(Next::After(RETRY_DELAY)),
            result => result,
        }
    }

    async fn sync(&self, job: &Arc<Job>) -> client::Result<Next> {
        let pods = self.claimed(job).await?;
        let record = self.records.of(job);

        let Plan { remove, delete, create, mut status, release, finish, more, event, next, record } =
            plan::decide(job, &pods, &record, self.namespace_is_terminating(job), clock::now());

        let mut failed = self.remove(job, remove).await;
        failed = failed.or(self.pod_control.delete(job.as_ref(), delete).await);
        let (created, error) = self.pod_control.create(job.as_ref(), create).await;
        failed = failed.or(error);
        status.active = some_count(status.active.unwrap_or(0) + workload::count(created));

        let job = self.report(job.clone(), status).await?;
        if let Some((reason, message)) = event {
            self.pod_control.recorder.normal(&reference(job.as_ref()), reason, message);
        }
        self.records.remember(&job, record);
        let released = self.release(&job, release).await?;
        let finish = finish.filter(|_| !more && failed.is_none());
        self.settle(job, &pods, &released, finish).await?;
        match failed {
            Some(error) => Err(error),
            None if more => Ok(Next::After(Duration::ZERO)),
            None => Ok(next.into()),
        }
    }

    fn namespace_is_terminating(&self, job: &Job) -> bool {
        let namespace = self.namespaces.get(&ObjectKey::cluster(namespace(job)));
        namespace.is_some_and(|namespace| namespace.metadata.deletion_timestamp.is_some())
    }

    async fn claimed(&self, job: &Arc<Job>) -> client::Result<Vec<Arc<Pod>>> {
        let selector = selector_of(job);
        let pods = &self.cluster.pods;
        let candidates = owned_and_orphans(pods, job.as_ref(), &selector);
        let (client, writes) = (&self.cluster.client, &self.pod_control.writes);
        claim(client, writes, job.as_ref(), &selector, Some(pods::TRACKING), candidates).await
    }

    /// Deletes pods without counting them: first the finalizer, then the pod.
    async fn remove(&self, job: &Arc<Job>, pods: Vec<Arc<Pod>>) -> Option<client::Error> {
        if let Err(error) = self.release(job, pods.clone()).await {
            return Some(error);
        }
        self.pod_control.delete(job.as_ref(), pods).await
    }

    /// Removes the finalizer from these pods. Returns the UIDs of those that had it.
    async fn release(
        &self,
        job: &Arc<Job>,
        pods: Vec<Arc<Pod>>,
    ) -> client::Result<BTreeSet<String>> {
        let key = ObjectKey::of(job.as_ref());
        let mut released = BTreeSet::new();
        let pods: Vec<Arc<Pod>> = pods.into_iter().filter(|pod| pods::has_finalizer(pod)).collect();
        for batch in pods.chunks(CONCURRENT_MAX) {
            let client = &self.cluster.client;
            let answers =
                join_all(batch.iter().map(|pod| orphans::remove_finalizer(client, pod))).await;
            for (pod, answer) in batch.iter().zip(answers) {
                if let Some(pod) = answer? {
                    self.pod_control.writes.wrote(&key, &pod);
                }
                released.insert(uid(pod.as_ref()).to_owned());
            }
        }
        Ok(released)
    }

    /// Writes the status if it differs. Returns the Job as it is then.
    async fn report(&self, job: Arc<Job>, status: JobStatus) -> client::Result<Arc<Job>> {
        if job.status.as_ref() == Some(&status) {
            return Ok(job);
        }
        let mut after = job.as_ref().clone();
        after.status = Some(status);
        let written = self.cluster.client.replace_status(&after).await?;
        self.job_writes.wrote(&ObjectKey::of(job.as_ref()), &written);
        Ok(Arc::new(written))
    }

    /// After finalizers were removed: increases the counters, and finishes the Job if all pods are counted.
    async fn settle(
        &self,
        job: Arc<Job>,
        pods: &[Arc<Pod>],
        released: &BTreeSet<String>,
        finish: Option<Finish>,
    ) -> client::Result<()> {
        let mut status = job.status.clone().unwrap_or_default();
        let left =
            |pod: &&Arc<Pod>| pods::has_finalizer(pod) && !released.contains(uid(pod.as_ref()));
        let left: BTreeSet<&str> = pods.iter().filter(left).map(|pod| uid(pod.as_ref())).collect();
        counting::settle(&mut status, |uid| left.contains(uid));
        let ended = finish.filter(|finish| counting::end(&mut status, finish, clock::now()));
        let job = self.report(job, status).await?;
        if let Some(finish) = ended {
            self.record_finish(&job, &finish);
            self.records.forget(&ObjectKey::of(job.as_ref()));
        }
        Ok(())
    }

    fn record_finish(&self, job: &Arc<Job>, finish: &Finish) {
        let on = reference(job.as_ref());
        if !finish.succeeded {
            self.pod_control.recorder.warning(&on, &finish.reason, finish.message.clone());
            return;
        }
        let completions = job.spec.as_ref().and_then(|spec| spec.completions);
        let succeeded = job.status.as_ref().and_then(|status| status.succeeded);
        if completions.is_some_and(|completions| succeeded > Some(completions)) {
            let message = "Too many succeeded pods running after completion count reached";
            self.pod_control.recorder.warning(&on, "TooManySucceededPods", message);
        }
        self.pod_control.recorder.normal(&on, "Completed", "Job completed");
    }
}
