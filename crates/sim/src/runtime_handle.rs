//! The container runtime of a machine, as one run of an agent uses it.
//!
//! Every call takes a little time and is a step at which the agent may crash, before or after the effect.

use crate::event_log::{Agent, Event, EventLog};
use crate::machine::{Machine, is_running};
use crate::process_run::ProcessRun;
use crate::random::Random;
use async_trait::async_trait;
use runtime::{
    Change, Container, ContainerSpec, ContainerState, ContainerUsage, Credentials, Error, Exec,
    Image, ImageReference, Images, PullProgress, Resources, Result, Runtime, Sandbox, SandboxSpec,
    Session, Version,
};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::broadcast;

/// The most milliseconds that a call takes, unless a script says otherwise.
const CALL_MAX: u64 = 3;

pub(crate) struct RuntimeHandle {
    pub(crate) machine: Arc<Machine>,
    pub(crate) agent: Agent,
    pub(crate) process: Arc<ProcessRun>,
    pub(crate) log: EventLog,
    pub(crate) random: Mutex<Random>,
}

impl RuntimeHandle {
    async fn begin_call(&self) {
        self.process.step().await;
        self.spend_time().await;
    }

    /// Waits for the duration of a call.
    async fn spend_time(&self) {
        let millis = {
            let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
            random.below(CALL_MAX + 1)
        };
        if millis > 0 {
            tokio::time::sleep(Duration::from_millis(millis)).await;
            // A process that crashed meanwhile has not made the call yet.
            if self.process.has_crashed() {
                std::future::pending::<()>().await;
            }
        }
    }

    async fn call<T>(&self, effect: impl FnOnce() -> T) -> T {
        self.begin_call().await;
        let done = effect();
        self.process.step().await;
        done
    }

    fn record_observed_exits(&self, sandboxes: &[Sandbox]) {
        for container in sandboxes.iter().flat_map(|sandbox| &sandbox.containers) {
            if matches!(container.state, ContainerState::Exited(_)) {
                let container = container.id.as_str().into();
                self.log.record(Event::ExitObserved { container, by: self.agent.clone() });
            }
        }
    }

    fn unsupported<T>(&self, what: &str) -> Result<T> {
        Err(Error::Refused(format!("simulated machines do not {what}")))
    }
}

/// Records that the agent is busy with a pod until this is dropped.
struct Busy<'a> {
    handle: &'a RuntimeHandle,
    uid: Arc<str>,
}

impl<'a> Busy<'a> {
    fn with(handle: &'a RuntimeHandle, uid: &str) -> Busy<'a> {
        let uid: Arc<str> = uid.into();
        handle.log.record(Event::Busy { by: handle.agent.clone(), uid: uid.clone() });
        Busy { handle, uid }
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        let by = self.handle.agent.clone();
        self.handle.log.record(Event::Idle { by, uid: self.uid.clone() });
    }
}

#[async_trait]
impl Runtime for RuntimeHandle {
    async fn version(&self) -> Result<Version> {
        Ok(Version { name: "sim".into(), version: "1".into() })
    }

    async fn ready(&self) -> Result<()> {
        Ok(())
    }

    fn brings_network(&self) -> bool {
        true
    }

    async fn run_sandbox(&self, spec: &SandboxSpec) -> Result<Sandbox> {
        let _busy = Busy::with(self, &spec.pod.uid);
        self.call(|| Ok(self.machine.run_sandbox(spec))).await
    }

    async fn stop_sandbox(&self, sandbox: &str) -> Result<()> {
        self.call(|| self.machine.stop_sandbox(sandbox, &self.agent)).await;
        Ok(())
    }

    async fn remove_sandbox(&self, sandbox: &str) -> Result<()> {
        self.call(|| self.machine.remove_sandbox(sandbox)).await;
        Ok(())
    }

    async fn sandboxes(&self) -> Result<Vec<Sandbox>> {
        let all = self.call(|| self.machine.sandboxes()).await;
        self.record_observed_exits(&all);
        Ok(all)
    }

    async fn sandboxes_of(&self, pod: &str) -> Result<Vec<Sandbox>> {
        let all = self.call(|| self.machine.sandboxes_of(pod)).await;
        self.record_observed_exits(&all);
        Ok(all)
    }

    fn changes(&self) -> broadcast::Receiver<Change> {
        self.machine.changes()
    }

    async fn create_container(&self, sandbox: &str, spec: &ContainerSpec) -> Result<Container> {
        self.call(|| self.machine.create_container(sandbox, spec)).await
    }

