//! Sets the conditions of a node to Unknown if neither its lease nor its status has changed for a while (T-CTRL-38),
//! and marks its pods as not ready then (T-CTRL-39).
//!
//! Clocks of different machines are never compared: what counts is how long *this* process has observed no change. So
//! after a start every node gets its full grace period, except nodes that have never posted a status (C-189). Not here:
//! the taints that follow (`node_taints`, `node_lost`).

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

/// Without a heartbeat for this long, a node is unreachable; longer if it has never posted a status. Upstream:
/// `NodeMonitorGracePeriod`, `NodeStartupGracePeriod`.
pub(crate) const GRACE_PERIOD: Duration = Duration::from_secs(50);
const STARTUP_GRACE_PERIOD: Duration = Duration::from_secs(60);

/// The conditions that become Unknown.
const CONDITIONS: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];

/// The fields that change while a node is alive.
#[derive(Debug, Clone, PartialEq)]
struct Heartbeat {
    uid: Option<String>,
    renewed: Option<jiff::Timestamp>,
    heartbeat: Option<jiff::Timestamp>,
    version: Option<String>,
}

struct Health {
    heartbeat: Heartbeat,
    since: Instant,
    /// Its conditions were set to Unknown, and its pods must still be marked as not ready.
    pods_to_mark: bool,
}

struct Leases {
    /// Without a heartbeat for this long, a node is unreachable.
    grace_period: Duration,
    leases: Cache<Lease>,
    health: Mutex<BTreeMap<ObjectKey, Health>>,
}

pub(crate) async fn run(cluster: &Cluster, grace_period: Duration) {
    let queue = Queue::new();
    let leases = Cache::<Lease>::builder(&cluster.client).namespace(NAMESPACE).start();
    cluster.nodes.feed_keys(&queue);
    leases
        .feed(&queue, |lease| lease.metadata.name.iter().map(|n| ObjectKey::cluster(n)).collect());
    cluster.nodes.synced().await;
    cluster.pods.synced().await;
    leases.synced().await;
    let state = Leases { grace_period, leases, health: Mutex::default() };
    run_controller("node-leases", &queue, WORKERS, |key| reconcile(cluster, &state, key)).await;
}

async fn reconcile(cluster: &Cluster, state: &Leases, key: ObjectKey) -> client::Result<Next> {
    let Some(node) = cluster.nodes.get(&key) else {
        state.health().remove(&key);
        return Ok(Next::Change);
    };
    let lease = state.leases.get(&ObjectKey::new(NAMESPACE, key.name()));
    let heartbeat = heartbeat(&node, lease.as_deref());
    let since = state.since(&key, heartbeat, first_seen(&node, clock::now()));
    mark_pods(cluster, state, &key).await?;
    let reported = condition(&node, "Ready").is_some();
    let grace_period = if reported { state.grace_period } else { STARTUP_GRACE_PERIOD };
    let left = grace_period.saturating_sub(since.elapsed());
    if !left.is_zero() {
        return Ok(Next::After(left));
    }
    let Some(conditions) = unknown(&node, clock::now()) else {
        return Ok(Next::Change);
    };
    let was_ready = condition(&node, "Ready").is_some_and(|ready| ready.status == "True");
    // Only for the observed version, so that a new heartbeat is not overwritten.
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
        state.health().entry(key.clone()).and_modify(|health| health.pods_to_mark = true);
    }
    mark_pods(cluster, state, &key).await?;
    Ok(Next::Change)
}

/// Marks the pods of a lost node as not ready, once. Later reports of a node that comes back stay.
async fn mark_pods(cluster: &Cluster, state: &Leases, key: &ObjectKey) -> client::Result<()> {
    if !state.health().get(key).is_some_and(|health| health.pods_to_mark) {
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
    state.health().entry(key.clone()).and_modify(|health| health.pods_to_mark = false);
    Ok(())
}

impl Leases {
    fn health(&self) -> std::sync::MutexGuard<'_, BTreeMap<ObjectKey, Health>> {
        self.health.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The time of the last observed heartbeat; `first` if the node is new.
    fn since(&self, key: &ObjectKey, heartbeat: Heartbeat, first: Instant) -> Instant {
        let mut all = self.health();
        let health = all.entry(key.clone()).or_insert_with(|| Health {
            heartbeat: heartbeat.clone(),
            since: first,
            pods_to_mark: false,
        });
        if health.heartbeat != heartbeat {
            // Setting the conditions to Unknown is not a heartbeat.
            let pods_to_mark = health.pods_to_mark && heartbeat.version.is_none();
            *health = Health { heartbeat, since: Instant::now(), pods_to_mark };
        }
        health.since
    }
}

/// The time counts from the first observation of a node; for a node that has never posted a status, from its creation.
fn first_seen(node: &Node, now: jiff::Timestamp) -> Instant {
    let made = node.metadata.creation_timestamp.as_ref().map(|time| time.0);
    let silent = condition(node, "Ready").is_none();
    let age = made.filter(|_| silent).and_then(|made| now.duration_since(made).try_into().ok());
    let seen = Instant::now();
    age.and_then(|age| seen.checked_sub(age)).unwrap_or(seen)
}

fn heartbeat(node: &Node, lease: Option<&Lease>) -> Heartbeat {
    let ready = condition(node, "Ready");
    Heartbeat {
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

/// The new conditions, if they differ.
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
