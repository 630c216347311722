//! Claims of generic ephemeral volumes: created from the template in the pod, and owned by the pod (C-174).

use super::Storage;
use crate::pods;
use crate::start::Cluster;
use client::{ObjectKey, Queue, Recorder, reference, run_controller};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Volume};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use std::sync::Arc;

const WORKERS: usize = 5;

pub(super) async fn run(cluster: &Cluster, storage: &Storage) {
    let queue = Queue::new();
    cluster.pods.feed(&queue, |pod| {
        let some = ephemeral(pod).next().is_some() && !pods::is_being_deleted(pod);
        some.then(|| ObjectKey::of(pod)).into_iter().collect()
    });
    // A deleted claim is created again if its pod exists; the deleted claim of another owner frees its name.
    let known = cluster.pods.clone();
    storage.claims.feed_changes(&queue, move |before, after| {
        let gone = before.filter(|_| after.is_none()).map(ObjectKey::of);
        let named = gone.map(|claim| known.by_index(pods::BY_CLAIM, &claim.to_string()));
        let named = named.into_iter().flatten();
        let waiting = named.filter(|pod| ephemeral(pod).next().is_some());
        waiting.map(|pod| ObjectKey::of(pod.as_ref())).collect()
    });
    cluster.pods.synced().await;
    storage.claims.synced().await;
    let recorder = Recorder::new(&cluster.client, "ephemeral_volume", "");
    run_controller("ephemeral-volumes", &queue, WORKERS, |key| {
        reconcile(cluster, storage, &recorder, key)
    })
    .await;
}

async fn reconcile(
    cluster: &Cluster,
    storage: &Storage,
    recorder: &Recorder,
    key: ObjectKey,
) -> client::Result<()> {
    let Some(pod) = cluster.pods.get(&key).filter(|pod| !pods::is_being_deleted(pod)) else {
        return Ok(());
    };
    for volume in ephemeral(&pod) {
        let Some(claim) = claim(&pod, volume) else { continue };
        let its = ObjectKey::of(&claim);
        let found = match storage.claims.get(&its) {
            Some(found) => found,
            None => match cluster.client.create(&claim).await {
                Err(error) if error.is_namespace_terminating() => return Ok(()),
                Err(error) if error.is_already_exists() => {
                    match cluster.client.find(&its).await? {
                        Some(found) => Arc::new(found),
                        None => return Err(error), // It was deleted meanwhile; retry.
                    }
                }
                created => Arc::new(created?),
            },
        };
        let owner = controller(&found.metadata).map(|owner| &owner.uid);
        if owner.is_none() || owner != pod.metadata.uid.as_ref() {
            let message = format!(
                "ephemeral volume {}: PVC {its} was not created for pod {key} (pod is not owner)",
                volume.name
            );
            recorder.warning(&reference(pod.as_ref()), "FailedBinding", message);
        }
    }
    Ok(())
}

fn ephemeral(pod: &Pod) -> impl Iterator<Item = &Volume> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.filter(|volume| volume.ephemeral.is_some())
}

fn controller(meta: &ObjectMeta) -> Option<&OwnerReference> {
    meta.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))
}

/// The claim from the template, owned by the pod.
fn claim(pod: &Pod, volume: &Volume) -> Option<PersistentVolumeClaim> {
    let template = volume.ephemeral.as_ref()?.volume_claim_template.clone()?;
    let name = pod.metadata.name.clone()?;
    let meta = template.metadata.unwrap_or_default();
    Some(PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: Some(format!("{name}-{}", volume.name)),
            namespace: pod.metadata.namespace.clone(),
            labels: meta.labels,
            annotations: meta.annotations,
            owner_references: Some(vec![OwnerReference {
                api_version: "v1".to_owned(),
                kind: "Pod".to_owned(),
                name,
                uid: pod.metadata.uid.clone()?,
                controller: Some(true),
                block_owner_deletion: Some(true),
            }]),
            ..ObjectMeta::default()
        },
        spec: Some(template.spec),
        status: None,
    })
}
