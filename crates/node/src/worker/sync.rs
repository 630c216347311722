//! One pass over a pod that should run (N-31): observe it, publish its status, and do what `lifecycle`
//! decides.

use super::retry_delay::Attempt;
use super::{Cause, RETRY, Worker, jittered};
use crate::static_pods::{is_static, reconcile_mirror};
use jiff::Timestamp;
use lifecycle::bringup::{self, EndAll, Plan};
use lifecycle::observed::{Observed, StartFailure};
use lifecycle::status;
use std::sync::Arc;
use std::time::Duration;

/// The next pass of a pod to which nothing happens (N-33).
const RESYNC: Duration = Duration::from_secs(60);
/// The next pass when the network is not ready (N-19, N-33).
const NETWORK_RETRY: Duration = Duration::from_secs(1);
/// A crash back-off is checked again after at most this time (N-33).
const BACKOFF_MAX: Duration = Duration::from_secs(60);

/// When the next pass follows.
pub(super) enum NextPass {
    Now,
    After(Duration),
    /// There is none: the pod has to terminate.
    Terminate(Cause),
}

impl Worker {
    pub(super) async fn sync(&mut self) -> Result<NextPass, String> {
        let mut observed = self.observe().await?;
        let now = clock::now();
        if let Some(verdict) = status::deadline_exceeded(&self.pod, &self.status.latest, now) {
            self.deps.recorder.normal(&self.reference(), &verdict.reason, verdict.message.clone());
            self.status.verdict = Some(verdict);
            return Ok(NextPass::Terminate(Cause::Killed));
        }
        let plan = bringup::plan(&self.pod, &observed, &self.attempts.backoffs, now);
        self.record_crash_backoffs(&plan, &mut observed);
        let terminal = self.publish(&observed);
        if plan.is_done() || terminal {
            return Ok(NextPass::Terminate(Cause::Completed));
        }
        self.deps.objects.register(&self.pod);
        self.reconcile_mirror().await;
        let pause = self.pause(&plan);
        let delay = self.remaining_delay(&plan);
        let attempt = Attempt::new(&plan, &self.pod);
        match self.perform_plan(plan, &observed, delay.is_some()).await {
            Ok(Performed::Something) => Ok(NextPass::Now),
            Ok(Performed::Nothing) => {
                Ok(NextPass::After(delay.map_or(pause, |left| pause.min(left))))
            }
            Ok(Performed::NetworkNotReady) => Ok(NextPass::After(jittered(NETWORK_RETRY))),
            Ok(Performed::Failed) => {
                let pause = pause.min(jittered(RETRY));
                self.delay(attempt, pause);
                Ok(NextPass::After(pause))
            }
            Err(error) => {
                self.delay(attempt, RETRY);
                Err(error)
            }
        }
    }

    /// A static pod has a copy in the API (N-25).
    async fn reconcile_mirror(&mut self) {
        if !is_static(&self.pod) {
            return;
        }
        let mirror = self.inbox.current().mirror.clone();
        let node = self.deps.node();
        let (client, pod) = (&self.deps.client, &self.pod);
        match reconcile_mirror(client, pod, mirror.as_deref(), node.as_deref()).await {
            Ok(Some(made)) => self.status.report.observed(Some(Arc::new(made))),
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(pod = %self.title(), %error, "creating the mirror pod failed");
            }
        }
    }

    /// Containers in crash back-off show CrashLoopBackOff, with one event per back-off (T-NODE-66).
    fn record_crash_backoffs(&mut self, plan: &Plan, observed: &mut Observed) {
        for waiting in &plan.waiting {
            let failure = StartFailure {
                reason: "CrashLoopBackOff".into(),
                message: waiting.message.clone(),
            };
            if self.attempts.failures.get(&waiting.name) != Some(&failure) {
                let on = client::field_reference(
                    &self.reference(),
                    &waiting.kind.field_path(&waiting.name),
                );
                self.deps.recorder.warning(&on, "BackOff", waiting.event.clone());
            }
            self.attempts.failures.insert(waiting.name.clone(), failure.clone());
            observed.failures.insert(waiting.name.clone(), failure);
        }
    }

    /// Time until something is due even if nothing happens.
    fn pause(&self, plan: &Plan) -> Duration {
        let backoff = plan.next_due().map(|at| until(at).min(BACKOFF_MAX));
        let deadline = status::deadline(&self.pod, &self.status.latest).map(until);
        let resync = jittered(RESYNC);
        [backoff, deadline].into_iter().flatten().fold(resync, Duration::min)
    }

    /// `delayed`: nothing is started in this pass (see `retry_delay`).
    async fn perform_plan(
        &mut self,
        plan: Plan,
        observed: &Observed,
        delayed: bool,
    ) -> Result<Performed, String> {
        if !plan.reset.is_empty() {
            return self.restart_all_containers(&plan).await;
        }
        if plan.end_all == Some(EndAll::Sandbox) && !delayed {
            self.terminate_in_old_sandbox(observed).await?;
        }
        let mut changed = plan.end_all.is_some() && !delayed;
        for kill in &plan.kill {
            changed = true;
            if self.terminate_container(kill, observed).await.is_err() {
                return Ok(Performed::Something);
            }
        }
        if self.resize_is_due() {
            let observed = self.observe().await?;
            changed |= self.resize(&observed).await?;
        }
        if plan.sandbox.is_none() && plan.start.is_empty() {
            self.refresh_volumes().await;
            return Ok(if changed { Performed::Something } else { Performed::Nothing });
        }
        if delayed {
            return Ok(if changed { Performed::Something } else { Performed::Nothing });
        }
        let Some(volumes) = self.mount_volumes().await? else { return Ok(Performed::Something) };
        let sandbox = match &plan.sandbox {
            Some(new) => match self.create_sandbox(new).await? {
                Some(made) => made,
                None => return Ok(Performed::NetworkNotReady),
            },
            None => match observed.ready_sandbox() {
                Some(sandbox) => sandbox.clone(),
                None => return Ok(Performed::Something),
            },
        };
        self.start_all(&plan, sandbox, volumes, observed).await
    }

    /// RestartAllContainers: all containers are terminated without hooks and removed, then the next pass
    /// starts them again (T-NODE-68).
    async fn restart_all_containers(&mut self, plan: &Plan) -> Result<Performed, String> {
        let running = plan.reset.iter().filter(|container| container.running);
        let running = running.map(|container| (container.id.as_str(), container.name.as_str()));
        if self.terminate_for_restart(running.collect()).await.is_err() {
            return Ok(Performed::Something);
        }
        for container in &plan.reset {
            let removed = self.deps.runtime.remove_container(&container.id).await;
            removed.map_err(|error| error.to_string())?;
            self.forget_container(&container.id);
        }
        Ok(Performed::Something)
    }
}

pub(super) enum Performed {
    Something,
    Nothing,
    NetworkNotReady,
    /// An attempt failed; an event or the status says why.
    Failed,
}

fn until(at: Timestamp) -> Duration {
    at.duration_since(clock::now()).try_into().unwrap_or_default()
}
