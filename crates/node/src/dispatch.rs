//! Gives every pod of this node a worker, and every worker its events. One task, so that pods are admitted
//! one after another, oldest first (N-27).
//!
//!     pods of this node (API, manifests) ─┐
//!     changes in the runtime ─────────────┼──▶ dispatch ──▶ workers
//!     probe results, changed objects ─────┘

mod mirrors;
mod resizes;

use crate::admission::{self, Decision, NodeState, Rejection};
use crate::dependencies::Dependencies;
use crate::node_object::Health;
use crate::static_pods::is_mirror;
use crate::worker::{self, Handle, KillRequest, Worker};
use client::{Cache, ObjectKey};
use k8s_openapi::api::core::v1::Pod;
use lifecycle::status;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;

/// Resizes that wait for capacity are retried at least this often (N-118).
const RESIZE_RETRY: Duration = Duration::from_secs(180);

/// Something that concerns one or all workers.
pub(crate) enum AgentEvent {
    /// The object of this pod in the API changed.
    PodChanged(ObjectKey),
    /// All static pods, after a change of their manifests.
    StaticPods(Arc<Vec<Arc<Pod>>>),
    /// A container or a probe result of the pod with this uid changed.
    PodObserved(String),
    /// An object that the pod with this uid uses appeared or changed.
    UsedObjectChanged(String),
    /// Changes of containers were missed: all workers have to observe their pods.
    EventsLost,
    /// The node terminates this pod.
    Kill { uid: String, kill: KillRequest },
    /// No more pods are started. The reply lists the pods that have not terminated.
    Close(oneshot::Sender<Vec<Arc<Pod>>>),
    /// Pods are started again.
    Open,
}

pub(crate) struct Dispatch {
    deps: Arc<Dependencies>,
    pods: Cache<Pod>,
    health: watch::Receiver<Health>,
    workers: BTreeMap<String, Handle>,
    /// UID last seen under this name.
    by_key: BTreeMap<ObjectKey, String>,
    /// UIDs of static pods by name, and static pods that wait until an earlier one of the same name is gone
    /// (T-NODE-90).
    statics: BTreeMap<ObjectKey, String>,
    waiting: BTreeMap<ObjectKey, Arc<Pod>>,
    mirrors: mirrors::Leftover,
    /// UIDs of pods that passed admission and have not terminated.
    admitted: BTreeSet<String>,
    /// UIDs of pods that had running containers when the agent started.
    ran_at_start: BTreeSet<String>,
    running: JoinSet<String>,
    /// The node shuts down: no more pods are started.
    closed: bool,
}

impl Dispatch {
    pub(crate) fn new(
        deps: Arc<Dependencies>,
        pods: Cache<Pod>,
        health: watch::Receiver<Health>,
    ) -> Dispatch {
        Dispatch {
            deps,
            pods,
            health,
            workers: BTreeMap::new(),
            by_key: BTreeMap::new(),
            statics: BTreeMap::new(),
            waiting: BTreeMap::new(),
            mirrors: mirrors::Leftover::default(),
            admitted: BTreeSet::new(),
            ran_at_start: BTreeSet::new(),
            running: JoinSet::new(),
            closed: false,
        }
    }

    /// Runs until the senders of events are gone. `found`: the pods of this node when the agent started.
    /// `running`: UIDs of pods that had running containers at that moment.
    pub(crate) async fn run(
        mut self,
        found: Vec<Arc<Pod>>,
        running: BTreeSet<String>,
        mut events: mpsc::Receiver<AgentEvent>,
    ) {
        self.ran_at_start = running;
        self.start_found(found);
        let mut active = self.deps.active.subscribe();
        let mut retry = tokio::time::interval(RESIZE_RETRY);
        loop {
            tokio::select! {
                biased;
                // Before events, which may never stop arriving; a worker finishes only once.
                Some(finished) = self.running.join_next(), if !self.running.is_empty() => {
                    match finished {
                        Ok(uid) => self.worker_finished(&uid),
                        Err(error) => tracing::error!(%error, "a pod's worker panicked"),
                    }
                }
                // A pod has terminated, though its object may still exist.
                Ok(()) = active.changed() => self.retry_resizes(),
                _ = retry.tick() => self.retry_resizes(),
                event = events.recv() => match event {
                    Some(event) => self.handle(event),
                    None => return,
                },
            }
        }
    }

