//! What the agent tells a pod's worker, and how the worker waits for it.
//!
//!     dispatch ──Handle──▶ desired state, wake-ups ──Inbox──▶ worker
//!
//! The desired state only moves towards the pod's termination; a termination is never taken back.

use k8s_openapi::api::core::v1::Pod;
use lifecycle::status::Verdict;
use lifecycle::termination::pod_grace;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, watch};

/// What the agent wants of a pod's worker.
#[derive(Clone)]
pub(crate) struct DesiredState {
    /// The pod as the API, or its manifest, has it now.
    pub(crate) pod: Arc<Pod>,
    /// For a static pod: its copy in the API, if there is one.
    pub(crate) mirror: Option<Arc<Pod>>,
    /// The pod left its source: it was force-deleted, or its manifest was removed.
    pub(crate) gone: bool,
    /// The node itself terminates the pod.
    pub(crate) kill: Option<KillRequest>,
}

/// The node's own decision to terminate a pod: eviction, preemption, shutdown.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct KillRequest {
    pub(crate) verdict: Verdict,
    /// None: the pod's own grace period.
    pub(crate) grace: Option<Duration>,
}

impl DesiredState {
    fn is_termination(&self) -> bool {
        self.gone || self.kill.is_some() || self.pod.metadata.deletion_timestamp.is_some()
    }
}

/// The agent's end.
#[derive(Clone)]
pub(crate) struct Handle {
    pub(crate) desired: Arc<watch::Sender<DesiredState>>,
    wake: Arc<Notify>,
    retry_now: Arc<AtomicBool>,
}

/// The worker's end.
pub(crate) struct Inbox {
    desired: watch::Receiver<DesiredState>,
    wake: Arc<Notify>,
    retry_now: Arc<AtomicBool>,
}

/// Both ends for a new worker.
pub(crate) fn channel(pod: Arc<Pod>) -> (Handle, Inbox) {
    let state = DesiredState { pod, mirror: None, gone: false, kill: None };
    let (sender, desired) = watch::channel(state);
    let handle = Handle {
        desired: Arc::new(sender),
        wake: Arc::new(Notify::new()),
        retry_now: Arc::default(),
    };
    let (wake, retry_now) = (handle.wake.clone(), handle.retry_now.clone());
    (handle, Inbox { desired, wake, retry_now })
}

impl Handle {
    pub(crate) fn update(&self, pod: Arc<Pod>) {
        self.desired.send_modify(|desired| desired.pod = pod);
    }

    pub(crate) fn mirror(&self, mirror: Option<Arc<Pod>>) {
        self.desired.send_modify(|desired| desired.mirror = mirror);
    }

    pub(crate) fn gone(&self) {
        self.desired.send_modify(|desired| desired.gone = true);
    }

    /// The first request's reason stays; a later request can only shorten the grace period (T-NODE-5).
    pub(crate) fn kill(&self, kill: KillRequest) {
        self.desired.send_modify(|desired| {
            let own = pod_grace(&desired.pod, None, false);
            let grace = |kill: &KillRequest| kill.grace.unwrap_or(own);
            desired.kill = Some(match desired.kill.take() {
                None => kill,
                Some(first) if grace(&first) <= grace(&kill) => first,
                Some(first) => KillRequest { verdict: first.verdict, ..kill },
            });
        });
    }

    /// Makes the worker look again: something happened to a container, or a probe result changed.
    pub(crate) fn wake(&self) {
        self.wake.notify_one();
    }

    /// Makes the worker retry at once what failed before: an object that the pod uses appeared or changed.
    pub(crate) fn retry_now(&self) {
        self.retry_now.store(true, Ordering::Relaxed);
        self.wake();
    }
}

impl Inbox {
    pub(super) fn current(&self) -> watch::Ref<'_, DesiredState> {
        self.desired.borrow()
    }

    /// The current state; only later changes count as changes from here on.
    pub(super) fn take(&mut self) -> DesiredState {
        self.desired.borrow_and_update().clone()
    }

    /// Whether [`Handle::retry_now`] was called since the last call.
    pub(super) fn take_retry_now(&self) -> bool {
        self.retry_now.swap(false, Ordering::Relaxed)
    }

    /// Waits for the next [`Handle::wake`].
    pub(super) async fn woken(&self) {
        self.wake.notified().await;
    }

    /// Waits until the desired state changes or the agent wakes the worker, at most for `pause`.
    pub(super) async fn wait(&mut self, pause: Duration) {
        tokio::select! {
            biased;
            _ = self.desired.changed() => {}
            () = self.wake.notified() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }

    /// A second view of the desired state, to wait for it while the worker is busy with something else.
    pub(super) fn watch(&self) -> DesiredWatch {
        DesiredWatch(self.desired.clone())
    }
}

/// Waits for changes of the desired state. If the agent goes away, it waits forever.
pub(super) struct DesiredWatch(watch::Receiver<DesiredState>);

impl DesiredWatch {
    pub(super) async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Resolves when the pod has to terminate: long waits are given up for it.
    pub(super) async fn termination(&mut self) {
        self.wait_for(DesiredState::is_termination).await;
    }

    /// Resolves when the API has another version of the pod than `pod`.
    pub(super) async fn other_version(&mut self, pod: &Pod) {
        let version = pod.metadata.resource_version.clone();
        self.wait_for(|desired| desired.pod.metadata.resource_version != version).await;
    }

    async fn wait_for(&mut self, condition: impl Fn(&DesiredState) -> bool) {
        if self.0.wait_for(condition).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
