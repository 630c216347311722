//! One agent's hands on a machine: the runtime as it is seen by one life of the agent.
//!
//! Every call takes a little time and is a step at which that life may end, before its effect or
//! after it.

use crate::book::{Agent, Book, What};
use crate::chance::Chance;
use crate::life::Life;
use crate::machine::{Machine, is_running};
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

/// A call takes at most so many milliseconds, if its script does not say otherwise.
const CALL_MAX: u64 = 3;

pub(crate) struct Hands {
    pub(crate) machine: Arc<Machine>,
    pub(crate) agent: Agent,
    pub(crate) life: Arc<Life>,
    pub(crate) book: Book,
    pub(crate) chance: Mutex<Chance>,
}

impl Hands {
    async fn before(&self) {
        self.life.step().await;
        self.pass().await;
    }

    /// A call takes its time.
    async fn pass(&self) {
        let millis = {
            let mut chance = self.chance.lock().unwrap_or_else(PoisonError::into_inner);
            chance.below(CALL_MAX + 1)
        };
        if millis > 0 {
            tokio::time::sleep(Duration::from_millis(millis)).await;
            // Whoever died meanwhile had not done it yet.
            if self.life.is_over() {
                std::future::pending::<()>().await;
            }
        }
    }

    async fn call<T>(&self, effect: impl FnOnce() -> T) -> T {
        self.before().await;
        let done = effect();
        self.life.step().await;
        done
    }

    fn shown(&self, sandboxes: &[Sandbox]) {
        for container in sandboxes.iter().flat_map(|sandbox| &sandbox.containers) {
            if matches!(container.state, ContainerState::Exited(_)) {
                let container = container.id.as_str().into();
                self.book.write(What::Shown { container, by: self.agent.clone() });
            }
        }
    }

    fn refused<T>(&self, what: &str) -> Result<T> {
        Err(Error::Refused(format!("a simulated machine cannot {what}")))
    }
}

/// Says that the agent is busy with a pod until it is dropped.
struct Busy<'a> {
    hands: &'a Hands,
    uid: Arc<str>,
}

impl<'a> Busy<'a> {
    fn with(hands: &'a Hands, uid: &str) -> Busy<'a> {
        let uid: Arc<str> = uid.into();
        hands.book.write(What::Busy { by: hands.agent.clone(), uid: uid.clone() });
        Busy { hands, uid }
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        let by = self.hands.agent.clone();
        self.hands.book.write(What::Idle { by, uid: self.uid.clone() });
    }
}

#[async_trait]
impl Runtime for Hands {
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
        self.shown(&all);
        Ok(all)
    }

    async fn sandboxes_of(&self, pod: &str) -> Result<Vec<Sandbox>> {
        let all = self.call(|| self.machine.sandboxes_of(pod)).await;
        self.shown(&all);
        Ok(all)
    }

    fn changes(&self) -> broadcast::Receiver<Change> {
        self.machine.changes()
    }

    async fn create_container(&self, sandbox: &str, spec: &ContainerSpec) -> Result<Container> {
        self.call(|| self.machine.create_container(sandbox, spec)).await
    }

    async fn start_container(&self, container: &str) -> Result<()> {
        self.life.step().await;
        let (takes, uid) = self.machine.before_start(container, &self.agent)?;
        let _busy = Busy::with(self, &uid);
        self.pass().await;
        let started = if takes.is_zero() {
            self.machine.start_container(container)
        } else {
            // The machine goes on with it, whatever becomes of who asked.
            let (machine, container) = (self.machine.clone(), container.to_owned());
            let started = tokio::spawn(async move {
                tokio::time::sleep(takes).await;
                machine.start_container(&container)
            });
            started.await.unwrap_or_else(|error| Err(Error::Refused(error.to_string())))
        };
        self.life.step().await;
        started
    }

    async fn stop_container(&self, container: &str, _window: Duration) -> Result<()> {
        self.life.stops();
        let asked = self.book.now();
        self.call(|| self.machine.stop_container(container, &self.agent, asked)).await;
        Ok(())
    }

    /// What is simulated has no images that want another.
    async fn stop_signal(&self, _container: &str) -> Option<i32> {
        None
    }

    async fn kill_container(&self, container: &str) -> Result<()> {
        let asked = self.book.now();
        self.call(|| self.machine.kill_container(container, &self.agent, asked)).await;
        Ok(())
    }

    async fn remove_container(&self, container: &str) -> Result<()> {
        self.call(|| self.machine.remove_container(container)).await;
        Ok(())
    }

    async fn update_container(&self, _: &str, _: &Resources) -> Result<()> {
        self.refused("resize containers")
    }

    /// The machine has no cgroups.
    async fn limit_group(&self, _: &str, _: &Resources) -> Result<()> {
        Ok(())
    }

    async fn exec(&self, container: &str, exec: &Exec) -> Result<Session> {
        self.call(|| self.machine.exec(container, &exec.command, &self.agent)).await
    }

    async fn attach(&self, _: &str, _: &Exec) -> Result<Session> {
        self.refused("attach to containers")
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
        self.refused("open connections")
    }

    fn images(&self) -> &dyn Images {
        self
    }
}

/// Every image is here, except those that say how long they take: `sim/slow:3000`, in milliseconds.
#[async_trait]
impl Images for Hands {
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
        self.before().await;
        tokio::time::sleep(pull_time(&image.0).unwrap_or_default()).await;
        self.life.step().await;
        Ok(named(&image.0))
    }

    async fn remove(&self, _: &str) -> Result<()> {
        Ok(())
    }

    fn directory(&self) -> PathBuf {
        "/".into()
    }

    async fn mount(&self, _: &str, _: &Path) -> Result<()> {
        self.refused("mount images")
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

/// None: it is here.
fn pull_time(image: &str) -> Option<Duration> {
    let millis = image.strip_prefix("sim/slow:")?.parse().ok()?;
    Some(Duration::from_millis(millis))
}
