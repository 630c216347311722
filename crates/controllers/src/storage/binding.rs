//! Binds claims and volumes one to one, and sets their phases (C-164 to C-172).
//!
//! Binding takes four writes: the volume's `claimRef`, its phase, the claim's volume name, its phase. Writes
//! that are already done are skipped, so after a crash the next reconcile continues. Only one claim or volume is
//! reconciled at a time, so that no volume is bound twice.

mod claims;
mod volumes;

use super::{FREE, Storage, matching};
use crate::pods;
use crate::start::Cluster;
use client::{Next, ObjectKey, Queue, Recorder, run_controller};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Work {
    Claim(ObjectKey),
    Volume(String),
}

/// Shared by the reconciles of claims and volumes.
struct Binder<'a> {
    cluster: &'a Cluster,
    storage: &'a Storage,
    recorder: Recorder,
}

pub(super) async fn run(cluster: &Cluster, storage: &Storage) {
    let queue = Queue::new();
    feed(storage, &queue);
    feed_pods(cluster, storage, &queue);
    storage.claims.synced().await;
    storage.volumes.synced().await;
    storage.classes.synced().await;
    cluster.pods.synced().await;
    let recorder = Recorder::new(&cluster.client, "persistentvolume-controller", "");
    let binder = Binder { cluster, storage, recorder };
    run_controller("persistent-volumes", &queue, 1, |work| reconcile(&binder, work)).await;
}

async fn reconcile(binder: &Binder<'_>, work: Work) -> client::Result<Next> {
    match work {
        Work::Claim(key) => binder.claim(&key).await,
        Work::Volume(name) => binder.volume(&name).await,
    }
    .map(|()| Next::Change)
}

fn feed(storage: &Storage, queue: &Queue<Work>) {
    storage.claims.feed(queue, |claim: &PersistentVolumeClaim| {
        let volume = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone());
        let volume = volume.filter(|name| !name.is_empty()).map(Work::Volume);
        [Work::Claim(ObjectKey::of(claim))].into_iter().chain(volume).collect()
    });
    let claims = storage.claims.clone();
    storage.volumes.feed(queue, move |volume: &PersistentVolume| {
        let itself = volume.metadata.name.clone().map(Work::Volume);
        let owner = matching::claim_key(volume).map(Work::Claim);
        // Claims may be waiting for a free volume.
        let free = matching::is_free(volume);
        let waiting = free.then(|| claims.by_index(FREE, matching::class_of_volume(volume)));
        let waiting = waiting.into_iter().flatten();
        let waiting = waiting.map(|claim| Work::Claim(ObjectKey::of(claim.as_ref())));
        itself.into_iter().chain(owner).chain(waiting).collect()
    });
    let claims = storage.claims.clone();
    storage.classes.feed(queue, move |class| {
        let name = class.metadata.name.as_deref().unwrap_or_default();
        // Claims that name the class, and claims without a class, which take the default.
        let waiting = claims.by_index(FREE, name).into_iter().chain(claims.by_index(FREE, ""));
        waiting.map(|claim| Work::Claim(ObjectKey::of(claim.as_ref()))).collect()
    });
}

/// Queues claims that wait for their first pod, because their event names it (C-168).
fn feed_pods(cluster: &Cluster, storage: &Storage, queue: &Queue<Work>) {
    let (all, classes) = (storage.claims.clone(), storage.classes.clone());
    cluster.pods.feed_changes(queue, move |before, after| {
        let waits = |pod: Option<&Pod>| pod.is_some_and(claims::is_waited_for);
        let Some(pod) = after.or(before).filter(|_| waits(before) != waits(after)) else {
            return Vec::new();
        };
        let named = pods::claims(pod).map(|name| ObjectKey::new(pods::namespace(pod), &name));
        let waiting = named.filter(|key| {
            all.get(key).is_some_and(|claim| {
                let class = matching::class_of_claim(&claim).unwrap_or_default();
                let class = classes.get(&ObjectKey::cluster(class));
                matching::is_pending(&claim) && claims::waits(&claim, class.as_deref())
            })
        });
        waiting.map(Work::Claim).collect()
    });
}
