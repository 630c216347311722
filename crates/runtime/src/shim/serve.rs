//! The shim's loop: one poll, one thing at a time.
//!
//! Everything that can happen is a descriptor that becomes ready: a signal (a child has ended), an
//! agent with a question, output of a container, news of a process being started.

use super::connection::{Attached, Connection};
use super::container::{self, Container};
use super::log::Source;
use super::message::{
    Ask, Call, Pod, Reply, Running, Told, decode, frame, frame_bytes, take_frame,
};
use super::{create, enter, memory, pause, said, settle, sys};
use crate::Exit;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// Children that ended before it was known whose they are; more cannot be starting at once.
const UNCLAIMED_MAX: usize = 256;
const BUFFER: usize = 32 << 10;

pub(crate) struct Shim {
    directory: PathBuf,
    signals: SignalFd,
    listener: UnixListener,
    connections: Vec<Connection>,
    connected: u64,
    containers: Vec<Container>,
    starting: Vec<Starting>,
    execs: Vec<Exec>,
    unclaimed: Vec<Ended>,
    pause: Option<i32>,
    broken: Option<String>,
    stopping: bool,
}

/// A process on its way: what its starter says comes out of `report`.
struct Starting {
    report: std::fs::File,
    said: Vec<u8>,
    what: What,
    /// Who asked, and the id of the question.
    asked: (u64, u64),
}

enum What {
    Container(String),
    Exec(u64),
}

struct Exec {
    id: u64,
    pid: i32,
    /// Who is told how it ended.
    connection: u64,
}

#[derive(Clone, Copy)]
struct Ended {
    pid: i32,
    code: i32,
    signal: Option<i32>,
}

#[derive(Clone)]
enum Ready {
    Signals,
    Listener,
    Connection(u64),
    Report(usize),
    Console(usize),
    Stream(usize, usize),
    Stdin(usize),
}

impl Shim {
    pub(crate) fn prepare(directory: &Path) -> Result<Shim, String> {
        let pod = std::fs::read(directory.join("shim.json")).map_err(said("read shim.json"))?;
        let pod: Pod = serde_json::from_slice(&pod).map_err(said("read shim.json"))?;
        settle(&pod)?;
        let mut mask = SigSet::empty();
        for signal in [Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
            mask.add(signal);
        }
        sigprocmask(SigmaskHow::SIG_BLOCK, Some(&mask), None).map_err(said("block signals"))?;
        let pause =
            pod.shared_pid.then(pause::start).transpose().map_err(said("start process 1"))?;
        let signals = SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
            .map_err(said("wait for signals"))?;
        let socket = directory.join("shim.sock");
        let _ = std::fs::remove_file(&socket);
        let listener = container::bind(&socket).map_err(said("listen"))?;
        listener.set_nonblocking(true).map_err(said("listen"))?;
        Ok(Shim {
            directory: directory.to_owned(),
            signals,
            listener,
            connections: Vec::new(),
            connected: 0,
            containers: Vec::new(),
            starting: Vec::new(),
            execs: Vec::new(),
            unclaimed: Vec::new(),
            pause,
            broken: None,
            stopping: false,
        })
    }

    pub(crate) fn run(mut self, agent: UnixStream) -> Result<(), String> {
        let mut connection = Connection::new(0, agent).map_err(said("keep the socket"))?;
        connection.tell(&Told::Ready);
        memory::give_back();
        self.connections.push(connection);
        let mut buffer = vec![0; BUFFER];
        while !self.finished() {
            let busy = self.starting.len();
            for (ready, flags) in self.wait()? {
                self.act(&ready, flags, &mut buffer);
            }
            if self.starting.len() < busy {
                // A start is the most code a shim ever runs.
                memory::give_back();
            }
            let gone = self.connections.iter().filter(|c| c.leaving && !c.wants_to_write());
            for number in gone.map(|connection| connection.number).collect::<Vec<_>>() {
                self.close(number);
            }
            self.containers.retain(|container| !container.forgotten);
        }
        Ok(())
    }

    fn finished(&self) -> bool {
        self.stopping && self.connections.iter().all(|c| !c.wants_to_write())
    }

