//! Which pod has which worker. One task: pods are admitted one after another, oldest first (N-27).
//!
//!     pods of this node (API, manifests) ─┐
//!     changes in the runtime ─────────────┼──▶ dispatch ──▶ workers
//!     probe results, changed objects ─────┘

mod mirrors;
mod resizes;

use crate::admission::{self, Here, Rejection, Verdict};
use crate::node_object::Health;
use crate::parts::Parts;
use crate::static_pods::is_mirror;
use crate::worker::{Handle, Kill, Worker};
use client::{Cache, ObjectKey};
use k8s_openapi::api::core::v1::Pod;
use lifecycle::status;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;

/// Resizes that wait for room are tried again at least this often (N-118).
const RESIZE_AGAIN: Duration = Duration::from_secs(180);

/// Something the agent as a whole is told.
pub(crate) enum News {
    /// The API's view of this pod changed.
    Pod(ObjectKey),
    /// These are the pods of the manifests now.
    Static(Arc<Vec<Arc<Pod>>>),
    /// Look again at this pod.
    Look(String),
    /// Something that this pod uses has come or changed.
    Anew(String),
    /// Look again at all of them.
    LookAtAll,
    /// The node wants this pod to end.
    Kill { uid: String, kill: Kill },
    /// No more pods are started. The answer: those that have not ended.
    Close(oneshot::Sender<Vec<Arc<Pod>>>),
    /// Pods are started again.
    Open,
}

pub(crate) struct Dispatch {
    parts: Arc<Parts>,
    pods: Cache<Pod>,
    health: watch::Receiver<Health>,
    workers: BTreeMap<String, Handle>,
    /// Whose pod of that name in the API it was when it was looked at last.
    by_key: BTreeMap<ObjectKey, String>,
    /// Static pods by name, and those that wait for an earlier one of that name to be gone (T-NODE-90).
    statics: BTreeMap<ObjectKey, String>,
    waiting: BTreeMap<ObjectKey, Arc<Pod>>,
    mirrors: mirrors::Leftover,
    /// Uids of pods that passed admission and have not ended.
    admitted: BTreeSet<String>,
    running: JoinSet<String>,
    /// No more pods are to be started.
    closed: bool,
}

impl Dispatch {
    pub(crate) fn new(
        parts: Arc<Parts>,
        pods: Cache<Pod>,
        health: watch::Receiver<Health>,
    ) -> Dispatch {
        Dispatch {
            parts,
            pods,
            health,
            workers: BTreeMap::new(),
            by_key: BTreeMap::new(),
            statics: BTreeMap::new(),
            waiting: BTreeMap::new(),
            mirrors: mirrors::Leftover::default(),
            admitted: BTreeSet::new(),
            running: JoinSet::new(),
            closed: false,
        }
    }

    /// Until everything was told to end and has ended; or for ever. `found`: the pods that were there when
    /// the agent started.
    pub(crate) async fn run(mut self, found: Vec<Arc<Pod>>, mut news: mpsc::Receiver<News>) {
        self.begin(found);
        let mut active = self.parts.active.subscribe();
        let mut again = tokio::time::interval(RESIZE_AGAIN);
        loop {
            tokio::select! {
                biased;
                // Each ends once; news may never cease.
                Some(ended) = self.running.join_next(), if !self.running.is_empty() => {
                    match ended {
                        Ok(uid) => self.ended(&uid),
                        Err(error) => tracing::error!(%error, "a pod's worker failed"),
                    }
                }
                // A pod has ended, though its object may stay.
                Ok(()) = active.changed() => self.resizes(),
                _ = again.tick() => self.resizes(),
                told = news.recv() => match told {
                    Some(told) => self.told(told),
                    None => return,
                },
            }
        }
    }

    /// Oldest first (N-27), and as they were found: one that has gone since may run here, and nobody else
    /// would end it.
    fn begin(&mut self, mut found: Vec<Arc<Pod>>) {
        found.sort_by(|a, b| {
            let age = |pod: &Pod| pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
            age(a).cmp(&age(b)).then_with(|| ObjectKey::of(&**a).cmp(&ObjectKey::of(&**b)))
        });
        for pod in found.iter().filter(|pod| !is_mirror(pod)) {
            let uid = pod.metadata.uid.clone().unwrap_or_default();
            self.by_key.insert(ObjectKey::of(&**pod), uid.clone());
            self.wanted(uid, pod.clone());
        }
        // All have what they had; now those that meanwhile asked for something else (N-122) or went.
        for pod in &found {
            self.pod_changed(&ObjectKey::of(&**pod));
        }
    }

    fn told(&mut self, news: News) {
        match news {
            News::Pod(key) => self.pod_changed(&key),
            News::Static(pods) => self.static_changed(&pods),
            News::Look(uid) => {
                if let Some(worker) = self.workers.get(&uid) {
                    worker.news.notify_one();
                }
            }
            News::Anew(uid) => {
                if let Some(worker) = self.workers.get(&uid) {
                    worker.try_anew();
                }
            }
            News::LookAtAll => self.workers.values().for_each(|worker| worker.news.notify_one()),
            News::Kill { uid, kill } => {
                if let Some(worker) = self.workers.get(&uid) {
                    worker.kill(kill);
                }
            }
            News::Close(answer) => {
                self.closed = true;
                let _ = answer.send(self.active());
            }
            News::Open => self.closed = false,
        }
    }

