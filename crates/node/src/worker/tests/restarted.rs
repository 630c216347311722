//! How a restarted agent treats the pods of the agent before it.

use crate::agent::bed::{Bed, pass, phase};
use crate::deadlines::GraceAfterRestart;
use serde_json::json;

/// N-27, T-INV-2, T-INV-5, T-NODE-70: a running pod that is rejected after a restart is terminated like any other.
#[tokio::test(start_paused = true)]
async fn a_running_pod_that_is_rejected_after_a_restart_is_terminated_gracefully() {
    let bed = Bed::new().await;
    let agent = bed.agent().await;
    bed.patch_node(json!({ "metadata": { "labels": { "disk": "fast" } } })).await;
    bed.machine.ignore_stop();
    bed.pod("web", json!({ "nodeSelector": { "disk": "fast" } }), json!({})).await;
    bed.until_running("web").await;
    drop(agent);
    bed.patch_node(json!({ "metadata": { "labels": { "disk": null } } })).await;

    let agent = bed.agent().await;
    bed.until_calls(|calls| calls == ["run sandbox", "stop c"]).await;
    assert_eq!(agent.deps.active.borrow().len(), 1, "`landfall down` waits for it");
    let pod = bed.find("web").await.unwrap();
    assert_eq!(phase(&pod), "Running", "T-INV-2: not terminal while a container runs");
    pass(29_000).await;
    assert_eq!(bed.machine.count("kill c"), 0, "it has its grace");
    let pod = bed.until("web", |pod| phase(pod) == "Failed").await;
    let status = pod.status.unwrap();
    assert_eq!(status.reason.as_deref(), Some("NodeAffinity"));
    assert!(status.message.unwrap().starts_with("Pod was rejected: "));
    assert_eq!(bed.machine.calls(), ["run sandbox", "stop c", "kill c", "stop sandbox"]);
    pass(1000).await;
    assert!(agent.deps.active.borrow().is_empty());
    bed.delete("web", None).await;
    bed.until_gone("web").await;
    pass(1000).await;
    assert!(bed.machine.is_empty());
}

/// N-27: no container of it ever ran here.
#[tokio::test(start_paused = true)]
async fn a_new_pod_that_is_rejected_fails_immediately() {
    let bed = Bed::new().await;
    let agent = bed.agent().await;
    bed.pod("web", json!({ "nodeSelector": { "disk": "fast" } }), json!({})).await;
    let pod = bed.until("web", |pod| phase(pod) == "Failed").await;
    assert_eq!(pod.status.unwrap().reason.as_deref(), Some("NodeAffinity"));
    pass(1000).await;
    assert!(agent.deps.active.borrow().is_empty());
    assert!(bed.machine.calls().is_empty());
    bed.delete("web", None).await;
    bed.until_gone("web").await;
}

/// T-EDGE-3, T-INV-5, T-NODE-26: with `--grace-after-restart=kept`, a termination that the node itself had decided
/// and that ended with its agent does not shorten a later one.
#[tokio::test(start_paused = true)]
async fn an_abandoned_termination_does_not_shorten_the_next_one() {
    let bed = Bed::new().await;
    bed.machine.ignore_stop();
    let kept = |config: &mut crate::Config| config.grace_after_restart = GraceAfterRestart::Kept;
    let agent = bed.agent_with(kept).await;
    bed.pod("web", json!({}), json!({})).await;
    bed.until_running("web").await;
    tokio::select! {
        _ = agent.terminate_pods(|_| async {}) => panic!("it does not end"),
        () = bed.until_calls(|calls| calls.contains(&"stop c".to_owned())) => {}
    }
    pass(1000).await;
    drop(agent);

    let _agent = bed.agent_with(kept).await;
    pass(120_000).await;
    bed.machine.clear_calls();
    bed.delete("web", Some(20)).await;
    pass(19_000).await;
    assert_eq!(bed.machine.calls(), ["stop c"]);
    bed.until_gone("web").await;
    assert_eq!(bed.machine.calls()[..2], ["stop c", "kill c"]);
}

