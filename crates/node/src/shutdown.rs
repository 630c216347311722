//! The end of all pods of this node: `landfall down`, or the host goes down (T-NODE-85 to 88).
//!
//!     asked ──▶ no new pods, node NotReady ──▶ group after group, lowest priority first ──▶ what was cut
//!                                   plan ─────────┘ (each pod: hook, signal, kill: its worker)
//!
//! Nobody is waited for without bound. Not here: how one pod ends (`worker`).

mod cut;
mod dbus;
mod host;
mod logind;
mod plan;
mod wire;

pub(crate) use host::Host;

pub(crate) use cut::were;
pub use cut::{Cut, How};
pub use plan::{Period, Periods};

use crate::dispatch::News;
use crate::node_object::{Health, node_reference};
use crate::parts::Parts;
use crate::worker::Kill;
use cut::Told;
use k8s_openapi::api::core::v1::Pod;
use lifecycle::status::Verdict;
use lifecycle::termination::pod_grace;
use plan::{Group, groups, wait_for};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::{Mutex, mpsc, oneshot, watch};
use tokio::time::Instant;

/// After the last group's turn: for pods of earlier groups that were not waited for any longer.
const STRAGGLERS_MAX: Duration = Duration::from_secs(10);
/// The API may take this long to have the node as not ready.
const NOT_READY_MAX: Duration = Duration::from_secs(2);

/// What a shutdown acts upon. One for the whole node.
pub(crate) struct Shutdown {
    parts: Arc<Parts>,
    news: mpsc::Sender<News>,
    health: watch::Sender<Health>,
    periods: Periods,
    /// One at a time: who comes second finds what is left.
    running: Mutex<()>,
    hurry: watch::Sender<bool>,
    /// logind said so.
    host_goes_down: AtomicBool,
}

impl Shutdown {
    pub(crate) fn new(
        parts: Arc<Parts>,
        news: mpsc::Sender<News>,
        health: watch::Sender<Health>,
        periods: Periods,
    ) -> Shutdown {
        let hurry = watch::Sender::new(false);
        let (running, host_goes_down) = (Mutex::new(()), AtomicBool::new(false));
        Shutdown { parts, news, health, periods, running, hurry, host_goes_down }
    }

    /// Ends every pod and says on the way who is left. On return their last statuses are stored, but
    /// for those that are told of as left.
    pub(crate) async fn end_pods<F: Future<Output = ()>>(
        &self,
        say: impl Fn(String) -> F,
    ) -> Vec<Cut> {
        let _alone = self.running.lock().await;
        let since = clock::now();
        // One that is being deleted takes its status with it when it has ended.
        self.parts.pods.remember(true);
        self.metric("kubelet_graceful_shutdown_start_time_seconds");
        let groups = groups(&self.periods, self.close().await);
        let count: usize = groups.iter().map(|group| group.pods.len()).sum();
        say(format!("ending {count} pods")).await;
        let mut told = BTreeMap::new();
        for group in &groups {
            self.tell(group, &mut told).await;
            self.wait(group, &mut told, &say).await;
        }
        self.wait_for_stragglers(&told).await;
        let cuts = self.cuts(told, since).await;
        self.parts.pods.remember(false);
        self.told_not_ready().await;
        self.metric("kubelet_graceful_shutdown_end_time_seconds");
        cuts
    }

    async fn host_goes_down(&self) {
        tracing::warn!("the host goes down: ending pods");
        self.host_goes_down.store(true, Ordering::Relaxed);
        self.end_pods(|line| async move { tracing::info!("{line}") }).await;
    }

    /// T-NODE-88: new pods are taken again; those that have ended stay so.
    async fn host_stays_up(&self) {
        if !self.host_goes_down.swap(false, Ordering::Relaxed) {
            return;
        }
        tracing::warn!("the host does not go down after all");
        let cancelled = "Shutdown manager detected shutdown cancellation";
        let node = node_reference(&self.parts.facts.name);
        self.parts.recorder.normal(&node, "Shutdown", cancelled);
        let _ = self.news.send(News::Open).await;
        self.health.send_modify(|health| health.shutting_down = false);
    }

    /// Whether a signal to end is part of the host's own end.
    pub(crate) async fn host_is_stopping(&self, host: &Host) -> bool {
        self.host_goes_down.load(Ordering::Relaxed) || host.is_stopping().await
    }

    /// Who has not ended gets no more than a stop signal and its two seconds.
    pub(crate) fn hurry(&self) {
        self.hurry.send_replace(true);
    }

    /// The node takes no more pods, and says so. Those that run, or are about to (T-NODE-86).
    async fn close(&self) -> Vec<Arc<Pod>> {
        let node = node_reference(&self.parts.facts.name);
        let detected = "Shutdown manager detected shutdown event";
        self.parts.recorder.normal(&node, "Shutdown", detected);
        self.health.send_modify(|health| health.shutting_down = true);
        let (answer, pods) = oneshot::channel();
        let _ = self.news.send(News::Close(answer)).await;
        pods.await.unwrap_or_default()
    }

