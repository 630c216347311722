//! Starts Jobs by the clock (C-122…C-130).
//!
//!     cron job, its jobs ──▶ plan::decide ──▶ old jobs deleted, one started ──▶ status
//!
//! `times.rs` says when something was or will be due, in which zone; `plan.rs` decides a look. A Job's
//! name holds its scheduled time, so that no time can be started twice.

mod plan;
mod times;

use crate::start::Cluster;
use crate::workload::{
    Writes, is_controlled_by, is_deleted, is_outdated, name, owner_keys, uid, why,
};
use client::{
    Cache, DeleteOptions, Next, ObjectKey, Propagation, Queue, Recorder, reference, run_controller,
};
use k8s_openapi::api::batch::v1::{CronJob, CronJobStatus, Job};
use k8s_openapi::api::core::v1::ObjectReference;
use plan::{Plan, Said};
use std::sync::Arc;
use std::time::Duration;
use times::Zones;

const COMPONENT: &str = "cronjob-controller";
const WORKERS: usize = 5;

/// When to look again if the cache does not show what we did.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

struct Controller<'a> {
    cluster: &'a Cluster,
    crons: Cache<CronJob>,
    jobs: Cache<Job>,
    recorder: Recorder,
    job_writes: Writes<Job>,
    cron_writes: Writes<CronJob>,
    zones: Zones,
}

pub(crate) async fn run(cluster: &Cluster, jobs: Cache<Job>) {
    let queue = Queue::new();
    let crons = Cache::start(&cluster.client);
    crons.feed_keys(&queue);
    let owners = crons.clone();
    // Orphans are nobody's: a CronJob has no selector.
    jobs.feed(&queue, move |job| owner_keys(&owners, job));
    crons.synced().await;
    jobs.synced().await;
    let controller = Controller {
        cluster,
        recorder: Recorder::new(&cluster.client, COMPONENT, ""),
        job_writes: Writes::new(&jobs),
        cron_writes: Writes::new(&crons),
        zones: Zones::default(),
        crons,
        jobs,
    };
    run_controller(COMPONENT, &queue, WORKERS, |key| controller.reconcile(key)).await;
}

impl Controller<'_> {
    async fn reconcile(&self, key: ObjectKey) -> client::Result<Next> {
        if !self.job_writes.seen(&key).await || !self.cron_writes.seen(&key).await {
            return Ok(Next::After(LOOK_AGAIN));
        }
        let Some(cron) = self.crons.get(&key).filter(|cron| !is_deleted(cron.as_ref())) else {
            return Ok(Next::Change); // Going or gone. The garbage collector takes its Jobs.
        };
        match self.look(&cron).await {
            Err(error) if is_outdated(&error) => Ok(Next::After(LOOK_AGAIN)),
            looked => looked,
        }
    }

    async fn look(&self, cron: &Arc<CronJob>) -> client::Result<Next> {
        let jobs = self.jobs.controlled_by(cron.as_ref());
        let zone = cron.spec.time_zone.as_deref();

        let Plan { doubtful, old, replace, start, said, mut status, next } =
            plan::decide(cron, &jobs, &self.zones.get(zone), clock::now());

        said.into_iter().for_each(|said| self.tell(cron, said));
        for active in doubtful {
            self.check(cron, &mut status, active).await?;
        }
        for job in old {
            self.delete(cron, &mut status, &job).await?;
        }
        for job in replace {
            self.delete(cron, &mut status, &job).await?;
        }
        let started = match start {
            Some(start) => self.start(cron, &mut status, start).await,
            None => Ok(()),
        };
        self.report(cron, status).await?;
        started?;
        Ok(next.into())
    }

    /// A Job that the status has and the cache has not: it may be gone (C-127).
    async fn check(
        &self,
        cron: &Arc<CronJob>,
        status: &mut CronJobStatus,
        active: ObjectReference,
    ) -> client::Result<()> {
        let named = active.name.as_deref().unwrap_or_default();
        let key = ObjectKey::new(crate::workload::namespace(cron.as_ref()), named);
        let found = self.cluster.client.find::<Job>(&key).await?;
        if found.is_none_or(|job| job.metadata.uid != active.uid) {
            plan::forget(status, active.uid.as_deref().unwrap_or_default());
            let message = format!("Active job went missing: {named}");
            self.tell(cron, Said::normal("MissingJob", message));
        }
        Ok(())
    }

    async fn delete(
        &self,
        cron: &Arc<CronJob>,
        status: &mut CronJobStatus,
        job: &Arc<Job>,
    ) -> client::Result<()> {
        let options = DeleteOptions::only(job.as_ref()).propagation(Propagation::Background);
        let named = name(job.as_ref());
        match self.cluster.client.delete::<Job>(&ObjectKey::of(job.as_ref()), &options).await {
            Err(error) if !is_outdated(&error) => {
                let message = format!("Deleted job: {}", why(&error));
                self.tell(cron, Said::warning("FailedDelete", message));
                return Err(error);
            }
            _ => self.job_writes.deleted(&ObjectKey::of(cron.as_ref()), [job.clone()]),
        }
        plan::forget(status, uid(job.as_ref()));
        self.tell(cron, Said::normal("SuccessfulDelete", format!("Deleted job {named}")));
        Ok(())
    }

    async fn start(
        &self,
        cron: &Arc<CronJob>,
        status: &mut CronJobStatus,
        start: plan::Start,
    ) -> client::Result<()> {
        let job = match self.cluster.client.create(&start.job).await {
            Ok(job) => {
                self.job_writes.wrote(&ObjectKey::of(cron.as_ref()), &job);
                let message = format!("Created job {}", name(&job));
                self.tell(cron, Said::normal("SuccessfulCreate", message));
                job
            }
            // Ours, and only the status was lost; or another's, then it is not our business (C-125).
            Err(error) if error.is_already_exists() => {
                let job: Job = self.cluster.client.get(&ObjectKey::of(&start.job)).await?;
                if !is_controlled_by(&job, cron.as_ref()) {
                    return Ok(());
                }
                job
            }
            Err(error) if error.is_namespace_terminating() => return Ok(()),
            Err(error) => {
                let message = format!("Error creating job: {}", why(&error));
                self.tell(cron, Said::warning("FailedCreate", message));
                return Err(error);
            }
        };
        plan::began(status, &job, start.at);
        Ok(())
    }

    async fn report(&self, cron: &Arc<CronJob>, status: CronJobStatus) -> client::Result<()> {
        if cron.status.clone().unwrap_or_default() == status {
            return Ok(());
        }
        let mut after = cron.as_ref().clone();
        after.status = Some(status);
        let written = self.cluster.client.replace_status(&after).await?;
        self.cron_writes.wrote(&ObjectKey::of(cron.as_ref()), &written);
        Ok(())
    }

    fn tell(&self, cron: &Arc<CronJob>, said: Said) {
        let on = reference(cron.as_ref());
        match said.warns {
            true => self.recorder.warning(&on, said.reason, said.message),
            false => self.recorder.normal(&on, said.reason, said.message),
        }
    }
}
