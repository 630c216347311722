//! postStart and preStop (T-NODE-28 to 33, T-NODE-67).

use super::http::{Server, answer};
use super::{Commands, End, target};
use crate::probes::hook::{HookFailure, Said, run_hook};
use client::Recorder;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::{Instant, timeout};

async fn hook(handler: Value, commands: &Arc<Commands>) -> Result<Said, HookFailure> {
    let (recorder, _told) = Recorder::collecting();
    let target = target(commands.clone(), json!({}));
    run_hook(&serde_json::from_value(handler).unwrap(), &target, &recorder).await
}

#[tokio::test]
async fn t_node_29_a_command_that_fails_is_a_failed_hook() {
    let exec = json!({ "exec": { "command": ["drain", "now"] } });
    let done = hook(exec.clone(), &Commands::ending(End::Exit(0, "bye"))).await.unwrap();
    assert_eq!((done.exit_code, done.output.as_str()), (Some(0), "bye!"));
    let failed = hook(exec.clone(), &Commands::ending(End::Exit(2, "no"))).await.unwrap_err();
    assert_eq!(failed.message, "command 'drain now' exited with 2: no!");
    assert_eq!((failed.said.exit_code, failed.said.output.as_str()), (Some(2), "no!"));
    assert!(hook(exec, &Commands::ending(End::Refused("gone"))).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn t_node_28_t_node_30_a_command_is_not_timed_and_an_abandoned_one_goes_on() {
    let commands = Commands::ending(End::Never);
    let exec = json!({ "exec": { "command": ["wait"] } });
    let abandoned = timeout(Duration::from_secs(3600), hook(exec, &commands)).await;
    assert!(abandoned.is_err(), "it was still running");
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(commands.killed.load(Ordering::SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn t_node_33_sleep_waits_that_long_and_zero_not_at_all() {
    let commands = Commands::ending(End::Never);
    for seconds in [7, 0] {
        let start = Instant::now();
        let sleep = json!({ "sleep": { "seconds": seconds } });
        assert_eq!(hook(sleep, &commands).await, Ok(Said::default()));
        assert_eq!(start.elapsed().as_secs(), seconds);
    }
}

/// T-EDGE-9: as upstream, a hook that is refused has run; only the grace bounds how long it may take.
#[tokio::test]
async fn t_node_31_any_answer_will_do() {
    let server = Server::start(|_| answer("503 No", "", "")).await;
    let get = json!({ "httpGet": { "port": server.port, "path": "/bye" } });
    let answered = hook(get, &Commands::ending(End::Never)).await.unwrap();
    assert_eq!(answered.http_status, Some(503));
    assert!(server.last().contains("User-Agent: kube-lifecycle/1.36\r\n"), "{}", server.last());
    let nobody = json!({ "httpGet": { "port": super::closed_port().await, "path": "/" } });
    assert!(hook(nobody, &Commands::ending(End::Never)).await.is_err());
}

#[tokio::test]
async fn t_node_31_https_that_meets_http_is_tried_again_without_secrets() {
    let server = Server::start(|_| answer("200 OK", "", "")).await;
    let (recorder, mut told) = Recorder::collecting();
    let handler = json!({ "httpGet": { "port": server.port, "path": "/", "scheme": "HTTPS",
        "httpHeaders": [{ "name": "authorization", "value": "secret" }, { "name": "X-A", "value": "b" }] } });
    let target = target(Commands::ending(End::Never), json!({}));
    let done = run_hook(&serde_json::from_value(handler).unwrap(), &target, &recorder).await;
    assert_eq!(done.unwrap().http_status, Some(200));
    let request = server.last();
    assert!(request.contains("X-A: b") && !request.contains("secret"), "{request}");
    let event = told.try_recv().unwrap();
    assert_eq!(event.reason, "LifecycleHTTPFallback");
    let place = format!("127.0.0.1:{}", server.port);
    assert!(event.message.contains(&place), "{}", event.message);
}

#[tokio::test]
async fn t_node_32_tcp_is_refused_when_it_is_to_run() {
    let failed = hook(json!({ "tcpSocket": { "port": 1 } }), &Commands::ending(End::Never)).await;
    assert!(failed.is_err());
}
