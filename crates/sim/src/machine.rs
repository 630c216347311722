//! A machine without a kernel: sandboxes and containers that do what their scripts say.
//!
//! It outlives the agents that use it, as real containers outlive theirs, and records what really happens.
//! Not here: how an agent calls it (`runtime_handle`).

use crate::event_log::{Agent, Event, EventLog, Name, Signal};
use crate::script::{Hook, IS_LISTENING, OnTerm, Script};
use runtime::{
    Change, Container, ContainerSpec, ContainerState, Error, Exit, Result, Sandbox, SandboxSpec,
    SandboxState, Session,
};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, broadcast, mpsc, oneshot};

/// How many changes are kept for an agent that is slow to read them.
const CHANGES_KEPT: usize = 1024;

pub(crate) struct Machine {
    pub(crate) name: Name,
    number: u16,
    log: EventLog,
    changes: broadcast::Sender<Change>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    created: u64,
    /// By the uid of their pod, newest first.
    sandboxes: BTreeMap<String, Vec<Sandbox>>,
    /// The uid of the pod of each sandbox and container.
    pods: BTreeMap<String, String>,
    processes: BTreeMap<String, Process>,
}

/// The process of a container.
struct Process {
    script: Script,
    stopped: bool,
    listening: bool,
    /// Notified when it exits, for commands that run in the container.
    ended: Arc<Notify>,
}

impl Machine {
    pub(crate) fn new(name: &str, number: u16, log: EventLog) -> Arc<Machine> {
        Arc::new(Machine {
            name: name.into(),
            number,
            log,
            changes: broadcast::Sender::new(CHANGES_KEPT),
            state: Mutex::default(),
        })
    }

    pub(crate) fn changes(&self) -> broadcast::Receiver<Change> {
        self.changes.subscribe()
    }

    pub(crate) fn run_sandbox(&self, spec: &SandboxSpec) -> Sandbox {
        let mut state = self.state();
        let id = state.next(&self.name, "s");
        let [high, low] = (state.created as u16).to_be_bytes();
        let [more, number] = self.number.to_be_bytes();
        let sandbox = Sandbox {
            id: id.clone(),
            pod: spec.pod.clone(),
            attempt: spec.attempt,
            state: SandboxState::Ready,
            message: String::new(),
            created_at: clock::now(),
            network: spec.network.clone(),
            addresses: vec![IpAddr::V4(Ipv4Addr::new(10 + more % 100, number, high, low))],
            containers: Vec::new(),
            labels: spec.labels.clone(),
            annotations: spec.annotations.clone(),
        };
        state.pods.insert(id, spec.pod.uid.clone());
        state.sandboxes.entry(spec.pod.uid.clone()).or_default().insert(0, sandbox.clone());
        sandbox
    }

    /// Kills all containers that run in it.
    pub(crate) fn stop_sandbox(self: &Arc<Self>, id: &str, by: &Agent) {
        let mut running = Vec::new();
        let mut pod = None;
        if let Some(sandbox) = self.state().sandbox(id) {
            sandbox.state = SandboxState::NotReady;
            pod = Some(sandbox.pod.uid.clone());
            let alive = sandbox.containers.iter().filter(|c| is_running(c));
            running.extend(alive.map(|container| container.id.clone()));
        }
        for container in running {
            self.signal(&container, Signal::Sandbox, by);
            self.exit(&container, 137, Some(9));
        }
        if let Some(pod) = pod {
            let _ = self.changes.send(Change { pod });
        }
    }

    pub(crate) fn remove_sandbox(&self, id: &str) {
        let mut state = self.state();
        let Some(pod) = state.pods.remove(id) else { return };
        let mut gone = Vec::new();
        if let Some(all) = state.sandboxes.get_mut(&pod) {
            for sandbox in all.iter().filter(|sandbox| sandbox.id == id) {
                gone.extend(sandbox.containers.iter().map(|container| container.id.clone()));
            }
            all.retain(|sandbox| sandbox.id != id);
            if all.is_empty() {
                state.sandboxes.remove(&pod);
            }
        }
        for container in gone {
            state.pods.remove(&container);
            state.processes.remove(&container);
        }
    }

    pub(crate) fn sandboxes(&self) -> Vec<Sandbox> {
        self.state().sandboxes.values().flatten().cloned().collect()
    }

    pub(crate) fn sandboxes_of(&self, pod: &str) -> Vec<Sandbox> {
        self.state().sandboxes.get(pod).cloned().unwrap_or_default()
    }

