//! The agent's state of one sandbox: its record, the states of its containers, the connection to its shim.
//!
//! The shim's events change the state. If a shim dies unexpectedly, the agent kills its containers and records
//! that as the reason of their exit. A container counts as exited only when its exit is on disk.

use super::async_fd::register;
use super::orphaned_shims::{self, OrphanedShim};
use super::record::{self, ContainerRecord, SandboxRecord, ShimProcess};
use super::shim_client::ShimClient;
use crate::cgroup::Cgroup;
use crate::shim::message::{Reply, RequestKind, ShimEvent};
use crate::shim::{connect, pidfd};
use crate::{Change, Container, ContainerState, Error, Exit, Result, Sandbox, SandboxState};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{broadcast, watch};

/// Killed processes normally disappear within milliseconds.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(2);

pub(crate) struct LiveSandbox {
    pub(crate) directory: PathBuf,
    pub(crate) record: SandboxRecord,
    state: Mutex<State>,
    /// Incremented when the state changes.
    version: watch::Sender<u64>,
    changes: broadcast::Sender<Change>,
    /// Held while the sandbox is stopped or a container is created.
    pub(crate) lock: tokio::sync::Mutex<()>,
}

struct State {
    ready: bool,
    message: String,
    /// The agent is stopping the sandbox, so the shim's exit is expected.
    stopping: bool,
    shim: Option<Arc<ShimClient>>,
    process: Option<ShimProcess>,
    containers: BTreeMap<String, ContainerRecord>,
}

impl LiveSandbox {
    pub(crate) fn new(
        directory: PathBuf,
        record: SandboxRecord,
        changes: broadcast::Sender<Change>,
    ) -> Arc<LiveSandbox> {
        let mut containers = BTreeMap::new();
        for entry in std::fs::read_dir(directory.join("containers")).into_iter().flatten().flatten()
        {
            if let Some(container) =
                record::read::<ContainerRecord>(&entry.path().join("container.json"))
            {
                containers.insert(container.container.id.clone(), container);
            }
        }
        let state = State {
            ready: false,
            message: String::new(),
            stopping: false,
            shim: None,
            process: None,
            containers,
        };
        Arc::new(LiveSandbox {
            directory,
            record,
            state: Mutex::new(state),
            version: watch::Sender::new(0),
            changes,
            lock: tokio::sync::Mutex::new(()),
        })
    }

    pub(crate) fn container_directory(&self, id: &str) -> PathBuf {
        self.directory.join("containers").join(id)
    }

    pub(crate) fn cgroup(&self) -> Cgroup {
        Cgroup::new(&self.record.cgroup)
    }

    pub(crate) fn container_cgroup(&self, id: &str) -> Cgroup {
        self.cgroup().child(id)
    }

    /// Cgroups of all containers, including one that was being created when an agent died. Without the pod's own
    /// cgroup, which another sandbox of the same pod may use.
    fn container_cgroups(&self) -> Vec<Cgroup> {
        let entries = std::fs::read_dir(self.directory.join("containers")).into_iter().flatten();
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        names.map(|id| self.container_cgroup(&id)).collect()
    }

    async fn kill_containers(&self) {
        let cgroups = self.container_cgroups();
        futures::future::join_all(cgroups.iter().map(kill_all)).await;
    }

    pub(crate) fn snapshot(&self) -> Sandbox {
        let state = self.state();
        let mut containers: Vec<Container> =
            state.containers.values().map(|record| record.container.clone()).collect();
        crate::newest_first(&mut containers);
        Sandbox {
            id: self.record.id.clone(),
            pod: self.record.pod.clone(),
            attempt: self.record.attempt,
            state: if state.ready { SandboxState::Ready } else { SandboxState::NotReady },
            message: state.message.clone(),
            created_at: self.record.created_at,
            network: self.record.network.clone(),
            addresses: Vec::new(),
            containers,
            labels: self.record.labels.clone(),
            annotations: self.record.annotations.clone(),
        }
    }

