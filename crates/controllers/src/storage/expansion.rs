//! Claims that want to be larger than what they have (C-173). Whether they may want it is decided when
//! they are changed; here it is seen to, or said who will.
//!
//! A directory is as large as its disk: its volume says the new size, then the claim does. All others
//! are the business of whoever made them.

use super::{Storage, local, matching};
use crate::start::Cluster;
use client::{Next, ObjectKey, Queue, Recorder, reference, run_controller};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use serde_json::json;

pub(super) async fn run(cluster: &Cluster, storage: &Storage, directories: bool) {
    let queue = Queue::new();
    storage.claims.feed(&queue, |claim| {
        wants_more(claim).then(|| ObjectKey::of(claim)).into_iter().collect()
    });
    storage.claims.synced().await;
    storage.volumes.synced().await;
    let recorder = Recorder::new(&cluster.client, "volume_expand", "");
    run_controller("volume-expansion", &queue, 1, |key| {
        reconcile(cluster, storage, &recorder, directories, key)
    })
    .await;
}

/// Bound, and more is asked for than there is.
fn wants_more(claim: &PersistentVolumeClaim) -> bool {
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
    let Some(claim) = storage.claims.get(&key).filter(|claim| wants_more(claim)) else {
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

/// The volume first: what a claim has is what its volume has.
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
