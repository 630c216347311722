//! Rolls out Deployments by creating and scaling ReplicaSets (C-27…C-60, T-CTRL-9…T-CTRL-14).
//!
//!     deployment, its sets ──▶ plan::decide ──▶ create one set, resize some, delete some ──▶ status
//!
//! `plan.rs` decides one reconcile; `revisions.rs` finds and names the new set, `rolling.rs` and `scaling.rs` compute
//! the sizes of sets, `progress.rs` computes the status. Not here: pods. The ReplicaSet controller manages them.

mod plan;
mod progress;
mod revisions;
mod rollback;
mod rolling;
mod scaling;

use crate::start::Cluster;
use crate::workload::{
    self, OWNERS_BY_ORPHANS, PendingWrites, RETRY_DELAY, claim, controller_ref, error_message,
    is_controlled_by, is_outdated, is_terminal_pod, name, namespace, orphan_index_key,
    owned_and_orphans, owner_keys, same_template,
};
use client::{
    Cache, Client, DeleteOptions, Error, Next, ObjectKey, Queue, Recorder, reference,
    run_controller,
};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::Pod;
use plan::Plan;
use std::sync::Arc;

pub(crate) use plan::{Round, resolve_percent};

const COMPONENT: &str = "deployment-controller";
const WORKERS: usize = 5;

struct Controller<'a> {
    cluster: &'a Cluster,
    deployments: Cache<Deployment>,
    recorder: Recorder,
    writes: PendingWrites<ReplicaSet>,
}

pub(crate) async fn run(cluster: &Cluster) {
    let queue = Queue::new();
    let deployments = deployments(&cluster.client);
    deployments.feed_keys(&queue);
    let owners = deployments.clone();
    cluster.replica_sets.feed(&queue, move |set| owner_keys(&owners, set));
    let (owners, sets) = (deployments.clone(), cluster.replica_sets.clone());
    cluster.pods.feed(&queue, move |pod| waits_for(&owners, &sets, pod).into_iter().collect());
    deployments.synced().await;
    cluster.replica_sets.synced().await;
    cluster.pods.synced().await;
    let controller = Controller {
        cluster,
        deployments,
        recorder: Recorder::new(&cluster.client, COMPONENT, ""),
        writes: PendingWrites::new(&cluster.replica_sets),
    };
    run_controller(COMPONENT, &queue, WORKERS, |key| controller.reconcile(key)).await;
}

fn deployments(client: &Client) -> Cache<Deployment> {
    let places = |deployment: &Deployment| {
        vec![orphan_index_key(namespace(deployment), &plan::selector(deployment))]
    };
    Cache::builder(client).index(OWNERS_BY_ORPHANS, places).start()
}

/// The Deployment that may be waiting for this pod to terminate: only with strategy `Recreate` (C-52).
fn waits_for(
    deployments: &Cache<Deployment>,
    sets: &Cache<ReplicaSet>,
    pod: &Pod,
) -> Option<ObjectKey> {
    let set = controller_ref(pod).filter(|owner| owner.kind == "ReplicaSet")?;
    let set = sets.get(&ObjectKey::new(namespace(pod), &set.name))?;
    let key = owner_keys(deployments, set.as_ref()).into_iter().next()?;
    deployments.get(&key).filter(|deployment| plan::recreates(deployment)).map(|_| key)
}

