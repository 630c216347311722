//! Creates and deletes an owner's pods, and records events on the owner (C-7…C-9, T-CTRL-6).

use super::{PendingWrites, Workload, name, owner_reference};
use api::names::NameRule;
use api::names::object_name_prefix;
use client::{CONCURRENT_MAX, Client, DeleteOptions, Error, ObjectKey, Recorder, reference};
use futures::future::join_all;
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use std::sync::Arc;

/// The message of an error for users: the server's own message if it answered.
pub(crate) fn error_message(error: &Error) -> String {
    match error {
        Error::Unsendable { why, .. } => why.clone(),
        error => error.status().map_or_else(|| error.to_string(), |status| status.message.clone()),
    }
}

/// A pod from the template, controlled by `owner`. It does not get the owner's own labels.
pub(crate) fn from_template<O: Workload>(owner: &O, template: &PodTemplateSpec) -> Pod {
    let template_meta = template.metadata.clone().unwrap_or_default();
    Pod {
        metadata: ObjectMeta {
            namespace: owner.metadata().namespace.clone(),
            generate_name: Some(prefix(name(owner))),
            labels: template_meta.labels,
            annotations: template_meta.annotations,
            finalizers: template_meta.finalizers,
            owner_references: Some(vec![owner_reference(owner)]),
            ..ObjectMeta::default()
        },
        spec: template.spec.clone(),
        status: None,
    }
}

fn prefix(owner: &str) -> String {
    let prefix = format!("{owner}-");
    match object_name_prefix(NameRule::Subdomain, &prefix).is_empty() {
        true => prefix,
        false => owner.to_owned(),
    }
}

/// Creates and deletes pods for one controller.
pub(crate) struct PodControl {
    pub(crate) client: Client,
    pub(crate) recorder: Recorder,
    pub(crate) writes: PendingWrites<Pod>,
}

impl PodControl {
    /// Creates pods in batches of 1, 2, 4, …, and stops after the first batch with an error. Returns how many were
    /// created, and the error. Pods without labels could not be found again, so none is created (C-8).
    pub(crate) async fn create<O: Workload>(
        &self,
        owner: &O,
        pods: Vec<Pod>,
    ) -> (usize, Option<Error>) {
        if pods.iter().any(|pod| pod.metadata.labels.as_ref().is_none_or(|all| all.is_empty())) {
            let why = "unable to create pods, no labels".to_owned();
            return (0, Some(Error::Unsendable { doing: "create pods".to_owned(), why }));
        }
        let mut made = 0;
        let mut size = 1;
        let mut left = pods.as_slice();
        while !left.is_empty() {
            let (batch, rest) = left.split_at(size.min(left.len()));
            let answers = join_all(batch.iter().map(|pod| self.create_one(owner, pod))).await;
            let mut failed = None;
            for answer in answers {
                match answer {
                    Ok(()) => made += 1,
                    Err(error) => failed = failed.or(Some(error)),
                }
            }
            if let Some(error) = failed {
                // A terminating namespace accepts no pods, so a retry cannot succeed (C-8).
                return (made, Some(error).filter(|error| !error.is_namespace_terminating()));
            }
            left = rest;
            size = (size * 2).min(CONCURRENT_MAX);
        }
        (made, None)
    }

    async fn create_one<O: Workload>(&self, owner: &O, pod: &Pod) -> client::Result<()> {
        let on = reference(owner);
        match self.client.create(pod).await {
            Ok(created) => {
                self.writes.wrote(&ObjectKey::of(owner), &created);
                let message = format!("Created pod: {}", name(&created));
                self.recorder.normal(&on, "SuccessfulCreate", message);
                Ok(())
            }
            Err(error) => {
                if !error.is_namespace_terminating() {
                    let message = format!("Error creating: {}", error_message(&error));
                    self.recorder.warning(&on, "FailedCreate", message);
                }
                Err(error)
            }
        }
    }

    /// Deletes exactly these pods. Tries all of them and returns the first error.
    pub(crate) async fn delete<O: Workload>(
        &self,
        owner: &O,
        pods: Vec<Arc<Pod>>,
    ) -> Option<Error> {
        let mut failed = None;
        for batch in pods.chunks(CONCURRENT_MAX) {
            let answers = join_all(batch.iter().map(|pod| self.delete_one(owner, pod))).await;
            failed = answers.into_iter().fold(failed, |failed, answer| failed.or(answer.err()));
        }
        failed
    }

