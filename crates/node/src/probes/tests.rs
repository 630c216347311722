//! Handlers against real sockets, workers on a paused clock, hooks: with a runtime that only runs
//! the commands it is told about.

mod grpc;
mod hooks;
mod http;
mod workers;

use super::handler::{Handler, Outcome, Target, run};
use async_trait::async_trait;
use bytes::Bytes;
use k8s_openapi::api::core::v1::{Pod, Probe};
use runtime::{
    Change, Container, ContainerSpec, ContainerUsage, Error, Exec, Images, Output, Resources,
    Result, Runtime, Sandbox, SandboxSpec, Session, Version,
};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{broadcast, mpsc, oneshot};

/// How a command of [`Commands`] ends.
#[derive(Debug, Clone)]
pub(super) enum End {
    Exit(i32, &'static str),
    /// Runs until it is killed.
    Never,
    /// Cannot be run.
    Refused(&'static str),
}

/// A runtime that knows how one command ends, and remembers what was asked of it.
pub(super) struct Commands {
    end: Mutex<End>,
    pub(super) ran: Mutex<Vec<Vec<String>>>,
    pub(super) killed: Arc<AtomicUsize>,
}

impl Commands {
    pub(super) fn ending(end: End) -> Arc<Commands> {
        let (ran, killed) = (Mutex::default(), Arc::default());
        Arc::new(Commands { end: Mutex::new(end), ran, killed })
    }

    pub(super) fn ends(&self, end: End) {
        *self.end.lock().unwrap() = end;
    }

    pub(super) fn count(&self) -> usize {
        self.ran.lock().unwrap().len()
    }

    async fn session(&self, end: End) -> Result<Session> {
        let (says, output) = mpsc::channel(4);
        let (exits, exit) = oneshot::channel();
        let (kill, killed) = oneshot::channel::<()>();
        match end {
            End::Refused(why) => return Err(Error::Refused(why.to_owned())),
            End::Exit(code, text) => {
                let _ = says.send(Output::Stderr(Bytes::from("!"))).await;
                let _ = says.send(Output::Stdout(Bytes::from(text))).await;
                let _ = exits.send(Ok(code));
            }
            End::Never => {
                let count = self.killed.clone();
                tokio::spawn(async move {
                    let _ = killed.await;
                    count.fetch_add(1, Ordering::SeqCst);
                    drop((says, exits));
                });
            }
        }
        Ok(Session { stdin: None, output, resize: None, exit, kill: Some(kill) })
    }
}

fn absent<T>() -> Result<T> {
    Err(Error::Refused("this runtime only runs commands".to_owned()))
}

#[async_trait]
impl Runtime for Commands {
    async fn exec(&self, _: &str, exec: &Exec) -> Result<Session> {
        self.ran.lock().unwrap().push(exec.command.clone());
        let end = self.end.lock().unwrap().clone();
        self.session(end).await
    }

    async fn version(&self) -> Result<Version> {
        absent()
    }
    async fn ready(&self) -> Result<()> {
        absent()
    }
    fn brings_network(&self) -> bool {
        false
    }
    async fn run_sandbox(&self, _: &SandboxSpec) -> Result<Sandbox> {
        absent()
    }
    async fn stop_sandbox(&self, _: &str) -> Result<()> {
        absent()
    }
    async fn remove_sandbox(&self, _: &str) -> Result<()> {
        absent()
    }
    async fn sandboxes(&self) -> Result<Vec<Sandbox>> {
        absent()
    }
    async fn sandboxes_of(&self, _: &str) -> Result<Vec<Sandbox>> {
        absent()
    }
    fn changes(&self) -> broadcast::Receiver<Change> {
        broadcast::channel(1).1
    }
    async fn create_container(&self, _: &str, _: &ContainerSpec) -> Result<Container> {
        absent()
    }
    async fn start_container(&self, _: &str) -> Result<()> {
        absent()
    }
    async fn stop_container(&self, _: &str, _: Duration) -> Result<()> {
        absent()
    }
    async fn stop_signal(&self, _: &str) -> Option<i32> {
        None
    }
    async fn kill_container(&self, _: &str) -> Result<()> {
        absent()
    }
    async fn remove_container(&self, _: &str) -> Result<()> {
        absent()
    }
    async fn update_container(&self, _: &str, _: &Resources) -> Result<()> {
        absent()
    }
    async fn limit_group(&self, _: &str, _: &Resources) -> Result<()> {
        absent()
    }
    async fn attach(&self, _: &str, _: &Exec) -> Result<Session> {
        absent()
    }
    async fn reopen_log(&self, _: &str) -> Result<()> {
        absent()
    }
    async fn usage(&self) -> Result<Vec<ContainerUsage>> {
        absent()
    }
    async fn connect(&self, _: &str, _: u16) -> Result<tokio::net::TcpStream> {
        absent()
    }
    fn images(&self) -> &dyn Images {
        unreachable!("handlers need no images")
    }
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

pub(super) fn target(runtime: Arc<Commands>, container: Value) -> Target {
    Target {
        pod: pod(container),
        container: "c".into(),
        container_id: "id-1".into(),
        pod_ip: "127.0.0.1".into(),
        runtime,
    }
}

/// One attempt of a probe by a container that has these fields.
async fn attempt(probe: Value, container: Value, end: End) -> (Outcome, Arc<Commands>) {
    let commands = Commands::ending(end);
    let probe: Probe = serde_json::from_value(probe).unwrap();
    let target = target(commands.clone(), container);
    let outcome = run(Handler::of_probe(&probe), &target, Duration::from_secs(1)).await;
    (outcome, commands)
}

async fn asked(probe: Value) -> Outcome {
    attempt(probe, json!({}), End::Never).await.0
}

fn failure(text: &str) -> Outcome {
    Outcome::Failure(text.to_owned())
}

/// A port where nobody listens.
async fn closed_port() -> u16 {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    listener.local_addr().unwrap().port()
}

#[tokio::test]
async fn n_100_tcp_connects_or_says_why_not() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    assert_eq!(asked(json!({ "tcpSocket": { "port": port } })).await, Outcome::Success);
    let closed = closed_port().await;
    let said = format!("dial tcp 127.0.0.1:{closed}: connect: connection refused");
    assert_eq!(asked(json!({ "tcpSocket": { "port": closed } })).await, failure(&said));
    let elsewhere = json!({ "tcpSocket": { "port": port, "host": "::1" } });
    let said = format!("dial tcp [::1]:{port}: connect: ");
    let Outcome::Failure(text) = asked(elsewhere).await else { panic!("nobody listens there") };
    assert!(text.starts_with(&said), "{text}");
}

#[tokio::test]
async fn n_97_ports_go_by_number_by_name_of_this_container_or_by_a_number_in_a_string() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let container = json!({ "ports": [{ "name": "web", "containerPort": port }] });
    let by = |port: Value| {
        let container = container.clone();
        async move { attempt(json!({ "tcpSocket": { "port": port } }), container, End::Never).await.0 }
    };
    assert_eq!(by(json!(port)).await, Outcome::Success);
    assert_eq!(by(json!("web")).await, Outcome::Success);
    assert_eq!(by(json!(port.to_string())).await, Outcome::Success);
    let unknown = Outcome::Error("strconv.Atoi: parsing \"admin\": invalid syntax".to_owned());
    assert_eq!(by(json!("admin")).await, unknown);
    assert_eq!(by(json!(70_000)).await, Outcome::Error("invalid port number: 70000".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn n_102_exec_succeeds_fails_with_its_output_or_is_killed_when_its_time_is_over() {
    let exec = |command: Value| json!({ "exec": { "command": command } });
    let (outcome, commands) = attempt(exec(json!(["true"])), json!({}), End::Exit(0, "ok")).await;
    assert_eq!((outcome, commands.count()), (Outcome::Success, 1));
    let (outcome, _) = attempt(exec(json!(["x"])), json!({}), End::Exit(3, "bad")).await;
    assert_eq!(outcome, failure("bad!"), "stdout, then stderr");
    let (outcome, _) =
        attempt(exec(json!(["x"])), json!({}), End::Refused("no such container")).await;
    assert_eq!(outcome, Outcome::Error("no such container".to_owned()));
    let (outcome, commands) = attempt(exec(json!(["sleep", "9"])), json!({}), End::Never).await;
    assert_eq!(outcome, failure("command timed out: \"sleep 9\" timed out after 1s"));
    while commands.killed.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn n_102_variables_in_the_command_are_the_specs() {
    let container = json!({ "env": [
        { "name": "A", "value": "1" },
        { "name": "B", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } }] });
    let probe = json!({ "exec": { "command": ["echo", "$(A)", "[$(B)]", "$(C)"] } });
    let (_, commands) = attempt(probe, container, End::Exit(0, "")).await;
    assert_eq!(commands.ran.lock().unwrap()[0], ["echo", "1", "[]", "$(C)"]);
}
