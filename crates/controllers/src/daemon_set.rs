//! Runs one pod on every matching node (C-81…C-100, T-CTRL-30…T-CTRL-32).
//!
//!     set, revisions, nodes, pods ──▶ plan::decide ──▶ creates and deletes ──▶ status
//!
//! `placement.rs` decides which nodes match and creates the pod of a node, `plan.rs` decides one reconcile,
//! `triggers.rs` decides which changes of nodes and revisions queue one, `failures.rs` limits how fast failed pods are
//! replaced. The scheduler binds the pods.

mod failures;
mod placement;
mod plan;
mod triggers;

use crate::start::Cluster;
use crate::workload::{
    OWNERS_BY_ORPHANS, PendingWrites, PodControl, RETRY_DELAY, claim, feed_pods, history,
    is_being_deleted, is_outdated, label, name, namespace, orphan_index_key, owned_and_orphans,
    selector, uid,
};
use client::{Cache, Next, ObjectKey, Queue, Recorder, reference, run_controller};
use failures::Failures;
use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet, DaemonSetStatus};
use k8s_openapi::api::core::v1::Pod;
use placement::HASH;
use plan::{FinishedPod, Plan};
use serde_json::json;
use std::collections::BTreeSet;
use std::sync::Arc;

const COMPONENT: &str = "daemonset-controller";
const WORKERS: usize = 2;

struct Controller<'a> {
    cluster: &'a Cluster,
    sets: Cache<DaemonSet>,
    revisions: Cache<ControllerRevision>,
    pod_control: PodControl,
    revision_writes: PendingWrites<ControllerRevision>,
    failures: Failures,
}

pub(crate) async fn run(cluster: &Cluster, revisions: Cache<ControllerRevision>) {
    let queue = Queue::new();
    let places = |set: &DaemonSet| vec![orphan_index_key(namespace(set), &selector_of(set))];
    let sets = Cache::builder(&cluster.client).index(OWNERS_BY_ORPHANS, places).start();
    sets.feed_keys(&queue);
    feed_pods(&cluster.pods, &sets, &queue);
    triggers::of_nodes(&cluster.nodes, &sets, &queue);
    triggers::of_revisions(&revisions, &sets, &queue);
    sets.synced().await;
    revisions.synced().await;
    cluster.nodes.synced().await;
    cluster.pods.synced().await;
    let controller = Controller {
        cluster,
        pod_control: PodControl {
            client: cluster.client.clone(),
            recorder: Recorder::new(&cluster.client, COMPONENT, ""),
            writes: PendingWrites::new(&cluster.pods),
        },
        revision_writes: PendingWrites::new(&revisions),
        failures: Failures::default(),
        sets,
        revisions,
    };
    run_controller(COMPONENT, &queue, WORKERS, |key| controller.reconcile(key)).await;
}

fn selector_of(set: &DaemonSet) -> api::selector::LabelSelector {
    set.spec.as_ref().map(|spec| selector(&spec.selector)).unwrap_or_default()
}

