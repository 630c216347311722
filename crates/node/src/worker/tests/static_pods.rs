//! Pods of manifests, and their mirrors in the API.

use crate::agent::bed::{Bed, NODE, pass};
use client::{DeleteOptions, ObjectKey};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

/// The name of the mirror.
fn mirror() -> String {
    format!("web-{NODE}")
}

fn write_manifest(bed: &Bed, container: Value) {
    let mut spec = bed.spec(json!({}), container);
    spec.as_object_mut().unwrap().remove("nodeName");
    spec.as_object_mut().unwrap().remove("automountServiceAccountToken");
    let pod =
        json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "web" }, "spec": spec });
    std::fs::write(bed.manifests().join("web.json"), pod.to_string()).unwrap();
}

/// T-NODE-90: the termination of a static pod does not wait for a mirror pod that a user has deleted.
#[tokio::test(start_paused = true)]
async fn a_static_pod_is_replaced_although_its_mirror_was_deleted() {
    let bed = Bed::new().await;
    write_manifest(&bed, json!({ "args": ["old"] }));
    let _agent = bed.agent().await;
    bed.until_running(&mirror()).await;
    bed.machine.ignore_stop();
    write_manifest(&bed, json!({ "args": ["new"] }));
    bed.until_calls(|calls| calls.contains(&"stop c".to_owned())).await;
    let key = ObjectKey::new("default", &mirror());
    bed.client.delete::<Pod>(&key, &DeleteOptions::default().grace(0)).await.unwrap();
    bed.until_calls(|calls| calls.iter().filter(|call| *call == "run sandbox").count() == 2).await;
    bed.until_running(&mirror()).await;
    pass(1000).await;
}

/// T-NODE-89: the mirror goes after its static pod.
#[tokio::test(start_paused = true)]
async fn a_mirror_is_deleted_if_its_manifest_was_removed_while_no_agent_ran() {
    let bed = Bed::new().await;
    write_manifest(&bed, json!({}));
    let agent = bed.agent().await;
    bed.until_running(&mirror()).await;
    drop(agent);
    std::fs::remove_file(bed.manifests().join("web.json")).unwrap();
    let _agent = bed.agent().await;
    bed.until_gone(&mirror()).await;
    pass(10_000).await;
    assert!(bed.machine.is_empty());
}

/// T-NODE-89: the mirror goes after its static pod.
#[tokio::test(start_paused = true)]
async fn a_failed_delete_of_a_mirror_is_repeated() {
    let bed = Bed::new().await;
    write_manifest(&bed, json!({}));
    let _agent = bed.agent().await;
    bed.until_running(&mirror()).await;
    bed.refuse_deletes(3);
    std::fs::remove_file(bed.manifests().join("web.json")).unwrap();
    bed.until_calls(|calls| calls.contains(&"stop c".to_owned())).await;
    bed.until_gone(&mirror()).await;
}
