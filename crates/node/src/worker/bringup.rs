//! One pass over a pod that shall run (N-31): look, tell, and do what `lifecycle` wants done.

use super::held::Attempt;
use super::{Cause, Next, RESYNC, RETRY, Worker, jittered, until};
use crate::static_pods::{is_static, reconcile_mirror};
use lifecycle::bringup::{self, EndAll, Plan};
use lifecycle::observed::{Observed, StartFailure};
use lifecycle::status;
use std::sync::Arc;
use std::time::Duration;

/// When the network is not ready (N-19, N-33).
const NETWORK_RETRY: Duration = Duration::from_secs(1);
/// A crash back-off is looked at again after at most this (N-33).
const BACKOFF_MAX: Duration = Duration::from_secs(60);

impl Worker {
    pub(super) async fn pass(&mut self) -> Result<Next, String> {
        let mut observed = self.observe().await?;
        let now = clock::now();
        if let Some(verdict) = status::deadline_exceeded(&self.pod, &self.status, now) {
            self.parts.recorder.normal(&self.reference(), &verdict.reason, verdict.message.clone());
            self.verdict = Some(verdict);
            return Ok(Next::End(Cause::Killed));
        }
        let plan = bringup::plan(&self.pod, &observed, &self.backoffs, now);
        self.note_waiting(&plan, &mut observed);
        let terminal = self.publish(&observed);
        if plan.is_done() || terminal {
            return Ok(Next::End(Cause::Completed));
        }
        self.parts.objects.register(&self.pod);
        self.keep_mirror().await;
        let pause = self.pause(&plan);
        let held = self.held(&plan);
        let attempt = Attempt::of(&plan, &self.pod);
        match self.perform(plan, &observed, held.is_some()).await {
            Ok(Performed::Something) => Ok(Next::Now),
            Ok(Performed::Nothing) => Ok(Next::After(held.map_or(pause, |left| pause.min(left)))),
            Ok(Performed::NetworkNotReady) => Ok(Next::After(jittered(NETWORK_RETRY))),
            Ok(Performed::Failed) => {
                let pause = pause.min(jittered(RETRY));
                self.hold(attempt, pause);
                Ok(Next::After(pause))
            }
            Err(why) => {
                self.hold(attempt, RETRY);
                Err(why)
            }
        }
    }

    /// A static pod has a copy in the API (N-25).
    async fn keep_mirror(&mut self) {
        if !is_static(&self.pod) {
            return;
        }
        let mirror = self.orders.borrow().mirror.clone();
        let node = self.parts.node();
        let (client, pod) = (&self.parts.client, &self.pod);
        match reconcile_mirror(client, pod, mirror.as_deref(), node.as_deref()).await {
            Ok(Some(made)) => self.report.observed(Some(Arc::new(made))),
            Ok(None) => {}
            Err(error) => tracing::warn!(pod = %self.title(), %error, "no mirror was made"),
        }
    }

    /// Containers in crash back-off wait, and say so (T-NODE-66).
    fn note_waiting(&mut self, plan: &Plan, observed: &mut Observed) {
        for waiting in &plan.waiting {
            let failure = StartFailure {
                reason: "CrashLoopBackOff".into(),
                message: waiting.message.clone(),
            };
            if self.failures.get(&waiting.name) != Some(&failure) {
                let on = client::part(&self.reference(), &waiting.kind.field_path(&waiting.name));
                self.parts.recorder.warning(&on, "BackOff", waiting.event.clone());
            }
            self.failures.insert(waiting.name.clone(), failure.clone());
            observed.failures.insert(waiting.name.clone(), failure);
        }
    }

    /// Until something is due although nothing happens.
    fn pause(&self, plan: &Plan) -> Duration {
        let backoff = plan.next_due().map(|at| until(at).min(BACKOFF_MAX));
        let deadline = status::deadline(&self.pod, &self.status).map(until);
        let resync = jittered(RESYNC);
        [backoff, deadline].into_iter().flatten().fold(resync, Duration::min)
    }

    /// `held`: nothing is started yet.
    async fn perform(
        &mut self,
        plan: Plan,
        observed: &Observed,
        held: bool,
    ) -> Result<Performed, String> {
        if !plan.reset.is_empty() {
            return self.reset(&plan).await;
        }
        if plan.end_all == Some(EndAll::Sandbox) && !held {
            self.end_sandboxes(observed).await?;
        }
        let mut changed = plan.end_all.is_some() && !held;
        for kill in &plan.kill {
            changed = true;
            if self.end_one(kill, observed).await.is_err() {
                return Ok(Performed::Something);
            }
        }
        if self.resize_is_due() {
            let observed = self.observe().await?;
            changed |= self.resize(&observed).await?;
        }
        if plan.sandbox.is_none() && plan.start.is_empty() {
            self.keep_volumes_fresh().await;
            return Ok(if changed { Performed::Something } else { Performed::Nothing });
        }
        if held {
            return Ok(if changed { Performed::Something } else { Performed::Nothing });
        }
        let Some(volumes) = self.volumes().await? else { return Ok(Performed::Something) };
        let sandbox = match &plan.sandbox {
            Some(new) => match self.make_sandbox(new).await? {
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

    /// T-NODE-68: everything is killed without hooks and forgotten, then starts over.
    async fn reset(&mut self, plan: &Plan) -> Result<Performed, String> {
        let running = plan.reset.iter().filter(|container| container.running);
        let running = running.map(|container| (container.id.as_str(), container.name.as_str()));
        if self.end_for_reset(running.collect()).await.is_err() {
            return Ok(Performed::Something);
        }
        for container in &plan.reset {
            let removed = self.parts.runtime.remove_container(&container.id).await;
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
    /// Something did not work; its reason is told.
    Failed,
}
