//! Handlers with real sockets, probes on a paused clock, and hooks, on a machine whose commands do
//! what the test tells them.

mod grpc;
mod hooks;
mod http;
mod workers;

use super::handler::{Handler, Outcome, Target, run};
use k8s_openapi::api::core::v1::{Pod, Probe};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use testbed::Machine;
use testbed::machine::Commands;

/// A machine on which every command does this.
pub(super) fn machine(commands: Commands) -> Arc<Machine> {
    let machine = Machine::new();
    machine.set_commands(commands);
    machine
}

/// A command that prints this text, then `!` to stderr, and exits.
pub(super) fn exit(code: i32, stdout: &'static str) -> Commands {
    Commands::Exit { code, stdout, stderr: "!" }
}

/// A pod of one container `c` with these fields.
pub(super) fn pod(container: Value) -> Arc<Pod> {
    let mut container = container;
    container["name"] = "c".into();
    let pod = json!({
        "metadata": { "name": "web", "namespace": "default", "uid": "u1" },
        "spec": { "containers": [container] },
    });
    Arc::new(typed::from_value(pod).unwrap())
}

pub(super) fn target(runtime: Arc<Machine>, container: Value) -> Target {
    Target {
        pod: pod(container),
        container: "c".into(),
        container_id: "id-1".into(),
        pod_ip: "127.0.0.1".into(),
        runtime,
    }
}

/// One attempt of a probe of a container with these fields.
async fn attempt(probe: Value, container: Value, commands: Commands) -> (Outcome, Arc<Machine>) {
    let machine = machine(commands);
    let probe: Probe = serde_json::from_value(probe).unwrap();
    let target = target(machine.clone(), container);
    let outcome = run(Handler::of_probe(&probe), &target, Duration::from_secs(1)).await;
    (outcome, machine)
}

async fn outcome_of(probe: Value) -> Outcome {
    attempt(probe, json!({}), Commands::Hang).await.0
}

fn failure(text: &str) -> Outcome {
    Outcome::Failure(text.to_owned())
}

/// A port without a listener.
async fn closed_port() -> u16 {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    listener.local_addr().unwrap().port()
}

#[tokio::test]
async fn n_100_a_tcp_probe_connects_or_fails_with_the_error() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    assert_eq!(outcome_of(json!({ "tcpSocket": { "port": port } })).await, Outcome::Success);
    let closed = closed_port().await;
    let message = format!("dial tcp 127.0.0.1:{closed}: connect: connection refused");
    assert_eq!(outcome_of(json!({ "tcpSocket": { "port": closed } })).await, failure(&message));
    let elsewhere = json!({ "tcpSocket": { "port": port, "host": "::1" } });
    let message = format!("dial tcp [::1]:{port}: connect: ");
    let Outcome::Failure(text) = outcome_of(elsewhere).await else {
        panic!("there is no listener")
    };
    assert!(text.starts_with(&message), "{text}");
}

#[tokio::test]
async fn n_97_a_port_is_a_number_a_name_of_this_container_or_a_number_in_a_string() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let container = json!({ "ports": [{ "name": "web", "containerPort": port }] });
    let by = |port: Value| {
        let container = container.clone();
        async move {
            attempt(json!({ "tcpSocket": { "port": port } }), container, Commands::Hang).await.0
        }
    };
    assert_eq!(by(json!(port)).await, Outcome::Success);
    assert_eq!(by(json!("web")).await, Outcome::Success);
    assert_eq!(by(json!(port.to_string())).await, Outcome::Success);
    let unknown = Outcome::Error("strconv.Atoi: parsing \"admin\": invalid syntax".to_owned());
    assert_eq!(by(json!("admin")).await, unknown);
    assert_eq!(by(json!(70_000)).await, Outcome::Error("invalid port number: 70000".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn n_102_exec_succeeds_fails_with_its_output_or_is_killed_at_the_timeout() {
    let exec = |command: Value| json!({ "exec": { "command": command } });
    let (outcome, machine) = attempt(exec(json!(["true"])), json!({}), exit(0, "ok")).await;
    assert_eq!((outcome, machine.commands_run().len()), (Outcome::Success, 1));
    let (outcome, _) = attempt(exec(json!(["x"])), json!({}), exit(3, "bad")).await;
    assert_eq!(outcome, failure("bad!"), "stdout, then stderr");
    let (outcome, _) =
        attempt(exec(json!(["x"])), json!({}), Commands::Fail("no such container")).await;
    assert_eq!(outcome, Outcome::Error("no such container".to_owned()));
    let (outcome, machine) = attempt(exec(json!(["sleep", "9"])), json!({}), Commands::Hang).await;
    assert_eq!(outcome, failure("command timed out: \"sleep 9\" timed out after 1s"));
    while machine.commands_killed() == 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn n_102_variables_in_the_command_are_those_of_the_spec() {
    let container = json!({ "env": [
        { "name": "A", "value": "1" },
        { "name": "B", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } }] });
    let probe = json!({ "exec": { "command": ["echo", "$(A)", "[$(B)]", "$(C)"] } });
    let (_, machine) = attempt(probe, container, exit(0, "")).await;
    assert_eq!(machine.commands_run()[0], ["echo", "1", "[]", "$(C)"]);
}
