//! Binding and protection of claims and volumes, with a real server and a paused clock.

use super::cluster::{Cluster, key};
use client::{DeleteOptions, ObjectKey};
use controllers::{LocalVolumes, Options};
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{StorageClass, VolumeAttributesClass};
use serde_json::{Value, json};
use std::time::Duration;
use testbed::Observed;
use tokio::time::Instant;

async fn volume(cluster: &Cluster, name: &str, size: &str, class: &str) {
    let spec = json!({
        "accessModes": ["ReadWriteOnce"], "capacity": { "storage": size }, "storageClassName": class,
        "persistentVolumeReclaimPolicy": "Retain",
        "csi": { "driver": "none.example.com", "volumeHandle": name },
    });
    cluster.create::<PersistentVolume>(json!({ "metadata": { "name": name }, "spec": spec })).await;
}

async fn claim(cluster: &Cluster, name: &str, more: Value) {
    let mut spec = json!({ "accessModes": ["ReadWriteOnce"],
                           "resources": { "requests": { "storage": "1Gi" } } });
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let meta = json!({ "namespace": "default", "name": name });
    cluster.create::<PersistentVolumeClaim>(json!({ "metadata": meta, "spec": spec })).await;
}

/// A pod that waits for a node.
async fn unscheduled(cluster: &Cluster, name: &str, volume: Value) -> Pod {
    let containers = json!([{ "name": "c", "image": "i" }]);
    let pod = json!({ "metadata": { "namespace": "default", "name": name },
                      "spec": { "containers": containers, "volumes": [volume] } });
    cluster.create::<Pod>(pod).await
}

async fn claim_is(claims: &Observed<PersistentVolumeClaim>, name: &str, expected: &str) {
    claims
        .when(&key("default", name), |claim| {
            let phase = claim.and_then(|claim| claim.status.as_ref()?.phase.clone());
            let volume = claim.and_then(|claim| claim.spec.as_ref()?.volume_name.clone());
            format!("{} {}", phase.unwrap_or_default(), volume.unwrap_or_default()) == expected
        })
        .await;
}

