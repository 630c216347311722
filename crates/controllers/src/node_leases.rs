//! Says that a node is not heard of when neither its lease nor its status has moved for a while
//! (T-CTRL-38), and that its pods are not ready then: nobody can vouch for them either (T-CTRL-39).
//!
//! Clocks are never compared: what counts is how long *we* have seen nothing move, so after a start
//! every node gets its full time, but for those that have never said anything (C-189). Not here: the taints that follow (`node_taints`).

use crate::pods;
use crate::start::Cluster;
use client::{Cache, Next, ObjectKey, Queue, reference, run_controller};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, NodeCondition, Pod};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;
use tokio::time::Instant;

const WORKERS: usize = 4;
const NAMESPACE: &str = "kube-node-lease";

/// Upstream: `NodeMonitorGracePeriod`, `NodeStartupGracePeriod`.
pub(crate) const SILENT_FOR: Duration = Duration::from_secs(50);
const SILENT_FROM_START: Duration = Duration::from_secs(60);

/// What nobody can vouch for any more.
const CONDITIONS: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];

/// What moves when a node lives.
#[derive(Debug, Clone, PartialEq)]
struct Pulse {
    uid: Option<String>,
    renewed: Option<jiff::Timestamp>,
    heartbeat: Option<jiff::Timestamp>,
    version: Option<String>,
}

struct Health {
    pulse: Pulse,
    since: Instant,
    /// It was said to be Unknown, and its pods have still to be told.
    tell_pods: bool,
}

struct Leases {
    /// From when on a node is not heard of.
    silent_for: Duration,
    leases: Cache<Lease>,
    health: Mutex<BTreeMap<ObjectKey, Health>>,
}

pub(crate) async fn run(cluster: &Cluster, silent_for: Duration) {
    let queue = Queue::new();
    let leases = Cache::<Lease>::builder(&cluster.client).namespace(NAMESPACE).start();
    cluster.nodes.feed_keys(&queue);
    leases
        .feed(&queue, |lease| lease.metadata.name.iter().map(|n| ObjectKey::cluster(n)).collect());
    cluster.nodes.synced().await;
    cluster.pods.synced().await;
    leases.synced().await;
    let state = Leases { silent_for, leases, health: Mutex::default() };
    run_controller("node-leases", &queue, WORKERS, |key| reconcile(cluster, &state, key)).await;
}

async fn reconcile(cluster: &Cluster, state: &Leases, key: ObjectKey) -> client::Result<Next> {
    let Some(node) = cluster.nodes.get(&key) else {
        state.health().remove(&key);
        return Ok(Next::Change);
    };
    let lease = state.leases.get(&ObjectKey::new(NAMESPACE, key.name()));
    let pulse = pulse(&node, lease.as_deref());
    let since = state.since(&key, pulse, first_seen(&node, clock::now()));
    tell_pods(cluster, state, &key).await?;
    let reported = condition(&node, "Ready").is_some();
    let silent_for = if reported { state.silent_for } else { SILENT_FROM_START };
    let left = silent_for.saturating_sub(since.elapsed());
    if !left.is_zero() {
        return Ok(Next::After(left));
    }
    let Some(conditions) = unknown(&node, clock::now()) else {
        return Ok(Next::Change);
    };
    let was_ready = condition(&node, "Ready").is_some_and(|ready| ready.status == "True");
    // Only as it was looked at: a heartbeat that comes now must not be overwritten.
    let patch = json!({
        "metadata": { "resourceVersion": node.metadata.resource_version },
        "status": { "conditions": conditions },
    });
    match cluster.client.patch_status::<Node>(&key, &patch).await {
        Err(error) if error.is_not_found() || error.is_conflict() => return Ok(Next::Change),
        patched => drop(patched?),
    }
    if was_ready {
        let message = format!("Node {} status is now: NodeNotReady", key.name());
        cluster.recorder.normal(&reference(node.as_ref()), "NodeNotReady", message);
        state.health().entry(key.clone()).and_modify(|health| health.tell_pods = true);
    }
    tell_pods(cluster, state, &key).await?;
    Ok(Next::Change)
}

