//! postStart and preStop (T-NODE-28 to 33, T-NODE-67).

use super::http::{Server, response};
use super::{exit, machine, target};
use crate::probes::hook::{HookFailure, HookOutput, run_hook};
use client::Recorder;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use testbed::Machine;
use testbed::machine::Commands;
use tokio::time::{Instant, timeout};

async fn hook(handler: Value, machine: &Arc<Machine>) -> Result<HookOutput, HookFailure> {
    let (recorder, _events) = Recorder::collecting();
    let target = target(machine.clone(), json!({}));
    run_hook(&serde_json::from_value(handler).unwrap(), &target, &recorder).await
}

#[tokio::test]
async fn t_node_29_a_command_that_fails_is_a_failed_hook() {
    let exec = json!({ "exec": { "command": ["drain", "now"] } });
    let done = hook(exec.clone(), &machine(exit(0, "bye"))).await.unwrap();
    assert_eq!((done.exit_code, done.text.as_str()), (Some(0), "bye!"));
    let failed = hook(exec.clone(), &machine(exit(2, "no"))).await.unwrap_err();
    assert_eq!(failed.message, "command 'drain now' exited with 2: no!");
    assert_eq!((failed.output.exit_code, failed.output.text.as_str()), (Some(2), "no!"));
    assert!(hook(exec, &machine(Commands::Fail("gone"))).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn t_node_28_t_node_30_a_command_has_no_timeout_and_keeps_running_when_abandoned() {
    let machine = machine(Commands::Hang);
    let exec = json!({ "exec": { "command": ["wait"] } });
    let abandoned = timeout(Duration::from_secs(3600), hook(exec, &machine)).await;
    assert!(abandoned.is_err(), "it was still running");
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(machine.commands_killed(), 0);
}

#[tokio::test(start_paused = true)]
async fn t_node_33_a_sleep_hook_waits_for_its_seconds() {
    let machine = machine(Commands::Hang);
    for seconds in [7, 0] {
        let start = Instant::now();
        let sleep = json!({ "sleep": { "seconds": seconds } });
        assert_eq!(hook(sleep, &machine).await, Ok(HookOutput::default()));
        assert_eq!(start.elapsed().as_secs(), seconds);
    }
}

/// T-EDGE-9: as upstream, a hook that gets an error status has succeeded; only the grace period
/// limits its time.
#[tokio::test]
async fn t_node_31_every_response_counts_as_success() {
    let server = Server::start(|_| response("503 No", "", "")).await;
    let get = json!({ "httpGet": { "port": server.port, "path": "/bye" } });
    let output = hook(get, &machine(Commands::Hang)).await.unwrap();
    assert_eq!(output.http_status, Some(503));
    assert!(server.last().contains("User-Agent: kube-lifecycle/1.36\r\n"), "{}", server.last());
    let closed = json!({ "httpGet": { "port": super::closed_port().await, "path": "/" } });
    assert!(hook(closed, &machine(Commands::Hang)).await.is_err());
}

#[tokio::test]
async fn t_node_31_an_https_hook_falls_back_to_http_without_authorization() {
    let server = Server::start(|_| response("200 OK", "", "")).await;
    let (recorder, mut events) = Recorder::collecting();
    let handler = json!({ "httpGet": { "port": server.port, "path": "/", "scheme": "HTTPS",
        "httpHeaders": [{ "name": "authorization", "value": "secret" }, { "name": "X-A", "value": "b" }] } });
    let target = target(machine(Commands::Hang), json!({}));
    let done = run_hook(&serde_json::from_value(handler).unwrap(), &target, &recorder).await;
    assert_eq!(done.unwrap().http_status, Some(200));
    let request = server.last();
    assert!(request.contains("X-A: b") && !request.contains("secret"), "{request}");
    let event = events.try_recv().unwrap();
    assert_eq!(event.reason, "LifecycleHTTPFallback");
    let address = format!("127.0.0.1:{}", server.port);
    assert!(event.message.contains(&address), "{}", event.message);
}

#[tokio::test]
async fn t_node_32_a_tcp_hook_fails_when_it_runs() {
    let failed = hook(json!({ "tcpSocket": { "port": 1 } }), &machine(Commands::Hang)).await;
    assert!(failed.is_err());
}
