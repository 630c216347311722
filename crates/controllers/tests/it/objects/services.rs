//! EndpointSlices and Endpoints of Services, with a real server and a paused clock.

use super::cluster::{Cluster, key};
use super::faulty_connection::FaultyConnection;
use client::{DeleteOptions, ObjectKey, Selection};
use controllers::Options;
use k8s_openapi::api::core::v1::{EndpointAddress, Endpoints, Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde_json::{Value, json};
use std::time::Duration;
use testbed::Observed;
use tokio::time::Instant;

const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";

async fn service(cluster: &Cluster, name: &str, more: Value) {
    let mut spec = json!({ "selector": { "app": name }, "ports": [{ "port": 80 }] });
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let meta = json!({ "namespace": "default", "name": name });
    cluster.create::<Service>(json!({ "metadata": meta, "spec": spec })).await;
}

async fn pod(cluster: &Cluster, name: &str, app: &str) {
    let meta = json!({ "metadata": { "labels": { "app": app } } });
    cluster.running_pod("default", name, "n1", meta).await;
}

fn service_name(slice: &EndpointSlice) -> Option<&str> {
    slice.metadata.labels.as_ref()?.get("kubernetes.io/service-name").map(String::as_str)
}

/// The slices of a Service as text: each endpoint's pod and its conditions.
fn text(slices: &[std::sync::Arc<EndpointSlice>], service: &str) -> Vec<String> {
    let of_service = slices.iter().filter(|slice| service_name(slice) == Some(service));
    let mut all: Vec<String> = of_service
        .flat_map(|slice| slice.endpoints.iter().flatten())
        .map(|endpoint| {
            let conditions = endpoint.conditions.as_ref().unwrap();
            let word =
                |name: &'static str, set: Option<bool>| if set == Some(true) { name } else { "" };
            let target = endpoint.target_ref.as_ref().and_then(|target| target.name.clone());
            format!(
                "{} {}{}{}",
                target.unwrap_or_else(|| endpoint.addresses[0].clone()),
                word("r", conditions.ready),
                word("s", conditions.serving),
                word("t", conditions.terminating)
            )
        })
        .collect();
    all.sort();
    all
}

async fn slices_say(slices: &Observed<EndpointSlice>, service: &str, expected: &[&str]) {
    slices.all(|all| text(all, service) == expected).await;
}

fn addresses(endpoints: Option<&Endpoints>) -> Vec<String> {
    let subsets = endpoints.iter().flat_map(|endpoints| endpoints.subsets.iter().flatten());
    let all = subsets.flat_map(|subset| subset.addresses.iter().flatten());
    let name = |address: &EndpointAddress| address.target_ref.as_ref()?.name.clone();
    let mut names: Vec<String> = all.filter_map(name).collect();
    names.sort();
    names
}

#[tokio::test(start_paused = true)]
async fn t_net_1_t_net_2_t_net_10_w_13_a_terminating_pod_leaves_endpoints_and_stays_in_its_slice() {
    let cluster = Cluster::start().await;
    let (slices, endpoints) = (cluster.watch::<EndpointSlice>(), cluster.watch::<Endpoints>());
    cluster.create::<Node>(json!({ "metadata": { "name": "n1" } })).await;
    service(&cluster, "web", json!({})).await;
    slices.all(|all| all.iter().any(|s| s.metadata.generate_name.as_deref() == Some("web-"))).await;
    let web = key("default", "web");
    endpoints.when(&web, |endpoints| endpoints.is_some()).await;
    pod(&cluster, "a", "web").await;
    pod(&cluster, "b", "web").await;
    pod(&cluster, "c", "other").await;
    slices_say(&slices, "web", &["a rs", "b rs"]).await;
    endpoints.when(&web, |endpoints| addresses(endpoints) == ["a", "b"]).await;

    let changed_at = Instant::now();
    cluster.delete::<Pod>(&key("default", "a")).await;
    slices_say(&slices, "web", &["a st", "b rs"]).await;
    endpoints.when(&web, |endpoints| addresses(endpoints) == ["b"]).await;
    assert!(changed_at.elapsed() < Duration::from_secs(1), "T-NET-8: {:?}", changed_at.elapsed());
    let slice = slices.find(|slice| slice.metadata.generate_name.as_deref() == Some("web-")).await;
    let marked = |slice: &EndpointSlice| {
        let annotations = slice.metadata.annotations.clone().unwrap_or_default();
        annotations.contains_key("endpoints.kubernetes.io/last-change-trigger-time")
    };
    assert!(!marked(&slice), "T-NET-9: a deletion is no trigger");

    // T-NET-5: the terminating pod is no longer ready.
    let lost = json!({ "conditions": [{ "type": "Ready", "status": "False" }] });
    cluster.status::<Pod>(&key("default", "a"), lost).await;
    slices_say(&slices, "web", &["a t", "b rs"]).await;
    // T-NET-3: its containers have terminated.
    cluster.status::<Pod>(&key("default", "a"), json!({ "phase": "Succeeded" })).await;
    slices_say(&slices, "web", &["b rs"]).await;
    // T-NET-7: the pod does not match any more.
    let relabel = json!({ "metadata": { "labels": { "app": "none" } } });
    cluster.client.patch_merge::<Pod>(&key("default", "b"), &relabel).await.unwrap();
    slices_say(&slices, "web", &[]).await;

    // T-NET-12: Endpoints are deleted by name, slices by owner.
    cluster.delete::<Service>(&web).await;
    endpoints.gone(&web).await;
    slices.all(|all| all.iter().all(|s| s.metadata.generate_name.as_deref() != Some("web-"))).await;
    cluster.stop().await;
}

/// T-NET-1 to T-NET-5, C-176, C-179: endpoints stay current while a Service is being deleted.
#[tokio::test(start_paused = true)]
async fn t_net_2_t_net_10_a_service_with_a_finalizer_keeps_its_endpoints_current() {
    let cluster = Cluster::start().await;
    let (slices, endpoints) = (cluster.watch::<EndpointSlice>(), cluster.watch::<Endpoints>());
    cluster.create::<Node>(json!({ "metadata": { "name": "n1" } })).await;
    service(&cluster, "web", json!({})).await;
    let web = key("default", "web");
    pod(&cluster, "a", "web").await;
    slices_say(&slices, "web", &["a rs"]).await;
    endpoints.when(&web, |endpoints| addresses(endpoints) == ["a"]).await;
    let hold = json!({ "metadata": { "finalizers": ["example.com/held"] } });
    cluster.client.patch_merge::<Service>(&web, &hold).await.unwrap();
    cluster.delete::<Service>(&web).await;

    cluster.delete::<Pod>(&key("default", "a")).await;
    slices_say(&slices, "web", &["a st"]).await;
    endpoints.when(&web, |endpoints| addresses(endpoints).is_empty()).await;
    pod(&cluster, "b", "web").await;
    slices_say(&slices, "web", &["a st", "b rs"]).await;
    endpoints.when(&web, |endpoints| addresses(endpoints) == ["b"]).await;
    let now = DeleteOptions::default().grace(0);
    cluster.client.delete::<Pod>(&key("default", "a"), &now).await.unwrap();
    slices_say(&slices, "web", &["b rs"]).await;

    // Deleted slices are not created again while the Service is being deleted.
    let ours = |slice: &EndpointSlice| slice.metadata.generate_name.as_deref() == Some("web-");
    let slice = ObjectKey::of(slices.find(ours).await.as_ref());
    cluster.delete::<EndpointSlice>(&slice).await;
    slices_say(&slices, "web", &[]).await;
    pod(&cluster, "c", "web").await;
    endpoints.when(&web, |endpoints| addresses(endpoints) == ["b", "c"]).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(!slices.cache.list().iter().any(|slice| ours(slice)), "no new slice");
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn t_net_6_a_pod_is_listed_when_its_node_exists() {
    let cluster = Cluster::start().await;
    let slices = cluster.watch::<EndpointSlice>();
    service(&cluster, "web", json!({})).await;
    service(
        &cluster,
        "all",
        json!({ "selector": { "app": "web" }, "publishNotReadyAddresses": true }),
    )
    .await;
    pod(&cluster, "a", "web").await;
    slices_say(&slices, "all", &["a rs"]).await;
    slices_say(&slices, "web", &[]).await;
    let zone = json!({ "topology.kubernetes.io/zone": "z1" });
    cluster.create::<Node>(json!({ "metadata": { "name": "n1", "labels": zone } })).await;
    slices_say(&slices, "web", &["a rs"]).await;
    let slice = slices.find(|slice| !text(&[slice.clone().into()], "web").is_empty()).await;
    assert_eq!(slice.endpoints.as_ref().unwrap()[0].zone.as_deref(), Some("z1"));
    cluster.stop().await;
}

/// NET-82: slices that others delete or edit are repaired, after at least a second; a slice that is being deleted is
/// left alone.
#[tokio::test(start_paused = true)]
async fn net_82_c_177_deleted_and_edited_slices_are_repaired_and_idle_ones_not_written() {
    let connection = FaultyConnection::default();
    let cluster = Cluster::through(Options::default(), |server| connection.client(server)).await;
    let slices = cluster.watch::<EndpointSlice>();
    cluster.create::<Node>(json!({ "metadata": { "name": "n1" } })).await;
    service(&cluster, "web", json!({})).await;
    pod(&cluster, "a", "web").await;
    slices_say(&slices, "web", &["a rs"]).await;
    let ours = |slice: &EndpointSlice| slice.metadata.generate_name.as_deref() == Some("web-");
    let slice = slices.find(ours).await;
    let name = ObjectKey::of(slice.as_ref());
    let hold = json!({ "metadata": { "finalizers": ["example.com/held"] } });
    cluster.client.patch_merge::<EndpointSlice>(&name, &hold).await.unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    let changed_at = Instant::now();
    cluster.client.delete::<EndpointSlice>(&name, &DeleteOptions::default()).await.unwrap();
    let held = name.clone();
    let path = format!("{SLICES}/{}", name.name());
    let asked_for = connection.requests_to(&path);
    slices
        .all(|all| {
            let is_new = |s: &EndpointSlice| s.metadata.uid != slice.metadata.uid;
            all.iter().any(|s| ours(s) && is_new(s)) && text(all, "web") == ["a rs", "a rs"]
        })
        .await;
    let soon = Duration::from_secs(1)..Duration::from_secs(30);
    assert!(soon.contains(&changed_at.elapsed()), "{:?}", changed_at.elapsed());
    let let_go = json!({ "metadata": { "finalizers": null } });
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(
        connection.requests_to(&path),
        asked_for,
        "a slice that is being deleted is not written"
    );
    cluster.client.patch_merge::<EndpointSlice>(&held, &let_go).await.unwrap();
    slices.gone(&held).await;

    tokio::time::sleep(Duration::from_secs(5)).await;
    let slice = slices.find(ours).await;
    let name = ObjectKey::of(slice.as_ref());
    let edit = json!({ "endpoints": [] });
    let changed_at = Instant::now();
    cluster.client.patch_merge::<EndpointSlice>(&name, &edit).await.unwrap();
    slices_say(&slices, "web", &[]).await;
    slices_say(&slices, "web", &["a rs"]).await;
    assert!(soon.contains(&changed_at.elapsed()), "{:?}", changed_at.elapsed());

    let before = cluster.client.get::<EndpointSlice>(&name).await.unwrap();
    let heartbeat = json!({ "conditions": [{ "type": "Other", "status": "True" }] });
    cluster.status::<Pod>(&key("default", "a"), heartbeat).await;
    tokio::time::sleep(Duration::from_secs(20)).await;
    let after = cluster.client.get::<EndpointSlice>(&name).await.unwrap();
    assert_eq!(before.metadata.resource_version, after.metadata.resource_version);
    cluster.stop().await;
}

/// NET-84: no write while the cache is stale.
#[tokio::test(start_paused = true)]
async fn net_84_no_duplicate_slices_when_the_cache_lags_behind() {
    let connection = FaultyConnection::default();
    let cluster = Cluster::through(Options::default(), |server| connection.client(server)).await;
    let slices = cluster.watch::<EndpointSlice>();
    cluster.create::<Node>(json!({ "metadata": { "name": "n1" } })).await;
    slices.cache.synced().await;
    let all = || async {
        let all =
            cluster.client.list::<EndpointSlice>(&Selection::namespace("default")).await.unwrap();
        all.iter().filter(|s| s.metadata.generate_name.as_deref() == Some("web-")).count()
    };
    connection.hold("endpointslices");
    service(&cluster, "web", json!({})).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(all().await, 1);
    pod(&cluster, "a", "web").await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(all().await, 1, "it waits to see the first");
    let stale = cluster.counted("endpoint_slice_controller_syncs{result=\"stale\"}");
    assert!(stale.is_some(), "NET-88: and says so");
    connection.release();
    slices_say(&slices, "web", &["a rs"]).await;
    assert_eq!(all().await, 1);
    cluster.stop().await;
}

/// NET-75, NET-81, NET-89: a Service with a selector has one empty slice and Endpoints without subsets until there are
/// pods, within 30 s, and both are deleted with it. Services without a selector have none.
#[tokio::test(start_paused = true)]
async fn net_75_net_81_net_89_a_service_without_pods_has_an_empty_slice_and_empty_endpoints() {
    let cluster = Cluster::start().await;
    let (slices, endpoints) = (cluster.watch::<EndpointSlice>(), cluster.watch::<Endpoints>());
    let moment = Duration::from_secs(30);
    let hand_made = json!({
        "metadata": { "namespace": "default", "name": "mine", "labels": {
            "kubernetes.io/service-name": "web", "endpointslice.kubernetes.io/managed-by": "me" } },
        "addressType": "IPv4", "endpoints": [{ "addresses": ["10.9.9.9"] }],
    });
    let mine = cluster.create::<EndpointSlice>(hand_made).await;
    let changed_at = Instant::now();
    service(&cluster, "web", json!({})).await;
    let outside = json!({ "type": "ExternalName", "externalName": "example.com" });
    service(&cluster, "outside", outside).await;
    let web = key("default", "web");
    let ours = |slice: &EndpointSlice| slice.metadata.generate_name.as_deref() == Some("web-");
    let slice = slices.find(ours).await;
    assert_eq!((&slice.endpoints, &slice.ports), (&None, &None));
    endpoints.when(&web, |endpoints| endpoints.is_some_and(|e| e.subsets.is_none())).await;
    assert!(changed_at.elapsed() < moment, "{:?}", changed_at.elapsed());
    let made = endpoints.cache.get(&web).unwrap();
    let labels = json!({ "endpoints.kubernetes.io/managed-by": "endpoint-controller" });
    assert_eq!(serde_json::to_value(&made.metadata.labels).unwrap(), labels);

    tokio::time::sleep(Duration::from_secs(60)).await;
    let versions = |all: &[std::sync::Arc<EndpointSlice>]| -> Vec<Option<String>> {
        let of_web = all.iter().filter(|slice| service_name(slice) == Some("web"));
        of_web.map(|slice| slice.metadata.resource_version.clone()).collect()
    };
    let before = versions(&[mine.into(), slice]);
    assert_eq!(versions(&slices.cache.list()), before, "left alone");
    assert_eq!(endpoints.cache.get(&web).unwrap(), made, "left alone");
    assert!(!slices.cache.list().iter().any(|slice| service_name(slice) == Some("outside")));
    assert_eq!(endpoints.cache.get(&key("default", "outside")), None);

    let counted = || cluster.counted("endpoint_slice_controller_num_endpoint_slices ");
    assert_eq!(counted().as_deref(), Some("1"), "NET-88");
    let created = cluster.counted("endpoint_slice_controller_changes{operation=\"create\"}");
    assert_eq!(created.as_deref(), Some("1"), "NET-88");

    let changed_at = Instant::now();
    cluster.delete::<Service>(&web).await;
    endpoints.gone(&web).await;
    slices.all(|all| !all.iter().any(|slice| ours(slice))).await;
    assert!(changed_at.elapsed() < moment, "{:?}", changed_at.elapsed());
    cluster.stop().await;
}

/// NET-92: unchanged content is not written.
#[tokio::test(start_paused = true)]
async fn net_92_endpoints_without_a_service_are_deleted_at_start_except_locks() {
    let mut cluster = Cluster::start().await;
    let endpoints = cluster.watch::<Endpoints>();
    service(&cluster, "hand", json!({ "selector": null })).await;
    let lock = json!({ "control-plane.alpha.kubernetes.io/leader": "{}" });
    for (name, annotations) in [("hand", json!({})), ("orphan", json!({})), ("lock", lock)] {
        let meta = json!({ "namespace": "default", "name": name, "annotations": annotations });
        let subsets = json!([{ "addresses": [{ "ip": "10.1.1.1" }], "ports": [{ "port": 80 }] }]);
        cluster.create::<Endpoints>(json!({ "metadata": meta, "subsets": subsets })).await;
    }
    tokio::time::sleep(Duration::from_secs(60)).await;
    let orphan = key("default", "orphan");
    endpoints.when(&orphan, |orphan| orphan.is_some()).await;
    cluster.restart_controllers().await;
    endpoints.gone(&orphan).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    for name in ["hand", "lock", "kubernetes"] {
        assert!(endpoints.cache.get(&key("default", name)).is_some(), "{name}");
    }
    cluster.stop().await;
}

/// NET-93, NET-94: changes of Endpoints, and whether they are mirrored, appear in the slices within 12 s.
#[tokio::test(start_paused = true)]
async fn net_93_net_94_c_180_endpoints_written_by_hand_are_mirrored() {
    let cluster = Cluster::start().await;
    let slices = cluster.watch::<EndpointSlice>();
    service(&cluster, "hand", json!({ "selector": null })).await;
    let subsets = |ip: &str| json!([{ "addresses": [{ "ip": ip }], "ports": [{ "port": 80 }] }]);
    let meta = json!({ "namespace": "default", "name": "hand" });
    let hand = key("default", "hand");
    let soon = |expected: &'static [&'static str]| {
        let slices = &slices;
        async move {
            let changed_at = Instant::now();
            slices_say(slices, "hand", expected).await;
            assert!(changed_at.elapsed() < Duration::from_secs(12), "{:?}", changed_at.elapsed());
        }
    };
    cluster.create::<Endpoints>(json!({ "metadata": meta, "subsets": subsets("10.1.1.1") })).await;
    soon(&["10.1.1.1 r"]).await;
    let change = json!({ "subsets": subsets("10.1.1.2") });
    cluster.client.patch_merge::<Endpoints>(&hand, &change).await.unwrap();
    soon(&["10.1.1.2 r"]).await;

    // Each of these stops mirroring, and the reverse starts it again.
    let skip = |value: Value| {
        let labels = json!({ "endpointslice.kubernetes.io/skip-mirror": value });
        json!({ "metadata": { "labels": labels } })
    };
    let lock = |value: Value| {
        let annotations = json!({ "control-plane.alpha.kubernetes.io/leader": value });
        json!({ "metadata": { "annotations": annotations } })
    };
    for (on, off) in
        [(skip(json!("true")), skip(Value::Null)), (lock(json!("{}")), lock(Value::Null))]
    {
        cluster.client.patch_merge::<Endpoints>(&hand, &on).await.unwrap();
        soon(&[]).await;
        cluster.client.patch_merge::<Endpoints>(&hand, &off).await.unwrap();
        soon(&["10.1.1.2 r"]).await;
    }
    let mirrors = |all: &[std::sync::Arc<EndpointSlice>]| {
        let labels = all.iter().filter_map(|slice| slice.metadata.labels.clone());
        let by = |labels: &std::collections::BTreeMap<String, String>| {
            labels.get("endpointslice.kubernetes.io/managed-by").cloned()
        };
        labels.filter(|l| by(l).is_some_and(|by| by.contains("mirroring"))).count()
    };
    let select = |app: Value| json!({ "spec": { "selector": app } });
    cluster.client.patch_merge::<Service>(&hand, &select(json!({ "app": "x" }))).await.unwrap();
    let changed_at = Instant::now();
    slices.all(|all| mirrors(all) == 0).await;
    assert!(changed_at.elapsed() < Duration::from_secs(12), "its Service selects");
    cluster.client.patch_merge::<Service>(&hand, &select(Value::Null)).await.unwrap();
    cluster.client.patch_merge::<Endpoints>(&hand, &change).await.unwrap();
    slices.all(|all| mirrors(all) == 1).await;
    let changed_at = Instant::now();
    cluster.delete::<Endpoints>(&hand).await;
    slices.all(|all| mirrors(all) == 0).await;
    assert!(changed_at.elapsed() < Duration::from_secs(12), "{:?}", changed_at.elapsed());
    cluster.stop().await;
}

/// NET-94: which Endpoints are not mirrored.
#[tokio::test(start_paused = true)]
async fn net_94_too_many_addresses_to_mirror_are_reported() {
    let cluster = Cluster::start().await;
    service(&cluster, "hand", json!({ "selector": null })).await;
    let addresses: Vec<Value> =
        (0..1001).map(|n| json!({ "ip": format!("10.1.{}.{}", n / 250, n % 250) })).collect();
    let subsets = json!([{ "addresses": addresses, "ports": [{ "port": 80 }] }]);
    let meta = json!({ "namespace": "default", "name": "hand" });
    cluster.create::<Endpoints>(json!({ "metadata": meta, "subsets": subsets })).await;
    let event = cluster.event("TooManyAddressesToMirror").await;
    assert_eq!(event.type_.as_deref(), Some("Warning"));
    assert_eq!(event.involved_object.kind.as_deref(), Some("Endpoints"));
    cluster.stop().await;
}

/// The API server accepts a condition without `lastTransitionTime`. Such a Service must not keep others from getting
/// their EndpointSlices, neither while controllers run nor after a restart.
#[tokio::test(start_paused = true)]
async fn a_service_with_an_incomplete_condition_does_not_hide_other_services() {
    let mut cluster = Cluster::start().await;
    let slices = cluster.watch::<EndpointSlice>();
    let has_slice = async |name: &str| {
        slices.all(|all| all.iter().any(|slice| service_name(slice) == Some(name))).await;
    };
    service(&cluster, "odd", json!({})).await;
    has_slice("odd").await;
    let condition = json!({ "type": "X", "status": "True", "reason": "R", "message": "" });
    cluster.status::<Service>(&key("default", "odd"), json!({ "conditions": [condition] })).await;
    service(&cluster, "second", json!({})).await;
    has_slice("second").await;
    cluster.restart_controllers().await;
    service(&cluster, "third", json!({})).await;
    has_slice("third").await;
}
