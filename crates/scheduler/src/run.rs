//! The scheduling loop: apply changes of the cluster, decide about one pod, start the action.
//!
//!     watches ──▶ inputs ──▶ cluster state, queue ──▶ decide ──▶ actions
//!                                   ▲                               │
//!                                   └────────── results ◀───────────┘
//!
//! One task decides about one pod at a time (N-183); requests run concurrently, and a pod counts on its node as soon as
//! it is decided. Nothing is polled.

mod inputs;
mod queueing_hints;

use crate::actions::{ActionResult, Actions, Report};
use crate::cluster_state::ClusterState;
use crate::decide::{Decision, Unschedulable, decide};
use crate::filters::VolumeChoice;
use crate::messages;
use crate::pod::PodInfo;
use crate::preempt::{Preemption, preempt};
use crate::queue::{Queue, Timing};
use crate::scheduler_metrics::{AttemptResult, SchedulerMetrics};
use client::{Client, ObjectKey, Recorder};
use futures::FutureExt;
use inputs::{Caches, Input};
use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

/// The profile. This scheduler handles pods that name it, or no scheduler.
pub(crate) const NAME: &str = "default-scheduler";

/// The lease for leader election among several servers (C-194).
const LEASE: (&str, &str) = ("kube-system", "kube-scheduler");

/// How long running actions may take after the scheduler is stopped.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// A running scheduler. Dropping the handle does not stop it.
pub struct Handle {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
    metrics: SchedulerMetrics,
}