    pub(crate) fn create_container(
        &self,
        sandbox: &str,
        spec: &ContainerSpec,
    ) -> Result<Container> {
        let mut state = self.state();
        let id = state.next(&self.name, "c");
        let found = state.sandbox(sandbox).filter(|found| found.state == SandboxState::Ready);
        let Some(found) = found else {
            return Err(Error::NotFound { what: "sandbox", id: sandbox.to_owned() });
        };
        let container = Container {
            id: id.clone(),
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
        found.containers.insert(0, container.clone());
        let pod = found.pod.uid.clone();
        state.pods.insert(id.clone(), pod);
        let script = Script::read(spec.args.as_deref().unwrap_or_default());
        let (stopped, listening, ended) = (false, false, Arc::default());
        state.processes.insert(id, Process { script, stopped, listening, ended });
        Ok(container)
    }

    /// Returns how long the container takes to start, and the uid of its pod.
    pub(crate) fn before_start(&self, id: &str, by: &Agent) -> Result<(Duration, Name)> {
        let mut state = self.state();
        let missing = || Error::NotFound { what: "container", id: id.to_owned() };
        let container = state.container(id).ok_or_else(missing)?;
        let name: Name = container.name.as_str().into();
        let sandbox = container.sandbox.clone();
        let pod = state.sandbox(&sandbox).ok_or_else(missing)?.pod.clone();
        let pod: Name = format!("{}/{}", pod.namespace, pod.name).into();
        let uid: Name = state.pods.get(id).ok_or_else(missing)?.as_str().into();
        let takes = state.processes.get(id).map(|process| process.script.start).unwrap_or_default();
        drop(state);
        self.log.record(Event::Starting {
            container: id.into(),
            name,
            pod,
            uid: uid.clone(),
            by: by.clone(),
        });
        Ok((takes, uid))
    }

    pub(crate) fn start_container(self: &Arc<Self>, id: &str) -> Result<()> {
        let mut state = self.state();
        let Some(container) = state.container(id) else {
            return Err(Error::NotFound { what: "container", id: id.to_owned() });
        };
        if container.state != ContainerState::Created {
            return Err(Error::Refused(format!("container {id} was started before")));
        }
        let sandbox = container.sandbox.clone();
        if !state.sandbox(&sandbox).is_some_and(|it| it.state == SandboxState::Ready) {
            return Err(Error::Refused(format!("the sandbox of container {id} is stopped")));
        }
        if let Some(container) = state.container(id) {
            container.state = ContainerState::Running { started_at: clock::now() };
        }
        let script = state.processes.get(id).map(|process| process.script.clone());
        let script = script.unwrap_or_default();
        drop(state);
        self.log.record(Event::Running { container: id.into() });
        if let Some(listen) = script.listen {
            self.listen_later(id, listen.after);
        }
        self.send_change(id);
        if let Some((after, code)) = script.run {
            self.exit_later(id, after, code);
        }
        Ok(())
    }

    fn listen_later(self: &Arc<Self>, id: &str, after: Duration) {
        let (machine, id) = (self.clone(), id.to_owned());
        if after.is_zero() {
            return machine.listen(&id);
        }
        tokio::spawn(async move {
            tokio::time::sleep(after).await;
            machine.listen(&id);
        });
    }

    /// Does nothing if the container has been stopped in the meantime.
    fn listen(&self, id: &str) {
        let mut state = self.state();
        if !state.container(id).is_some_and(|container| is_running(container)) {
            return;
        }
        let Some(process) = state.processes.get_mut(id).filter(|process| !process.stopped) else {
            return;
        };
        process.listening = true;
        drop(state);
        self.log.record(Event::Listening { container: id.into() });
    }

    /// The uid of the pod that has this address now, and whether it accepts a request at this port.
    pub(crate) fn receive(&self, to: SocketAddr) -> Option<(Name, bool)> {
        let state = self.state();
        let mut all = state.sandboxes.values().flatten();
        let sandbox = all.find(|sandbox| {
            sandbox.state == SandboxState::Ready && sandbox.addresses.contains(&to.ip())
        })?;
        let mut running = sandbox.containers.iter().filter(|container| is_running(container));
        let accepted = running.any(|container| {
            state.processes.get(&container.id).is_some_and(|process| {
                process.listening && process.script.listen.is_some_and(|it| it.port == to.port())
            })
        });
        Some((sandbox.pod.uid.as_str().into(), accepted))
    }

    /// Sends the stop signal. A container that has exited does not receive it.
    pub(crate) fn stop_container(self: &Arc<Self>, id: &str, by: &Agent, called_at: Duration) {
        let mut state = self.state();
        if !state.container(id).is_some_and(|container| is_running(container)) {
            drop(state);
            return self.record_late_signal(id, Signal::Stop, by, called_at);
        }
        let Some(process) = state.processes.get_mut(id) else { return };
        let first = !std::mem::replace(&mut process.stopped, true);
        process.listening &= process.script.listen.is_some_and(|listen| listen.until_exit);
        let term = process.script.term;
        drop(state);
        self.signal(id, Signal::Stop, by);
        if let (OnTerm::Exit { after, code }, true) = (term, first) {
            self.exit_later(id, after, code);
        }
    }

    pub(crate) fn kill_container(self: &Arc<Self>, id: &str, by: &Agent, called_at: Duration) {
        if !self.state().container(id).is_some_and(|container| is_running(container)) {
            return self.record_late_signal(id, Signal::Kill, by, called_at);
        }
        self.signal(id, Signal::Kill, by);
        self.exit(id, 137, Some(9));
    }

    pub(crate) fn remove_container(&self, id: &str) {
        let mut state = self.state();
        let Some(pod) = state.pods.remove(id) else { return };
        state.processes.remove(id);
        for sandbox in state.sandboxes.get_mut(&pod).into_iter().flatten() {
            sandbox.containers.retain(|container| container.id != id);
        }
    }

    /// Runs a command in a container: a hook, a probe, or any other command, which succeeds at once.
    pub(crate) fn exec(
        self: &Arc<Self>,
        id: &str,
        command: &[String],
        by: &Agent,
    ) -> Result<Session> {
        let mut state = self.state();
        if !state.container(id).is_some_and(|container| is_running(container)) {
            return Err(Error::Refused(format!("container {id} is not running")));
        }
        let process = state.processes.get(id);
        let ended = process.map(|process| process.ended.clone());
        let listening = process.is_some_and(|process| process.listening);
        drop(state);
        let hook = Hook::read(command);
        let asks = command.first().is_some_and(|word| word == IS_LISTENING);
        let code = i32::from(asks && !listening);
        let (said, output) = mpsc::channel(1);
        let (exited, exit) = oneshot::channel();
        let (kill, killed) = oneshot::channel::<()>();
        let (id, log, by): (Name, EventLog, Agent) = (id.into(), self.log.clone(), by.clone());
        if hook.is_some() {
            log.record(Event::HookStarted { container: id.clone(), by: by.clone() });
        }
        let ended = async move {
            match ended {
                Some(ended) => ended.notified().await,
                None => std::future::pending().await,
            }
        };
        tokio::spawn(async move {
            let killed = async {
                if killed.await.is_ok() {
                    std::future::pending::<()>().await;
                }
            };
            let how = tokio::select! {
                biased;
                () = ended => None,
                code = run(hook, code) => Some(code),
                () = killed => None,
            };
            if hook.is_some() {
                log.record(Event::HookFinished { container: id, by, how });
            }
            drop(said);
            let _ = exited.send(Ok(how.unwrap_or(137)));
        });
        Ok(Session { stdin: None, output, resize: None, exit, kill: Some(kill) })
    }

    fn exit_later(self: &Arc<Self>, id: &str, after: Duration, code: i32) {
        let (machine, id) = (self.clone(), id.to_owned());
        if after.is_zero() {
            return self.exit(&id, code, None);
        }
        tokio::spawn(async move {
            tokio::time::sleep(after).await;
            machine.exit(&id, code, None);
        });
    }

    fn exit(&self, id: &str, code: i32, signal: Option<i32>) {
        let mut state = self.state();
        let Some(container) = state.container(id) else { return };
        let ContainerState::Running { started_at } = container.state else { return };
        container.state = ContainerState::Exited(Exit {
            code,
            signal,
            reason: String::new(),
            message: String::new(),
            started_at: Some(started_at),
            finished_at: clock::now(),
        });
        if let Some(process) = state.processes.get(id) {
            process.ended.notify_waiters();
        }
        drop(state);
        self.log.record(Event::Exit { container: id.into(), code });
        self.send_change(id);
    }

    fn signal(&self, id: &str, signal: Signal, by: &Agent) {
        self.log.record(Event::Signal { container: id.into(), signal, by: by.clone() });
    }

    /// Records a signal for a container that has exited. The checker decides whether the agent could have known.
    fn record_late_signal(&self, id: &str, signal: Signal, by: &Agent, called_at: Duration) {
        self.log.record(Event::SignalAfterExit {
            container: id.into(),
            signal,
            by: by.clone(),
            called_at,
        });
    }

    fn send_change(&self, id: &str) {
        let pod = self.state().pods.get(id).cloned();
        if let Some(pod) = pod {
            let _ = self.changes.send(Change { pod });
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn next(&mut self, machine: &str, sort: &str) -> String {
        self.created += 1;
        format!("{machine}-{sort}{}", self.created)
    }

    fn sandbox(&mut self, id: &str) -> Option<&mut Sandbox> {
        let pod = self.pods.get(id)?;
        self.sandboxes.get_mut(pod)?.iter_mut().find(|sandbox| sandbox.id == id)
    }

    fn container(&mut self, id: &str) -> Option<&mut Container> {
        let pod = self.pods.get(id)?;
        let all = self.sandboxes.get_mut(pod)?.iter_mut();
        all.flat_map(|sandbox| &mut sandbox.containers).find(|container| container.id == id)
    }
}

/// A command that is not a hook ends at once, with this code.
async fn run(hook: Option<Hook>, code: i32) -> i32 {
    let Some(hook) = hook else { return code };
    match hook.takes {
        Some(takes) => tokio::time::sleep(takes).await,
        None => std::future::pending().await,
    }
    hook.code
}

pub(crate) fn is_running(container: &Container) -> bool {
    matches!(container.state, ContainerState::Running { .. })
}
