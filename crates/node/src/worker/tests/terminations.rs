//! Terminations that take longer than planned.

use crate::agent::bed::{Bed, pass, phase};
use crate::shutdown::Outcome;
use client::ObjectKey;
use lifecycle::timeline::{self, StepKind, TerminationRecord};
use serde_json::json;
use std::time::Duration;
use testbed::machine::Commands;
use tokio::time::advance;

/// T-NODE-9, T-NODE-25: however long a process survives SIGKILL, its exit is observed.
#[tokio::test(start_paused = true)]
async fn the_exit_of_a_container_a_day_after_its_kill_is_observed() {
    let bed = Bed::new().await;
    let _agent = bed.agent().await;
    bed.machine.ignore_stop();
    bed.machine.ignore_kill();
    bed.pod("web", json!({}), json!({})).await;
    bed.until_running("web").await;
    bed.delete("web", Some(5)).await;
    bed.until_calls(|calls| calls.contains(&"kill c".to_owned())).await;
    // No sleep: the paused clock does not advance while the node is busy.
    for _ in 0..25 {
        advance(Duration::from_secs(3600)).await;
    }
    bed.machine.exit("c", 137);
    for _ in 0..3000 {
        advance(Duration::from_millis(10)).await;
        if bed.find("web").await.is_none() {
            return;
        }
    }
    panic!("the exit of the container was not observed: {:#?}", bed.find("web").await);
}

/// T-NODE-5: a grace period beyond the range of the clock is a very long one.
#[tokio::test(start_paused = true)]
async fn a_huge_grace_period_ends_with_the_exit_of_the_container() {
    let bed = Bed::new().await;
    let agent = bed.agent().await;
    bed.machine.ignore_stop();
    let endless = json!({ "terminationGracePeriodSeconds": i64::MAX });
    bed.pod("deleted", endless.clone(), json!({})).await;
    bed.pod("ended-by-the-node", endless, json!({})).await;
    bed.until_running("deleted").await;
    bed.until_running("ended-by-the-node").await;
    bed.delete("deleted", None).await;
    bed.until_calls(|calls| calls.contains(&"stop c".to_owned())).await;
    let ends = agent.terminate_pods(|_| async {});
    let exit = async {
        pass(60_000).await;
        assert_eq!(bed.machine.count("kill c"), 0);
        bed.machine.exit("c", 0);
    };
    let (cut, ()) = tokio::join!(ends, exit);
    assert_eq!(cut, []);
    bed.until_gone("deleted").await;
    bed.until("ended-by-the-node", |pod| phase(pod) == "Failed").await;
}

/// T-NODE-87: a shutdown reports every pod that was killed, even if it was being deleted and its object is gone.
#[tokio::test(start_paused = true)]
async fn a_shutdown_reports_killed_pods_that_were_being_deleted() {
    let bed = Bed::new().await;
    let agent = bed.agent().await;
    bed.machine.ignore_stop();
    let names = ["a", "b", "c", "d"];
    for name in names {
        bed.pod(name, json!({ "terminationGracePeriodSeconds": 5 }), json!({})).await;
        bed.until_running(name).await;
        bed.delete(name, None).await;
    }
    let shortened = agent.terminate_pods(|_| async {}).await;
    for name in names {
        bed.until_gone(name).await;
    }
    let killed: Vec<&str> = shortened.iter().map(|pod| pod.pod.as_str()).collect();
    assert_eq!(killed, names.map(|name| format!("default/{name}")));
    let killed = Outcome::Killed(vec!["c".to_owned()]);
    assert!(shortened.iter().all(|pod| pod.outcome == killed), "{shortened:?}");
}

/// T-NODE-13: removing the leftovers of a killed landfall reports containers that had to be killed.
#[tokio::test(start_paused = true)]
async fn removal_of_leftovers_reports_killed_containers() {
    let bed = Bed::new().await;
    let agent = bed.agent().await;
    bed.pod("web", json!({}), json!({})).await;
    bed.until_running("web").await;
    agent.stop().await;
    bed.machine.ignore_stop();
    let reported = std::cell::RefCell::new(Vec::new());
    let data = bed.directory.path().join("data");
    let say = |line| reported.borrow_mut().push(line);
    crate::remove_leftovers(&data, bed.machine.clone(), say).await.unwrap();
    assert!(bed.machine.is_empty());
    let reported = reported.into_inner();
    assert_eq!(reported[0], "terminating default/web");
    assert!(
        reported[1].starts_with("default/web did not stop")
            && reported[1].ends_with("c was killed")
    );
    assert_eq!(reported.len(), 2);
}

