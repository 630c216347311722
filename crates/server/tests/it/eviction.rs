//! `pods/{name}/eviction`: a delete that respects disruption budgets (T-EVICT-1 to T-EVICT-11).
//! The tests write the budgets' status as their controller would.

use crate::cluster::{Cluster, PODS, Reply, held, labelled, pod, version};
use serde_json::{Value, json};
use std::time::Duration;

const BUDGETS: &str = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
const FULL: &str = "Cannot evict pod as it would violate the pod's disruption budget.";

fn path(name: &str) -> String {
    format!("{PODS}/{name}")
}

async fn evict_with(cluster: &Cluster, name: &str, options: Value) -> Reply {
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction",
                          "metadata": {"name": name}, "deleteOptions": options});
    cluster.post(&format!("{PODS}/{name}/eviction"), eviction).await
}

async fn evict(cluster: &Cluster, name: &str) -> Reply {
    evict_with(cluster, name, json!({})).await
}

/// A bound pod of app `x` in that phase; running ones are ready by default.
async fn running(cluster: &Cluster, name: &str, ready: bool) -> Value {
    cluster.bound(labelled(pod(name), json!({"app": "x"}))).await;
    let ready = if ready { "True" } else { "False" };
    let status = json!({"status": {"phase": "Running",
        "conditions": [{"type": "Ready", "status": ready}]}});
    cluster.patch(&format!("{}/status", path(name)), status).await.ok()
}

/// An observed budget for app `x`: allowed disruptions, healthy pods, desired healthy pods.
async fn budget(cluster: &Cluster, name: &str, counts: [i64; 3], policy: Option<&str>) {
    let mut spec = json!({"minAvailable": 1, "selector": {"matchLabels": {"app": "x"}}});
    if let Some(policy) = policy {
        spec["unhealthyPodEvictionPolicy"] = policy.into();
    }
    cluster.make(BUDGETS, json!({"metadata": {"name": name}, "spec": spec})).await;
    count(cluster, name, counts).await;
}

async fn count(cluster: &Cluster, name: &str, [allowed, healthy, desired]: [i64; 3]) {
    let status = json!({"status": {"observedGeneration": 1, "disruptionsAllowed": allowed,
        "currentHealthy": healthy, "desiredHealthy": desired, "expectedPods": 3}});
    cluster.patch(&format!("{BUDGETS}/{name}/status"), status).await.ok();
}

#[tokio::test]
async fn t_evict_1_an_eviction_is_a_create_that_returns_success() {
    let cluster = Cluster::start().await;
    running(&cluster, "p", true).await;
    let eviction =
        json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "q"}});
    let reply = cluster.post(&format!("{}/eviction", path("p")), eviction.clone()).await;
    reply.refused(400, "BadRequest");
    cluster.post(&format!("{}/eviction", path("q")), eviction).await.refused(404, "NotFound");
    let reply = evict(&cluster, "p").await;
    assert_eq!(reply.code, 201);
    assert_eq!(
        reply.body,
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201})
    );
    assert!(cluster.read(&path("p")).await["metadata"]["deletionTimestamp"].is_string());
    running(&cluster, "beta", true).await;
    let eviction = json!({"apiVersion": "policy/v1beta1", "kind": "Eviction",
                          "metadata": {"name": "beta"}});
    assert_eq!(cluster.post(&format!("{}/eviction", path("beta")), eviction).await.code, 201);
}

#[tokio::test]
async fn t_evict_2_pods_that_do_not_run_are_not_protected() {
    let cluster = Cluster::start().await;
    budget(&cluster, "none", [0, 1, 1], None).await;
    for phase in ["Pending", "Succeeded", "Failed"] {
        let name = phase.to_lowercase();
        running(&cluster, &name, true).await;
        let status = json!({"status": {"phase": phase}});
        cluster.patch(&format!("{}/status", path(&name)), status).await.ok();
        assert_eq!(evict(&cluster, &name).await.code, 201, "{phase}");
    }
    running(&cluster, "going", true).await;
    evict(&cluster, "going").await.refused(429, "TooManyRequests");
    cluster.delete(&path("going")).await.ok();
    assert_eq!(evict(&cluster, "going").await.code, 201);
}

#[tokio::test]
async fn t_evict_3_the_pod_gets_a_condition_with_the_reason_before_it_is_deleted() {
    let cluster = Cluster::start().await;
    let made = running(&cluster, "p", true).await;
    let mut watch = cluster.watch(&format!("{PODS}?resourceVersion={}", version(&made))).await;
    assert_eq!(evict_with(&cluster, "p", json!({"dryRun": ["All"]})).await.code, 201);
    assert_eq!(cluster.read(&path("p")).await, made);
    assert_eq!(evict(&cluster, "p").await.code, 201);
    let events = watch.take(2).await;
    let target = |event: &Value| {
        let conditions = event["object"]["status"]["conditions"].as_array().unwrap().clone();
        conditions.into_iter().find(|condition| condition["type"] == "DisruptionTarget").unwrap()
    };
    let reply = target(&events[0]);
    assert_eq!(
        (&reply["status"], &reply["reason"]),
        (&"True".into(), &"EvictionByEvictionAPI".into())
    );
    assert_eq!(reply["message"], "Eviction API: evicting");
    assert_eq!(events[0]["object"]["metadata"].get("deletionTimestamp"), None);
    assert!(events[1]["object"]["metadata"]["deletionTimestamp"].is_string());
    assert_eq!(target(&events[1]), reply);
}

