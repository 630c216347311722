//! One sandbox as the agent knows it: its record, its containers' states, the link to its shim.
//!
//! What the shim says changes the state here; a shim that dies unasked ends every container it had,
//! and says so in each of them. States are never guessed: a container is exited when its exit is on
//! disk.

use super::link::Link;
use super::readiness::register;
use super::record::{self, ContainerRecord, SandboxRecord, ShimProcess};
use crate::cgroup::Cgroup;
use crate::shim::message::{Ask, Reply, Told};
use crate::shim::{connect, pidfd};
use crate::{Change, Container, ContainerState, Error, Exit, Result, Sandbox, SandboxState};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{broadcast, watch};

/// Processes that were killed are gone after milliseconds, unless the kernel cannot let go of them.
const KILL_MAX: Duration = Duration::from_secs(10);
const KILL_ROUND: Duration = Duration::from_millis(2);

pub(crate) struct LiveSandbox {
    pub(crate) directory: PathBuf,
    pub(crate) record: SandboxRecord,
    state: Mutex<State>,
    /// Counts changes of the state, for those who wait for one.
    version: watch::Sender<u64>,
    changes: broadcast::Sender<Change>,
    /// Stopping and starting exclude each other.
    pub(crate) turn: tokio::sync::Mutex<()>,
}

