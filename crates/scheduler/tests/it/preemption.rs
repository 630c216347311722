//! Preemption, with a real server (N-199, N-200).

use crate::cluster::{Cluster, condition, node_of, read};
use client::ObjectKey;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use serde_json::{Value, json};

async fn classes(cluster: &Cluster) {
    for (name, value) in [("low", 1), ("high", 1000)] {
        let class = json!({ "metadata": { "name": name }, "value": value });
        cluster.client.create::<PriorityClass>(&read(class)).await.unwrap();
    }
}

fn asking(name: &str, class: &str, cpu: &str) -> Value {
    json!({
        "metadata": { "name": name, "labels": { "app": name } },
        "spec": {
            "priorityClassName": class,
            "containers": [{ "name": "c", "image": "i",
                             "resources": { "requests": { "cpu": cpu } } }],
        },
    })
}

/// N-201: admission resolves the priority of the class. T-EVICT-14: the condition of a preempted pod.
#[tokio::test]
async fn n_200_a_victim_gets_a_condition_and_terminates_gracefully_while_the_pod_waits() {
    let cluster = Cluster::start().await;
    classes(&cluster).await;
    cluster.node("n1", json!({})).await;
    let mut low = asking("low", "low", "3");
    low["metadata"]["finalizers"] = json!(["example.com/hold"]);
    low["spec"]["terminationGracePeriodSeconds"] = json!(7);
    cluster.create(low).await;
    cluster.bound("low").await;
    let high = cluster.create(asking("high", "high", "2")).await;

    let victim = cluster.when("low", |pod| pod.metadata.deletion_timestamp.is_some()).await;
    assert_eq!(victim.metadata.deletion_grace_period_seconds, Some(7));
    let why = condition(&victim, "DisruptionTarget").unwrap();
    assert_eq!((&*why.status, why.reason.as_deref()), ("True", Some("PreemptionByScheduler")));
    assert_eq!(
        why.message.as_deref(),
        Some("default-scheduler: preempting to accommodate a higher priority pod")
    );
    let event = cluster.event("low", "Preempted").await;
    let uid = high.metadata.uid.unwrap();
    assert_eq!(event.message, Some(format!("Preempted by pod {uid} on node n1")));
    assert_eq!(event.action.as_deref(), Some("Preempting"));

    let nominated = |pod: &Pod| {
        let status = pod.status.as_ref();
        status.and_then(|status| status.nominated_node_name.as_deref()) == Some("n1")
    };
    let waiting = cluster.when("high", nominated).await;
    assert_eq!(node_of(&waiting), None, "the victim is still there");
    assert_eq!(cluster.unscheduled("high").await, "0/1 nodes are available: 1 Insufficient cpu.");

    let release = json!({ "metadata": { "finalizers": null } });
    let key = ObjectKey::new("default", "low");
    cluster.client.patch_merge::<Pod>(&key, &release).await.unwrap();
    cluster.forget("low").await;
    assert_eq!(cluster.bound("high").await, "n1");
    let bound = cluster.when("high", |pod| node_of(pod).is_some()).await;
    assert_eq!(bound.status.as_ref().unwrap().nominated_node_name, None);
    cluster.stop().await;
}

#[tokio::test]
async fn n_199_a_pod_protected_by_a_budget_stays_if_there_is_another_victim() {
    let cluster = Cluster::start().await;
    classes(&cluster).await;
    cluster.node("n1", json!({})).await;
    let budget = json!({
        "metadata": { "namespace": "default", "name": "guard" },
        "spec": { "minAvailable": 1, "selector": { "matchLabels": { "app": "guarded" } } },
    });
    cluster.client.create::<PodDisruptionBudget>(&read(budget)).await.unwrap();
    cluster.create(asking("guarded", "low", "2")).await;
    cluster.create(asking("free", "low", "2")).await;
    cluster.bound("guarded").await;
    cluster.bound("free").await;
    cluster.create(asking("high", "high", "2")).await;
    cluster.event("free", "Preempted").await;
    cluster.when("free", |pod| pod.metadata.deletion_timestamp.is_some()).await;
    let guarded = cluster.when("guarded", |_| true).await;
    assert_eq!(guarded.metadata.deletion_timestamp, None);
    cluster.forget("free").await;
    assert_eq!(cluster.bound("high").await, "n1");
    cluster.stop().await;
}

#[tokio::test]
async fn n_198_a_pod_with_policy_never_does_not_preempt() {
    let cluster = Cluster::start().await;
    let class = json!({ "metadata": { "name": "polite" }, "value": 1000,
                        "preemptionPolicy": "Never" });
    cluster.client.create::<PriorityClass>(&read(class)).await.unwrap();
    classes(&cluster).await;
    cluster.node("n1", json!({})).await;
    cluster.create(asking("low", "low", "3")).await;
    cluster.bound("low").await;
    cluster.create(asking("high", "polite", "2")).await;
    assert_eq!(
        cluster.unscheduled("high").await,
        "0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate, preemption: \
         not eligible due to preemptionPolicy=Never."
    );
    let low = cluster.when("low", |_| true).await;
    assert_eq!(low.metadata.deletion_timestamp, None);
    cluster.stop().await;
}
