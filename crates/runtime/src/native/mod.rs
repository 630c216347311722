//! Containers by our own hands: a shim for each sandbox, libcontainer in it, overlayfs below it.
//!
//!     Native ──▶ LiveSandbox ──▶ Link ──▶ the sandbox's shim (see `shim`)
//!        │            └─ states of its containers, from what the shim says and what is on disk
//!        └─ records, configurations, cgroups: written before anything runs
//!
//! Nothing here needs to survive: `open` finds everything again from the state directory and the
//! shims that live on.

mod capability;
mod command;
mod connect;
mod create;
mod image;
mod link;
mod oci;
mod private;
mod readiness;
mod record;
mod sandbox;
mod seccomp;
mod session;
mod user;

pub use image::Unpacked;

use crate::cgroup::{Level, limit_group};
use crate::shim::message::{Ask, Pod, Reply};
use crate::{
    Change, Container, ContainerSpec, ContainerState, ContainerUsage, Error, Exec, Images,
    Namespace, PodNetwork, Resources, Result, Runtime, Sandbox, SandboxSpec, Session, Version,
};
use async_trait::async_trait;
use link::Link;
use record::{SandboxRecord, ShimProcess};
use sandbox::{LiveSandbox, is_running, kill_all, remove_cgroup, unmount};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::broadcast;

/// Changes a slow listener may be behind before it has to look at everything again.
const CHANGES_KEPT: usize = 1024;
/// Of two uuids, without their dashes.
const ID_LENGTH: usize = 64;
/// A shim is ready after milliseconds; a machine that needs longer is in trouble.
const READY_MAX: Duration = Duration::from_secs(30);

pub struct NativeConfig {
    /// Records, writable layers, sockets: `<data>/run`.
    pub state_dir: PathBuf,
    pub images: Arc<dyn Unpacked>,
    /// The landfall binary, whose `main` begins with [`crate::shim::run_if_asked`].
    pub executable: PathBuf,
    /// A cgroup for shims that promises them processors ([`crate::Precedence`]), if there is one.
    pub shims: Option<PathBuf>,
}

pub struct Native {
    config: NativeConfig,
    sandboxes: Mutex<HashMap<String, Arc<LiveSandbox>>>,
    changes: broadcast::Sender<Change>,
}

impl Native {
    /// Finds everything again that an earlier agent left, and what became of it meanwhile.
    pub async fn open(config: NativeConfig) -> Result<Native> {
        let directory = &config.state_dir;
        std::fs::create_dir_all(directory).map_err(Error::io("make", directory))?;
        let changes = broadcast::Sender::new(CHANGES_KEPT);
        let mut sandboxes = HashMap::new();
        let entries = std::fs::read_dir(directory).map_err(Error::io("read", directory))?;
        for entry in entries.flatten() {
            let directory = entry.path();
            match record::read::<SandboxRecord>(&directory.join("sandbox.json")) {
                Some(record) => {
                    let id = record.id.clone();
                    let sandbox = LiveSandbox::new(directory, record, changes.clone());
                    sandbox.find_again().await;
                    sandboxes.insert(id, sandbox);
                }
                // The record is written first: without it nothing has happened yet.
                None => drop(std::fs::remove_dir_all(directory)),
            }
        }
        let native = Native { config, sandboxes: Mutex::new(sandboxes), changes };
        native.release_strays()?;
        Ok(native)
    }

    /// The image of a container that is no more. Files and locks: not for an async thread.
    async fn release(&self, container: &str) -> Result<()> {
        let (images, container) = (self.config.images.clone(), container.to_owned());
        tokio::task::spawn_blocking(move || images.release(&container))
            .await
            .map_err(|error| Error::Unavailable(error.to_string()))?
    }

    /// Lets go of layers held for containers that did not outlive an earlier agent. Others hold
    /// layers too, under names that are no container's.
    fn release_strays(&self) -> Result<()> {
        let ours = |id: &str| id.len() == ID_LENGTH && id.bytes().all(|b| b.is_ascii_hexdigit());
        for holder in self.config.images.holders()? {
            if ours(&holder) && self.holder(&holder).is_err() {
                self.config.images.release(&holder)?;
            }
        }
        Ok(())
    }

    fn all(&self) -> MutexGuard<'_, HashMap<String, Arc<LiveSandbox>>> {
        self.sandboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn measure(&self, disk: bool) -> Result<Vec<ContainerUsage>> {
        let all: Vec<_> = self.all().values().cloned().collect();
        let measure = move || all.iter().flat_map(|one| create::usage(one, disk)).collect();
        let measured = tokio::task::spawn_blocking(measure).await;
        measured.map_err(|error| Error::Unavailable(error.to_string()))
    }

