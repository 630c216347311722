//! Registers the node, writes its status when it changes, and renews its lease.

use super::lease::{self, with_jitter};
use super::patch::{differs, patch};
use super::status::{NodeEvent, adopted, initial, node_event, refreshed};
use super::{Facts, Health, Settings};
use client::{Cache, Client, ObjectKey, Recorder};
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{Node, ObjectReference};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

/// Wait between attempts to register (N-1).
const REGISTER_FIRST: Duration = Duration::from_millis(100);
const REGISTER_MAX: Duration = Duration::from_secs(7);
/// Interval of passes until the node is ready, and for how long (N-16).
const FAST_INTERVAL: Duration = Duration::from_millis(100);
const FAST_MAX: Duration = Duration::from_secs(120);
/// Interval of passes afterwards, and of writes without a change (N-17).
const INTERVAL: Duration = Duration::from_secs(10);
const REPORT: Duration = Duration::from_secs(300);
const TRIES: usize = 5;

/// Collects the facts; called before every pass.
pub(crate) type FactsProvider = Arc<dyn Fn() -> BoxFuture<'static, Facts> + Send + Sync>;

/// The running registration; dropping it stops it.
pub(crate) struct Registration {
    node: watch::Receiver<Option<Arc<Node>>>,
    _tasks: JoinSet<()>,
}

impl Registration {
    /// Every change of `health` is written at once. Needs a tokio runtime.
    pub(crate) fn start(
        client: Client,
        recorder: Recorder,
        settings: Settings,
        facts: FactsProvider,
        health: watch::Receiver<Health>,
    ) -> Registration {
        let (sender, node) = watch::channel(None);
        let mut tasks = JoinSet::new();
        let selector = format!("metadata.name={}", settings.name);
        tasks.spawn(lease::run(
            client.clone(),
            settings.name.clone(),
            settings.lease,
            node.clone(),
        ));
        let cache = Cache::builder(&client).fields(&selector).start();
        tasks.spawn(watch_node(cache, sender.clone()));
        let writer = StatusWriter {
            on: node_reference(&settings.name),
            client,
            recorder,
            settings,
            facts,
            health,
            node: sender,
            written: None,
            unschedulable: None,
        };
        tasks.spawn(writer.run());
        Registration { node, _tasks: tasks }
    }

    /// The last known Node; None until it is registered.
    #[cfg(test)]
    pub(crate) fn node(&self) -> Option<Arc<Node>> {
        self.node.borrow().clone()
    }

    /// Updates of the Node: labels, taints, pod CIDRs, deletion.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Option<Arc<Node>>> {
        self.node.clone()
    }
}

/// Upstream's events about a node have its name as uid, and tools depend on that.
pub(crate) fn node_reference(name: &str) -> ObjectReference {
    ObjectReference {
        kind: Some("Node".to_owned()),
        name: Some(name.to_owned()),
        uid: Some(name.to_owned()),
        ..ObjectReference::default()
    }
}

/// Receives what other clients write to the Node.
async fn watch_node(cache: Cache<Node>, node: watch::Sender<Option<Arc<Node>>>) {
    let mut changes = cache.subscribe();
    loop {
        let key = changes.next().await;
        let current = cache.get(&key);
        node.send_if_modified(|known| match (&*known, current) {
            (Some(known), Some(current)) if version(known) >= version(&current) => false,
            (None, Some(_)) => false, // Not ours until it is registered.
            (Some(_), None) | (None, None) => false, // Deleted: the next write events it.
            (Some(_), Some(current)) => {
                *known = Some(current);
                true
            }
        });
    }
}

fn version(node: &Node) -> u64 {
    node.metadata.resource_version.as_deref().and_then(|v| v.parse().ok()).unwrap_or_default()
}

struct StatusWriter {
    client: Client,
    recorder: Recorder,
    settings: Settings,
    facts: FactsProvider,
    health: watch::Receiver<Health>,
    node: watch::Sender<Option<Arc<Node>>>,
    on: ObjectReference,
    /// When the status was last written, and when it must be written again without a change.
    written: Option<(Instant, Duration)>,
    unschedulable: Option<bool>,
}

impl StatusWriter {
    async fn run(mut self) {
        self.recorder.normal(&self.on, "Starting", "Starting kubelet.");
        self.register().await;
        let fast_until = Instant::now() + FAST_MAX;
        loop {
            let ready = self.known().is_some_and(|node| is_ready(&node));
            let fast = !ready && Instant::now() < fast_until;
            let pause = if fast { FAST_INTERVAL } else { with_jitter(INTERVAL) };
            tokio::select! {
                biased;
                changed = self.health.changed() => if changed.is_err() { sleep(pause).await },
                () = sleep(pause) => {}
            }
            self.pass().await;
        }
    }

