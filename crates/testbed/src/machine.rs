//! A machine without a kernel: containers that have no processes and run until the test, a stop signal or a kill
//! ends them.
//!
//! Tests set knobs before or while the code under test runs (`ignore_stop`, `fail`, `set_commands`, …) and read
//! afterwards what it called (`calls`). Not here: what a command in a container does (`machine/commands.rs`).

mod commands;
mod images;

pub use commands::Commands;

use async_trait::async_trait;
use images::ImageContent;
use runtime::{
    Change, Container, ContainerSpec, ContainerState, ContainerUsage, Error, Exec, Exit, Features,
    Identity, Images, PodNetwork, Resources, Result, Runtime, Sandbox, SandboxSpec, SandboxState,
    Session, UserRange, Version,
};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::broadcast;

/// The number of processes that every running container reports.
pub const PROCESSES: u64 = 7;

/// Exit code and number of SIGKILL.
const KILLED: (i32, Option<i32>) = (137, Some(9));

pub struct Machine {
    state: Mutex<State>,
    changes: broadcast::Sender<Change>,
    finished: broadcast::Sender<(Vec<String>, i32)>,
    commands_killed: Arc<AtomicUsize>,
}

#[derive(Default)]
struct State {
    /// The number of sandboxes and containers ever created; their ids contain it.
    created: u32,
    sandboxes: Vec<Sandbox>,
    calls: Vec<String>,
    /// How often calls of each method fail from now on.
    failures: BTreeMap<&'static str, usize>,
    ignores_stop: bool,
    ignores_kill: bool,
    commands: Commands,
    commands_run: Vec<Vec<String>>,
    without_network: bool,
    without_user_namespaces: bool,
    /// The users of sandboxes, by the names of their pods.
    users: BTreeMap<String, Option<UserRange>>,
    image_content: Option<ImageContent>,
}

/// Knobs.
impl Machine {
    pub fn new() -> Arc<Machine> {
        Arc::new(Machine {
            state: Mutex::default(),
            changes: broadcast::Sender::new(1024),
            finished: broadcast::Sender::new(16),
            commands_killed: Arc::default(),
        })
    }

    /// Containers do not exit on a stop signal.
    pub fn ignore_stop(&self) {
        self.state().ignores_stop = true;
    }

    /// Containers do not exit even on SIGKILL.
    pub fn ignore_kill(&self) {
        self.state().ignores_kill = true;
    }

    /// The next `times` calls of this method fail.
    pub fn fail(&self, method: &'static str, times: usize) {
        self.state().failures.insert(method, times);
    }

    /// What commands in containers do from now on.
    pub fn set_commands(&self, commands: Commands) {
        self.state().commands = commands;
    }

    /// The agent has to create the network of pods.
    pub fn without_network(&self) {
        self.state().without_network = true;
    }

    /// Pods cannot have user namespaces.
    pub fn without_user_namespaces(&self) {
        self.state().without_user_namespaces = true;
    }

    /// Mounts of images call `mount` with their target; other calls name `directory` as the place of images.
    pub fn set_image_content(
        &self,
        directory: &Path,
        mount: impl Fn(&Path) -> std::io::Result<()> + Send + Sync + 'static,
    ) {
        let content = ImageContent { directory: directory.into(), mount: Arc::new(mount) };
        self.state().image_content = Some(content);
    }

    /// Adds a sandbox whose containers already run. Their ids are `<container>-id`, and they log below `logs`.
    pub fn run_pod(&self, pod: Identity, containers: &[&str], logs: &Path) {
        let id = format!("{}-sandbox", pod.uid);
        let mut sandbox = sandbox(&id, pod, PodNetwork::Host);
        sandbox.containers.extend(containers.iter().map(|name| Container {
            id: format!("{name}-id"),
            sandbox: id.clone(),
            name: (*name).to_owned(),
            attempt: 0,
            state: ContainerState::Running { started_at: clock::now() },
            created_at: clock::now(),
            image_name: "busybox".into(),
            image: "sha256:b".into(),
            resources: Resources::default(),
            user: None,
            mounts: Vec::new(),
            log_path: logs.join(name).join("0.log"),
            labels: Default::default(),
            annotations: Default::default(),
        }));
        self.state().sandboxes.push(sandbox);
    }

    /// Every running container of that name exits.
    pub fn exit(&self, name: &str, code: i32) {
        self.end(|container| container.name == name, (code, None));
    }
}

/// What happened.
impl Machine {
    /// The calls that change something, in order: `run sandbox`, `stop c`, `kill c`, `exec check`, `stop sandbox`, …
    pub fn calls(&self) -> Vec<String> {
        self.state().calls.clone()
    }

    pub fn count(&self, call: &str) -> usize {
        self.state().calls.iter().filter(|known| *known == call).count()
    }

    pub fn clear_calls(&self) {
        self.state().calls.clear();
    }

