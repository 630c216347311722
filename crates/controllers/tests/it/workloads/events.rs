//! The events of each controller (C-218).

use super::cluster::{Cluster, NAMESPACE, template};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, StatefulSet};
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::core::v1::{Event, ReplicationController};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use serde_json::{Value, json};

fn object(name: &str, spec: Value) -> Value {
    json!({ "metadata": { "namespace": NAMESPACE, "name": name }, "spec": spec })
}

/// Component, kind, type, reason, and how the message begins.
const EXPECTED_EVENTS: [(&str, &str, &str, &str, &str); 11] = [
    (
        "deployment-controller",
        "Deployment",
        "Normal",
        "ScalingReplicaSet",
        "Scaled up replica set web-",
    ),
    ("replicaset-controller", "ReplicaSet", "Normal", "SuccessfulCreate", "Created pod: web-"),
    (
        "replication-controller",
        "ReplicationController",
        "Normal",
        "SuccessfulCreate",
        "Created pod: old-",
    ),
    ("daemonset-controller", "DaemonSet", "Normal", "SuccessfulCreate", "Created pod: log-"),
    (
        "statefulset-controller",
        "StatefulSet",
        "Normal",
        "SuccessfulCreate",
        "Create Pod db-0 in StatefulSet db successful",
    ),
    ("job-controller", "Job", "Normal", "SuccessfulCreate", "Created pod: sum-"),
    ("job-controller", "Job", "Normal", "Suspended", "Job suspended"),
    ("cronjob-controller", "CronJob", "Normal", "SuccessfulCreate", "Created job tick-"),
    ("controllermanager", "PodDisruptionBudget", "Normal", "NoPods", "No matching pods found"),
    (
        "node-controller",
        "Node",
        "Normal",
        "RegisteredNode",
        "Node n1 event: Registered Node n1 in Controller",
    ),
    ("replicaset-controller", "ReplicaSet", "Normal", "SuccessfulDelete", "Deleted pod: web-"),
];

/// C-218: event reasons and messages are upstream's.
#[tokio::test(start_paused = true)]
async fn c_218_events_name_their_controller() {
    let cluster = Cluster::start().await;
    cluster.ready_node(json!({ "metadata": { "name": "n1" } })).await;
    let of = |app: &str| json!({ "selector": { "matchLabels": { "app": app } }, "template": template(app, "i") });
    let mut set = of("db");
    set["serviceName"] = json!("db");
    cluster.create::<StatefulSet>(object("db", set)).await;
    cluster.create::<DaemonSet>(object("log", of("log"))).await;
    cluster.create::<Deployment>(object("web", of("web"))).await;
    let old = json!({ "selector": { "app": "old" }, "template": template("old", "i") });
    cluster.create::<ReplicationController>(object("old", old)).await;
    let job = json!({ "template": { "spec": { "restartPolicy": "Never",
                      "containers": [{ "name": "c", "image": "i" }] } } });
    cluster.create::<Job>(object("sum", job.clone())).await;
    let every = json!({ "schedule": "* * * * *", "jobTemplate": { "spec": job } });
    cluster.create::<CronJob>(object("tick", every)).await;
    let none = json!({ "minAvailable": 1, "selector": { "matchLabels": { "app": "none" } } });
    cluster.create::<PodDisruptionBudget>(object("none", none)).await;
    cluster.event_on("Job", "SuccessfulCreate").await;
    cluster.patch::<Job>("sum", json!({ "spec": { "suspend": true } })).await;
    cluster.patch::<Deployment>("web", json!({ "spec": { "replicas": 0 } })).await;
    let matches_row = |event: &Event, row: &(&str, &str, &str, &str, &str)| {
        let (component, kind, type_, reason, message) = *row;
        let source = event.source.as_ref().and_then(|source| source.component.as_deref());
        source == Some(component)
            && event.involved_object.kind.as_deref() == Some(kind)
            && event.type_.as_deref() == Some(type_)
            && event.reason.as_deref() == Some(reason)
            && event.message.as_deref().is_some_and(|actual| actual.starts_with(message))
    };
    // Wait a minute for the schedule; polling would cost more than the rest of the test.
    tokio::time::sleep(std::time::Duration::from_secs(61)).await;
    for row in EXPECTED_EVENTS {
        cluster.when_all::<Event>(|all| all.iter().any(|event| matches_row(event, &row))).await;
    }
    cluster.stop().await;
}
