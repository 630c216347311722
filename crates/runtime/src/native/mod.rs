//! The native runtime: one shim per sandbox, containers by libcontainer, root filesystems by overlayfs.
//!
//!     Native ──▶ LiveSandbox ──▶ ShimClient ──▶ the sandbox's shim (see `shim`)
//!        │            └─ states of its containers, from the shim's events and the files on disk
//!        └─ records, configurations, cgroups: written before a process is started
//!
//! The agent may die at any time: `open` restores the state from the state directory and the running shims.

mod async_fd;
mod capability;
mod command;
mod connect;
mod create;
mod image;
mod oci;
mod orphaned_shims;
mod private_mounts;
mod record;
mod sandbox;
mod seccomp;
mod session;
mod shim_binary;
mod shim_client;
mod user;

pub use image::UnpackedImages;

use crate::cgroup::{Level, limit_group};
use crate::shim::message::{Reply, RequestKind, ShimConfig};
use crate::{
    Change, Container, ContainerSpec, ContainerState, ContainerUsage, Error, Exec, Features,
    Images, Namespace, PodNetwork, Resources, Result, Runtime, Sandbox, SandboxSpec, Session,
    UserRange, Version,
};
use async_trait::async_trait;
use futures::future::BoxFuture;
use orphaned_shims::OrphanedShim;
use record::{SandboxRecord, ShimProcess};
use sandbox::{LiveSandbox, is_running, kill_all, remove_cgroup, unmount};
use shim_binary::ShimBinary;
use shim_client::ShimClient;
use std::collections::HashMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::broadcast;

/// If a subscriber is further behind, it has to list everything again.
const CHANGES_KEPT: usize = 1024;
/// An id consists of two UUIDs without dashes.
const ID_LENGTH: usize = 64;
/// A shim is normally ready within milliseconds.
const READY_TIMEOUT: Duration = Duration::from_secs(30);
const SHM_BYTES: u64 = 64 << 20;

pub struct NativeConfig {
    /// Directory of records, writable layers and sockets: `<data>/run`.
    pub state_dir: PathBuf,
    pub images: Arc<dyn UnpackedImages>,
    /// The landfall binary, whose `main` begins with [`crate::shim::run_if_asked`].
    pub executable: PathBuf,
    /// The cgroup of shims, which has a higher CPU weight ([`crate::CpuPriority`]), if there is one.
    pub shims: Option<PathBuf>,
}

pub struct Native {
    config: NativeConfig,
    binary: ShimBinary,
    user_namespaces: bool,
    sandboxes: Mutex<HashMap<String, Arc<LiveSandbox>>>,
    changes: broadcast::Sender<Change>,
}