    /// Starts workers for the pods that the agent found, oldest first (N-27). Also for pods whose object is gone
    /// by now: they may run here, and nothing else would terminate them.
    fn start_found(&mut self, mut found: Vec<Arc<Pod>>) {
        found.sort_by(|a, b| {
            let age = |pod: &Pod| pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
            age(a).cmp(&age(b)).then_with(|| ObjectKey::of(&**a).cmp(&ObjectKey::of(&**b)))
        });
        for pod in found.iter().filter(|pod| !is_mirror(pod)) {
            let uid = pod.metadata.uid.clone().unwrap_or_default();
            self.by_key.insert(ObjectKey::of(&**pod), uid.clone());
            self.start_or_update(uid, pod.clone());
        }
        // Now that all have what they were granted before: pods that changed (N-122) or went meanwhile.
        for pod in &found {
            self.pod_changed(&ObjectKey::of(&**pod));
        }
    }

    fn handle(&mut self, event: AgentEvent) {
        match event {
            AgentEvent::PodChanged(key) => self.pod_changed(&key),
            AgentEvent::StaticPods(pods) => self.static_changed(&pods),
            AgentEvent::PodObserved(uid) => {
                if let Some(worker) = self.workers.get(&uid) {
                    worker.wake();
                }
            }
            AgentEvent::UsedObjectChanged(uid) => {
                if let Some(worker) = self.workers.get(&uid) {
                    worker.retry_now();
                }
            }
            AgentEvent::EventsLost => self.workers.values().for_each(|worker| worker.wake()),
            AgentEvent::Kill { uid, kill } => {
                if let Some(worker) = self.workers.get(&uid) {
                    worker.kill(kill);
                }
            }
            AgentEvent::Close(reply) => {
                self.closed = true;
                let _ = reply.send(self.active());
            }
            AgentEvent::Open => self.closed = false,
        }
    }

    fn active(&self) -> Vec<Arc<Pod>> {
        let active = self.deps.active.borrow();
        let workers = self.workers.iter().filter(|(uid, _)| active.contains_key(*uid));
        workers.map(|(_, worker)| worker.desired.borrow().pod.clone()).collect()
    }

    fn pod_changed(&mut self, key: &ObjectKey) {
        self.update_mirror(key);
        self.delete_leftover_mirror(key);
        // A static pod runs from its manifest, not from its mirror (N-25).
        let pod = self.pods.get(key).filter(|pod| !is_mirror(pod));
        let uid = pod.as_ref().and_then(|pod| pod.metadata.uid.clone());
        let before = self.by_key.get(key).cloned();
        if let Some(before) = before.filter(|before| uid.as_ref() != Some(before)) {
            self.by_key.remove(key);
            if let Some(worker) = self.workers.get(&before) {
                worker.gone();
            }
        }
        if let (Some(pod), Some(uid)) = (pod, uid) {
            self.by_key.insert(key.clone(), uid.clone());
            self.start_or_update(uid, pod);
        }
    }

    /// Terminates static pods without a manifest, and starts new ones when an earlier pod of the same name is
    /// gone.
    fn static_changed(&mut self, pods: &[Arc<Pod>]) {
        let uids: BTreeSet<&str> =
            pods.iter().filter_map(|pod| pod.metadata.uid.as_deref()).collect();
        for uid in self.statics.values().filter(|uid| !uids.contains(uid.as_str())) {
            if let Some(worker) = self.workers.get(uid) {
                worker.gone();
            }
        }
        self.waiting.clear();
        for pod in pods {
            let (key, uid) = (ObjectKey::of(&**pod), pod.metadata.uid.clone().unwrap_or_default());
            match self.statics.get(&key) {
                Some(known) if *known != uid => drop(self.waiting.insert(key, pod.clone())),
                Some(_) | None => self.start_static(key, uid, pod.clone()),
            }
        }
        self.mirrors.manifests_are_known = true;
        for pod in self.pods.list() {
            self.delete_leftover_mirror(&ObjectKey::of(&*pod));
        }
    }

    fn start_static(&mut self, key: ObjectKey, uid: String, pod: Arc<Pod>) {
        self.statics.insert(key.clone(), uid.clone());
        self.start_or_update(uid.clone(), pod);
        self.update_mirror(&key);
    }

    /// Passes the mirror of a static pod in the API on to its worker.
    fn update_mirror(&self, key: &ObjectKey) {
        let worker = self.statics.get(key).and_then(|uid| self.workers.get(uid));
        if let Some(worker) = worker {
            worker.mirror(self.pods.get(key).filter(|pod| is_mirror(pod)));
        }
    }

