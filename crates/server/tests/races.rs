//! What two clients do to one object at the same moment.

mod door;

use door::{Cluster, PODS, pod};
use serde_json::json;
use std::time::Duration;

const ROUNDS: usize = 200;

/// T-EDGE-15: a pod that is bound while it is being deleted either keeps its grace or was never bound.
/// Upstream resolves the grace from its first read and removes such a pod at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn t_edge_15_a_pod_bound_meanwhile_is_not_removed_without_grace() {
    let cluster = Cluster::start().await;
    let (mut bound, mut removed) = (0, 0);
    for round in 0..ROUNDS {
        let name = format!("p{round}");
        cluster.make(PODS, pod(&name)).await;
        let (binds, deletes) = (cluster.admin(), cluster.admin());
        let (bound_name, at) = (name.clone(), format!("{PODS}/{name}"));
        let bind = tokio::spawn(async move { binds.bind(&bound_name).await.code });
        let delete = tokio::spawn(async move { deletes.delete(&at).await.code });
        let (bind, delete) = (bind.await.unwrap(), delete.await.unwrap());
        assert_eq!(delete, 200, "round {round}");
        let there = cluster.get(&format!("{PODS}/{name}")).await;
        match bind {
            201 => {
                assert_eq!(there.code, 200, "round {round}: it was bound, then removed at once");
                assert_eq!(
                    there.body["metadata"]["deletionGracePeriodSeconds"], 30,
                    "round {round}"
                );
                bound += 1;
            }
            404 | 409 => {
                assert_eq!(there.code, 404, "round {round}");
                removed += 1;
            }
            other => panic!("round {round}: a binding answered {other}"),
        }
    }
    println!("{bound} were bound first, {removed} deleted first");
}

/// T-API-14, T-API-15, T-API-48: no pod is left marked, without grace, and with nobody to remove it.
#[tokio::test]
async fn t_api_48_deleting_a_collection_is_finished_when_its_client_hangs_up() {
    let cluster = Cluster::start().await;
    for number in 0..10 {
        cluster.bound(pod(&format!("p{number}"))).await;
    }
    let version = cluster.version(PODS).await;
    let mut watch = cluster.watch(&format!("{PODS}?resourceVersion={version}")).await;
    let path = format!("{PODS}?gracePeriodSeconds=0");
    tokio::select! {
        _ = cluster.open("DELETE", &path, &[], "") => panic!("it was answered before it began"),
        _ = watch.next() => {}
    }
    let gone = tokio::time::timeout(Duration::from_secs(10), async {
        while !cluster.names(PODS).await.is_empty() {
            tokio::task::yield_now().await;
        }
    });
    assert!(gone.await.is_ok(), "{:?}", cluster.names(PODS).await);
}

/// a patch that goes around again has no port of its own in its way.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_151_a_port_that_is_claimed_again_is_not_somebody_elses() {
    let cluster = Cluster::start().await;
    let services = "/api/v1/namespaces/default/services";
    let plain = json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}});
    cluster.make(services, plain).await;
    let at = format!("{services}/s");
    let busy = cluster.admin();
    let path = at.clone();
    // Somebody writes to the same Service all the time.
    let busy = tokio::spawn(async move {
        for round in 0.. {
            let label = json!({"metadata": {"labels": {"round": format!("{round}")}}});
            busy.patch(&path, label).await.ok();
        }
    });
    for _ in 0..100 {
        let port = json!([{"port": 80, "protocol": "TCP", "nodePort": 30123}]);
        cluster.patch(&at, json!({"spec": {"type": "NodePort", "ports": port}})).await.ok();
        let without = json!([{"port": 80, "protocol": "TCP", "nodePort": null}]);
        cluster.patch(&at, json!({"spec": {"type": "ClusterIP", "ports": without}})).await.ok();
    }
    busy.abort();
}
