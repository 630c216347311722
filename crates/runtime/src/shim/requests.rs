//! Handles the agent's requests. Starting a process takes time; `children` answers these requests later.

use super::children::{Caller, Exec, StartTarget};
use super::connection::{Attached, Connection};
use super::container::Container;
use super::message::{Reply, Request, RequestKind, Running, ShimEvent};
use super::serve::Shim;
use super::{cannot, create, enter, pause, sys};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;

impl Shim {
    pub(super) fn handle(&mut self, connection: u64, request: Request) {
        let caller = Caller { connection, request: request.id };
        let outcome = match request.kind {
            RequestKind::Start { container } => match self.start(caller, container) {
                Ok(()) => return, // `container_started` answers.
                Err(message) => Err(message),
            },
            RequestKind::Exec { exec, container, command, terminal } => {
                match self.exec(caller, exec, &container, command, terminal) {
                    Ok(()) => return, // `exec_started` answers.
                    Err(message) => Err(message),
                }
            }
            kind => self.handle_immediate(connection, kind),
        };
        self.notify(connection, &ShimEvent::Answer { id: request.id, outcome });
    }

    /// Handles a request that does not start a process.
    fn handle_immediate(&mut self, number: u64, kind: RequestKind) -> Result<Reply, String> {
        match kind {
            RequestKind::Start { .. } | RequestKind::Exec { .. } => {
                return Err("this request starts a process".into());
            }
            RequestKind::State => return Ok(self.state()),
            RequestKind::Signal { container, signal } => {
                if let Some(pid) = self.running(&container)?.pid {
                    send_signal(pid, signal)?;
                }
            }
            RequestKind::SignalExec { exec, signal } => {
                // Each agent counts its execs from one, so the number is unique per connection only.
                let matches = |one: &&Exec| one.id == exec && one.connection == number;
                if let Some(exec) = self.execs.iter().find(matches) {
                    send_signal(-exec.pid, signal).or_else(|_| send_signal(exec.pid, signal))?;
                }
            }
            RequestKind::Resize { container, width, height } => {
                self.running(&container)?.resize(width, height);
            }
            RequestKind::Reopen { container } => {
                self.running(&container)?.reopen_log().map_err(cannot("reopen the log"))?;
            }
            RequestKind::Attach { container, stdin, stdout, stderr } => {
                let stdin = self.running(&container)?.plan.stdin && stdin;
                if let Some(connection) = self.connection(number) {
                    connection.attached = Some(Attached { container, stdin, stdout, stderr });
                }
            }
            RequestKind::Forget { container } => {
                let ended = |c: &&mut Container| c.id == container && c.exit.is_some();
                if let Some(container) = self.containers.iter_mut().find(ended) {
                    container.removed = true;
                }
            }
            RequestKind::Stop => {
                if let Some(pid) = self.pause.take() {
                    let _ = send_signal(pid, libc::SIGKILL);
                    let _ = waitpid(Pid::from_raw(pid), None);
                }
                let _ = std::fs::remove_file(self.directory.join("shim.sock"));
                self.stopping = true;
            }
        }
        Ok(Reply::Done)
    }

    fn state(&self) -> Reply {
        let running = self
            .containers
            .iter()
            .filter(|container| container.exit.is_none())
            .filter_map(|container| {
                Some(Running { container: container.id.clone(), started_at: container.started_at? })
            })
            .collect();
        Reply::Containers { running, broken: self.broken.clone() }
    }

    fn start(&mut self, caller: Caller, id: String) -> Result<(), String> {
        if self.find(&id).is_some() {
            return Err(format!("container {id} was already started"));
        }
        let directory = self.directory.join("containers").join(&id);
        let (container, stdio) = Container::prepare(directory, id.clone())?;
        let shared = match &container.plan.pid_of {
            Some(target) => {
                let pid = self.running(target)?.pid.ok_or("the target container is not running")?;
                Some(create::Shared { pid, proc: None })
            }
            None if container.plan.own_pid => None,
            None => self
                .pause
                .map(|pid| create::Shared { pid, proc: Some(pause::proc_mount(&self.directory)) }),
        };
        let report = create::start(&container, stdio, shared.as_ref(), self.users.as_ref())
            .map_err(cannot("fork"))?;
        self.containers.push(container);
        self.await_start(report, StartTarget::Container(id), caller);
        Ok(())
    }

    fn exec(
        &mut self,
        caller: Caller,
        exec: u64,
        id: &str,
        command: Vec<String>,
        terminal: bool,
    ) -> Result<(), String> {
        let stdio = self.connection(caller.connection).and_then(|c| take_stdio(c, terminal));
        let stdio = stdio.ok_or("the request came without file descriptors for stdio")?;
        let own_users = self.users.is_some();
        let container = self.running(id)?;
        let pid = container.pid.ok_or_else(|| format!("container {id} is not running"))?;
        let report =
            enter::start(container, pid, own_users, command, &stdio).map_err(cannot("fork"))?;
        self.await_start(report, StartTarget::Exec(exec), caller);
        Ok(())
    }
}

fn take_stdio(connection: &mut Connection, terminal: bool) -> Option<enter::ExecStdio> {
    let mut next = || connection.descriptors.pop_front();
    if terminal {
        return Some(enter::ExecStdio::Terminal(next()?));
    }
    Some(enter::ExecStdio::Pipes([next()?, next()?, next()?]))
}

/// No error if the process does not exist any more.
fn send_signal(pid: i32, signal: i32) -> Result<(), String> {
    match sys::kill(pid, signal) {
        Err(error) if error.raw_os_error() != Some(libc::ESRCH) => {
            Err(format!("cannot send signal {signal}: {error}"))
        }
        _ => Ok(()),
    }
}