async fn volume_is(volumes: &Observed<PersistentVolume>, name: &str, expected: &str) {
    volumes
        .when(&ObjectKey::cluster(name), |volume| {
            let phase = volume.and_then(|volume| volume.status.as_ref()?.phase.clone());
            phase.as_deref() == Some(expected)
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn c_164_c_165_c_167_c_172_a_claim_binds_the_smallest_volume_and_releases_it() {
    let cluster = Cluster::start().await;
    let claims = cluster.watch::<PersistentVolumeClaim>();
    let volumes = cluster.watch::<PersistentVolume>();
    volume(&cluster, "big", "10Gi", "manual").await;
    volume(&cluster, "small", "2Gi", "manual").await;
    volume_is(&volumes, "big", "Available").await;
    volume_is(&volumes, "small", "Available").await;
    claim(&cluster, "c", json!({ "storageClassName": "manual" })).await;
    claim_is(&claims, "c", "Bound small").await;
    volume_is(&volumes, "small", "Bound").await;

    let claim = claims.cache.get(&key("default", "c")).unwrap();
    let annotations = claim.metadata.annotations.clone().unwrap();
    assert_eq!(annotations["pv.kubernetes.io/bind-completed"], "yes");
    assert_eq!(annotations["pv.kubernetes.io/bound-by-controller"], "yes");
    let size = &claim.status.as_ref().unwrap().capacity.as_ref().unwrap()["storage"];
    assert_eq!(size.0, "2Gi", "what the volume has, not what was asked for");
    let volume = volumes.cache.get(&ObjectKey::cluster("small")).unwrap();
    let promise = volume.spec.as_ref().unwrap().claim_ref.clone().unwrap();
    assert_eq!(promise.uid, claim.metadata.uid);
    let version = volume.metadata.resource_version.clone();
    tokio::time::sleep(Duration::from_secs(120)).await;
    let later: PersistentVolume = cluster.client.get(&ObjectKey::cluster("small")).await.unwrap();
    assert_eq!(later.metadata.resource_version, version, "nothing more is written");

    // T-CTRL-61: a volume that is bound stays.
    cluster.delete::<PersistentVolume>(&ObjectKey::cluster("small")).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert!(volumes.cache.get(&ObjectKey::cluster("small")).is_some());
    cluster.delete::<PersistentVolumeClaim>(&key("default", "c")).await;
    claims.gone(&key("default", "c")).await;
    volumes.gone(&ObjectKey::cluster("small")).await;
    volume_is(&volumes, "big", "Available").await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_166_a_claim_can_name_its_volume_and_a_mismatch_is_reported() {
    let cluster = Cluster::start().await;
    let claims = cluster.watch::<PersistentVolumeClaim>();
    volume(&cluster, "tiny", "1Mi", "").await;
    claim(&cluster, "c", json!({ "storageClassName": "", "volumeName": "tiny" })).await;
    let event = cluster.event("VolumeMismatch").await;
    let message = "Cannot bind to requested volume \"tiny\": requested PV is too small";
    assert_eq!(event.message.as_deref(), Some(message));
    claim_is(&claims, "c", "Pending tiny").await;
    claim(&cluster, "none", json!({ "storageClassName": "" })).await;
    let event = cluster.event("FailedBinding").await;
    let message = "no persistent volumes available for this claim and no storage class is set";
    assert_eq!(event.message.as_deref(), Some(message));
    // A volume that is created later is bound at once.
    volume(&cluster, "late", "1Gi", "").await;
    claim_is(&claims, "none", "Bound late").await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_168_c_169_c_170_classes_determine_provisioner_and_binding_mode() {
    let cluster = Cluster::start().await;
    let claims = cluster.watch::<PersistentVolumeClaim>();
    claim(&cluster, "early", json!({})).await;
    claim_is(&claims, "early", "Pending ").await;
    let is_default = json!({ "storageclass.kubernetes.io/is-default-class": "true" });
    cluster
        .create::<StorageClass>(json!({
            "metadata": { "name": "later", "annotations": is_default },
            "provisioner": "example.com/p", "volumeBindingMode": "WaitForFirstConsumer",
        }))
        .await;
    claims
        .when(&key("default", "early"), |claim| {
            let class = claim.and_then(|claim| claim.spec.as_ref()?.storage_class_name.clone());
            class.as_deref() == Some("later")
        })
        .await;
    let event = cluster.event("WaitForFirstConsumer").await;
    let message = "waiting for first consumer to be created before binding";
    assert_eq!(event.message.as_deref(), Some(message));
    // Choose a node, as the scheduler does.
    let chosen =
        json!({ "metadata": { "annotations": { "volume.kubernetes.io/selected-node": "n" } } });
    let early = key("default", "early");
    cluster.client.patch_merge::<PersistentVolumeClaim>(&early, &chosen).await.unwrap();
    claims
        .when(&early, |claim| {
            let all =
                claim.and_then(|claim| claim.metadata.annotations.clone()).unwrap_or_default();
            all.get("volume.kubernetes.io/storage-provisioner")
                .is_some_and(|p| p == "example.com/p")
        })
        .await;
    let event = cluster.event("ExternalProvisioning").await;
    assert!(event.message.as_deref().unwrap().contains("'example.com/p'"));
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_168_an_event_names_the_pod_that_a_claim_waits_for() {
    let cluster = Cluster::start().await;
    let class = json!({ "metadata": { "name": "later" }, "provisioner": "example.com/p",
                        "volumeBindingMode": "WaitForFirstConsumer" });
    cluster.create::<StorageClass>(class).await;
    claim(&cluster, "c", json!({ "storageClassName": "later" })).await;
    cluster.event("WaitForFirstConsumer").await;
    let volume = json!({ "name": "v", "persistentVolumeClaim": { "claimName": "c" } });
    unscheduled(&cluster, "p", volume).await;
    let event = cluster.event("WaitForPodScheduled").await;
    assert_eq!(event.message.as_deref(), Some("waiting for pod p to be scheduled"));
    assert_eq!(event.involved_object.name.as_deref(), Some("c"));
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_167_a_claim_without_its_volume_is_lost() {
    let cluster = Cluster::start().await;
    let claims = cluster.watch::<PersistentVolumeClaim>();
    let volumes = cluster.watch::<PersistentVolume>();
    volume(&cluster, "v", "1Gi", "").await;
    claim(&cluster, "c", json!({ "storageClassName": "" })).await;
    claim_is(&claims, "c", "Bound v").await;
    let free = json!({ "metadata": { "finalizers": null } });
    let key_of = ObjectKey::cluster("v");
    cluster.client.delete::<PersistentVolume>(&key_of, &DeleteOptions::default()).await.unwrap();
    cluster.client.patch_merge::<PersistentVolume>(&key_of, &free).await.unwrap();
    volumes.gone(&key_of).await;
    claim_is(&claims, "c", "Lost v").await;
    let event = cluster.event("ClaimLost").await;
    let message = "Bound claim has lost its PersistentVolume. Data on the volume is lost!";
    assert_eq!(event.message.as_deref(), Some(message));
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn t_ctrl_60_w_66_a_claim_stays_until_its_pod_is_gone() {
    let cluster = Cluster::start().await;
    let claims = cluster.watch::<PersistentVolumeClaim>();
    cluster.create::<Node>(json!({ "metadata": { "name": "n" } })).await;
    claim(&cluster, "c", json!({ "storageClassName": "" })).await;
    let volumes = json!([{ "name": "v", "persistentVolumeClaim": { "claimName": "c" } }]);
    cluster.running_pod("default", "p", "n", json!({ "spec": { "volumes": volumes } })).await;
    cluster.status::<Pod>(&key("default", "p"), json!({ "phase": "Succeeded" })).await;
    let force = DeleteOptions::default().grace(0);
    cluster.client.delete::<PersistentVolumeClaim>(&key("default", "c"), &force).await.unwrap();
    tokio::time::sleep(Duration::from_secs(30)).await;
    let claim = claims.cache.get(&key("default", "c")).expect("a finished pod has it, too");
    assert!(claim.metadata.deletion_timestamp.is_some());
    cluster.client.delete::<Pod>(&key("default", "p"), &force).await.unwrap();
    claims.gone(&key("default", "c")).await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_175_an_unused_attribute_class_is_deleted() {
    let cluster = Cluster::start().await;
    let classes = cluster.watch::<VolumeAttributesClass>();
    for name in ["used", "free"] {
        cluster
            .create::<VolumeAttributesClass>(json!({
                "metadata": { "name": name }, "driverName": "d", "parameters": { "a": "b" },
            }))
            .await;
    }
    claim(&cluster, "c", json!({ "storageClassName": "", "volumeAttributesClassName": "used" }))
        .await;
    for name in ["used", "free"] {
        cluster.delete::<VolumeAttributesClass>(&ObjectKey::cluster(name)).await;
    }
    classes.gone(&ObjectKey::cluster("free")).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(classes.cache.get(&ObjectKey::cluster("used")).is_some());
    cluster.delete::<PersistentVolumeClaim>(&key("default", "c")).await;
    classes.gone(&ObjectKey::cluster("used")).await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_175_an_attribute_class_is_released_when_the_last_claim_has_another() {
    let cluster = Cluster::start().await;
    let classes = cluster.watch::<VolumeAttributesClass>();
    let before = ["had", "on-its-way"];
    for name in before.into_iter().chain(["wanted"]) {
        let class = json!({ "metadata": { "name": name }, "driverName": "d",
                            "parameters": { "a": "b" } });
        cluster.create::<VolumeAttributesClass>(class).await;
    }
    claim(&cluster, "c", json!({ "storageClassName": "", "volumeAttributesClassName": "wanted" }))
        .await;
    let c = key("default", "c");
    let modifying = json!({ "status": "InProgress", "targetVolumeAttributesClassName": before[1] });
    let status = json!({ "currentVolumeAttributesClassName": before[0],
                         "modifyVolumeStatus": modifying });
    cluster.status::<PersistentVolumeClaim>(&c, status).await;
    for name in before {
        cluster.delete::<VolumeAttributesClass>(&ObjectKey::cluster(name)).await;
    }
    tokio::time::sleep(Duration::from_secs(10)).await;
    for name in before {
        assert!(classes.cache.get(&ObjectKey::cluster(name)).is_some(), "{name} is in use");
    }
    // The driver reports that the volume was modified.
    let done = json!({ "currentVolumeAttributesClassName": "wanted", "modifyVolumeStatus": null });
    cluster.status::<PersistentVolumeClaim>(&c, done).await;
    for name in before {
        classes.gone(&ObjectKey::cluster(name)).await;
    }
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_169_c_171_directories_are_provisioned_and_deleted_with_their_claims() {
    let dir = tempfile::tempdir().unwrap();
    let here = LocalVolumes { node: "n".into(), directory: dir.path().join("volumes") };
    let cluster = Cluster::with(Options { local_volumes: Some(here), ..Options::default() }).await;
    let claims = cluster.watch::<PersistentVolumeClaim>();
    let volumes = cluster.watch::<PersistentVolume>();
    let classes = cluster.watch::<StorageClass>();
    classes.when(&ObjectKey::cluster("standard"), |class| class.is_some()).await;
    claim(&cluster, "c", json!({})).await;
    claim_is(&claims, "c", "Pending ").await;
    let c = key("default", "c");
    let choose = |node: &str| json!({ "metadata": { "annotations": { "volume.kubernetes.io/selected-node": node } } });
    // C-168: other nodes have no local volumes, so the chosen node is cleared.
    cluster.client.patch_merge::<PersistentVolumeClaim>(&c, &choose("other")).await.unwrap();
    cluster.event("ProvisioningFailed").await;
    claims
        .when(&c, |claim| {
            let all =
                claim.and_then(|claim| claim.metadata.annotations.clone()).unwrap_or_default();
            !all.contains_key("volume.kubernetes.io/selected-node")
        })
        .await;
    cluster.client.patch_merge::<PersistentVolumeClaim>(&c, &choose("n")).await.unwrap();
    let uid = claims.cache.get(&c).unwrap().metadata.uid.clone().unwrap();
    let name = format!("pvc-{uid}");
    claim_is(&claims, "c", &format!("Bound {name}")).await;
    volume_is(&volumes, &name, "Bound").await;
    // C-173: a directory can be expanded to any size.
    let more = json!({ "spec": { "resources": { "requests": { "storage": "3Gi" } } } });
    cluster.client.patch_merge::<PersistentVolumeClaim>(&c, &more).await.unwrap();
    claims
        .when(&c, |claim| {
            let capacity = claim.and_then(|claim| claim.status.as_ref()?.capacity.clone());
            capacity.is_some_and(|capacity| capacity["storage"].0 == "3Gi")
        })
        .await;
    let volume: PersistentVolume = cluster.client.get(&ObjectKey::cluster(&name)).await.unwrap();
    assert_eq!(volume.spec.unwrap().capacity.unwrap()["storage"].0, "3Gi");
    let path = dir.path().join("volumes").join(&name);
    std::fs::write(path.join("data"), "kept").unwrap();

    cluster.delete::<PersistentVolumeClaim>(&c).await;
    volumes.gone(&ObjectKey::cluster(&name)).await;
    assert!(!path.exists(), "the reclaim policy is Delete");
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_174_ephemeral_claims_are_created_for_a_pod_and_deleted_with_it() {
    let cluster = Cluster::start().await;
    let claims = cluster.watch::<PersistentVolumeClaim>();
    cluster.create::<Node>(json!({ "metadata": { "name": "n" } })).await;
    claim(&cluster, "p-taken", json!({ "storageClassName": "" })).await;
    let spec = json!({ "accessModes": ["ReadWriteOnce"], "storageClassName": "",
                       "resources": { "requests": { "storage": "1Gi" } } });
    let template = json!({ "metadata": { "labels": { "a": "b" } }, "spec": spec });
    let volumes = json!([
        { "name": "own", "ephemeral": { "volumeClaimTemplate": template } },
        { "name": "taken", "ephemeral": { "volumeClaimTemplate": template } },
    ]);
    let pod =
        cluster.running_pod("default", "p", "n", json!({ "spec": { "volumes": volumes } })).await;
    let own = key("default", "p-own");
    claims
        .when(&own, |claim| {
            let owner = claim.and_then(|c| c.metadata.owner_references.as_ref()?.first().cloned());
            owner.is_some_and(|owner| Some(owner.uid) == pod.metadata.uid)
        })
        .await;
    assert_eq!(claims.cache.get(&own).unwrap().metadata.labels.as_ref().unwrap()["a"], "b");
    let events = cluster.watch::<k8s_openapi::api::core::v1::Event>();
    let text = "ephemeral volume taken: PVC default/p-taken was not created for pod default/p (pod is not owner)";
    events.find(|event| event.message.as_deref() == Some(text)).await;

    let now = DeleteOptions::default().grace(0);
    cluster.client.delete::<Pod>(&key("default", "p"), &now).await.unwrap();
    claims.gone(&own).await;
    assert!(claims.cache.get(&key("default", "p-taken")).is_some(), "it has another owner");
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_174_a_pod_gets_its_claim_when_a_foreign_claim_of_that_name_is_deleted() {
    let cluster = Cluster::start().await;
    let claims = cluster.watch::<PersistentVolumeClaim>();
    claim(&cluster, "p-v", json!({ "storageClassName": "" })).await;
    let spec = json!({ "accessModes": ["ReadWriteOnce"], "storageClassName": "",
                       "resources": { "requests": { "storage": "1Gi" } } });
    let volume = json!({ "name": "v", "ephemeral": { "volumeClaimTemplate": { "spec": spec } } });
    let pod = unscheduled(&cluster, "p", volume).await;
    let events = cluster.watch::<k8s_openapi::api::core::v1::Event>();
    let blocked = |event: &k8s_openapi::api::core::v1::Event| {
        let about = event.involved_object.kind.as_deref();
        about == Some("Pod") && event.reason.as_deref() == Some("FailedBinding")
    };
    events.find(blocked).await;
    cluster.delete::<PersistentVolumeClaim>(&key("default", "p-v")).await;
    let deleted = Instant::now();
    claims
        .when(&key("default", "p-v"), |claim| {
            let owner = claim.and_then(|c| c.metadata.owner_references.as_ref()?.first().cloned());
            owner.is_some_and(|owner| Some(owner.uid) == pod.metadata.uid)
        })
        .await;
    assert!(deleted.elapsed() < Duration::from_secs(5), "{:?}", deleted.elapsed());
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_173_expansion_is_delegated_or_forbidden() {
    let cluster = Cluster::start().await;
    let claims = cluster.watch::<PersistentVolumeClaim>();
    for (name, grows) in [("grows", true), ("stays", false)] {
        let class = json!({ "metadata": { "name": name }, "provisioner": "example.com/p",
                            "allowVolumeExpansion": grows });
        cluster.create::<StorageClass>(class).await;
        volume(&cluster, name, "1Gi", name).await;
        claim(&cluster, name, json!({ "storageClassName": name })).await;
        claim_is(&claims, name, &format!("Bound {name}")).await;
    }
    let more = json!({ "spec": { "resources": { "requests": { "storage": "5Gi" } } } });
    let ask = async |name: &str| {
        cluster.client.patch_merge::<PersistentVolumeClaim>(&key("default", name), &more).await
    };
    assert!(ask("stays").await.unwrap_err().is_forbidden());
    ask("grows").await.unwrap();
    let event = cluster.event("ExternalExpanding").await;
    let message = "waiting for an external controller to expand this PVC";
    assert_eq!(event.message.as_deref(), Some(message));
    assert_eq!(event.involved_object.name.as_deref(), Some("grows"));
    assert_eq!(event.type_.as_deref(), Some("Normal"));
    let grows: PersistentVolumeClaim = cluster.client.get(&key("default", "grows")).await.unwrap();
    assert_eq!(grows.status.unwrap().capacity.unwrap()["storage"].0, "1Gi", "not expanded yet");
    cluster.stop().await;
}
