//! Concurrent requests for one object.

use crate::cluster::{Cluster, PODS, pod};
use serde_json::{Value, json};
use server::authn::User;
use std::time::Duration;

const ROUNDS: usize = 200;

/// T-EDGE-15: a pod that is bound while it is deleted either keeps its grace period or is not bound. Upstream resolves the
/// grace period from its first read and removes such a pod at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn t_edge_15_a_pod_bound_during_a_delete_is_not_removed_without_grace_period() {
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

/// T-API-14, T-API-15, T-API-48: no pod stays marked without grace period.
#[tokio::test]
async fn t_api_48_deletecollection_is_completed_after_its_client_disconnects() {
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

/// T-API-13: of several concurrent deletes, one removes the object; the others get 404.
#[tokio::test]
async fn t_api_13_one_of_several_concurrent_deletes_removes_the_object() {
    let cluster = Cluster::start().await;
    let maps = "/api/v1/namespaces/default/configmaps";
    let at = format!("{maps}/m");
    cluster.make(maps, json!({"metadata": {"name": "m"}})).await;
    let deletes = (0..5).map(|_| {
        let (client, at) = (cluster.admin(), at.clone());
        tokio::spawn(async move { client.delete(&at).await.code })
    });
    let deletes: Vec<_> = deletes.collect();
    let mut codes = Vec::new();
    for delete in deletes {
        codes.push(delete.await.unwrap());
    }
    codes.sort_unstable();
    assert_eq!(codes, [200, 404, 404, 404, 404]);
}

/// A-120, T-API-37: the patch that removes the last finalizer removes the object, even with concurrent writes.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_120_a_patch_that_removes_the_last_finalizer_gets_no_conflict() {
    let cluster = Cluster::start().await;
    let maps = "/api/v1/namespaces/default/configmaps";
    for round in 0..ROUNDS {
        let at = format!("{maps}/m{round}");
        let held = json!({"metadata": {"name": format!("m{round}"), "finalizers": ["a.b/c"]}});
        cluster.make(maps, held).await;
        cluster.delete(&at).await.ok();
        let writers = (0..3).map(|writer| {
            let (client, at) = (cluster.admin(), at.clone());
            let patch = match writer {
                0 => json!({"metadata": {"finalizers": null}}),
                _ => json!({"data": {"by": writer.to_string()}}),
            };
            tokio::spawn(async move { client.patch(&at, patch).await.code })
        });
        let codes: Vec<u16> =
            futures::future::join_all(writers).await.into_iter().map(Result::unwrap).collect();
        assert_eq!(codes[0], 200, "round {round}: {codes:?}");
        assert_eq!(cluster.get(&at).await.code, 404, "round {round}");
    }
}

/// A-120, A-151: a retried patch does not conflict with its own port claim.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_151_a_retried_patch_can_claim_its_port_again() {
    let cluster = Cluster::start().await;
    let services = "/api/v1/namespaces/default/services";
    let plain = json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}});
    cluster.make(services, plain).await;
    let at = format!("{services}/s");
    let port = |kind: &str, number: Value| {
        let ports = json!([{"port": 80, "protocol": "TCP", "nodePort": number}]);
        json!({"spec": {"type": kind, "ports": ports}})
    };
    for round in 0..50 {
        let (busy, path) = (cluster.admin(), at.clone());
        // Another client writes to the same Service at the same time.
        let busy = tokio::spawn(async move {
            for number in 0..5 {
                let label = json!({"metadata": {"labels": {"at": format!("{round}-{number}")}}});
                busy.patch(&path, label).await.ok();
            }
        });
        cluster.patch(&at, port("NodePort", json!(30123))).await.ok();
        busy.await.unwrap();
        cluster.patch(&at, port("ClusterIP", Value::Null)).await.ok();
    }
}

/// A-182: a role is effective when its write returns, even with concurrent writes of roles.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_182_a_granted_right_is_effective_for_the_next_request() {
    let cluster = Cluster::start().await;
    let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    let rules = json!([{"apiGroups": [""], "verbs": ["list"], "resources": ["pods"]}]);
    cluster
        .make(&format!("{rbac}/roles"), json!({"metadata": {"name": "r"}, "rules": rules}))
        .await;
    let mut all = Vec::new();
    for writer in 0..8 {
        let (admin, name) = (cluster.admin(), format!("u{writer}"));
        let user = cluster.user(User::authenticated(&name, &[]));
        all.push(tokio::spawn(async move {
            let binding = json!({"metadata": {"name": name},
                "roleRef": {"kind": "Role", "name": "r", "apiGroup": "rbac.authorization.k8s.io"},
                "subjects": [{"kind": "User", "name": name, "apiGroup": "rbac.authorization.k8s.io"}]});
            for _ in 0..20 {
                admin.make(&format!("{rbac}/rolebindings"), binding.clone()).await;
                assert_eq!(user.get(PODS).await.code, 200);
                admin.delete(&format!("{rbac}/rolebindings/{name}")).await.ok();
                assert_eq!(user.get(PODS).await.code, 403);
            }
        }));
    }
    for one in all {
        one.await.unwrap();
    }
}