    fn wait(&self) -> Result<Vec<(Ready, PollFlags)>, String> {
        let mut fds = vec![
            PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.listener.as_fd(), PollFlags::POLLIN),
        ];
        let mut what = vec![Ready::Signals, Ready::Listener];
        for connection in &self.connections {
            let mut flags = PollFlags::empty();
            if self.may_read(connection) {
                flags |= PollFlags::POLLIN;
            }
            if connection.wants_to_write() {
                flags |= PollFlags::POLLOUT;
            }
            fds.push(PollFd::new(connection.fd(), flags));
            what.push(Ready::Connection(connection.number));
        }
        for (index, starting) in self.starting.iter().enumerate() {
            fds.push(PollFd::new(starting.report.as_fd(), PollFlags::POLLIN));
            what.push(Ready::Report(index));
        }
        for (index, container) in self.containers.iter().enumerate() {
            if let Some(console) = &container.console {
                fds.push(PollFd::new(console.as_fd(), PollFlags::POLLIN));
                what.push(Ready::Console(index));
            }
            if let Some(stdin) = container.waits_to_write() {
                fds.push(PollFd::new(stdin, PollFlags::POLLOUT));
                what.push(Ready::Stdin(index));
            }
            if self.held_back(&container.id) {
                continue;
            }
            for (which, stream) in container.streams.iter().enumerate() {
                fds.push(PollFd::new(stream.fd.as_fd(), PollFlags::POLLIN));
                what.push(Ready::Stream(index, which));
            }
        }
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(format!("cannot wait: {error}")),
        }
        let flags = fds.iter().map(|fd| fd.revents().unwrap_or(PollFlags::empty()));
        let mut ready: Vec<_> =
            what.into_iter().zip(flags).filter(|(_, flags)| !flags.is_empty()).collect();
        // Streams by falling index: one that ends is taken out of its list.
        ready.reverse();
        Ok(ready)
    }

    /// Input for a container that is full waits in the client's socket.
    fn may_read(&self, connection: &Connection) -> bool {
        let Some(attached) = &connection.attached else { return true };
        self.find(&attached.container).is_none_or(|container| container.takes_input())
    }

    /// An attached client that does not read holds back the container, as a terminal would.
    fn held_back(&self, container: &str) -> bool {
        self.connections.iter().any(|connection| {
            connection.holds_back()
                && connection.attached.as_ref().is_some_and(|a| a.container == container)
        })
    }

    fn act(&mut self, ready: &Ready, flags: PollFlags, buffer: &mut [u8]) {
        match *ready {
            Ready::Signals => {
                while let Ok(Some(_)) = self.signals.read_signal() {}
                self.reap(buffer);
            }
            Ready::Listener => {
                self.connected += 1;
                if let Ok((stream, _)) = self.listener.accept()
                    && let Ok(connection) = Connection::new(self.connected, stream)
                {
                    self.connections.push(connection);
                }
            }
            Ready::Connection(number) => self.serve(number, flags, buffer),
            Ready::Report(index) => self.read_report(index, buffer),
            Ready::Console(index) => self.containers[index].take_console(),
            Ready::Stdin(index) => self.containers[index].write_input(),
            Ready::Stream(index, which) => self.copy_output(index, which, buffer),
        }
    }

    fn copy_output(&mut self, index: usize, which: usize, buffer: &mut [u8]) {
        let container = &mut self.containers[index];
        let Some(source) = container.streams.get(which).map(|stream| stream.source) else { return };
        match container.read(which, buffer) {
            Some(read) => pass_on(&mut self.connections, &container.id, source, read),
            None => drop(container.streams.remove(which)),
        }
    }

    fn connection(&mut self, number: u64) -> Option<&mut Connection> {
        self.connections.iter_mut().find(|connection| connection.number == number)
    }

    fn serve(&mut self, number: u64, flags: PollFlags, buffer: &mut [u8]) {
        let Some(connection) = self.connection(number) else { return };
        let mut alive = !flags.contains(PollFlags::POLLOUT) || connection.flush();
        if alive && flags.intersects(PollFlags::POLLIN | PollFlags::POLLHUP | PollFlags::POLLERR) {
            alive = connection.fill(buffer);
        }
        while let Some(connection) = self.connection(number) {
            if let Some(attached) = &connection.attached {
                let (id, stdin) = (attached.container.clone(), attached.stdin);
                let Some((kind, content)) = take_frame(&mut connection.input) else { break };
                self.take_input(&id, stdin, kind, &content);
                continue;
            }
            match decode::<Call>(&mut connection.input) {
                Ok(Some(call)) => self.answer(number, call),
                Ok(None) => break,
                Err(_) => {
                    alive = false;
                    break;
                }
            }
        }
        if !alive {
            self.close(number);
        }
    }

    fn take_input(&mut self, id: &str, stdin: bool, kind: u8, content: &[u8]) {
        let Some(container) = self.containers.iter_mut().find(|c| c.id == id) else { return };
        match (kind, content) {
            (frame::STDIN, []) if stdin => container.client_left(),
            (frame::STDIN, content) if stdin => container.put_input(content),
            (frame::SIZE, &[a, b, c, d]) => {
                container.resize(u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]));
            }
            _ => {}
        }
    }

    fn close(&mut self, number: u64) {
        let Some(index) = self.connections.iter().position(|c| c.number == number) else { return };
        let connection = self.connections.swap_remove(index);
        if let Some(attached) = connection.attached.filter(|attached| attached.stdin)
            && let Some(container) = self.containers.iter_mut().find(|c| c.id == attached.container)
        {
            container.client_left();
        }
    }

    fn answer(&mut self, number: u64, call: Call) {
        let outcome = match call.ask {
            Ask::Start { container } => match self.start(number, call.id, container) {
                Ok(()) => return, // Answered when its starter has said how it went.
                Err(message) => Err(message),
            },
            Ask::Exec { exec, container, command, terminal } => {
                match self.exec(number, call.id, exec, &container, command, terminal) {
                    Ok(()) => return,
                    Err(message) => Err(message),
                }
            }
            ask => self.do_at_once(number, ask),
        };
        self.tell(number, &Told::Answer { id: call.id, outcome });
    }

    fn do_at_once(&mut self, number: u64, ask: Ask) -> Result<Reply, String> {
        match ask {
            Ask::Start { .. } | Ask::Exec { .. } => return Err("not at once".into()),
            Ask::State => return Ok(self.state()),
            Ask::Signal { container, signal } => {
                if let Some(pid) = self.running(&container)?.pid {
                    send(pid, signal)?;
                }
            }
            Ask::SignalExec { exec, signal } => {
                // Each agent counts from one: a number means the exec that its own connection began.
                let meant = |one: &&Exec| one.id == exec && one.connection == number;
                if let Some(exec) = self.execs.iter().find(meant) {
                    send(-exec.pid, signal).or_else(|_| send(exec.pid, signal))?;
                }
            }
            Ask::Resize { container, width, height } => {
                self.running(&container)?.resize(width, height);
            }
            Ask::Reopen { container } => {
                self.running(&container)?.reopen_log().map_err(said("reopen the log"))?;
            }
            Ask::Attach { container, stdin, stdout, stderr } => {
                let stdin = self.running(&container)?.plan.stdin && stdin;
                if let Some(connection) = self.connection(number) {
                    connection.attached = Some(Attached { container, stdin, stdout, stderr });
                }
            }
            Ask::Forget { container } => {
                let ended = |c: &&mut Container| c.id == container && c.exit.is_some();
                if let Some(container) = self.containers.iter_mut().find(ended) {
                    container.forgotten = true;
                }
            }
            Ask::Stop => {
                if let Some(pid) = self.pause.take() {
                    let _ = send(pid, libc::SIGKILL);
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

    fn find(&self, id: &str) -> Option<&Container> {
        self.containers.iter().find(|container| container.id == id)
    }

    fn running(&mut self, id: &str) -> Result<&mut Container, String> {
        self.containers
            .iter_mut()
            .find(|container| container.id == id && container.exit.is_none())
            .ok_or_else(|| format!("container {id} is not running"))
    }

    fn start(&mut self, number: u64, call: u64, id: String) -> Result<(), String> {
        if self.find(&id).is_some() {
            return Err(format!("container {id} was started already"));
        }
        let directory = self.directory.join("containers").join(&id);
        let (container, stdio) = Container::prepare(directory, id.clone())?;
        let namespace_of = match &container.plan.pid_of {
            Some(target) => Some(self.running(target)?.pid.ok_or("the target is not running")?),
            None if container.plan.own_pid => None,
            None => self.pause,
        };
        let namespace = namespace_of.map(|pid| PathBuf::from(format!("/proc/{pid}/ns/pid")));
        let report = create::start(&container, stdio, namespace).map_err(said("fork"))?;
        self.containers.push(container);
        self.await_start(report, What::Container(id), (number, call));
        Ok(())
    }

    fn exec(
        &mut self,
        number: u64,
        call: u64,
        exec: u64,
        id: &str,
        command: Vec<String>,
        terminal: bool,
    ) -> Result<(), String> {
        let ends = self.connection(number).and_then(|c| take_ends(c, terminal));
        let ends = ends.ok_or("the descriptors did not come along")?;
        let container = self.running(id)?;
        let pid = container.pid.ok_or_else(|| format!("container {id} is not running"))?;
        let report = enter::start(container, pid, command, &ends).map_err(said("fork"))?;
        self.await_start(report, What::Exec(exec), (number, call));
        Ok(())
    }

    fn await_start(&mut self, report: OwnedFd, what: What, asked: (u64, u64)) {
        self.starting.push(Starting { report: report.into(), said: Vec::new(), what, asked });
    }

    /// Reads what a starter says until it has nothing more to say.
    fn read_report(&mut self, index: usize, buffer: &mut [u8]) {
        let starting = &mut self.starting[index];
        match starting.report.read(buffer) {
            Ok(length) if length > 0 => {
                starting.said.extend_from_slice(&buffer[..length]);
                return;
            }
            _ => {}
        }
        let starting = self.starting.swap_remove(index);
        let text = String::from_utf8_lossy(&starting.said).into_owned();
        let line = |tag: char| text.lines().find_map(|line| line.strip_prefix(tag));
        let pid = line('P').and_then(|pid| pid.parse::<i32>().ok());
        let outcome = match (pid, line('E')) {
            (Some(pid), None) => Ok(pid),
            (_, Some(why)) => Err(why.to_owned()),
            (None, None) => Err("the process that was to start it died".to_owned()),
        };
        match starting.what {
            What::Container(id) => self.container_started(&id, outcome, starting.asked, buffer),
            What::Exec(id) => self.exec_started(id, outcome, starting.asked),
        }
    }

    fn container_started(
        &mut self,
        id: &str,
        outcome: Result<i32, String>,
        (number, call): (u64, u64),
        buffer: &mut [u8],
    ) {
        let Some(index) = self.containers.iter().position(|container| container.id == id) else {
            return;
        };
        let container = &mut self.containers[index];
        let now = clock::now();
        let reply = match outcome {
            Ok(pid) => {
                container.pid = Some(pid);
                container.started_at = Some(now);
                let started = container.directory.join("started");
                let _ = crate::durable::replace(&started, now.to_string().as_bytes());
                if container.console.is_some() {
                    container.take_console();
                }
                Reply::Started { at: now }
            }
            Err(why) => {
                container.cgroup.kill();
                container.drain(buffer, |_, _| ());
                let exit = container.record_exit(Exit {
                    code: 128,
                    signal: None,
                    reason: "StartError".into(),
                    message: format!(
                        "failed to start container: unable to start container process: {why}"
                    ),
                    started_at: None,
                    finished_at: now,
                });
                Reply::NotStarted { exit }
            }
        };
        let pid = container.pid;
        self.tell(number, &Told::Answer { id: call, outcome: Ok(reply) });
        if let Some(ended) = pid.and_then(|pid| self.claim(pid)) {
            self.child_ended(ended, buffer);
        }
    }

    fn exec_started(&mut self, id: u64, outcome: Result<i32, String>, (number, call): (u64, u64)) {
        let pid = outcome.as_ref().ok().copied();
        let outcome = outcome.map(|_| Reply::Done);
        self.tell(number, &Told::Answer { id: call, outcome });
        let Some(pid) = pid else { return };
        self.execs.push(Exec { id, pid, connection: number });
        if let Some(ended) = self.claim(pid) {
            self.child_ended(ended, &mut []);
        }
    }

    /// Takes in every child that has ended, known or not.
    fn reap(&mut self, buffer: &mut [u8]) {
        while let Some((pid, how)) = sys::reap_one() {
            let ended = match how {
                Ok(code) => Ended { pid, code, signal: None },
                Err(signal) => Ended { pid, code: 128 + signal, signal: Some(signal) },
            };
            self.child_ended(ended, buffer);
        }
    }

    fn claim(&mut self, pid: i32) -> Option<Ended> {
        let index = self.unclaimed.iter().position(|ended| ended.pid == pid)?;
        Some(self.unclaimed.swap_remove(index))
    }

    fn child_ended(&mut self, ended: Ended, buffer: &mut [u8]) {
        if let Some(index) =
            self.containers.iter().position(|c| c.pid == Some(ended.pid) && c.exit.is_none())
        {
            self.container_ended(index, ended, buffer);
        } else if let Some(index) = self.execs.iter().position(|exec| exec.pid == ended.pid) {
            let exec = self.execs.swap_remove(index);
            self.tell(exec.connection, &Told::ExecExited { exec: exec.id, code: ended.code });
        } else if self.pause == Some(ended.pid) {
            self.pause = None;
            let message = "process 1 of the pod's process namespace has ended".to_owned();
            self.broken = Some(message.clone());
            self.tell_all(&Told::Broken { message });
        } else if !self.starting.is_empty() && self.unclaimed.len() < UNCLAIMED_MAX {
            self.unclaimed.push(ended);
        }
        if self.starting.is_empty() {
            self.unclaimed.clear();
        }
    }

    fn container_ended(&mut self, index: usize, ended: Ended, buffer: &mut [u8]) {
        let finished_at = clock::now();
        let (containers, connections) = (&mut self.containers, &mut self.connections);
        let container = &mut containers[index];
        if !container.plan.own_pid {
            // Without a process namespace of its own, others of the container may live on.
            container.cgroup.kill();
        }
        let id = container.id.clone();
        let mut local = [0; 4096];
        let buffer = if buffer.is_empty() { &mut local[..] } else { buffer };
        container.drain(buffer, |source, read| pass_on(connections, &id, source, read));
        let out_of_memory = container.cgroup.oom_kills() > 0;
        let exit = container.record_exit(Exit {
            code: ended.code,
            signal: ended.signal,
            reason: if out_of_memory { "OOMKilled".into() } else { String::new() },
            message: String::new(),
            started_at: container.started_at,
            finished_at,
        });
        self.tell_all(&Told::Exited { container: id.clone(), exit });
        for connection in self.connections.iter_mut() {
            if connection.attached.as_ref().is_some_and(|attached| attached.container == id) {
                connection.send(&frame_bytes(frame::ENDED, &[]));
                connection.leaving = true;
            }
        }
    }

    fn tell(&mut self, number: u64, told: &Told) {
        if let Some(connection) = self.connection(number)
            && (connection.attached.is_none() || matches!(told, Told::Answer { .. }))
        {
            connection.tell(told);
        }
    }

    fn tell_all(&mut self, told: &Told) {
        for connection in self.connections.iter_mut().filter(|c| c.attached.is_none()) {
            connection.tell(told);
        }
    }
}

/// Output goes to everybody who is attached and asked for it.
fn pass_on(connections: &mut [Connection], id: &str, source: Source, read: &[u8]) {
    let kind = match source {
        Source::Stdout => frame::STDOUT,
        Source::Stderr => frame::STDERR,
    };
    for connection in connections.iter_mut() {
        let wanted = connection.attached.as_ref().is_some_and(|attached| {
            attached.container == id
                && match source {
                    Source::Stdout => attached.stdout,
                    Source::Stderr => attached.stderr,
                }
        });
        if wanted && !read.is_empty() {
            for part in read.chunks(frame::CONTENT_MAX) {
                connection.send(&frame_bytes(kind, part));
            }
        }
    }
}

fn take_ends(connection: &mut Connection, terminal: bool) -> Option<enter::Ends> {
    let mut next = || connection.descriptors.pop_front();
    if terminal {
        return Some(enter::Ends::Terminal(next()?));
    }
    Some(enter::Ends::Pipes([next()?, next()?, next()?]))
}

/// A process that is gone has got every signal it could get.
fn send(pid: i32, signal: i32) -> Result<(), String> {
    match sys::kill(pid, signal) {
        Err(error) if error.raw_os_error() != Some(libc::ESRCH) => {
            Err(format!("cannot send signal {signal}: {error}"))
        }
        _ => Ok(()),
    }
}
