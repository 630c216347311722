//! Manages pods with stable names and their own storage (C-61…C-80, T-CTRL-15…T-CTRL-23).
//!
//!     set, revisions, pods ──▶ plan::decide ──▶ steps in order ──▶ status
//!
//! `plan.rs` decides one reconcile, `identity.rs` creates the pod of an ordinal, `claims.rs` decides about volume
//! claims and their owners, `steps.rs` performs the steps and records events.

mod claims;
mod identity;
mod plan;
mod steps;

use crate::start::Cluster;
use crate::workload::{
    OWNERS_BY_ORPHANS, PendingWrites, RETRY_DELAY, claim, feed_pods, history, is_being_deleted,
    is_outdated, name, namespace, orphan_index_key, owned_and_orphans, owner_keys, selector,
};
use client::{Cache, Next, ObjectKey, Queue, Recorder, run_controller};
use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use plan::Revision;
use std::collections::BTreeSet;
use std::sync::Arc;
use steps::Done;

const COMPONENT: &str = "statefulset-controller";
const WORKERS: usize = 5;
const HASH_LABEL: &str = "controller.kubernetes.io/hash";

struct Controller<'a> {
    cluster: &'a Cluster,
    sets: Cache<StatefulSet>,
    revisions: Cache<ControllerRevision>,
    claims: Cache<PersistentVolumeClaim>,
    recorder: Recorder,
    pod_writes: PendingWrites<Pod>,
    revision_writes: PendingWrites<ControllerRevision>,
    claim_writes: PendingWrites<PersistentVolumeClaim>,
}

pub(crate) async fn run(
    cluster: &Cluster,
    revisions: Cache<ControllerRevision>,
    claims: Cache<PersistentVolumeClaim>,
) {
    let queue = Queue::new();
    let places = |set: &StatefulSet| vec![orphan_index_key(namespace(set), &selector_of(set))];
    let sets = Cache::builder(&cluster.client).index(OWNERS_BY_ORPHANS, places).start();
    sets.feed_keys(&queue);
    feed_pods(&cluster.pods, &sets, &queue);
    let owners = sets.clone();
    revisions.feed(&queue, move |revision| owner_keys(&owners, revision));
    // A deleted claim may have blocked a new one of the same name (C-64).
    let owners = sets.clone();
    claims.feed_changes(&queue, move |before, after| match (before, after) {
        (Some(claim), None) => waits_for(&owners, claim),
        _ => Vec::new(),
    });
    sets.synced().await;
    claims.synced().await;
    revisions.synced().await;
    cluster.pods.synced().await;
    let controller = Controller {
        cluster,
        recorder: Recorder::new(&cluster.client, COMPONENT, ""),
        pod_writes: PendingWrites::new(&cluster.pods),
        revision_writes: PendingWrites::new(&revisions),
        claim_writes: PendingWrites::new(&claims),
        sets,
        revisions,
        claims,
    };
    run_controller(COMPONENT, &queue, WORKERS, |key| controller.reconcile(key)).await;
}

fn waits_for(sets: &Cache<StatefulSet>, claim: &PersistentVolumeClaim) -> Vec<ObjectKey> {
    let sets = sets.in_namespace(namespace(claim));
    let its = sets.iter().filter(|set| claims::is_claim_of(set, name(claim)));
    its.map(|set| ObjectKey::of(set.as_ref())).collect()
}

fn selector_of(set: &StatefulSet) -> api::selector::LabelSelector {
    set.spec.as_ref().map(|spec| selector(&spec.selector)).unwrap_or_default()
}