    fn start_or_update(&mut self, uid: String, pod: Arc<Pod>) {
        if let Some(worker) = self.workers.get(&uid) {
            self.resize(&uid, &pod);
            return worker.update(pod);
        }
        let (handle, inbox) = worker::channel(pod.clone());
        let worker = Worker::new(self.deps.clone(), inbox);
        self.workers.insert(uid.clone(), handle);
        // Resources granted before count, not those that the pod requests by now (N-122).
        let granted = self.deps.allocations.with_granted(&pod);
        let rejection = self.rejection(&granted);
        // Before its worker's first step, so that a shutdown cannot miss it. Also for a rejected pod, which may
        // run.
        let title = format!("{}", ObjectKey::of(&*pod));
        self.deps.active.send_modify(|active| drop(active.insert(uid.clone(), title)));
        match rejection {
            None => {
                if !self.is_finished(&uid, &pod) {
                    self.deps.allocations.admit(&pod);
                    self.admitted.insert(uid.clone());
                }
                self.deps.pods.put(granted);
                self.running.spawn(async move {
                    worker.run().await;
                    uid
                });
            }
            Some(rejection) => {
                self.running.spawn(async move {
                    worker.reject(&rejection.reason, &rejection.message).await;
                    uid
                });
            }
        }
    }

    /// The API has the pod as finished and no container of it runs: it never uses capacity again. Its container
    /// statuses may be out of date and do not count.
    fn is_finished(&self, uid: &str, pod: &Pod) -> bool {
        status::is_terminal_pod(pod) && !self.ran_at_start.contains(uid)
    }

    /// Why the node does not admit a pod. Pods that have terminated or are terminating are not checked (N-27).
    fn rejection(&self, pod: &Pod) -> Option<Rejection> {
        let over = pod.metadata.deletion_timestamp.is_some() || status::is_terminal_pod(pod);
        let node = self.deps.node().filter(|_| !over)?;
        let pressure = self.health.borrow().pressure();
        let here = NodeState {
            node: &node,
            pressure: &pressure,
            sysctls: &[],
            apparmor: false,
            strict_groups: self.deps.runtime.features().strict_groups,
            shutting_down: self.closed,
        };
        match admission::decide(&here, &self.admitted(), pod) {
            Decision::Admit => None,
            Decision::AdmitAfter(victims) => {
                victims.iter().for_each(|victim| self.preempt(victim));
                None
            }
            Decision::Reject(rejection) => Some(rejection),
        }
    }

    /// Pods that use capacity of this node, with what they were granted.
    fn admitted(&self) -> Vec<Arc<Pod>> {
        let pods = self.admitted.iter().filter_map(|uid| self.deps.pods.by_uid(uid));
        let counted = pods.filter(|pod| admission::uses_capacity(pod));
        counted.map(|pod| self.deps.allocations.with_granted(&pod)).collect()
    }

    /// Terminates a pod to make room for a critical one (T-NODE-83).
    fn preempt(&self, victim: &Pod) {
        let message = "Preempted in order to admit critical pod";
        self.deps.recorder.warning(&client::reference(victim), "Preempting", message);
        self.deps.metrics.add("kubelet_preemptions", &[("preemption_signal", "")], 1);
        let worker = victim.metadata.uid.as_ref().and_then(|uid| self.workers.get(uid));
        if let Some(worker) = worker {
            let verdict = status::Verdict {
                reason: "Preempting".into(),
                message: message.into(),
                disruption: true,
            };
            worker.kill(KillRequest { verdict, grace: None });
        }
    }

    fn worker_finished(&mut self, uid: &str) {
        self.admitted.remove(uid);
        self.deps.allocations.remove(uid);
        let Some(worker) = self.workers.remove(uid) else { return };
        let key = ObjectKey::of(&*worker.desired.borrow().pod);
        if self.by_key.get(&key).is_some_and(|known| known == uid) {
            self.by_key.remove(&key);
        }
        if self.statics.get(&key).is_some_and(|known| known == uid) {
            self.statics.remove(&key);
            if let Some(pod) = self.waiting.remove(&key) {
                self.start_static(key, pod.metadata.uid.clone().unwrap_or_default(), pod);
            } else {
                self.delete_leftover_mirror(&key);
            }
        }
    }
}