/// T-NODE-28, T-NODE-30: a sleep hook ends with its container, and the journal with the pod: no later agent posts
/// its steps again.
#[tokio::test(start_paused = true)]
async fn a_hook_that_sleeps_does_not_outlive_its_pod() {
    let bed = Bed::new().await;
    let agent = bed.agent().await;
    let hook = json!({ "lifecycle": { "preStop": { "sleep": { "seconds": 25 } } } });
    bed.pod("web", json!({}), hook).await;
    bed.until_running("web").await;
    bed.delete("web", None).await;
    pass(2_000).await;
    // By itself, while the hook runs.
    bed.machine.exit("c", 0);
    bed.until_gone("web").await;
    pass(60_000).await;
    let journals = bed.directory.path().join("data/timeline");
    let left: Vec<_> = std::fs::read_dir(&journals).unwrap().flatten().collect();
    assert!(left.is_empty(), "{left:?}");
    drop(agent);
}

/// T-NODE-76: the worker stays until nothing of its pod is left, and reports the end only then.
#[tokio::test(start_paused = true)]
async fn the_removal_of_a_sandbox_is_retried() {
    let bed = Bed::new().await;
    let _agent = bed.agent().await;
    bed.pod("web", json!({}), json!({})).await;
    bed.until_running("web").await;
    bed.machine.fail("remove_sandbox", 5);
    bed.delete("web", None).await;
    bed.until_gone("web").await;
    bed.until_calls(|calls| calls.iter().filter(|call| *call == "remove sandbox").count() == 6)
        .await;
    assert!(bed.machine.is_empty());
}

/// N-92, T-NODE-60: readiness is still probed, at the period of the probe.
#[tokio::test(start_paused = true)]
async fn readiness_is_probed_at_its_period_during_a_termination() {
    let bed = Bed::new().await;
    let _agent = bed.agent().await;
    bed.machine.ignore_stop();
    bed.machine.set_commands(Commands::exit(1));
    let ready = json!({ "exec": { "command": ["ready"] }, "periodSeconds": 20 });
    bed.pod("web", json!({}), json!({ "readinessProbe": ready })).await;
    bed.until_running("web").await;
    bed.delete("web", Some(50)).await;
    bed.machine.clear_calls();
    pass(49_000).await;
    let probed = bed.machine.count("exec ready");
    assert!((1..=3).contains(&probed), "{probed} times in 49 s");
}

/// T-NODE-74, T-NODE-75: a pod is terminated once, whatever is written to its object while a finalizer keeps it.
#[tokio::test(start_paused = true)]
async fn a_pod_with_a_finalizer_is_terminated_once_and_keeps_its_logs() {
    let bed = Bed::new().await;
    let _agent = bed.agent().await;
    let pod = bed.pod("web", json!({}), json!({})).await;
    bed.patch("web", json!({ "metadata": { "finalizers": ["example.com/held"] } })).await;
    let uid = pod.metadata.uid.unwrap();
    bed.until_running("web").await;
    let logs = bed.directory.path().join(format!("log/pods/default_web_{uid}"));
    std::fs::create_dir_all(&logs).unwrap();
    bed.delete("web", None).await;
    bed.until("web", |pod| phase(pod) == "Succeeded").await;
    for round in 0..5 {
        pass(2_000).await;
        bed.patch("web", json!({ "metadata": { "labels": { "round": round.to_string() } } })).await;
    }
    pass(2_000).await;
    let key = ObjectKey::new("default", &timeline::name("web", &uid));
    let record = bed.client.get::<TerminationRecord>(&key).await.unwrap();
    let seen = record.steps.iter().filter(|step| matches!(step.what, StepKind::Seen { .. }));
    assert_eq!(seen.count(), 1);
    assert_eq!(bed.machine.count("stop sandbox"), 1);
    assert!(logs.exists());

    bed.patch("web", json!({ "metadata": { "finalizers": null } })).await;
    bed.until_gone("web").await;
    pass(2_000).await;
    assert!(!logs.exists() && bed.machine.is_empty());
}
