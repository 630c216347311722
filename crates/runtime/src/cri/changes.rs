//! Finds out that something happened: from the runtime's events where it has them, and by looking.
//!
//! Looking is what can be relied on: events may be missed, and older runtimes have none. So we look
//! every second, or at once when a call of ours has changed something, and compare.

use super::Bell;
use super::calls::Calls;
use crate::Change;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, broadcast};
use tokio::task::JoinHandle;
use tonic::Code;

/// Upstream's pod lifecycle event generator looks as often.
const EVERY: Duration = Duration::from_secs(1);
/// With events, looking is only for what they missed.
const EVERY_WITH_EVENTS: Duration = Duration::from_secs(10);
/// Whoever lags further behind has to look at everything.
const WAITING: usize = 1024;

pub(super) struct Watcher {
    changes: broadcast::Sender<Change>,
    bell: Bell,
    task: JoinHandle<()>,
}

/// For tasks that go on by themselves.
pub(super) struct WatcherHandle(Bell);

impl WatcherHandle {
    pub(super) fn look(&self) {
        self.0.notify_one();
    }
}

impl Watcher {
    pub(super) fn start(calls: Calls) -> Watcher {
        let (changes, _) = broadcast::channel(WAITING);
        let bell: Bell = Arc::new(Notify::new());
        let task = tokio::spawn(watch(calls, changes.clone(), bell.clone()));
        Watcher { changes, bell, task }
    }

    pub(super) fn subscribe(&self) -> broadcast::Receiver<Change> {
        self.changes.subscribe()
    }

    /// Something was done: what has changed?
    pub(super) fn look(&self) {
        self.bell.notify_one();
    }

    pub(super) fn handle(&self) -> WatcherHandle {
        WatcherHandle(self.bell.clone())
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn watch(calls: Calls, changes: broadcast::Sender<Change>, bell: Bell) {
    let mut seen: Option<Seen> = None;
    let mut events = Events::Unknown;
    loop {
        if let Ok((sandboxes, containers)) = calls.list(HashMap::new()).await {
            let now = Seen::new(&sandboxes, &containers);
            for pod in seen.iter().flat_map(|before| before.differs_from(&now)) {
                let _ = changes.send(Change { pod });
            }
            seen = Some(now);
        }
        if matches!(events, Events::Unknown) {
            events = Events::open(&calls).await;
        }
        let every = if events.are_there() { EVERY_WITH_EVENTS } else { EVERY };
        tokio::select! {
            () = bell.notified() => {}
            () = events.next() => {}
            () = tokio::time::sleep(every) => {}
        }
    }
}

enum Events {
    /// Not asked yet, or the stream has ended.
    Unknown,
    There(Box<tonic::Streaming<k8s_cri::v1::ContainerEventResponse>>),
    /// This runtime has none.
    Never,
}

impl Events {
    async fn open(calls: &Calls) -> Events {
        match tokio::time::timeout(EVERY, calls.events()).await {
            Ok(Ok(stream)) => Events::There(Box::new(stream)),
            Ok(Err(status)) if status.code() == Code::Unimplemented => Events::Never,
            // A stream may be answered only when it has something to say; look meanwhile.
            Ok(Err(_)) | Err(_) => Events::Unknown,
        }
    }

    fn are_there(&self) -> bool {
        matches!(self, Events::There(_))
    }

    /// Resolves when it is time to look.
    async fn next(&mut self) {
        let Events::There(stream) = self else { return std::future::pending().await };
        match stream.message().await {
            Ok(Some(_)) => {}
            Err(status) if status.code() == Code::Unimplemented => *self = Events::Never,
            Ok(None) | Err(_) => *self = Events::Unknown,
        }
    }
}

/// Of each pod, what there is and in which state.
struct Seen(BTreeMap<String, BTreeSet<(String, i32)>>);

impl Seen {
    fn new(sandboxes: &[k8s_cri::v1::PodSandbox], containers: &[k8s_cri::v1::Container]) -> Seen {
        let mut seen = BTreeMap::<String, BTreeSet<(String, i32)>>::new();
        let mut pods = HashMap::new();
        for sandbox in sandboxes {
            let pod = sandbox.metadata.clone().unwrap_or_default().uid;
            pods.insert(sandbox.id.clone(), pod.clone());
            seen.entry(pod).or_default().insert((sandbox.id.clone(), sandbox.state));
        }
        for container in containers {
            if let Some(pod) = pods.get(&container.pod_sandbox_id) {
                let parts = seen.entry(pod.clone()).or_default();
                parts.insert((container.id.clone(), container.state));
            }
        }
        Seen(seen)
    }

    /// The pods that are not as they were.
    fn differs_from(&self, now: &Seen) -> Vec<String> {
        let pods: BTreeSet<&String> = self.0.keys().chain(now.0.keys()).collect();
        let changed = pods.into_iter().filter(|pod| self.0.get(*pod) != now.0.get(*pod));
        changed.cloned().collect()
    }
}