/// T-EVICT-4, T-EDGE-17: an eviction with several matching budgets is an error.
#[tokio::test]
async fn t_evict_4_two_budgets_for_one_pod_are_an_error() {
    let cluster = Cluster::start().await;
    let made = running(&cluster, "p", true).await;
    budget(&cluster, "a", [1, 2, 1], None).await;
    budget(&cluster, "b", [1, 2, 1], None).await;
    let reply = evict(&cluster, "p").await;
    assert_eq!((reply.code, &reply.body["status"]), (500, &"Failure".into()));
    let wanted = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
    assert_eq!(reply.message(), wanted);
    assert_eq!(cluster.read(&path("p")).await, made);
}

#[tokio::test]
async fn t_evict_5_without_a_budget_it_is_a_delete_with_its_options() {
    let cluster = Cluster::start().await;
    running(&cluster, "p", true).await;
    let mut other = json!({"metadata": {"name": "other"}, "spec": {"minAvailable": 1}});
    other["spec"]["selector"] = json!({"matchLabels": {"app": "y"}});
    cluster.make(BUDGETS, other).await;
    assert_eq!(evict_with(&cluster, "p", json!({"gracePeriodSeconds": 7})).await.code, 201);
    let pod = cluster.read(&path("p")).await;
    assert_eq!(pod["metadata"]["deletionGracePeriodSeconds"], 7);
}

/// Each row: policy, healthy, desired, and whether a pod that is not ready may be evicted although the budget is used up
/// (T-EVICT-6).
#[tokio::test]
async fn t_evict_6_an_unready_pod_is_evicted_if_the_policy_allows_it() {
    let cluster = Cluster::start().await;
    let rows = [
        (Some("AlwaysAllow"), 0, 1, true),
        (Some("AlwaysAllow"), 1, 1, true),
        (Some("IfHealthyBudget"), 1, 1, true),
        (Some("IfHealthyBudget"), 0, 1, false),
        (None, 2, 1, true),
        (None, 0, 1, false),
        (None, 0, 0, false),
    ];
    for (row, (policy, healthy, desired, goes)) in rows.into_iter().enumerate() {
        let name = format!("p{row}");
        running(&cluster, &name, false).await;
        budget(&cluster, "b", [0, healthy, desired], policy).await;
        let before = cluster.read(&format!("{BUDGETS}/b")).await;
        let reply = evict(&cluster, &name).await;
        assert_eq!(reply.code, if goes { 201 } else { 429 }, "row {row}: {}", reply.body);
        assert_eq!(cluster.read(&format!("{BUDGETS}/b")).await, before, "row {row}");
        cluster.delete(&format!("{BUDGETS}/b")).await.ok();
    }
}

#[tokio::test]
async fn t_evict_7_a_budget_that_is_not_observed_yet_requests_a_retry() {
    let cluster = Cluster::start().await;
    running(&cluster, "p", true).await;
    budget(&cluster, "b", [3, 3, 1], None).await;
    cluster.patch(&format!("{BUDGETS}/b"), json!({"spec": {"minAvailable": 2}})).await.ok();
    let reply = evict(&cluster, "p").await;
    assert_eq!(reply.refused(429, "TooManyRequests"), FULL);
    assert_eq!(reply.header("retry-after"), "10");
    assert_eq!(reply.body["details"]["retryAfterSeconds"], 10);
    let cause = &reply.body["details"]["causes"][0];
    assert_eq!(cause["message"], "The disruption budget b is still being processed by the server.");
}

/// T-EVICT-8, T-EDGE-17: it is unknown when the budget allows more, so there is no Retry-After.
#[tokio::test]
async fn t_evict_8_a_used_up_budget_refuses_without_retry_after() {
    let cluster = Cluster::start().await;
    let made = running(&cluster, "p", true).await;
    budget(&cluster, "b", [0, 2, 2], None).await;
    let reply = evict(&cluster, "p").await;
    assert_eq!(reply.refused(429, "TooManyRequests"), FULL);
    assert_eq!(reply.header("retry-after"), "");
    assert_eq!(
        reply.body["details"],
        json!({"causes": [{"reason": "DisruptionBudget",
               "message": "The disruption budget b needs 2 healthy pods and has 2 currently"}]})
    );
    assert_eq!(cluster.read(&path("p")).await, made);
}

/// T-EDGE-16: only evictions respect budgets.
#[tokio::test]
async fn t_edge_16_a_plain_delete_ignores_budgets() {
    let cluster = Cluster::start().await;
    running(&cluster, "p", true).await;
    budget(&cluster, "b", [0, 2, 2], None).await;
    assert_eq!(evict(&cluster, "p").await.refused(429, "TooManyRequests"), FULL);
    let reply = cluster.delete_with(&path("p"), json!({})).await.ok();
    assert!(reply["metadata"]["deletionTimestamp"].is_string(), "{reply}");
    let budget = cluster.read(&format!("{BUDGETS}/b")).await;
    assert_eq!(
        budget["status"]["disruptedPods"],
        Value::Null,
        "the budget does not record the pod"
    );
}

