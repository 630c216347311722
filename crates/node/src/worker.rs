//! Carries one pod from bound to gone on this node.
//!
//!     orders, exits, probe results ──▶ worker ──▶ lifecycle ──▶ what to do ──▶ runtime
//!                                        ▲                                      │
//!                                        └──────────── observed ◀───────────────┘
//!
//! One task per pod, one thing at a time, and one way only: live, end, clean up, leave (T-NODE-1).
//! Not here: what to do next (`lifecycle`), how a process is signalled (`runtime`).

mod bringup;
pub(crate) mod cleanup;
mod ending;
mod held;
mod notes;
pub(crate) mod observe;
mod resize;
mod sandbox;
mod start;
#[cfg(test)]
mod tests;

use crate::figures;
use crate::parts::Parts;
use crate::report::Report;
use crate::static_pods::is_static;
use client::reference;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ObjectReference, Pod, PodStatus};
use lifecycle::backoff::Backoffs;
use lifecycle::observed::{Observed, StartFailure};
use lifecycle::status::{self, Stage, Verdict};
use lifecycle::termination::pod_grace;
use lifecycle::timeline::What;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

/// Passes of a pod to which nothing happens (N-33), and after an error.
const RESYNC: Duration = Duration::from_secs(60);
const RETRY: Duration = Duration::from_secs(10);

/// How long what was done with a pod took.
const PASS: &str = "kubelet_pod_worker_duration_seconds";

/// What the agent wants of a pod's worker. It only ever gets worse for the pod.
#[derive(Clone)]
pub(crate) struct Orders {
    /// As the API, or the manifest, has it now.
    pub(crate) pod: Arc<Pod>,
    /// Of a static pod: its copy in the API, if there is one.
    pub(crate) mirror: Option<Arc<Pod>>,
    /// It left its source: force-deleted, or its manifest was removed.
    pub(crate) gone: bool,
    /// The node itself wants it to end.
    pub(crate) kill: Option<Kill>,
}

/// Eviction, preemption, shutdown.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Kill {
    pub(crate) verdict: Verdict,
    /// None: the pod's own.
    pub(crate) grace: Option<Duration>,
}

/// How the agent reaches a worker.
#[derive(Clone)]
pub(crate) struct Handle {
    pub(crate) orders: Arc<watch::Sender<Orders>>,
    /// Look again: something happened to a container, a probe turned, a ConfigMap changed.
    pub(crate) news: Arc<Notify>,
    /// What did not work may work now.
    anew: Arc<AtomicBool>,
}

impl Handle {
    pub(crate) fn new(pod: Arc<Pod>) -> (Handle, watch::Receiver<Orders>) {
        let (orders, received) =
            watch::channel(Orders { pod, mirror: None, gone: false, kill: None });
        let (orders, news, anew) = (Arc::new(orders), Arc::new(Notify::new()), Arc::default());
        (Handle { orders, news, anew }, received)
    }

    /// Something that the pod uses has come or changed.
    pub(crate) fn try_anew(&self) {
        self.anew.store(true, Ordering::Relaxed);
        self.news.notify_one();
    }

    pub(crate) fn update(&self, pod: Arc<Pod>) {
        self.orders.send_modify(|orders| orders.pod = pod);
    }

    pub(crate) fn mirror(&self, mirror: Option<Arc<Pod>>) {
        self.orders.send_modify(|orders| orders.mirror = mirror);
    }

    pub(crate) fn gone(&self) {
        self.orders.send_modify(|orders| orders.gone = true);
    }

    /// The first reason stays the reason; a later one can only hurry (T-NODE-5).
    pub(crate) fn kill(&self, kill: Kill) {
        self.orders.send_modify(|orders| {
            let own = pod_grace(&orders.pod, None, false);
            let grace = |kill: &Kill| kill.grace.unwrap_or(own);
            orders.kill = Some(match orders.kill.take() {
                None => kill,
                Some(first) if grace(&first) <= grace(&kill) => first,
                Some(first) => Kill { verdict: first.verdict, ..kill },
            });
        });
    }
}

pub(crate) struct Worker {
    parts: Arc<Parts>,
    orders: watch::Receiver<Orders>,
    news: Arc<Notify>,
    anew: Arc<AtomicBool>,
    pod: Arc<Pod>,
    uid: String,
    report: Report,
    /// As told last.
    status: PodStatus,
    stage: Stage,
    verdict: Option<Verdict>,
    backoffs: Backoffs,
    /// Why containers wait, until an attempt succeeds.
    failures: BTreeMap<String, StartFailure>,
    held: Option<held::Held>,
    memory: observe::Memory,
    /// A part of the pod that was being ended when the whole was to end.
    underway: Option<ending::Drive>,
    notes: notes::Notes,
    /// Since when this node knows of the pod.
    known_since: Instant,
}

