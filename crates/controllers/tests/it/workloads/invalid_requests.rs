//! Mistakes of users are rejected or reported, and controllers do not loop because of them.
//!
//! To detect loops, the tests count the requests of controllers per minute.

use super::cluster::{Cluster, NAMESPACE, key, template};
use client::{DeleteOptions, ObjectKey, Propagation};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{
    ConfigMap, Endpoints, Namespace, Pod, ReplicationController, ResourceQuota, Service,
};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

const MINUTES: u32 = 5;

/// Requests per minute after everything has settled, without renewals of watches and discovery.
const PEACE: f64 = 0.0;

/// After this long all retries have reached their maximum delay.
const SETTLED: Duration = Duration::from_secs(180);

fn named(name: &str, spec: Value) -> Value {
    json!({ "metadata": { "namespace": NAMESPACE, "name": name }, "spec": spec })
}

fn set(app: &str, replicas: i32) -> Value {
    json!({ "replicas": replicas, "selector": { "matchLabels": { "app": app } },
            "template": template(app, "i") })
}

/// The requests of controllers per minute, after they have reacted to the last change.
async fn a_minute(cluster: &Cluster) -> (f64, BTreeMap<String, usize>) {
    tokio::time::sleep(Duration::from_secs(60)).await;
    let before = cluster.requests().len();
    tokio::time::sleep(Duration::from_secs(60) * MINUTES).await;
    let mut by_kind = BTreeMap::new();
    let requests = cluster.requests().split_off(before);
    // Without renewals of watches and discovery.
    for request in requests
        .into_iter()
        .filter(|requests| !requests.starts_with("watch ") && requests != "get ")
    {
        *by_kind.entry(request).or_default() += 1;
    }
    (by_kind.values().sum::<usize>() as f64 / f64::from(MINUTES), by_kind)
}

async fn at_most(cluster: &Cluster, bound: f64) {
    let (rate, requests) = a_minute(cluster).await;
    eprintln!("{rate} requests a minute");
    assert!(rate <= bound, "{rate} requests a minute: {requests:#?}");
}

/// C-16: selectors that match nothing.
#[tokio::test(start_paused = true)]
async fn selectors_that_match_nothing_are_reported_and_cause_no_requests() {
    let cluster = Cluster::start().await;
    let nothing = json!({ "matchLabels": { "app": "none" } });
    let budget = json!({ "minAvailable": 1, "selector": nothing });
    cluster.create::<PodDisruptionBudget>(named("none", budget)).await;
    let service = json!({ "selector": { "app": "none" }, "ports": [{ "port": 80 }] });
    cluster.create::<Service>(named("none", service)).await;
    let budget = cluster
        .when::<PodDisruptionBudget>("none", |budget| {
            budget.status.as_ref().is_some_and(|status| status.observed_generation == Some(1))
        })
        .await;
    let status = budget.status.unwrap();
    assert_eq!((status.expected_pods, status.disruptions_allowed), (Some(0), Some(0)));
    let reasons: Vec<String> = status
        .conditions
        .into_iter()
        .flatten()
        .map(|c| c.type_ + "=" + &c.status + " " + &c.reason)
        .collect();
    assert_eq!(reasons, ["DisruptionAllowed=False InsufficientPods"]);
    let endpoints = cluster.when::<Endpoints>("none", |_| true).await;
    assert_eq!(endpoints.subsets.unwrap_or_default(), vec![]);
    // The server rejects a set whose selector does not match its own pods.
    let mut wrong = set("web", 1);
    wrong["selector"]["matchLabels"]["app"] = "other".into();
    let refused =
        cluster.client.create::<ReplicaSet>(&super::cluster::read(named("wrong", wrong))).await;
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("`selector` does not match template `labels`"), "{refused}");
    at_most(&cluster, PEACE).await;
    cluster.stop().await;
}

