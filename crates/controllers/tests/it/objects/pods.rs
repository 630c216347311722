//! Pods that their node does not terminate, with a real server and a paused clock.

use super::cluster::{Cluster, key};
use client::ObjectKey;
use controllers::Options;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::Instant;

async fn node(cluster: &Cluster, name: &str) {
    cluster.create::<Node>(json!({ "metadata": { "name": name } })).await;
    ready(cluster, name, "True").await;
}

async fn ready(cluster: &Cluster, name: &str, status: &str) {
    let condition = json!({ "type": "Ready", "status": status, "reason": "r", "message": "m" });
    let status = json!({ "conditions": [condition] });
    cluster.status::<Node>(&ObjectKey::cluster(name), status).await;
}

async fn taint(cluster: &Cluster, name: &str, taints: Value) {
    let patch = json!({ "spec": { "taints": taints } });
    cluster.client.patch_merge::<Node>(&ObjectKey::cluster(name), &patch).await.unwrap();
}

fn disruption(pod: Option<&Pod>) -> Option<String> {
    let mut conditions = pod?.status.as_ref()?.conditions.iter().flatten();
    conditions.find(|c| c.type_ == "DisruptionTarget")?.reason.clone()
}

/// The number of pods that the pod garbage collector deleted for this reason.
fn removed(cluster: &Cluster, reason: &str) -> Option<String> {
    let name = "pod_gc_collector_force_delete_pods_total";
    cluster.counted(&format!("{name}{{namespace=\"default\",reason=\"{reason}\"}}"))
}

fn is_being_deleted(pod: Option<&Pod>) -> bool {
    pod.is_some_and(|pod| pod.metadata.deletion_timestamp.is_some())
}