    pub(crate) fn has_container(&self, id: &str) -> bool {
        self.state().containers.contains_key(id)
    }

    pub(crate) fn container(&self, id: &str) -> Result<ContainerRecord> {
        let found = self.state().containers.get(id).cloned();
        found.ok_or_else(|| Error::NotFound { what: "container", id: id.to_owned() })
    }

    pub(crate) fn containers(&self) -> Vec<ContainerRecord> {
        self.state().containers.values().cloned().collect()
    }

    pub(crate) fn put_container(&self, record: ContainerRecord) {
        self.state().containers.insert(record.container.id.clone(), record);
        self.changed();
    }

    /// Changes a record in memory and returns the new one.
    pub(crate) fn change_container(
        &self,
        id: &str,
        change: impl FnOnce(&mut ContainerRecord),
    ) -> Result<ContainerRecord> {
        let record = {
            let mut state = self.state();
            let record = state
                .containers
                .get_mut(id)
                .ok_or_else(|| Error::NotFound { what: "container", id: id.to_owned() })?;
            change(record);
            record.clone()
        };
        self.changed();
        Ok(record)
    }

    pub(crate) fn drop_container(&self, id: &str) {
        self.state().containers.remove(id);
        self.changed();
    }

    pub(crate) fn set_container_state(&self, id: &str, to: ContainerState) {
        {
            let mut state = self.state();
            let Some(record) = state.containers.get_mut(id) else { return };
            // Events may be late. An exited container never runs again.
            if matches!(record.container.state, ContainerState::Exited(_)) {
                return;
            }
            record.container.state = to;
        }
        self.changed();
    }

    pub(crate) fn process(&self) -> Option<ShimProcess> {
        self.state().process
    }