    /// The commands that were started in containers, with their arguments.
    pub fn commands_run(&self) -> Vec<Vec<String>> {
        self.state().commands_run.clone()
    }

    pub fn clear_commands_run(&self) {
        self.state().commands_run.clear();
    }

    /// How many commands that hang were killed.
    pub fn commands_killed(&self) -> usize {
        self.commands_killed.load(Ordering::SeqCst)
    }

    /// Commands that ran as processes of this host, with their exit codes, from now on.
    pub fn finished_commands(&self) -> broadcast::Receiver<(Vec<String>, i32)> {
        self.finished.subscribe()
    }

    /// The users of a pod's sandbox; the outer `None` if the pod never had a sandbox.
    pub fn users(&self, pod: &str) -> Option<Option<UserRange>> {
        self.state().users.get(pod).copied()
    }

    pub fn is_empty(&self) -> bool {
        self.state().sandboxes.is_empty()
    }
}

impl Machine {
    fn end(&self, which: impl Fn(&Container) -> bool, (code, signal): (i32, Option<i32>)) {
        let mut changed = Vec::new();
        for sandbox in &mut self.state().sandboxes {
            for container in sandbox.containers.iter_mut().filter(|container| which(container)) {
                let ContainerState::Running { started_at } = container.state else { continue };
                container.state = ContainerState::Exited(Exit {
                    code,
                    signal,
                    reason: String::new(),
                    message: String::new(),
                    started_at: Some(started_at),
                    finished_at: clock::now(),
                });
                changed.push(sandbox.pod.uid.clone());
            }
        }
        for pod in changed {
            let _ = self.changes.send(Change { pod });
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no test panics while it holds the lock")
    }

    fn record(&self, method: &'static str, call: String) -> Result<()> {
        self.state().calls.push(call);
        self.fail_if_told(method)
    }

    fn fail_if_told(&self, method: &'static str) -> Result<()> {
        let mut state = self.state();
        match state.failures.get_mut(method).filter(|left| **left > 0) {
            None => Ok(()),
            Some(left) => {
                *left -= 1;
                Err(Error::Refused(format!("the test makes {method} fail")))
            }
        }
    }

    fn name_of(&self, id: &str) -> String {
        let state = self.state();
        let mut all = state.sandboxes.iter().flat_map(|sandbox| &sandbox.containers);
        all.find(|container| container.id == id).map(|it| it.name.clone()).unwrap_or_default()
    }
}

fn unsupported<T>() -> Result<T> {
    Err(Error::Refused("the test machine does not support this".into()))
}

fn sandbox(id: &str, pod: Identity, network: PodNetwork) -> Sandbox {
    Sandbox {
        id: id.to_owned(),
        pod,
        attempt: 0,
        state: SandboxState::Ready,
        message: String::new(),
        created_at: clock::now(),
        network,
        addresses: Vec::new(),
        containers: Vec::new(),
        labels: Default::default(),
        annotations: Default::default(),
    }
}

#[async_trait]
impl Runtime for Machine {
    async fn version(&self) -> Result<Version> {
        Ok(Version { name: "testbed".into(), version: "1".into() })
    }

    async fn ready(&self) -> Result<()> {
        Ok(())
    }

    fn brings_network(&self) -> bool {
        !self.state().without_network
    }

    fn features(&self) -> Features {
        let user_namespaces = !self.state().without_user_namespaces;
        Features { user_namespaces, ..Features::default() }
    }

    async fn run_sandbox(&self, spec: &SandboxSpec) -> Result<Sandbox> {
        // Sent even if the call fails: a runtime may create a sandbox and remove it again.
        let _ = self.changes.send(Change { pod: spec.pod.uid.clone() });
        self.record("run_sandbox", "run sandbox".into())?;
        let mut state = self.state();
        state.created += 1;
        state.users.insert(spec.pod.name.clone(), spec.users);
        let id = format!("s{}", state.created);
        let sandbox = Sandbox {
            attempt: spec.attempt,
            addresses: vec!["192.0.2.99".parse().expect("an address")],
            labels: spec.labels.clone(),
            annotations: spec.annotations.clone(),
            ..sandbox(&id, spec.pod.clone(), spec.network.clone())
        };
        state.sandboxes.insert(0, sandbox.clone());
        Ok(sandbox)
    }

    async fn stop_sandbox(&self, id: &str) -> Result<()> {
        self.record("stop_sandbox", "stop sandbox".into())?;
        self.end(|container| container.sandbox == id, KILLED);
        let mut state = self.state();
        for sandbox in state.sandboxes.iter_mut().filter(|sandbox| sandbox.id == id) {
            sandbox.state = SandboxState::NotReady;
        }
        Ok(())
    }

    async fn remove_sandbox(&self, id: &str) -> Result<()> {
        self.record("remove_sandbox", "remove sandbox".into())?;
        self.state().sandboxes.retain(|sandbox| sandbox.id != id);
        Ok(())
    }

