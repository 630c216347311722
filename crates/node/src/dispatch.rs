//! Which pod has which worker. One task: pods are admitted one after another, oldest first (N-27).
//!
//!     pods of this node (API, manifests) ─┐
//!     changes in the runtime ─────────────┼──▶ dispatch ──▶ workers
//!     probe results, changed objects ─────┘

use crate::admission;
use crate::parts::Parts;
use crate::worker::{Handle, Kill, Worker};
use client::{Cache, ObjectKey};
use k8s_openapi::api::core::v1::Pod;
use lifecycle::status;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Something the agent as a whole is told.
pub(crate) enum News {
    /// The API's view of this pod changed.
    Pod(ObjectKey),
    /// A pod of a manifest came, changed, or (None) went.
    Static { uid: String, pod: Option<Arc<Pod>> },
    /// Look again at this pod.
    Look(String),
    /// Look again at all of them.
    LookAtAll,
    /// The node wants this pod to end.
    Kill { uid: String, kill: Kill },
    /// No more pods are started; those that run are to end.
    EndAll(Kill),
}

pub(crate) struct Dispatch {
    parts: Arc<Parts>,
    pods: Cache<Pod>,
    workers: BTreeMap<String, Handle>,
    /// Whose pod of that name in the API it was when it was looked at last.
    by_key: BTreeMap<ObjectKey, String>,
    /// Uids of pods that passed admission and have not ended.
    admitted: BTreeSet<String>,
    running: JoinSet<String>,
    /// Set when no more pods are to be started.
    closing: Option<Kill>,
}

impl Dispatch {
    pub(crate) fn new(parts: Arc<Parts>, pods: Cache<Pod>) -> Dispatch {
        Dispatch {
            parts,
            pods,
            workers: BTreeMap::new(),
            by_key: BTreeMap::new(),
            admitted: BTreeSet::new(),
            running: JoinSet::new(),
            closing: None,
        }
    }

    /// Until everything was told to end and has ended; or for ever.
    pub(crate) async fn run(mut self, mut news: mpsc::Receiver<News>) {
        self.begin();
        loop {
            tokio::select! {
                told = news.recv() => match told {
                    Some(told) => self.told(told),
                    None => return,
                },
                Some(ended) = self.running.join_next(), if !self.running.is_empty() => {
                    match ended {
                        Ok(uid) => self.ended(&uid),
                        Err(error) => tracing::error!(%error, "a pod's worker failed"),
                    }
                }
            }
        }
    }

    /// All pods that were there when the agent started, oldest first (N-27).
    fn begin(&mut self) {
        let mut pods = self.pods.list();
        pods.sort_by(|a, b| {
            let age = |pod: &Pod| pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
            age(a).cmp(&age(b)).then_with(|| ObjectKey::of(&**a).cmp(&ObjectKey::of(&**b)))
        });
        for pod in pods {
            self.pod_changed(&ObjectKey::of(&*pod));
        }
    }

    fn told(&mut self, news: News) {
        match news {
            News::Pod(key) => self.pod_changed(&key),
            News::Static { uid, pod } => self.static_changed(&uid, pod),
            News::Look(uid) => {
                if let Some(worker) = self.workers.get(&uid) {
                    worker.news.notify_one();
                }
            }
            News::LookAtAll => self.workers.values().for_each(|worker| worker.news.notify_one()),
            News::Kill { uid, kill } => {
                if let Some(worker) = self.workers.get(&uid) {
                    worker.kill(kill);
                }
            }
            News::EndAll(kill) => {
                self.workers.values().for_each(|worker| worker.kill(kill.clone()));
                self.closing = Some(kill);
            }
        }
    }

    fn pod_changed(&mut self, key: &ObjectKey) {
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
            self.wanted(uid, pod);
        }
    }

    fn static_changed(&mut self, uid: &str, pod: Option<Arc<Pod>>) {
        match (pod, self.workers.get(uid)) {
            (Some(pod), _) => self.wanted(uid.to_owned(), pod),
            (None, Some(worker)) => worker.gone(),
            (None, None) => {}
        }
    }

    fn wanted(&mut self, uid: String, pod: Arc<Pod>) {
        if let Some(worker) = self.workers.get(&uid) {
            return worker.update(pod);
        }
        let (handle, orders) = Handle::new(pod.clone());
        let worker = Worker::new(self.parts.clone(), &handle, orders);
        if let Some(kill) = &self.closing {
            handle.kill(kill.clone());
        }
        self.workers.insert(uid.clone(), handle);
        match self.refusal(&pod) {
            None => {
                self.admitted.insert(uid.clone());
                self.running.spawn(async move {
                    worker.run().await;
                    uid
                });
            }
            Some(refusal) => {
                self.running.spawn(async move {
                    worker.reject(refusal.reason.as_ref(), &refusal.message).await;
                    uid
                });
            }
        }
    }

    /// Pods that have ended, or are ending, are not asked (N-27).
    fn refusal(&self, pod: &Pod) -> Option<admission::Rejection> {
        let over = pod.metadata.deletion_timestamp.is_some()
            || pod.status.as_ref().is_some_and(status::is_terminal);
        if over {
            return None;
        }
        let admitted: Vec<Arc<Pod>> =
            self.admitted.iter().filter_map(|uid| self.parts.pods.by_uid(uid)).collect();
        self.parts.admit(pod, &admitted).err()
    }

    fn ended(&mut self, uid: &str) {
        self.admitted.remove(uid);
        if let Some(worker) = self.workers.remove(uid) {
            let gone = worker.orders.borrow().gone;
            let key = ObjectKey::of(&*worker.orders.borrow().pod);
            if self.by_key.get(&key).is_some_and(|known| known == uid) && gone {
                self.by_key.remove(&key);
            }
        }
    }
}

/// The API's copy of a static pod is not run; it is run from its manifest (N-25).
fn is_mirror(pod: &Pod) -> bool {
    let annotations = pod.metadata.annotations.as_ref();
    annotations.is_some_and(|all| all.contains_key("kubernetes.io/config.mirror"))
}
