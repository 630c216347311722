//! What an agent makes of pods that an agent before it started.

use crate::agent::bed::{Bed, pass, phase};
use crate::deadlines::GraceAfterRestart;
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

/// T-EDGE-3, T-INV-5, T-NODE-26: with `--grace-after-restart=kept`, an ending that was the node's own idea and
/// was given up with its agent takes nothing from a later one.
#[tokio::test(start_paused = true)]
async fn an_ending_that_was_given_up_takes_no_time_from_the_next() {
    let bed = Bed::new().await;
    bed.machine.ignores_stop();
    let kept = |config: &mut crate::Config| config.grace_after_restart = GraceAfterRestart::Kept;
    let agent = bed.agent_with(kept).await;
    bed.pod("web", json!({}), json!({})).await;
    bed.until_running("web").await;
    tokio::select! {
        _ = agent.end_pods(|_| async {}) => panic!("it does not end"),
        () = bed.until_asked(|asked| asked.contains(&"stop c".to_owned())) => {}
    }
    pass(1000).await;
    drop(agent);

    let _agent = bed.agent_with(kept).await;
    pass(120_000).await;
    bed.machine.forget_asked();
    bed.delete("web", Some(20)).await;
    pass(19_000).await;
    assert_eq!(bed.machine.asked(), ["stop c"]);
    bed.until_gone("web").await;
    assert_eq!(bed.machine.asked()[..2], ["stop c", "kill c"]);
}

/// T-EDGE-3: an ending that was asked for is not given up.
#[tokio::test(start_paused = true)]
async fn an_ending_that_was_asked_for_keeps_its_deadline() {
    let bed = Bed::new().await;
    bed.machine.ignores_stop();
    let kept = |config: &mut crate::Config| config.grace_after_restart = GraceAfterRestart::Kept;
    let agent = bed.agent_with(kept).await;
    bed.pod("web", json!({}), json!({})).await;
    bed.until_running("web").await;
    bed.delete("web", Some(20)).await;
    pass(10_000).await;
    drop(agent);
    let _agent = bed.agent_with(kept).await;
    pass(9_000).await;
    assert_eq!(bed.machine.asked(), ["run sandbox", "stop c"]);
    pass(2_000).await;
    assert_eq!(bed.machine.asked()[..3], ["run sandbox", "stop c", "kill c"]);
}

/// T-NODE-13, T-NODE-76: nobody knows the pod any more, but the agent knows that it is there.
#[tokio::test(start_paused = true)]
async fn what_is_left_of_a_pod_that_is_gone_is_ended_however_often_it_takes() {
    let bed = Bed::new().await;
    let agent = bed.agent().await;
    bed.pod("web", json!({}), json!({})).await;
    bed.until_running("web").await;
    drop(agent);
    bed.delete("web", Some(0)).await;
    bed.until_gone("web").await;
    bed.machine.refuses("sandboxes", 1);
    bed.machine.refuses("stop_container", 2);
    bed.machine.refuses("remove_sandbox", 3);
    let _agent = bed.agent().await;
    pass(60_000).await;
    assert!(bed.machine.is_empty(), "{:?}", bed.machine.asked());
}
