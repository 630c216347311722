//! Controllers of an idle cluster write nothing (C-16), even right after a restart.

use super::cluster::{Cluster, NAMESPACE, template};
use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet, StatefulSet};
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use std::time::Duration;

fn object(name: &str, spec: Value) -> Value {
    json!({ "metadata": { "namespace": NAMESPACE, "name": name }, "spec": spec })
}

async fn versions<K: client::Object<DynamicType = ()>>(cluster: &Cluster) -> Vec<String> {
    let all = cluster.all::<K>().await;
    all.iter().map(|one| one.meta().resource_version.clone().unwrap()).collect()
}

async fn all_versions(cluster: &Cluster) -> Vec<Vec<String>> {
    vec![
        versions::<StatefulSet>(cluster).await,
        versions::<DaemonSet>(cluster).await,
        versions::<ControllerRevision>(cluster).await,
        versions::<Job>(cluster).await,
        versions::<CronJob>(cluster).await,
        versions::<Pod>(cluster).await,
    ]
}

#[tokio::test(start_paused = true)]
async fn c_16_idle_workloads_are_not_written() {
    let mut cluster = Cluster::start().await;
    cluster.ready_node(json!({ "metadata": { "name": "n1" } })).await;
    let of = |app: &str| json!({ "selector": { "matchLabels": { "app": app } }, "template": template(app, "i") });
    let mut set = of("db");
    (set["serviceName"], set["replicas"]) = (json!("db"), json!(1));
    cluster.create::<StatefulSet>(object("db", set)).await;
    cluster.create::<DaemonSet>(object("log", of("log"))).await;
    let never = json!({ "restartPolicy": "Never", "containers": [{ "name": "c", "image": "i" }] });
    let job = json!({ "completionMode": "Indexed", "completions": 2, "parallelism": 2,
        "backoffLimitPerIndex": 1, "template": { "spec": never } });
    cluster.create::<Job>(object("sum", job.clone())).await;
    let yearly = json!({ "schedule": "@yearly", "jobTemplate": { "spec": job } });
    cluster.create::<CronJob>(object("tick", yearly)).await;
    cluster.all_run(4).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let before = all_versions(&cluster).await;
    cluster.restart_controllers().await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(all_versions(&cluster).await, before);
    cluster.stop().await;
}