    async fn sandboxes(&self) -> Result<Vec<Sandbox>> {
        self.fail_if_told("sandboxes")?;
        Ok(self.state().sandboxes.clone())
    }

    async fn sandboxes_of(&self, pod: &str) -> Result<Vec<Sandbox>> {
        let state = self.state();
        Ok(state.sandboxes.iter().filter(|sandbox| sandbox.pod.uid == pod).cloned().collect())
    }

    fn changes(&self) -> broadcast::Receiver<Change> {
        self.changes.subscribe()
    }

    async fn create_container(&self, sandbox: &str, spec: &ContainerSpec) -> Result<Container> {
        let mut state = self.state();
        state.created += 1;
        let container = Container {
            id: format!("c{}", state.created),
            sandbox: sandbox.to_owned(),
            name: spec.name.clone(),
            attempt: spec.attempt,
            state: ContainerState::Created,
            created_at: clock::now(),
            image_name: spec.image_name.clone(),
            image: spec.image.clone(),
            resources: spec.resources.clone(),
            user: Some((0, 0, vec![0])),
            mounts: Vec::new(),
            log_path: spec.log_path.clone(),
            labels: spec.labels.clone(),
            annotations: spec.annotations.clone(),
        };
        let found = state.sandboxes.iter_mut().find(|known| known.id == sandbox);
        found.expect("the sandbox exists").containers.insert(0, container.clone());
        Ok(container)
    }

    async fn start_container(&self, id: &str) -> Result<()> {
        let mut state = self.state();
        let all = state.sandboxes.iter_mut().flat_map(|sandbox| &mut sandbox.containers);
        for container in all.filter(|container| container.id == id) {
            container.state = ContainerState::Running { started_at: clock::now() };
        }
        Ok(())
    }

    async fn stop_container(&self, id: &str, _: Duration) -> Result<()> {
        self.record("stop_container", format!("stop {}", self.name_of(id)))?;
        if !self.state().ignores_stop {
            self.end(|container| container.id == id, (0, None));
        }
        Ok(())
    }

    async fn stop_signal(&self, _: &str) -> Option<i32> {
        None
    }

    async fn kill_container(&self, id: &str) -> Result<()> {
        self.record("kill_container", format!("kill {}", self.name_of(id)))?;
        if !self.state().ignores_kill {
            self.end(|container| container.id == id, KILLED);
        }
        Ok(())
    }

    async fn remove_container(&self, id: &str) -> Result<()> {
        for sandbox in &mut self.state().sandboxes {
            sandbox.containers.retain(|container| container.id != id);
        }
        Ok(())
    }

    async fn update_container(&self, _: &str, _: &Resources) -> Result<()> {
        unsupported()
    }

    async fn limit_group(&self, _: &str, _: &Resources) -> Result<()> {
        Ok(())
    }

    async fn exec(&self, _: &str, exec: &Exec) -> Result<Session> {
        self.record("exec", format!("exec {}", exec.command.join(" ")))?;
        self.run_command(exec).await
    }

    async fn attach(&self, _: &str, exec: &Exec) -> Result<Session> {
        Ok(commands::attach(exec))
    }

    /// As other runtimes do after the log file was renamed: creates a new file with the old name.
    async fn reopen_log(&self, id: &str) -> Result<()> {
        let state = self.state();
        let all = state.sandboxes.iter().flat_map(|sandbox| &sandbox.containers);
        for path in all.filter(|container| container.id == id).map(|it| &it.log_path) {
            std::fs::File::create(path).map_err(Error::io("create", path))?;
        }
        Ok(())
    }

    async fn usage(&self) -> Result<Vec<ContainerUsage>> {
        let state = self.state();
        let all = state.sandboxes.iter().flat_map(|sandbox| {
            let running = |it: &&Container| matches!(it.state, ContainerState::Running { .. });
            sandbox.containers.iter().filter(running).map(|container| ContainerUsage {
                pod: sandbox.pod.uid.clone(),
                container_id: container.id.clone(),
                container: container.name.clone(),
                at: clock::now(),
                cpu_nanoseconds: 1_500_000_000,
                memory_bytes: 2 << 20,
                working_set_bytes: 1 << 20,
                processes: PROCESSES,
                ..ContainerUsage::default()
            })
        });
        Ok(all.collect())
    }

    /// Connects to this port of the host: containers have no network namespace.
    async fn connect(&self, _: &str, port: u16) -> Result<tokio::net::TcpStream> {
        let connected = tokio::net::TcpStream::connect(("127.0.0.1", port)).await;
        connected.map_err(|error| {
            Error::Refused(format!(
                "failed to connect to localhost:{port} inside namespace: {error}"
            ))
        })
    }

    fn images(&self) -> &dyn Images {
        self
    }
}