/// C-2, C-3, C-4: overlapping selectors. Each owner keeps its own pods, and one of them adopts an orphan.
#[tokio::test(start_paused = true)]
async fn overlapping_selectors_do_not_cause_endless_writes() {
    let cluster = Cluster::start().await;
    cluster.create::<ReplicaSet>(named("one", set("web", 2))).await;
    cluster.create::<ReplicaSet>(named("two", set("web", 2))).await;
    cluster.create::<Deployment>(named("three", set("web", 2))).await;
    cluster.create::<Deployment>(named("four", set("web", 2))).await;
    let mut old = set("web", 2);
    old["selector"] = json!({ "app": "web" });
    cluster.create::<ReplicationController>(named("old", old)).await;
    let mut pods = cluster.all_run(10).await;
    let stranger = json!({ "metadata": { "namespace": NAMESPACE, "name": "stranger", "labels": { "app": "web" } },
                           "spec": { "containers": [{ "name": "c", "image": "i" }] } });
    cluster.create::<Pod>(stranger).await;
    // The owner that adopts the orphan has one pod too many and deletes one, not necessarily the orphan.
    cluster.when_all::<Pod>(|pods| pods.iter().all(|pod| owner(pod).is_some())).await;
    cluster.quiet().await;
    cluster.clear().await;
    pods = cluster.living(pods.len()).await;
    let mut by_owner: BTreeMap<String, usize> = BTreeMap::new();
    for pod in &pods {
        *by_owner.entry(owner(pod).unwrap_or_default()).or_default() += 1;
    }
    assert_eq!(by_owner.values().copied().collect::<Vec<_>>(), [2; 5], "{by_owner:?}");
    at_most(&cluster, PEACE).await;
    let uids = |pods: &[Pod]| pods.iter().map(|pod| pod.metadata.uid.clone()).collect::<Vec<_>>();
    assert_eq!(
        uids(&cluster.all::<Pod>().await),
        uids(&pods),
        "no owner adopts the pods of another"
    );
    cluster.stop().await;
}

fn owner(pod: &Pod) -> Option<String> {
    let owners = pod.metadata.owner_references.as_ref()?;
    owners.iter().find(|owner| owner.controller == Some(true)).map(|owner| owner.name.clone())
}

/// C-162: owners in a cycle, and an object that owns itself: existing, being deleted with a finalizer, and deleted.
#[tokio::test(start_paused = true)]
async fn owners_in_a_cycle_cause_no_requests_and_can_be_deleted() {
    let cluster = Cluster::start().await;
    let mut uids = Vec::new();
    for name in ["a", "b", "self"] {
        let object = json!({ "metadata": { "namespace": NAMESPACE, "name": name } });
        uids.push(cluster.create::<ConfigMap>(object).await.metadata.uid.unwrap());
    }
    let owned = |name: &str, uid: &str| {
        json!({ "metadata": { "finalizers": ["example.com/hold"], "ownerReferences": [
            { "apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": uid, "blockOwnerDeletion": true }] } })
    };
    cluster.patch::<ConfigMap>("a", owned("b", &uids[1])).await;
    cluster.patch::<ConfigMap>("b", owned("a", &uids[0])).await;
    cluster.patch::<ConfigMap>("self", owned("self", &uids[2])).await;
    at_most(&cluster, PEACE).await;
    for name in ["a", "self"] {
        let options = DeleteOptions {
            propagation: Some(Propagation::Foreground),
            ..DeleteOptions::default()
        };
        cluster.client.delete::<ConfigMap>(&key(name), &options).await.unwrap();
    }
    at_most(&cluster, PEACE).await;
    for name in ["a", "b", "self"] {
        let held = cluster.get::<ConfigMap>(name).await;
        assert!(held.metadata.deletion_timestamp.is_some(), "{name} is going");
        // Remove only our finalizer; the garbage collector removes its own.
        let let_go =
            json!({ "metadata": { "$deleteFromPrimitiveList/finalizers": ["example.com/hold"] } });
        cluster.client.patch_strategic::<ConfigMap>(&key(name), &let_go).await.unwrap();
    }
    cluster
        .when_all::<ConfigMap>(|all| {
            all.iter().all(|one| one.metadata.name.as_deref() == Some("kube-root-ca.crt"))
        })
        .await;
    cluster.stop().await;
}