struct State {
    ready: bool,
    message: String,
    /// The shim is being told to end: its end is no news.
    stopping: bool,
    link: Option<Arc<Link>>,
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
            link: None,
            process: None,
            containers,
        };
        Arc::new(LiveSandbox {
            directory,
            record,
            state: Mutex::new(state),
            version: watch::Sender::new(0),
            changes,
            turn: tokio::sync::Mutex::new(()),
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

    /// Of all its containers, also of one that was being made when an agent died. The pod's own
    /// group is not killed: another sandbox of the same pod may live in it.
    fn groups(&self) -> Vec<Cgroup> {
        let entries = std::fs::read_dir(self.directory.join("containers")).into_iter().flatten();
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        names.map(|id| self.container_cgroup(&id)).collect()
    }

    async fn kill_everything(&self) {
        let groups = self.groups();
        futures::future::join_all(groups.iter().map(kill_all)).await;
    }

    /// As it is now.
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

    /// Changes a record in memory and answers what it is now.
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
            // News may be late: what has ended does not run again.
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

    pub(crate) fn link(&self) -> Result<Arc<Link>> {
        let state = self.state();
        state.link.clone().filter(|_| state.ready).ok_or_else(|| {
            let why = if state.message.is_empty() { "it was stopped" } else { &state.message };
            Error::Unavailable(format!("sandbox {} is not ready: {why}", self.record.id))
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changed(&self) {
        self.version.send_modify(|version| *version += 1);
        // Nobody listening is fine: the state can be asked for.
        let _ = self.changes.send(Change { pod: self.record.pod.uid.clone() });
    }

    /// Waits until `done` is true of the state, or time is up.
    pub(crate) async fn wait(&self, most: Duration, done: impl Fn(&Sandbox) -> bool) -> bool {
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
        tokio::time::timeout(most, waiting).await.unwrap_or(false)
    }

    /// A shim that has just said it is ready, or was found again.
    pub(crate) fn adopt(self: &Arc<Self>, link: Arc<Link>, process: ShimProcess) -> Result<()> {
        let watched = pidfd(process.pid).map_err(Error::io("watch", &self.directory))?;
        {
            let mut state = self.state();
            state.ready = true;
            state.link = Some(link.clone());
            state.process = Some(process);
        }
        let sandbox = self.clone();
        tokio::spawn(async move { sandbox.listen(link).await });
        let sandbox = self.clone();
        tokio::spawn(async move { sandbox.watch(process, watched).await });
        self.changed();
        Ok(())
    }

    async fn listen(self: Arc<Self>, link: Arc<Link>) {
        link.listen(|told| match told {
            Told::Exited { container, exit } => {
                self.set_container_state(&container, ContainerState::Exited(exit));
            }
            Told::Broken { message } => {
                {
                    let mut state = self.state();
                    state.ready = false;
                    state.message = message;
                }
                self.changed();
            }
            Told::Ready | Told::Answer { .. } | Told::ExecExited { .. } => {}
        })
        .await;
    }

    /// Waits for the shim's end, and says what happened when nobody asked for it.
    async fn watch(self: Arc<Self>, process: ShimProcess, watched: OwnedFd) {
        if let Ok(watched) = register(watched) {
            let _ = watched.readable().await;
        }
        let how = reap(process.pid);
        if self.state().stopping {
            self.state().link = None;
            self.changed();
            return;
        }
        tracing::warn!(sandbox = self.record.id, "{how}");
        self.shim_died(&how).await;
    }

    /// Everything the shim was parent of is killed and its end is written down: nothing is hidden.
    pub(crate) async fn shim_died(&self, how: &str) {
        {
            let mut state = self.state();
            state.ready = false;
            state.link = None;
            state.message = how.to_owned();
        }
        self.changed();
        self.kill_everything().await;
        for record in self.containers() {
            let directory = self.container_directory(&record.container.id);
            let started = record::started_at(&directory);
            let state = match (record::exit_of(&directory), started) {
                (Some(exit), _) => ContainerState::Exited(exit),
                (None, None) => continue,
                (None, Some(started)) => ContainerState::Exited(lost(&directory, started, how)),
            };
            self.set_container_state(&record.container.id, state);
        }
    }

    /// Brings the state up to date with the disk and the shim after the agent was away.
    pub(crate) async fn find_again(self: &Arc<Self>) {
        for record in self.containers() {
            let directory = self.container_directory(&record.container.id);
            if let Some(exit) = record::exit_of(&directory) {
                self.set_container_state(&record.container.id, ContainerState::Exited(exit));
            }
        }
        if self.directory.join("stopped").exists() {
            return;
        }
        if let Err(why) = self.reconnect().await {
            self.shim_died(&why).await;
        }
    }

    async fn reconnect(self: &Arc<Self>) -> Result<(), String> {
        let gone = || "the pod's shim died while nobody was watching".to_owned();
        let process =
            record::read::<ShimProcess>(&self.directory.join("shim.pid")).ok_or_else(gone)?;
        if !process.is_alive() {
            return Err(gone());
        }
        let stream = connect(&self.directory.join("shim.sock")).map_err(|_| gone())?;
        let link = Link::new(stream).map_err(|error| error.to_string())?;
        self.adopt(link.clone(), process).map_err(|error| error.to_string())?;
        let reply = link.ask(Ask::State).await.map_err(|error| error.to_string())?;
        let Reply::Containers { running, broken } = reply else { return Ok(()) };
        for container in running {
            let started_at = container.started_at;
            self.set_container_state(&container.container, ContainerState::Running { started_at });
        }
        // What ended between the look at the disk and the question is on disk by now.
        for record in self.containers() {
            let directory = self.container_directory(&record.container.id);
            if let Some(exit) = record::exit_of(&directory) {
                self.set_container_state(&record.container.id, ContainerState::Exited(exit));
            }
        }
        if let Some(message) = broken {
            let mut state = self.state();
            state.ready = false;
            state.message = message;
        }
        Ok(())
    }

    /// Ends everything and lets go of the namespaces. Safe to repeat.
    pub(crate) async fn stop(&self) -> Result<()> {
        let link = {
            let mut state = self.state();
            state.stopping = true;
            state.link.clone()
        };
        self.kill_everything().await;
        self.wait(KILL_MAX, |sandbox| {
            link.is_none() || !sandbox.containers.iter().any(|c| is_running(&c.state))
        })
        .await;
        if let Some(link) = link {
            let _ = link.ask(Ask::Stop).await;
        }
        if let Some(process) = self.process() {
            end_shim(process).await;
        }
        {
            let mut state = self.state();
            state.ready = false;
            state.link = None;
        }
        self.let_go().await?;
        let stopped = self.directory.join("stopped");
        std::fs::write(&stopped, "").map_err(Error::io("write", stopped))?;
        self.changed();
        Ok(())
    }

    async fn let_go(&self) -> Result<()> {
        for record in self.containers() {
            unmount(&self.container_directory(&record.container.id).join("rootfs"));
        }
        unmount(&self.directory.join("shm"));
        self.kill_everything().await;
        for group in self.groups() {
            remove_cgroup(&group).await?;
        }
        self.cgroup().remove_if_empty();
        Ok(())
    }
}

pub(crate) fn is_running(state: &ContainerState) -> bool {
    matches!(state, ContainerState::Running { .. })
}

/// The shim took the exit code with it. 137 is what a killed process has, and killed it was.
fn lost(directory: &Path, started: jiff::Timestamp, how: &str) -> Exit {
    let exit = Exit {
        code: 137,
        signal: Some(9),
        reason: String::new(),
        message: format!("{how}; the container was killed and its exit code is not known"),
        started_at: Some(started),
        finished_at: clock::now(),
    };
    // When this cannot be written, the next agent comes to the same conclusion.
    let text = serde_json::to_vec(&exit).unwrap_or_default();
    let _ = crate::durable::replace_synced(&directory.join("exit.json"), &text);
    exit
}

/// Kills until nothing is left, or the kernel will not let go.
pub(crate) async fn kill_all(cgroup: &Cgroup) -> bool {
    let killing = async {
        while !cgroup.kill() {
            tokio::time::sleep(KILL_ROUND).await;
        }
    };
    tokio::time::timeout(KILL_MAX, killing).await.is_ok()
}

pub(crate) async fn remove_cgroup(cgroup: &Cgroup) -> Result<()> {
    let removing = async {
        while !cgroup.remove() {
            tokio::time::sleep(KILL_ROUND).await;
        }
    };
    tokio::time::timeout(KILL_MAX, removing)
        .await
        .map_err(|_| Error::Refused("a process of the pod cannot be killed".into()))
}

/// Detached: whoever still looks into it keeps looking, but the name is free at once.
pub(crate) fn unmount(path: &Path) {
    while nix::mount::umount2(path, nix::mount::MntFlags::MNT_DETACH).is_ok() {}
}

/// Waits for the shim to go by itself, and does not wait for ever.
async fn end_shim(process: ShimProcess) {
    let Ok(Ok(watched)) = pidfd(process.pid).map(register) else { return };
    if !process.is_alive() {
        return;
    }
    const GOODBYE_MAX: Duration = Duration::from_secs(1);
    if tokio::time::timeout(GOODBYE_MAX, watched.readable()).await.is_err() {
        let pid = nix::unistd::Pid::from_raw(process.pid);
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
        let _ = watched.readable().await;
    }
}

/// How a shim ended, as far as it can be known: only its parent is told.
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