    fn active(&self) -> Vec<Arc<Pod>> {
        let active = self.parts.active.borrow();
        let workers = self.workers.iter().filter(|(uid, _)| active.contains_key(*uid));
        workers.map(|(_, worker)| worker.orders.borrow().pod.clone()).collect()
    }

    fn pod_changed(&mut self, key: &ObjectKey) {
        self.tell_mirror(key);
        self.clear_mirror(key);
        let pod = self.pods.get(key).filter(|pod| !is_mirror(pod)); // N-25: run from its manifest.
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
            self.wanted(uid, pod);
        }
    }

    /// What is no longer there ends; what is new starts when an earlier one of its name is gone.
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
            self.clear_mirror(&ObjectKey::of(&*pod));
        }
    }

    fn start_static(&mut self, key: ObjectKey, uid: String, pod: Arc<Pod>) {
        self.statics.insert(key.clone(), uid.clone());
        self.wanted(uid.clone(), pod);
        self.tell_mirror(&key);
    }

    /// The copy of a static pod in the API has changed, come or gone.
    fn tell_mirror(&self, key: &ObjectKey) {
        let worker = self.statics.get(key).and_then(|uid| self.workers.get(uid));
        if let Some(worker) = worker {
            worker.mirror(self.pods.get(key).filter(|pod| is_mirror(pod)));
        }
    }

    fn wanted(&mut self, uid: String, pod: Arc<Pod>) {
        if let Some(worker) = self.workers.get(&uid) {
            self.resize(&uid, &pod);
            return worker.update(pod);
        }
        let (handle, orders) = Handle::new(pod.clone());
        let worker = Worker::new(self.parts.clone(), &handle, orders);
        self.workers.insert(uid.clone(), handle);
        // What it was granted before counts, not what it asks for by now (N-122).
        let granted = self.parts.allocations.on(&pod);
        let refusal = self.refusal(&granted);
        // Before its worker's first step, so that a shutdown cannot overlook it. Also one that is refused:
        // it may run.
        let title = format!("{}", ObjectKey::of(&*pod));
        self.parts.active.send_modify(|active| drop(active.insert(uid.clone(), title)));
        match refusal {
            None => {
                self.parts.allocations.admit(&pod);
                self.parts.pods.put(granted);
                self.admitted.insert(uid.clone());
                self.running.spawn(async move {
                    worker.run().await;
                    uid
                });
            }
            Some(refusal) => {
                self.running.spawn(async move {
                    worker.reject(&refusal.reason, &refusal.message).await;
                    uid
                });
            }
        }
    }

    /// Pods that have ended, or are ending, are not asked (N-27).
    fn refusal(&self, pod: &Pod) -> Option<Rejection> {
        let over = pod.metadata.deletion_timestamp.is_some()
            || pod.status.as_ref().is_some_and(status::is_terminal);
        let node = self.parts.node().filter(|_| !over)?;
        let pressure = self.health.borrow().pressure();
        let here = Here {
            node: &node,
            pressure: &pressure,
            sysctls: &[],
            apparmor: false,
            strict_groups: self.parts.runtime.features().strict_groups,
            shutting_down: self.closed,
        };
        match admission::decide(&here, &self.admitted(), pod) {
            Verdict::Admit => None,
            Verdict::AdmitAfter(victims) => {
                victims.iter().for_each(|victim| self.preempt(victim));
                None
            }
            Verdict::Reject(rejection) => Some(rejection),
        }
    }

    /// Pods that take room here, with what they were granted. One that has ended takes none.
    fn admitted(&self) -> Vec<Arc<Pod>> {
        let active = self.parts.active.borrow();
        let ended = |pod: &Pod, uid: &String| {
            pod.status.as_ref().is_some_and(status::is_terminal) && !active.contains_key(uid)
        };
        let pods = self.admitted.iter().filter_map(|uid| Some((uid, self.parts.pods.by_uid(uid)?)));
        let there = pods.filter(|(uid, pod)| !ended(pod, uid));
        there.map(|(_, pod)| self.parts.allocations.on(&pod)).collect()
    }

    /// T-NODE-83
    fn preempt(&self, victim: &Pod) {
        let message = "Preempted in order to admit critical pod";
        self.parts.recorder.warning(&client::reference(victim), "Preempting", message);
        self.parts.metrics.add("kubelet_preemptions", &[("preemption_signal", "")], 1);
        let worker = victim.metadata.uid.as_ref().and_then(|uid| self.workers.get(uid));
        if let Some(worker) = worker {
            let verdict = status::Verdict {
                reason: "Preempting".into(),
                message: message.into(),
                disruption: true,
            };
            worker.kill(Kill { verdict, grace: None });
        }
    }

    fn ended(&mut self, uid: &str) {
        self.admitted.remove(uid);
        self.parts.allocations.remove(uid);
        let Some(worker) = self.workers.remove(uid) else { return };
        let key = ObjectKey::of(&*worker.orders.borrow().pod);
        if self.by_key.get(&key).is_some_and(|known| known == uid) {
            self.by_key.remove(&key);
        }
        if self.statics.get(&key).is_some_and(|known| known == uid) {
            self.statics.remove(&key);
            if let Some(pod) = self.waiting.remove(&key) {
                self.start_static(key, pod.metadata.uid.clone().unwrap_or_default(), pod);
            } else {
                self.clear_mirror(&key);
            }
        }
    }
}
