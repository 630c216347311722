//! Records the steps of terminations on this node, first on disk, then in the API.
//!
//!     worker ──record──▶ journal on disk ──▶ a task per pod ──POST …/steps──▶ API
//!
//! A step is in the journal before `record` returns, so a killed agent loses none. The server stores a step
//! once, however often it is sent. Terminations do not wait for the API, except [`Timeline::flush`] for a
//! moment. Not here: what steps mean (`lifecycle::timeline`).

mod journal;

use client::{Client, ObjectKey};
use jiff::Timestamp;
use journal::Journal;
use k8s_openapi::api::core::v1::Pod;
use lifecycle::timeline::{
    self, STEPS, STEPS_MAX, Stamp, Step, StepKind, Steps, Subject, TerminationRecord,
};
use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::{Notify, Semaphore, watch};

/// Steps within this time are sent in one request.
const GATHER: Duration = Duration::from_millis(25);
/// Steps in one request.
const BATCH: usize = 64;
/// Concurrent requests, for all pods together.
const CONCURRENT: usize = 8;
/// How long a pod's object waits for the API to accept the pod's steps.
const FLUSH_MAX: Duration = Duration::from_secs(1);
/// Pause before a failed request is repeated, doubling.
const RETRY_FIRST: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(10);

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
    /// Pods whose termination is not complete in the API, by UID.
    pods: Mutex<BTreeMap<String, Entry>>,
    permits: Semaphore,
    /// Notified after every reply of the API.
    answered: watch::Sender<()>,
}

struct Entry {
    namespace: String,
    subject: Subject,
    journal: Option<Journal>,
    /// Steps that the API does not have yet.
    unsent: VecDeque<Step>,
    /// Notified when `flush` waits for the steps: they are sent at once.
    urgent: Arc<Notify>,
    /// A task is sending.
    sending: bool,
    /// No more steps are expected.
    complete: bool,
}

/// The current time on both clocks.
pub fn stamp() -> Stamp {
    Stamp { at: clock::now(), monotonic: clock::monotonic() }
}

