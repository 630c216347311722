//! Expands claims that request more than their volume has (C-173). Admission decides whether a claim may be expanded.
//!
//! For a local directory only the sizes in volume and claim change, because it is as large as its disk. Other volumes
//! are expanded by their provisioners.

use super::{Storage, local, matching};
use crate::start::Cluster;
use client::{Next, ObjectKey, Queue, Recorder, reference, run_controller};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use serde_json::json;

pub(super) async fn run(cluster: &Cluster, storage: &Storage, directories: bool) {
    let queue = Queue::new();
    storage.claims.feed(&queue, |claim| {
        needs_expansion(claim).then(|| ObjectKey::of(claim)).into_iter().collect()
    });
    storage.claims.synced().await;
    storage.volumes.synced().await;
    let recorder = Recorder::new(&cluster.client, "volume_expand", "");
    run_controller("volume-expansion", &queue, 1, |key| {
        reconcile(cluster, storage, &recorder, directories, key)
    })
    .await;
}

/// Whether the claim is bound and requests more than it has.
fn needs_expansion(claim: &PersistentVolumeClaim) -> bool {
    let status = claim.status.as_ref();
    let bound = status.and_then(|status| status.phase.as_deref()) == Some("Bound");
    let has = status.and_then(|status| status.capacity.as_ref()?.get("storage"));
    let has = has.and_then(|has| api::quantity::Quantity::parse(&has.0).ok());
    bound && has.is_some() && matching::requested(claim) > has
}

async fn reconcile(
    cluster: &Cluster,
    storage: &Storage,
    recorder: &Recorder,
    directories: bool,
    key: ObjectKey,
) -> client::Result<Next> {
    let Some(claim) = storage.claims.get(&key).filter(|claim| needs_expansion(claim)) else {
        return Ok(Next::Change);
    };
    let volume = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref());
    let volume = ObjectKey::cluster(volume.unwrap_or_default());
    let Some(volume) = storage.volumes.get(&volume) else { return Ok(Next::Change) };
    if !(directories && local::is_ours(&volume)) {
        let message = "waiting for an external controller to expand this PVC";
        recorder.normal(&reference(claim.as_ref()), "ExternalExpanding", message);
        return Ok(Next::Change);
    }
    match expand(cluster, &claim, &volume).await {
        Err(error) if error.is_not_found() || error.is_conflict() => Ok(Next::Change),
        done => done.map(|()| Next::Change),
    }
}

/// Updates the volume first, because the claim's capacity is that of its volume.
async fn expand(
    cluster: &Cluster,
    claim: &PersistentVolumeClaim,
    volume: &PersistentVolume,
) -> client::Result<()> {
    let requests = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref()?.requests.as_ref());
    let Some(size) = requests.and_then(|requests| requests.get("storage")) else { return Ok(()) };
    if matching::capacity(volume) < matching::requested(claim) {
        let patch = json!({ "spec": { "capacity": { "storage": size } } });
        let key = ObjectKey::of(volume);
        cluster.client.patch_merge::<PersistentVolume>(&key, &patch).await?;
    }
    let patch = json!({ "status": { "capacity": { "storage": size } } });
    let key = ObjectKey::of(claim);
    cluster.client.patch_status::<PersistentVolumeClaim>(&key, &patch).await.map(drop)
}
