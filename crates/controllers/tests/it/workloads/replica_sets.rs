//! ReplicaSets and ReplicationControllers.

use super::cluster::{Cluster, NAMESPACE, key, names, read, template};
use client::Selection;
use k8s_openapi::api::apps::v1::{DaemonSet, ReplicaSet};
use k8s_openapi::api::core::v1::{Event, Namespace, Pod, ReplicationController, ResourceQuota};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::Instant;

fn set(replicas: i32, more: Value) -> Value {
    let mut spec = json!({
        "replicas": replicas,
        "selector": { "matchLabels": { "app": "web" } },
        "template": template("web", "i"),
    });
    if let (Some(spec), Some(more)) = (spec.as_object_mut(), more.as_object()) {
        spec.extend(more.clone());
    }
    json!({ "metadata": { "namespace": NAMESPACE, "name": "web" }, "spec": spec })
}

fn owner(pod: &Pod) -> Option<String> {
    Some(pod.metadata.owner_references.as_ref()?.first()?.name.clone())
}

/// C-15: the observed generation. C-197: the service account.
#[tokio::test(start_paused = true)]
async fn c_1_c_7_c_19_a_set_creates_its_pods_and_reports_them() {
    let cluster = Cluster::start().await;
    cluster.create::<ReplicaSet>(set(3, json!({}))).await;
    let pods = cluster.all_run(3).await;
    for pod in &pods {
        let owner = &pod.metadata.owner_references.as_ref().unwrap()[0];
        assert_eq!((owner.kind.as_str(), owner.api_version.as_str()), ("ReplicaSet", "apps/v1"));
        assert_eq!((owner.controller, owner.block_owner_deletion), (Some(true), Some(true)));
        assert_eq!(pod.metadata.generate_name.as_deref(), Some("web-"));
        let managers = pod.metadata.managed_fields.as_ref().unwrap();
        assert_eq!(managers[0].manager.as_deref(), Some("kube-controller-manager"), "C-197");
    }
    let ready = |set: &ReplicaSet| set.status.as_ref().unwrap().ready_replicas == Some(3);
    let set = cluster.when::<ReplicaSet>("web", ready).await;
    let status = set.status.unwrap();
    assert_eq!(status.available_replicas, Some(3));
    assert_eq!(status.fully_labeled_replicas, Some(3));
    assert_eq!(status.terminating_replicas, Some(0));
    assert_eq!(status.observed_generation, set.metadata.generation);
    let created = cluster.event("SuccessfulCreate").await;
    assert!(created.starts_with("Created pod: web-"), "{created}");
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn t_ctrl_1_t_ctrl_3_a_terminating_pod_is_replaced_at_once_and_counted() {
    let cluster = Cluster::start().await;
    cluster.create::<ReplicaSet>(set(2, json!({}))).await;
    let pods = cluster.all_run(2).await;
    cluster.delete::<Pod>(&names(&pods)[0]).await;
    let counted = |set: &ReplicaSet| {
        let status = set.status.as_ref().unwrap();
        (status.replicas, status.ready_replicas, status.terminating_replicas)
            == (2, Some(1), Some(1))
    };
    cluster.when::<ReplicaSet>("web", counted).await;
    assert_eq!(cluster.all::<Pod>().await.len(), 3, "the old one is still there");
    cluster.clear().await;
    let none = |set: &ReplicaSet| set.status.as_ref().unwrap().terminating_replicas == Some(0);
    cluster.when::<ReplicaSet>("web", none).await;
    cluster.living(2).await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn t_ctrl_6_scaling_down_deletes_the_unready_pod() {
    let cluster = Cluster::start().await;
    cluster.create::<ReplicaSet>(set(3, json!({}))).await;
    let pods = cluster.all_run(3).await;
    cluster.runs(&pods[1], false).await;
    cluster.patch::<ReplicaSet>("web", json!({ "spec": { "replicas": 2 } })).await;
    let left = cluster.living(2).await;
    assert!(!names(&left).contains(&names(&pods)[1]), "{:?}", names(&left));
    assert_eq!(
        cluster.event("SuccessfulDelete").await,
        format!("Deleted pod: {}", names(&pods)[1])
    );
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_2_c_4_a_bare_pod_is_adopted_and_a_relabelled_one_replaced() {
    let cluster = Cluster::start().await;
    let mut bare = template("web", "i");
    bare["metadata"]["name"] = json!("bare");
    bare["metadata"]["namespace"] = json!(NAMESPACE);
    cluster.create::<Pod>(bare).await;
    cluster.create::<ReplicaSet>(set(1, json!({}))).await;
    cluster.when::<Pod>("bare", |pod| owner(pod).as_deref() == Some("web")).await;
    cluster.living(1).await;
    let relabelled = json!({ "metadata": { "labels": { "app": "other" } } });
    cluster.patch::<Pod>("bare", relabelled).await;
    cluster.when::<Pod>("bare", |pod| owner(pod).is_none()).await;
    cluster.living(2).await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_12_a_ready_pod_is_available_after_min_ready_seconds() {
    let cluster = Cluster::start().await;
    cluster.create::<ReplicaSet>(set(1, json!({ "minReadySeconds": 10 }))).await;
    cluster.all_run(1).await;
    let ready = Instant::now();
    let available = |set: &ReplicaSet| set.status.as_ref().unwrap().available_replicas == Some(1);
    cluster.when::<ReplicaSet>("web", available).await;
    let after = ready.elapsed();
    assert!((9..=11).contains(&after.as_secs()), "{after:?}");
    cluster.stop().await;
}

/// C-216: status fields of others are kept.
#[tokio::test(start_paused = true)]
async fn c_13_wrong_counters_written_by_others_are_corrected() {
    let cluster = Cluster::start().await;
    cluster.create::<ReplicaSet>(set(1, json!({}))).await;
    cluster.all_run(1).await;
    let ready = |set: &ReplicaSet| set.status.as_ref().unwrap().ready_replicas == Some(1);
    cluster.when::<ReplicaSet>("web", ready).await;
    let wrong = json!({ "status": { "readyReplicas": 0, "availableReplicas": 0,
        "conditions": [{ "type": "Mine", "status": "True" }] } });
    let patched = cluster.client.patch_status::<ReplicaSet>(&key("web"), &wrong).await.unwrap();
    assert_ne!(patched.status.as_ref().unwrap().ready_replicas, Some(1));
    let set = cluster.when::<ReplicaSet>("web", ready).await;
    assert_eq!(set.status.unwrap().conditions.unwrap()[0].type_, "Mine", "C-14");
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_16_nothing_is_written_when_nothing_changes() {
    let mut cluster = Cluster::start().await;
    cluster.create::<ReplicaSet>(set(2, json!({}))).await;
    cluster.all_run(2).await;
    let ready = |set: &ReplicaSet| set.status.as_ref().unwrap().available_replicas == Some(2);
    let before = cluster.when::<ReplicaSet>("web", ready).await;
    cluster.restart_controllers().await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let after = cluster.get::<ReplicaSet>("web").await;
    assert_eq!(after.metadata.resource_version, before.metadata.resource_version);
    cluster.living(2).await;
    cluster.stop().await;
}

/// C-209: event and condition have the message of admission.
#[tokio::test(start_paused = true)]
async fn c_21_c_26_a_refused_pod_sets_a_condition_until_it_succeeds() {
    let cluster = Cluster::start().await;
    let quota = json!({ "metadata": { "namespace": NAMESPACE, "name": "q" },
                        "spec": { "hard": { "pods": "2" } } });
    cluster.client.create::<ResourceQuota>(&read(quota)).await.unwrap();
    let used = json!({ "status": { "hard": { "pods": "2" }, "used": { "pods": "0" } } });
    cluster.client.patch_status::<ResourceQuota>(&key("q"), &used).await.unwrap();
    let controller = json!({
        "metadata": { "namespace": NAMESPACE, "name": "web" },
        "spec": { "replicas": 3, "selector": { "app": "web" }, "template": template("web", "i") },
    });
    cluster.create::<ReplicationController>(controller).await;
    let failed = |rc: &ReplicationController| {
        let conditions = rc.status.as_ref().and_then(|status| status.conditions.as_ref());
        conditions.is_some_and(|c| c.iter().any(|c| c.reason.as_deref() == Some("FailedCreate")))
    };
    let rc = cluster.when::<ReplicationController>("web", failed).await;
    let condition = rc.status.unwrap().conditions.unwrap()[0].clone();
    assert!(condition.message.unwrap().contains("exceeded quota: q"));
    assert!(cluster.event("FailedCreate").await.starts_with("Error creating: pods \"web-"));
    cluster.patch::<ReplicationController>("web", json!({ "spec": { "replicas": 2 } })).await;
    cluster.when::<ReplicationController>("web", |rc| !failed(rc)).await;
    cluster.living(2).await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_23_a_matching_pod_queues_the_sets_that_select_it() {
    let cluster = Cluster::start().await;
    cluster.create::<ReplicaSet>(set(1, json!({}))).await;
    cluster.all_run(1).await;
    let mut bare = template("other", "i");
    bare["metadata"]["name"] = json!("bare");
    bare["metadata"]["namespace"] = json!(NAMESPACE);
    cluster.create::<Pod>(bare).await;
    cluster.living(2).await;
    // The label matches now: the pod is adopted, and there is one too many.
    cluster.patch::<Pod>("bare", json!({ "metadata": { "labels": { "app": "web" } } })).await;
    let left = cluster.living(1).await.remove(0);
    cluster.clear().await;
    // The owner reference is removed: the pod is adopted again, and none is created.
    let name = left.metadata.name.clone().unwrap();
    cluster.patch::<Pod>(&name, json!({ "metadata": { "ownerReferences": null } })).await;
    cluster.when::<Pod>(&name, |pod| owner(pod).as_deref() == Some("web")).await;
    assert_eq!(names(&cluster.living(1).await), std::slice::from_ref(&name));
    // A terminating pod is replaced at once.
    cluster.delete::<Pod>(&name).await;
    cluster.living(1).await;
    assert_eq!(cluster.all::<Pod>().await.len(), 2);
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_198_events_have_component_object_and_time() {
    let cluster = Cluster::start().await;
    let set = cluster.create::<ReplicaSet>(set(1, json!({}))).await;
    cluster.event_on("ReplicaSet", "SuccessfulCreate").await;
    let events = cluster.all::<Event>().await;
    let about = |event: &&Event| event.involved_object.kind.as_deref() == Some("ReplicaSet");
    let event = events.iter().find(about).unwrap();
    let name = event.metadata.name.clone().unwrap();
    let (object, number) = name.split_once('.').unwrap();
    assert_eq!(object, "web");
    let nanoseconds = i128::from_str_radix(number, 16).unwrap();
    let at = event.first_timestamp.as_ref().unwrap().0;
    assert_eq!((nanoseconds / 1_000_000_000) as i64, at.as_second());
    assert_eq!(event.metadata.namespace.as_deref(), Some(NAMESPACE));
    let on = &event.involved_object;
    assert_eq!((on.name.as_deref(), on.namespace.as_deref()), (Some("web"), Some(NAMESPACE)));
    assert_eq!((on.api_version.as_deref(), &on.uid), (Some("apps/v1"), &set.metadata.uid));
    assert!(on.resource_version.is_some());
    let source = event.source.as_ref().and_then(|source| source.component.as_deref());
    assert_eq!(source, Some("replicaset-controller"));
    assert_eq!(event.reporting_component.as_deref(), source);
    assert_eq!(event.reporting_instance.as_deref().unwrap_or_default(), "");
    assert_eq!((&event.last_timestamp, event.count), (&event.first_timestamp, Some(1)));
    assert_eq!((event.type_.as_deref(), &event.event_time), (Some("Normal"), &None));
    cluster.stop().await;
}

async fn starve(cluster: &Cluster) {
    let quota = json!({ "metadata": { "namespace": NAMESPACE, "name": "q" },
                        "spec": { "hard": { "pods": "0" } } });
    cluster.create::<ResourceQuota>(quota).await;
    let counted =
        |quota: &ResourceQuota| quota.status.as_ref().is_some_and(|status| status.hard.is_some());
    cluster.when::<ResourceQuota>("q", counted).await;
}

/// C-217: a refused create is retried with backoff.
#[tokio::test(start_paused = true)]
async fn c_217_a_set_whose_pods_are_refused_does_not_spin() {
    let cluster = Cluster::start().await;
    starve(&cluster).await;
    cluster.create::<ReplicaSet>(set(100, json!({}))).await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    let events = cluster.all::<Event>().await;
    let refused = events.iter().filter(|event| event.reason.as_deref() == Some("FailedCreate"));
    let tries: i32 = refused.filter_map(|event| event.count).sum();
    // From 5 ms doubling to a minute, and one more because of its own status write.
    assert!((14..=30).contains(&tries), "{tries} tries in ten minutes");
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_209_admission_changes_pods_but_not_templates() {
    let cluster = Cluster::start().await;
    cluster.ready_node(json!({ "metadata": { "name": "n1" } })).await;
    let made = cluster.create::<ReplicaSet>(set(1, json!({}))).await;
    let daemon = json!({ "metadata": { "namespace": NAMESPACE, "name": "log" }, "spec": {
        "selector": { "matchLabels": { "app": "log" } }, "template": template("log", "i") } });
    cluster.create::<DaemonSet>(daemon).await;
    let pods = cluster.living(2).await;
    let of = |app: &str| {
        let is_it = |pod: &&Pod| pod.metadata.labels.as_ref().unwrap()["app"] == app;
        pods.iter().find(is_it).unwrap().spec.clone().unwrap()
    };
    let lasting = |spec: &k8s_openapi::api::core::v1::PodSpec| -> Vec<Option<i64>> {
        let all = spec.tolerations.iter().flatten();
        let ours = all.filter(|one| {
            let key = one.key.as_deref().unwrap_or_default();
            one.effect.as_deref() == Some("NoExecute") && key.starts_with("node.kubernetes.io/")
        });
        ours.map(|one| one.toleration_seconds).collect()
    };
    let web = of("web");
    let token = |name: &str| name.starts_with("kube-api-access-");
    assert!(web.volumes.iter().flatten().any(|volume| token(&volume.name)));
    assert!(web.containers[0].volume_mounts.iter().flatten().any(|mount| token(&mount.name)));
    assert_eq!(lasting(&web), [Some(300), Some(300)]);
    assert_eq!(lasting(&of("log")), [None, None], "a daemon's pod tolerates already, for ever");
    let after = cluster.get::<ReplicaSet>("web").await;
    assert_eq!(after.spec, made.spec);
    let spec = after.spec.unwrap().template.unwrap().spec.unwrap();
    assert_eq!((spec.volumes, spec.tolerations), (None, None));

    // Admission of the namespace rejects the pod, not the template.
    let strict = json!({ "metadata": { "name": "strict",
        "labels": { "pod-security.kubernetes.io/enforce": "restricted" } } });
    cluster.create::<Namespace>(strict).await;
    let mut set = set(1, json!({}));
    set["metadata"]["namespace"] = json!("strict");
    cluster.create::<ReplicaSet>(set).await;
    let reported = async {
        loop {
            let events = cluster.client.list::<Event>(&Selection::namespace("strict")).await;
            let failed = |event: &&Event| event.reason.as_deref() == Some("FailedCreate");
            if let Some(event) = events.unwrap().iter().find(failed) {
                return event.message.clone().unwrap();
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let message = tokio::time::timeout(Duration::from_secs(60), reported).await.unwrap();
    assert!(message.contains("violates PodSecurity \"restricted:latest\""), "{message}");
    cluster.stop().await;
}
