//! What an agent makes of pods that an agent before it started.

use crate::agent::bed::{Bed, pass, phase};
use serde_json::json;

/// N-27, T-INV-2, T-INV-5, T-NODE-70: a running pod that is refused after a restart is ended as any other.
#[tokio::test(start_paused = true)]
async fn a_pod_that_runs_and_is_no_longer_wanted_here_is_asked_to_end() {
    let bed = Bed::new().await;
    let agent = bed.agent().await;
    bed.patch_node(json!({ "metadata": { "labels": { "disk": "fast" } } })).await;
    bed.machine.ignores_stop();
    bed.pod("web", json!({ "nodeSelector": { "disk": "fast" } }), json!({})).await;
    bed.until_running("web").await;
    drop(agent);
    bed.patch_node(json!({ "metadata": { "labels": { "disk": null } } })).await;

    let agent = bed.agent().await;
    bed.until_asked(|asked| asked == ["run sandbox", "stop c"]).await;
    assert_eq!(agent.parts.active.borrow().len(), 1, "`landfall down` waits for it");
    let pod = bed.find("web").await.unwrap();
    assert_eq!(phase(&pod), "Running", "T-INV-2: not over while it runs");
    pass(29_000).await;
    assert_eq!(bed.machine.count("kill c"), 0, "it has its grace");
    let pod = bed.until("web", |pod| phase(pod) == "Failed").await;
    let status = pod.status.unwrap();
    assert_eq!(status.reason.as_deref(), Some("NodeAffinity"));
    assert!(status.message.unwrap().starts_with("Pod was rejected: "));
    assert_eq!(bed.machine.asked(), ["run sandbox", "stop c", "kill c", "stop sandbox"]);
    pass(1000).await;
    assert!(agent.parts.active.borrow().is_empty());
    bed.delete("web", None).await;
    bed.until_gone("web").await;
    pass(1000).await;
    assert!(bed.machine.is_empty());
}

/// N-27: nothing of it ever ran here.
#[tokio::test(start_paused = true)]
async fn a_new_pod_that_is_refused_is_over_at_once() {
    let bed = Bed::new().await;
    let agent = bed.agent().await;
    bed.pod("web", json!({ "nodeSelector": { "disk": "fast" } }), json!({})).await;
    let pod = bed.until("web", |pod| phase(pod) == "Failed").await;
    assert_eq!(pod.status.unwrap().reason.as_deref(), Some("NodeAffinity"));
    pass(1000).await;
    assert!(agent.parts.active.borrow().is_empty());
    assert!(bed.machine.asked().is_empty());
    bed.delete("web", None).await;
    bed.until_gone("web").await;
}
