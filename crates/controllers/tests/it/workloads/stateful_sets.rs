//! StatefulSets.

use super::cluster::{Cluster, NAMESPACE, key, names, template};
use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet};
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::Instant;

fn set(replicas: i32, more: Value) -> Value {
    let mut spec = json!({
        "replicas": replicas, "serviceName": "db",
        "selector": { "matchLabels": { "app": "db" } },
        "template": template("db", "one"),
    });
    if let (Some(spec), Some(more)) = (spec.as_object_mut(), more.as_object()) {
        spec.extend(more.clone());
    }
    json!({ "metadata": { "namespace": NAMESPACE, "name": "db" }, "spec": spec })
}

fn image(image: &str) -> Value {
    json!({ "spec": { "template": { "spec": { "containers": [{ "name": "c", "image": image }] } } } })
}

async fn runs(cluster: &Cluster, name: &str) -> Pod {
    let pod = cluster.when::<Pod>(name, |pod| pod.metadata.deletion_timestamp.is_none()).await;
    cluster.bind(&pod).await;
    cluster.runs(&pod, true).await;
    pod
}

/// Waits for the next terminating pod and removes it.
async fn goes(cluster: &Cluster, name: &str) {
    let pod = cluster.when::<Pod>(name, |pod| pod.metadata.deletion_timestamp.is_some()).await;
    cluster.quiet().await;
    let going = cluster.all::<Pod>().await;
    let going = going.iter().filter(|pod| pod.metadata.deletion_timestamp.is_some());
    assert_eq!(going.count(), 1, "one at a time");
    cluster.gone(&pod).await;
}

fn done(set: &StatefulSet) -> bool {
    let status = set.status.clone().unwrap_or_default();
    status.current_revision == status.update_revision
        && status.updated_replicas == set.spec.as_ref().unwrap().replicas
}

#[tokio::test(start_paused = true)]
async fn c_61_c_72_t_ctrl_16_pods_are_created_in_order_and_deleted_in_reverse() {
    let cluster = Cluster::start().await;
    cluster.create::<StatefulSet>(set(3, json!({}))).await;
    cluster.living(1).await;
    let pod = runs(&cluster, "db-0").await;
    let spec = pod.spec.unwrap();
    assert_eq!((spec.hostname.as_deref(), spec.subdomain.as_deref()), (Some("db-0"), Some("db")));
    assert_eq!(pod.metadata.labels.unwrap()["apps.kubernetes.io/pod-index"], "0");
    cluster.living(2).await;
    runs(&cluster, "db-1").await;
    runs(&cluster, "db-2").await;
    cluster
        .when::<StatefulSet>("db", |set| set.status.as_ref().unwrap().ready_replicas == Some(3))
        .await;
    assert_eq!(
        cluster.event("SuccessfulCreate").await,
        "Create Pod db-0 in StatefulSet db successful"
    );
    cluster.patch::<StatefulSet>("db", json!({ "spec": { "replicas": 0 } })).await;
    for name in ["db-2", "db-1", "db-0"] {
        goes(&cluster, name).await;
    }
    cluster.when_all::<Pod>(|pods| pods.is_empty()).await;
    let message = cluster.event("SuccessfulDelete").await;
    assert_eq!(message, "Delete Pod db-2 in StatefulSet db successful");
    cluster.stop().await;
}

