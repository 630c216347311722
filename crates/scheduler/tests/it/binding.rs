//! Binding of pods, and messages for unschedulable ones, with a real server.

use crate::cluster::{self, Cluster, asking, node_of, scheduled};
use client::ObjectKey;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use serde_json::json;

#[tokio::test]
async fn n_187_a_pod_is_bound_to_the_only_node_with_an_event() {
    let cluster = Cluster::start().await;
    cluster.node("n1", json!({})).await;
    cluster.pod("web", json!({})).await;
    assert_eq!(cluster.bound("web").await, "n1");
    let pod = cluster.when("web", |pod| scheduled(pod).is_some_and(|c| c.status == "True")).await;
    assert_eq!(scheduled(&pod).unwrap().reason, None);
    let event = cluster.event("web", "Scheduled").await;
    assert_eq!(event.message.as_deref(), Some("Successfully assigned default/web to n1"));
    assert_eq!(event.type_.as_deref(), Some("Normal"));
    assert_eq!(event.action.as_deref(), Some("Binding"));
    assert_eq!(event.reporting_component.as_deref(), Some("default-scheduler"));
    assert!(event.metadata.name.as_deref().unwrap().starts_with("web."));
    cluster.stop().await;
}

#[tokio::test]
async fn n_183_pods_of_another_scheduler_are_left_alone() {
    let cluster = Cluster::start().await;
    cluster.node("n1", json!({})).await;
    cluster.pod("theirs", json!({ "schedulerName": "mine" })).await;
    cluster.pod("ours", json!({})).await;
    cluster.bound("ours").await;
    let theirs = cluster.when("theirs", |_| true).await;
    assert_eq!(node_of(&theirs), None);
    cluster.stop().await;
}

#[tokio::test]
async fn n_185_a_waiting_pod_is_bound_when_a_node_is_added() {
    let cluster = Cluster::start().await;
    cluster.pod("web", json!({})).await;
    assert_eq!(cluster.unscheduled("web").await, "no nodes available to schedule pods");
    cluster.node("n1", json!({})).await;
    assert_eq!(cluster.bound("web").await, "n1");
    cluster.stop().await;
}

#[tokio::test]
async fn n_202_a_full_node_accepts_no_pod_until_another_is_deleted() {
    let cluster = Cluster::start().await;
    cluster.node("n1", json!({})).await;
    cluster.pod("one", asking("3")).await;
    cluster.bound("one").await;
    cluster.pod("two", asking("2")).await;
    let message = cluster.unscheduled("two").await;
    assert_eq!(
        message,
        "0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate, preemption: \
         0/1 nodes are available: 1 No preemption victims found for incoming pod."
    );
    let event = cluster.event("two", "FailedScheduling").await;
    assert_eq!(event.message.as_deref(), Some(message.as_str()));
    assert_eq!(event.type_.as_deref(), Some("Warning"));
    assert_eq!(event.action.as_deref(), Some("Scheduling"));
    cluster.forget("one").await;
    assert_eq!(cluster.bound("two").await, "n1");
    cluster.stop().await;
}

#[tokio::test]
async fn n_184_a_gated_pod_waits_without_an_event() {
    let cluster = Cluster::start().await;
    cluster.node("n1", json!({})).await;
    cluster.pod("gated", json!({ "schedulingGates": [{ "name": "a/b" }] })).await;
    cluster.pod("other", json!({})).await;
    cluster.bound("other").await;
    let gated = cluster.when("gated", |_| true).await;
    assert_eq!(node_of(&gated), None);
    assert_eq!(scheduled(&gated).unwrap().reason.as_deref(), Some("SchedulingGated"));
    let key = ObjectKey::new("default", "gated");
    let open = json!({ "spec": { "schedulingGates": [] } });
    cluster.client.patch_merge::<Pod>(&key, &open).await.unwrap();
    assert_eq!(cluster.bound("gated").await, "n1");
    cluster.stop().await;
}

#[tokio::test]
async fn n_189_a_cordoned_node_gets_pods_again_when_uncordoned() {
    let cluster = Cluster::start().await;
    cluster.node("n1", json!({ "spec": { "unschedulable": true } })).await;
    cluster.pod("web", json!({})).await;
    assert_eq!(
        cluster.unscheduled("web").await,
        "0/1 nodes are available: 1 node(s) were unschedulable. no new claims to deallocate, \
         preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling."
    );
    let open = json!({ "spec": { "unschedulable": null } });
    cluster.client.patch_merge::<Node>(&ObjectKey::cluster("n1"), &open).await.unwrap();
    assert_eq!(cluster.bound("web").await, "n1");
    cluster.stop().await;
}

