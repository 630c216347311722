//! Removes what an earlier agent left of pods that no longer exist (T-NODE-13, T-NODE-76). The agent looks for
//! leftovers once, when it starts, and retries until they are gone.

use super::logs;
use crate::cgroup_root;
use crate::dependencies::Dependencies;
use crate::worker::{CLEANUP_RETRY_FIRST, CLEANUP_RETRY_MAX, network_key};
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Pod;
use lifecycle::termination::{Action, Input, Moment, Termination, member};
use lifecycle::timeline::StepKind;
use runtime::Runtime;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Grace period of a pod that is in neither the API nor a manifest (T-NODE-13).
const ORPHAN_GRACE: Duration = Duration::from_secs(1);

/// What the runtime had when the agent started.
pub(super) struct Found {
    /// UIDs of pods with running containers.
    pub(super) running: BTreeSet<String>,
    /// Terminates and removes the orphans. That takes time; the agent does not wait for it.
    pub(super) removal: BoxFuture<'static, ()>,
}

/// Finds orphans: what belongs to no pod in `known`, the UIDs of all pods in the API and in manifests.
pub(super) async fn remove_orphans(deps: &Arc<Dependencies>, known: BTreeSet<String>) -> Found {
    // Nothing can be started before it is known what runs.
    let sandboxes = retry("listing sandboxes", || deps.runtime.sandboxes()).await;
    let runs = |sandbox: &&runtime::Sandbox| running(&sandbox.containers).next().is_some();
    let with_running =
        sandboxes.iter().filter(runs).map(|sandbox| sandbox.pod.uid.clone()).collect();
    let keys: BTreeSet<String> =
        sandboxes.iter().map(|sandbox| network_key(&sandbox.pod.uid, sandbox.attempt)).collect();
    if let Some(deadlines) = &deps.deadlines {
        deadlines.retain(&known);
    }
    if let Some(network) = &deps.network
        && let Err(error) = network.retain(&keys).await
    {
        tracing::warn!(%error, "releasing the addresses of earlier pods failed");
    }
    deps.allocations.retain(&known);
    let _ = logs::remove_dead_links(&deps.log_links);
    // Listed now, while no new pod has volumes.
    let on_disk = deps.volumes.pods_on_disk().unwrap_or_default();
    kill_unrecorded(deps, &sandboxes, known.iter().chain(&on_disk)).await;
    let mut orphans: BTreeMap<String, Vec<runtime::Sandbox>> =
        on_disk.into_iter().map(|uid| (uid, Vec::new())).collect();
    for sandbox in sandboxes {
        orphans.entry(sandbox.pod.uid.clone()).or_default().push(sandbox);
    }
    orphans.retain(|uid, _| !known.contains(uid));
    let deps = deps.clone();
    let removal = Box::pin(async move {
        let removed = orphans.iter().map(|(uid, sandboxes)| remove(&deps, uid, sandboxes));
        futures::future::join_all(removed).await;
    });
    Found { running: with_running, removal }
}

/// Kills the processes of pods without a sandbox: the runtime has lost its records of them, and a new sandbox of the
/// same pod must not run beside them.
async fn kill_unrecorded(
    deps: &Dependencies,
    sandboxes: &[runtime::Sandbox],
    uids: impl Iterator<Item = &String>,
) {
    let recorded: BTreeSet<&String> = sandboxes.iter().map(|sandbox| &sandbox.pod.uid).collect();
    let unrecorded: BTreeSet<&String> = uids.filter(|uid| !recorded.contains(uid)).collect();
    for uid in unrecorded {
        cgroup_root::kill_pod(&deps.facts.cgroup_root, uid).await;
    }
}

/// Processes first: volumes may be in use until they are gone.
async fn remove(deps: &Dependencies, uid: &str, sandboxes: &[runtime::Sandbox]) {
    futures::future::join_all(sandboxes.iter().map(|sandbox| remove_sandbox(deps, sandbox))).await;
    retry("removing the volumes of an orphaned pod", || deps.volumes.tear_down(uid)).await;
    deps.users.release(uid);
    // The earlier agent may have been killed after it created the cgroup and before the sandbox.
    cgroup_root::remove_pod(&deps.facts.cgroup_root, uid);
}