    fn known(&self) -> Option<Arc<Node>> {
        self.node.borrow().clone()
    }

    /// Retries until it succeeds (N-1).
    async fn register(&mut self) {
        let mut wait = REGISTER_FIRST;
        loop {
            match self.try_register().await {
                Ok(()) => return,
                Err(error) => tracing::warn!(%error, "registering the node failed"),
            }
            sleep(wait).await;
            wait = (wait * 2).min(REGISTER_MAX);
        }
    }

    async fn try_register(&mut self) -> client::Result<()> {
        let facts = (self.facts)().await;
        let health = self.health.borrow_and_update().clone();
        let fresh = initial(&self.settings, &facts);
        let (node, events) = refreshed(&self.settings, &facts, &health, &fresh, clock::now());
        match self.client.create(&node).await {
            Ok(created) => {
                self.record(&events);
                self.put(created);
                Ok(())
            }
            Err(error) if error.is_already_exists() || error.is_forbidden() => {
                let key = ObjectKey::cluster(&self.settings.name);
                let before: Node = self.client.get(&key).await?;
                let adopted = adopted(&self.settings, &facts, &before);
                let (node, events) =
                    refreshed(&self.settings, &facts, &health, &adopted, clock::now());
                self.write(&before, &node, &events).await
            }
            Err(error) => Err(error),
        }
    }

    /// Writes the status if it has changed or is due (N-17).
    async fn pass(&mut self) {
        let facts = (self.facts)().await;
        let health = self.health.borrow_and_update().clone();
        let key = ObjectKey::cluster(&self.settings.name);
        let mut base = self.known();
        for _ in 0..TRIES {
            let before = match base.take() {
                Some(known) => known,
                None => match self.client.find::<Node>(&key).await {
                    Ok(Some(node)) => Arc::new(node),
                    // Another client has deleted it.
                    Ok(None) => return self.register().await,
                    Err(error) => {
                        tracing::warn!(%error, "reading the node's status failed");
                        continue;
                    }
                },
            };
            let (node, events) = refreshed(&self.settings, &facts, &health, &before, clock::now());
            if !differs(&before, &node) && !self.is_due() {
                return self.record_scheduling(&before);
            }
            match self.write(&before, &node, &events).await {
                Ok(()) => return self.record_scheduling(&node),
                Err(error) => tracing::warn!(%error, "writing the node's status failed"),
            }
        }
    }

    fn is_due(&self) -> bool {
        self.written.is_none_or(|(at, valid_for)| at.elapsed() >= valid_for)
    }

    async fn write(
        &mut self,
        before: &Node,
        node: &Node,
        events: &[NodeEvent],
    ) -> client::Result<()> {
        let changed = differs(before, node);
        let Some(patch) = patch(before, node) else {
            self.put(node.clone());
            return Ok(());
        };
        let key = ObjectKey::cluster(&self.settings.name);
        let written = self.client.patch_status::<Node>(&key, &patch).await?;
        self.record(events);
        self.put(Arc::unwrap_or_clone(written));
        // Random, so that nodes that changed at the same time do not report at the same time again.
        let factor = 0.5 + clock::random_fraction();
        let valid_for = if changed { REPORT.mul_f64(factor) } else { REPORT };
        self.written = Some((Instant::now(), valid_for));
        Ok(())
    }

    fn put(&mut self, node: Node) {
        if self.written.is_none() {
            self.written = Some((Instant::now(), REPORT));
        }
        self.node.send_replace(Some(Arc::new(node)));
    }

    fn record(&self, events: &[NodeEvent]) {
        for NodeEvent { warning, reason, message } in events {
            match warning {
                true => self.recorder.warning(&self.on, reason, message),
                false => self.recorder.normal(&self.on, reason, message),
            }
        }
    }

    fn record_scheduling(&mut self, node: &Node) {
        let now = node.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or_default();
        let before = self.unschedulable.replace(now);
        if before.is_some_and(|before| before != now) {
            let reason = if now { "NodeNotSchedulable" } else { "NodeSchedulable" };
            self.record(&[node_event(&self.settings.name, reason)]);
        }
    }
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref());
    let mut conditions = conditions.unwrap_or_default().iter();
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

#[cfg(test)]
mod tests;
