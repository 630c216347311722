//! Writes down what this node does to end pods, as it happens, and tells the API.
//!
//!     worker ──record──▶ journal on disk ──▶ a task per pod ──POST …/steps──▶ API
//!
//! A step is in the journal before `record` returns, so that an agent that is killed loses none, and
//! the server keeps a step once however often it is told. Nobody waits for the API here, except
//! [`Timeline::flush`] for a moment. Not here: what steps mean (`lifecycle::timeline`).

mod journal;

use client::{Client, ObjectKey};
use jiff::Timestamp;
use journal::Journal;
use k8s_openapi::api::core::v1::Pod;
use lifecycle::timeline::{self, STEPS, STEPS_MAX, Stamp, Step, Steps, Subject, Termination, What};
use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::{Notify, Semaphore, watch};

/// Steps that come this close together are told together.
const GATHER: Duration = Duration::from_millis(25);
/// A request has at most this many steps.
const BATCH: usize = 64;
/// Requests under way at once, of all pods.
const CONCURRENT: usize = 8;
/// How long an ending waits for the API to know its steps before the object goes.
const FLUSH_MAX: Duration = Duration::from_secs(1);
/// What could not be told is told again after this, doubling.
const AGAIN: Duration = Duration::from_millis(500);
const AGAIN_MAX: Duration = Duration::from_secs(10);

/// A handle; clones share everything. Needs a tokio runtime.
#[derive(Clone)]
pub struct Timeline(Arc<Shared>);

struct Shared {
    client: Client,
    node: String,
    actor: String,
    incarnation: String,
    next: AtomicI64,
    directory: PathBuf,
    /// Pods with something to tell, by uid.
    pods: Mutex<BTreeMap<String, Entry>>,
    permits: Semaphore,
    /// Told after every answer of the API.
    answered: watch::Sender<()>,
}

struct Entry {
    namespace: String,
    subject: Subject,
    journal: Option<Journal>,
    waiting: VecDeque<Step>,
    /// No further gathering: somebody waits.
    urgent: Arc<Notify>,
    /// A task is telling.
    telling: bool,
    /// Nothing more is expected.
    over: bool,
}

/// The time by both clocks.
pub fn stamp() -> Stamp {
    Stamp { at: clock::now(), monotonic: clock::monotonic() }
}

impl Timeline {
    /// Goes on with what an earlier agent on this directory did not get told.
    pub fn open(client: &Client, node: &str, directory: &Path) -> Timeline {
        if let Err(error) = std::fs::create_dir_all(directory) {
            tracing::warn!(%error, path = %directory.display(), "steps of endings are not kept on disk");
        }
        let timeline = Timeline(Arc::new(Shared {
            client: client.clone(),
            node: node.to_owned(),
            actor: format!("node/{node}"),
            incarnation: clock::uuid().chars().take(8).collect(),
            next: AtomicI64::new(0),
            directory: directory.to_owned(),
            pods: Mutex::default(),
            permits: Semaphore::new(CONCURRENT),
            answered: watch::Sender::new(()),
        }));
        timeline.resume();
        timeline
    }

    /// Something happened to the pod as a whole, now.
    pub fn record(&self, pod: &Pod, what: What) {
        self.record_at(pod, "", stamp(), what, "");
    }

    /// Something happened to one of its containers, then.
    pub fn record_at(&self, pod: &Pod, container: &str, at: Stamp, what: What, message: &str) {
        let meta = &pod.metadata;
        let namespace = meta.namespace.clone().unwrap_or_default();
        let step = self.step(container, at, what, message);
        self.add(&namespace, || subject(pod, &self.0.node), step);
    }

    /// Something that can be seen again by a later agent, such as an exit: `which` makes it one step
    /// however often it is seen.
    pub fn record_once(&self, pod: &Pod, container: &str, which: &str, at: Stamp, what: What) {
        let namespace = pod.metadata.namespace.clone().unwrap_or_default();
        let which = format!("end of {}", which.chars().take(12).collect::<String>());
        let step = Step { incarnation: which, sequence: 0, ..self.step(container, at, what, "") };
        self.add(&namespace, || subject(pod, &self.0.node), step);
    }