/// Once, when the node is lost: what a node says of its pods when it comes back is not undone.
async fn tell_pods(cluster: &Cluster, state: &Leases, key: &ObjectKey) -> client::Result<()> {
    if !state.health().get(key).is_some_and(|health| health.tell_pods) {
        return Ok(());
    }
    for pod in cluster.pods.by_index(pods::BY_NODE, key.name()) {
        if !pods::is_ready(&pod) {
            continue;
        }
        let not_ready = json!({
            "type": "Ready", "status": "False", "lastTransitionTime": clock::now_rfc3339(),
        });
        let patch = json!({
            "metadata": { "uid": pod.metadata.uid }, "status": { "conditions": [not_ready] },
        });
        match cluster.client.patch_status::<Pod>(&ObjectKey::of(pod.as_ref()), &patch).await {
            Err(error) if error.is_not_found() || error.is_conflict() => continue,
            patched => drop(patched?),
        }
        cluster.recorder.warning(&reference(pod.as_ref()), "NodeNotReady", "Node is not ready");
    }
    state.health().entry(key.clone()).and_modify(|health| health.tell_pods = false);
    Ok(())
}

impl Leases {
    fn health(&self) -> std::sync::MutexGuard<'_, BTreeMap<ObjectKey, Health>> {
        self.health.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Since when the node has been as it is; `first` if we see it for the first time.
    fn since(&self, key: &ObjectKey, pulse: Pulse, first: Instant) -> Instant {
        let mut all = self.health();
        let health = all.entry(key.clone()).or_insert_with(|| Health {
            pulse: pulse.clone(),
            since: first,
            tell_pods: false,
        });
        if health.pulse != pulse {
            // That it was said to be Unknown is no sign of life.
            let tell_pods = health.tell_pods && pulse.version.is_none();
            *health = Health { pulse, since: Instant::now(), tell_pods };
        }
        health.since
    }
}

/// A node counts from when we first see it; one that has never said anything, from when it was made.
fn first_seen(node: &Node, now: jiff::Timestamp) -> Instant {
    let made = node.metadata.creation_timestamp.as_ref().map(|time| time.0);
    let silent = condition(node, "Ready").is_none();
    let age = made.filter(|_| silent).and_then(|made| now.duration_since(made).try_into().ok());
    let seen = Instant::now();
    age.and_then(|age| seen.checked_sub(age)).unwrap_or(seen)
}

fn pulse(node: &Node, lease: Option<&Lease>) -> Pulse {
    let ready = condition(node, "Ready");
    Pulse {
        uid: node.metadata.uid.clone(),
        renewed: lease.and_then(|lease| Some(lease.spec.as_ref()?.renew_time.as_ref()?.0)),
        heartbeat: ready.and_then(|ready| Some(ready.last_heartbeat_time.as_ref()?.0)),
        version: ready.filter(|ready| ready.status != "Unknown").map(|ready| ready.status.clone()),
    }
}

fn condition<'a>(node: &'a Node, type_: &str) -> Option<&'a NodeCondition> {
    let mut conditions = node.status.as_ref()?.conditions.iter().flatten();
    conditions.find(|condition| condition.type_ == type_)
}

/// What the conditions become, if they are not that already.
fn unknown(node: &Node, now: jiff::Timestamp) -> Option<Vec<Value>> {
    let now = clock::rfc3339(now);
    let changed = CONDITIONS.iter().filter_map(|type_| {
        let never = json!({
            "type": type_, "status": "Unknown", "reason": "NodeStatusNeverUpdated",
            "message": "Kubelet never posted node status.",
            "lastHeartbeatTime": node.metadata.creation_timestamp, "lastTransitionTime": now,
        });
        match condition(node, type_) {
            None => Some(never),
            Some(before) if before.status == "Unknown" => None,
            Some(_) => Some(json!({
                "type": type_, "status": "Unknown", "reason": "NodeStatusUnknown",
                "message": "Kubelet stopped posting node status.", "lastTransitionTime": now,
            })),
        }
    });
    let changed: Vec<Value> = changed.collect();
    (!changed.is_empty()).then_some(changed)
}
