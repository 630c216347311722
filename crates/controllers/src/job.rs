//! Runs pods until enough of them have succeeded (C-101…C-121, T-CTRL-24…T-CTRL-29).
//!
//!     job, pods ──▶ plan::decide ──▶ creates, deletes ──▶ status ──▶ finalizers ──▶ status
//!
//! Every finished pod is counted once, whatever happens in between: see `counting.rs`. `plan.rs`
//! decides a look, `policy.rs` what failures and successes mean, `pods.rs` makes pods,
//! `orphans.rs` frees those that no Job will count. Not here: the end of finished Jobs by age.

mod backoff;
mod counting;
mod indexes;
mod orphans;
mod plan;
mod pods;
mod policy;

use crate::start::Cluster;
use crate::workload::{
    self, PodControl, SELECTS, Writes, claim, is_outdated, name, namespace,
    orphans as candidates_of, owner_keys, selector, selects, some_count, uid,
};
use backoff::Records;
use client::{CONCURRENT_MAX, Cache, Next, ObjectKey, Queue, Recorder, reference, run_controller};
use futures::future::join_all;
use k8s_openapi::api::batch::v1::{Job, JobStatus};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use plan::{Finish, Plan};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const COMPONENT: &str = "job-controller";
const WORKERS: usize = 5;

/// Pods finish in crowds: what they cause is done together. Upstream: `SyncJobBatchPeriod`.
const BATCH: Duration = Duration::from_secs(1);

/// Between tries after an error (C-121).
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(60);

/// When to look again if the cache does not show what we did.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Whoever else manages a Job, we do not (C-108).
const MANAGED_BY: &str = "kubernetes.io/job-controller";

struct Controller<'a> {
    cluster: &'a Cluster,
    jobs: Cache<Job>,
    namespaces: Cache<Namespace>,
    hands: PodControl,
    job_writes: Writes<Job>,
    records: Records,
}

/// The cache that [`run`] wants; others read it too.
pub(crate) fn jobs(client: &client::Client) -> Cache<Job> {
    let places = |job: &Job| vec![selects(namespace(job), &selector_of(job))];
    Cache::builder(client).index(SELECTS, places).start()
}