    /// Of a pod whose object is gone: what the runtime still knows of it.
    pub(crate) fn record_orphan(&self, pod: &runtime::Identity, what: What) {
        let subject = Subject {
            name: pod.name.clone(),
            uid: pod.uid.clone(),
            node: self.0.node.clone(),
            owner: String::new(),
        };
        let step = self.step("", stamp(), what, "");
        self.add(&pod.namespace, || subject, step);
    }

    /// What is left to tell, when the agent stops: a moment for each, and the rest is in the journals.
    pub async fn flush_all(&self) {
        let waiting: Vec<String> = self.lock().keys().cloned().collect();
        futures::future::join_all(waiting.iter().map(|uid| self.flush(uid))).await;
    }

    /// Until the API knows what was recorded of the pod, but not for long: endings do not depend on
    /// being watched.
    pub async fn flush(&self, uid: &str) {
        let mut answered = self.0.answered.subscribe();
        // Once: an API that refuses is asked again at its own pace.
        if let Some(entry) = self.lock().get(uid) {
            entry.urgent.notify_one();
        }
        let told = async {
            loop {
                answered.borrow_and_update();
                if self.lock().get(uid).is_none_or(|entry| entry.waiting.is_empty()) {
                    return;
                }
                if answered.changed().await.is_err() {
                    return;
                }
            }
        };
        if tokio::time::timeout(FLUSH_MAX, told).await.is_err() {
            tracing::info!(uid, "the API does not know yet how this pod ended; it will be told");
            self.sync(uid).await;
        }
    }

    /// The object is about to go, and what is known of its end is known here only.
    async fn sync(&self, uid: &str) {
        let sync = self.lock().get(uid).and_then(|entry| Some(entry.journal.as_ref()?.synced()));
        let synced = match sync {
            None => return,
            Some(Ok(sync)) => {
                clock::apart(sync).await.unwrap_or_else(|error| Err(std::io::Error::other(error)))
            }
            Some(Err(error)) => Err(error),
        };
        if let Err(error) = synced {
            tracing::warn!(uid, %error, "a power cut now would lose how this pod ended");
        }
    }

    fn step(&self, container: &str, at: Stamp, what: What, message: &str) -> Step {
        Step {
            at: at.at,
            monotonic: at.monotonic,
            actor: self.0.actor.clone(),
            incarnation: self.0.incarnation.clone(),
            sequence: self.0.next.fetch_add(1, Ordering::Relaxed),
            container: container.to_owned(),
            what,
            message: message.to_owned(),
        }
    }

    fn add(&self, namespace: &str, subject: impl FnOnce() -> Subject, step: Step) {
        let subject = subject();
        let uid = subject.uid.clone();
        let mut pods = self.lock();
        let entry = pods.entry(uid.clone()).or_insert_with(|| {
            let journal = Journal::begin(&self.0.directory, namespace, &subject);
            Entry::new(namespace, subject, journal)
        });
        entry.over = matches!(step.what, What::StatusWritten | What::CgroupGone);
        if let Some(journal) = &mut entry.journal {
            journal.write(&step);
        }
        if entry.waiting.len() < STEPS_MAX {
            entry.waiting.push_back(step);
        }
        self.tell(&uid, entry);
    }

    /// What lies in the directory is told again; endings that were under way went on without us.
    fn resume(&self) {
        for (journal, namespace, subject, steps) in Journal::left_in(&self.0.directory) {
            let uid = subject.uid.clone();
            let mut entry = Entry::new(&namespace, subject.clone(), Some(journal));
            let last = steps.last().map(|step| step.what.clone());
            entry.over = matches!(last, Some(What::StatusWritten | What::CgroupGone));
            let under_way = !entry.over;
            entry.waiting = steps.into();
            let mut pods = self.lock();
            let entry = pods.entry(uid.clone()).or_insert(entry);
            self.tell(&uid, entry);
            drop(pods);
            if under_way {
                let step = self.step("", stamp(), What::AgentRestarted, "");
                self.add(&namespace, || subject, step);
            }
        }
    }

