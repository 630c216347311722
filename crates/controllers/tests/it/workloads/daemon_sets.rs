//! DaemonSets.

use super::cluster::{Cluster, NAMESPACE, lives, meant_for, names, template};
use client::ObjectKey;
use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet};
use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::{Value, json};

fn set(more: Value) -> Value {
    let mut spec = json!({
        "selector": { "matchLabels": { "app": "log" } },
        "template": template("log", "one"),
    });
    if let (Some(spec), Some(more)) = (spec.as_object_mut(), more.as_object()) {
        spec.extend(more.clone());
    }
    json!({ "metadata": { "namespace": NAMESPACE, "name": "log" }, "spec": spec })
}

fn image(image: &str) -> Value {
    json!({ "spec": { "template": { "spec": { "containers": [{ "name": "c", "image": image }] } } } })
}

async fn node(cluster: &Cluster, name: &str) {
    let meta = json!({ "name": name, "labels": { "disk": "fast" } });
    cluster.ready_node(json!({ "metadata": meta })).await;
}

fn node_of(pod: &Pod) -> String {
    meant_for(pod).unwrap()
}

fn status(set: &DaemonSet) -> (i32, i32, i32, Option<i32>) {
    let status = set.status.clone().unwrap_or_default();
    let desired = status.desired_number_scheduled;
    (desired, status.current_number_scheduled, status.number_ready, status.updated_number_scheduled)
}