    pub(crate) async fn delete_one<O: Workload>(
        &self,
        owner: &O,
        pod: &Arc<Pod>,
    ) -> client::Result<()> {
        let on = reference(owner);
        let options = DeleteOptions::only(pod.as_ref());
        let answer = self.client.delete::<Pod>(&ObjectKey::of(pod.as_ref()), &options).await;
        match answer {
            Ok(_) => {
                self.writes.deleted(&ObjectKey::of(owner), [pod.clone()]);
                let message = format!("Deleted pod: {}", name(pod.as_ref()));
                self.recorder.normal(&on, "SuccessfulDelete", message);
                Ok(())
            }
            // The pod is gone already, and another one may have its name now.
            Err(error) if super::is_outdated(&error) => {
                self.writes.deleted(&ObjectKey::of(owner), [pod.clone()]);
                Ok(())
            }
            Err(error) => {
                let message = format!("Error deleting: {}", error_message(&error));
                self.recorder.warning(&on, "FailedDelete", message);
                Err(error)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::test_cluster::{self, TestCluster};
    use client::{Cache, RecordedEvent};
    use k8s_openapi::api::apps::v1::ReplicaSet;
    use k8s_openapi::api::core::v1::{Namespace, ResourceQuota};
    use serde_json::json;
    use tokio::sync::mpsc::Receiver;

    async fn owner(cluster: &TestCluster, namespace: &str) -> ReplicaSet {
        let mut set = test_cluster::replica_set("web", json!([]));
        set["metadata"]["namespace"] = json!(namespace);
        cluster.create(set).await
    }

    fn pod_control(cluster: &TestCluster) -> (PodControl, Receiver<RecordedEvent>) {
        let (recorder, events) = Recorder::collecting();
        let writes = PendingWrites::new(&Cache::start(&cluster.client));
        (PodControl { client: cluster.client.clone(), recorder, writes }, events)
    }

    fn pods(owner: &ReplicaSet, count: usize) -> Vec<Pod> {
        let template = owner.spec.as_ref().unwrap().template.clone().unwrap();
        vec![from_template(owner, &template); count]
    }

    fn reasons(events: &mut Receiver<RecordedEvent>) -> Vec<String> {
        std::iter::from_fn(|| events.try_recv().ok()).map(|event| event.reason).collect()
    }

    async fn quota(cluster: &TestCluster, pods: &str) {
        let quota = json!({ "metadata": { "namespace": "default", "name": "q" },
                            "spec": { "hard": { "pods": pods } } });
        let quota: ResourceQuota = cluster.create(quota).await;
        let used = json!({ "status": { "hard": { "pods": pods }, "used": { "pods": "0" } } });
        let key = ObjectKey::of(&quota);
        cluster.client.patch_status::<ResourceQuota>(&key, &used).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn c_8_pods_without_labels_are_not_created() {
        let cluster = TestCluster::start().await;
        let owner = owner(&cluster, "default").await;
        let (pod_control, mut events) = pod_control(&cluster);
        let mut wanted = pods(&owner, 1);
        wanted[0].metadata.labels = None;
        let (made, error) = pod_control.create(&owner, wanted).await;
        assert_eq!(
            (made, error_message(&error.unwrap()).as_str()),
            (0, "unable to create pods, no labels")
        );
        assert!(reasons(&mut events).is_empty());
        cluster.stop().await;
    }

    #[tokio::test(start_paused = true)]
    async fn c_8_refusals_of_a_terminating_namespace_are_neither_recorded_nor_retried() {
        let cluster = TestCluster::start().await;
        let namespace: Namespace = cluster.create(json!({ "metadata": { "name": "away" } })).await;
        let owner = owner(&cluster, "away").await;
        let (pod_control, mut events) = pod_control(&cluster);
        cluster.delete(&namespace).await;
        let (made, error) = pod_control.create(&owner, pods(&owner, 5)).await;
        assert_eq!(made, 0);
        assert!(error.is_none(), "an error would cause a retry: {error:?}");
        assert!(reasons(&mut events).is_empty());
        cluster.stop().await;
    }

    /// C-217: a refused create costs one request per reconcile.
    #[tokio::test(start_paused = true)]
    async fn c_9_creation_stops_after_the_first_error() {
        let cluster = TestCluster::start().await;
        let owner = owner(&cluster, "default").await;
        let (pod_control, mut events) = pod_control(&cluster);
        quota(&cluster, "0").await;
        let (made, error) = pod_control.create(&owner, pods(&owner, 100)).await;
        assert_eq!(made, 0);
        assert!(error.unwrap().is_forbidden());
        assert_eq!(reasons(&mut events), ["FailedCreate"]);
        cluster.stop().await;
    }

    #[tokio::test(start_paused = true)]
    async fn c_9_batches_double_and_creation_stops_after_a_failed_batch() {
        let cluster = TestCluster::start().await;
        let owner = owner(&cluster, "default").await;
        let (pod_control, mut events) = pod_control(&cluster);
        quota(&cluster, "4").await;
        // Batches of one and two succeed; of the next four only one fits into the quota.
        let (made, error) = pod_control.create(&owner, pods(&owner, 100)).await;
        assert!(error.unwrap().is_forbidden());
        let events = reasons(&mut events);
        let count = |reason: &str| events.iter().filter(|events| *events == reason).count();
        assert_eq!((made, count("SuccessfulCreate"), count("FailedCreate")), (4, 4, 3));
        cluster.stop().await;
    }
}