#[tokio::test]
async fn n_188_pods_are_spread_over_nodes_within_their_capacity() {
    let cluster = Cluster::start().await;
    for node in ["n1", "n2", "n3"] {
        cluster.node(node, json!({})).await;
    }
    let names: Vec<String> = (0..12).map(|n| format!("p{n}")).collect();
    futures::future::join_all(names.iter().map(|name| cluster.pod(name, asking("1")))).await;
    for name in &names {
        cluster.bound(name).await;
    }
    for node in ["n1", "n2", "n3"] {
        let pods = cluster.pods().await;
        assert_eq!(pods.iter().filter(|pod| node_of(pod) == Some(node)).count(), 4, "{node}");
    }
    cluster.stop().await;
}

async fn claim(cluster: &Cluster, class: &str) {
    let class_of = json!({ "metadata": { "name": class }, "provisioner": "example.com/slow",
                           "volumeBindingMode": "WaitForFirstConsumer" });
    cluster.client.create::<StorageClass>(&cluster::read(class_of)).await.unwrap();
    let claim = json!({ "metadata": { "namespace": "default", "name": class }, "spec": {
        "storageClassName": class, "accessModes": ["ReadWriteOnce"],
        "resources": { "requests": { "storage": "1Gi" } } } });
    cluster.client.create::<PersistentVolumeClaim>(&cluster::read(claim)).await.unwrap();
}

fn using(claim: &str) -> serde_json::Value {
    json!({ "volumes": [{ "name": "v", "persistentVolumeClaim": { "claimName": claim } }],
            "containers": [{ "name": "c", "image": "i" }] })
}

/// N-194: the provisioner rejects the node, and the scheduler does not wait for it.
#[tokio::test]
async fn c_168_a_node_without_a_provisionable_volume_is_rejected() {
    let cluster = Cluster::start().await;
    cluster.node("n1", json!({})).await;
    claim(&cluster, "made").await;
    cluster.pod("web", using("made")).await;
    let claims = client::Cache::<PersistentVolumeClaim>::start(&cluster.client);
    let key = ObjectKey::new("default", "made");
    let selected = async || {
        let mut changes = claims.subscribe();
        loop {
            let there = claims.get(&key);
            let chosen = there.and_then(|claim| {
                claim.metadata.annotations.clone()?.remove("volume.kubernetes.io/selected-node")
            });
            match chosen {
                Some(node) => return node,
                None => drop(changes.next().await),
            }
        }
    };
    assert_eq!(selected().await, "n1");
    let no =
        json!({ "metadata": { "annotations": { "volume.kubernetes.io/selected-node": null } } });
    let version = cluster.client.patch_merge::<PersistentVolumeClaim>(&key, &no).await.unwrap();
    claims.caught_up_with(&version.metadata.resource_version.unwrap()).await;
    let event = cluster.event("web", "FailedScheduling").await;
    let message = event.message.clone().unwrap();
    assert!(
        message.ends_with("binding volumes: provisioning failed for PVC \"made\""),
        "{message}"
    );
    assert_eq!(selected().await, "n1", "and it is tried again");
    cluster.stop().await;
}

/// The `claimRef` of an existing volume is set, with the annotation of the controller.
#[tokio::test]
async fn c_168_a_claim_is_bound_to_an_existing_volume() {
    let cluster = Cluster::start().await;
    cluster.node("n1", json!({})).await;
    claim(&cluster, "kept").await;
    let volume = json!({ "metadata": { "name": "v" }, "spec": {
        "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"],
        "storageClassName": "kept", "hostPath": { "path": "/tmp/nowhere" } } });
    cluster.client.create::<PersistentVolume>(&cluster::read(volume)).await.unwrap();
    // The volume controller, which does not run here, would set this phase.
    let free = json!({ "status": { "phase": "Available" } });
    cluster.client.patch_status::<PersistentVolume>(&ObjectKey::cluster("v"), &free).await.unwrap();
    let volumes = client::Cache::<PersistentVolume>::start(&cluster.client);
    let mut changes = volumes.subscribe();
    cluster.pod("web", using("kept")).await;
    let promised = async {
        loop {
            let there = volumes.get(&ObjectKey::cluster("v"));
            match there.filter(|v| v.spec.as_ref().is_some_and(|spec| spec.claim_ref.is_some())) {
                Some(volume) => return volume,
                None => drop(changes.next().await),
            }
        }
    };
    let volume = tokio::time::timeout(std::time::Duration::from_secs(30), promised).await.unwrap();
    let owner = volume.spec.as_ref().unwrap().claim_ref.clone().unwrap();
    assert_eq!((owner.name.as_deref(), owner.uid.is_some()), (Some("kept"), true));
    let annotations = volume.metadata.annotations.as_ref().unwrap();
    assert_eq!(annotations["pv.kubernetes.io/bound-by-controller"], "yes");
    cluster.stop().await;
}
