//! Containers without processes: they run until the test, a stop signal or a kill ends them.

use async_trait::async_trait;
use runtime::{
    Change, Container, ContainerSpec, ContainerState, ContainerUsage, Credentials, Error, Exec,
    Exit, Image, ImageReference, Images, PullProgress, Resources, Result, Runtime, Sandbox,
    SandboxSpec, SandboxState, Session, Version,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::{broadcast, mpsc, oneshot};

/// Every running container has so many.
pub(crate) const PROCESSES: u64 = 7;

pub(crate) struct Machine {
    state: Mutex<State>,
    changes: broadcast::Sender<Change>,
}

#[derive(Default)]
struct State {
    made: u32,
    sandboxes: Vec<Sandbox>,
    asked: Vec<String>,
    /// How often each call fails from now on.
    refused: BTreeMap<&'static str, usize>,
    ignores_stop: bool,
    ignores_kill: bool,
    /// What commands exit with.
    code: i32,
    brings_no_network: bool,
}

impl Machine {
    pub(super) fn new() -> Arc<Machine> {
        Arc::new(Machine { state: Mutex::default(), changes: broadcast::Sender::new(1024) })
    }

    /// What was asked of it, in order: `stop c`, `kill c`, `exec check`, `stop sandbox`, …
    pub(crate) fn asked(&self) -> Vec<String> {
        self.state().asked.clone()
    }

    pub(crate) fn count(&self, what: &str) -> usize {
        self.state().asked.iter().filter(|asked| *asked == what).count()
    }

    pub(crate) fn forget_asked(&self) {
        self.state().asked.clear();
    }

    /// Containers do not end when they are asked to.
    pub(crate) fn ignores_stop(&self) {
        self.state().ignores_stop = true;
    }

    /// Not even when they are killed.
    pub(crate) fn ignores_kill(&self) {
        self.state().ignores_kill = true;
    }

    /// The next calls of this method fail.
    pub(crate) fn refuses(&self, method: &'static str, times: usize) {
        self.state().refused.insert(method, times);
    }

    /// What commands exit with from now on.
    pub(crate) fn commands_exit(&self, code: i32) {
        self.state().code = code;
    }

    /// The agent makes the pods' network itself.
    pub(crate) fn brings_no_network(&self) {
        self.state().brings_no_network = true;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.state().sandboxes.is_empty()
    }

    /// Every running container of that name ends.
    pub(crate) fn exit(&self, name: &str, code: i32) {
        self.end(|container| container.name == name, code, None);
    }

    fn end(&self, which: impl Fn(&Container) -> bool, code: i32, signal: Option<i32>) {
        let mut ended = Vec::new();
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
                ended.push(sandbox.pod.uid.clone());
            }
        }
        for pod in ended {
            let _ = self.changes.send(Change { pod });
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn call(&self, method: &'static str, what: String) -> Result<()> {
        self.state().asked.push(what);
        self.refuse(method)
    }

    fn refuse(&self, method: &'static str) -> Result<()> {
        let mut state = self.state();
        match state.refused.get_mut(method).filter(|left| **left > 0) {
            None => Ok(()),
            Some(left) => {
                *left -= 1;
                Err(Error::Refused(format!("{method} does not work today")))
            }
        }
    }

    fn name(&self, id: &str) -> String {
        let state = self.state();
        let mut all = state.sandboxes.iter().flat_map(|sandbox| &sandbox.containers);
        all.find(|container| container.id == id).map(|it| it.name.clone()).unwrap_or_default()
    }
}

fn no<T>() -> Result<T> {
    Err(Error::Refused("this machine cannot do that".into()))
}

#[async_trait]
impl Runtime for Machine {
    async fn version(&self) -> Result<Version> {
        Ok(Version { name: "bed".into(), version: "1".into() })
    }
    async fn ready(&self) -> Result<()> {
        Ok(())
    }
    fn brings_network(&self) -> bool {
        !self.state().brings_no_network
    }
    async fn run_sandbox(&self, spec: &SandboxSpec) -> Result<Sandbox> {
        self.call("run_sandbox", "run sandbox".into())?;
        let mut state = self.state();
        state.made += 1;
        let sandbox = Sandbox {
            id: format!("s{}", state.made),
            pod: spec.pod.clone(),
            attempt: spec.attempt,
            state: SandboxState::Ready,
            message: String::new(),
            created_at: clock::now(),
            network: spec.network.clone(),
            addresses: vec!["192.0.2.99".parse().unwrap()],
            containers: Vec::new(),
            labels: spec.labels.clone(),
            annotations: spec.annotations.clone(),
        };
        state.sandboxes.insert(0, sandbox.clone());
        Ok(sandbox)
    }
    async fn stop_sandbox(&self, id: &str) -> Result<()> {
        self.call("stop_sandbox", "stop sandbox".into())?;
        self.end(|container| container.sandbox == id, 137, Some(9));
        let mut state = self.state();
        for sandbox in state.sandboxes.iter_mut().filter(|sandbox| sandbox.id == id) {
            sandbox.state = SandboxState::NotReady;
        }
        Ok(())
    }
    async fn remove_sandbox(&self, id: &str) -> Result<()> {
        self.call("remove_sandbox", "remove sandbox".into())?;
        self.state().sandboxes.retain(|sandbox| sandbox.id != id);
        Ok(())
    }
    async fn sandboxes(&self) -> Result<Vec<Sandbox>> {
        self.refuse("sandboxes")?;
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
        state.made += 1;
        let container = Container {
            id: format!("c{}", state.made),
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
        found.unwrap().containers.insert(0, container.clone());
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
        self.call("stop_container", format!("stop {}", self.name(id)))?;
        if !self.state().ignores_stop {
            self.end(|container| container.id == id, 0, None);
        }
        Ok(())
    }
    async fn stop_signal(&self, _: &str) -> Option<i32> {
        None
    }
    async fn kill_container(&self, id: &str) -> Result<()> {
        self.call("kill_container", format!("kill {}", self.name(id)))?;
        if !self.state().ignores_kill {
            self.end(|container| container.id == id, 137, Some(9));
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
        no()
    }
    async fn limit_group(&self, _: &str, _: &Resources) -> Result<()> {
        Ok(())
    }
    async fn exec(&self, _: &str, exec: &Exec) -> Result<Session> {
        self.call("exec", format!("exec {}", exec.command.join(" ")))?;
        let (_, output) = mpsc::channel(1);
        let (exits, exit) = oneshot::channel();
        let _ = exits.send(Ok(self.state().code));
        Ok(Session { stdin: None, output, resize: None, exit, kill: None })
    }
    async fn attach(&self, _: &str, _: &Exec) -> Result<Session> {
        no()
    }
    async fn reopen_log(&self, _: &str) -> Result<()> {
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
                processes: PROCESSES,
                ..ContainerUsage::default()
            })
        });
        Ok(all.collect())
    }
    async fn connect(&self, _: &str, _: u16) -> Result<tokio::net::TcpStream> {
        no()
    }
    fn images(&self) -> &dyn Images {
        self
    }
}

/// Every image is here.
#[async_trait]
impl Images for Machine {
    async fn find(&self, image: &ImageReference) -> Result<Option<Image>> {
        Ok(Some(Image {
            id: image.0.clone(),
            tags: vec![image.0.clone()],
            digests: Vec::new(),
            size: 1,
            uid: None,
            username: String::new(),
            pinned: false,
        }))
    }
    async fn list(&self) -> Result<Vec<Image>> {
        Ok(Vec::new())
    }
    async fn pull(
        &self,
        _: &ImageReference,
        _: &[Credentials],
        _: &(dyn Fn(PullProgress) + Send + Sync),
    ) -> Result<Image> {
        no()
    }
    async fn remove(&self, _: &str) -> Result<()> {
        no()
    }
    fn directory(&self) -> PathBuf {
        "/".into()
    }
    async fn mount(&self, _: &str, _: &Path) -> Result<()> {
        no()
    }
}
