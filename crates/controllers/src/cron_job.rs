//! Creates Jobs on a schedule (C-122…C-130).
//!
//!     cron job, its jobs ──▶ plan::decide ──▶ delete old jobs, create one ──▶ status
//!
//! `times.rs` computes due times in a time zone; `plan.rs` decides one reconcile. The name of a Job contains its
//! scheduled time, so that no time can be started twice.

mod plan;
mod times;

use crate::start::Cluster;
use crate::workload::{
    PendingWrites, RETRY_DELAY, error_message, is_being_deleted, is_controlled_by, is_outdated,
    name, owner_keys, uid,
};
use client::{
    Cache, DeleteOptions, Next, ObjectKey, Propagation, Queue, Recorder, reference, run_controller,
};
use k8s_openapi::api::batch::v1::{CronJob, CronJobStatus, Job};
use k8s_openapi::api::core::v1::ObjectReference;
use plan::{Plan, PlannedEvent};
use std::sync::Arc;
use times::Zones;

const COMPONENT: &str = "cronjob-controller";
const WORKERS: usize = 5;

struct Controller<'a> {
    cluster: &'a Cluster,
    crons: Cache<CronJob>,
    jobs: Cache<Job>,
    recorder: Recorder,
    job_writes: PendingWrites<Job>,
    cron_writes: PendingWrites<CronJob>,
    zones: Zones,
}

pub(crate) async fn run(cluster: &Cluster, jobs: Cache<Job>) {
    let queue = Queue::new();
    let crons = Cache::start(&cluster.client);
    crons.feed_keys(&queue);
    let owners = crons.clone();
    // A CronJob has no selector, so it adopts no orphans.
    jobs.feed(&queue, move |job| owner_keys(&owners, job));
    crons.synced().await;
    jobs.synced().await;
    let controller = Controller {
        cluster,
        recorder: Recorder::new(&cluster.client, COMPONENT, ""),
        job_writes: PendingWrites::new(&jobs),
        cron_writes: PendingWrites::new(&crons),
        zones: Zones::default(),
        crons,
        jobs,
    };
    run_controller(COMPONENT, &queue, WORKERS, |key| controller.reconcile(key)).await;
}

impl Controller<'_> {
    async fn reconcile(&self, key: ObjectKey) -> client::Result<Next> {
        if !self.job_writes.are_cached(&key).await || !self.cron_writes.are_cached(&key).await {
            return Ok(Next::After(RETRY_DELAY));
        }
        let Some(cron) = self.crons.get(&key).filter(|cron| !is_being_deleted(cron.as_ref()))
        else {
            return Ok(Next::Change); // Deleted. The garbage collector deletes its Jobs.
        };
        match self.sync(&cron).await {
            Err(error) if is_outdated(&error) => Ok(Next::After(RETRY_DELAY)),
            result => result,
        }
    }

    async fn sync(&self, cron: &Arc<CronJob>) -> client::Result<Next> {
        let jobs = self.jobs.controlled_by(cron.as_ref());
        let zone = cron.spec.time_zone.as_deref();

        let Plan { missing, old, replace, start, events, mut status, next } =
            plan::decide(cron, &jobs, &self.zones.get(zone), clock::now());

        events.into_iter().for_each(|event| self.record(cron, event));
        for active in missing {
            self.check_missing(cron, &mut status, active).await?;
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

    /// Checks whether a Job that is in the status but not in the cache is gone (C-127).
    async fn check_missing(
        &self,
        cron: &Arc<CronJob>,
        status: &mut CronJobStatus,
        active: ObjectReference,
    ) -> client::Result<()> {
        let named = active.name.as_deref().unwrap_or_default();
        let key = ObjectKey::new(crate::workload::namespace(cron.as_ref()), named);
        let found = self.cluster.client.find::<Job>(&key).await?;
        if found.is_none_or(|job| job.metadata.uid != active.uid) {
            plan::remove_active(status, active.uid.as_deref().unwrap_or_default());
            let message = format!("Active job went missing: {named}");
            self.record(cron, PlannedEvent::normal("MissingJob", message));
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
                let message = format!("Deleted job: {}", error_message(&error));
                self.record(cron, PlannedEvent::warning("FailedDelete", message));
                return Err(error);
            }
            _ => self.job_writes.deleted(&ObjectKey::of(cron.as_ref()), [job.clone()]),
        }
        plan::remove_active(status, uid(job.as_ref()));
        self.record(cron, PlannedEvent::normal("SuccessfulDelete", format!("Deleted job {named}")));
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
                self.record(cron, PlannedEvent::normal("SuccessfulCreate", message));
                job
            }
            // We created it before and only the status write was lost; or it belongs to another owner and is left
            // alone (C-125).
            Err(error) if error.is_already_exists() => {
                let job: Job = self.cluster.client.get(&ObjectKey::of(&start.job)).await?;
                if !is_controlled_by(&job, cron.as_ref()) {
                    return Ok(());
                }
                job
            }
            Err(error) if error.is_namespace_terminating() => return Ok(()),
            Err(error) => {
                let message = format!("Error creating job: {}", error_message(&error));
                self.record(cron, PlannedEvent::warning("FailedCreate", message));
                return Err(error);
            }
        };
        plan::job_started(status, &job, start.at);
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

    fn record(&self, cron: &Arc<CronJob>, event: PlannedEvent) {
        let on = reference(cron.as_ref());
        match event.is_warning {
            true => self.recorder.warning(&on, event.reason, event.message),
            false => self.recorder.normal(&on, event.reason, event.message),
        }
    }
}
