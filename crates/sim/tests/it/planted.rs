//! Faults that are planted, to see that they are found: between the agent and its machine stands
//! somebody who does not quite do what he was asked.

use async_trait::async_trait;
use runtime::{
    Change, Container, ContainerSpec, ContainerUsage, Exec, Images, Resources, Result, Runtime,
    Sandbox, SandboxSpec, Session, Version,
};
use sim::{Ground, Options, Scenario, Wrap};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{OwnedMutexGuard, broadcast};
use tokio::time::Instant;

#[derive(Clone, Copy, PartialEq)]
enum Fault {
    /// The containers of a pod are stopped one after another.
    OneAfterAnother,
    /// The deadline counts from the end of the hook.
    GraceAfterHook,
    HookTwice,
}

struct Clumsy {
    inner: Arc<dyn Runtime>,
    fault: Fault,
    /// Whose turn it is, by pod.
    turns: Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<()>>>>,
    /// When hooks began.
    hooks: Mutex<BTreeMap<String, Instant>>,
}

fn plant(fault: Fault) -> Options {
    let wrap: Wrap = Arc::new(move |inner| {
        let (turns, hooks) = (Mutex::default(), Mutex::default());
        Arc::new(Clumsy { inner, fault, turns, hooks })
    });
    Options { wrap: Some(wrap), without_timelines: true, ..Options::default() }
}

/// The rule that was seen to be broken, within a thousand seeds.
fn found(fault: Fault) -> &'static str {
    let ground = Ground::lay().unwrap();
    let scenario = Scenario::find("endings").unwrap();
    let summary = sim::run_many(&ground, scenario, 0..1000, &plant(fault), &|_| true).unwrap();
    let outcome = summary.failure.expect("the fault is found");
    outcome.violation.unwrap().broken.rule
}

/// T-NODE-15
#[test]
fn containers_that_are_stopped_one_after_another_are_found() {
    let rule = found(Fault::OneAfterAnother);
    assert!(["T-NODE-15", "T-NODE-16"].contains(&rule), "{rule}");
}

/// T-NODE-27
#[test]
fn a_grace_that_counts_from_the_end_of_the_hook_is_found() {
    let rule = found(Fault::GraceAfterHook);
    // The kill that comes too late may also find nobody.
    assert!(["one grace", "no signal after an exit"].contains(&rule), "{rule}");
}

/// T-NODE-26
#[test]
fn a_hook_that_runs_twice_is_found() {
    assert_eq!(found(Fault::HookTwice), "one hook");
}

impl Clumsy {
    async fn pod_of(&self, container: &str) -> String {
        let all = self.inner.sandboxes().await.unwrap_or_default();
        let holds = |sandbox: &&Sandbox| sandbox.containers.iter().any(|c| c.id == container);
        all.iter().find(holds).map(|sandbox| sandbox.pod.uid.clone()).unwrap_or_default()
    }

    async fn turn(&self, pod: &str) -> OwnedMutexGuard<()> {
        let turn = self.turns.lock().unwrap().entry(pod.to_owned()).or_default().clone();
        turn.lock_owned().await
    }

    async fn ended(&self, pod: &str, container: &str) -> bool {
        let all = self.inner.sandboxes_of(pod).await.unwrap_or_default();
        let mut containers = all.iter().flat_map(|sandbox| &sandbox.containers);
        !containers.any(|c| {
            c.id == container && matches!(c.state, runtime::ContainerState::Running { .. })
        })
    }
}

#[async_trait]
impl Runtime for Clumsy {
    async fn stop_container(&self, container: &str, window: Duration) -> Result<()> {
        if self.fault != Fault::OneAfterAnother {
            return self.inner.stop_container(container, window).await;
        }
        let pod = self.pod_of(container).await;
        let _turn = self.turn(&pod).await;
        self.inner.stop_container(container, window).await?;
        let until = Instant::now() + window;
        while Instant::now() < until && !self.ended(&pod, container).await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    async fn stop_signal(&self, container: &str) -> Option<i32> {
        self.inner.stop_signal(container).await
    }
    async fn kill_container(&self, container: &str) -> Result<()> {
        let began = self.hooks.lock().unwrap().get(container).copied();
        if let (Fault::GraceAfterHook, Some(began)) = (self.fault, began) {
            tokio::time::sleep(began.elapsed().min(Duration::from_secs(3))).await;
        }
        self.inner.kill_container(container).await
    }

    async fn exec(&self, container: &str, exec: &Exec) -> Result<Session> {
        self.hooks.lock().unwrap().insert(container.to_owned(), Instant::now());
        if self.fault == Fault::HookTwice {
            self.inner.exec(container, exec).await?;
        }
        self.inner.exec(container, exec).await
    }

    async fn version(&self) -> Result<Version> {
        self.inner.version().await
    }
    async fn ready(&self) -> Result<()> {
        self.inner.ready().await
    }
    fn brings_network(&self) -> bool {
        self.inner.brings_network()
    }
    async fn run_sandbox(&self, spec: &SandboxSpec) -> Result<Sandbox> {
        self.inner.run_sandbox(spec).await
    }
    async fn stop_sandbox(&self, sandbox: &str) -> Result<()> {
        self.inner.stop_sandbox(sandbox).await
    }
    async fn remove_sandbox(&self, sandbox: &str) -> Result<()> {
        self.inner.remove_sandbox(sandbox).await
    }
    async fn sandboxes(&self) -> Result<Vec<Sandbox>> {
        self.inner.sandboxes().await
    }
    async fn sandboxes_of(&self, pod: &str) -> Result<Vec<Sandbox>> {
        self.inner.sandboxes_of(pod).await
    }
    fn changes(&self) -> broadcast::Receiver<Change> {
        self.inner.changes()
    }
    async fn create_container(&self, sandbox: &str, spec: &ContainerSpec) -> Result<Container> {
        self.inner.create_container(sandbox, spec).await
    }
    async fn start_container(&self, container: &str) -> Result<()> {
        self.inner.start_container(container).await
    }
    async fn remove_container(&self, container: &str) -> Result<()> {
        self.inner.remove_container(container).await
    }
    async fn update_container(&self, container: &str, resources: &Resources) -> Result<()> {
        self.inner.update_container(container, resources).await
    }

    async fn limit_group(&self, cgroup: &str, resources: &Resources) -> Result<()> {
        self.inner.limit_group(cgroup, resources).await
    }
    async fn attach(&self, container: &str, exec: &Exec) -> Result<Session> {
        self.inner.attach(container, exec).await
    }
    async fn reopen_log(&self, container: &str) -> Result<()> {
        self.inner.reopen_log(container).await
    }
    async fn usage(&self) -> Result<Vec<ContainerUsage>> {
        self.inner.usage().await
    }
    async fn connect(&self, sandbox: &str, port: u16) -> Result<tokio::net::TcpStream> {
        self.inner.connect(sandbox, port).await
    }
    fn images(&self) -> &dyn Images {
        self.inner.images()
    }
}
