//! Carries one pod from bound to gone on this node.
//!
//!     desired state, exits, probe results ──▶ worker ──▶ lifecycle ──▶ what to do ──▶ runtime
//!                                               ▲                                      │
//!                                               └──────────── observed ◀───────────────┘
//!
//! One task per pod, one thing at a time, and one direction only: sync, terminate, release (T-NODE-1).
//! Read `sync` for a pod that runs and `termination` for one that terminates; both get their decisions
//! from `lifecycle`. Not here: what to do next (`lifecycle`), how a process is signalled (`runtime`).

mod inbox;
mod observe;
mod publish;
mod resize;
mod retry_delay;
mod sandbox;
mod start;
mod sync;
mod termination;
#[cfg(test)]
mod tests;
mod timeline_steps;

pub(crate) use inbox::{Handle, KillRequest, channel};
pub(crate) use observe::network_key;
pub(crate) use termination::{CLEANUP_RETRY_FIRST, CLEANUP_RETRY_MAX};

use crate::dependencies::Dependencies;
use client::reference;
use inbox::Inbox;
use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use lifecycle::observed::Observed;
use lifecycle::status::{self, Verdict, WorkerState};
use publish::PublishedStatus;
use std::sync::Arc;
use std::time::Duration;
use sync::NextPass;
use tokio::time::Instant;

/// A pass that failed is repeated after this time.
const RETRY: Duration = Duration::from_secs(10);
/// Duration of one pass, of the termination and of the clean-up after it.
const PASS_SECONDS: &str = "kubelet_pod_worker_duration_seconds";

pub(crate) struct Worker {
    deps: Arc<Dependencies>,
    pod: Arc<Pod>,
    uid: String,
    inbox: Inbox,
    status: PublishedStatus,
    /// Failed attempts to start something, and when they may be repeated.
    attempts: retry_delay::Attempts,
    observations: observe::Cache,
    steps: timeline_steps::TerminationSteps,
    /// The termination of some containers that was in progress when the whole pod had to terminate.
    interrupted: Option<termination::TerminationRun>,
}

/// Why a pod terminates on this node (T-NODE-2). The timeline shows these names.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Cause {
    /// It has a deletion timestamp.
    Deleted,
    /// It left its source.
    Gone,
    /// Its phase in the API is terminal.
    Finished,
    /// The node terminates it.
    Killed,
    /// Its containers have finished, or can never run.
    Completed,
}

impl Worker {
    pub(crate) fn new(deps: Arc<Dependencies>, inbox: Inbox) -> Worker {
        let pod = deps.allocations.with_granted(&inbox.current().pod);
        Worker {
            status: PublishedStatus::new(&deps, &pod),
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            deps,
            pod,
            inbox,
            attempts: retry_delay::Attempts::default(),
            observations: observe::Cache::default(),
            steps: timeline_steps::TerminationSteps::default(),
            interrupted: None,
        }
    }

    pub(crate) async fn run(mut self) {
        self.deps.pods.put(self.pod.clone());
        let known = self.status.known_since.elapsed();
        self.deps.metrics.observe("kubelet_pod_worker_start_duration_seconds", &[], known);
        let cause = self.sync_until_termination().await;
        // On the heap while it runs, like every pass, so that a pod that just runs needs little memory.
        Box::pin(self.terminate(&cause)).await;
        Box::pin(self.release()).await;
    }

    /// Refuses a pod that the node does not admit: says why, and waits for its object to go (N-27). If
    /// the pod does run, because an earlier agent admitted it, it is terminated like any other, and its
    /// phase becomes terminal only when nothing of it runs (T-INV-2).
    pub(crate) async fn reject(mut self, reason: &str, message: &str) {
        self.deps.recorder.warning(&self.reference(), reason, message);
        let labels = [("reason", reason)];
        self.deps.metrics.add("kubelet_admission_rejections_total", &labels, 1);
        let rejected = status::rejected(&self.pod, &self.facts(&[]), reason, message);
        if self.exists_in_runtime().await {
            self.status.verdict = Some(Verdict {
                reason: reason.to_owned(),
                message: rejected.message.unwrap_or_default(),
                disruption: false,
            });
            Box::pin(self.terminate(&Cause::Killed)).await;
        } else {
            self.status.state = WorkerState::Terminated;
            self.publish_status(rejected);
            self.status.report.written().await;
            self.give_up_capacity();
        }
        self.release().await;
    }

