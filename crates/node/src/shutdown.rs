//! Terminates all pods of this node: `landfall down`, or the host shuts down (T-NODE-85 to 88).
//!
//!     request ──▶ no new pods, node NotReady ──▶ group after group, lowest priority first ──▶ report
//!                                     plan ─────────┘ (each pod by its worker)
//!
//! Every wait has a bound. Not here: how one pod terminates (`worker`).

mod dbus;
mod host;
mod logind;
mod plan;
mod shortened;
mod wire;

pub(crate) use host::Host;

pub use plan::{Period, Periods};
pub(crate) use shortened::were;
pub use shortened::{Outcome, ShortenedPod};

use crate::dependencies::Dependencies;
use crate::dispatch::AgentEvent;
use crate::node_object::{Health, node_reference};
use crate::worker::KillRequest;
use k8s_openapi::api::core::v1::Pod;
use lifecycle::status::Verdict;
use lifecycle::termination::pod_grace;
use plan::{Group, groups, wait_for};
use shortened::StopRequest;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::{Mutex, mpsc, oneshot, watch};
use tokio::time::Instant;

/// Wait after the last group, for pods of earlier groups that took longer than their group's time.
const STRAGGLERS_MAX: Duration = Duration::from_secs(10);
/// Wait until the API shows the node as NotReady.
const NOT_READY_MAX: Duration = Duration::from_secs(2);

/// One for the whole node.
pub(crate) struct Shutdown {
    deps: Arc<Dependencies>,
    events: mpsc::Sender<AgentEvent>,
    health: watch::Sender<Health>,
    periods: Periods,
    /// Only one shutdown runs at a time; a second one finds what the first has left.
    running: Mutex<()>,
    hurry: watch::Sender<bool>,
    /// logind announced the shutdown of the host.
    host_goes_down: AtomicBool,
}

impl Shutdown {
    pub(crate) fn new(
        deps: Arc<Dependencies>,
        events: mpsc::Sender<AgentEvent>,
        health: watch::Sender<Health>,
        periods: Periods,
    ) -> Shutdown {
        let hurry = watch::Sender::new(false);
        let (running, host_goes_down) = (Mutex::new(()), AtomicBool::new(false));
        Shutdown { deps, events, health, periods, running, hurry, host_goes_down }
    }

    /// Terminates every pod and reports progress to `say`. On return the API has the terminal status of every
    /// pod, except of those in the result that have not terminated.
    pub(crate) async fn terminate_pods<F: Future<Output = ()>>(
        &self,
        say: impl Fn(String) -> F,
    ) -> Vec<ShortenedPod> {
        let _alone = self.running.lock().await;
        let since = clock::now();
        // The object of a deleted pod goes with its status when the pod has terminated.
        self.deps.pods.keep_removed(true);
        self.metric("kubelet_graceful_shutdown_start_time_seconds");
        let groups = groups(&self.periods, self.close().await);
        let count: usize = groups.iter().map(|group| group.pods.len()).sum();
        say(format!("terminating {}", pods(count))).await;
        let mut requests = BTreeMap::new();
        for group in &groups {
            self.request_stop(group, &mut requests).await;
            self.wait(group, &mut requests, &say).await;
        }
        self.wait_for_stragglers(&requests).await;
        let shortened = self.shortened(requests, since).await;
        self.deps.pods.keep_removed(false);
        self.wait_for_not_ready().await;
        self.metric("kubelet_graceful_shutdown_end_time_seconds");
        shortened
    }

    async fn host_goes_down(&self) {
        tracing::warn!("the host shuts down: terminating all pods");
        self.host_goes_down.store(true, Ordering::Relaxed);
        self.terminate_pods(|line| async move { tracing::info!("{line}") }).await;
    }

    /// After a cancelled shutdown the node accepts new pods; terminated pods stay terminated (T-NODE-88).
    async fn host_stays_up(&self) {
        if !self.host_goes_down.swap(false, Ordering::Relaxed) {
            return;
        }
        tracing::warn!("the shutdown of the host was cancelled: accepting pods again");
        let cancelled = "Shutdown manager detected shutdown cancellation";
        let node = node_reference(&self.deps.facts.name);
        self.deps.recorder.normal(&node, "Shutdown", cancelled);
        let _ = self.events.send(AgentEvent::Open).await;
        self.health.send_modify(|health| health.shutting_down = false);
    }

    /// Whether a signal to stop the agent is part of the host's shutdown.
    pub(crate) async fn host_is_stopping(&self, host: &Host) -> bool {
        self.host_goes_down.load(Ordering::Relaxed) || host.is_stopping().await
    }

    /// Pods that have not terminated get no more than a stop signal and its two seconds.
    pub(crate) fn hurry(&self) {
        self.hurry.send_replace(true);
    }

    /// The node accepts no more pods and becomes NotReady (T-NODE-86). Returns the pods that have not terminated.
    async fn close(&self) -> Vec<Arc<Pod>> {
        let node = node_reference(&self.deps.facts.name);
        let detected = "Shutdown manager detected shutdown event";
        self.deps.recorder.normal(&node, "Shutdown", detected);
        self.health.send_modify(|health| health.shutting_down = true);
        let (reply, pods) = oneshot::channel();
        let _ = self.events.send(AgentEvent::Close(reply)).await;
        pods.await.unwrap_or_default()
    }