/// Starts the scheduler in its own task. If there are several servers, `identity` is that of this one, and only the
/// leader schedules.
pub fn start(client: &Client, identity: Option<String>) -> Handle {
    let (stop, stopped) = oneshot::channel();
    let (client, metrics) = (client.clone(), SchedulerMetrics::new());
    let recorded = metrics.clone();
    let task = tokio::spawn(async move {
        let stopped = async move {
            // If the handle was dropped, the scheduler runs forever.
            if stopped.await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        let Some(identity) = identity else {
            return run_with_metrics(client, recorded, stopped).await;
        };
        let lease = ObjectKey::new(LEASE.0, LEASE.1);
        let run = |until| run_with_metrics(client.clone(), recorded.clone(), until);
        client::lead(&client, &lease, &identity, stopped, run).await;
    });
    Handle { stop, task, metrics }
}

impl Handle {
    pub fn metrics(&self) -> Arc<metrics::Registry> {
        self.metrics.registry()
    }

    /// Stops deciding, and lets running actions finish.
    pub async fn stop(self) {
        let _ = self.stop.send(());
        let _ = self.task.await;
    }
}

/// Schedules pods until `stop` resolves.
pub async fn run(client: Client, stop: impl Future<Output = ()>) {
    run_with_metrics(client, SchedulerMetrics::new(), stop).await;
}

async fn run_with_metrics(
    client: Client,
    metrics: SchedulerMetrics,
    stop: impl Future<Output = ()>,
) {
    let client = client.named(NAME);
    let caches = Caches::start(&client);
    let recorder = Recorder::new(&client, NAME, NAME);
    let actions = Actions::new(client, recorder.clone(), caches.claims.clone());
    let mut scheduler = Scheduler {
        caches,
        actions,
        cluster: ClusterState::default(),
        queue: Queue::default(),
        running: JoinSet::new(),
        binding: HashMap::new(),
        skipped: HashMap::new(),
        start: 0,
        metrics,
    };
    tokio::select! {
        biased;
        () = scheduler.work() => (),
        () = stop => (),
    }
    let ended = async { while scheduler.running.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(STOP_TIMEOUT, ended).await;
    recorder.flush().await;
}

/// Returns `failed` if an action panics, so that its pod is tried again.
async fn catch_panic(
    action: impl Future<Output = ActionResult>,
    failed: ActionResult,
) -> ActionResult {
    match AssertUnwindSafe(action).catch_unwind().await {
        Ok(result) => result,
        Err(_) => {
            tracing::error!(?failed, "bind or preempt task panicked");
            failed
        }
    }
}

struct Scheduler {
    caches: Caches,
    actions: Actions,
    cluster: ClusterState,
    queue: Queue,
    running: JoinSet<ActionResult>,
    /// Pods that are being bound, by UID. The watch may report a binding before its response comes, and then the pod is
    /// no longer in the queue.
    binding: HashMap<String, Timing>,
    /// Pods that are being deleted and were skipped, with their UIDs.
    skipped: HashMap<ObjectKey, String>,
    /// The node at which the next search begins.
    start: usize,
    metrics: SchedulerMetrics,
}

impl Scheduler {
    async fn work(&mut self) {
        self.caches.synced().await;
        loop {
            while let Some(Some(input)) = self.caches.inputs.get().now_or_never() {
                self.apply(input);
            }
            while let Some(done) = self.running.try_join_next() {
                self.finish(done.ok());
            }
            match self.queue.take(Instant::now()) {
                Some(pod) => {
                    self.schedule(pod);
                    // Let the action start now, not after the next thousand decisions.
                    tokio::task::yield_now().await;
                }
                None => {
                    self.metrics.pending(self.queue.lengths());
                    self.wait().await;
                }
            }
        }
    }

    async fn wait(&mut self) {
        let due = self.queue.next_due();
        let due = async {
            match due {
                Some(due) => tokio::time::sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            Some(input) = self.caches.inputs.get() => self.apply(input),
            Some(done) = self.running.join_next() => self.finish(done.ok()),
            () = due => (),
        }
    }

    fn apply(&mut self, input: Input) {
        self.apply_change(&input);
        self.caches.inputs.done(&input);
    }

    fn schedule(&mut self, pod: Arc<PodInfo>) {
        if pod.is_terminating() {
            let (namespace, name) = (pod.namespace(), pod.key.name());
            let message = format!("skip schedule deleting pod: {namespace}/{name}");
            self.actions.record_failure(&pod, &message);
            self.queue.remove(&pod.key);
            self.skipped.insert(pod.key.clone(), pod.uid.clone());
            return;
        }
        let began = Instant::now();
        let decision = decide(&self.cluster, &pod, &mut self.start, clock::random_u64);
        self.metrics.decided(began.elapsed());
        match decision {
            Decision::Node { name, volumes } => self.bind(pod, name, volumes),
            Decision::Unschedulable(unschedulable) => {
                self.unschedulable(pod, &unschedulable);
                self.metrics.attempt(AttemptResult::Unschedulable, began.elapsed());
            }
        }
    }

    fn bind(&mut self, pod: Arc<PodInfo>, node: Arc<str>, volumes: VolumeChoice) {
        self.cluster.assume(&pod, &node);
        for (claim, volume) in &volumes.bind {
            self.cluster.volumes.reserve(volume, claim);
        }
        if let Some(timing) = self.queue.timing(&pod.key) {
            self.binding.insert(pod.uid.clone(), timing);
        }
        let failed = ActionResult::NotBound {
            pod: pod.clone(),
            volumes: volumes.clone(),
            why: Some("binding rejected: the bind task panicked".to_owned()),
        };
        let action = self.actions.clone().bind(pod, node, volumes);
        self.running.spawn(catch_panic(action, failed));
    }

    fn unschedulable(&mut self, pod: Arc<PodInfo>, unschedulable: &Unschedulable) {
        let (message, nominated) =
            match preempt(&self.cluster, &pod, unschedulable, clock::random_u64()) {
                Preemption::Victims { node, victims } => {
                    self.start_preemption(&pod, &node, victims);
                    (None, Some(Some(node)))
                }
                Preemption::InProgress(message) => (Some(message.to_owned()), None),
                Preemption::NotHelpful(message) => {
                    self.cluster.withdraw(&pod.key);
                    (message, Some(None))
                }
            };
        let message = messages::unschedulable(unschedulable, message.as_deref());
        self.queue.rejected(&pod.key, unschedulable.plugins(), Instant::now());
        self.actions.record_failure(&pod, &message);
        let report = Report { reason: "Unschedulable", message, nominated };
        self.running.spawn(self.actions.clone().report(pod, report));
    }

    fn start_preemption(
        &mut self,
        pod: &Arc<PodInfo>,
        node: &Arc<str>,
        victims: Vec<Arc<PodInfo>>,
    ) {
        // Pods of lower priority that are nominated for this node must be tried again.
        let lower_priority: Vec<Arc<PodInfo>> = self
            .cluster
            .nominated(node, pod)
            .filter(|other| other.priority < pod.priority)
            .cloned()
            .collect();
        for other in lower_priority {
            self.cluster.withdraw(&other.key);
            self.queue.failed(&other.key, Instant::now());
            self.running.spawn(self.actions.clone().withdraw(other));
        }
        self.cluster.nominate(pod, node);
        self.metrics.preempted(victims.len());
        let failed = ActionResult::PreemptionFailed { pod: pod.clone() };
        let action = self.actions.clone().preempt(pod.clone(), node.clone(), victims);
        self.running.spawn(catch_panic(action, failed));
    }

    fn finish(&mut self, done: Option<ActionResult>) {
        match done {
            Some(ActionResult::Bound { pod, volumes }) => {
                self.release(&volumes);
                self.count_bound(&pod);
                if self.is_current(&pod) {
                    self.queue.remove(&pod.key);
                }
            }
            Some(ActionResult::NotBound { pod, volumes, why }) => {
                self.release(&volumes);
                let timing = self.binding.remove(&pod.uid);
                if why.is_some() {
                    let took = timing.map(|timing| timing.taken.elapsed()).unwrap_or_default();
                    self.metrics.attempt(AttemptResult::Error, took);
                }
                self.unbind(pod, why);
            }
            Some(ActionResult::PreemptionFailed { pod }) => {
                self.cluster.withdraw(&pod.key);
                self.queue.failed(&pod.key, Instant::now());
            }
            Some(ActionResult::NothingToDo) | None => (),
        }
    }

    fn count_bound(&mut self, pod: &PodInfo) {
        if let Some(timing) = self.binding.remove(&pod.uid) {
            self.metrics.attempt(AttemptResult::Scheduled, timing.taken.elapsed());
            self.metrics.bound(timing.attempts, timing.added.elapsed());
        }
    }

    fn is_current(&self, pod: &PodInfo) -> bool {
        self.queue.get(&pod.key).is_some_and(|queued| queued.uid == pod.uid)
    }

    fn release(&mut self, volumes: &VolumeChoice) {
        for (_, volume) in &volumes.bind {
            self.cluster.volumes.release(volume);
        }
    }

    /// After a failed binding: removes the pod from its node and tries it again.
    fn unbind(&mut self, pod: Arc<PodInfo>, why: Option<String>) {
        let assumed = self.cluster.is_assumed(&pod.key)
            && self.cluster.placed(&pod.key).is_some_and(|placed| placed.uid == pod.uid);
        if assumed {
            self.cluster.remove_pod(&pod.key);
        }
        if !self.is_current(&pod) {
            return;
        }
        self.queue.failed(&pod.key, Instant::now());
        if let Some(message) = why {
            self.actions.record_failure(&pod, &message);
            let report = Report { reason: "SchedulerError", message, nominated: Some(None) };
            self.running.spawn(self.actions.clone().report(pod, report));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panicking_bind_task_counts_as_failed() {
        let pod = Arc::new(crate::pod::tests::asking("p", "1", "1Gi"));
        let failed = ActionResult::NotBound { pod, volumes: VolumeChoice::default(), why: None };
        let action = async { panic!("as planned") };
        let done = catch_panic(action, failed).await;
        assert!(matches!(done, ActionResult::NotBound { pod, .. } if pod.key.name() == "p"));
    }
}