    async fn exists_in_runtime(&mut self) -> bool {
        loop {
            match self.list_sandboxes().await {
                Ok(sandboxes) => return !sandboxes.is_empty(),
                Err(error) => {
                    tracing::warn!(pod = %self.title(), error, "listing the pod's sandboxes failed");
                    self.inbox.wait(jittered(RETRY)).await;
                }
            }
        }
    }

    /// Runs passes until there is a reason to terminate.
    async fn sync_until_termination(&mut self) -> Cause {
        let mut operation = "create";
        loop {
            self.take_desired_state();
            if let Some(cause) = self.termination_cause() {
                return cause;
            }
            let began = Instant::now();
            let passed = Box::pin(self.sync()).await;
            self.observe_seconds(operation, began);
            operation = "sync";
            let next = match passed {
                Ok(next) => {
                    self.discard_saved_progress(&next);
                    next
                }
                Err(error) => {
                    tracing::info!(pod = %self.title(), error, "syncing the pod failed, will retry");
                    NextPass::After(jittered(RETRY))
                }
            };
            match next {
                NextPass::Now => tokio::task::yield_now().await,
                NextPass::After(pause) => self.inbox.wait(pause).await,
                NextPass::Terminate(cause) => return cause,
            }
        }
    }

    /// The pod keeps running. If an earlier agent had begun to terminate it, that was the agent's own decision
    /// and ended with it: its saved progress says nothing about a later termination (T-INV-5).
    fn discard_saved_progress(&self, next: &NextPass) {
        if let (Some(deadlines), NextPass::Now | NextPass::After(_)) = (&self.deps.deadlines, next)
        {
            deadlines.forget(&self.uid);
        }
    }

    fn take_desired_state(&mut self) {
        let desired = self.inbox.take();
        self.pod = self.deps.allocations.with_granted(&desired.pod);
        self.status.take_over(&desired, &self.pod);
    }

    fn termination_cause(&self) -> Option<Cause> {
        let desired = self.inbox.current();
        if desired.gone {
            Some(Cause::Gone)
        } else if self.pod.metadata.deletion_timestamp.is_some() {
            Some(Cause::Deleted)
        } else if desired.kill.is_some() {
            Some(Cause::Killed)
        } else {
            status::is_terminal_pod(&self.pod).then_some(Cause::Finished)
        }
    }

    fn observe_seconds(&self, operation: &str, began: Instant) {
        self.deps.metrics.observe(PASS_SECONDS, &[("operation_type", operation)], began.elapsed());
    }

    /// The pod no longer uses capacity of this node.
    fn give_up_capacity(&self) {
        self.deps.active.send_modify(|active| drop(active.remove(&self.uid)));
    }

    /// The newest sandbox's addresses, or the node's own for a pod in its network.
    fn addresses(&self, observed: &Observed) -> Vec<std::net::IpAddr> {
        if self.uses_host_network() {
            return self.deps.facts.host_ips.clone();
        }
        observed.sandboxes.first().map(|sandbox| sandbox.addresses.clone()).unwrap_or_default()
    }

    fn uses_host_network(&self) -> bool {
        self.pod.spec.as_ref().is_some_and(|spec| spec.host_network == Some(true))
    }

    fn reference(&self) -> ObjectReference {
        ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Pod".into()),
            ..reference(&*self.pod)
        }
    }

    fn namespace_and_name(&self) -> (&str, &str) {
        let meta = &self.pod.metadata;
        (meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default())
    }

    fn log_dir(&self) -> std::path::PathBuf {
        let (namespace, name) = self.namespace_and_name();
        self.deps.facts.log_dir(namespace, name, &self.uid)
    }

    /// For log messages: `namespace/name (uid)`.
    fn title(&self) -> String {
        let (namespace, name) = self.namespace_and_name();
        format!("{namespace}/{name} ({})", self.uid)
    }
}

/// Up to half as long again, so that a thousand pods do not act at the same time (N-33).
fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(1.0 + 0.5 * clock::random_fraction())
}