    async fn tell(&self, group: &Group, told: &mut BTreeMap<String, Told>) {
        let hurried = *self.hurry.borrow();
        for pod in &group.pods {
            let uid = pod.metadata.uid.clone().unwrap_or_default();
            let given = if hurried { Duration::ZERO } else { group.grace(pod) };
            let kill = Kill { verdict: verdict(), grace: Some(given) };
            let _ = self.news.send(News::Kill { uid: uid.clone(), kill }).await;
            let own = pod_grace(pod, None, false);
            let (given, pod) = (group.grace(pod), title(pod));
            told.insert(uid, Told { pod, own, given, hurried });
        }
    }

    /// Until all of the group have ended, or its time is over.
    async fn wait<F: Future<Output = ()>>(
        &self,
        group: &Group,
        told: &mut BTreeMap<String, Told>,
        say: &impl Fn(String) -> F,
    ) {
        let mut active = self.parts.active.subscribe();
        let mut hurry = self.hurry.subscribe();
        let mut hurried = *hurry.borrow_and_update();
        let limit = |hurried| if hurried { wait_for(Duration::ZERO) } else { group.wait() };
        let mut deadline = Instant::now() + limit(hurried);
        let mut left = group.pods.clone();
        loop {
            let (still, ended) = {
                let active = active.borrow_and_update();
                let runs = |pod: &Arc<Pod>| {
                    pod.metadata.uid.as_ref().is_some_and(|uid| active.contains_key(uid))
                };
                left.into_iter().partition::<Vec<_>, _>(runs)
            };
            left = still;
            for pod in &ended {
                say(format!("{} has ended, {} left", title(pod), active.borrow().len())).await;
            }
            if left.is_empty() {
                return;
            }
            tokio::select! {
                biased;
                changed = active.changed() => if changed.is_err() { return },
                _ = hurry.changed(), if !hurried => {
                    hurried = true;
                    say(format!("hurrying {} pods: two seconds each", left.len())).await;
                    let rest = Group { pods: left.clone(), period: group.period };
                    self.tell(&rest, told).await;
                    deadline = deadline.min(Instant::now() + limit(true));
                }
                () = tokio::time::sleep_until(deadline) => return,
            }
        }
    }

    /// The group that was given up first may have ended while the others were waited for.
    async fn wait_for_stragglers(&self, told: &BTreeMap<String, Told>) {
        let mut active = self.parts.active.subscribe();
        let none =
            |active: &BTreeMap<String, String>| !told.keys().any(|uid| active.contains_key(uid));
        let _ = tokio::time::timeout(STRAGGLERS_MAX, active.wait_for(none)).await;
    }

    async fn cuts(&self, told: BTreeMap<String, Told>, since: jiff::Timestamp) -> Vec<Cut> {
        let mut cuts = Vec::new();
        for (uid, told) in told {
            if self.parts.active.borrow().contains_key(&uid) {
                let running = self.runs(&uid).await;
                cuts.push(told.how(How::Left { running }));
            } else {
                cuts.extend(told.ended(self.parts.pods.last_of(&uid).as_deref(), since));
            }
        }
        cuts.sort_by(|a, b| a.pod.cmp(&b.pod));
        for cut in &cuts {
            tracing::warn!("{cut}");
        }
        cuts
    }

    /// A runtime that does not answer says nothing of the pod's end.
    async fn runs(&self, uid: &str) -> bool {
        let Ok(sandboxes) = self.parts.runtime.sandboxes_of(uid).await else { return true };
        let mut containers = sandboxes.iter().flat_map(|sandbox| &sandbox.containers);
        containers.any(|c| matches!(c.state, runtime::ContainerState::Running { .. }))
    }

    /// Waits a moment until the API has the node as not ready.
    async fn told_not_ready(&self) {
        let mut node = self.parts.node.clone();
        let ready = node.wait_for(|node| !node.as_ref().is_some_and(|n| crate::agent::is_ready(n)));
        let _ = tokio::time::timeout(NOT_READY_MAX, ready).await;
    }

    fn metric(&self, name: &'static str) {
        self.parts.metrics.set(name, &[], clock::now().as_millisecond() as f64 / 1000.0);
    }
}

/// T-NODE-88
fn verdict() -> Verdict {
    Verdict {
        reason: "Terminated".into(),
        message: "Pod was terminated in response to imminent node shutdown.".into(),
        disruption: true,
    }
}

fn title(pod: &Pod) -> String {
    let meta = &pod.metadata;
    let part = |name: &Option<String>| name.clone().unwrap_or_default();
    format!("{}/{}", part(&meta.namespace), part(&meta.name))
}