/// T-EDGE-3: a requested termination is not abandoned.
#[tokio::test(start_paused = true)]
async fn a_requested_termination_keeps_its_deadline() {
    let bed = Bed::new().await;
    bed.machine.ignore_stop();
    let kept = |config: &mut crate::Config| config.grace_after_restart = GraceAfterRestart::Kept;
    let agent = bed.agent_with(kept).await;
    bed.pod("web", json!({}), json!({})).await;
    bed.until_running("web").await;
    bed.delete("web", Some(20)).await;
    pass(10_000).await;
    drop(agent);
    let _agent = bed.agent_with(kept).await;
    pass(9_000).await;
    assert_eq!(bed.machine.calls(), ["run sandbox", "stop c"]);
    pass(2_000).await;
    assert_eq!(bed.machine.calls()[..3], ["run sandbox", "stop c", "kill c"]);
}

/// T-NODE-13, T-NODE-76: the API does not have the pod any more, but its containers are on the node.
#[tokio::test(start_paused = true)]
async fn leftovers_of_a_removed_pod_are_terminated_with_retries() {
    let bed = Bed::new().await;
    let agent = bed.agent().await;
    bed.pod("web", json!({}), json!({})).await;
    bed.until_running("web").await;
    drop(agent);
    bed.delete("web", Some(0)).await;
    bed.until_gone("web").await;
    bed.machine.fail("sandboxes", 1);
    bed.machine.fail("stop_container", 2);
    bed.machine.fail("remove_sandbox", 3);
    let _agent = bed.agent().await;
    pass(60_000).await;
    assert!(bed.machine.is_empty(), "{:?}", bed.machine.calls());
}

/// One container that requests more than half of the node's processors.
fn large() -> serde_json::Value {
    json!({ "resources": { "requests": { "cpu": "5" } } })
}

/// N-27: a restarted agent sees every pod for the first time, including finished ones, which use no capacity.
#[tokio::test(start_paused = true)]
async fn finished_pods_use_no_capacity_after_a_restart() {
    let bed = Bed::new().await;
    let agent = bed.agent().await;
    for name in ["done-1", "done-2", "done-3"] {
        bed.pod(name, json!({ "restartPolicy": "Never" }), large()).await;
        bed.until_running(name).await;
        bed.machine.exit("c", 0);
        bed.until(name, |pod| phase(pod) == "Succeeded").await;
        pass(1000).await;
    }
    drop(agent);
    bed.pod("new", json!({}), large()).await;
    let agent = bed.agent().await;
    let new = bed.until("new", |pod| phase(pod) != "Pending").await;
    assert_eq!(phase(&new), "Running", "{:?}", new.status);
    drop(agent);

    // It runs, so its requests count after the next restart as well.
    bed.pod("too-much", json!({}), large()).await;
    let _agent = bed.agent().await;
    let refused = bed.until("too-much", |pod| phase(pod) != "Pending").await;
    assert_eq!(refused.status.unwrap().reason.as_deref(), Some("OutOfcpu"));
}

/// N-27, T-NODE-57: another client wrote a terminal phase. Running containers decide whether the pod counts, not the
/// outdated container statuses in the API.
#[tokio::test(start_paused = true)]
async fn a_pod_that_another_client_marked_failed_counts_while_its_containers_run() {
    for still_runs in [true, false] {
        let bed = Bed::new().await;
        let agent = bed.agent().await;
        bed.machine.ignore_stop();
        bed.pod("older", json!({}), large()).await;
        let old = bed.until_running("older").await;
        drop(agent);
        if !still_runs {
            bed.machine.exit("c", 137);
        }
        let failed = json!({ "status": { "phase": "Failed" } });
        let key = client::ObjectKey::of(&old);
        bed.client.patch_status::<k8s_openapi::api::core::v1::Pod>(&key, &failed).await.unwrap();
        bed.pod("younger", json!({}), large()).await;
        let _agent = bed.agent().await;
        let new = bed.until("younger", |pod| phase(pod) != "Pending").await;
        assert_eq!(phase(&new), if still_runs { "Failed" } else { "Running" });
    }
}

/// Pods write setuid files into volumes; other users of the node must not reach them, even if the directory existed
/// before.
#[tokio::test(start_paused = true)]
async fn volumes_are_accessible_only_to_root() {
    use std::os::unix::fs::PermissionsExt;
    let bed = Bed::new().await;
    let agent = bed.agent().await;
    let root = agent.deps.facts.root_dir.clone();
    drop(agent);
    std::fs::set_permissions(&root, std::fs::Permissions::from_mode(0o755)).unwrap();
    let _agent = bed.agent().await;
    assert_eq!(std::fs::metadata(&root).unwrap().permissions().mode() & 0o777, 0o700);
}