impl Native {
    /// Restores the sandboxes of an earlier agent.
    ///
    /// The future is boxed so that the code behind it is compiled in this crate, not in every program that awaits it.
    pub fn open(config: NativeConfig) -> BoxFuture<'static, Result<Native>> {
        Box::pin(Native::restore(config))
    }

    async fn restore(config: NativeConfig) -> Result<Native> {
        let directory = &config.state_dir;
        std::fs::create_dir_all(directory).map_err(Error::io("create", directory))?;
        // Containers can create setuid files. Other users of the node must not reach them.
        std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o700))
            .map_err(Error::io("restrict access to", directory))?;
        let binary = ShimBinary::protect(&config.executable, directory)?;
        let changes = broadcast::Sender::new(CHANGES_KEPT);
        let mut sandboxes = HashMap::new();
        let mut shims = orphaned_shims::find(directory);
        let entries = std::fs::read_dir(directory).map_err(Error::io("read", directory))?;
        for entry in entries.flatten() {
            let directory = entry.path();
            match record::read::<SandboxRecord>(&directory.join("sandbox.json")) {
                Some(record) => {
                    let id = record.id.clone();
                    let own = |shim: &mut OrphanedShim| {
                        shim.directory.file_name() == directory.file_name()
                    };
                    let processes: Vec<_> = shims.extract_if(.., own).collect();
                    let sandbox = LiveSandbox::new(directory, record, changes.clone());
                    sandbox.restore(&processes).await;
                    sandboxes.insert(id, sandbox);
                }
                // The record is written first, so nothing else exists without it, unless someone has deleted it.
                None => {
                    unmount(&directory.join("shm"));
                    let _ = std::fs::remove_dir_all(directory);
                }
            }
        }
        // The sandboxes of the remaining ones do not exist any more.
        orphaned_shims::kill(&shims).await;
        let native = Native {
            config,
            binary,
            user_namespaces: crate::shim::can_map_users(),
            sandboxes: Mutex::new(sandboxes),
            changes,
        };
        native.release_stale_holds()?;
        Ok(native)
    }

    /// Releases the image of a removed container, in a thread that may block.
    async fn release(&self, container: &str) -> Result<()> {
        let (images, container) = (self.config.images.clone(), container.to_owned());
        tokio::task::spawn_blocking(move || images.release(&container))
            .await
            .map_err(|error| Error::Unavailable(error.to_string()))?
    }

    /// Releases images that are held for containers that no longer exist. Other users of the image store hold
    /// images under names that are not container ids.
    fn release_stale_holds(&self) -> Result<()> {
        let is_id = |id: &str| id.len() == ID_LENGTH && id.bytes().all(|b| b.is_ascii_hexdigit());
        for holder in self.config.images.holders()? {
            if is_id(&holder) && self.sandbox_of(&holder).is_err() {
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

    fn sandbox_of(&self, container: &str) -> Result<Arc<LiveSandbox>> {
        let found = self.all().values().find(|sandbox| sandbox.has_container(container)).cloned();
        found.ok_or_else(|| Error::NotFound { what: "container", id: container.to_owned() })
    }

    /// Writes the records, then starts the shim and waits until it is ready.
    async fn start_sandbox(&self, sandbox: &Arc<LiveSandbox>, spec: &SandboxSpec) -> Result<()> {
        let directory = &sandbox.directory;
        let containers = directory.join("containers");
        std::fs::create_dir_all(&containers).map_err(Error::io("create", containers))?;
        clock::crash_point("sandbox directory made");
        record::write(&directory.join("sandbox.json"), &sandbox.record)?;
        clock::crash_point("sandbox recorded");
        let network = match &spec.network {
            PodNetwork::Host => None,
            PodNetwork::Path(path) => Some(path.clone()),
            PodNetwork::Runtime => {
                return Err(Error::Refused(
                    "the native runtime cannot create a pod network: pass a network namespace"
                        .into(),
                ));
            }
        };
        let shim = ShimConfig {
            hostname: spec.hostname.clone(),
            network,
            own_ipc: spec.ipc != Namespace::Host,
            shared_pid: spec.pid == Namespace::Pod,
            sysctls: spec.sysctls.clone().into_iter().collect(),
            users: spec.users.map(|users| users.first),
            group: self.config.shims.clone(),
        };
        record::write(&directory.join("shim.json"), &shim)?;
        let cgroup = sandbox.cgroup();
        cgroup.create().map_err(Error::io("create the cgroup", &spec.cgroup))?;
        cgroup
            .limit(&spec.resources, Level::Pod)
            .map_err(Error::io("set limits of the cgroup", &spec.cgroup))?;
        clock::crash_point("pod cgroup made");
        if shim.own_ipc {
            mount_shm(&directory.join("shm"), spec.users)?;
            clock::crash_point("shm mounted");
        }
        self.start_shim(sandbox).await
    }

    async fn start_shim(&self, sandbox: &Arc<LiveSandbox>) -> Result<()> {
        let directory = &sandbox.directory;
        let failed = |doing| Error::io(doing, directory);
        let (ours, theirs) =
            std::os::unix::net::UnixStream::pair().map_err(failed("create a socket for"))?;
        let log =
            std::fs::File::create(directory.join("shim.log")).map_err(failed("create a log in"))?;
        let mut command = self.binary.command();
        command
            .arg(crate::shim::SUBCOMMAND)
            .arg(directory)
            .args(crate::descriptors::inherited().map(|limit| limit.to_string()))
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(std::os::fd::OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(log);
        let executable = self.binary.path().to_owned();
        let mut child = tokio::task::spawn_blocking(move || {
            command.spawn().map_err(Error::io("run", executable))
        })
        .await
        .map_err(|error| Error::Unavailable(error.to_string()))??;
        clock::crash_point("shim started");
        let outcome = self.connect_shim(sandbox, child.id() as i32, ours).await;
        if outcome.is_err() {
            let _ = child.kill();
            let _ = tokio::task::spawn_blocking(move || child.wait()).await;
        }
        outcome
    }

    async fn connect_shim(
        &self,
        sandbox: &Arc<LiveSandbox>,
        pid: i32,
        socket: std::os::unix::net::UnixStream,
    ) -> Result<()> {
        let directory = &sandbox.directory;
        let process = ShimProcess::of(pid);
        if let Some(process) = &process {
            record::write(&directory.join("shim.pid"), process)?;
            clock::crash_point("shim recorded");
        }
        let stream = await_ready(socket).await?;
        clock::crash_point("shim ready");
        let process = process
            .ok_or_else(|| Error::Unavailable("the pod's shim exited immediately".into()))?;
        let shim = ShimClient::new(stream).map_err(Error::io("use the socket of", directory))?;
        sandbox.use_shim(shim, process)
    }
}

/// Waits for the shim's first event, which is `Ready` or an error.
async fn await_ready(
    stream: std::os::unix::net::UnixStream,
) -> Result<std::os::unix::net::UnixStream> {
    use crate::shim::message::{ShimEvent, decode};
    use tokio::io::AsyncReadExt;
    let failed = |error: std::io::Error| Error::Unavailable(format!("the pod's shim: {error}"));
    stream.set_nonblocking(true).map_err(failed)?;
    let mut stream = tokio::net::UnixStream::from_std(stream).map_err(failed)?;
    let mut input = Vec::new();
    let event = async {
        loop {
            if let Some(event) = decode::<ShimEvent>(&mut input).map_err(Error::Unavailable)? {
                return Ok(event);
            }
            if stream.read_buf(&mut input).await.map_err(failed)? == 0 {
                return Err(Error::Unavailable("the pod's shim exited before it was ready".into()));
            }
        }
    };
    let event = tokio::time::timeout(READY_TIMEOUT, event)
        .await
        .map_err(|_| Error::Unavailable("the pod's shim was not ready in time".into()))??;
    match event {
        ShimEvent::Ready => stream.into_std().map_err(failed),
        ShimEvent::Broken { message } => Err(Error::Refused(message)),
        _ => Err(unexpected_answer()),
    }
}

fn unexpected_answer() -> Error {
    Error::Unavailable("the pod's shim sent an unexpected answer".into())
}

/// N-63: containers of a pod share a /dev/shm of 64 MiB.
fn mount_shm(directory: &Path, users: Option<UserRange>) -> Result<()> {
    use nix::mount::{MsFlags, mount};
    std::fs::create_dir(directory).map_err(Error::io("create", directory))?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    let owner = users.map_or(0, |users| users.first);
    let options = format!("mode=1777,size={SHM_BYTES},uid={owner},gid={owner}");
    mount(Some("shm"), directory, Some("tmpfs"), flags, Some(options.as_str()))
        .map_err(|error| error.into())
        .map_err(Error::io("mount", directory))
}

/// A random id.
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

    fn features(&self) -> Features {
        Features { user_namespaces: self.user_namespaces, ..Features::default() }
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
            users: spec.users,
            cgroup: spec.cgroup.clone(),
            log_directory: spec.log_directory.clone(),
            labels: spec.labels.clone(),
            annotations: spec.annotations.clone(),
        };
        let directory = self.config.state_dir.join(&id);
        let sandbox = LiveSandbox::new(directory.clone(), record, self.changes.clone());
        self.all().insert(id.clone(), sandbox.clone());
        if let Err(error) = self.start_sandbox(&sandbox, spec).await {
            let _ = sandbox.stop().await;
            let _ = std::fs::remove_dir_all(directory);
            self.all().remove(&id);
            return Err(error);
        }
        Ok(sandbox.snapshot())
    }

    async fn stop_sandbox(&self, sandbox: &str) -> Result<()> {
        let Some(sandbox) = self.find(sandbox) else { return Ok(()) };
        let _lock = sandbox.lock.lock().await;
        if sandbox.directory.join("stopped").exists() {
            return Ok(());
        }
        sandbox.stop().await
    }

    async fn remove_sandbox(&self, id: &str) -> Result<()> {
        self.stop_sandbox(id).await?;
        let Some(sandbox) = self.find(id) else { return Ok(()) };
        remove_directory(sandbox.directory.clone()).await?;
        clock::crash_point("sandbox directory removed");
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
        let _lock = sandbox.lock.lock().await;
        sandbox.shim()?;
        let (images, spec) = (self.config.images.clone(), spec.clone());
        let target = sandbox.clone();
        // In a thread that may block, because this writes files.
        tokio::task::spawn_blocking(move || create::create(&target, images.as_ref(), &spec))
            .await
            .map_err(|error| Error::Unavailable(error.to_string()))?
    }

    async fn start_container(&self, container: &str) -> Result<()> {
        let sandbox = self.sandbox_of(container)?;
        match sandbox.container(container)?.container.state {
            ContainerState::Created => {}
            _ => return Err(Error::Refused(format!("container {container} was already started"))),
        }
        let shim = sandbox.shim()?;
        match shim.request(RequestKind::Start { container: container.to_owned() }).await? {
            Reply::Started { at } => {
                clock::crash_point("container started");
                let running = ContainerState::Running { started_at: at };
                sandbox.set_container_state(container, running);
                Ok(())
            }
            Reply::NotStarted { exit } => {
                let message = exit.message.clone();
                sandbox.set_container_state(container, ContainerState::Exited(exit));
                Err(Error::Start(message))
            }
            Reply::Done | Reply::Containers { .. } => Err(unexpected_answer()),
        }
    }

    async fn stop_container(&self, container: &str, _window: Duration) -> Result<()> {
        let sandbox = self.sandbox_of(container)?;
        let record = sandbox.container(container)?;
        if !is_running(&record.container.state) {
            return Ok(());
        }
        let signal = record.stop_signal;
        let request = RequestKind::Signal { container: container.to_owned(), signal };
        match sandbox.shim()?.request(request).await {
            Ok(_) => {
                clock::crash_point("stop signal sent");
                Ok(())
            }
            // It exited in the meantime.
            Err(_) if !is_running(&sandbox.container(container)?.container.state) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn stop_signal(&self, container: &str) -> Option<i32> {
        Some(self.sandbox_of(container).ok()?.container(container).ok()?.stop_signal)
    }

    async fn kill_container(&self, container: &str) -> Result<()> {
        let sandbox = self.sandbox_of(container)?;
        if is_running(&sandbox.container(container)?.container.state) {
            kill_all(&sandbox.container_cgroup(container)).await;
        }
        Ok(())
    }

    async fn remove_container(&self, container: &str) -> Result<()> {
        let Ok(sandbox) = self.sandbox_of(container) else { return Ok(()) };
        let Ok(record) = sandbox.container(container) else { return Ok(()) };
        if is_running(&record.container.state) {
            return Err(Error::Refused(format!("container {container} is running")));
        }
        if let Ok(shim) = sandbox.shim() {
            let _ = shim.request(RequestKind::Forget { container: container.to_owned() }).await;
        }
        let cgroup = sandbox.container_cgroup(container);
        kill_all(&cgroup).await;
        remove_cgroup(&cgroup).await?;
        let directory = sandbox.container_directory(container);
        unmount(&directory.join("rootfs"));
        unmount(&directory.join("proc"));
        remove_directory(directory).await?;
        sandbox.drop_container(container);
        self.release(container).await
    }

    async fn update_container(&self, container: &str, resources: &Resources) -> Result<()> {
        let sandbox = self.sandbox_of(container)?;
        sandbox.container(container)?;
        sandbox
            .container_cgroup(container)
            .limit(resources, Level::Container)
            .map_err(Error::io("set limits of the cgroup of", container))?;
        let record = sandbox.change_container(container, |record| {
            record.container.resources.change(resources);
        })?;
        record::write(&sandbox.container_directory(container).join("container.json"), &record)
    }

    async fn limit_group(&self, cgroup: &str, resources: &Resources) -> Result<()> {
        limit_group(cgroup, resources).map_err(Error::io("set limits of the cgroup", cgroup))
    }

    async fn exec(&self, container: &str, exec: &Exec) -> Result<Session> {
        let sandbox = self.sandbox_of(container)?;
        session::exec(&sandbox, container, exec).await
    }

    async fn attach(&self, container: &str, exec: &Exec) -> Result<Session> {
        let sandbox = self.sandbox_of(container)?;
        session::attach(&sandbox, container, exec).await
    }

    async fn reopen_log(&self, container: &str) -> Result<()> {
        let sandbox = self.sandbox_of(container)?;
        let request = RequestKind::Reopen { container: container.to_owned() };
        sandbox.shim()?.request(request).await?;
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
        // Upcast: `UnpackedImages` extends `Images`.
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
