//! Deletes pods that no node will delete: pods of deleted nodes, terminating pods without a node, terminating pods on
//! out-of-service nodes, and finished pods above a threshold (T-CTRL-33 to T-CTRL-37, W-19).

use crate::pods::{self, Disruption};
use crate::start::Cluster;
use client::{Next, ObjectKey, Queue, run_controller};
use futures::future::join_all;
use k8s_openapi::api::core::v1::{Node, Pod};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;

const WORKERS: usize = 4;

/// Finished pods to keep. Upstream: `TerminatedPodGCThreshold`.
pub const FINISHED_MAX: usize = 12_500;

/// How often finished pods are counted. Upstream: `gcCheckPeriod`.
const COUNT_EVERY: Duration = Duration::from_secs(20);

/// How long a node must be missing. Upstream: `quarantineTime`.
const MISSING_FOR: Duration = Duration::from_secs(40);

/// Pods that are deleted concurrently.
const CONCURRENT_MAX: usize = 20;

const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
const NODE_GONE: Disruption = ("DeletionByPodGC", "PodGC: node no longer exists");

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Work {
    Finished,
    /// The pods of a node.
    Node(String),
    /// A pod without a node.
    Pod(ObjectKey),
}

/// Since when nodes have been missing.
type Missing = Mutex<BTreeMap<String, Instant>>;

pub(crate) async fn run(cluster: &Cluster, finished_max: Option<usize>) {
    let queue = Queue::new();
    cluster.pods.feed(&queue, |pod| match pods::node_name(pod) {
        Some(node) => vec![Work::Node(node.to_owned())],
        None if pods::is_being_deleted(pod) => vec![Work::Pod(ObjectKey::of(pod))],
        None => Vec::new(),
    });
    cluster.nodes.feed(&queue, |node| {
        node.metadata.name.iter().map(|name| Work::Node(name.clone())).collect()
    });
    cluster.pods.synced().await;
    cluster.nodes.synced().await;
    queue.add(Work::Finished);
    let missing = Missing::default();
    run_controller("pod-garbage", &queue, WORKERS, |work| async {
        match work {
            Work::Finished => finished(cluster, finished_max).await,
            Work::Node(name) => node(cluster, &missing, &name).await,
            Work::Pod(key) => unscheduled(cluster, &key).await,
        }
    })
    .await;
}

async fn finished(cluster: &Cluster, max: Option<usize>) -> client::Result<Next> {
    let Some(max) = max else { return Ok(Next::Change) };
    if cluster.pods.count(pods::BY_STATE, pods::TERMINAL) > max {
        let finished = cluster.pods.by_index(pods::BY_STATE, pods::TERMINAL);
        remove(cluster, surplus(finished, max), "terminated", None).await?;
    }
    Ok(Next::After(COUNT_EVERY))
}

/// The finished pods to delete: evicted ones first, then the oldest (T-CTRL-33).
fn surplus(mut finished: Vec<Arc<Pod>>, max: usize) -> Vec<Arc<Pod>> {
    let count = finished.len().saturating_sub(max);
    let evicted = |pod: &Pod| {
        pod.status.as_ref().and_then(|status| status.reason.as_deref()) == Some("Evicted")
    };
    finished.sort_by_cached_key(|pod| {
        let age = pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
        (Reverse(evicted(pod)), age, pod.metadata.name.clone())
    });
    finished.truncate(count);
    finished
}

async fn node(cluster: &Cluster, missing: &Missing, name: &str) -> client::Result<Next> {
    let key = ObjectKey::cluster(name);
    if let Some(node) = cluster.nodes.get(&key) {
        locked(missing).remove(name);
        if is_out_of_service(&node) {
            let ending = cluster.pods.by_index(pods::BY_NODE, name);
            let ending = ending.into_iter().filter(|pod| wants_removal(pod));
            remove(cluster, ending, "out-of-service", None).await?;
        }
        return Ok(Next::Change);
    }
    let orphans = cluster.pods.by_index(pods::BY_NODE, name);
    let orphans: Vec<_> = orphans.into_iter().filter(|pod| !is_removed(pod)).collect();
    if orphans.is_empty() {
        locked(missing).remove(name);
        return Ok(Next::Change);
    }
    let since = *locked(missing).entry(name.to_owned()).or_insert_with(Instant::now);
    let left = MISSING_FOR.saturating_sub(since.elapsed());
    if !left.is_zero() {
        return Ok(Next::After(left));
    }
    // The node may exist, but not in the cache yet.
    if cluster.client.find::<Node>(&key).await?.is_some() {
        return Ok(Next::After(MISSING_FOR));
    }
    remove(cluster, orphans, "orphaned", Some(NODE_GONE)).await?;
    Ok(Next::Change)
}

