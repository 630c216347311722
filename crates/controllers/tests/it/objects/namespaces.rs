//! Deletion of namespaces, with a real server and a paused clock.

use super::cluster::{Cluster, key};
use client::{Client, DeleteOptions, ObjectKey, Selection};
use controllers::Options;
use http_body_util::{BodyExt, Either, Full};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, Secret, Service, ServiceAccount};
use serde_json::{Value, json};
use server::InProcessService;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::Instant;
use tower::{BoxError, Service as _};

fn condition(namespace: &Namespace, type_: &str) -> Option<String> {
    let mut conditions = namespace.status.as_ref()?.conditions.iter().flatten();
    let found = conditions.find(|condition| condition.type_ == type_)?;
    Some(format!("{} {}", found.status, found.message.as_deref().unwrap_or_default()))
}

async fn config_map(cluster: &Cluster, namespace: &str, name: &str, finalizers: Value) {
    let meta = json!({ "namespace": namespace, "name": name, "finalizers": finalizers });
    cluster.create::<ConfigMap>(json!({ "metadata": meta })).await;
}

#[tokio::test(start_paused = true)]
async fn t_ctrl_53_an_empty_namespace_is_gone_five_seconds_after_its_deletion() {
    let cluster = Cluster::start().await;
    let namespaces = cluster.watch::<Namespace>();
    cluster.namespace("away").await;
    config_map(&cluster, "away", "c", json!([])).await;
    let before = Instant::now();
    cluster.delete::<Namespace>(&ObjectKey::cluster("away")).await;
    namespaces.gone(&ObjectKey::cluster("away")).await;
    let took = before.elapsed();
    assert!((5..7).contains(&took.as_secs()), "{took:?}");
    assert!(cluster.names::<ConfigMap>("away").await.is_empty());
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn t_ctrl_53_t_edge_21_pods_are_deleted_first_and_counted_while_they_remain() {
    let cluster = Cluster::start().await;
    let (namespaces, away) = (cluster.watch::<Namespace>(), ObjectKey::cluster("away"));
    cluster.namespace("away").await;
    config_map(&cluster, "away", "c", json!([])).await;
    cluster.create::<Secret>(json!({ "metadata": { "namespace": "away", "name": "s" } })).await;
    for name in ["p1", "p2"] {
        cluster.running_pod("away", name, "n", json!({})).await;
    }
    cluster.delete::<Namespace>(&away).await;
    let counted = |namespace: Option<&Namespace>, expected: &str| {
        let text = namespace.and_then(|n| condition(n, "NamespaceContentRemaining"));
        text.as_deref() == Some(expected)
    };
    let two = "True Some resources are remaining: pods. has 2 resource instances";
    namespaces.when(&away, |namespace| counted(namespace, two)).await;
    let pod: Pod = cluster.client.get(&key("away", "p1")).await.unwrap();
    assert_eq!(pod.metadata.deletion_grace_period_seconds, Some(30), "its own grace");

    // The node terminates them one after the other.
    let now = DeleteOptions::default().grace(0);
    cluster.client.delete::<Pod>(&key("away", "p1"), &now).await.unwrap();
    let one = "True Some resources are remaining: pods. has 1 resource instances";
    namespaces.when(&away, |namespace| counted(namespace, one)).await;
    assert_eq!(cluster.names::<Secret>("away").await, ["s"], "nothing else before the pods");
    assert!(cluster.names::<ConfigMap>("away").await.contains(&"c".to_owned()));

    let last = Instant::now();
    cluster.client.delete::<Pod>(&key("away", "p2"), &now).await.unwrap();
    namespaces.gone(&away).await;
    assert!(last.elapsed() < Duration::from_secs(1), "at once: {:?}", last.elapsed());
    assert!(cluster.names::<Secret>("away").await.is_empty());
    cluster.stop().await;
}

/// As upstream: nothing else is deleted before the last pod, and a pod with a finalizer stays. The conditions of the
/// namespace name the finalizer.
#[tokio::test(start_paused = true)]
async fn t_edge_23_a_pod_with_a_finalizer_blocks_the_rest_of_its_namespace() {
    let cluster = Cluster::start().await;
    let (namespaces, away) = (cluster.watch::<Namespace>(), ObjectKey::cluster("away"));
    cluster.namespace("away").await;
    cluster.create::<Secret>(json!({ "metadata": { "namespace": "away", "name": "s" } })).await;
    let held = json!({ "metadata": { "finalizers": ["example.com/hold"] } });
    cluster.running_pod("away", "p", "n", held).await;
    cluster.delete::<Namespace>(&away).await;
    let ending = cluster.watch::<Pod>();
    ending
        .when(&key("away", "p"), |pod| pod.is_some_and(|p| p.metadata.deletion_timestamp.is_some()))
        .await;
    let now = DeleteOptions::default().grace(0);
    cluster.client.delete::<Pod>(&key("away", "p"), &now).await.unwrap();
    let holds = "True Some content in the namespace has finalizers remaining: \
                 example.com/hold in 1 resource instances";
    namespaces
        .when(&away, |namespace| {
            let text = namespace.and_then(|n| condition(n, "NamespaceFinalizersRemaining"));
            text.as_deref() == Some(holds)
        })
        .await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(cluster.names::<Secret>("away").await, ["s"], "nothing else before the pod");
    let free = json!({ "metadata": { "finalizers": null } });
    cluster.client.patch_merge::<Pod>(&key("away", "p"), &free).await.unwrap();
    namespaces.gone(&away).await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn t_ctrl_55_w_69_conditions_name_the_finalizers_that_block_a_namespace() {
    let cluster = Cluster::start().await;
    let (namespaces, away) = (cluster.watch::<Namespace>(), ObjectKey::cluster("away"));
    cluster.namespace("away").await;
    config_map(&cluster, "away", "stuck", json!(["example.com/hold"])).await;
    cluster.delete::<Namespace>(&away).await;
    let held = "True Some content in the namespace has finalizers remaining: \
                example.com/hold in 1 resource instances";
    namespaces
        .when(&away, |namespace| {
            let text = namespace.and_then(|n| condition(n, "NamespaceFinalizersRemaining"));
            text.as_deref() == Some(held)
        })
        .await;
    let namespace: Namespace = cluster.client.get(&away).await.unwrap();
    let remaining = condition(&namespace, "NamespaceContentRemaining").unwrap();
    let expected = "True Some resources are remaining: configmaps. has 1 resource instances";
    assert_eq!(remaining, expected);
    assert_eq!(namespace.status.unwrap().phase.as_deref(), Some("Terminating"));

    tokio::time::sleep(Duration::from_secs(600)).await;
    let later: Namespace = cluster.client.get(&away).await.unwrap();
    let version = namespace.metadata.resource_version;
    assert_eq!(later.metadata.resource_version, version, "what stays is not written");

    let free = json!({ "metadata": { "finalizers": null } });
    cluster.client.patch_merge::<ConfigMap>(&key("away", "stuck"), &free).await.unwrap();
    let freed = Instant::now();
    namespaces.gone(&away).await;
    assert!(freed.elapsed() <= Duration::from_secs(9), "T-CTRL-54: {:?}", freed.elapsed());
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn t_ctrl_64_c_144_default_objects_of_a_namespace_are_recreated() {
    let cluster = Cluster::start().await;
    let (maps, accounts) = (cluster.watch::<ConfigMap>(), cluster.watch::<ServiceAccount>());
    cluster.namespace("new").await;
    let (root, account) = (key("new", "kube-root-ca.crt"), key("new", "default"));
    let made: ConfigMap = cluster.client.get(&root).await.unwrap();
    let edit = json!({ "data": { "ca.crt": "forged", "more": "x" } });
    let edited = cluster.client.patch_merge::<ConfigMap>(&root, &edit).await.unwrap();
    maps.when(&root, |map| {
        map.is_some_and(|map| {
            map.data == made.data
                && map.metadata.resource_version != edited.metadata.resource_version
        })
    })
    .await;
    let uid = cluster.client.get::<ServiceAccount>(&account).await.unwrap().metadata.uid;
    cluster.delete::<ServiceAccount>(&account).await;
    cluster.delete::<ConfigMap>(&root).await;
    accounts.when(&account, |now| now.is_some_and(|now| now.metadata.uid != uid)).await;
    maps.when(&root, |map| map.is_some_and(|map| map.metadata.uid != made.metadata.uid)).await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn t_ctrl_63_the_kubernetes_service_is_recreated_with_its_address() {
    let cluster = Cluster::start().await;
    let services = cluster.watch::<Service>();
    let own = key("default", "kubernetes");
    let before: Service = cluster.client.get(&own).await.unwrap();
    cluster.delete::<Service>(&own).await;
    let deleted = Instant::now();
    services.when(&own, |now| now.is_some_and(|now| now.metadata.uid != before.metadata.uid)).await;
    let after: Service = cluster.client.get(&own).await.unwrap();
    assert_eq!(after.spec.unwrap().cluster_ip, before.spec.unwrap().cluster_ip);
    assert!(deleted.elapsed() < Duration::from_secs(10), "{:?}", deleted.elapsed());
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_143_a_new_namespace_has_two_objects_and_a_label() {
    let cluster = Cluster::start().await;
    cluster.namespace("new").await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let namespace: Namespace = cluster.client.get(&ObjectKey::cluster("new")).await.unwrap();
    let labels = namespace.metadata.labels.unwrap();
    assert_eq!(labels.len(), 1);
    assert_eq!(labels["kubernetes.io/metadata.name"], "new");
    let kinds = cluster.client.discover().await.unwrap().kinds;
    let mut there = Vec::new();
    for kind in
        kinds.iter().filter(|kind| kind.namespaced && kind.preferred && kind.supports("list"))
    {
        let all = cluster.client.list_partial(&kind.resource, &Selection::namespace("new")).await;
        let named = |name: Option<String>| format!("{} {}", kind.resource.plural, name.unwrap());
        there.extend(all.unwrap().into_iter().map(|object| named(object.metadata.name)));
    }
    there.sort();
    assert_eq!(there, ["configmaps kube-root-ca.crt", "serviceaccounts default"]);
    cluster.stop().await;
}

/// A connection to the server on which, while `dead`, an API group does not respond.
fn with_a_dead_group(service: InProcessService, dead: Arc<AtomicBool>) -> Client {
    type Request = http::Request<kube::client::Body>;
    Client::in_process(tower::service_fn(move |request: Request| {
        let (mut service, dead) = (service.clone(), dead.clone());
        async move {
            let groups = request.uri().path() == "/apis" && dead.load(Ordering::SeqCst);
            let response = service.call(request).await.map_err(BoxError::from)?;
            if !groups {
                return Ok::<_, BoxError>(response.map(Either::Left));
            }
            let (mut parts, body) = response.into_parts();
            let bytes = body.collect().await.map_err(BoxError::from)?.to_bytes();
            let mut groups: Value = serde_json::from_slice(&bytes)?;
            groups["items"].as_array_mut().unwrap().push(json!({
                "metadata": { "name": "dead.example.com" },
                "versions": [{ "version": "v1", "freshness": "Stale", "resources": [] }],
            }));
            parts.headers.remove(http::header::CONTENT_LENGTH);
            let body = Full::from(groups.to_string());
            Ok(http::Response::from_parts(parts, Either::Right(body)))
        }
    }))
}

#[tokio::test(start_paused = true)]
async fn t_ctrl_56_an_unavailable_api_group_blocks_a_namespace() {
    let dead = Arc::new(AtomicBool::new(true));
    let way = dead.clone();
    let cluster =
        Cluster::through(Options::default(), |service| with_a_dead_group(service, way)).await;
    let (namespaces, away) = (cluster.watch::<Namespace>(), ObjectKey::cluster("away"));
    cluster.namespace("away").await;
    config_map(&cluster, "away", "c", json!([])).await;
    cluster.delete::<Namespace>(&away).await;
    let failed = |namespace: Option<&Namespace>| {
        let text = namespace.and_then(|n| condition(n, "NamespaceDeletionDiscoveryFailure"));
        text.is_some_and(|text| text.starts_with("True ") && text.contains("dead.example.com/v1"))
    };
    namespaces.when(&away, failed).await;
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert!(
        cluster.names::<ConfigMap>("away").await.is_empty(),
        "objects of other groups are deleted"
    );
    assert!(failed(namespaces.cache.get(&away).as_deref()), "and the namespace stays");
    dead.store(false, Ordering::SeqCst);
    namespaces.gone(&away).await;
    cluster.stop().await;
}