impl Timeline {
    /// Continues with steps that an earlier agent left unsent in this directory.
    pub fn open(client: &Client, node: &str, directory: &Path) -> Timeline {
        if let Err(error) = std::fs::create_dir_all(directory) {
            tracing::warn!(%error, path = %directory.display(), "creating the timeline directory failed: steps are not kept on disk");
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

    /// Records a step of the whole pod that happens now.
    pub fn record(&self, pod: &Pod, what: StepKind) {
        self.record_at(pod, "", stamp(), what, "");
    }

    /// Records a step of one container that happened at `at`.
    pub fn record_at(&self, pod: &Pod, container: &str, at: Stamp, what: StepKind, message: &str) {
        let meta = &pod.metadata;
        let namespace = meta.namespace.clone().unwrap_or_default();
        let step = self.step(container, at, what, message);
        self.add(&namespace, || subject(pod, &self.0.node), step);
    }

    /// Records something that a later agent can observe again, such as an exit. `which` identifies it, so that it
    /// is one step however often it is recorded.
    pub fn record_once(&self, pod: &Pod, container: &str, which: &str, at: Stamp, what: StepKind) {
        let namespace = pod.metadata.namespace.clone().unwrap_or_default();
        let which = format!("end of {}", which.chars().take(12).collect::<String>());
        let step = Step { incarnation: which, sequence: 0, ..self.step(container, at, what, "") };
        self.add(&namespace, || subject(pod, &self.0.node), step);
    }

    /// Records a step of a pod whose object is gone.
    pub(crate) fn record_orphan(&self, pod: &runtime::Identity, what: StepKind) {
        let subject = Subject {
            name: pod.name.clone(),
            uid: pod.uid.clone(),
            node: self.0.node.clone(),
            owner: String::new(),
        };
        let step = self.step("", stamp(), what, "");
        self.add(&pod.namespace, || subject, step);
    }

    /// Sends remaining steps when the agent stops, each for a moment; the rest stays in the journals.
    pub async fn flush_all(&self) {
        let uids: Vec<String> = self.lock().keys().cloned().collect();
        futures::future::join_all(uids.iter().map(|uid| self.flush(uid))).await;
    }

    /// Waits until the API has the recorded steps of the pod, but not for long: terminations do not depend on
    /// their timeline.
    pub async fn flush(&self, uid: &str) {
        let mut answered = self.0.answered.subscribe();
        // Only once: failed requests keep their pauses.
        if let Some(entry) = self.lock().get(uid) {
            entry.urgent.notify_one();
        }
        let sent = async {
            loop {
                answered.borrow_and_update();
                if self.lock().get(uid).is_none_or(|entry| entry.unsent.is_empty()) {
                    return;
                }
                if answered.changed().await.is_err() {
                    return;
                }
            }
        };
        if tokio::time::timeout(FLUSH_MAX, sent).await.is_err() {
            tracing::info!(
                uid,
                "the API does not have all timeline steps of this pod yet; they will be sent later"
            );
            self.sync(uid).await;
        }
    }

    /// Makes the journal durable: the object is about to go, and only the journal has the steps.
    async fn sync(&self, uid: &str) {
        let sync = self.lock().get(uid).and_then(|entry| Some(entry.journal.as_ref()?.synced()));
        let synced = match sync {
            None => return,
            Some(Ok(sync)) => clock::run_blocking(sync)
                .await
                .unwrap_or_else(|error| Err(std::io::Error::other(error))),
            Some(Err(error)) => Err(error),
        };
        if let Err(error) = synced {
            tracing::warn!(uid, %error, "syncing the timeline journal failed; a power failure now would lose steps");
        }
    }

    fn step(&self, container: &str, at: Stamp, what: StepKind, message: &str) -> Step {
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
        entry.complete = matches!(step.what, StepKind::StatusWritten | StepKind::CgroupGone);
        if let Some(journal) = &mut entry.journal {
            journal.write(&step);
        }
        if entry.unsent.len() < STEPS_MAX {
            entry.unsent.push_back(step);
        }
        self.send(&uid, entry);
    }

    /// Sends the steps of all journals in the directory again. Terminations that were in progress went on without
    /// an agent.
    fn resume(&self) {
        for (journal, namespace, subject, steps) in Journal::left_in(&self.0.directory) {
            let uid = subject.uid.clone();
            let mut entry = Entry::new(&namespace, subject.clone(), Some(journal));
            let last = steps.last().map(|step| step.what.clone());
            entry.complete = matches!(last, Some(StepKind::StatusWritten | StepKind::CgroupGone));
            let in_progress = !entry.complete;
            entry.unsent = steps.into();
            let mut pods = self.lock();
            let entry = pods.entry(uid.clone()).or_insert(entry);
            self.send(&uid, entry);
            drop(pods);
            if in_progress {
                let step = self.step("", stamp(), StepKind::AgentRestarted, "");
                self.add(&namespace, || subject, step);
            }
        }
    }

    fn send(&self, uid: &str, entry: &mut Entry) {
        if !std::mem::replace(&mut entry.sending, true) {
            tokio::spawn(send(self.clone(), uid.to_owned(), entry.urgent.clone()));
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Entry>> {
        self.0.pods.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The next request. None: all steps are sent; a complete timeline is then removed here.
    fn batch(&self, uid: &str) -> Option<(ObjectKey, Steps)> {
        let mut pods = self.lock();
        let entry = pods.get_mut(uid)?;
        if entry.unsent.is_empty() {
            entry.sending = false;
            if entry.complete
                && let Some(entry) = pods.remove(uid)
                && let Some(journal) = entry.journal
            {
                journal.remove();
            }
            return None;
        }
        let steps = entry.unsent.iter().take(BATCH).cloned().collect();
        let name = timeline::name(&entry.subject.name, &entry.subject.uid);
        let key = ObjectKey::new(&entry.namespace, &name);
        Some((key, Steps::new(entry.subject.clone(), steps)))
    }

    fn sent(&self, uid: &str, count: usize) {
        if let Some(entry) = self.lock().get_mut(uid) {
            entry.unsent.drain(..count.min(entry.unsent.len()));
        }
    }
}

impl Entry {
    fn new(namespace: &str, subject: Subject, journal: Option<Journal>) -> Entry {
        Entry {
            namespace: namespace.to_owned(),
            subject,
            journal,
            unsent: VecDeque::new(),
            urgent: Arc::new(Notify::new()),
            sending: false,
            complete: false,
        }
    }
}

/// Sends the unsent steps of one pod until there are none.
async fn send(timeline: Timeline, uid: String, urgent: Arc<Notify>) {
    let mut pause = GATHER;
    let mut retry = RETRY_FIRST;
    loop {
        let _ = tokio::time::timeout(pause, urgent.notified()).await;
        let Some((key, steps)) = timeline.batch(&uid) else {
            timeline.0.answered.send_replace(());
            return;
        };
        let sent = {
            let _permit = timeline.0.permits.acquire().await;
            timeline.0.client.post::<TerminationRecord>(&key, STEPS, &steps).await
        };
        match sent {
            Ok(_) => {
                timeline.sent(&uid, steps.steps.len());
                (pause, retry) = (Duration::ZERO, RETRY_FIRST);
            }
            // Repeating would not help: the record has expired, or is not this node's.
            Err(error) if is_final(&error) => {
                tracing::info!(record = %key, %error, "the API server rejected the timeline steps");
                timeline.sent(&uid, steps.steps.len());
                pause = Duration::ZERO;
            }
            Err(error) => {
                tracing::info!(record = %key, %error, "sending timeline steps failed, will retry");
                pause = retry;
                retry = (retry * 2).min(RETRY_MAX);
            }
        }
        timeline.0.answered.send_replace(());
    }
}

fn is_final(error: &client::Error) -> bool {
    error.is_forbidden() || error.is_not_found() || error.is_bad_request() || error.is_invalid()
}

/// The pod that a record is about.
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

/// A time of the runtime on both clocks.
pub fn when(at: Timestamp) -> Stamp {
    stamp().when(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps that the API does not have by then are on disk, and a later agent sends them.
    #[tokio::test(start_paused = true)]
    async fn flush_gives_up_on_an_unreachable_api_and_keeps_the_steps_on_disk() {
        let dir = tempfile::tempdir().unwrap();
        let nobody = Client::connect("http://127.0.0.1:1", "token", None).await.unwrap();
        let timeline = Timeline::open(&nobody, "n1", dir.path());
        let pod: Pod = typed::from_value(serde_json::json!({
            "metadata": { "name": "web", "namespace": "default", "uid": "u-1" }
        }))
        .unwrap();
        timeline.record(&pod, StepKind::SandboxStopped);
        timeline.record(&pod, StepKind::VolumesGone);
        let began = tokio::time::Instant::now();
        timeline.flush("u-1").await;
        assert!(began.elapsed() < 2 * FLUSH_MAX, "{:?}", began.elapsed());
        let left = Journal::left_in(dir.path());
        let steps: Vec<_> = left[0].3.iter().map(|step| step.what.clone()).collect();
        assert_eq!(steps, [StepKind::SandboxStopped, StepKind::VolumesGone]);
    }
}
