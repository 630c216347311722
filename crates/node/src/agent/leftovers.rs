//! What an agent that was killed left of pods that are no more (T-NODE-13, T-NODE-76): looked for once, when the next
//! one starts, and taken away, however often that has to be tried.

use super::logs;
use crate::parts::Parts;
use crate::worker::cleanup::{AGAIN, AGAIN_MAX};
use crate::worker::observe::network_key;
use futures::future::BoxFuture;
use lifecycle::timeline::What;
use runtime::Runtime;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Ending them takes its time, and nobody else has to wait for it: that is left for the answer to do.
/// `known`: pods that are somebody's.
pub(super) async fn sweep(parts: &Arc<Parts>, known: BTreeSet<String>) -> BoxFuture<'static, ()> {
    // Before it is known what runs, nothing can be started either.
    let sandboxes =
        insist("what is left of earlier pods is not known", || parts.runtime.sandboxes());
    let sandboxes = sandboxes.await;
    let keys: BTreeSet<String> =
        sandboxes.iter().map(|sandbox| network_key(&sandbox.pod.uid, sandbox.attempt)).collect();
    if let Some(deadlines) = &parts.deadlines {
        deadlines.retain(&known);
    }
    if let Some(network) = &parts.network
        && let Err(error) = network.retain(&keys).await
    {
        tracing::warn!(%error, "addresses of earlier pods were not freed");
    }
    parts.allocations.retain(&known);
    let _ = logs::remove_dead_links(&parts.log_links);
    // Looked for now, while no new pod has anything here.
    let volumes = parts.volumes.orphans().unwrap_or_default().into_iter();
    let mut orphans: BTreeMap<String, Vec<runtime::Sandbox>> =
        volumes.map(|uid| (uid, Vec::new())).collect();
    for sandbox in sandboxes {
        orphans.entry(sandbox.pod.uid.clone()).or_default().push(sandbox);
    }
    orphans.retain(|uid, _| !known.contains(uid));
    let parts = parts.clone();
    Box::pin(async move {
        let cleared = orphans.iter().map(|(uid, sandboxes)| clear(&parts, uid, sandboxes));
        futures::future::join_all(cleared).await;
    })
}

/// Its processes first: volumes may be in use until then.
async fn clear(parts: &Parts, uid: &str, sandboxes: &[runtime::Sandbox]) {
    futures::future::join_all(sandboxes.iter().map(|sandbox| end(parts, sandbox))).await;
    insist("volumes of an earlier pod are still there", || parts.volumes.tear_down(uid)).await;
}

async fn end(parts: &Parts, sandbox: &runtime::Sandbox) {
    parts.metrics.add("kubelet_orphaned_runtime_pods_total", &[], 1);
    let seen = What::Seen { grace_seconds: Some(1), reason: "Gone".into() };
    parts.timeline.record_orphan(&sandbox.pod, seen);
    insist("an orphaned pod was not ended", || end_sandbox(&parts.runtime, sandbox)).await;
    parts.timeline.record_orphan(&sandbox.pod, What::SandboxStopped);
    parts.timeline.record_orphan(&sandbox.pod, What::CgroupGone);
    if let Some(network) = &parts.network {
        let key = network_key(&sandbox.pod.uid, sandbox.attempt);
        insist("the address of an orphaned pod was not freed", || network.detach(&key)).await;
    }
}

/// Tries until it works.
async fn insist<T, E, F>(otherwise: &str, mut attempt: impl FnMut() -> F) -> T
where
    E: std::fmt::Display,
    F: Future<Output = Result<T, E>>,
{
    let mut pause = AGAIN;
    loop {
        match attempt().await {
            Ok(done) => return done,
            Err(error) => tracing::warn!(%error, "{otherwise}"),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(AGAIN_MAX);
    }
}

/// Grace 1, so two seconds for a stop signal; no hook, for the spec is lost; no status (T-NODE-13). The
/// answer: containers that did not end in that time and were killed.
pub(super) async fn end_sandbox(
    runtime: &Arc<dyn Runtime>,
    sandbox: &runtime::Sandbox,
) -> runtime::Result<Vec<String>> {
    let window = lifecycle::termination::STOP_WINDOW_MIN;
    for container in running(&sandbox.containers) {
        runtime.stop_container(&container.id, window).await?;
    }
    let mut changes = runtime.changes();
    let deadline = tokio::time::Instant::now() + window;
    let left = loop {
        let now = runtime.sandboxes_of(&sandbox.pod.uid).await?;
        let left: Vec<String> = now
            .iter()
            .filter(|now| now.id == sandbox.id)
            .flat_map(|now| running(&now.containers))
            .map(|container| container.name.clone())
            .collect();
        if left.is_empty() || tokio::time::Instant::now() >= deadline {
            break left;
        }
        let _ = tokio::time::timeout_at(deadline, changes.recv()).await;
    };
    runtime.stop_sandbox(&sandbox.id).await?;
    runtime.remove_sandbox(&sandbox.id).await?;
    Ok(left)
}

fn running(containers: &[runtime::Container]) -> impl Iterator<Item = &runtime::Container> {
    let runs = |container: &&runtime::Container| {
        matches!(container.state, runtime::ContainerState::Running { .. })
    };
    containers.iter().filter(runs)
}
