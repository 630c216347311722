//! Protects claims, volumes and attribute classes that are in use by finalizers (T-CTRL-59 to T-CTRL-61, C-175, W-66).
//!
//! The server sets the finalizers at creation. This controller adds missing ones, and removes them when the object is
//! being deleted and not used.

use super::{BY_ATTRIBUTES, Storage, attributes_class as class, attributes_of};
use crate::pods;
use crate::start::Cluster;
use client::{Cache, Object, ObjectKey, Queue, Selection, run_controller};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::VolumeAttributesClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::json;

const WORKERS: usize = 2;

const CLAIM: &str = "kubernetes.io/pvc-protection";
const VOLUME: &str = "kubernetes.io/pv-protection";
const CLASS: &str = "kubernetes.io/vac-protection";

pub(super) async fn run(cluster: &Cluster, storage: &Storage) {
    let [claims, volumes, classes] = [
        "pvc-protection-controller",
        "pv-protection-controller",
        "volumeattributesclass-protection-controller",
    ]
    .map(|account| cluster.with_account(account));
    tokio::join!(
        run_claims(&claims, &storage.claims),
        run_volumes(&volumes, &storage.volumes),
        run_classes(&classes, &storage.claims, &storage.volumes),
    );
}

async fn run_claims(cluster: &Cluster, claims: &Cache<PersistentVolumeClaim>) {
    let queue = Queue::new();
    claims.feed_keys(&queue);
    cluster.pods.feed_changes(&queue, |before, after| {
        // A claim becomes unused only when a pod is deleted, finishes or is replaced.
        let state = |pod: &Pod| (pod.metadata.uid.clone(), releases_ephemeral_claims(pod));
        let Some(before) = before.filter(|before| after.map(state) != Some(state(before))) else {
            return Vec::new();
        };
        pods::claims(before).map(|name| ObjectKey::new(pods::namespace(before), &name)).collect()
    });
    claims.synced().await;
    cluster.pods.synced().await;
    run_controller("pvc-protection", &queue, WORKERS, |key| async move {
        let Some(claim) = claims.get(&key) else { return Ok(()) };
        let step = step(&claim.metadata, CLAIM);
        if step == Step::RemoveFinalizer && is_claim_used(cluster, &key).await? {
            return Ok(());
        }
        perform(cluster, claim.as_ref(), CLAIM, step).await
    })
    .await;
}

/// Whether the ephemeral claims of a pod may be deleted.
fn releases_ephemeral_claims(pod: &Pod) -> bool {
    let removed =
        pods::is_being_deleted(pod) && pod.metadata.deletion_grace_period_seconds == Some(0);
    pods::is_terminal_pod(pod) || removed
}

async fn is_claim_used(cluster: &Cluster, key: &ObjectKey) -> client::Result<bool> {
    let known = cluster.pods.by_index(pods::BY_CLAIM, &key.to_string());
    if known.iter().any(|pod| uses(pod, key.name())) {
        return Ok(true);
    }
    // A pod that is not in the cache yet would lose its data, so ask the server.
    let pods = cluster.client.list::<Pod>(&Selection::namespace(key.namespace())).await?;
    Ok(pods.iter().any(|pod| uses(pod, key.name())))
}

/// Scheduled pods use the claims that they name even after they have finished, but generic ephemeral claims only until
/// then (T-CTRL-60).
fn uses(pod: &Pod, claim: &str) -> bool {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let mut volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    pods::node_name(pod).is_some()
        && volumes.any(|volume| match (&volume.persistent_volume_claim, &volume.ephemeral) {
            (Some(named), _) => named.claim_name == claim,
            (None, Some(_)) => {
                format!("{name}-{}", volume.name) == claim && !releases_ephemeral_claims(pod)
            }
            (None, None) => false,
        })
}

async fn run_volumes(cluster: &Cluster, volumes: &Cache<PersistentVolume>) {
    let queue = Queue::new();
    volumes.feed_keys(&queue);
    volumes.synced().await;
    run_controller("pv-protection", &queue, WORKERS, |key| async move {
        let Some(volume) = volumes.get(&key) else { return Ok(()) };
        let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
        let step = step(&volume.metadata, VOLUME);
        if step == Step::RemoveFinalizer && phase == Some("Bound") {
            return Ok(()); // A bound volume is in use (T-CTRL-61).
        }
        perform(cluster, volume.as_ref(), VOLUME, step).await
    })
    .await;
}

