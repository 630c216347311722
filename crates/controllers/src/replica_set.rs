//! Keeps the number of pods of a ReplicaSet or a ReplicationController (C-19…C-26, T-CTRL-1…T-CTRL-8). Both share one
//! algorithm; `replica_set/kinds.rs` has the differences.

mod kinds;
mod plan;

use crate::start::Cluster;
use crate::workload::{
    self, ORPHANS, OWNERS_BY_ORPHANS, PendingWrites, PodControl, RETRY_DELAY, claim, error_message,
    feed_pods, is_outdated, is_terminal_pod, orphan_index_key, orphan_keys, owned_and_orphans, uid,
};
use client::{Cache, Next, ObjectKey, Queue, Recorder, run_controller};
use k8s_openapi::api::core::v1::Pod;
use kinds::Replicated;
use plan::{Failure, Plan, RelatedPods};
use std::sync::Arc;

const WORKERS: usize = 5;

struct Controller<'a, S: Replicated> {
    cluster: &'a Cluster,
    sets: Cache<S>,
    pod_control: PodControl,
}

pub(crate) async fn run<S: Replicated>(cluster: &Cluster, sets: Cache<S>) {
    let queue = Queue::new();
    sets.feed_keys(&queue);
    feed_pods(&cluster.pods, &sets, &queue);
    sets.synced().await;
    cluster.pods.synced().await;
    let pod_control = PodControl {
        client: cluster.client.clone(),
        recorder: Recorder::new(&cluster.client, S::COMPONENT, ""),
        writes: PendingWrites::new(&cluster.pods),
    };
    let controller = Controller { cluster, sets, pod_control };
    run_controller(S::COMPONENT, &queue, WORKERS, |key| controller.reconcile(key)).await;
}

/// The cache that [`run`] needs.
pub(crate) fn sets<S: Replicated>(client: &client::Client) -> Cache<S> {
    let places = |set: &S| vec![orphan_index_key(workload::namespace(set), &set.selector())];
    Cache::builder(client).index(OWNERS_BY_ORPHANS, places).index(ORPHANS, orphan_keys).start()
}

impl<S: Replicated> Controller<'_, S> {
    async fn reconcile(&self, key: ObjectKey) -> client::Result<Next> {
        if !self.pod_control.writes.are_cached(&key).await {
            return Ok(Next::After(RETRY_DELAY));
        }
        let Some(set) = self.sets.get(&key) else {
            return Ok(Next::Change); // Deleted. The garbage collector takes its pods.
        };
        let pods = self.claimed(&set).await?;

        let now = clock::now();
        let plan = Plan::decide(set.as_ref(), &pods, || self.related(&set), now);

        let failure = match () {
            () if !plan.surplus.is_empty() => {
                let error = self.pod_control.delete(set.as_ref(), plan.surplus).await;
                error.map(|error| (Failure::Delete, error))
            }
            () => {
                let (_, error) = self.pod_control.create(set.as_ref(), plan.missing).await;
                error.map(|error| (Failure::Create, error))
            }
        };

        let failed = failure.as_ref().map(|(failure, error)| (*failure, error_message(error)));
        let status = plan::status(set.as_ref(), plan.status, failed, now);
        if status != set.status() {
            match set.write_status(&self.cluster.client, status).await {
                Err(error) if !is_outdated(&error) => return Err(error),
                _ => (),
            }
        }
        match failure {
            Some((_, error)) => Err(error),
            None => Ok(plan.next.into()),
        }
    }

    /// The set's pods that are not terminal. Terminal pods are ignored and not adopted.
    async fn claimed(&self, set: &Arc<S>) -> client::Result<Vec<Arc<Pod>>> {
        let selector = set.selector();
        let pods = &self.cluster.pods;
        let mut candidates = owned_and_orphans(pods, set.as_ref(), &selector);
        candidates.retain(|pod| !is_terminal_pod(pod));
        let (client, writes) = (&self.cluster.client, &self.pod_control.writes);
        claim(client, writes, set.as_ref(), &selector, None, candidates).await
    }

    /// The number of active pods per node of all sets with the same owner (T-CTRL-5).
    fn related(&self, set: &S) -> RelatedPods {
        let sets: Vec<String> = match workload::controller_ref(set) {
            Some(owner) => {
                let siblings = self.sets.controlled_by_uid(&owner.uid);
                siblings.iter().map(|set| uid(set.as_ref()).to_owned()).collect()
            }
            None => vec![uid(set).to_owned()],
        };
        let mut related = RelatedPods::new();
        for pod in sets.iter().flat_map(|uid| self.cluster.pods.controlled_by_uid(uid)) {
            if workload::is_active(&pod) {
                *related.entry(plan::node(&pod).to_owned()).or_default() += 1;
            }
        }
        related
    }
}