pub(crate) async fn run(cluster: &Cluster, jobs: Cache<Job>, namespaces: Cache<Namespace>) {
    let queue = Queue::with_backoff(RETRY_FIRST, RETRY_MAX);
    let late = Queue::new();
    feed(cluster, &jobs, &queue, &late);
    // Pods that wait for others of their index need not any more.
    let there = jobs.clone();
    namespaces.feed(&late, move |namespace| match namespace.metadata.deletion_timestamp {
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
        hands: PodControl {
            client: cluster.client.clone(),
            recorder: Recorder::new(&cluster.client, COMPONENT, ""),
            writes: Writes::new(&cluster.pods),
        },
        job_writes: Writes::new(&jobs),
        records: Records::default(),
        jobs: jobs.clone(),
        namespaces,
    };
    tokio::join!(
        run_controller(COMPONENT, &queue, WORKERS, |key| controller.reconcile(key)),
        delay(&late, &queue),
        orphans::run(cluster, &jobs),
    );
}

/// Which Job of a name, and which of its specs.
type Edition = (Option<String>, Option<i64>);

/// New Jobs and changed specs are looked at at once, everything else in batches (C-110).
fn feed(cluster: &Cluster, jobs: &Cache<Job>, queue: &Queue<ObjectKey>, late: &Queue<ObjectKey>) {
    let known: Mutex<BTreeMap<ObjectKey, Edition>> = Mutex::default();
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
    jobs.feed_keys(late);
    let owners = jobs.clone();
    cluster.pods.feed(late, move |pod| owner_keys(&owners, pod));
}

async fn delay(late: &Queue<ObjectKey>, queue: &Queue<ObjectKey>) {
    while let Some(key) = late.get().await {
        late.done(&key);
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
        if !self.hands.writes.seen(&key).await || !self.job_writes.seen(&key).await {
            return Ok(Next::After(LOOK_AGAIN));
        }
        let Some(job) = self.jobs.get(&key) else {
            self.records.forget(&key);
            return Ok(Next::Change); // Deleted. Its pods are freed, and the collector takes them.
        };
        if !is_ours(&job) {
            return Ok(Next::Change);
        }
        if plan::is_finished(&job) {
            self.records.forget(&key);
            return Ok(Next::Change);
        }
        match self.look(&job).await {
            Err(error) if is_outdated(&error) => Ok(Next::After(LOOK_AGAIN)),
            looked => looked,
        }
    }

    async fn look(&self, job: &Arc<Job>) -> client::Result<Next> {
        let pods = self.claimed(job).await?;
        let record = self.records.of(job);

        let Plan { remove, delete, create, mut status, release, finish, more, said, next, record } =
            plan::decide(job, &pods, &record, self.namespace_goes(job), clock::now());

        let mut failed = self.remove(job, remove).await;
        failed = failed.or(self.hands.delete(job.as_ref(), delete).await);
        let (made, refused) = self.hands.create(job.as_ref(), create).await;
        failed = failed.or(refused);
        status.active = some_count(status.active.unwrap_or(0) + workload::count(made));

        let job = self.report(job.clone(), status).await?;
        if let Some((reason, message)) = said {
            self.hands.recorder.normal(&reference(job.as_ref()), reason, message);
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

    fn namespace_goes(&self, job: &Job) -> bool {
        let namespace = self.namespaces.get(&ObjectKey::cluster(namespace(job)));
        namespace.is_some_and(|namespace| namespace.metadata.deletion_timestamp.is_some())
    }

    async fn claimed(&self, job: &Arc<Job>) -> client::Result<Vec<Arc<Pod>>> {
        let selector = selector_of(job);
        let pods = &self.cluster.pods;
        let mut candidates = pods.controlled_by_uid(uid(job.as_ref()));
        candidates.extend(candidates_of(pods, namespace(job.as_ref()), &selector));
        let (client, writes) = (&self.cluster.client, &self.hands.writes);
        claim(client, writes, job.as_ref(), &selector, Some(pods::TRACKING), candidates).await
    }

    /// Uncounted: first the finalizer, then the pod.
    async fn remove(&self, job: &Arc<Job>, pods: Vec<Arc<Pod>>) -> Option<client::Error> {
        if let Err(error) = self.release(job, pods.clone()).await {
            return Some(error);
        }
        self.hands.delete(job.as_ref(), pods).await
    }

    /// Takes the finalizer from these; the uids of those that had it.
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
            let answers = join_all(batch.iter().map(|pod| orphans::free(client, pod))).await;
            for (pod, answer) in batch.iter().zip(answers) {
                if let Some(pod) = answer? {
                    self.hands.writes.wrote(&key, &pod);
                }
                released.insert(uid(pod.as_ref()).to_owned());
            }
        }
        Ok(released)
    }

    /// Writes the status if it differs; the Job as it is then.
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

    /// After finalizers are gone: counters rise, and perhaps the Job has ended.
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
            self.tell_end(&job, &finish);
            self.records.forget(&ObjectKey::of(job.as_ref()));
        }
        Ok(())
    }

    fn tell_end(&self, job: &Arc<Job>, finish: &Finish) {
        let on = reference(job.as_ref());
        if !finish.well {
            self.hands.recorder.warning(&on, &finish.reason, finish.message.clone());
            return;
        }
        let wanted = job.spec.as_ref().and_then(|spec| spec.completions);
        let done = job.status.as_ref().and_then(|status| status.succeeded);
        if wanted.is_some_and(|wanted| done > Some(wanted)) {
            let message = "Too many succeeded pods running after completion count reached";
            self.hands.recorder.warning(&on, "TooManySucceededPods", message);
        }
        self.hands.recorder.normal(&on, "Completed", "Job completed");
    }
}