/// A-147: validation rejects invalid numbers.
#[tokio::test(start_paused = true)]
async fn negative_replicas_are_refused() {
    let cluster = Cluster::start().await;
    async fn refused<K: client::Object<DynamicType = ()>>(
        cluster: &Cluster,
        object: Value,
        what: &str,
    ) {
        let made = cluster.client.create::<K>(&super::cluster::read(object)).await;
        let Err(error) = made else { panic!("{what} was taken") };
        let text = error.to_string();
        assert!(
            text.contains(what) && text.contains("must be greater than or equal to 0"),
            "{text}"
        );
    }
    let less = set("web", -1);
    refused::<ReplicaSet>(&cluster, named("r", less.clone()), "spec.replicas").await;
    refused::<Deployment>(&cluster, named("d", less.clone()), "spec.replicas").await;
    refused::<StatefulSet>(&cluster, named("s", less.clone()), "spec.replicas").await;
    let mut old = less;
    old["selector"] = json!({ "app": "web" });
    refused::<ReplicationController>(&cluster, named("c", old), "spec.replicas").await;
    let never = json!({ "restartPolicy": "Never", "containers": [{ "name": "c", "image": "i" }] });
    for field in ["parallelism", "completions", "backoffLimit", "activeDeadlineSeconds"] {
        let job = json!({ field: -1, "template": { "spec": never } });
        refused::<Job>(&cluster, named("j", job), &format!("spec.{field}")).await;
    }
    cluster.create::<Deployment>(named("web", set("web", 1))).await;
    let less = json!({ "spec": { "replicas": -5 } });
    let patched = cluster.client.patch_merge::<Deployment>(&key("web"), &less).await;
    assert!(patched.unwrap_err().to_string().contains("must be greater than or equal to 0"));
    cluster.stop().await;
}

