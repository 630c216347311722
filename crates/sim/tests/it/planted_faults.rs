//! The checker finds planted faults: a wrapper around the runtime of the agent does not do quite what the agent calls.

use async_trait::async_trait;
use runtime::{
    Change, Container, ContainerSpec, ContainerUsage, Exec, Images, Resources, Result, Runtime,
    Sandbox, SandboxSpec, Session, Version,
};
use sim::{Options, Scenario, SimulationSetup, WrapRuntime};
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

struct FaultyRuntime {
    inner: Arc<dyn Runtime>,
    fault: Fault,
    /// By pod: held while one of its containers is being stopped.
    turns: Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<()>>>>,
    /// When hooks started, by container.
    hooks: Mutex<BTreeMap<String, Instant>>,
}

fn plant(fault: Fault) -> Options {
    let wrap_runtime: WrapRuntime = Arc::new(move |inner| {
        let (turns, hooks) = (Mutex::default(), Mutex::default());
        Arc::new(FaultyRuntime { inner, fault, turns, hooks })
    });
    Options { wrap_runtime: Some(wrap_runtime), ignore_timelines: true, ..Options::default() }
}

/// The rule that the checker finds broken within a thousand seeds.
fn found(fault: Fault) -> &'static str {
    let setup = SimulationSetup::prepare().unwrap();
    let scenario = Scenario::find("endings").unwrap();
    let summary = sim::run_many(&setup, scenario, 0..1000, &plant(fault), &|_| true).unwrap();
    let outcome = summary.failure.expect("the checker finds the fault");
    outcome.violation.unwrap().broken.rule
}

/// T-NODE-15: all containers of a pod are stopped at the same time.
#[test]
fn containers_that_are_stopped_one_after_another_are_found() {
    let rule = found(Fault::OneAfterAnother);
    assert!(["T-NODE-15", "T-NODE-16"].contains(&rule), "{rule}");
}

/// T-NODE-27: the hook uses part of the grace period.
#[test]
fn a_grace_that_counts_from_the_end_of_the_hook_is_found() {
    let rule = found(Fault::GraceAfterHook);
    // The late kill may also come after the exit.
    assert!(["one grace period", "no signal after an exit"].contains(&rule), "{rule}");
}

/// T-NODE-26: the hook runs once.
#[test]
fn a_hook_that_runs_twice_is_found() {
    assert_eq!(found(Fault::HookTwice), "one hook");
}

impl FaultyRuntime {
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
impl Runtime for FaultyRuntime {
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