async fn run_classes(
    cluster: &Cluster,
    claims: &Cache<PersistentVolumeClaim>,
    volumes: &Cache<PersistentVolume>,
) {
    let queue = Queue::new();
    let classes = Cache::<VolumeAttributesClass>::start(&cluster.client);
    classes.feed_keys(&queue);
    volumes.feed_changes(&queue, |before, _| {
        before.and_then(class).iter().map(|name| ObjectKey::cluster(name)).collect()
    });
    // A claim uses the classes that it requests, has, and changes to.
    claims.feed_changes(&queue, |before, _| {
        let named = before.map(attributes_of).unwrap_or_default();
        named.iter().map(|name| ObjectKey::cluster(name)).collect()
    });
    classes.synced().await;
    claims.synced().await;
    volumes.synced().await;
    run_controller("vac-protection", &queue, WORKERS, |key| {
        let classes = &classes;
        async move {
            let Some(class) = classes.get(&key) else { return Ok(()) };
            let used = claims.count(BY_ATTRIBUTES, key.name())
                + volumes.count(BY_ATTRIBUTES, key.name())
                > 0;
            let step = step(&class.metadata, CLASS);
            if used && step == Step::RemoveFinalizer {
                return Ok(());
            }
            perform(cluster, class.as_ref(), CLASS, step).await
        }
    })
    .await;
}

#[derive(Debug, PartialEq)]
enum Step {
    Nothing,
    AddFinalizer,
    /// Only if the object is not used.
    RemoveFinalizer,
}

fn step(meta: &ObjectMeta, finalizer: &str) -> Step {
    let held = meta.finalizers.iter().flatten().any(|there| there == finalizer);
    match (meta.deletion_timestamp.is_some(), held) {
        (true, true) => Step::RemoveFinalizer,
        (false, false) => Step::AddFinalizer,
        (true, false) | (false, true) => Step::Nothing,
    }
}

async fn perform<K>(
    cluster: &Cluster,
    object: &K,
    finalizer: &str,
    step: Step,
) -> client::Result<()>
where
    K: Object<DynamicType = ()>,
{
    let mut finalizers = object.meta().finalizers.clone().unwrap_or_default();
    match step {
        Step::Nothing => return Ok(()),
        Step::AddFinalizer => finalizers.push(finalizer.to_owned()),
        Step::RemoveFinalizer => finalizers.retain(|there| there != finalizer),
    }
    let patch = json!({ "metadata": {
        "uid": object.meta().uid, "resourceVersion": object.meta().resource_version,
        "finalizers": finalizers,
    }});
    match cluster.client.patch_merge::<K>(&ObjectKey::of(object), &patch).await {
        Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
        patched => patched.map(drop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    /// T-EDGE-24: as upstream, a finished pod uses its claims while it exists.
    #[test]
    fn t_ctrl_60_a_claim_is_used_by_scheduled_pods_finished_or_not() {
        let pod = |node: &str, phase: &str, volume: Value| -> Pod {
            typed::from_value(json!({
                "metadata": { "name": "p" },
                "spec": { "nodeName": node, "containers": [], "volumes": [volume] },
                "status": { "phase": phase },
            }))
            .unwrap()
        };
        let named = || json!({ "name": "v", "persistentVolumeClaim": { "claimName": "p-v" } });
        let own = || json!({ "name": "v", "ephemeral": { "volumeClaimTemplate": { "spec": {} } } });
        for (what, pod, expected) in [
            ("running", pod("n", "Running", named()), true),
            ("finished", pod("n", "Succeeded", named()), true),
            ("not scheduled", pod("", "Pending", named()), false),
            ("its own", pod("n", "Running", own()), true),
            ("its own, finished", pod("n", "Succeeded", own()), false),
            ("another kind", pod("n", "Running", json!({ "name": "v", "emptyDir": {} })), false),
        ] {
            assert_eq!(uses(&pod, "p-v"), expected, "{what}");
            assert!(!uses(&pod, "other"), "{what}");
        }
    }

    #[test]
    fn t_ctrl_59_the_finalizer_is_kept_until_the_object_is_deleted() {
        let meta = |deleted: bool, held: bool| -> ObjectMeta {
            let finalizers = if held { json!([CLAIM, "other"]) } else { json!(["other"]) };
            let deleted = deleted.then_some("2026-01-01T00:00:00Z");
            serde_json::from_value(
                json!({ "finalizers": finalizers, "deletionTimestamp": deleted }),
            )
            .unwrap()
        };
        assert_eq!(step(&meta(false, true), CLAIM), Step::Nothing);
        assert_eq!(step(&meta(false, false), CLAIM), Step::AddFinalizer);
        assert_eq!(step(&meta(true, true), CLAIM), Step::RemoveFinalizer);
        assert_eq!(step(&meta(true, false), CLAIM), Step::Nothing);
    }
}