    fn find(&self, id: &str) -> Option<Arc<LiveSandbox>> {
        self.all().get(id).cloned()
    }

    fn sandbox(&self, id: &str) -> Result<Arc<LiveSandbox>> {
        self.find(id).ok_or_else(|| Error::NotFound { what: "sandbox", id: id.to_owned() })
    }

    fn holder(&self, container: &str) -> Result<Arc<LiveSandbox>> {
        let found = self.all().values().find(|sandbox| sandbox.has_container(container)).cloned();
        found.ok_or_else(|| Error::NotFound { what: "container", id: container.to_owned() })
    }

    /// Writes everything down, then starts the shim and waits until it is ready.
    async fn bring_up(&self, sandbox: &Arc<LiveSandbox>, spec: &SandboxSpec) -> Result<()> {
        let directory = &sandbox.directory;
        let containers = directory.join("containers");
        std::fs::create_dir_all(&containers).map_err(Error::io("make", containers))?;
        record::write(&directory.join("sandbox.json"), &sandbox.record)?;
        let network = match &spec.network {
            PodNetwork::Host => None,
            PodNetwork::Path(path) => Some(path.clone()),
            PodNetwork::Runtime => {
                return Err(Error::Refused("the native runtime is given its network".into()));
            }
        };
        let pod = Pod {
            hostname: spec.hostname.clone(),
            network,
            own_ipc: spec.ipc != Namespace::Host,
            shared_pid: spec.pid == Namespace::Pod,
            sysctls: spec.sysctls.clone().into_iter().collect(),
            group: self.config.shims.clone(),
        };
        record::write(&directory.join("shim.json"), &pod)?;
        let cgroup = sandbox.cgroup();
        cgroup.create().map_err(Error::io("make the cgroup", &spec.cgroup))?;
        cgroup
            .limit(&spec.resources, Level::Pod)
            .map_err(Error::io("limit the cgroup", &spec.cgroup))?;
        if pod.own_ipc {
            mount_shm(&directory.join("shm"))?;
        }
        self.start_shim(sandbox).await
    }

    async fn start_shim(&self, sandbox: &Arc<LiveSandbox>) -> Result<()> {
        let directory = &sandbox.directory;
        let failed = |doing| Error::io(doing, directory);
        let (ours, theirs) =
            std::os::unix::net::UnixStream::pair().map_err(failed("make a socket for"))?;
        let complaints =
            std::fs::File::create(directory.join("shim.log")).map_err(failed("write a log in"))?;
        let mut command = Command::new(&self.config.executable);
        command
            .arg(crate::shim::MODE)
            .arg(directory)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(std::os::fd::OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(complaints);
        let executable = self.config.executable.clone();
        let mut child = tokio::task::spawn_blocking(move || {
            command.spawn().map_err(Error::io("run", executable))
        })
        .await
        .map_err(|error| Error::Unavailable(error.to_string()))??;
        let outcome = self.meet_shim(sandbox, child.id() as i32, ours).await;
        if outcome.is_err() {
            let _ = child.kill();
            let _ = tokio::task::spawn_blocking(move || child.wait()).await;
        }
        outcome
    }

    async fn meet_shim(
        &self,
        sandbox: &Arc<LiveSandbox>,
        pid: i32,
        socket: std::os::unix::net::UnixStream,
    ) -> Result<()> {
        let directory = &sandbox.directory;
        let process = ShimProcess::of(pid);
        if let Some(process) = &process {
            record::write(&directory.join("shim.pid"), process)?;
        }
        let stream = await_ready(socket).await?;
        let process =
            process.ok_or_else(|| Error::Unavailable("the pod's shim died at once".into()))?;
        let link = Link::new(stream).map_err(Error::io("use the socket of", directory))?;
        sandbox.adopt(link, process)
    }
}

/// Reads the shim's first words from the socket it was born with.
async fn await_ready(
    stream: std::os::unix::net::UnixStream,
) -> Result<std::os::unix::net::UnixStream> {
    use crate::shim::message::{Told, decode};
    use tokio::io::AsyncReadExt;
    let broken = |error: std::io::Error| Error::Unavailable(format!("the pod's shim: {error}"));
    stream.set_nonblocking(true).map_err(broken)?;
    let mut stream = tokio::net::UnixStream::from_std(stream).map_err(broken)?;
    let mut input = Vec::new();
    let told = async {
        loop {
            if let Some(told) = decode::<Told>(&mut input).map_err(Error::Unavailable)? {
                return Ok(told);
            }
            if stream.read_buf(&mut input).await.map_err(broken)? == 0 {
                return Err(Error::Unavailable("the pod's shim died before it was ready".into()));
            }
        }
    };
    let told = tokio::time::timeout(READY_MAX, told)
        .await
        .map_err(|_| Error::Unavailable("the pod's shim does not get ready".into()))??;
    match told {
        Told::Ready => stream.into_std().map_err(broken),
        Told::Broken { message } => Err(Error::Refused(message)),
        _ => Err(Error::Unavailable("the pod's shim talks nonsense".into())),
    }
}

/// N-63: 64 MiB for all containers of the pod.
fn mount_shm(directory: &Path) -> Result<()> {
    use nix::mount::{MsFlags, mount};
    std::fs::create_dir(directory).map_err(Error::io("make", directory))?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("shm"), directory, Some("tmpfs"), flags, Some("mode=1777,size=67108864"))
        .map_err(|error| error.into())
        .map_err(Error::io("mount", directory))
}