/// C-213: the old revision is used again with its name, and pods have the full name in their label.
#[tokio::test(start_paused = true)]
async fn c_68_c_74_an_update_rolls_down_and_a_rollback_uses_the_first_revision() {
    let cluster = Cluster::start().await;
    cluster.create::<StatefulSet>(set(2, json!({}))).await;
    runs(&cluster, "db-0").await;
    runs(&cluster, "db-1").await;
    let first = cluster.when::<StatefulSet>("db", done).await.status.unwrap().update_revision;
    let pod = cluster.get::<Pod>("db-0").await;
    assert_eq!(pod.metadata.labels.unwrap().get("controller-revision-hash"), first.as_ref());
    cluster.patch::<StatefulSet>("db", image("two")).await;
    for name in ["db-1", "db-0"] {
        goes(&cluster, name).await;
        runs(&cluster, name).await;
    }
    let not_first =
        |set: &StatefulSet| done(set) && set.status.as_ref().unwrap().current_revision != first;
    cluster.when::<StatefulSet>("db", not_first).await;
    cluster.patch::<StatefulSet>("db", image("one")).await;
    let back = |set: &StatefulSet| set.status.as_ref().unwrap().update_revision == first;
    cluster.when::<StatefulSet>("db", back).await;
    let mut revisions: Vec<i64> =
        cluster.all::<ControllerRevision>().await.iter().map(|one| one.revision).collect();
    revisions.sort();
    assert_eq!(revisions, [2, 3]);
    cluster.stop().await;
}

