//! User namespaces of pods.

use crate::agent::bed::{Bed, pass};
use client::Selection;
use k8s_openapi::api::core::v1::Event;
use runtime::UserRange;
use serde_json::json;

/// N-124: a pod with `hostUsers: false` has the same range of users in every sandbox and after restarts of the agent,
/// and releases it when it is removed.
#[tokio::test(start_paused = true)]
async fn n_124_a_pod_without_host_users_has_its_own_range_of_users() {
    let bed = Bed::new().await;
    let agent = bed.agent().await;
    let own = json!({ "hostUsers": false });
    for (name, spec) in [("a", &own), ("plain", &json!({})), ("b", &own)] {
        bed.pod(name, spec.clone(), json!({})).await;
        bed.until_running(name).await;
    }
    let range = |number: u32| Some(Some(UserRange { first: number << 16, count: 1 << 16 }));
    let seen = ["a", "plain", "b"].map(|name| bed.machine.users(name));
    assert_eq!(seen, [range(1), Some(None), range(2)]);
    drop(agent);

    let _agent = bed.agent().await;
    bed.pod("c", own.clone(), json!({})).await;
    bed.until_running("c").await;
    assert_eq!(bed.machine.users("c"), range(3));
    bed.delete("a", None).await;
    bed.until_gone("a").await;
    bed.pod("d", own, json!({})).await;
    bed.until_running("d").await;
    assert_eq!(bed.machine.users("d"), range(1));
}

/// N-124: a runtime without user namespaces is an error; the pod does not run with host users instead.
#[tokio::test(start_paused = true)]
async fn n_124_a_runtime_without_user_namespaces_does_not_run_such_a_pod() {
    let bed = Bed::new().await;
    bed.machine.without_user_namespaces();
    let agent = bed.agent().await;
    bed.pod("web", json!({ "hostUsers": false }), json!({})).await;
    pass(2000).await;
    agent.deps.recorder.flush().await;
    let events = bed.client.list::<Event>(&Selection::default()).await.unwrap();
    let failure = events.iter().find(|e| e.reason.as_deref() == Some("FailedCreatePodSandBox"));
    assert_eq!(
        failure.and_then(|event| event.message.as_deref()),
        Some(
            "Failed to create pod sandbox: can't set `spec.hostUsers: false`, \
             runtime does not support user namespaces"
        )
    );
    assert_eq!(bed.machine.users("web"), None);
}