    /// The connection to the shim, if the sandbox is ready.
    pub(crate) fn shim(&self) -> Result<Arc<ShimClient>> {
        let state = self.state();
        state.shim.clone().filter(|_| state.ready).ok_or_else(|| {
            let reason = if state.message.is_empty() { "it was stopped" } else { &state.message };
            Error::Unavailable(format!("sandbox {} is not ready: {reason}", self.record.id))
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changed(&self) {
        self.version.send_modify(|version| *version += 1);
        // Fails if there is no subscriber, which is fine.
        let _ = self.changes.send(Change { pod: self.record.pod.uid.clone() });
    }

    /// Waits until `done` returns true. Returns false after the timeout.
    pub(crate) async fn wait(&self, timeout: Duration, done: impl Fn(&Sandbox) -> bool) -> bool {
        let mut version = self.version.subscribe();
        let waiting = async {
            loop {
                if done(&self.snapshot()) {
                    return true;
                }
                if version.changed().await.is_err() {
                    return false;
                }
            }
        };
        tokio::time::timeout(timeout, waiting).await.unwrap_or(false)
    }

    /// Starts to use a shim that is ready.
    pub(crate) fn use_shim(
        self: &Arc<Self>,
        shim: Arc<ShimClient>,
        process: ShimProcess,
    ) -> Result<()> {
        let pidfd = pidfd(process.pid).map_err(Error::io("watch the shim of", &self.directory))?;
        {
            let mut state = self.state();
            state.ready = true;
            state.shim = Some(shim.clone());
            state.process = Some(process);
        }
        let sandbox = self.clone();
        tokio::spawn(async move { sandbox.handle_events(shim).await });
        let sandbox = self.clone();
        tokio::spawn(async move { sandbox.watch(process, pidfd).await });
        self.changed();
        Ok(())
    }

    async fn handle_events(self: Arc<Self>, shim: Arc<ShimClient>) {
        shim.listen(|event| match event {
            ShimEvent::Exited { container, exit } => {
                self.set_container_state(&container, ContainerState::Exited(exit));
            }
            ShimEvent::Broken { message } => {
                {
                    let mut state = self.state();
                    state.ready = false;
                    state.message = message;
                }
                self.changed();
            }
            ShimEvent::Ready | ShimEvent::Answer { .. } | ShimEvent::ExecExited { .. } => {}
        })
        .await;
    }

    /// Waits for the shim's exit, and handles it if it is unexpected.
    async fn watch(self: Arc<Self>, process: ShimProcess, pidfd: OwnedFd) {
        if let Ok(pidfd) = register(pidfd) {
            let _ = pidfd.readable().await;
        }
        let reason = reap(process.pid);
        if self.state().stopping {
            self.state().shim = None;
            self.changed();
            return;
        }
        tracing::warn!(sandbox = self.record.id, "{reason}; killing the pod's containers");
        self.shim_died(&reason).await;
    }

    /// Kills the containers of a shim that died, and records their exit.
    pub(crate) async fn shim_died(&self, reason: &str) {
        {
            let mut state = self.state();
            state.ready = false;
            state.shim = None;
            state.message = reason.to_owned();
        }
        self.changed();
        self.kill_containers().await;
        for record in self.containers() {
            let directory = self.container_directory(&record.container.id);
            let started = record::started_at(&directory);
            let state = match (record::exit_of(&directory), started) {
                (Some(exit), _) => ContainerState::Exited(exit),
                (None, None) => continue,
                (None, Some(started)) => {
                    ContainerState::Exited(record_killed(&directory, started, reason))
                }
            };
            self.set_container_state(&record.container.id, state);
        }
    }

    /// Restores the state from the disk and the shim after a restart of the agent. `processes` are all processes of
    /// its shim.
    pub(crate) async fn restore(self: &Arc<Self>, processes: &[OrphanedShim]) {
        self.load_exits();
        if self.directory.join("stopped").exists() {
            orphaned_shims::kill(processes).await;
            return;
        }
        if let Err(reason) = self.reconnect().await {
            // The shim may be alive: its agent was killed before it recorded the process.
            orphaned_shims::kill(processes).await;
            self.shim_died(&reason).await;
        }
    }

    fn load_exits(&self) {
        for record in self.containers() {
            let directory = self.container_directory(&record.container.id);
            if let Some(exit) = record::exit_of(&directory) {
                self.set_container_state(&record.container.id, ContainerState::Exited(exit));
            }
        }
    }

    async fn reconnect(self: &Arc<Self>) -> Result<(), String> {
        let died = || "the pod's shim died while the agent was not running".to_owned();
        let process =
            record::read::<ShimProcess>(&self.directory.join("shim.pid")).ok_or_else(died)?;
        if !process.is_alive() {
            return Err(died());
        }
        let stream = connect(&self.directory.join("shim.sock")).map_err(|_| died())?;
        let shim = ShimClient::new(stream).map_err(|error| error.to_string())?;
        self.use_shim(shim.clone(), process).map_err(|error| error.to_string())?;
        let reply = shim.request(RequestKind::State).await.map_err(|error| error.to_string())?;
        let Reply::Containers { running, broken } = reply else { return Ok(()) };
        for container in running {
            let started_at = container.started_at;
            self.set_container_state(&container.container, ContainerState::Running { started_at });
        }
        // Again, for containers that exited between the first look at the disk and the request.
        self.load_exits();
        if let Some(message) = broken {
            let mut state = self.state();
            state.ready = false;
            state.message = message;
        }
        Ok(())
    }

    /// Kills all containers, stops the shim, and removes mounts and cgroups. Idempotent.
    pub(crate) async fn stop(&self) -> Result<()> {
        let shim = {
            let mut state = self.state();
            state.stopping = true;
            state.shim.clone()
        };
        self.kill_containers().await;
        clock::crash_point("sandbox killed");
        self.wait(KILL_TIMEOUT, |sandbox| {
            shim.is_none() || !sandbox.containers.iter().any(|c| is_running(&c.state))
        })
        .await;
        if let Some(shim) = shim {
            let _ = shim.request(RequestKind::Stop).await;
            clock::crash_point("shim told to stop");
        }
        if let Some(process) = self.process() {
            await_shim_exit(process).await;
        }
        {
            let mut state = self.state();
            state.ready = false;
            state.shim = None;
        }
        self.clean_up().await?;
        let stopped = self.directory.join("stopped");
        std::fs::write(&stopped, "").map_err(Error::io("write", stopped))?;
        clock::crash_point("sandbox stopped");
        self.changed();
        Ok(())
    }

    async fn clean_up(&self) -> Result<()> {
        for record in self.containers() {
            let directory = self.container_directory(&record.container.id);
            unmount(&directory.join("rootfs"));
            unmount(&directory.join("proc"));
        }
        unmount(&self.directory.join("shm"));
        unmount(&self.directory.join("proc"));
        clock::crash_point("sandbox unmounted");
        self.kill_containers().await;
        for cgroup in self.container_cgroups() {
            remove_cgroup(&cgroup).await?;
        }
        self.cgroup().remove_if_empty();
        clock::crash_point("sandbox cgroups removed");
        Ok(())
    }
}

pub(crate) fn is_running(state: &ContainerState) -> bool {
    matches!(state, ContainerState::Running { .. })
}

/// Records the exit of a container whose shim died. Its real exit code is lost with the shim; the container was
/// killed, so this is the code of a killed process.
fn record_killed(directory: &Path, started: jiff::Timestamp, reason: &str) -> Exit {
    let exit = Exit {
        code: 128 + libc::SIGKILL,
        signal: Some(libc::SIGKILL),
        reason: String::new(),
        message: format!("{reason}; the container was killed and its exit code is not known"),
        started_at: Some(started),
        finished_at: clock::now(),
    };
    // If the write fails, the next agent records the same exit.
    let text = serde_json::to_vec(&exit).unwrap_or_default();
    let _ = crate::durable::replace_synced(&directory.join("exit.json"), &text);
    exit
}

/// Kills all processes of a cgroup. Returns false if some do not disappear in time.
pub(crate) async fn kill_all(cgroup: &Cgroup) -> bool {
    let killing = async {
        while !cgroup.kill() {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    tokio::time::timeout(KILL_TIMEOUT, killing).await.is_ok()
}

pub(crate) async fn remove_cgroup(cgroup: &Cgroup) -> Result<()> {
    let removing = async {
        while !cgroup.remove() {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    tokio::time::timeout(KILL_TIMEOUT, removing).await.map_err(|_| {
        Error::Refused("a process of the pod does not exit although it was killed".into())
    })
}

/// Detaches the mount: processes that use it can go on, but its path is free at once.
pub(crate) fn unmount(path: &Path) {
    while nix::mount::umount2(path, nix::mount::MntFlags::MNT_DETACH).is_ok() {}
}

/// Waits for the shim to exit, and kills it after a timeout.
async fn await_shim_exit(process: ShimProcess) {
    const EXIT_TIMEOUT: Duration = Duration::from_secs(1);
    let Ok(Ok(pidfd)) = pidfd(process.pid).map(register) else { return };
    if !process.is_alive() {
        return;
    }
    if tokio::time::timeout(EXIT_TIMEOUT, pidfd.readable()).await.is_err() {
        let pid = nix::unistd::Pid::from_raw(process.pid);
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
        let _ = pidfd.readable().await;
    }
}

/// Describes a shim's exit. Only its parent can learn its exit status, which is not this agent after a restart.
fn reap(pid: i32) -> String {
    use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
    match waitpid(nix::unistd::Pid::from_raw(pid), Some(WaitPidFlag::WNOHANG)) {
        Ok(WaitStatus::Signaled(_, signal, _)) => {
            format!("the pod's shim was killed by signal {}", signal as i32)
        }
        Ok(WaitStatus::Exited(_, code)) => format!("the pod's shim exited with code {code}"),
        _ => "the pod's shim died".to_owned(),
    }
}
