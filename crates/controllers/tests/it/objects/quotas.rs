//! Usage of quotas, with a real server and a paused clock.

use super::cluster::{Cluster, key};
use client::ObjectKey;
use k8s_openapi::api::core::v1::{
    ConfigMap, Node, PersistentVolumeClaim, Pod, ResourceQuota, Service,
};
use k8s_openapi::api::rbac::v1::ClusterRole;
use serde_json::json;
use std::time::Duration;
use testbed::Observed;
use tokio::time::Instant;

async fn used(quotas: &Observed<ResourceQuota>, expected: &str) {
    quotas
        .when(&key("q", "q"), |quota| {
            let used = quota.and_then(|quota| quota.status.as_ref()?.used.clone());
            let used = used.unwrap_or_default();
            let each: Vec<String> =
                used.iter().map(|(name, n)| format!("{name}={}", n.0)).collect();
            each.join(" ") == expected
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn c_154_c_155_usage_of_deleted_objects_is_released() {
    let cluster = Cluster::start().await;
    let quotas = cluster.watch::<ResourceQuota>();
    cluster.namespace("q").await;
    cluster.create::<Node>(json!({ "metadata": { "name": "n" } })).await;
    let hard = json!({ "pods": "2", "services": "2", "count/configmaps": "5" });
    let meta = json!({ "namespace": "q", "name": "q" });
    cluster.create::<ResourceQuota>(json!({ "metadata": meta, "spec": { "hard": hard } })).await;
    used(&quotas, "count/configmaps=1 pods=0 services=0").await;
    cluster.running_pod("q", "a", "n", json!({})).await;
    cluster.running_pod("q", "b", "n", json!({})).await;
    let service = json!({ "metadata": { "namespace": "q", "name": "s" },
                          "spec": { "ports": [{ "port": 80 }] } });
    cluster.create::<Service>(service).await;
    used(&quotas, "count/configmaps=1 pods=2 services=1").await;

    cluster.status::<Pod>(&key("q", "a"), json!({ "phase": "Succeeded" })).await;
    used(&quotas, "count/configmaps=1 pods=1 services=1").await;
    let before = Instant::now();
    cluster.delete::<Service>(&key("q", "s")).await;
    used(&quotas, "count/configmaps=1 pods=1 services=0").await;
    assert!(before.elapsed() < Duration::from_secs(2), "{:?}", before.elapsed());
    cluster.create::<ConfigMap>(json!({ "metadata": { "namespace": "q", "name": "c" } })).await;
    used(&quotas, "count/configmaps=2 pods=1 services=0").await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_155_usage_of_shrunk_objects_is_released_at_once() {
    let cluster = Cluster::start().await;
    let quotas = cluster.watch::<ResourceQuota>();
    cluster.namespace("q").await;
    let hard = json!({ "services.loadbalancers": "1", "services.nodeports": "2",
                       "requests.storage": "9Gi" });
    let meta = json!({ "namespace": "q", "name": "q" });
    cluster.create::<ResourceQuota>(json!({ "metadata": meta, "spec": { "hard": hard } })).await;
    used(&quotas, "requests.storage=0 services.loadbalancers=0 services.nodeports=0").await;
    let service = json!({ "metadata": { "namespace": "q", "name": "s" },
                          "spec": { "type": "LoadBalancer", "ports": [{ "port": 80 }] } });
    cluster.create::<Service>(service).await;
    let size = json!({ "requests": { "storage": "1Gi" } });
    let claim = json!({
        "metadata": { "namespace": "q", "name": "c" },
        "spec": { "accessModes": ["ReadWriteOnce"], "storageClassName": "", "resources": size },
    });
    cluster.create::<PersistentVolumeClaim>(claim).await;
    // As while a claim is being expanded.
    let c = key("q", "c");
    let given = |size: &str| json!({ "allocatedResources": { "storage": size } });
    cluster.status::<PersistentVolumeClaim>(&c, given("5Gi")).await;
    used(&quotas, "requests.storage=5Gi services.loadbalancers=1 services.nodeports=1").await;
    let before = Instant::now();
    let inside = json!({ "spec": { "type": "ClusterIP" } });
    cluster.client.patch_merge::<Service>(&key("q", "s"), &inside).await.unwrap();
    used(&quotas, "requests.storage=5Gi services.loadbalancers=0 services.nodeports=0").await;
    cluster.status::<PersistentVolumeClaim>(&c, given("1Gi")).await;
    used(&quotas, "requests.storage=1Gi services.loadbalancers=0 services.nodeports=0").await;
    assert!(before.elapsed() < Duration::from_secs(5), "{:?}", before.elapsed());
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_156_usage_written_by_others_is_corrected_within_five_minutes() {
    let cluster = Cluster::start().await;
    let quotas = cluster.watch::<ResourceQuota>();
    cluster.namespace("q").await;
    let meta = json!({ "namespace": "q", "name": "q" });
    let spec = json!({ "hard": { "pods": "2" } });
    cluster.create::<ResourceQuota>(json!({ "metadata": meta, "spec": spec })).await;
    used(&quotas, "pods=0").await;
    cluster.status::<ResourceQuota>(&key("q", "q"), json!({ "hard": { "pods": "9" } })).await;
    let written = Instant::now();
    let limit = |quota: Option<&ResourceQuota>, text: &str| {
        let hard = quota.and_then(|quota| quota.status.as_ref()?.hard.clone());
        hard.is_some_and(|hard| hard["pods"].0 == text)
    };
    quotas.when(&key("q", "q"), |quota| limit(quota, "9")).await;
    quotas.when(&key("q", "q"), |quota| limit(quota, "2")).await;
    let after = written.elapsed();
    assert!((100..=300).contains(&after.as_secs()), "{after:?}");
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_147_aggregated_roles_are_filled() {
    let cluster = Cluster::start().await;
    let roles = cluster.watch::<ClusterRole>();
    let rule = |verb: &str| json!([{ "apiGroups": ["example.com"], "resources": ["widgets"], "verbs": [verb] }]);
    let labels = json!({ "rbac.authorization.k8s.io/aggregate-to-view": "true" });
    cluster
        .create::<ClusterRole>(json!({
            "metadata": { "name": "widgets", "labels": labels }, "rules": rule("get"),
        }))
        .await;
    let can = |role: Option<&ClusterRole>, verb: &str| {
        let mut rules = role.iter().flat_map(|role| role.rules.iter().flatten());
        rules.any(|rule| rule.resources == Some(vec!["widgets".into()]) && rule.verbs == [verb])
    };
    let view = ObjectKey::cluster("view");
    roles.when(&view, |role| can(role, "get")).await;
    let change = json!({ "rules": rule("list") });
    let widgets = ObjectKey::cluster("widgets");
    cluster.client.patch_merge::<ClusterRole>(&widgets, &change).await.unwrap();
    roles.when(&view, |role| can(role, "list") && !can(role, "get")).await;
    // Aggregation is transitive: edit contains view, admin contains edit.
    roles.when(&ObjectKey::cluster("admin"), |role| can(role, "list")).await;
    cluster.stop().await;
}