#[tokio::test]
async fn t_evict_9_an_eviction_uses_one_disruption_and_records_the_pod() {
    let cluster = Cluster::start().await;
    running(&cluster, "p", true).await;
    running(&cluster, "q", true).await;
    budget(&cluster, "b", [1, 3, 2], None).await;
    let observed = cluster.read(&format!("{BUDGETS}/b")).await;
    let dry = evict_with(&cluster, "p", json!({"dryRun": ["All"]})).await;
    assert_eq!(dry.code, 201);
    assert_eq!(cluster.read(&format!("{BUDGETS}/b")).await, observed);
    assert_eq!(evict(&cluster, "p").await.code, 201);
    let status = cluster.read(&format!("{BUDGETS}/b")).await["status"].clone();
    assert_eq!(status["disruptionsAllowed"], 0);
    let pods: Vec<_> = status["disruptedPods"].as_object().unwrap().keys().collect();
    assert_eq!(pods, ["p"]);
    evict(&cluster, "q").await.refused(429, "TooManyRequests");

    let many: serde_json::Map<String, Value> =
        (0..2001).map(|n| (format!("x{n}"), "2026-01-02T03:04:05Z".into())).collect();
    count(&cluster, "b", [1, 3, 2]).await;
    let status = json!({"status": {"disruptedPods": many}});
    cluster.patch(&format!("{BUDGETS}/b/status"), status).await.ok();
    let reply = evict(&cluster, "q").await;
    let message = reply.refused(403, "Forbidden");
    assert!(message.contains("DisruptedPods map too big"), "{message}");
}

#[tokio::test(start_paused = true)]
async fn t_evict_10_a_stale_version_is_a_conflict_without_retries() {
    let cluster = Cluster::on_simulated_time().await;
    let made = running(&cluster, "p", true).await;
    let start = tokio::time::Instant::now();
    let stale = json!({"preconditions": {"resourceVersion": "1"}});
    evict_with(&cluster, "p", stale).await.refused(409, "Conflict");
    assert!(start.elapsed() < Duration::from_millis(100));
    assert_eq!(cluster.read(&path("p")).await, made);
    // A new pod of that name is still another pod half a second later.
    let other = json!({"preconditions": {"uid": "other"}});
    evict_with(&cluster, "p", other).await.refused(409, "Conflict");
    assert!(start.elapsed() < Duration::from_millis(100), "{:?}", start.elapsed());
    assert_eq!(cluster.read(&path("p")).await, made);
    let right =
        json!({"preconditions": {"resourceVersion": version(&cluster.read(&path("p")).await)}});
    assert_eq!(evict_with(&cluster, "p", right).await.code, 201);
}

#[tokio::test]
async fn t_evict_11_evictions_in_a_terminating_namespace_are_refused() {
    let cluster = Cluster::start().await;
    cluster.make("/api/v1/namespaces", json!({"metadata": {"name": "shop"}})).await;
    let pods = "/api/v1/namespaces/shop/pods";
    cluster.make(pods, held(pod("p"), "example.com/hold")).await;
    cluster.delete("/api/v1/namespaces/shop").await.ok();
    let eviction =
        json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}});
    let reply = cluster.post(&format!("{pods}/p/eviction"), eviction).await;
    reply.refused(403, "Forbidden");
    let cause = &reply.body["details"]["causes"][0];
    assert_eq!(
        (&cause["reason"], &cause["field"]),
        (&"NamespaceTerminating".into(), &"metadata.namespace".into())
    );
    assert_eq!(cluster.read(&format!("{pods}/p")).await["metadata"].get("deletionTimestamp"), None);
}

/// T-EVICT-7, T-API-31: an eviction with a failed precondition does not use the budget.
#[tokio::test(start_paused = true)]
async fn t_evict_7_a_failed_precondition_does_not_use_the_budget() {
    let cluster = Cluster::on_simulated_time().await;
    let made = running(&cluster, "p", true).await;
    budget(&cluster, "b", [5, 5, 1], None).await;
    for wrong in [json!({"uid": "other"}), json!({"resourceVersion": "1"})] {
        let reply = evict_with(&cluster, "p", json!({"preconditions": wrong})).await;
        reply.refused(409, "Conflict");
    }
    let status = cluster.read(&format!("{BUDGETS}/b")).await["status"].clone();
    assert_eq!(status["disruptionsAllowed"], 5, "{status}");
    assert_eq!(cluster.read(&path("p")).await, made);
    let uid = json!({"preconditions": {"uid": made["metadata"]["uid"]}});
    assert_eq!(evict_with(&cluster, "p", uid).await.code, 201);
    let status = cluster.read(&format!("{BUDGETS}/b")).await["status"].clone();
    assert_eq!(status["disruptionsAllowed"], 4, "{status}");
}