/// Why a pod ends on this node (T-NODE-2).
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Cause {
    /// It has a deletion timestamp.
    Deleted,
    /// It left its source.
    Gone,
    /// Its phase in the API is terminal.
    Finished,
    /// The node wants it so.
    Killed,
    /// Its containers are done, or can never be.
    Completed,
}

/// When to look again.
enum Next {
    Now,
    After(Duration),
    End(Cause),
}

impl Worker {
    pub(crate) fn new(
        parts: Arc<Parts>,
        handle: &Handle,
        orders: watch::Receiver<Orders>,
    ) -> Worker {
        let pod = orders.borrow().pod.clone();
        let pod = parts.allocations.on(&pod);
        Worker {
            report: Report::on(&parts.client, Some(pod.clone()).filter(|pod| !is_static(pod))),
            parts,
            orders,
            news: handle.news.clone(),
            anew: handle.anew.clone(),
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            status: pod.status.clone().unwrap_or_default(),
            pod,
            stage: Stage::Syncing,
            verdict: None,
            backoffs: Backoffs::default(),
            failures: BTreeMap::new(),
            held: None,
            memory: observe::Memory::default(),
            underway: None,
            notes: notes::Notes::default(),
            known_since: Instant::now(),
        }
    }

    pub(crate) async fn run(mut self) {
        self.parts.pods.put(self.pod.clone());
        let metrics = self.parts.metrics.clone();
        let known = self.known_since.elapsed();
        metrics.observe("kubelet_pod_worker_start_duration_seconds", &[], known);
        let cause = self.live().await;
        // On the heap while it lasts, as every pass: a pod that just runs is a small thing to wait for.
        Box::pin(self.finish(&cause)).await;
        Box::pin(self.leave()).await;
    }

    /// Ends what runs, takes away what it had, and sees to it that its end is stored.
    async fn finish(&mut self, cause: &Cause) {
        let metrics = self.parts.metrics.clone();
        tracing::debug!(pod = %self.title(), ?cause, "ending");
        self.note_seen(cause);
        let began = Instant::now();
        self.end().await;
        metrics.observe(PASS, &[("operation_type", "kill")], began.elapsed());
        let began = Instant::now();
        self.clean_up().await;
        metrics.observe(PASS, &[("operation_type", "terminated")], began.elapsed());
        if self.report.written().await {
            self.note(What::StatusWritten);
        }
        self.parts.active.send_modify(|active| drop(active.remove(&self.uid)));
    }

    /// The pod will not run here: says why, and waits for its object to go (N-27). If it does run, for an
    /// agent before this one took it, it is ended as any other, and its end is told when it has ended
    /// (T-INV-2).
    pub(crate) async fn reject(mut self, reason: &str, message: &str) {
        self.parts.recorder.warning(&self.reference(), reason, message);
        let labels = [("reason", reason)];
        self.parts.metrics.add("kubelet_admission_rejections_total", &labels, 1);
        let facts = self.facts(&[]);
        let rejected = status::rejected(&self.pod, &facts, reason, message);
        if self.was_here().await {
            self.verdict = Some(Verdict {
                reason: reason.to_owned(),
                message: rejected.message.unwrap_or_default(),
                disruption: false,
            });
            Box::pin(self.finish(&Cause::Killed)).await;
        } else {
            self.stage = Stage::Terminated;
            self.tell(rejected);
            self.report.written().await;
            self.parts.active.send_modify(|active| drop(active.remove(&self.uid)));
        }
        self.leave().await;
    }

    /// The runtime has something of it.
    async fn was_here(&mut self) -> bool {
        loop {
            match self.look().await {
                Ok(sandboxes) => return !sandboxes.is_empty(),
                Err(why) => {
                    tracing::warn!(pod = %self.title(), why, "nobody knows whether it runs");
                    self.wait(jittered(RETRY)).await;
                }
            }
        }
    }

    /// Runs passes until there is a reason to end.
    async fn live(&mut self) -> Cause {
        let mut operation = "create";
        loop {
            self.follow_orders();
            if let Some(cause) = self.cause() {
                return cause;
            }
            let began = Instant::now();
            let passed = Box::pin(self.pass()).await;
            self.parts.metrics.observe(PASS, &[("operation_type", operation)], began.elapsed());
            operation = "sync";
            let next = match passed {
                Ok(next) => {
                    self.forget_an_ending(&next);
                    next
                }
                Err(why) => {
                    tracing::info!(pod = %self.title(), why, "a pass failed");
                    Next::After(jittered(RETRY))
                }
            };
            match next {
                Next::Now => tokio::task::yield_now().await,
                Next::After(pause) => self.wait(pause).await,
                Next::End(cause) => return cause,
            }
        }
    }

    /// The pod goes on: if an agent before this one was about to end it, that was its own idea and went with
    /// it. What it had done for that says nothing about an ending to come, which begins anew (T-INV-5).
    fn forget_an_ending(&self, next: &Next) {
        if let (Some(deadlines), Next::Now | Next::After(_)) = (&self.parts.deadlines, next) {
            deadlines.forget(&self.uid);
        }
    }