    async fn request_stop(&self, group: &Group, requests: &mut BTreeMap<String, StopRequest>) {
        let hurried = *self.hurry.borrow();
        for pod in &group.pods {
            let uid = pod.metadata.uid.clone().unwrap_or_default();
            let given = if hurried { Duration::ZERO } else { group.grace(pod) };
            let kill = KillRequest { verdict: verdict(), grace: Some(given) };
            let _ = self.events.send(AgentEvent::Kill { uid: uid.clone(), kill }).await;
            let own = pod_grace(pod, None, false);
            let (given, pod) = (group.grace(pod), title(pod));
            requests.insert(uid, StopRequest { pod, own, given, hurried });
        }
    }

    /// Waits until all pods of the group have terminated, or its time is over.
    async fn wait<F: Future<Output = ()>>(
        &self,
        group: &Group,
        requests: &mut BTreeMap<String, StopRequest>,
        say: &impl Fn(String) -> F,
    ) {
        let mut active = self.deps.active.subscribe();
        let mut hurry = self.hurry.subscribe();
        let mut hurried = *hurry.borrow_and_update();
        let limit = |hurried| if hurried { wait_for(Duration::ZERO) } else { group.wait() };
        let mut deadline = Instant::now() + limit(hurried);
        let mut left = group.pods.clone();
        loop {
            let (still, terminated) = {
                let active = active.borrow_and_update();
                let runs = |pod: &Arc<Pod>| {
                    pod.metadata.uid.as_ref().is_some_and(|uid| active.contains_key(uid))
                };
                left.into_iter().partition::<Vec<_>, _>(runs)
            };
            left = still;
            for pod in &terminated {
                say(format!("{} has terminated, {} left", title(pod), active.borrow().len())).await;
            }
            if left.is_empty() {
                return;
            }
            tokio::select! {
                biased;
                changed = active.changed() => if changed.is_err() { return },
                _ = hurry.changed(), if !hurried => {
                    hurried = true;
                    say(format!("two seconds are left for {}", pods(left.len()))).await;
                    let rest = Group { pods: left.clone(), period: group.period };
                    self.request_stop(&rest, requests).await;
                    deadline = deadline.min(Instant::now() + limit(true));
                }
                () = tokio::time::sleep_until(deadline) => return,
            }
        }
    }

    /// Pods of earlier groups may terminate while this waits for later groups.
    async fn wait_for_stragglers(&self, requests: &BTreeMap<String, StopRequest>) {
        let mut active = self.deps.active.subscribe();
        let none = |active: &BTreeMap<String, String>| {
            !requests.keys().any(|uid| active.contains_key(uid))
        };
        let _ = tokio::time::timeout(STRAGGLERS_MAX, active.wait_for(none)).await;
    }

    async fn shortened(
        &self,
        requests: BTreeMap<String, StopRequest>,
        since: jiff::Timestamp,
    ) -> Vec<ShortenedPod> {
        let mut shortened = Vec::new();
        for (uid, request) in requests {
            if self.deps.active.borrow().contains_key(&uid) {
                let running = self.runs(&uid).await;
                shortened.push(request.outcome(Outcome::NotTerminated { running }));
            } else {
                let last = self.deps.pods.last_known(&uid);
                shortened.extend(request.terminated(last.as_deref(), since));
            }
        }
        shortened.sort_by(|a, b| a.pod.cmp(&b.pod));
        for pod in &shortened {
            tracing::warn!("{pod}");
        }
        shortened
    }

    /// If the runtime does not answer, the pod may still run.
    async fn runs(&self, uid: &str) -> bool {
        let Ok(sandboxes) = self.deps.runtime.sandboxes_of(uid).await else { return true };
        let mut containers = sandboxes.iter().flat_map(|sandbox| &sandbox.containers);
        containers.any(|c| matches!(c.state, runtime::ContainerState::Running { .. }))
    }

    async fn wait_for_not_ready(&self) {
        let mut node = self.deps.node.clone();
        let ready = node.wait_for(|node| !node.as_ref().is_some_and(|n| crate::agent::is_ready(n)));
        let _ = tokio::time::timeout(NOT_READY_MAX, ready).await;
    }

    fn metric(&self, name: &'static str) {
        self.deps.metrics.set(name, &[], clock::now().as_millisecond() as f64 / 1000.0);
    }
}

/// What pods show that a node shutdown terminated (T-NODE-88).
fn verdict() -> Verdict {
    Verdict {
        reason: "Terminated".into(),
        message: "Pod was terminated in response to imminent node shutdown.".into(),
        disruption: true,
    }
}

fn pods(count: usize) -> String {
    format!("{count} pod{}", if count == 1 { "" } else { "s" })
}

fn title(pod: &Pod) -> String {
    let meta = &pod.metadata;
    let part = |name: &Option<String>| name.clone().unwrap_or_default();
    format!("{}/{}", part(&meta.namespace), part(&meta.name))
}