#[tokio::test(start_paused = true)]
async fn t_ctrl_33_w_19_the_oldest_finished_pods_above_the_threshold_are_deleted() {
    let options = Options { finished_pods_max: Some(2), ..Options::default() };
    let cluster = Cluster::with(options).await;
    node(&cluster, "n").await;
    let pods = cluster.watch::<Pod>();
    for name in ["a", "b", "c"] {
        cluster.running_pod("default", name, "n", json!({})).await;
        cluster.status::<Pod>(&key("default", name), json!({ "phase": "Succeeded" })).await;
    }
    cluster.running_pod("default", "running", "n", json!({})).await;
    pods.gone(&key("default", "a")).await;
    tokio::time::sleep(Duration::from_secs(40)).await;
    assert_eq!(cluster.names::<Pod>("default").await, ["b", "c", "running"]);
    assert_eq!(removed(&cluster, "terminated").as_deref(), Some("1"), "T-CTRL-37");
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn t_ctrl_34_w_19_pods_of_a_deleted_node_fail_and_are_deleted() {
    let cluster = Cluster::start().await;
    node(&cluster, "n").await;
    let pods = cluster.watch::<Pod>();
    let hold = json!({ "metadata": { "finalizers": ["example.com/hold"] } });
    cluster.running_pod("default", "p", "n", json!({})).await;
    cluster.running_pod("default", "held", "n", hold).await;
    cluster.delete::<Node>(&ObjectKey::cluster("n")).await;
    let gone = Instant::now();
    pods.gone(&key("default", "p")).await;
    let after = gone.elapsed();
    assert!((40..=80).contains(&after.as_secs()), "{after:?}");
    let held = key("default", "held");
    pods.when(&held, |pod| disruption(pod).as_deref() == Some("DeletionByPodGC")).await;
    pods.when(&held, is_being_deleted).await;
    let pod: Pod = cluster.client.get(&held).await.unwrap();
    assert_eq!(pod.status.unwrap().phase.as_deref(), Some("Failed"));
    tokio::time::sleep(Duration::from_secs(300)).await;
    let later: Pod = cluster.client.get(&held).await.unwrap();
    let version = pod.metadata.resource_version;
    assert_eq!(later.metadata.resource_version, version, "and is left alone then");
    assert_eq!(removed(&cluster, "orphaned").as_deref(), Some("2"), "T-CTRL-37");
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn t_ctrl_35_w_19_a_terminating_pod_without_a_node_fails() {
    let cluster = Cluster::start().await;
    let pods = cluster.watch::<Pod>();
    let pod = json!({
        "metadata": { "namespace": "default", "name": "p", "finalizers": ["example.com/hold"] },
        "spec": { "containers": [{ "name": "c", "image": "i" }] },
    });
    cluster.create::<Pod>(pod).await;
    cluster.delete::<Pod>(&key("default", "p")).await;
    let failed = |pod: Option<&Pod>| {
        let status = pod.and_then(|pod| pod.status.as_ref());
        status.and_then(|status| status.phase.as_deref()) == Some("Failed")
    };
    pods.when(&key("default", "p"), failed).await;
    let free = json!({ "metadata": { "finalizers": null } });
    cluster.client.patch_merge::<Pod>(&key("default", "p"), &free).await.unwrap();
    pods.gone(&key("default", "p")).await;
    cluster.stop().await;
}

/// T-EDGE-14: only a user can know that the node will not come back and continue to run the pod.
#[tokio::test(start_paused = true)]
async fn t_ctrl_36_t_ctrl_43_terminating_pods_of_a_lost_node_stay_until_it_is_out_of_service() {
    let cluster = Cluster::start().await;
    node(&cluster, "n").await;
    node(&cluster, "other").await;
    let pods = cluster.watch::<Pod>();
    cluster.running_pod("default", "p", "n", json!({})).await;
    ready(&cluster, "n", "Unknown").await;
    cluster.delete::<Pod>(&key("default", "p")).await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(cluster.names::<Pod>("default").await, ["p"], "T-CTRL-43");
    let before = Instant::now();
    let out = json!([{ "key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown",
                       "effect": "NoExecute" }]);
    taint(&cluster, "n", out).await;
    pods.gone(&key("default", "p")).await;
    assert!(before.elapsed() <= Duration::from_secs(20), "{:?}", before.elapsed());
    // The deletion is counted after the response.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(removed(&cluster, "out-of-service").as_deref(), Some("1"), "T-CTRL-37");
    cluster.stop().await;
}

/// T-EDGE-16: disruption budgets do not apply.
#[tokio::test(start_paused = true)]
async fn t_ctrl_42_c_188_a_taint_deletes_pods_after_their_toleration() {
    let cluster = Cluster::start().await;
    node(&cluster, "n").await;
    let pods = cluster.watch::<Pod>();
    let tolerating = |seconds: Value| {
        let own = json!({ "key": "own", "operator": "Exists", "effect": "NoExecute",
                          "tolerationSeconds": seconds });
        json!({ "spec": { "tolerations": [own] } })
    };
    cluster
        .create::<PodDisruptionBudget>(json!({
            "metadata": { "namespace": "default", "name": "none" },
            "spec": { "maxUnavailable": 0, "selector": {} },
        }))
        .await;
    cluster.running_pod("default", "now", "n", json!({})).await;
    cluster.running_pod("default", "later", "n", tolerating(json!(10))).await;
    cluster.running_pod("default", "never", "n", tolerating(Value::Null)).await;
    let own = json!([{ "key": "own", "effect": "NoExecute" }]);
    taint(&cluster, "n", own.clone()).await;
    let tainted = Instant::now();
    pods.when(&key("default", "now"), is_being_deleted).await;
    assert!(tainted.elapsed() < Duration::from_secs(1));
    pods.when(&key("default", "now"), |pod| {
        let grace = pod.and_then(|pod| pod.metadata.deletion_grace_period_seconds);
        disruption(pod).as_deref() == Some("DeletionByTaintManager") && grace == Some(30)
    })
    .await;
    pods.when(&key("default", "later"), is_being_deleted).await;
    assert!((10..12).contains(&tainted.elapsed().as_secs()), "{:?}", tainted.elapsed());
    let event = cluster.event("TaintManagerEviction").await;
    assert!(event.message.as_deref().unwrap().starts_with("Marking for deletion Pod default/"));

    // While it waits, a second taint is added, which it does not tolerate.
    cluster.running_pod("default", "overtaken", "n", tolerating(json!(1000))).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    taint(&cluster, "n", json!([own[0], { "key": "other", "effect": "NoExecute" }])).await;
    let tainted = Instant::now();
    pods.when(&key("default", "overtaken"), is_being_deleted).await;
    assert!(tainted.elapsed() < Duration::from_secs(1), "{:?}", tainted.elapsed());
    pods.when(&key("default", "never"), is_being_deleted).await;
    taint(&cluster, "n", own).await;
    cluster.running_pod("default", "for-ever", "n", tolerating(Value::Null)).await;

    cluster.running_pod("default", "saved", "n", tolerating(json!(10))).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    taint(&cluster, "n", json!([])).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    let saved: Pod = cluster.client.get(&key("default", "saved")).await.unwrap();
    assert!(!is_being_deleted(Some(&saved)), "the taint was taken away");
    let for_ever: Pod = cluster.client.get(&key("default", "for-ever")).await.unwrap();
    assert!(!is_being_deleted(Some(&for_ever)));
    let events = cluster.watch::<k8s_openapi::api::core::v1::Event>();
    let text = "Cancelling deletion of Pod default/saved";
    events.find(|event| event.message.as_deref() == Some(text)).await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn t_ctrl_39_t_ctrl_40_a_lost_node_is_tainted_and_its_pods_are_not_ready() {
    let cluster = Cluster::start().await;
    let (nodes, pods) = (cluster.watch::<Node>(), cluster.watch::<Pod>());
    node(&cluster, "lost").await;
    cluster.running_pod("default", "p", "lost", json!({})).await;
    let began = Instant::now();
    // A second node that is ready: without any ready node, no node is tainted.
    node(&cluster, "lives").await;
    let alive = async {
        loop {
            tokio::time::sleep(Duration::from_secs(20)).await;
            let heartbeat = json!({ "conditions": [{ "type": "Ready", "status": "True",
                "lastHeartbeatTime": "2026-01-01T00:00:00Z", "reason": clock::now_rfc3339() }] });
            cluster.status::<Node>(&ObjectKey::cluster("lives"), heartbeat).await;
            let beat = json!({ "conditions": [{ "type": "Ready", "status": "True",
                "lastHeartbeatTime": clock::now_rfc3339() }] });
            cluster.status::<Node>(&ObjectKey::cluster("lives"), beat).await;
        }
    };
    let seen = async {
        let unready = |pod: Option<&Pod>| {
            let conditions = pod.and_then(|pod| pod.status.as_ref()?.conditions.clone());
            let mut conditions = conditions.into_iter().flatten();
            conditions.any(|c| c.type_ == "Ready" && c.status == "False")
        };
        pods.when(&key("default", "p"), unready).await;
        assert!((50..=56).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
        let tainted = |node: Option<&Node>| {
            let taints = node.and_then(|node| node.spec.as_ref()?.taints.clone());
            let mut taints = taints.into_iter().flatten();
            taints.any(|t| t.key == "node.kubernetes.io/unreachable" && t.effect == "NoExecute")
        };
        nodes.when(&ObjectKey::cluster("lost"), tainted).await;
        let events = cluster.watch::<k8s_openapi::api::core::v1::Event>();
        events.find(|event| event.message.as_deref() == Some("Node is not ready")).await;
        let text = "Node lost status is now: NodeNotReady";
        events.find(|event| event.message.as_deref() == Some(text)).await;
        // The pod is deleted after the default toleration of 300 s (T-CTRL-41).
        pods.when(&key("default", "p"), is_being_deleted).await;
        assert!((350..=372).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    };
    tokio::select! { () = alive => (), () = seen => () }
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn t_ctrl_62_a_finished_job_is_deleted_after_its_ttl() {
    let cluster = Cluster::start().await;
    let jobs = cluster.watch::<Job>();
    let template = json!({ "spec": { "restartPolicy": "Never",
                                     "containers": [{ "name": "c", "image": "i" }] } });
    let job = json!({ "metadata": { "namespace": "default", "name": "j" },
                      "spec": { "ttlSecondsAfterFinished": 30, "suspend": true, "template": template } });
    cluster.create::<Job>(job).await;
    let now = clock::now_rfc3339();
    let condition =
        |type_: &str| json!({ "type": type_, "status": "True", "lastTransitionTime": now });
    let status = json!({ "startTime": now, "completionTime": now,
                         "conditions": [condition("SuccessCriteriaMet"), condition("Complete")] });
    cluster.status::<Job>(&key("default", "j"), status).await;
    let finished = Instant::now();
    jobs.gone(&key("default", "j")).await;
    assert!((29..=31).contains(&finished.elapsed().as_secs()), "{:?}", finished.elapsed());
    cluster.stop().await;
}