impl Controller<'_> {
    async fn reconcile(&self, key: ObjectKey) -> client::Result<Next> {
        let seen = self.pod_writes.are_cached(&key).await
            && self.revision_writes.are_cached(&key).await
            && self.claim_writes.are_cached(&key).await;
        if !seen {
            return Ok(Next::After(RETRY_DELAY));
        }
        let Some(set) = self.sets.get(&key) else {
            return Ok(Next::Change); // Deleted. The garbage collector takes its pods, all at once.
        };
        match self.sync(&set).await {
            Err(error) if is_outdated(&error) => Ok(Next::After(RETRY_DELAY)),
            result => result,
        }
    }

    async fn sync(&self, set: &Arc<StatefulSet>) -> client::Result<Next> {
        let history = self.history(set).await?;
        let pods = self.claimed(set).await?;
        if is_being_deleted(set.as_ref()) && history.is_empty() {
            return Ok(Next::Change); // There is nothing left to report.
        }
        let mut status = set.status.clone().unwrap_or_default();
        let update = self.update_revision(set, &history, &mut status.collision_count).await?;
        let current = history
            .iter()
            .find(|revision| Some(name(revision.as_ref())) == status.current_revision.as_deref());
        let current = current.unwrap_or(&update);
        let revision = |revision: &Arc<ControllerRevision>| Revision {
            name: name(revision.as_ref()).to_owned(),
            template: history::template(revision).unwrap_or_default(),
        };

        let now = clock::now();
        let collisions = status.collision_count.unwrap_or(0);
        let plan =
            plan::decide(set, &pods, &revision(current), &revision(&update), collisions, now);

        let done = self.perform(set, plan.steps).await;
        let mut reported = plan.status;
        if !matches!(done, Ok(Done::All)) {
            // The status must not count steps that were not performed (C-79).
            reported = plan.status_before;
        }
        plan::finish(set, &mut reported);
        let written = self.report(set, reported).await;
        let done = done?;
        written?;
        self.delete_surplus_revisions(set, history.clone(), &pods, [current, &update]).await?;
        match done {
            Done::All => Ok(plan.next.into()),
            // No event announces that the old owner of a claim is gone.
            Done::Blocked => Ok(Next::After(RETRY_DELAY)),
        }
    }

    async fn claimed(&self, set: &Arc<StatefulSet>) -> client::Result<Vec<Arc<Pod>>> {
        let selector = selector_of(set);
        let pods = &self.cluster.pods;
        let mut candidates = owned_and_orphans(pods, set.as_ref(), &selector);
        // C-6: only pods with a name of the set are adopted.
        candidates.retain(|pod| identity::ordinal(set, pod).is_some());
        let client = &self.cluster.client;
        claim(client, &self.pod_writes, set.as_ref(), &selector, None, candidates).await
    }

    async fn history(
        &self,
        set: &Arc<StatefulSet>,
    ) -> client::Result<Vec<Arc<ControllerRevision>>> {
        let selector = selector_of(set);
        let candidates = owned_and_orphans(&self.revisions, set.as_ref(), &selector);
        let (client, writes) = (&self.cluster.client, &self.revision_writes);
        claim(client, writes, set.as_ref(), &selector, None, candidates).await
    }

    /// A set that is being deleted gets no new revision.
    async fn update_revision(
        &self,
        set: &Arc<StatefulSet>,
        history: &[Arc<ControllerRevision>],
        collisions: &mut Option<i32>,
    ) -> client::Result<Arc<ControllerRevision>> {
        if is_being_deleted(set.as_ref()) {
            let latest = history.iter().max_by_key(|revision| revision.revision);
            return Ok(latest.cloned().unwrap_or_default());
        }
        let template = set.spec.as_ref().map(|spec| spec.template.clone()).unwrap_or_default();
        let (client, writes) = (&self.cluster.client, &self.revision_writes);
        let owner = set.as_ref();
        history::current(client, writes, owner, &template, history, HASH_LABEL, collisions).await
    }

    async fn delete_surplus_revisions(
        &self,
        set: &Arc<StatefulSet>,
        history: Vec<Arc<ControllerRevision>>,
        pods: &[Arc<Pod>],
        kept: [&Arc<ControllerRevision>; 2],
    ) -> client::Result<()> {
        if is_being_deleted(set.as_ref()) {
            return Ok(());
        }
        let mut used: BTreeSet<&str> =
            pods.iter().filter_map(|pod| identity::revision(pod)).collect();
        used.extend(kept.iter().map(|revision| name(revision.as_ref())));
        let limit = set.spec.as_ref().and_then(|spec| spec.revision_history_limit);
        let surplus = history::surplus(&history, limit, HASH_LABEL, &used, None);
        let client = &self.cluster.client;
        history::delete(client, &self.revision_writes, set.as_ref(), surplus).await
    }
}