/// Unique for ever.
fn new_id() -> String {
    let mut id = clock::uuid();
    id.push_str(&clock::uuid());
    id.retain(|letter| letter != '-');
    id
}

#[async_trait]
impl Runtime for Native {
    async fn version(&self) -> Result<Version> {
        Ok(Version { name: "landfall".into(), version: env!("CARGO_PKG_VERSION").into() })
    }

    async fn ready(&self) -> Result<()> {
        let probe = self.config.state_dir.join(".ready");
        std::fs::write(&probe, "").map_err(Error::io("write", &probe))?;
        let _ = std::fs::remove_file(&probe);
        Ok(())
    }

    fn brings_network(&self) -> bool {
        false
    }

    async fn run_sandbox(&self, spec: &SandboxSpec) -> Result<Sandbox> {
        if !spec.handler.is_empty() {
            return Err(Error::Refused(format!("no runtime for {:?} is configured", spec.handler)));
        }
        let id = new_id();
        let record = SandboxRecord {
            id: id.clone(),
            pod: spec.pod.clone(),
            attempt: spec.attempt,
            created_at: clock::now(),
            network: spec.network.clone(),
            ipc: spec.ipc,
            pid: spec.pid,
            cgroup: spec.cgroup.clone(),
            log_directory: spec.log_directory.clone(),
            labels: spec.labels.clone(),
            annotations: spec.annotations.clone(),
        };
        let directory = self.config.state_dir.join(&id);
        let sandbox = LiveSandbox::new(directory.clone(), record, self.changes.clone());
        self.all().insert(id.clone(), sandbox.clone());
        if let Err(error) = self.bring_up(&sandbox, spec).await {
            let _ = sandbox.stop().await;
            let _ = std::fs::remove_dir_all(directory);
            self.all().remove(&id);
            return Err(error);
        }
        Ok(sandbox.snapshot())
    }

    async fn stop_sandbox(&self, sandbox: &str) -> Result<()> {
        let Some(sandbox) = self.find(sandbox) else { return Ok(()) };
        let _turn = sandbox.turn.lock().await;
        if sandbox.directory.join("stopped").exists() {
            return Ok(());
        }
        sandbox.stop().await
    }

    async fn remove_sandbox(&self, id: &str) -> Result<()> {
        self.stop_sandbox(id).await?;
        let Some(sandbox) = self.find(id) else { return Ok(()) };
        remove_directory(sandbox.directory.clone()).await?;
        self.all().remove(id);
        for record in sandbox.containers() {
            self.release(&record.container.id).await?;
        }
        Ok(())
    }

    async fn sandboxes(&self) -> Result<Vec<Sandbox>> {
        let all: Vec<_> = self.all().values().cloned().collect();
        Ok(newest_first(all.iter().map(|sandbox| sandbox.snapshot()).collect()))
    }

    async fn sandboxes_of(&self, pod: &str) -> Result<Vec<Sandbox>> {
        let all: Vec<_> =
            self.all().values().filter(|sandbox| sandbox.record.pod.uid == pod).cloned().collect();
        Ok(newest_first(all.iter().map(|sandbox| sandbox.snapshot()).collect()))
    }

    fn changes(&self) -> broadcast::Receiver<Change> {
        self.changes.subscribe()
    }

    async fn create_container(&self, sandbox: &str, spec: &ContainerSpec) -> Result<Container> {
        let sandbox = self.sandbox(sandbox)?;
        let _turn = sandbox.turn.lock().await;
        sandbox.link()?;
        let (images, spec) = (self.config.images.clone(), spec.clone());
        let target = sandbox.clone();
        // Directories, records and control files: quick, but not for an async thread.
        tokio::task::spawn_blocking(move || create::create(&target, images.as_ref(), &spec))
            .await
            .map_err(|error| Error::Unavailable(error.to_string()))?
    }