async fn remove_sandbox(deps: &Dependencies, sandbox: &runtime::Sandbox) {
    deps.metrics.add("kubelet_orphaned_runtime_pods_total", &[], 1);
    let seen = StepKind::Seen { grace_seconds: Some(1), reason: "Gone".into() };
    deps.timeline.record_orphan(&sandbox.pod, seen);
    retry("terminating an orphaned pod", || terminate_sandbox(&deps.runtime, sandbox)).await;
    deps.timeline.record_orphan(&sandbox.pod, StepKind::SandboxStopped);
    deps.timeline.record_orphan(&sandbox.pod, StepKind::CgroupGone);
    if let Some(network) = &deps.network {
        let key = network_key(&sandbox.pod.uid, sandbox.attempt);
        retry("releasing the address of an orphaned pod", || network.detach(&key)).await;
    }
}

/// Repeats `attempt` until it succeeds. `doing` is for the log.
async fn retry<T, E, F>(doing: &str, mut attempt: impl FnMut() -> F) -> T
where
    E: std::fmt::Display,
    F: Future<Output = Result<T, E>>,
{
    let mut pause = CLEANUP_RETRY_FIRST;
    loop {
        match attempt().await {
            Ok(done) => return done,
            Err(error) => tracing::warn!(%error, "{doing} failed, will retry"),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(CLEANUP_RETRY_MAX);
    }
}

/// Terminates the containers of a sandbox whose pod is unknown, then stops and removes the sandbox: grace
/// period 1, so two seconds after the stop signal; no hook, because the spec is unknown; no status
/// (T-NODE-13). Returns the names of containers that were killed.
pub(super) async fn terminate_sandbox(
    runtime: &Arc<dyn Runtime>,
    sandbox: &runtime::Sandbox,
) -> runtime::Result<Vec<String>> {
    // The spec is unknown, so every container counts as a regular one without hook.
    let without_spec = Pod::default();
    let members =
        running(&sandbox.containers).map(|found| member(&without_spec, &found.id, &found.name));
    let mut machine = Termination::new(members.collect());
    let mut changes = runtime.changes();
    // Moments count from the last stop signal, so that every container gets its whole window.
    let mut origin = Instant::now();
    let mut input = Input::Terminate { grace: ORPHAN_GRACE };
    let mut killed = Vec::new();
    while !machine.is_over() {
        for action in machine.step(Moment(origin.elapsed()), input) {
            match action {
                Action::SendStop { id, kill_at } => {
                    let window = Moment(origin.elapsed()).until(kill_at);
                    runtime.stop_container(&id, window).await?;
                    origin = Instant::now();
                }
                Action::SendKill { id } => {
                    runtime.kill_container(&id).await?;
                    killed.push(id);
                }
                // There is no object to report to, and no hook to run.
                Action::Announce { .. }
                | Action::RunPreStop { .. }
                | Action::HookOverran { .. } => {}
            }
        }
        let listed = runtime.sandboxes_of(&sandbox.pod.uid).await?;
        let containers = listed.iter().flat_map(|listed| running(&listed.containers));
        let still_running: BTreeSet<&str> = containers.map(|found| found.id.as_str()).collect();
        let exited = machine.stages().filter(|(member, _)| !still_running.contains(&*member.id));
        let exited: Vec<String> = exited.map(|(member, _)| member.id.clone()).collect();
        for id in exited {
            machine.step(Moment(origin.elapsed()), Input::Exited { id });
        }
        // After a kill nothing is due any more: stopping the sandbox waits for the process.
        let Some(due) = machine.next_due() else { break };
        let _ = tokio::time::timeout_at(origin + due.0, changes.recv()).await;
        input = Input::Tick;
    }
    runtime.stop_sandbox(&sandbox.id).await?;
    runtime.remove_sandbox(&sandbox.id).await?;
    let killed = sandbox.containers.iter().filter(|container| killed.contains(&container.id));
    Ok(killed.map(|container| container.name.clone()).collect())
}

fn running(containers: &[runtime::Container]) -> impl Iterator<Item = &runtime::Container> {
    let runs = |container: &&runtime::Container| {
        matches!(container.state, runtime::ContainerState::Running { .. })
    };
    containers.iter().filter(runs)
}
