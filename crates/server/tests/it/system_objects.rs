//! System objects: the server creates them, restores them, and keeps their content correct.

use crate::cluster::{Cluster, MAPS, config};
use serde_json::{Value, json};
use std::time::Duration;

const DESCRIPTION: &str = "Contains a CA bundle that can be used to verify the kube-apiserver when using \
     internal endpoints such as the internal service IP or kubernetes.default.svc. No other usage is guaranteed \
     across distributions of Kubernetes clusters.";

/// Reads an object until the condition holds.
async fn until(cluster: &Cluster, place: &str, so: impl Fn(&Value) -> bool) -> Value {
    let looking = async {
        loop {
            let object = cluster.get(place).await.body;
            if so(&object) {
                return object;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), looking).await.expect("it comes to be so")
}

fn description(map: &Value) -> &Value {
    &map["metadata"]["annotations"]["kubernetes.io/description"]
}

/// C-144, T-CTRL-64: kube-root-ca.crt is restored.
#[tokio::test]
async fn c_144_the_description_of_the_root_certificate_is_added_if_it_is_empty() {
    let cluster = Cluster::start().await;
    let place = format!("{MAPS}/kube-root-ca.crt");
    let made = cluster.read(&place).await;
    assert_eq!(description(&made), DESCRIPTION);
    let annotate =
        |text: Value| json!({"metadata": {"annotations": {"kubernetes.io/description": text}}});
    for nothing in [json!(null), json!("")] {
        cluster.patch(&place, annotate(nothing)).await.ok();
        until(&cluster, &place, |map| description(map) == DESCRIPTION).await;
    }
    // A different description stays, even when the data is restored.
    cluster.patch(&place, annotate(json!("ours"))).await.ok();
    cluster.patch(&place, json!({"data": {"ca.crt": "forged", "more": "x"}})).await.ok();
    let repaired = until(&cluster, &place, |map| map["data"] == made["data"]).await;
    assert_eq!(description(&repaired), "ours");
}

/// NET-95: the Service is at the first address of its range and leads to where the server listens; Endpoints and
/// slice say the same, and no controller touches them.
#[tokio::test]
async fn net_95_the_servers_own_service_leads_to_the_server() {
    let cluster = Cluster::start().await;
    let default = "/api/v1/namespaces/default";
    let address = cluster.running.address;
    let service = cluster.read(&format!("{default}/services/kubernetes")).await;
    let range = cluster.read("/apis/networking.k8s.io/v1/servicecidrs/kubernetes").await;
    assert_eq!(range["spec"]["cidrs"][0], "10.96.0.0/16");
    assert_eq!(service["spec"]["clusterIP"], "10.96.0.1");
    assert_eq!(service["spec"].get("selector"), None);
    let port =
        json!([{"name": "https", "port": 443, "protocol": "TCP", "targetPort": address.port()}]);
    assert_eq!(service["spec"]["ports"], port);

    let endpoints = cluster.read(&format!("{default}/endpoints/kubernetes")).await;
    let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
    let slice = cluster.read(&format!("{slices}/kubernetes")).await;
    let skip = json!({"endpointslice.kubernetes.io/skip-mirror": "true"});
    assert_eq!(endpoints["metadata"]["labels"], skip);
    assert_eq!(slice["metadata"]["labels"], json!({"kubernetes.io/service-name": "kubernetes"}));
    let ports = json!([{"name": "https", "port": address.port(), "protocol": "TCP"}]);
    assert_eq!(endpoints["subsets"][0]["ports"], ports);
    assert_eq!(slice["ports"], ports);
    assert_eq!(endpoints["subsets"][0]["addresses"], json!([{"ip": address.ip()}]));
    let listed = json!([{"addresses": [address.ip()], "conditions": {"ready": true}}]);
    assert_eq!(slice["endpoints"], listed);
    let all = cluster
        .read(&format!("{slices}?labelSelector=kubernetes.io/service-name=kubernetes"))
        .await;
    assert_eq!(all["items"].as_array().map(Vec::len), Some(1));
}

/// T-CTRL-63, A-160: the Service kubernetes and its endpoints are restored.
#[tokio::test]
async fn t_ctrl_63_edited_endpoints_of_the_service_kubernetes_are_restored() {
    let cluster = Cluster::start().await;
    let endpoints = "/api/v1/namespaces/default/endpoints/kubernetes";
    let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
    let slice = format!("{slices}/kubernetes");
    let made = cluster.read(endpoints).await;
    let address = cluster.running.address;
    assert_eq!(made["subsets"][0]["addresses"], json!([{"ip": address.ip()}]));
    assert_eq!(made["subsets"][0]["ports"][0]["port"], address.port());
    cluster.patch(endpoints, json!({"subsets": null})).await.ok();
    until(&cluster, endpoints, |now| now["subsets"] == made["subsets"]).await;
    let before = cluster.read(&slice).await;
    cluster.patch(&slice, json!({"endpoints": [], "metadata": {"labels": null}})).await.ok();
    let repaired = |now: &Value| {
        now["endpoints"] == before["endpoints"]
            && now["metadata"]["labels"] == before["metadata"]["labels"]
    };
    let after = until(&cluster, &slice, repaired).await;
    assert_eq!(after["metadata"]["generation"], 3, "made, emptied, repaired");
    // A slice that this server would create if there were other servers on other ports.
    let mut further = before.clone();
    let labels = &before["metadata"]["labels"];
    further["metadata"] = json!({"name": "kubernetes-2", "labels": labels});
    further["endpoints"] = json!([]);
    cluster.make(slices, further).await;
    cluster.delete(endpoints).await.ok();
    until(&cluster, &format!("{slices}/kubernetes-2"), |now| now["code"] == 404).await;
    until(&cluster, endpoints, |now| now["subsets"] == made["subsets"]).await;
}

/// Stops the server, changes its data directory, and starts it again.
async fn restarted_with(change: impl FnOnce(&std::path::Path)) -> Result<Cluster, String> {
    let Cluster { running, dir, .. } = Cluster::start().await;
    running.stop().await;
    change(dir.path());
    match server::start(config(dir.path())).await {
        Ok(running) => {
            running.stop().await;
            Ok(Cluster::at(dir).await)
        }
        Err(error) => Err(error.to_string()),
    }
}

#[tokio::test]
async fn a_cluster_whose_store_is_lost_is_not_started_as_a_new_one() {
    let remove = |dir: &std::path::Path| std::fs::remove_file(dir.join("store.redb")).unwrap();
    let truncate = |dir: &std::path::Path| std::fs::write(dir.join("store.redb"), b"").unwrap();
    let fresh = |dir: &std::path::Path| {
        // Another cluster's store before its first object: a valid file without objects.
        std::fs::remove_file(dir.join("store.redb")).unwrap();
        let path = dir.join("store.redb");
        std::thread::spawn(move || {
            tokio::runtime::Runtime::new().unwrap().block_on(async {
                let envelope =
                    store::Envelope { created: b"", updated: b"", deleted: b"", end: b"" };
                let backend = store::Backend::Embedded { path };
                let opened = store::Store::<()>::open(backend, store::Options::new(envelope)).await;
                opened.unwrap().close().await.unwrap();
            });
        })
        .join()
        .unwrap();
    };
    let changes: [&dyn Fn(&std::path::Path); 3] = [&remove, &truncate, &fresh];
    for change in changes {
        let Err(reply) = restarted_with(change).await else { panic!("it started") };
        for part in ["store.redb is missing or empty", "pki", "restore", "start over"] {
            assert!(reply.contains(part), "{reply}");
        }
    }
}

#[tokio::test]
async fn a_first_start_that_was_interrupted_is_repeated() {
    // There are keys and the mark of a first start, but no objects.
    let started = restarted_with(|dir| {
        std::fs::remove_file(dir.join("store.redb")).unwrap();
        std::fs::write(dir.join("first-start"), b"").unwrap();
    });
    let cluster = started.await.unwrap();
    assert!(!cluster.dir.path().join("first-start").exists());
    cluster.read("/api/v1/namespaces/default").await;
    // A start with other keys and the existing objects.
    let other = restarted_with(|dir| std::fs::remove_dir_all(dir.join("pki")).unwrap()).await;
    other.unwrap().read("/api/v1/namespaces/default").await;
}