/// Deletes a terminating pod without a node (T-CTRL-35).
async fn unscheduled(cluster: &Cluster, key: &ObjectKey) -> client::Result<Next> {
    let pod = cluster.pods.get(key).filter(|pod| pods::node_name(pod).is_none());
    let pod = pod.into_iter().filter(|pod| wants_removal(pod));
    remove(cluster, pod, "unscheduled", None).await?;
    Ok(Next::Change)
}

fn wants_removal(pod: &Pod) -> bool {
    pods::is_being_deleted(pod) && !is_removed(pod)
}

/// Only a finalizer keeps the pod; nothing more can be done.
fn is_removed(pod: &Pod) -> bool {
    let at_once = pod.metadata.deletion_grace_period_seconds == Some(0);
    pods::is_being_deleted(pod) && at_once && pods::is_terminal_pod(pod)
}

/// Whether a user has declared the node out of service, and it is not ready (T-CTRL-36).
fn is_out_of_service(node: &Node) -> bool {
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let ready = conditions.into_iter().any(|c| c.type_ == "Ready" && c.status == "True");
    !ready && taints.into_iter().any(|taint| taint.key == OUT_OF_SERVICE)
}

/// Tries all of them. `reason` is the label of the metric.
async fn remove(
    cluster: &Cluster,
    pods: impl IntoIterator<Item = Arc<Pod>>,
    reason: &str,
    why: Option<Disruption>,
) -> client::Result<()> {
    let pods: Vec<Arc<Pod>> = pods.into_iter().collect();
    let mut all = Ok(());
    for batch in pods.chunks(CONCURRENT_MAX) {
        let removed = batch.iter().map(|pod| pods::fail_and_delete(&cluster.client, pod, why));
        for (pod, removed) in batch.iter().zip(join_all(removed).await) {
            cluster.metrics.pod_deleted(pods::namespace(pod), reason, removed.is_ok());
            all = all.and(removed);
        }
    }
    all
}

fn locked(missing: &Missing) -> std::sync::MutexGuard<'_, BTreeMap<String, Instant>> {
    missing.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(name: &str, second: u32, reason: &str) -> Arc<Pod> {
        let created = format!("2026-01-01T00:00:{second:02}Z");
        let pod = json!({
            "metadata": { "name": name, "creationTimestamp": created },
            "status": { "phase": "Failed", "reason": reason },
        });
        Arc::new(typed::from_value(pod).unwrap())
    }

    #[test]
    fn t_ctrl_33_evicted_pods_are_deleted_first_then_the_oldest() {
        let pods = || {
            vec![
                pod("new", 9, ""),
                pod("old", 1, ""),
                pod("evicted", 5, "Evicted"),
                pod("a", 1, ""),
            ]
        };
        let names = |max: usize| -> Vec<String> {
            let gone = surplus(pods(), max);
            gone.iter().map(|pod| pod.metadata.name.clone().unwrap()).collect()
        };
        assert_eq!(names(4), [""; 0]);
        assert_eq!(names(3), ["evicted"]);
        assert_eq!(names(2), ["evicted", "a"]);
        assert_eq!(names(0), ["evicted", "a", "old", "new"]);
    }

    #[test]
    fn t_ctrl_36_out_of_service_needs_the_taint_and_an_unready_node() {
        let node = |ready: &str, taint: &str| -> Node {
            let taints = json!([{ "key": taint, "effect": "NoExecute", "value": "nodeshutdown" }]);
            let conditions: Value = json!([{ "type": "Ready", "status": ready }]);
            let node = json!({
                "metadata": { "name": "n" }, "spec": { "taints": taints },
                "status": { "conditions": conditions },
            });
            typed::from_value(node).unwrap()
        };
        for (ready, taint, expected) in [
            ("Unknown", OUT_OF_SERVICE, true),
            ("False", OUT_OF_SERVICE, true),
            ("True", OUT_OF_SERVICE, false),
            ("Unknown", "other", false),
        ] {
            assert_eq!(is_out_of_service(&node(ready, taint)), expected, "{ready} {taint}");
        }
    }
}