    fn tell(&self, uid: &str, entry: &mut Entry) {
        if !std::mem::replace(&mut entry.telling, true) {
            tokio::spawn(tell(self.clone(), uid.to_owned(), entry.urgent.clone()));
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Entry>> {
        self.0.pods.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// What to tell next; None: nothing, and what is over is forgotten.
    fn batch(&self, uid: &str) -> Option<(ObjectKey, Steps)> {
        let mut pods = self.lock();
        let entry = pods.get_mut(uid)?;
        if entry.waiting.is_empty() {
            entry.telling = false;
            if entry.over
                && let Some(entry) = pods.remove(uid)
                && let Some(journal) = entry.journal
            {
                journal.remove();
            }
            return None;
        }
        let steps = entry.waiting.iter().take(BATCH).cloned().collect();
        let name = timeline::name(&entry.subject.name, &entry.subject.uid);
        let key = ObjectKey::new(&entry.namespace, &name);
        Some((key, Steps::new(entry.subject.clone(), steps)))
    }

    fn done(&self, uid: &str, count: usize) {
        if let Some(entry) = self.lock().get_mut(uid) {
            entry.waiting.drain(..count.min(entry.waiting.len()));
        }
    }
}

impl Entry {
    fn new(namespace: &str, subject: Subject, journal: Option<Journal>) -> Entry {
        Entry {
            namespace: namespace.to_owned(),
            subject,
            journal,
            waiting: VecDeque::new(),
            urgent: Arc::new(Notify::new()),
            telling: false,
            over: false,
        }
    }
}

/// Tells what is waiting, until nothing is.
async fn tell(timeline: Timeline, uid: String, urgent: Arc<Notify>) {
    let mut pause = GATHER;
    let mut again = AGAIN;
    loop {
        let _ = tokio::time::timeout(pause, urgent.notified()).await;
        let Some((key, steps)) = timeline.batch(&uid) else {
            timeline.0.answered.send_replace(());
            return;
        };
        let told = {
            let _permit = timeline.0.permits.acquire().await;
            timeline.0.client.post::<Termination>(&key, STEPS, &steps).await
        };
        match told {
            Ok(_) => {
                timeline.done(&uid, steps.steps.len());
                (pause, again) = (Duration::ZERO, AGAIN);
            }
            // No later attempt will be answered otherwise: the record was forgotten, or is not ours.
            Err(error) if is_final(&error) => {
                tracing::info!(record = %key, %error, "steps of an ending are not wanted");
                timeline.done(&uid, steps.steps.len());
                pause = Duration::ZERO;
            }
            Err(error) => {
                tracing::info!(record = %key, %error, "steps of an ending wait for the API");
                pause = again;
                again = (again * 2).min(AGAIN_MAX);
            }
        }
        timeline.0.answered.send_replace(());
    }
}

fn is_final(error: &client::Error) -> bool {
    error.is_forbidden() || error.is_not_found() || error.is_bad_request() || error.is_invalid()
}

/// Which pod a record is about.
pub fn subject(pod: &Pod, node: &str) -> Subject {
    let meta = &pod.metadata;
    let owners = meta.owner_references.as_deref().unwrap_or_default();
    let owner = owners.iter().find(|owner| owner.controller == Some(true));
    Subject {
        name: meta.name.clone().unwrap_or_default(),
        uid: meta.uid.clone().unwrap_or_default(),
        node: node.to_owned(),
        owner: owner.map(|owner| format!("{}/{}", owner.kind, owner.name)).unwrap_or_default(),
    }
}

/// When the runtime saw it, by both clocks.
pub fn when(at: Timestamp) -> Stamp {
    stamp().when(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the API was not told by then is on disk, and a later agent tells it.
    #[tokio::test(start_paused = true)]
    async fn an_ending_does_not_wait_long_for_an_api_that_is_away_and_loses_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let nobody = Client::connect("http://127.0.0.1:1", "token", None).await.unwrap();
        let timeline = Timeline::open(&nobody, "n1", dir.path());
        let pod: Pod = typed::from_value(serde_json::json!({
            "metadata": { "name": "web", "namespace": "default", "uid": "u-1" }
        }))
        .unwrap();
        timeline.record(&pod, What::SandboxStopped);
        timeline.record(&pod, What::VolumesGone);
        let began = tokio::time::Instant::now();
        timeline.flush("u-1").await;
        assert!(began.elapsed() < 2 * FLUSH_MAX, "{:?}", began.elapsed());
        let left = Journal::left_in(dir.path());
        let steps: Vec<_> = left[0].3.iter().map(|step| step.what.clone()).collect();
        assert_eq!(steps, [What::SandboxStopped, What::VolumesGone]);
    }
}
