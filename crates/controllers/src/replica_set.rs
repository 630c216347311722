//! Keeps as many pods alive as a ReplicaSet or a ReplicationController says (C-19…C-26,
//! T-CTRL-1…T-CTRL-8). One algorithm serves both; what differs is in `replica_set/kinds.rs`.

mod kinds;
mod plan;

use crate::start::Cluster;
use crate::workload::{
    self, ORPHANS, PodControl, SELECTS, Writes, claim, feed_pods, is_outdated, is_terminal,
    orphan_keys, orphans, selects, uid, why,
};
use client::{Cache, Next, ObjectKey, Queue, Recorder, run_controller};
use k8s_openapi::api::core::v1::Pod;
use kinds::Replicated;
use plan::{Company, Failure, Plan};
use std::sync::Arc;
use std::time::Duration;

const WORKERS: usize = 5;

/// When to look again if the cache does not show what we did.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

struct Controller<'a, S: Replicated> {
    cluster: &'a Cluster,
    sets: Cache<S>,
    hands: PodControl,
}

pub(crate) async fn run<S: Replicated>(cluster: &Cluster, sets: Cache<S>) {
    let queue = Queue::new();
    sets.feed_keys(&queue);
    feed_pods(&cluster.pods, &sets, &queue);
    sets.synced().await;
    cluster.pods.synced().await;
    let hands = PodControl {
        client: cluster.client.clone(),
        recorder: Recorder::new(&cluster.client, S::COMPONENT, ""),
        writes: Writes::new(&cluster.pods),
    };
    let controller = Controller { cluster, sets, hands };
    run_controller(S::COMPONENT, &queue, WORKERS, |key| controller.reconcile(key)).await;
}

/// The cache that [`run`] wants.
pub(crate) fn sets<S: Replicated>(client: &client::Client) -> Cache<S> {
    let places = |set: &S| vec![selects(workload::namespace(set), &set.selector())];
    Cache::builder(client).index(SELECTS, places).index(ORPHANS, orphan_keys).start()
}

impl<S: Replicated> Controller<'_, S> {
    async fn reconcile(&self, key: ObjectKey) -> client::Result<Next> {
        if !self.hands.writes.seen(&key).await {
            return Ok(Next::After(LOOK_AGAIN));
        }
        let Some(set) = self.sets.get(&key) else {
            return Ok(Next::Change); // Deleted. The garbage collector takes its pods.
        };
        let pods = self.claimed(&set).await?;

        let now = clock::now();
        let plan = Plan::decide(set.as_ref(), &pods, || self.company(&set), now);

        let failure = match () {
            () if !plan.surplus.is_empty() => {
                let error = self.hands.delete(set.as_ref(), plan.surplus).await;
                error.map(|error| (Failure::Delete, error))
            }
            () => {
                let (_, error) = self.hands.create(set.as_ref(), plan.missing).await;
                error.map(|error| (Failure::Create, error))
            }
        };

        let told = failure.as_ref().map(|(failure, error)| (*failure, why(error)));
        let status = plan::status(set.as_ref(), plan.status, told, now);
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

    /// Its pods that have not ended. Those that have are left to themselves, also by adoption.
    async fn claimed(&self, set: &Arc<S>) -> client::Result<Vec<Arc<Pod>>> {
        let selector = set.selector();
        let pods = &self.cluster.pods;
        let mut candidates = pods.controlled_by_uid(uid(set.as_ref()));
        candidates.extend(orphans(pods, workload::namespace(set.as_ref()), &selector));
        candidates.retain(|pod| !is_terminal(pod));
        let (client, writes) = (&self.cluster.client, &self.hands.writes);
        claim(client, writes, set.as_ref(), &selector, None, candidates).await
    }

    /// How many active pods of the set's kin (those of the same owner, T-CTRL-5) each node has.
    fn company(&self, set: &S) -> Company {
        let kin: Vec<String> = match workload::controller_ref(set) {
            Some(owner) => {
                let kin = self.sets.controlled_by_uid(&owner.uid);
                kin.iter().map(|set| uid(set.as_ref()).to_owned()).collect()
            }
            None => vec![uid(set).to_owned()],
        };
        let mut company = Company::new();
        for pod in kin.iter().flat_map(|uid| self.cluster.pods.controlled_by_uid(uid)) {
            if workload::is_active(&pod) {
                *company.entry(plan::node(&pod).to_owned()).or_default() += 1;
            }
        }
        company
    }
}