#[tokio::test(start_paused = true)]
async fn c_81_c_85_a_matching_node_gets_a_pod_and_loses_it_without_its_label() {
    let cluster = Cluster::start().await;
    node(&cluster, "n1").await;
    node(&cluster, "n2").await;
    let mut wants_fast = template("log", "one");
    wants_fast["spec"]["nodeSelector"] = json!({ "disk": "fast" });
    cluster.create::<DaemonSet>(set(json!({ "template": wants_fast }))).await;
    let mut meant: Vec<String> = cluster.all_run(2).await.iter().map(node_of).collect();
    meant.sort();
    assert_eq!(meant, ["n1", "n2"]);
    cluster.when::<DaemonSet>("log", |set| status(set) == (2, 2, 2, Some(2))).await;
    node(&cluster, "n3").await;
    cluster.all_run(3).await;
    let slow = json!({ "metadata": { "labels": { "disk": "slow" } } });
    cluster.client.patch_merge::<Node>(&ObjectKey::cluster("n1"), &slow).await.unwrap();
    let left = cluster.living(2).await;
    assert!(left.iter().all(|pod| node_of(pod) != "n1"));
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_96_t_ctrl_30_a_rolling_update_never_has_two_pods_on_a_node() {
    let cluster = Cluster::start().await;
    node(&cluster, "n1").await;
    node(&cluster, "n2").await;
    cluster.create::<DaemonSet>(set(json!({}))).await;
    let first = cluster.all_run(2).await;
    cluster.when::<DaemonSet>("log", |set| status(set) == (2, 2, 2, Some(2))).await;
    cluster.patch::<DaemonSet>("log", image("two")).await;
    for _ in 0..2 {
        cluster.living(1).await;
        assert_eq!(cluster.all::<Pod>().await.len(), 2, "the old one is in its grace");
        cluster.clear().await;
        cluster.all_run(2).await;
    }
    let rolled = |set: &DaemonSet| {
        status(set) == (2, 2, 2, Some(2)) && {
            set.status.as_ref().unwrap().observed_generation == Some(2)
        }
    };
    cluster.when::<DaemonSet>("log", rolled).await;
    let after = cluster.living(2).await;
    assert!(names(&after).iter().all(|name| !names(&first).contains(name)));
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_90_a_rollback_does_not_restart_pods_that_were_not_updated() {
    let cluster = Cluster::start().await;
    node(&cluster, "n1").await;
    node(&cluster, "n2").await;
    cluster.create::<DaemonSet>(set(json!({}))).await;
    let first = cluster.all_run(2).await;
    cluster.patch::<DaemonSet>("log", image("broken")).await;
    let left = names(&cluster.living(1).await)[0].clone();
    cluster.clear().await;
    cluster.living(2).await;
    cluster.patch::<DaemonSet>("log", image("one")).await;
    // The broken pod is not available, so it is deleted immediately.
    let is_broken = |pod: &&Pod| {
        let spec = pod.spec.as_ref().unwrap();
        lives(pod) && spec.containers[0].image.as_deref() == Some("broken")
    };
    cluster.when_all::<Pod>(|pods| pods.iter().filter(is_broken).count() == 0).await;
    let after = names(&cluster.all_run(2).await);
    assert!(after.contains(&left) && names(&first).contains(&left), "{after:?}");
    let revisions = cluster.all::<ControllerRevision>().await;
    assert_eq!(revisions.iter().map(|one| one.revision).max(), Some(3));
    cluster.stop().await;
}

/// C-205: the failed pod is deleted completely, no matter which client marked it as failed.
#[tokio::test(start_paused = true)]
async fn c_87_t_ctrl_31_a_failed_pod_is_replaced_and_reported() {
    let cluster = Cluster::start().await;
    node(&cluster, "n1").await;
    cluster.create::<DaemonSet>(set(json!({}))).await;
    let pods = cluster.all_run(1).await;
    cluster.ended(&pods[0], "Failed").await;
    let again = |now: &[Pod]| {
        let living: Vec<&Pod> = now.iter().filter(|pod| lives(pod)).collect();
        living.len() == 1 && living[0].metadata.uid != pods[0].metadata.uid
    };
    cluster.when_all::<Pod>(again).await;
    let name = &names(&pods)[0];
    cluster.when_all::<Pod>(|pods| !names(pods).contains(name)).await;
    assert_eq!(
        cluster.event("FailedDaemonPod").await,
        format!("Found failed daemon pod default/{name} on node n1, will try to kill it")
    );
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_87_t_ctrl_31_a_succeeded_pod_is_replaced_and_reported() {
    let cluster = Cluster::start().await;
    node(&cluster, "n1").await;
    cluster.create::<DaemonSet>(set(json!({}))).await;
    let pods = cluster.all_run(1).await;
    cluster.ended(&pods[0], "Succeeded").await;
    let name = &names(&pods)[0];
    cluster.when_all::<Pod>(|pods| !names(pods).contains(name)).await;
    cluster.living(1).await;
    assert_eq!(
        cluster.event("SucceededDaemonPod").await,
        format!("Found succeeded daemon pod default/{name} on node n1, will try to delete it")
    );
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_85_an_untolerated_taint_removes_the_pod() {
    let cluster = Cluster::start().await;
    node(&cluster, "n1").await;
    cluster.create::<DaemonSet>(set(json!({}))).await;
    cluster.all_run(1).await;
    let taint = |taints: Value| {
        let patch = json!({ "spec": { "taints": taints } });
        let client = &cluster.client;
        async move { client.patch_merge::<Node>(&ObjectKey::cluster("n1"), &patch).await.unwrap() }
    };
    taint(json!([{ "key": "x", "effect": "NoExecute" }])).await;
    cluster.living(0).await;
    cluster.clear().await;
    taint(json!(null)).await;
    cluster.living(1).await;
    cluster.stop().await;
}

/// C-210: the exact bytes of a DaemonSet revision.
#[tokio::test(start_paused = true)]
async fn c_91_a_duplicate_revision_stays_until_the_next_change() {
    let cluster = Cluster::start().await;
    node(&cluster, "n1").await;
    cluster.create::<DaemonSet>(set(json!({}))).await;
    cluster.all_run(1).await;
    cluster.when::<DaemonSet>("log", |set| status(set) == (1, 1, 1, Some(1))).await;
    cluster.quiet().await;
    let mut twin = cluster.all::<ControllerRevision>().await.remove(0);
    let meta = &mut twin.metadata;
    let first = meta.name.replace("log-twin".to_owned()).unwrap();
    (meta.uid, meta.resource_version, meta.creation_timestamp) = (None, None, None);
    meta.labels.as_mut().unwrap().insert("controller-revision-hash".into(), "twin".into());
    twin.revision = 2;
    cluster.client.create(&twin).await.unwrap();
    cluster.quiet().await;
    assert_eq!(cluster.all::<ControllerRevision>().await.len(), 2);
    cluster.delete::<ControllerRevision>(&first).await;
    cluster.quiet().await;
    let left = cluster.all::<ControllerRevision>().await;
    assert_eq!(names(&left), ["log-twin"]);
    assert_eq!(cluster.living(1).await.len(), 1, "C-92: no needless rollout");
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_88_a_revision_is_named_and_labelled_by_its_hash() {
    let cluster = Cluster::start().await;
    node(&cluster, "n1").await;
    let mut wanted = set(json!({}));
    wanted["metadata"]["annotations"] = json!({ "note": "mine" });
    let set = cluster.create::<DaemonSet>(wanted).await;
    let pods = cluster.all_run(1).await;
    let revision = cluster.all::<ControllerRevision>().await.remove(0);
    let labels = revision.metadata.labels.clone().unwrap();
    let hash = labels["controller-revision-hash"].clone();
    assert!(!hash.is_empty());
    assert_eq!((labels.len(), labels["app"].as_str()), (2, "log"), "and those of the template");
    assert_eq!(revision.metadata.name, Some(format!("log-{hash}")));
    assert_eq!(revision.metadata.annotations, set.metadata.annotations);
    let owner = &revision.metadata.owner_references.as_ref().unwrap()[0];
    assert_eq!((Some(&owner.uid), owner.controller), (set.metadata.uid.as_ref(), Some(true)));
    assert_eq!(revision.revision, 1);
    assert_eq!(pods[0].metadata.labels.as_ref().unwrap()["controller-revision-hash"], hash);
    cluster.patch::<DaemonSet>("log", image("two")).await;
    let two = cluster.when_all::<ControllerRevision>(|all| all.len() == 2).await;
    assert_eq!(two.iter().map(|one| one.revision).max(), Some(2));
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_93_a_revision_whose_name_is_taken_gets_another_and_the_same_number() {
    let cluster = Cluster::start().await;
    node(&cluster, "n1").await;
    cluster.create::<DaemonSet>(set(json!({}))).await;
    cluster.all_run(1).await;
    let taken = names(&cluster.all::<ControllerRevision>().await).remove(0);
    cluster.delete::<DaemonSet>("log").await;
    cluster.when_all::<ControllerRevision>(|all| all.is_empty()).await;
    let foreign = json!({ "metadata": { "namespace": NAMESPACE, "name": taken },
                          "data": { "another": "thing" }, "revision": 7 });
    cluster.create::<ControllerRevision>(foreign).await;
    cluster.create::<DaemonSet>(set(json!({}))).await;
    let counted =
        |set: &DaemonSet| set.status.as_ref().and_then(|status| status.collision_count) == Some(1);
    cluster.when::<DaemonSet>("log", counted).await;
    let all = cluster.all::<ControllerRevision>().await;
    let ours: Vec<&ControllerRevision> =
        all.iter().filter(|one| one.metadata.owner_references.is_some()).collect();
    assert_eq!((ours.len(), ours[0].revision), (1, 1));
    assert_ne!(ours[0].metadata.name.as_ref(), Some(&taken));
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_100_a_daemon_set_being_deleted_writes_no_status() {
    let cluster = Cluster::start().await;
    node(&cluster, "n1").await;
    let mut held = set(json!({}));
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    cluster.create::<DaemonSet>(held).await;
    let pods = cluster.all_run(1).await;
    cluster.when::<DaemonSet>("log", |set| status(set) == (1, 1, 1, Some(1))).await;
    cluster.delete::<DaemonSet>("log").await;
    let before = cluster.get::<DaemonSet>("log").await;
    cluster.runs(&pods[0], false).await;
    tokio::time::sleep(std::time::Duration::from_secs(60)).await;
    let after = cluster.get::<DaemonSet>("log").await;
    assert_eq!(after.metadata.resource_version, before.metadata.resource_version);
    let status = after.status.unwrap();
    assert_eq!((status.number_ready, status.conditions), (1, None), "and it has no conditions");
    cluster.stop().await;
}
