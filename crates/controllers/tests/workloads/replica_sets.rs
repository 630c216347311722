//! ReplicaSets and ReplicationControllers.

use crate::cluster::{Cluster, NAMESPACE, key, names, read, template};
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::{Pod, ReplicationController, ResourceQuota};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::Instant;

fn set(replicas: i32, more: Value) -> Value {
    let mut spec = json!({
        "replicas": replicas,
        "selector": { "matchLabels": { "app": "web" } },
        "template": template("web", "i"),
    });
    if let (Some(spec), Some(more)) = (spec.as_object_mut(), more.as_object()) {
        spec.extend(more.clone());
    }
    json!({ "metadata": { "namespace": NAMESPACE, "name": "web" }, "spec": spec })
}

fn owner(pod: &Pod) -> Option<String> {
    Some(pod.metadata.owner_references.as_ref()?.first()?.name.clone())
}

#[tokio::test(start_paused = true)]
async fn c_1_c_7_c_19_a_set_makes_its_pods_and_reports_them() {
    let cluster = Cluster::start().await;
    cluster.create::<ReplicaSet>(set(3, json!({}))).await;
    let pods = cluster.all_run(3).await;
    for pod in &pods {
        let owner = &pod.metadata.owner_references.as_ref().unwrap()[0];
        assert_eq!((owner.kind.as_str(), owner.api_version.as_str()), ("ReplicaSet", "apps/v1"));
        assert_eq!((owner.controller, owner.block_owner_deletion), (Some(true), Some(true)));
        assert_eq!(pod.metadata.generate_name.as_deref(), Some("web-"));
    }
    let ready = |set: &ReplicaSet| set.status.as_ref().unwrap().ready_replicas == Some(3);
    let set = cluster.when::<ReplicaSet>("web", ready).await;
    let status = set.status.unwrap();
    assert_eq!(status.available_replicas, Some(3));
    assert_eq!(status.fully_labeled_replicas, Some(3));
    assert_eq!(status.terminating_replicas, Some(0));
    assert_eq!(status.observed_generation, set.metadata.generation);
    let created = cluster.event("SuccessfulCreate").await;
    assert!(created.starts_with("Created pod: web-"), "{created}");
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn t_ctrl_1_t_ctrl_3_a_pod_that_goes_is_replaced_at_once_and_counted_as_going() {
    let cluster = Cluster::start().await;
    cluster.create::<ReplicaSet>(set(2, json!({}))).await;
    let pods = cluster.all_run(2).await;
    cluster.delete::<Pod>(&names(&pods)[0]).await;
    let counted = |set: &ReplicaSet| {
        let status = set.status.as_ref().unwrap();
        (status.replicas, status.ready_replicas, status.terminating_replicas)
            == (2, Some(1), Some(1))
    };
    cluster.when::<ReplicaSet>("web", counted).await;
    assert_eq!(cluster.all::<Pod>().await.len(), 3, "the old one is still there");
    cluster.clear().await;
    let none = |set: &ReplicaSet| set.status.as_ref().unwrap().terminating_replicas == Some(0);
    cluster.when::<ReplicaSet>("web", none).await;
    cluster.living(2).await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn t_ctrl_6_scaling_down_takes_the_one_that_is_not_ready() {
    let cluster = Cluster::start().await;
    cluster.create::<ReplicaSet>(set(3, json!({}))).await;
    let pods = cluster.all_run(3).await;
    cluster.runs(&pods[1], false).await;
    cluster.patch::<ReplicaSet>("web", json!({ "spec": { "replicas": 2 } })).await;
    let left = cluster.living(2).await;
    assert!(!names(&left).contains(&names(&pods)[1]), "{:?}", names(&left));
    assert_eq!(
        cluster.event("SuccessfulDelete").await,
        format!("Deleted pod: {}", names(&pods)[1])
    );
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_2_c_4_a_bare_pod_is_adopted_and_a_relabelled_one_replaced() {
    let cluster = Cluster::start().await;
    let mut bare = template("web", "i");
    bare["metadata"]["name"] = json!("bare");
    bare["metadata"]["namespace"] = json!(NAMESPACE);
    cluster.create::<Pod>(bare).await;
    cluster.create::<ReplicaSet>(set(1, json!({}))).await;
    cluster.when::<Pod>("bare", |pod| owner(pod).as_deref() == Some("web")).await;
    cluster.living(1).await;
    let relabelled = json!({ "metadata": { "labels": { "app": "other" } } });
    cluster.patch::<Pod>("bare", relabelled).await;
    cluster.when::<Pod>("bare", |pod| owner(pod).is_none()).await;
    cluster.living(2).await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_12_a_ready_pod_is_available_after_min_ready_seconds() {
    let cluster = Cluster::start().await;
    cluster.create::<ReplicaSet>(set(1, json!({ "minReadySeconds": 10 }))).await;
    cluster.all_run(1).await;
    let ready = Instant::now();
    let available = |set: &ReplicaSet| set.status.as_ref().unwrap().available_replicas == Some(1);
    cluster.when::<ReplicaSet>("web", available).await;
    let after = ready.elapsed();
    assert!((9..=11).contains(&after.as_secs()), "{after:?}");
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_13_counters_that_others_wrote_are_put_right() {
    let cluster = Cluster::start().await;
    cluster.create::<ReplicaSet>(set(1, json!({}))).await;
    cluster.all_run(1).await;
    let ready = |set: &ReplicaSet| set.status.as_ref().unwrap().ready_replicas == Some(1);
    cluster.when::<ReplicaSet>("web", ready).await;
    let wrong = json!({ "status": { "readyReplicas": 0, "availableReplicas": 0,
        "conditions": [{ "type": "Mine", "status": "True" }] } });
    let patched = cluster.client.patch_status::<ReplicaSet>(&key("web"), &wrong).await.unwrap();
    assert_ne!(patched.status.unwrap().ready_replicas, Some(1));
    let set = cluster.when::<ReplicaSet>("web", ready).await;
    assert_eq!(set.status.unwrap().conditions.unwrap()[0].type_, "Mine", "C-14");
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_16_nothing_is_written_when_nothing_changes() {
    let mut cluster = Cluster::start().await;
    cluster.create::<ReplicaSet>(set(2, json!({}))).await;
    cluster.all_run(2).await;
    let ready = |set: &ReplicaSet| set.status.as_ref().unwrap().available_replicas == Some(2);
    let before = cluster.when::<ReplicaSet>("web", ready).await;
    cluster.restart_controllers().await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let after = cluster.get::<ReplicaSet>("web").await;
    assert_eq!(after.metadata.resource_version, before.metadata.resource_version);
    cluster.living(2).await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_21_c_26_a_refused_pod_is_said_in_a_condition_and_taken_back() {
    let cluster = Cluster::start().await;
    let quota = json!({ "metadata": { "namespace": NAMESPACE, "name": "q" },
                        "spec": { "hard": { "pods": "2" } } });
    cluster.client.create::<ResourceQuota>(&read(quota)).await.unwrap();
    let used = json!({ "status": { "hard": { "pods": "2" }, "used": { "pods": "0" } } });
    cluster.client.patch_status::<ResourceQuota>(&key("q"), &used).await.unwrap();
    let controller = json!({
        "metadata": { "namespace": NAMESPACE, "name": "web" },
        "spec": { "replicas": 3, "selector": { "app": "web" }, "template": template("web", "i") },
    });
    cluster.create::<ReplicationController>(controller).await;
    let failed = |rc: &ReplicationController| {
        let conditions = rc.status.as_ref().and_then(|status| status.conditions.as_ref());
        conditions.is_some_and(|c| c.iter().any(|c| c.reason.as_deref() == Some("FailedCreate")))
    };
    let rc = cluster.when::<ReplicationController>("web", failed).await;
    let condition = rc.status.unwrap().conditions.unwrap()[0].clone();
    assert!(condition.message.unwrap().contains("exceeded quota: q"));
    assert!(cluster.event("FailedCreate").await.starts_with("Error creating: pods \"web-"));
    cluster.patch::<ReplicationController>("web", json!({ "spec": { "replicas": 2 } })).await;
    cluster.when::<ReplicationController>("web", |rc| !failed(rc)).await;
    cluster.living(2).await;
    cluster.stop().await;
}
