//! Detects changes of sandboxes and containers, by listing and by the runtime's events.
//!
//! Events may get lost, and older CRI runtimes have none. So everything is listed every second, and at once after an
//! event or a call of ours, and compared with the previous list.

use super::calls::Calls;
use crate::Change;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, broadcast};
use tokio::task::JoinHandle;
use tonic::Code;

/// The interval of upstream's pod lifecycle event generator.
const INTERVAL: Duration = Duration::from_secs(1);
/// With events, listing is only for events that got lost.
const INTERVAL_WITH_EVENTS: Duration = Duration::from_secs(10);
/// If a subscriber is further behind, it has to list everything.
const CHANGES_KEPT: usize = 1024;

pub(super) struct Watcher {
    changes: broadcast::Sender<Change>,
    notify: Arc<Notify>,
    task: JoinHandle<()>,
}

/// For tasks that outlive the call.
pub(super) struct WatcherHandle(Arc<Notify>);

impl WatcherHandle {
    pub(super) fn relist(&self) {
        self.0.notify_one();
    }
}

impl Watcher {
    pub(super) fn start(calls: Calls) -> Watcher {
        let (changes, _) = broadcast::channel(CHANGES_KEPT);
        let notify = Arc::new(Notify::new());
        let task = tokio::spawn(watch(calls, changes.clone(), notify.clone()));
        Watcher { changes, notify, task }
    }

    pub(super) fn subscribe(&self) -> broadcast::Receiver<Change> {
        self.changes.subscribe()
    }

    /// Lists everything at once, because a call has changed something.
    pub(super) fn relist(&self) {
        self.notify.notify_one();
    }

    pub(super) fn handle(&self) -> WatcherHandle {
        WatcherHandle(self.notify.clone())
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn watch(calls: Calls, changes: broadcast::Sender<Change>, notify: Arc<Notify>) {
    let mut previous: Option<Snapshot> = None;
    let mut events = Events::Unknown;
    loop {
        if let Ok((sandboxes, containers)) = calls.list(HashMap::new()).await {
            let current = Snapshot::new(&sandboxes, &containers);
            for pod in previous.iter().flat_map(|previous| previous.changed_pods(&current)) {
                let _ = changes.send(Change { pod });
            }
            previous = Some(current);
        }
        if matches!(events, Events::Unknown) {
            events = Events::open(&calls).await;
        }
        let interval = if events.are_open() { INTERVAL_WITH_EVENTS } else { INTERVAL };
        tokio::select! {
            () = notify.notified() => {}
            () = events.next() => {}
            () = tokio::time::sleep(interval) => {}
        }
    }
}

enum Events {
    /// Not opened yet, or the stream has ended.
    Unknown,
    Open(Box<tonic::Streaming<k8s_cri::v1::ContainerEventResponse>>),
    /// This CRI runtime has no events.
    Unsupported,
}

impl Events {
    async fn open(calls: &Calls) -> Events {
        match tokio::time::timeout(INTERVAL, calls.events()).await {
            Ok(Ok(stream)) => Events::Open(Box::new(stream)),
            Ok(Err(status)) if status.code() == Code::Unimplemented => Events::Unsupported,
            // Some runtimes answer only when there is an event. Continue to list until then.
            Ok(Err(_)) | Err(_) => Events::Unknown,
        }
    }

    fn are_open(&self) -> bool {
        matches!(self, Events::Open(_))
    }

    /// Returns when there is an event or the stream has ended.
    async fn next(&mut self) {
        let Events::Open(stream) = self else { return std::future::pending().await };
        match stream.message().await {
            Ok(Some(_)) => {}
            Err(status) if status.code() == Code::Unimplemented => *self = Events::Unsupported,
            Ok(None) | Err(_) => *self = Events::Unknown,
        }
    }
}

/// The sandboxes and containers of each pod with their states.
struct Snapshot(BTreeMap<String, BTreeSet<(String, i32)>>);

impl Snapshot {
    fn new(
        sandboxes: &[k8s_cri::v1::PodSandbox],
        containers: &[k8s_cri::v1::Container],
    ) -> Snapshot {
        let mut states = BTreeMap::<String, BTreeSet<(String, i32)>>::new();
        let mut pods = HashMap::new();
        for sandbox in sandboxes {
            let pod = sandbox.metadata.clone().unwrap_or_default().uid;
            pods.insert(sandbox.id.clone(), pod.clone());
            states.entry(pod).or_default().insert((sandbox.id.clone(), sandbox.state));
        }
        for container in containers {
            if let Some(pod) = pods.get(&container.pod_sandbox_id) {
                let parts = states.entry(pod.clone()).or_default();
                parts.insert((container.id.clone(), container.state));
            }
        }
        Snapshot(states)
    }

    /// Pods that differ between this snapshot and a later one.
    fn changed_pods(&self, current: &Snapshot) -> Vec<String> {
        let pods: BTreeSet<&String> = self.0.keys().chain(current.0.keys()).collect();
        let changed = pods.into_iter().filter(|pod| self.0.get(*pod) != current.0.get(*pod));
        changed.cloned().collect()
    }
}