/// C-15, C-213: the status is written although the update is blocked.
#[tokio::test(start_paused = true)]
async fn c_79_the_status_has_the_new_revision_although_a_pod_is_not_ready() {
    let cluster = Cluster::start().await;
    cluster.create::<StatefulSet>(set(2, json!({}))).await;
    let pod = runs(&cluster, "db-0").await;
    cluster.living(2).await;
    let first = cluster.get::<StatefulSet>("db").await.status.unwrap().update_revision;
    cluster.patch::<StatefulSet>("db", image("two")).await;
    let is_reported = |set: &StatefulSet| {
        let status = set.status.as_ref().unwrap();
        status.update_revision != first && status.observed_generation == set.metadata.generation
    };
    cluster.when::<StatefulSet>("db", is_reported).await;
    assert_eq!(cluster.get::<Pod>("db-0").await.metadata.uid, pod.metadata.uid);
    cluster.living(2).await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_64_c_65_t_ctrl_22_claims_are_created_first_and_owned_by_policy() {
    let cluster = Cluster::start().await;
    let claims = json!({
        "podManagementPolicy": "Parallel",
        "persistentVolumeClaimRetentionPolicy": { "whenDeleted": "Delete", "whenScaled": "Delete" },
        "volumeClaimTemplates": [{ "metadata": { "name": "data" }, "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } } }],
    });
    cluster.create::<StatefulSet>(set(2, claims)).await;
    cluster.all_run(2).await;
    let owner = |claim: &PersistentVolumeClaim| {
        claim.metadata.owner_references.as_ref().map(|owners| owners[0].kind.clone())
    };
    for name in ["data-db-0", "data-db-1"] {
        let claim = cluster.get::<PersistentVolumeClaim>(name).await;
        assert_eq!(owner(&claim).as_deref(), Some("StatefulSet"));
    }
    let pod = cluster.get::<Pod>("db-1").await;
    let volumes = pod.spec.unwrap().volumes.unwrap();
    let claim = volumes.iter().find(|volume| volume.name == "data").unwrap();
    assert_eq!(claim.persistent_volume_claim.as_ref().unwrap().claim_name, "data-db-1");
    cluster.patch::<StatefulSet>("db", json!({ "spec": { "replicas": 1 } })).await;
    let of_pod = |claim: &PersistentVolumeClaim| owner(claim).as_deref() == Some("Pod");
    let before = cluster.when::<PersistentVolumeClaim>("data-db-1", of_pod).await;
    cluster
        .when_all::<Pod>(|pods| {
            pods.iter().any(|pod| pod.metadata.deletion_timestamp.is_some()) || pods.len() == 1
        })
        .await;
    cluster.clear().await;
    // The claim is deleted with its pod; the new pod waits for that and gets a new claim.
    cluster.patch::<StatefulSet>("db", json!({ "spec": { "replicas": 2 } })).await;
    assert_eq!(names(&cluster.living(2).await), ["db-0", "db-1"]);
    let after = cluster.get::<PersistentVolumeClaim>("data-db-1").await;
    assert_ne!(after.metadata.uid, before.metadata.uid);
    assert_eq!(owner(&after).as_deref(), Some("StatefulSet"));
    cluster.stop().await;
}

fn with_claims(more: Value) -> Value {
    let mut spec = json!({ "volumeClaimTemplates": [{ "metadata": { "name": "data" }, "spec": {
        "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } } }] });
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    spec
}

/// The claim of `db-0`, created by a user before the set.
async fn claim(cluster: &Cluster, more: Value) -> PersistentVolumeClaim {
    let mut meta = json!({ "namespace": NAMESPACE, "name": "data-db-0" });
    meta.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let spec = json!({ "accessModes": ["ReadWriteOnce"],
                       "resources": { "requests": { "storage": "1Gi" } } });
    cluster.create(json!({ "metadata": meta, "spec": spec })).await
}

/// Even if the pod is not ready, so that deleting the set deletes the claim too.
#[tokio::test(start_paused = true)]
async fn c_65_an_existing_claim_is_owned_by_the_set_as_soon_as_its_pod_exists() {
    let cluster = Cluster::start().await;
    claim(&cluster, json!({})).await;
    let policy = json!({ "whenDeleted": "Delete", "whenScaled": "Retain" });
    let policy = with_claims(json!({ "persistentVolumeClaimRetentionPolicy": policy }));
    cluster.create::<StatefulSet>(set(1, policy)).await;
    let owned = |claim: &PersistentVolumeClaim| {
        let owners = claim.metadata.owner_references.iter().flatten();
        owners.into_iter().any(|owner| owner.kind == "StatefulSet" && owner.name == "db")
    };
    cluster.when::<PersistentVolumeClaim>("data-db-0", owned).await;
    cluster.delete::<StatefulSet>("db").await;
    cluster.when_all::<PersistentVolumeClaim>(|claims| claims.is_empty()).await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_64_a_claim_being_deleted_is_reported_and_waited_for() {
    let cluster = Cluster::start().await;
    claim(&cluster, json!({ "finalizers": ["example.com/held"] })).await;
    cluster.delete::<PersistentVolumeClaim>("data-db-0").await;
    cluster.create::<StatefulSet>(set(1, with_claims(json!({})))).await;
    let message = cluster.event_on("StatefulSet", "FailedCreate").await;
    assert_eq!(
        message,
        "Create Pod db-0 in StatefulSet db failed error: pvc data-db-0 is being deleted"
    );
    // Long enough for a backoff of a minute, to show that the deleted claim queues the set.
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(cluster.all::<Pod>().await.is_empty());
    let free = json!({ "metadata": { "finalizers": null } });
    cluster.patch::<PersistentVolumeClaim>("data-db-0", free).await;
    let freed = Instant::now();
    cluster.living(1).await;
    assert!(freed.elapsed() < Duration::from_secs(2), "{:?}", freed.elapsed());
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_64_a_claim_deleted_before_its_pod_runs_is_recreated() {
    let cluster = Cluster::start().await;
    cluster.create::<StatefulSet>(set(1, with_claims(json!({})))).await;
    cluster.living(1).await;
    let lost = cluster.get::<PersistentVolumeClaim>("data-db-0").await;
    cluster.delete::<PersistentVolumeClaim>("data-db-0").await;
    // Unless the protection controller has already removed the finalizer.
    let free = json!({ "metadata": { "finalizers": null } });
    let _ = cluster.client.patch_merge::<PersistentVolumeClaim>(&key("data-db-0"), &free).await;
    let again = |claim: &PersistentVolumeClaim| claim.metadata.uid != lost.metadata.uid;
    cluster.when::<PersistentVolumeClaim>("data-db-0", again).await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_65_a_claim_of_another_controller_is_left_alone_and_reported() {
    let cluster = Cluster::start().await;
    let other = json!({ "metadata": { "namespace": NAMESPACE, "name": "other" } });
    let other = cluster.create::<ConfigMap>(other).await;
    let owner = json!([{ "apiVersion": "v1", "kind": "ConfigMap", "name": "other",
                         "uid": other.metadata.uid, "controller": true }]);
    let before = claim(&cluster, json!({ "ownerReferences": owner })).await;
    let policy = json!({ "whenDeleted": "Delete", "whenScaled": "Retain" });
    let policy = with_claims(json!({ "persistentVolumeClaimRetentionPolicy": policy }));
    cluster.create::<StatefulSet>(set(1, policy)).await;
    assert_eq!(
        cluster.event_on("StatefulSet", "ConflictingController").await,
        "PersistentVolumeClaim data-db-0 has a conflicting OwnerReference that acts as a managing \
         controller, the retention policy is ignored for this claim"
    );
    cluster.living(1).await;
    let after = cluster.get::<PersistentVolumeClaim>("data-db-0").await;
    assert_eq!(after.metadata.owner_references, before.metadata.owner_references);
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_69_an_orphaned_revision_is_adopted() {
    let cluster = Cluster::start().await;
    cluster.create::<StatefulSet>(set(1, json!({}))).await;
    runs(&cluster, "db-0").await;
    cluster.when::<StatefulSet>("db", done).await;
    let revision = names(&cluster.all::<ControllerRevision>().await)[0].clone();
    let free = json!({ "metadata": { "ownerReferences": null } });
    let freed = cluster.patch::<ControllerRevision>(&revision, free).await;
    let owned = |one: &ControllerRevision| one.metadata.owner_references.is_some();
    assert!(!owned(&freed));
    cluster.when::<ControllerRevision>(&revision, owned).await;
    assert_eq!(cluster.all::<ControllerRevision>().await.len(), 1);
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_14_conditions_of_others_stay_until_the_status_changes() {
    let cluster = Cluster::start().await;
    cluster.create::<StatefulSet>(set(1, json!({}))).await;
    runs(&cluster, "db-0").await;
    cluster.when::<StatefulSet>("db", done).await;
    cluster.quiet().await;
    let theirs = json!({ "status": { "conditions": [{ "type": "Theirs", "status": "True" }] } });
    cluster.client.patch_status::<StatefulSet>(&key("db"), &theirs).await.unwrap();
    let there = |set: &StatefulSet| {
        let conditions = set.status.as_ref().and_then(|status| status.conditions.as_ref());
        conditions.is_some_and(|all| all.iter().any(|one| one.type_ == "Theirs"))
    };
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(there(&cluster.get::<StatefulSet>("db").await), "nothing has changed");
    cluster.patch::<StatefulSet>("db", json!({ "spec": { "replicas": 2 } })).await;
    cluster.when::<StatefulSet>("db", |set| !there(set)).await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn t_ctrl_19_an_evicted_pod_is_recreated_with_its_name() {
    let cluster = Cluster::start().await;
    cluster.create::<StatefulSet>(set(1, json!({}))).await;
    let pod = runs(&cluster, "db-0").await;
    cluster.ended(&pod, "Failed").await;
    let again = |new: &Pod| new.metadata.uid != pod.metadata.uid;
    cluster.when::<Pod>("db-0", again).await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_6_only_a_pod_with_a_name_of_the_set_is_adopted() {
    let cluster = Cluster::start().await;
    for name in ["db-0", "db-x", "stray"] {
        let mut pod = template("db", "one");
        pod["metadata"]["name"] = json!(name);
        pod["metadata"]["namespace"] = json!(NAMESPACE);
        cluster.create::<Pod>(pod).await;
    }
    cluster.create::<StatefulSet>(set(1, json!({}))).await;
    let owned = |pod: &Pod| pod.metadata.owner_references.is_some();
    cluster.when::<Pod>("db-0", owned).await;
    cluster.quiet().await;
    for name in ["db-x", "stray"] {
        assert!(!owned(&cluster.get::<Pod>(name).await), "{name}");
    }
    cluster.living(3).await;
    cluster.stop().await;
}