    async fn start_container(&self, container: &str) -> Result<()> {
        self.process.step().await;
        let (takes, uid) = self.machine.before_start(container, &self.agent)?;
        let _busy = Busy::with(self, &uid);
        self.spend_time().await;
        let started = if takes.is_zero() {
            self.machine.start_container(container)
        } else {
            // The machine continues with the start even if the agent crashes.
            let (machine, container) = (self.machine.clone(), container.to_owned());
            let started = tokio::spawn(async move {
                tokio::time::sleep(takes).await;
                machine.start_container(&container)
            });
            started.await.unwrap_or_else(|error| Err(Error::Refused(error.to_string())))
        };
        self.process.step().await;
        started
    }

    async fn stop_container(&self, container: &str, _window: Duration) -> Result<()> {
        self.process.before_stop();
        let called_at = self.log.now();
        self.call(|| self.machine.stop_container(container, &self.agent, called_at)).await;
        Ok(())
    }

    /// Simulated images have no stop signal.
    async fn stop_signal(&self, _container: &str) -> Option<i32> {
        None
    }

    async fn kill_container(&self, container: &str) -> Result<()> {
        let called_at = self.log.now();
        self.call(|| self.machine.kill_container(container, &self.agent, called_at)).await;
        Ok(())
    }

    async fn remove_container(&self, container: &str) -> Result<()> {
        self.call(|| self.machine.remove_container(container)).await;
        Ok(())
    }

    async fn update_container(&self, _: &str, _: &Resources) -> Result<()> {
        self.unsupported("resize containers")
    }

    /// Simulated machines have no cgroups.
    async fn limit_group(&self, _: &str, _: &Resources) -> Result<()> {
        Ok(())
    }

    async fn exec(&self, container: &str, exec: &Exec) -> Result<Session> {
        self.call(|| self.machine.exec(container, &exec.command, &self.agent)).await
    }

    async fn attach(&self, _: &str, _: &Exec) -> Result<Session> {
        self.unsupported("attach to containers")
    }

    async fn reopen_log(&self, _: &str) -> Result<()> {
        Ok(())
    }

    async fn usage(&self) -> Result<Vec<ContainerUsage>> {
        let usage = |sandbox: &Sandbox, container: &Container| ContainerUsage {
            pod: sandbox.pod.uid.clone(),
            container_id: container.id.clone(),
            container: container.name.clone(),
            at: clock::now(),
            ..ContainerUsage::default()
        };
        let all = self.machine.sandboxes();
        let of = |sandbox: &Sandbox| -> Vec<ContainerUsage> {
            let running = sandbox.containers.iter().filter(|container| is_running(container));
            running.map(|container| usage(sandbox, container)).collect()
        };
        Ok(all.iter().flat_map(of).collect())
    }

    async fn connect(&self, _: &str, _: u16) -> Result<tokio::net::TcpStream> {
        self.unsupported("open connections")
    }

    fn images(&self) -> &dyn Images {
        self
    }
}

/// Every image is present, except those whose tag says how long the pull takes: `sim/slow:3000`, in milliseconds.
#[async_trait]
impl Images for RuntimeHandle {
    async fn find(&self, image: &ImageReference) -> Result<Option<Image>> {
        Ok(pull_time(&image.0).is_none().then(|| named(&image.0)))
    }

    async fn list(&self) -> Result<Vec<Image>> {
        Ok(Vec::new())
    }

    async fn pull(
        &self,
        image: &ImageReference,
        _: &[Credentials],
        _: &(dyn Fn(PullProgress) + Send + Sync),
    ) -> Result<Image> {
        self.begin_call().await;
        tokio::time::sleep(pull_time(&image.0).unwrap_or_default()).await;
        self.process.step().await;
        Ok(named(&image.0))
    }

    async fn remove(&self, _: &str) -> Result<()> {
        Ok(())
    }

    fn directory(&self) -> PathBuf {
        "/".into()
    }

    async fn mount(&self, _: &str, _: &Path) -> Result<()> {
        self.unsupported("mount images")
    }
}

fn named(image: &str) -> Image {
    Image {
        id: image.to_owned(),
        tags: vec![image.to_owned()],
        digests: Vec::new(),
        size: 1,
        uid: None,
        username: String::new(),
        pinned: false,
    }
}

/// None: the image is present.
fn pull_time(image: &str) -> Option<Duration> {
    let millis = image.strip_prefix("sim/slow:")?.parse().ok()?;
    Some(Duration::from_millis(millis))
}