impl Controller<'_> {
    async fn reconcile(&self, key: ObjectKey) -> client::Result<Next> {
        let seen = self.pod_control.writes.are_cached(&key).await
            && self.revision_writes.are_cached(&key).await;
        if !seen {
            return Ok(Next::After(RETRY_DELAY));
        }
        let Some(set) = self.sets.get(&key).filter(|set| !is_being_deleted(set.as_ref())) else {
            self.failures.forget(&key);
            return Ok(Next::Change); // Deleted. The garbage collector deletes its pods.
        };
        if selector_of(&set).is_everything() {
            let message =
                "This daemon set is selecting all pods. A non-empty selector is required.";
            self.pod_control.recorder.warning(&reference(set.as_ref()), "SelectingAll", message);
            return Ok(Next::Change);
        }
        match self.sync(&set).await {
            Err(error) if is_outdated(&error) => Ok(Next::After(RETRY_DELAY)),
            result => result,
        }
    }

    async fn sync(&self, set: &Arc<DaemonSet>) -> client::Result<Next> {
        let history = self.history(set).await?;
        let pods = self.claimed(set).await?;
        let mut collisions = set.status.as_ref().and_then(|status| status.collision_count);
        let template = set.spec.as_ref().map(|spec| spec.template.clone()).unwrap_or_default();
        let (client, writes) = (&self.cluster.client, &self.revision_writes);
        let current = history::current(
            client,
            writes,
            set.as_ref(),
            &template,
            &history,
            HASH,
            &mut collisions,
        )
        .await?;
        let pods = self.without_duplicates(set, &history, &current, pods).await?;
        let hash = label(current.as_ref(), HASH).unwrap_or_default();

        let nodes = self.cluster.nodes.list();
        let (now, mut wait) = (clock::now(), None);
        let waits = |node: &str| {
            let left = self.failures.wait(set, nodes.len(), node, now);
            wait = wait.into_iter().chain(left).min();
            left.is_some()
        };
        let mut plan = Plan::decide(set, &nodes, &pods, hash, waits, now);

        plan.delete.extend(self.record_finished(set, std::mem::take(&mut plan.finished)));
        let (_, failed) = self.pod_control.create(set.as_ref(), plan.create).await;
        let failed = failed.or(self.pod_control.delete(set.as_ref(), plan.delete).await);
        let status = DaemonSetStatus { collision_count: collisions, ..plan.status };
        self.report(set, status).await?;
        if let Some(error) = failed {
            return Err(error);
        }
        let used: BTreeSet<&str> =
            pods.iter().filter_map(|pod| label(pod.as_ref(), HASH)).collect();
        let used: BTreeSet<&str> = used.into_iter().chain([hash]).collect();
        let limit = set.spec.as_ref().and_then(|spec| spec.revision_history_limit);
        let surplus = history::surplus(&history, limit, HASH, &used, Some(current.as_ref()));
        history::delete(client, writes, set.as_ref(), surplus).await?;
        Ok(plan.next.into_iter().chain(wait).min().into())
    }

    async fn claimed(&self, set: &Arc<DaemonSet>) -> client::Result<Vec<Arc<Pod>>> {
        let selector = selector_of(set);
        let pods = &self.cluster.pods;
        let candidates = owned_and_orphans(pods, set.as_ref(), &selector);
        let (client, writes) = (&self.cluster.client, &self.pod_control.writes);
        claim(client, writes, set.as_ref(), &selector, None, candidates).await
    }

    async fn history(&self, set: &Arc<DaemonSet>) -> client::Result<Vec<Arc<ControllerRevision>>> {
        let selector = selector_of(set);
        let candidates = owned_and_orphans(&self.revisions, set.as_ref(), &selector);
        let (client, writes) = (&self.cluster.client, &self.revision_writes);
        claim(client, writes, set.as_ref(), &selector, None, candidates).await
    }

    /// If several revisions have the current template, relabels their pods and deletes all revisions but one (C-91).
    /// Returns the pods as they are then.
    async fn without_duplicates(
        &self,
        set: &Arc<DaemonSet>,
        history: &[Arc<ControllerRevision>],
        current: &Arc<ControllerRevision>,
        mut pods: Vec<Arc<Pod>>,
    ) -> client::Result<Vec<Arc<Pod>>> {
        let same = |one: &&Arc<ControllerRevision>| {
            one.data == current.data && uid(one.as_ref()) != uid(current.as_ref())
        };
        let duplicates: Vec<Arc<ControllerRevision>> =
            history.iter().filter(same).cloned().collect();
        if duplicates.is_empty() {
            return Ok(pods);
        }
        let hash = label(current.as_ref(), HASH).unwrap_or_default();
        let key = ObjectKey::of(set.as_ref());
        for pod in &mut pods {
            let of = label(pod.as_ref(), HASH);
            if !duplicates.iter().any(|one| of.is_some() && label(one.as_ref(), HASH) == of) {
                continue;
            }
            let patch = json!({ "metadata": { "labels": { HASH: hash } } });
            let pod_key = ObjectKey::of(pod.as_ref());
            let written = self.cluster.client.patch_merge::<Pod>(&pod_key, &patch).await?;
            self.pod_control.writes.wrote(&key, &written);
            *pod = Arc::new(written);
        }
        let (client, writes) = (&self.cluster.client, &self.revision_writes);
        history::delete(client, writes, set.as_ref(), duplicates).await?;
        Ok(pods)
    }

    /// Records events for finished pods that will be deleted, and returns the pods (T-CTRL-31).
    fn record_finished(&self, set: &Arc<DaemonSet>, finished: Vec<FinishedPod>) -> Vec<Arc<Pod>> {
        let on = reference(set.as_ref());
        let record = |FinishedPod { pod, node, failed }: FinishedPod| {
            let (space, name) = (namespace(pod.as_ref()), name(pod.as_ref()));
            let (what, then) = if failed { ("failed", "kill") } else { ("succeeded", "delete") };
            let message = format!(
                "Found {what} daemon pod {space}/{name} on node {node}, will try to {then} it"
            );
            match failed {
                true => self.pod_control.recorder.warning(&on, "FailedDaemonPod", message),
                false => self.pod_control.recorder.normal(&on, "SucceededDaemonPod", message),
            }
            pod
        };
        finished.into_iter().map(record).collect()
    }

    async fn report(&self, set: &Arc<DaemonSet>, status: DaemonSetStatus) -> client::Result<()> {
        if set.status.as_ref() == Some(&status) {
            return Ok(());
        }
        match self.cluster.client.update_status(set.as_ref(), status).await {
            Err(error) if is_outdated(&error) => Ok(()),
            written => written,
        }
    }
}
