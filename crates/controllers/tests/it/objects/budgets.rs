//! PodDisruptionBudgets and evictions, with a real server and a paused clock.

use super::cluster::{Cluster, key};
use super::faulty_connection::FaultyConnection;
use client::{DeleteOptions, ObjectKey};
use controllers::Options;
use http::Method;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use serde_json::{Value, json};
use std::time::Duration;
use testbed::Observed;
use tokio::time::Instant;

async fn budget(cluster: &Cluster, spec: Value) {
    let mut spec = spec;
    spec["selector"] = json!({ "matchLabels": { "app": "web" } });
    let meta = json!({ "namespace": "default", "name": "b" });
    cluster.create::<PodDisruptionBudget>(json!({ "metadata": meta, "spec": spec })).await;
}

async fn pod(cluster: &Cluster, name: &str, owner: Value) {
    let owned = if owner.is_null() { "no" } else { "yes" };
    let meta = json!({ "labels": { "app": "web", "owned": owned }, "ownerReferences": owner });
    cluster.running_pod("default", name, "n", json!({ "metadata": meta })).await;
}

/// currentHealthy/desiredHealthy of expectedPods, disruptionsAllowed
async fn says(budgets: &Observed<PodDisruptionBudget>, expected: &str) {
    budgets
        .when(&key("default", "b"), |budget| {
            let status = budget.and_then(|budget| budget.status.clone()).unwrap_or_default();
            let number = |number: Option<i32>| number.unwrap_or(-1);
            let text = format!(
                "{}/{} of {}, {}",
                number(status.current_healthy),
                number(status.desired_healthy),
                number(status.expected_pods),
                number(status.disruptions_allowed)
            );
            text == expected
        })
        .await;
}

fn owned_by(kind: &str, name: &str, uid: &Option<String>) -> Value {
    json!([{ "apiVersion": "apps/v1", "kind": kind, "name": name, "uid": uid, "controller": true }])
}

/// A label that only the pods of this test have.
fn workload(name: &str, replicas: Value) -> Value {
    let labels = json!({ "app": "web", "owned": "yes" });
    let spec = json!({ "containers": [{ "name": "c", "image": "i" }] });
    json!({
        "metadata": { "namespace": "default", "name": name },
        "spec": { "replicas": replicas, "selector": { "matchLabels": labels },
                  "template": { "metadata": { "labels": labels }, "spec": spec } },
    })
}

