//! Deletes pods from nodes whose NoExecute taints they do not tolerate, or tolerate only for a limited time (T-CTRL-42,
//! C-188). Disruption budgets do not apply.
//!
//! The time counts from when pod and taint are first observed together. Later changes do not move it, except that a
//! pod which does not tolerate a taint at all is deleted at once.
//! Not here: adding taints (`node_lost`), and pods that no node can terminate (`pod_garbage`).

use crate::pods::{self, Disruption};
use crate::start::Cluster;
use client::{DeleteOptions, Next, ObjectKey, Queue, Recorder, reference, run_controller};
use k8s_openapi::api::core::v1::{Node, Pod, Taint, Toleration};
use lifecycle::placement::tolerates;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;
use tokio::time::Instant;

const WORKERS: usize = 8;
const NO_EXECUTE: &str = "NoExecute";
const REASON: &str = "TaintManagerEviction";
const TAINTED: Disruption =
    ("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint");

/// When pods will be deleted, with their UIDs.
#[derive(Default)]
struct Scheduled(Mutex<BTreeMap<ObjectKey, (Option<String>, Instant)>>);

/// How long a pod may stay on its node.
#[derive(Debug, PartialEq)]
enum Stay {
    ForEver,
    For(Duration),
    Not,
}

pub(crate) async fn run(cluster: &Cluster) {
    let queue = Queue::new();
    cluster.pods.feed_changes(&queue, |before, after| {
        // Only changes of the node, the tolerations and the deletion matter.
        let tolerations = |pod: &Pod| pod.spec.as_ref().and_then(|s| s.tolerations.clone());
        let same = before.zip(after).is_some_and(|(before, after)| {
            before.metadata.uid == after.metadata.uid
                && pods::node_name(before) == pods::node_name(after)
                && pods::is_being_deleted(before) == pods::is_being_deleted(after)
                && tolerations(before) == tolerations(after)
        });
        let pod = after.or(before).filter(|_| !same);
        pod.map(ObjectKey::of).into_iter().collect()
    });
    let on_node = cluster.pods.clone();
    cluster.nodes.feed_changes(&queue, move |before, after| {
        let taints = |node: Option<&Node>| -> Vec<Taint> {
            node.map(|node| taints(node).cloned().collect()).unwrap_or_default()
        };
        let name = after.or(before).and_then(|node| node.metadata.name.as_deref());
        if taints(before) == taints(after) {
            return Vec::new();
        }
        let pods = on_node.by_index(pods::BY_NODE, name.unwrap_or_default());
        pods.iter().map(|pod| ObjectKey::of(pod.as_ref())).collect()
    });
    cluster.pods.synced().await;
    cluster.nodes.synced().await;
    let recorder = Recorder::new(&cluster.client, "taint-eviction-controller", "");
    let scheduled = Scheduled::default();
    run_controller("taint-eviction", &queue, WORKERS, |key| {
        reconcile(cluster, &recorder, &scheduled, key)
    })
    .await;
}

async fn reconcile(
    cluster: &Cluster,
    recorder: &Recorder,
    scheduled: &Scheduled,
    key: ObjectKey,
) -> client::Result<Next> {
    let Some(pod) = cluster.pods.get(&key).filter(|pod| !pods::is_being_deleted(pod)) else {
        scheduled.all().remove(&key);
        return Ok(Next::Change);
    };
    let node = pods::node_name(&pod).and_then(|name| cluster.nodes.get(&ObjectKey::cluster(name)));
    let stay = node.map_or(Stay::ForEver, |node| stay(&pod, taints(&node)));
    let at = match stay {
        Stay::ForEver => {
            if scheduled.cancel(&key, &pod) {
                let message = format!("Cancelling deletion of Pod {key}");
                recorder.normal(&reference(pod.as_ref()), REASON, message);
            }
            return Ok(Next::Change);
        }
        Stay::For(time) => scheduled.at(&key, &pod, time),
        // Even if it was scheduled for later (T-CTRL-42).
        Stay::Not => Instant::now(),
    };
    let left = at.saturating_duration_since(Instant::now());
    if !left.is_zero() {
        return Ok(Next::After(left));
    }
    evict(cluster, recorder, &key, &pod).await?;
    scheduled.all().remove(&key);
    Ok(Next::Change)
}

async fn evict(
    cluster: &Cluster,
    recorder: &Recorder,
    key: &ObjectKey,
    pod: &Pod,
) -> client::Result<()> {
    recorder.normal(&reference(pod), REASON, format!("Marking for deletion Pod {key}"));
    let gone = async {
        pods::set_disruption_target(&cluster.client, pod, TAINTED).await?;
        cluster.client.delete::<Pod>(key, &DeleteOptions::only(pod)).await
    };
    match gone.await {
        Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
        gone => gone.map(drop),
    }
}