    /// Until there is news, at most that long.
    async fn wait(&mut self, pause: Duration) {
        tokio::select! {
            biased;
            _ = self.orders.changed() => {}
            () = self.news.notified() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }

    fn follow_orders(&mut self) {
        let orders = self.orders.borrow_and_update().clone();
        self.pod = self.parts.allocations.on(&orders.pod);
        self.take_over_an_end();
        let object = if is_static(&self.pod) { orders.mirror } else { Some(orders.pod) };
        self.report.observed(object);
        if let Some(kill) = orders.kill {
            self.verdict.get_or_insert(kill.verdict);
        }
    }

    /// A terminal phase that somebody else wrote is what was told last: it is not taken back while containers
    /// still run, nor changed by how they end (T-NODE-3, T-NODE-57).
    fn take_over_an_end(&mut self) {
        let Some(written) = self.pod.status.as_ref().filter(|status| status::is_terminal(status))
        else {
            return;
        };
        if !status::is_terminal(&self.status) {
            self.status.phase.clone_from(&written.phase);
            self.status.reason.clone_from(&written.reason);
            self.status.message.clone_from(&written.message);
        }
    }

    fn cause(&self) -> Option<Cause> {
        let orders = self.orders.borrow();
        if orders.gone {
            Some(Cause::Gone)
        } else if self.pod.metadata.deletion_timestamp.is_some() {
            Some(Cause::Deleted)
        } else if orders.kill.is_some() {
            Some(Cause::Killed)
        } else {
            self.pod.status.as_ref().is_some_and(status::is_terminal).then_some(Cause::Finished)
        }
    }

    /// Resolves when the pod is to end: long waits of a pass are given up for it.
    async fn ending(orders: &mut watch::Receiver<Orders>) {
        let over = |orders: &Orders| {
            orders.gone || orders.kill.is_some() || orders.pod.metadata.deletion_timestamp.is_some()
        };
        if orders.wait_for(over).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Computes the status from what is so and tells what of it may be told. True: it is terminal,
    /// whether that is told already or not (T-NODE-53).
    fn publish(&mut self, observed: &Observed) -> bool {
        let addresses = self.addresses(observed);
        let known = self.parts.allocations.get(&self.uid);
        let known = known.filter(|_| self.stage == Stage::Syncing);
        let conditions = known.map(|known| known.conditions()).unwrap_or_default();
        let facts = status::Facts { conditions: &conditions, ..self.facts(&addresses) };
        let status = status::status(&self.pod, observed, &facts, &self.status);
        let told = if observed.any_running() {
            status::withheld(status.clone(), &self.status)
        } else {
            status.clone()
        };
        self.status = told.clone();
        self.tell(told);
        status::is_terminal(&status)
    }

    fn tell(&mut self, status: PodStatus) {
        let mut pod = Pod::clone(&self.pod);
        pod.status = Some(status.clone());
        let before = self.parts.pods.by_uid(&self.uid);
        let known = self.known_since.elapsed();
        figures::told(&self.parts.metrics, before.as_deref(), &pod, clock::now(), known);
        self.parts.pods.put(Arc::new(pod));
        self.report.tell(status);
    }

    fn facts<'a>(&'a self, addresses: &'a [std::net::IpAddr]) -> status::Facts<'a> {
        status::Facts {
            now: clock::now(),
            host_ips: &self.parts.facts.host_ips,
            pod_ips: addresses,
            runtime: &self.parts.runtime_name,
            stage: self.stage,
            verdict: self.verdict.as_ref(),
            conditions: &[],
        }
    }

    /// The newest sandbox's, or the node's own for a pod in its network.
    fn addresses(&self, observed: &Observed) -> Vec<std::net::IpAddr> {
        if self.host_network() {
            return self.parts.facts.host_ips.clone();
        }
        observed.sandboxes.first().map(|sandbox| sandbox.addresses.clone()).unwrap_or_default()
    }

    fn host_network(&self) -> bool {
        self.pod.spec.as_ref().is_some_and(|spec| spec.host_network == Some(true))
    }

    fn reference(&self) -> ObjectReference {
        ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Pod".into()),
            ..reference(&*self.pod)
        }
    }

    /// Namespace and name.
    fn names(&self) -> (&str, &str) {
        let meta = &self.pod.metadata;
        (meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default())
    }

    fn log_dir(&self) -> std::path::PathBuf {
        let (namespace, name) = self.names();
        self.parts.facts.log_dir(namespace, name, &self.uid)
    }

    fn title(&self) -> String {
        let (namespace, name) = self.names();
        format!("{namespace}/{name} ({})", self.uid)
    }
}

/// Up to half as long again, so that a thousand pods do not come at once (N-33).
fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(1.0 + 0.5 * clock::fraction())
}

fn until(at: Timestamp) -> Duration {
    at.duration_since(clock::now()).try_into().unwrap_or_default()
}
