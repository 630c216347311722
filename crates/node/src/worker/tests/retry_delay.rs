//! How often a worker tries what does not work.

use crate::agent::bed::{Bed, pass};
use client::Selection;
use k8s_openapi::api::core::v1::{ConfigMap, Event};
use serde_json::json;

/// N-33: after an error ten to fifteen seconds, though each attempt is news of its own.
#[tokio::test(start_paused = true)]
async fn a_sandbox_that_cannot_be_made_is_tried_every_ten_seconds() {
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

/// N-33, N-68: what a failed pull leaves, a sandbox and a status, is no reason to look and to say so again.
#[tokio::test(start_paused = true)]
async fn a_pull_that_waits_is_told_of_once_for_every_look() {
    let bed = Bed::new().await;
    let agent = bed.agent().await;
    bed.pod("web", json!({}), json!({ "imagePullPolicy": "Always" })).await;
    pass(62_000).await;
    agent.deps.recorder.flush().await;
    let events = bed.client.list::<Event>(&Selection::namespace("default")).await.unwrap();
    let waited = events.iter().filter(|event| event.reason.as_deref() == Some("BackOff"));
    let told: i32 = waited.map(|event| event.count.unwrap_or(1)).sum();
    assert!((2..=5).contains(&told), "told {told} times in a minute");
}

/// A container that needs something is started when it is there, not when its turn comes.
#[tokio::test(start_paused = true)]
async fn what_was_missing_and_comes_is_not_waited_for() {
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