/// Avoids an overflow of `Instant` for very long tolerations.
const LONGEST: Duration = Duration::from_secs(1000 * 365 * 24 * 3600);

impl Scheduled {
    fn all(&self) -> MutexGuard<'_, BTreeMap<ObjectKey, (Option<String>, Instant)>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// When this pod is deleted. The first decision stays.
    fn at(&self, key: &ObjectKey, pod: &Pod, time: Duration) -> Instant {
        let mut all = self.all();
        let uid = &pod.metadata.uid;
        match all.get(key) {
            Some((of, at)) if of == uid => *at,
            _ => {
                let at = Instant::now() + time.min(LONGEST);
                all.insert(key.clone(), (uid.clone(), at));
                at
            }
        }
    }

    /// Returns whether the deletion of this pod was scheduled.
    fn cancel(&self, key: &ObjectKey, pod: &Pod) -> bool {
        self.all().remove(key).is_some_and(|(of, _)| of == pod.metadata.uid)
    }
}

fn taints(node: &Node) -> impl Iterator<Item = &Taint> {
    let all = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    all.filter(|taint| taint.effect == NO_EXECUTE)
}

/// The shortest toleration of all taints, if the pod tolerates all of them.
fn stay<'a>(pod: &Pod, taints: impl Iterator<Item = &'a Taint>) -> Stay {
    let tolerations = pod.spec.as_ref().and_then(|spec| spec.tolerations.as_deref());
    let tolerations = tolerations.unwrap_or_default();
    let mut least: Option<i64> = None;
    for taint in taints {
        let Some(toleration) = tolerations.iter().find(|known| tolerates(known, taint)) else {
            return Stay::Not;
        };
        let Toleration { toleration_seconds, .. } = toleration;
        least = match (*toleration_seconds, least) {
            (Some(seconds), Some(least)) => Some(seconds.min(least)),
            (seconds, least) => seconds.or(least),
        };
    }
    match least {
        None => Stay::ForEver,
        Some(seconds) => Stay::For(Duration::from_secs(seconds.try_into().unwrap_or_default())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn t_ctrl_42_very_long_tolerations_do_not_overflow() {
        let key = ObjectKey::new("default", "p");
        let time = Duration::from_secs(i64::MAX.unsigned_abs());
        let at = Scheduled::default().at(&key, &Pod::default(), time);
        assert!(at > Instant::now() + LONGEST / 2);
    }

    #[test]
    fn t_ctrl_42_the_smallest_toleration_counts() {
        let taint = |key: &str| json!({ "key": key, "effect": "NoExecute" });
        let toleration = |key: &str, seconds: Value| json!({ "key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds });
        let seconds = |seconds| Stay::For(Duration::from_secs(seconds));
        let cases = [
            ("no taint", json!([]), json!([]), Stay::ForEver),
            (
                "another effect",
                json!([{ "key": "a", "effect": "NoSchedule" }]),
                json!([]),
                Stay::ForEver,
            ),
            (
                "not tolerated",
                json!([taint("a")]),
                json!([toleration("b", Value::Null)]),
                Stay::Not,
            ),
            ("for ever", json!([taint("a")]), json!([toleration("a", Value::Null)]), Stay::ForEver),
            ("for a while", json!([taint("a")]), json!([toleration("a", json!(10))]), seconds(10)),
            (
                "the smaller of two",
                json!([taint("a"), taint("b")]),
                json!([toleration("a", json!(10)), toleration("b", json!(5))]),
                seconds(5),
            ),
            (
                "one for ever, one for a while",
                json!([taint("a"), taint("b")]),
                json!([toleration("a", Value::Null), toleration("b", json!(5))]),
                seconds(5),
            ),
            (
                "one of two",
                json!([taint("a"), taint("b")]),
                json!([toleration("a", json!(10))]),
                Stay::Not,
            ),
            ("negative", json!([taint("a")]), json!([toleration("a", json!(-1))]), seconds(0)),
        ];
        for (what, tainted, tolerations, expected) in cases {
            let node = json!({ "metadata": {}, "spec": { "taints": tainted } });
            let node: Node = typed::from_value(node).unwrap();
            let pod =
                json!({ "metadata": {}, "spec": { "containers": [], "tolerations": tolerations } });
            let pod: Pod = typed::from_value(pod).unwrap();
            assert_eq!(stay(&pod, taints(&node)), expected, "{what}");
        }
    }
}