/// T-CTRL-55, W-69: a namespace whose content cannot be deleted reports why, and is checked as often as in upstream.
#[tokio::test(start_paused = true)]
async fn a_namespace_held_forever_reports_why_and_causes_few_requests() {
    let cluster = Cluster::start().await;
    cluster.create::<Namespace>(json!({ "metadata": { "name": "held" } })).await;
    let held = json!({ "metadata": { "namespace": "held", "name": "c", "finalizers": ["example.com/nobody"] } });
    cluster.create::<ConfigMap>(held).await;
    let namespace = ObjectKey::cluster("held");
    cluster.client.delete::<Namespace>(&namespace, &DeleteOptions::default()).await.unwrap();
    tokio::time::sleep(SETTLED).await;
    let conditions =
        cluster.client.get::<Namespace>(&namespace).await.unwrap().status.unwrap().conditions;
    let message: Vec<String> = conditions
        .into_iter()
        .flatten()
        .filter(|c| c.status == "True")
        .map(|c| format!("{}: {}", c.type_, c.message.unwrap_or_default()))
        .collect();
    assert_eq!(
        message,
        [
            "NamespaceContentRemaining: Some resources are remaining: configmaps. has 1 resource instances",
            "NamespaceFinalizersRemaining: Some content in the namespace has finalizers remaining: example.com/nobody in 1 resource instances",
        ]
    );
    // It is checked every 8 s (T-CTRL-54), but only for the kind that remains, because no new content can come.
    at_most(&cluster, 8.0).await;
    let free = json!({ "metadata": { "finalizers": null } });
    cluster.client.patch_merge::<ConfigMap>(&ObjectKey::new("held", "c"), &free).await.unwrap();
    while cluster.client.find::<Namespace>(&namespace).await.unwrap().is_some() {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    cluster.stop().await;
}

/// C-156: many deletions cause one recount, not one each.
#[tokio::test(start_paused = true)]
async fn c_156_many_deletions_cause_few_recounts() {
    let cluster = Cluster::start().await;
    let spec = json!({ "hard": { "count/configmaps": "100" } });
    cluster.create::<ResourceQuota>(named("q", spec)).await;
    let used = |quota: &ResourceQuota| {
        let used = quota.status.as_ref().and_then(|status| status.used.as_ref());
        used.and_then(|used| used.get("count/configmaps")).and_then(|n| n.0.parse::<u32>().ok())
    };
    let quota = cluster.when::<ResourceQuota>("q", |quota| used(quota).is_some()).await;
    let there = used(&quota).unwrap();
    for number in 0..40 {
        cluster.create::<ConfigMap>(named(&format!("c{number}"), json!(null))).await;
    }
    let before = cluster.requests().len();
    for number in 0..40 {
        let name = key(&format!("c{number}"));
        cluster.client.delete::<ConfigMap>(&name, &DeleteOptions::default()).await.unwrap();
    }
    cluster.when::<ResourceQuota>("q", |quota| used(quota) == Some(there)).await;
    let requests = cluster.requests().split_off(before);
    let counts = requests.iter().filter(|requests| *requests == "list configmaps").count();
    assert!((1..=4).contains(&counts), "{counts} counts: {requests:?}");
    cluster.stop().await;
}

/// C-9, C-21, C-217: refused pods are retried with backoff, one at a time, and reported.
#[tokio::test(start_paused = true)]
async fn c_217_refused_pods_are_retried_with_backoff() {
    let cluster = Cluster::start().await;
    cluster.ready_node(json!({ "metadata": { "name": "n1" } })).await;
    let refused = |app: &str, replicas: i32| {
        let mut set = set(app, replicas);
        set["template"]["spec"]["serviceAccountName"] = "nobody".into();
        set
    };
    let without = |mut spec: Value, field: &str| {
        spec.as_object_mut().unwrap().remove(field);
        spec
    };
    cluster.create::<ReplicaSet>(named("rs", refused("rs", 50))).await;
    let mut stateful = refused("sts", 50);
    (stateful["serviceName"], stateful["podManagementPolicy"]) = (json!("sts"), json!("Parallel"));
    cluster.create::<StatefulSet>(named("sts", stateful)).await;
    cluster.create::<DaemonSet>(named("ds", without(refused("ds", 1), "replicas"))).await;
    let mut job = without(without(refused("job", 1), "replicas"), "selector");
    (job["template"]["spec"]["restartPolicy"], job["parallelism"]) = (json!("Never"), json!(50));
    cluster.create::<Job>(named("job", job)).await;
    for kind in ["ReplicaSet", "StatefulSet", "DaemonSet", "Job"] {
        let message = cluster.event_on(kind, "FailedCreate").await;
        assert!(message.contains("service account"), "{kind}: {message}");
    }
    let failing = |set: &ReplicaSet| {
        let conditions = set.status.as_ref().and_then(|status| status.conditions.as_ref());
        conditions
            .into_iter()
            .flatten()
            .any(|c| c.type_ == "ReplicaFailure" && c.reason.as_deref() == Some("FailedCreate"))
    };
    cluster.when::<ReplicaSet>("rs", failing).await;
    tokio::time::sleep(SETTLED).await;
    // Four objects, each tried about once a minute, with an event for each try.
    at_most(&cluster, 4.0 * 4.0).await;
    cluster.stop().await;
}

/// C-63, T-CTRL-17: another pod has the name of a stateful pod. That is reported, and the other pod is not deleted.
#[tokio::test(start_paused = true)]
async fn a_taken_name_of_a_stateful_pod_is_waited_for() {
    let cluster = Cluster::start().await;
    let stranger = json!({ "metadata": { "namespace": NAMESPACE, "name": "db-0" },
                           "spec": { "nodeName": "worker", "containers": [{ "name": "c", "image": "i" }] } });
    let stranger = cluster.create::<Pod>(stranger).await;
    let mut stateful = set("db", 1);
    stateful["serviceName"] = json!("db");
    cluster.create::<StatefulSet>(named("db", stateful)).await;
    let message = cluster.event_on("StatefulSet", "FailedCreate").await;
    assert_eq!(
        message,
        "Create Pod db-0 in StatefulSet db failed error: pods \"db-0\" already exists"
    );
    tokio::time::sleep(SETTLED).await;
    at_most(&cluster, 4.0).await;
    let there = cluster.get::<Pod>("db-0").await;
    assert_eq!(
        (there.metadata.uid, there.metadata.owner_references),
        (stranger.metadata.uid.clone(), None)
    );
    cluster.gone(&stranger).await;
    cluster.when::<Pod>("db-0", |pod| owner(pod).as_deref() == Some("db")).await;
    cluster.stop().await;
}
