//! Registers the node, writes its status when it changes, and renews its lease.

use super::lease::{self, with_jitter};
use super::patch::{differs, patch};
use super::status::{Notice, adopted, initial, notice, refreshed};
use super::{Facts, Health, Settings};
use client::{Cache, Client, ObjectKey, Recorder};
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{Node, ObjectReference};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

/// Between attempts to register (N-1).
const REGISTER_FIRST: Duration = Duration::from_millis(100);
const REGISTER_MAX: Duration = Duration::from_secs(7);
/// How often to look while the node has not been ready yet, and for how long (N-16).
const LOOK_OFTEN: Duration = Duration::from_millis(100);
const LOOK_OFTEN_FOR: Duration = Duration::from_secs(120);
/// How often to look afterwards, and how often to write even if nothing changed (N-17).
const LOOK: Duration = Duration::from_secs(10);
const REPORT: Duration = Duration::from_secs(300);
const TRIES: usize = 5;

/// Reads what is so on this machine; asked before every pass.
pub(crate) type FactsProvider = Arc<dyn Fn() -> BoxFuture<'static, Facts> + Send + Sync>;

/// Runs for as long as it is kept.
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
        tasks.spawn(lease::keep(
            client.clone(),
            settings.name.clone(),
            settings.lease,
            node.clone(),
        ));
        let cache = Cache::builder(&client).fields(&selector).start();
        tasks.spawn(follow(cache, sender.clone()));
        let keeper = Keeper {
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
        tasks.spawn(keeper.run());
        Registration { node, _tasks: tasks }
    }

    /// The Node as it was last seen; None until it is registered.
    #[cfg(test)]
    pub(crate) fn node(&self) -> Option<Arc<Node>> {
        self.node.borrow().clone()
    }

    /// Follows the Node: labels, taints, pod CIDRs, deletion.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Option<Arc<Node>>> {
        self.node.clone()
    }
}

/// Upstream's events about a node name it by its name in place of the uid; tools look for that.
pub(crate) fn node_reference(name: &str) -> ObjectReference {
    ObjectReference {
        kind: Some("Node".to_owned()),
        name: Some(name.to_owned()),
        uid: Some(name.to_owned()),
        ..ObjectReference::default()
    }
}

/// What others write to the Node is seen here.
async fn follow(cache: Cache<Node>, node: watch::Sender<Option<Arc<Node>>>) {
    let mut changes = cache.subscribe();
    loop {
        let key = changes.next().await;
        let seen = cache.get(&key);
        node.send_if_modified(|known| match (&*known, seen) {
            (Some(known), Some(seen)) if version(known) >= version(&seen) => false,
            (None, Some(_)) => false, // Not ours before it is registered.
            (Some(_), None) | (None, None) => false, // The next write finds out.
            (Some(_), Some(seen)) => {
                *known = Some(seen);
                true
            }
        });
    }
}

fn version(node: &Node) -> u64 {
    node.metadata.resource_version.as_deref().and_then(|v| v.parse().ok()).unwrap_or_default()
}

struct Keeper {
    client: Client,
    recorder: Recorder,
    settings: Settings,
    facts: FactsProvider,
    health: watch::Receiver<Health>,
    node: watch::Sender<Option<Arc<Node>>>,
    on: ObjectReference,
    /// When the status was written last, and how long that is good for.
    written: Option<(Instant, Duration)>,
    unschedulable: Option<bool>,
}

impl Keeper {
    async fn run(mut self) {
        self.recorder.normal(&self.on, "Starting", "Starting kubelet.");
        self.register().await;
        let often_until = Instant::now() + LOOK_OFTEN_FOR;
        loop {
            let ready = self.known().is_some_and(|node| is_ready(&node));
            let hurry = !ready && Instant::now() < often_until;
            let pause = if hurry { LOOK_OFTEN } else { with_jitter(LOOK) };
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

    /// Until it has worked (N-1).
    async fn register(&mut self) {
        let mut wait = REGISTER_FIRST;
        loop {
            match self.try_register().await {
                Ok(()) => return,
                Err(error) => tracing::warn!(%error, "the node cannot be registered"),
            }
            sleep(wait).await;
            wait = (wait * 2).min(REGISTER_MAX);
        }
    }

    async fn try_register(&mut self) -> client::Result<()> {
        let facts = (self.facts)().await;
        let health = self.health.borrow_and_update().clone();
        let fresh = initial(&self.settings, &facts);
        let (node, notices) = refreshed(&self.settings, &facts, &health, &fresh, clock::now());
        match self.client.create(&node).await {
            Ok(created) => {
                self.tell(&notices);
                self.put(created);
                Ok(())
            }
            Err(error) if error.is_already_exists() || error.is_forbidden() => {
                let key = ObjectKey::cluster(&self.settings.name);
                let before: Node = self.client.get(&key).await?;
                let adopted = adopted(&self.settings, &facts, &before);
                let (node, notices) =
                    refreshed(&self.settings, &facts, &health, &adopted, clock::now());
                self.write(&before, &node, &notices).await
            }
            Err(error) => Err(error),
        }
    }

    /// Looks, and writes if there is news or it is time (N-17).
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
                    // Somebody deleted it while we live.
                    Ok(None) => return self.register().await,
                    Err(error) => {
                        tracing::warn!(%error, "the node's status cannot be read");
                        continue;
                    }
                },
            };
            let (node, notices) = refreshed(&self.settings, &facts, &health, &before, clock::now());
            if !differs(&before, &node) && !self.is_time() {
                return self.tell_scheduling(&before);
            }
            match self.write(&before, &node, &notices).await {
                Ok(()) => return self.tell_scheduling(&node),
                Err(error) => tracing::warn!(%error, "the node's status cannot be written"),
            }
        }
    }

    fn is_time(&self) -> bool {
        self.written.is_none_or(|(at, good_for)| at.elapsed() >= good_for)
    }

    async fn write(
        &mut self,
        before: &Node,
        node: &Node,
        notices: &[Notice],
    ) -> client::Result<()> {
        let changed = differs(before, node);
        let Some(patch) = patch(before, node) else {
            self.put(node.clone());
            return Ok(());
        };
        let key = ObjectKey::cluster(&self.settings.name);
        let written = self.client.patch_status::<Node>(&key, &patch).await?;
        self.tell(notices);
        self.put(Arc::unwrap_or_clone(written));
        // After a change, nodes that changed together do not all report together again.
        let half = 0.5 + clock::fraction();
        let good_for = if changed { REPORT.mul_f64(half) } else { REPORT };
        self.written = Some((Instant::now(), good_for));
        Ok(())
    }

    fn put(&mut self, node: Node) {
        if self.written.is_none() {
            self.written = Some((Instant::now(), REPORT));
        }
        self.node.send_replace(Some(Arc::new(node)));
    }

    fn tell(&self, notices: &[Notice]) {
        for Notice { warning, reason, message } in notices {
            match warning {
                true => self.recorder.warning(&self.on, reason, message),
                false => self.recorder.normal(&self.on, reason, message),
            }
        }
    }

    fn tell_scheduling(&mut self, node: &Node) {
        let now = node.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or_default();
        let before = self.unschedulable.replace(now);
        if before.is_some_and(|before| before != now) {
            let reason = if now { "NodeNotSchedulable" } else { "NodeSchedulable" };
            self.tell(&[notice(&self.settings.name, reason)]);
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