impl Controller<'_> {
    async fn reconcile(&self, key: ObjectKey) -> client::Result<Next> {
        if !self.writes.are_cached(&key).await {
            return Ok(Next::After(RETRY_DELAY));
        }
        let Some(deployment) = self.deployments.get(&key) else {
            return Ok(Next::Change); // Deleted. The garbage collector takes its sets.
        };
        if plan::selector(&deployment).is_everything() {
            return self.reject_empty_selector(&deployment).await;
        }
        let sets = self.claimed(&deployment).await?;
        if let Some(rollback) = rollback::decide(&deployment, &sets) {
            return self.roll_back(&deployment, rollback).await;
        }
        let run = |set: &ReplicaSet| {
            let pods = self.cluster.pods.controlled_by(set);
            pods.iter().any(|pod| !is_terminal_pod(pod))
        };

        let plan = plan::decide(&deployment, &sets, run, clock::now());

        match self.act(&deployment, plan).await {
            // No watch event may follow, for example if the set with that name is just being deleted (C-34).
            Err(error) if is_outdated(&error) => Ok(Next::After(RETRY_DELAY)),
            // A retry in a terminating namespace cannot succeed.
            Err(error) if error.is_namespace_terminating() => Ok(Next::Change),
            done => done,
        }
    }

    async fn claimed(&self, deployment: &Arc<Deployment>) -> client::Result<Vec<Arc<ReplicaSet>>> {
        let selector = plan::selector(deployment);
        let sets = &self.cluster.replica_sets;
        let candidates = owned_and_orphans(sets, deployment.as_ref(), &selector);
        let client = &self.cluster.client;
        claim(client, &self.writes, deployment.as_ref(), &selector, None, candidates).await
    }

    async fn act(&self, deployment: &Deployment, plan: Plan) -> client::Result<Next> {
        if let Some(set) = plan.create {
            return self.create(deployment, set, plan.deployment).await;
        }
        let key = ObjectKey::of(deployment);
        for change in plan.update {
            let written = self.cluster.client.update(&change.after).await?;
            self.writes.wrote(&key, &written);
            if let Some(message) = change.event_message() {
                self.recorder.normal(&reference(deployment), "ScalingReplicaSet", message);
            }
        }
        for set in plan.delete {
            let options = DeleteOptions::only(set.as_ref());
            let set_key = ObjectKey::of(set.as_ref());
            match self.cluster.client.delete::<ReplicaSet>(&set_key, &options).await {
                Err(error) if !is_outdated(&error) => return Err(error),
                _ => self.writes.deleted(&key, [set]),
            }
        }
        self.report(deployment, plan.deployment).await?;
        Ok(plan.next.into())
    }

    /// Writes status and revision if they have changed.
    async fn report(&self, before: &Deployment, after: Deployment) -> client::Result<()> {
        let same = before.status == after.status
            && before.metadata.annotations == after.metadata.annotations;
        if !same {
            self.cluster.client.replace_status(&after).await?;
        }
        Ok(())
    }

    async fn create(
        &self,
        deployment: &Deployment,
        set: ReplicaSet,
        after: Deployment,
    ) -> client::Result<Next> {
        match self.cluster.client.create(&set).await {
            Ok(created) => {
                self.writes.wrote(&ObjectKey::of(deployment), &created);
                let size = plan::size(&created);
                if size > 0 {
                    let message =
                        format!("Scaled up replica set {} from 0 to {size}", name(&created));
                    self.recorder.normal(&reference(deployment), "ScalingReplicaSet", message);
                }
                self.report(deployment, after).await?;
                Ok(Next::Change)
            }
            Err(error) if error.is_already_exists() => self.name_is_taken(deployment, &set).await,
            Err(error) if error.is_namespace_terminating() => Err(error),
            Err(error) => self.cannot_create(deployment, &set, error).await,
        }
    }

    /// We created the set ourselves and the cache lags, or it is another set, and the next hash is tried (C-34).
    async fn name_is_taken(
        &self,
        deployment: &Deployment,
        set: &ReplicaSet,
    ) -> client::Result<Next> {
        let existing = self.cluster.client.get::<ReplicaSet>(&ObjectKey::of(set)).await?;
        let same = match (plan::template(&existing), plan::template(set)) {
            (Some(existing), Some(ours)) => same_template(existing, ours),
            _ => false,
        };
        if is_controlled_by(&existing, deployment) && same {
            self.writes.wrote(&ObjectKey::of(deployment), &existing);
            return Ok(Next::After(RETRY_DELAY));
        }
        let mut after = deployment.clone();
        let status = after.status.get_or_insert_default();
        status.collision_count = Some(status.collision_count.unwrap_or(0).saturating_add(1));
        self.report(deployment, after).await?;
        Ok(Next::Change) // Our own write causes the next reconcile.
    }

    async fn cannot_create(
        &self,
        deployment: &Deployment,
        set: &ReplicaSet,
        error: Error,
    ) -> client::Result<Next> {
        let message =
            format!("Failed to create new replica set {:?}: {}", name(set), error_message(&error));
        self.recorder.warning(&reference(deployment), "ReplicaSetCreateError", message.clone());
        let mut after = deployment.clone();
        progress::set_create_failed(&mut after, message, clock::now());
        self.report(deployment, after).await?;
        Err(error)
    }

    async fn roll_back(
        &self,
        deployment: &Deployment,
        rollback: rollback::Rollback,
    ) -> client::Result<Next> {
        let on = reference(deployment);
        match rollback.is_warning {
            true => self.recorder.warning(&on, rollback.reason, rollback.message),
            false => self.recorder.normal(&on, rollback.reason, rollback.message),
        }
        match self.cluster.client.update(&rollback.after).await {
            Err(error) if !is_outdated(&error) => Err(error),
            _ => Ok(Next::Change),
        }
    }

    async fn reject_empty_selector(&self, deployment: &Deployment) -> client::Result<Next> {
        let message = "This deployment is selecting all pods. A non-empty selector is required.";
        self.recorder.warning(&reference(deployment), "SelectingAll", message);
        let mut after = deployment.clone();
        after.status.get_or_insert_default().observed_generation = deployment.metadata.generation;
        match self.report(deployment, after).await {
            Err(error) if !workload::is_outdated(&error) => Err(error),
            _ => Ok(Next::Change),
        }
    }
}
