//! Makes and deletes an owner's pods, and says so on the owner (C-7…C-9, T-CTRL-6).

use super::{Workload, Writes, name, owner_reference};
use api::names::object_name_prefix;
use api::rules::NameRule;
use client::{CONCURRENT_MAX, Client, DeleteOptions, Error, ObjectKey, Recorder, reference};
use futures::future::join_all;
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use std::sync::Arc;

/// What is said to people about an error: the server's own words if it was the server that said no.
pub(crate) fn why(error: &Error) -> String {
    match error {
        Error::Unsendable { why, .. } => why.clone(),
        error => error.status().map_or_else(|| error.to_string(), |status| status.message.clone()),
    }
}

/// A pod as the template says, controlled by `owner`. Nothing of the owner's own labels is in it.
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

/// One controller's hands.
pub(crate) struct PodControl {
    pub(crate) client: Client,
    pub(crate) recorder: Recorder,
    pub(crate) writes: Writes<Pod>,
}

impl PodControl {
    /// Creates these in batches of 1, 2, 4, …; the first batch with a failure is the last. How many
    /// were made, and what went wrong. Pods without labels would be nobody's: none is made (C-8).
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
                // A namespace that goes takes no pods, and asking again is of no use (C-8).
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
                    let message = format!("Error creating: {}", why(&error));
                    self.recorder.warning(&on, "FailedCreate", message);
                }
                Err(error)
            }
        }
    }

    /// Deletes exactly these. Tries all of them; the first error if there was one.
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
            // Somebody else did it, and perhaps another pod has the name now.
            Err(error) if super::is_outdated(&error) => {
                self.writes.deleted(&ObjectKey::of(owner), [pod.clone()]);
                Ok(())
            }
            Err(error) => {
                let message = format!("Error deleting: {}", why(&error));
                self.recorder.warning(&on, "FailedDelete", message);
                Err(error)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::testbed::{self, Bed};
    use client::{Cache, Happening};
    use k8s_openapi::api::apps::v1::ReplicaSet;
    use k8s_openapi::api::core::v1::{Namespace, ResourceQuota};
    use serde_json::json;
    use tokio::sync::mpsc::Receiver;

    async fn owner(bed: &Bed, namespace: &str) -> ReplicaSet {
        let mut set = testbed::replica_set("web", json!([]));
        set["metadata"]["namespace"] = json!(namespace);
        bed.create(set).await
    }

    fn hands(bed: &Bed) -> (PodControl, Receiver<Happening>) {
        let (recorder, told) = Recorder::collecting();
        let writes = Writes::new(&Cache::start(&bed.client));
        (PodControl { client: bed.client.clone(), recorder, writes }, told)
    }

    fn pods(owner: &ReplicaSet, count: usize) -> Vec<Pod> {
        let template = owner.spec.as_ref().unwrap().template.clone().unwrap();
        vec![from_template(owner, &template); count]
    }

    fn reasons(told: &mut Receiver<Happening>) -> Vec<String> {
        std::iter::from_fn(|| told.try_recv().ok()).map(|happening| happening.reason).collect()
    }

    async fn quota(bed: &Bed, pods: &str) {
        let quota = json!({ "metadata": { "namespace": "default", "name": "q" },
                            "spec": { "hard": { "pods": pods } } });
        let quota: ResourceQuota = bed.create(quota).await;
        let used = json!({ "status": { "hard": { "pods": pods }, "used": { "pods": "0" } } });
        let key = ObjectKey::of(&quota);
        bed.client.patch_status::<ResourceQuota>(&key, &used).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn c_8_pods_without_labels_are_not_made() {
        let bed = Bed::start().await;
        let owner = owner(&bed, "default").await;
        let (hands, mut told) = hands(&bed);
        let mut wanted = pods(&owner, 1);
        wanted[0].metadata.labels = None;
        let (made, error) = hands.create(&owner, wanted).await;
        assert_eq!((made, why(&error.unwrap()).as_str()), (0, "unable to create pods, no labels"));
        assert!(reasons(&mut told).is_empty());
        bed.stop().await;
    }

    #[tokio::test(start_paused = true)]
    async fn c_8_what_a_terminating_namespace_refuses_is_neither_said_nor_tried_again() {
        let bed = Bed::start().await;
        let namespace: Namespace = bed.create(json!({ "metadata": { "name": "away" } })).await;
        let owner = owner(&bed, "away").await;
        let (hands, mut told) = hands(&bed);
        bed.delete(&namespace).await;
        let (made, error) = hands.create(&owner, pods(&owner, 5)).await;
        assert_eq!(made, 0);
        assert!(error.is_none(), "an error would bring another try: {error:?}");
        assert!(reasons(&mut told).is_empty());
        bed.stop().await;
    }

    /// C-217: what is refused costs one attempt a round.
    #[tokio::test(start_paused = true)]
    async fn c_9_the_first_refusal_ends_a_round() {
        let bed = Bed::start().await;
        let owner = owner(&bed, "default").await;
        let (hands, mut told) = hands(&bed);
        quota(&bed, "0").await;
        let (made, error) = hands.create(&owner, pods(&owner, 100)).await;
        assert_eq!(made, 0);
        assert!(error.unwrap().is_forbidden());
        assert_eq!(reasons(&mut told), ["FailedCreate"]);
        bed.stop().await;
    }

    #[tokio::test(start_paused = true)]
    async fn c_9_batches_double_and_a_round_ends_with_the_batch_that_fails() {
        let bed = Bed::start().await;
        let owner = owner(&bed, "default").await;
        let (hands, mut told) = hands(&bed);
        quota(&bed, "4").await;
        // One, two, and of the next four the first: then there is no more room.
        let (made, error) = hands.create(&owner, pods(&owner, 100)).await;
        assert!(error.unwrap().is_forbidden());
        let told = reasons(&mut told);
        let count = |reason: &str| told.iter().filter(|told| *told == reason).count();
        assert_eq!((made, count("SuccessfulCreate"), count("FailedCreate")), (4, 4, 3));
        bed.stop().await;
    }
}