    async fn start_container(&self, container: &str) -> Result<()> {
        let sandbox = self.holder(container)?;
        match sandbox.container(container)?.container.state {
            ContainerState::Created => {}
            _ => return Err(Error::Refused(format!("container {container} was started already"))),
        }
        let link = sandbox.link()?;
        match link.ask(Ask::Start { container: container.to_owned() }).await? {
            Reply::Started { at } => {
                let running = ContainerState::Running { started_at: at };
                sandbox.set_container_state(container, running);
                Ok(())
            }
            Reply::NotStarted { exit } => {
                let message = exit.message.clone();
                sandbox.set_container_state(container, ContainerState::Exited(exit));
                Err(Error::Start(message))
            }
            Reply::Done | Reply::Containers { .. } => {
                Err(Error::Unavailable("the pod's shim talks nonsense".into()))
            }
        }
    }

    async fn stop_container(&self, container: &str, _window: Duration) -> Result<()> {
        let sandbox = self.holder(container)?;
        let record = sandbox.container(container)?;
        if !is_running(&record.container.state) {
            return Ok(());
        }
        let signal = Ask::Signal { container: container.to_owned(), signal: record.stop_signal };
        match sandbox.link()?.ask(signal).await {
            Ok(_) => Ok(()),
            // It ended in between.
            Err(_) if !is_running(&sandbox.container(container)?.container.state) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn stop_signal(&self, container: &str) -> Option<i32> {
        Some(self.holder(container).ok()?.container(container).ok()?.stop_signal)
    }

    async fn kill_container(&self, container: &str) -> Result<()> {
        let sandbox = self.holder(container)?;
        if is_running(&sandbox.container(container)?.container.state) {
            kill_all(&sandbox.container_cgroup(container)).await;
        }
        Ok(())
    }

    async fn remove_container(&self, container: &str) -> Result<()> {
        let Ok(sandbox) = self.holder(container) else { return Ok(()) };
        let Ok(record) = sandbox.container(container) else { return Ok(()) };
        if is_running(&record.container.state) {
            return Err(Error::Refused(format!("container {container} is running")));
        }
        if let Ok(link) = sandbox.link() {
            let _ = link.ask(Ask::Forget { container: container.to_owned() }).await;
        }
        let cgroup = sandbox.container_cgroup(container);
        kill_all(&cgroup).await;
        remove_cgroup(&cgroup).await?;
        let directory = sandbox.container_directory(container);
        unmount(&directory.join("rootfs"));
        remove_directory(directory).await?;
        sandbox.drop_container(container);
        self.release(container).await
    }

    async fn update_container(&self, container: &str, resources: &Resources) -> Result<()> {
        let sandbox = self.holder(container)?;
        sandbox.container(container)?;
        sandbox
            .container_cgroup(container)
            .limit(resources, Level::Container)
            .map_err(Error::io("limit the cgroup of", container))?;
        let record = sandbox.change_container(container, |record| {
            record.container.resources.change(resources);
        })?;
        record::write(&sandbox.container_directory(container).join("container.json"), &record)
    }

    async fn limit_group(&self, cgroup: &str, resources: &Resources) -> Result<()> {
        limit_group(cgroup, resources).map_err(Error::io("limit the cgroup", cgroup))
    }

    async fn exec(&self, container: &str, exec: &Exec) -> Result<Session> {
        let sandbox = self.holder(container)?;
        session::exec(&sandbox, container, exec).await
    }

    async fn attach(&self, container: &str, exec: &Exec) -> Result<Session> {
        let sandbox = self.holder(container)?;
        session::attach(&sandbox, container, exec).await
    }

    async fn reopen_log(&self, container: &str) -> Result<()> {
        let sandbox = self.holder(container)?;
        sandbox.link()?.ask(Ask::Reopen { container: container.to_owned() }).await?;
        Ok(())
    }

    async fn usage(&self) -> Result<Vec<ContainerUsage>> {
        self.measure(true).await
    }

    async fn load(&self) -> Result<Vec<ContainerUsage>> {
        self.measure(false).await
    }

    async fn connect(&self, sandbox: &str, port: u16) -> Result<tokio::net::TcpStream> {
        let sandbox = self.sandbox(sandbox)?;
        connect::connect(&sandbox, port).await
    }

    fn images(&self) -> &dyn Images {
        // Upcast: what runs containers and what lists images are one store.
        self.config.images.as_ref()
    }
}

fn newest_first(mut sandboxes: Vec<Sandbox>) -> Vec<Sandbox> {
    crate::newest_sandbox_first(&mut sandboxes);
    sandboxes
}

async fn remove_directory(directory: PathBuf) -> Result<()> {
    let path = directory.clone();
    let removed = tokio::task::spawn_blocking(move || std::fs::remove_dir_all(path)).await;
    match removed {
        Ok(Err(error)) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::io("remove", directory)(error))
        }
        _ => Ok(()),
    }
}
