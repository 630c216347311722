//! The garbage collector, with a real server and a paused clock.

use super::cluster::{Cluster, key};
use client::{ApiResource, DeleteOptions, ObjectKey, PartialObject, Propagation, Selection};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use k8s_openapi::api::rbac::v1::ClusterRole;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::{Value, json};
use std::time::Duration;

async fn config_map(cluster: &Cluster, name: &str, more: Value) -> String {
    let mut meta = json!({ "namespace": "default", "name": name });
    meta.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let made: ConfigMap = cluster.create(json!({ "metadata": meta })).await;
    made.metadata.uid.unwrap()
}

fn owned_by(name: &str, uid: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": uid,
            "blockOwnerDeletion": true })
}

async fn delete(cluster: &Cluster, name: &str, propagation: Propagation) {
    let options = DeleteOptions::default().propagation(propagation);
    cluster.client.delete::<ConfigMap>(&key("default", name), &options).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn t_ctrl_44_dependents_are_deleted_with_their_last_owner() {
    let cluster = Cluster::start().await;
    let maps = cluster.watch::<ConfigMap>();
    let first = config_map(&cluster, "first", json!({})).await;
    let second = config_map(&cluster, "second", json!({})).await;
    let both = json!([owned_by("first", &first), owned_by("second", &second)]);
    config_map(&cluster, "dependent", json!({ "ownerReferences": both })).await;
    let dependent = key("default", "dependent");

    delete(&cluster, "first", Propagation::Background).await;
    maps.when(&dependent, |map| {
        let owners = map.and_then(|map| map.metadata.owner_references.as_ref());
        owners.is_some_and(|owners| owners.len() == 1 && owners[0].uid == second)
    })
    .await;
    delete(&cluster, "second", Propagation::Background).await;
    maps.gone(&dependent).await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn t_ctrl_44_an_owner_that_never_existed_does_not_count() {
    let cluster = Cluster::start().await;
    let maps = cluster.watch::<ConfigMap>();
    config_map(&cluster, "there", json!({})).await;
    let wrong = json!([owned_by("there", "another-uid")]);
    config_map(&cluster, "dependent", json!({ "ownerReferences": wrong })).await;
    maps.gone(&key("default", "dependent")).await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_160_an_owner_of_an_unknown_kind_keeps_its_dependents() {
    let cluster = Cluster::start().await;
    let owner =
        json!({ "apiVersion": "none.example.com/v1", "kind": "None", "name": "n", "uid": "u" });
    config_map(&cluster, "dependent", json!({ "ownerReferences": [owner] })).await;
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert!(cluster.names::<ConfigMap>("default").await.contains(&"dependent".to_owned()));
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn t_ctrl_45_collected_pods_get_their_grace_period() {
    let cluster = Cluster::start().await;
    let pods = cluster.watch::<Pod>();
    let owner = config_map(&cluster, "owner", json!({})).await;
    let meta = json!({ "metadata": { "ownerReferences": [owned_by("owner", &owner)] },
                       "spec": { "terminationGracePeriodSeconds": 17 } });
    cluster.running_pod("default", "p", "n", meta).await;
    delete(&cluster, "owner", Propagation::Background).await;
    pods.when(&key("default", "p"), |pod| {
        pod.is_some_and(|pod| pod.metadata.deletion_grace_period_seconds == Some(17))
    })
    .await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn t_ctrl_46_foreground_deletion_deletes_dependents_before_their_owner() {
    let cluster = Cluster::start().await;
    let (maps, pods) = (cluster.watch::<ConfigMap>(), cluster.watch::<Pod>());
    let top = config_map(&cluster, "top", json!({})).await;
    let middle =
        config_map(&cluster, "middle", json!({ "ownerReferences": [owned_by("top", &top)] })).await;
    let meta = json!({ "metadata": { "ownerReferences": [owned_by("middle", &middle)] } });
    cluster.running_pod("default", "p", "n", meta).await;

    delete(&cluster, "top", Propagation::Foreground).await;
    let pod = key("default", "p");
    pods.when(&pod, |pod| pod.is_some_and(|pod| pod.metadata.deletion_timestamp.is_some())).await;
    tokio::time::sleep(Duration::from_secs(20)).await;
    let there = cluster.names::<ConfigMap>("default").await;
    assert!(there.contains(&"top".into()) && there.contains(&"middle".into()), "{there:?}");

    cluster.client.delete::<Pod>(&pod, &DeleteOptions::default().grace(0)).await.unwrap();
    maps.gone(&key("default", "middle")).await;
    maps.gone(&key("default", "top")).await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn t_ctrl_47_orphans_stay_without_their_owner() {
    let cluster = Cluster::start().await;
    let maps = cluster.watch::<ConfigMap>();
    let owner = config_map(&cluster, "owner", json!({})).await;
    for name in ["a", "b"] {
        let owners = json!({ "ownerReferences": [owned_by("owner", &owner)] });
        config_map(&cluster, name, owners).await;
    }
    delete(&cluster, "owner", Propagation::Orphan).await;
    maps.gone(&key("default", "owner")).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    for name in ["a", "b"] {
        let map: ConfigMap = cluster.client.get(&key("default", name)).await.unwrap();
        assert_eq!(map.metadata.owner_references, None, "{name}");
        assert_eq!(map.metadata.deletion_timestamp, None, "{name}");
    }
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_161_t_ctrl_48_an_owner_in_another_namespace_does_not_count_and_is_reported() {
    let cluster = Cluster::start().await;
    cluster.namespace("other").await;
    let owner = config_map(&cluster, "owner", json!({})).await;
    let secrets = cluster.watch::<Secret>();
    let meta = json!({ "namespace": "other", "name": "stray", "ownerReferences": [owned_by("owner", &owner)] });
    cluster.create::<Secret>(json!({ "metadata": meta })).await;
    secrets.gone(&key("other", "stray")).await;
    let event = cluster.event("OwnerRefInvalidNamespace").await;
    let expected = format!(
        "ownerRef [v1/ConfigMap, namespace: other, name: owner, uid: {owner}] does not exist in namespace \"other\""
    );
    assert_eq!(event.message.as_deref(), Some(expected.as_str()));
    assert_eq!(event.type_.as_deref(), Some("Warning"));
    assert_eq!(event.involved_object.kind.as_deref(), Some("Secret"));

    let role =
        json!({ "metadata": { "name": "wide", "ownerReferences": [owned_by("owner", &owner)] } });
    cluster.create::<ClusterRole>(role).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let kept = cluster.client.find::<ClusterRole>(&ObjectKey::cluster("wide")).await.unwrap();
    assert!(kept.is_some(), "an owner in a namespace does not count for a cluster-scoped object");
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_162_a_cycle_of_owners_is_deleted_completely() {
    let cluster = Cluster::start().await;
    let maps = cluster.watch::<ConfigMap>();
    let one = config_map(&cluster, "one", json!({})).await;
    let two =
        config_map(&cluster, "two", json!({ "ownerReferences": [owned_by("one", &one)] })).await;
    let three =
        config_map(&cluster, "three", json!({ "ownerReferences": [owned_by("two", &two)] })).await;
    let close = json!({ "metadata": { "ownerReferences": [owned_by("three", &three)] } });
    cluster.client.patch_merge::<ConfigMap>(&key("default", "one"), &close).await.unwrap();
    delete(&cluster, "one", Propagation::Foreground).await;
    for name in ["one", "two", "three"] {
        maps.gone(&key("default", name)).await;
    }
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_159_custom_resources_are_owners_and_dependents() {
    let cluster = Cluster::start().await;
    let maps = cluster.watch::<ConfigMap>();
    let schema = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    cluster
        .create::<CustomResourceDefinition>(json!({
            "metadata": { "name": "widgets.example.com" },
            "spec": {
                "group": "example.com", "scope": "Namespaced",
                "names": { "kind": "Widget", "plural": "widgets" },
                "versions": [{ "name": "v1", "served": true, "storage": true,
                               "schema": { "openAPIV3Schema": schema } }],
            },
        }))
        .await;
    // Wait for the next discovery.
    tokio::time::sleep(Duration::from_secs(35)).await;
    let widgets = ApiResource {
        group: "example.com".into(),
        version: "v1".into(),
        api_version: "example.com/v1".into(),
        kind: "Widget".into(),
        plural: "widgets".into(),
    };
    let owner = config_map(&cluster, "owner", json!({})).await;
    let widget = json!({
        "apiVersion": "example.com/v1", "kind": "Widget",
        "metadata": { "namespace": "default", "name": "w",
                      "ownerReferences": [owned_by("owner", &owner)] },
    });
    let request = http::Request::post("/apis/example.com/v1/namespaces/default/widgets")
        .header("content-type", "application/json")
        .body(serde_json::to_vec(&widget).unwrap())
        .unwrap();
    let made: Value = cluster.client.kube().request(request).await.unwrap();
    let uid = made["metadata"]["uid"].as_str().unwrap();
    let of_widget =
        json!({ "apiVersion": "example.com/v1", "kind": "Widget", "name": "w", "uid": uid });
    config_map(&cluster, "leaf", json!({ "ownerReferences": [of_widget] })).await;

    delete(&cluster, "owner", Propagation::Background).await;
    maps.gone(&key("default", "leaf")).await;
    let left: Vec<PartialObject> =
        cluster.client.list_partial(&widgets, &Selection::namespace("default")).await.unwrap();
    assert!(left.is_empty(), "{left:?}");
    cluster.stop().await;
}
