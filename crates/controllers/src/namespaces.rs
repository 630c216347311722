//! Deletes the content of a namespace that is being deleted, reports what remains, and finalizes it (T-CTRL-53 to
//! T-CTRL-57, C-143).
//!
//! Pods are deleted first, and everything else after the last pod is gone, so that objects that terminating pods need
//! (configuration, network policies) outlive them. Not here: rejecting new content, and what the first delete writes
//! (both in the server).

mod conditions;
mod content;

use crate::start::Cluster;
use client::{Cache, Next, ObjectKey, Queue, ServedKind, run_controller};
use content::Found;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;
use tokio::time::Instant;

const WORKERS: usize = 10;
const FINALIZER: &str = "kubernetes";

/// Wait for other API servers, which may still accept content until they notice the deletion. Upstream:
/// `namespaceDeletionGracePeriod`.
const ACCEPTANCE_DELAY: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Api(#[from] client::Error),
    #[error("cannot delete all content of the namespace: {0}")]
    Content(String),
}

/// When to reconcile a namespace again. If the wait is for pods, it ends when they are gone.
#[derive(Debug, Clone)]
struct Wait {
    until: Instant,
    for_pods: bool,
    /// The kinds of the remaining objects. No new content can come, so checking these is enough.
    held: Vec<ServedKind>,
}

struct Namespaces {
    namespaces: Cache<Namespace>,
    waits: Mutex<BTreeMap<ObjectKey, Wait>>,
}

pub(crate) async fn run(cluster: &Cluster, namespaces: Cache<Namespace>) {
    let queue = Queue::new();
    namespaces.feed_keys(&queue);
    // The deleted pod may be the last one of its namespace.
    cluster.pods.feed_changes(&queue, |before, after| match (before, after) {
        (Some(pod), None) => vec![home(pod)],
        _ => Vec::new(),
    });
    namespaces.synced().await;
    cluster.pods.synced().await;
    let state = Namespaces { namespaces, waits: Mutex::default() };
    run_controller("namespaces", &queue, WORKERS, |key| reconcile(cluster, &state, key)).await;
}

fn home(pod: &Pod) -> ObjectKey {
    ObjectKey::cluster(pod.metadata.namespace.as_deref().unwrap_or_default())
}

async fn reconcile(cluster: &Cluster, state: &Namespaces, key: ObjectKey) -> Result<Next, Error> {
    let terminating = state.namespaces.get(&key).filter(|namespace| needs_finalizing(namespace));
    let Some(namespace) = terminating else {
        state.waits().remove(&key);
        return Ok(Next::Change);
    };
    if let Some(left) = state.remaining_wait(cluster, &key) {
        return Ok(Next::After(left));
    }
    let held = state.held(&key);
    let mut found = content::clear_held(cluster, key.name(), held).await;
    if !found.remains() {
        // Check all kinds before finalizing.
        found = content::clear(cluster, key.name()).await?;
    }
    state.wait(&key, Duration::ZERO, &Found::default());
    let before = namespace.status.clone().unwrap_or_default();
    if let Some(status) = conditions::status(before, &found, clock::now()) {
        cluster.client.update_status(namespace.as_ref(), status).await?;
    }
    if !found.is_clear() {
        return Err(Error::Content(found.why()));
    }
    if let Some(after) = found.check_again_in() {
        state.wait(&key, after, &found);
        return Ok(Next::After(after));
    }
    finalize(cluster, &key).await?;
    Ok(Next::Change)
}

fn needs_finalizing(namespace: &Namespace) -> bool {
    let finalizers = namespace.spec.as_ref().and_then(|spec| spec.finalizers.as_ref());
    let ours = finalizers.into_iter().flatten().any(|finalizer| finalizer == FINALIZER);
    namespace.metadata.deletion_timestamp.is_some() && ours
}

/// Removes the finalizer; the server then deletes the namespace.
async fn finalize(cluster: &Cluster, key: &ObjectKey) -> client::Result<()> {
    let Some(mut namespace) = cluster.client.find::<Namespace>(key).await? else {
        return Ok(());
    };
    if !needs_finalizing(&namespace) {
        return Ok(());
    }
    let spec = namespace.spec.get_or_insert_default();
    spec.finalizers.iter_mut().for_each(|all| all.retain(|finalizer| finalizer != FINALIZER));
    match cluster.client.update_subresource(&namespace, "finalize").await {
        Err(error) if error.is_not_found() => Ok(()),
        finalized => finalized.map(drop),
    }
}

impl Namespaces {
    fn waits(&self) -> MutexGuard<'_, BTreeMap<ObjectKey, Wait>> {
        self.waits.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn wait(&self, key: &ObjectKey, after: Duration, found: &Found) {
        let (for_pods, held) = (found.pods_remain(), found.held.clone());
        self.waits().insert(key.clone(), Wait { until: Instant::now() + after, for_pods, held });
    }

    fn held(&self, key: &ObjectKey) -> Vec<ServedKind> {
        self.waits().get(key).map(|wait| wait.held.clone()).unwrap_or_default()
    }

    /// The remaining wait, if there is one.
    fn remaining_wait(&self, cluster: &Cluster, key: &ObjectKey) -> Option<Duration> {
        let first =
            || Wait { until: Instant::now() + ACCEPTANCE_DELAY, for_pods: false, held: Vec::new() };
        let mut waits = self.waits();
        let wait = waits.entry(key.clone()).or_insert_with(first);
        let over = wait.for_pods && !cluster.pods.any_in_namespace(key.name());
        let left = wait.until.saturating_duration_since(Instant::now());
        (!over && !left.is_zero()).then_some(left)
    }
}
