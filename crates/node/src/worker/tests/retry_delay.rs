//! Retries of a worker.

use crate::agent::bed::{Bed, pass};
use client::Selection;
use k8s_openapi::api::core::v1::{ConfigMap, Event};
use serde_json::json;

/// N-33: ten to fifteen seconds after an error, although each attempt itself changes what is observed.
#[tokio::test(start_paused = true)]
async fn a_failed_sandbox_is_retried_every_ten_seconds() {
    let bed = Bed::new().await;
    let _agent = bed.agent().await;
    bed.machine.fail("run_sandbox", 1000);
    bed.pod("web", json!({}), json!({})).await;
    pass(61_000).await;
    let tried = bed.machine.count("run sandbox");
    assert!((5..=7).contains(&tried), "{tried} times in a minute");
    bed.machine.fail("run_sandbox", 0);
    bed.until_running("web").await;
}

/// N-33, N-68: the sandbox and status that a failed pull leaves cause no further reconcile and event.
#[tokio::test(start_paused = true)]
async fn a_backed_off_pull_is_reported_once_per_reconcile() {
    let bed = Bed::new().await;
    let agent = bed.agent().await;
    bed.pod("web", json!({}), json!({ "imagePullPolicy": "Always" })).await;
    pass(62_000).await;
    agent.deps.recorder.flush().await;
    let events = bed.client.list::<Event>(&Selection::namespace("default")).await.unwrap();
    let waited = events.iter().filter(|event| event.reason.as_deref() == Some("BackOff"));
    let reported: i32 = waited.map(|event| event.count.unwrap_or(1)).sum();
    assert!((2..=5).contains(&reported), "reported {reported} times in a minute");
}

/// A container that needs an object starts when the object appears, not after the retry delay.
#[tokio::test(start_paused = true)]
async fn a_container_starts_as_soon_as_its_missing_object_appears() {
    let bed = Bed::new().await;
    let _agent = bed.agent().await;
    let env = json!({ "envFrom": [{ "configMapRef": { "name": "settings" } }] });
    bed.pod("web", json!({}), env).await;
    let waits = |pod: &k8s_openapi::api::core::v1::Pod| {
        serde_json::to_string(pod).unwrap().contains("CreateContainerConfigError")
    };
    bed.until("web", waits).await;
    pass(1000).await;
    let map = json!({ "metadata": { "namespace": "default", "name": "settings" } });
    bed.client.create(&typed::from_value::<ConfigMap>(map).unwrap()).await.unwrap();
    let began = tokio::time::Instant::now();
    bed.until_running("web").await;
    assert!(began.elapsed().as_secs() < 3, "{:?}", began.elapsed());
}