#[tokio::test(start_paused = true)]
async fn c_139_t_evict_12_a_budget_counts_and_evictions_spend_it() {
    let cluster = Cluster::start().await;
    let budgets = cluster.watch::<PodDisruptionBudget>();
    cluster.create::<Node>(json!({ "metadata": { "name": "n" } })).await;
    budget(&cluster, json!({ "minAvailable": 1 })).await;
    says(&budgets, "0/1 of 0, 0").await;
    assert_eq!(cluster.event("NoPods").await.message.as_deref(), Some("No matching pods found"));
    pod(&cluster, "a", Value::Null).await;
    pod(&cluster, "b", Value::Null).await;
    says(&budgets, "2/1 of 2, 1").await;

    let first = cluster.client.evict(&key("default", "a"), &DeleteOptions::default()).await;
    first.unwrap();
    says(&budgets, "1/1 of 2, 0").await;
    let second = cluster.client.evict(&key("default", "b"), &DeleteOptions::default()).await;
    assert!(second.unwrap_err().is_too_many_requests());
    // A pod that is being deleted needs no condition.
    let unmarked = |budget: Option<&PodDisruptionBudget>| {
        budget.is_some_and(|b| b.status.as_ref().is_some_and(|s| s.disrupted_pods.is_none()))
    };
    budgets.when(&key("default", "b"), unmarked).await;
    let budget = cluster.client.get::<PodDisruptionBudget>(&key("default", "b")).await.unwrap();
    let status = budget.status.unwrap();
    let condition = &status.conditions.unwrap()[0];
    let text = (condition.type_.as_str(), condition.status.as_str(), condition.reason.as_str());
    assert_eq!(text, ("DisruptionAllowed", "False", "InsufficientPods"));
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_140_expected_pods_come_from_the_scales_of_owners() {
    let cluster = Cluster::start().await;
    let budgets = cluster.watch::<PodDisruptionBudget>();
    let set: ReplicaSet = cluster.create(workload("rs", json!(1))).await;
    budget(&cluster, json!({ "maxUnavailable": "50%" })).await;
    // The scale counts, not the existing pods.
    pod(&cluster, "a", owned_by("ReplicaSet", "rs", &set.metadata.uid)).await;
    says(&budgets, "1/0 of 1, 1").await;
    pod(&cluster, "alone", Value::Null).await;
    let event = cluster.event("UnmanagedPods").await;
    let message = event.message.clone().unwrap();
    assert!(message.starts_with("Pods selected by this PodDisruptionBudget (selector: &LabelSelector{MatchLabels:map[string]string{app: web,},MatchExpressions:[]LabelSelectorRequirement{},}) were found to be unmanaged. "), "{message}");
    says(&budgets, "2/0 of 1, 2").await;

    let map: ConfigMap =
        cluster.create(json!({ "metadata": { "namespace": "default", "name": "odd" } })).await;
    let mut odd = owned_by("ConfigMap", "odd", &map.metadata.uid);
    odd[0]["apiVersion"] = "v1".into();
    pod(&cluster, "d", odd).await;
    budgets
        .when(&key("default", "b"), |budget| {
            let conditions = budget.and_then(|b| b.status.as_ref()?.conditions.clone());
            let why = "configmaps does not implement the scale subresource";
            let mut conditions = conditions.into_iter().flatten();
            conditions.any(|c| c.reason == "SyncFailed" && c.message == why)
        })
        .await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_140_a_temporary_error_of_an_owner_blocks_a_budget_temporarily() {
    let connection = FaultyConnection::default();
    let cluster = Cluster::through(Options::default(), |server| connection.client(server)).await;
    let budgets = cluster.watch::<PodDisruptionBudget>();
    let set: ReplicaSet = cluster.create(workload("rs", json!(2))).await;
    let owner = owned_by("ReplicaSet", "rs", &set.metadata.uid);
    pod(&cluster, "a", owner.clone()).await;
    budget(&cluster, json!({ "maxUnavailable": 1 })).await;
    says(&budgets, "1/1 of 2, 0").await;
    let path = "/apis/apps/v1/namespaces/default/replicasets/rs";
    connection.fail(5, Method::GET, path, (500, "InternalError"));
    pod(&cluster, "b", owner).await;
    let asked = Instant::now();
    let failed = |budget: Option<&PodDisruptionBudget>| {
        let conditions = budget.and_then(|b| b.status.as_ref()?.conditions.clone());
        conditions.into_iter().flatten().any(|condition| condition.reason == "SyncFailed")
    };
    budgets.when(&key("default", "b"), failed).await;
    cluster.event("CalculateExpectedPodCountFailed").await;
    says(&budgets, "2/1 of 2, 1").await;
    assert_eq!(connection.left(), 0);
    assert!(asked.elapsed() < Duration::from_secs(2), "{:?}", asked.elapsed());
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_140_the_scale_of_a_custom_owner_is_read_without_discovery_each_time() {
    let connection = FaultyConnection::default();
    let cluster = Cluster::through(Options::default(), |server| connection.client(server)).await;
    let budgets = cluster.watch::<PodDisruptionBudget>();
    // The scale subresource is read for a Deployment that owns pods directly, as custom resources do.
    let owner: Deployment = cluster.create(workload("d", json!(0))).await;
    let owner = owned_by("Deployment", "d", &owner.metadata.uid);
    budget(&cluster, json!({ "maxUnavailable": 1 })).await;
    pod(&cluster, "p", owner.clone()).await;
    says(&budgets, "1/0 of 0, 0").await;
    let before = connection.requests_to("/apis");
    for number in 2..=9 {
        pod(&cluster, &format!("p{number}"), owner.clone()).await;
        says(&budgets, &format!("{number}/0 of 0, 0")).await;
    }
    let asked = connection.requests_to("/apis") - before;
    assert!(asked <= 2, "{asked} requests for eight changes");
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn t_evict_13_a_pod_that_was_not_deleted_loses_its_disruption_condition() {
    let cluster = Cluster::start().await;
    let pods = cluster.watch::<Pod>();
    cluster.create::<Node>(json!({ "metadata": { "name": "n" } })).await;
    cluster.running_pod("default", "p", "n", json!({})).await;
    let mark = json!({ "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
                       "lastTransitionTime": clock::now_rfc3339() });
    cluster.status::<Pod>(&key("default", "p"), json!({ "conditions": [mark] })).await;
    let marked = tokio::time::Instant::now();
    let unmarked = |pod: Option<&Pod>| {
        let conditions = pod.and_then(|pod| pod.status.as_ref()?.conditions.clone());
        let mut conditions = conditions.into_iter().flatten();
        conditions
            .any(|c| c.type_ == "DisruptionTarget" && c.status == "False" && c.reason.is_none())
    };
    pods.when(&key("default", "p"), unmarked).await;
    assert!((119..=121).contains(&marked.elapsed().as_secs()), "{:?}", marked.elapsed());
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn t_ctrl_51_kube_node_lease_is_recreated() {
    let cluster = Cluster::start().await;
    let namespaces = cluster.watch::<k8s_openapi::api::core::v1::Namespace>();
    let lease = ObjectKey::cluster("kube-node-lease");
    namespaces.when(&lease, |namespace| namespace.is_some()).await;
    let before = namespaces.cache.get(&lease).unwrap();
    cluster.delete::<k8s_openapi::api::core::v1::Namespace>(&lease).await;
    let deleted = tokio::time::Instant::now();
    namespaces
        .when(&lease, |now| now.is_some_and(|now| now.metadata.uid != before.metadata.uid))
        .await;
    assert!(deleted.elapsed() < Duration::from_secs(60), "{:?}", deleted.elapsed());
    cluster.stop().await;
}
