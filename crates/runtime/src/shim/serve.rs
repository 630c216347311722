//! The shim's event loop: one `poll` call, then one event at a time.
//!
//! Every event is a file descriptor that becomes ready: a signal (a child exited), a request of an agent,
//! output of a container, the report of a process that is being started.

use super::children::{ChildExit, Exec, Starting};
use super::connection::Connection;
use super::container::{self, Container};
use super::log::Source;
use super::message::{Request, ShimConfig, ShimEvent, decode, frame, frame_bytes, take_frame};
use super::users::Users;
use super::{cannot, enter_namespaces, memory, pause};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

const BUFFER: usize = 32 << 10;

pub(crate) struct Shim {
    pub(super) directory: PathBuf,
    signals: SignalFd,
    listener: UnixListener,
    pub(super) connections: Vec<Connection>,
    /// The number of the latest connection.
    last_connection: u64,
    pub(super) containers: Vec<Container>,
    pub(super) starting: Vec<Starting>,
    pub(super) execs: Vec<Exec>,
    /// Children that exited while processes were being started, and that may be one of these.
    pub(super) unclaimed: Vec<ChildExit>,
    /// PID of the pause process, if the pod's containers share a PID namespace.
    pub(super) pause: Option<i32>,
    /// The pod's users, if it has a user namespace.
    pub(super) users: Option<Users>,
    /// Why no further containers can run.
    pub(super) broken: Option<String>,
    pub(super) stopping: bool,
}

/// A descriptor that became ready.
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
        let config =
            std::fs::read(directory.join("shim.json")).map_err(cannot("read shim.json"))?;
        let config: ShimConfig =
            serde_json::from_slice(&config).map_err(cannot("read shim.json"))?;
        let users = enter_namespaces(&config)?;
        let mut mask = SigSet::empty();
        for signal in [Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
            mask.add(signal);
        }
        sigprocmask(SigmaskHow::SIG_BLOCK, Some(&mask), None).map_err(cannot("block signals"))?;
        let pause = config
            .shared_pid
            .then(|| pause::start(directory))
            .transpose()
            .map_err(cannot("start the pause process"))?;
        let signals = SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
            .map_err(cannot("open a signal descriptor"))?;
        let socket = directory.join("shim.sock");
        let _ = std::fs::remove_file(&socket);
        let listener = container::bind(&socket).map_err(cannot("listen on shim.sock"))?;
        listener.set_nonblocking(true).map_err(cannot("listen on shim.sock"))?;
        Ok(Shim {
            directory: directory.to_owned(),
            signals,
            listener,
            connections: Vec::new(),
            last_connection: 0,
            containers: Vec::new(),
            starting: Vec::new(),
            execs: Vec::new(),
            unclaimed: Vec::new(),
            pause,
            users,
            broken: None,
            stopping: false,
        })
    }

    pub(crate) fn run(mut self, agent: UnixStream) -> Result<(), String> {
        let mut connection =
            Connection::new(0, agent).map_err(cannot("set up the agent's socket"))?;
        connection.notify(&ShimEvent::Ready);
        memory::release_unused();
        self.connections.push(connection);
        let mut buffer = vec![0; BUFFER];
        while !self.finished() {
            let starting = self.starting.len();
            for (ready, flags) in self.wait()? {
                self.dispatch(&ready, flags, &mut buffer);
            }
            if self.starting.len() < starting {
                // Starting a process uses the most memory.
                memory::release_unused();
            }
            let closed = self.connections.iter().filter(|c| c.closing && !c.wants_to_write());
            for number in closed.map(|connection| connection.number).collect::<Vec<_>>() {
                self.close(number);
            }
            self.containers.retain(|container| !container.removed);
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
        let mut sources = vec![Ready::Signals, Ready::Listener];
        for connection in &self.connections {
            let mut flags = PollFlags::empty();
            if self.may_read(connection) {
                flags |= PollFlags::POLLIN;
            }
            if connection.wants_to_write() {
                flags |= PollFlags::POLLOUT;
            }
            fds.push(PollFd::new(connection.fd(), flags));
            sources.push(Ready::Connection(connection.number));
        }
        for (index, starting) in self.starting.iter().enumerate() {
            fds.push(PollFd::new(starting.report.as_fd(), PollFlags::POLLIN));
            sources.push(Ready::Report(index));
        }
        for (index, container) in self.containers.iter().enumerate() {
            if let Some(console) = &container.console {
                fds.push(PollFd::new(console.as_fd(), PollFlags::POLLIN));
                sources.push(Ready::Console(index));
            }
            if let Some(stdin) = container.pending_stdin() {
                fds.push(PollFd::new(stdin, PollFlags::POLLOUT));
                sources.push(Ready::Stdin(index));
            }
            if self.is_held_back(&container.id) {
                continue;
            }
            for (which, stream) in container.streams.iter().enumerate() {
                fds.push(PollFd::new(stream.fd.as_fd(), PollFlags::POLLIN));
                sources.push(Ready::Stream(index, which));
            }
        }
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(format!("cannot poll: {error}")),
        }
        let flags = fds.iter().map(|fd| fd.revents().unwrap_or(PollFlags::empty()));
        let mut ready: Vec<_> =
            sources.into_iter().zip(flags).filter(|(_, flags)| !flags.is_empty()).collect();
        // In descending order: a stream that ends is removed from its list, which changes later indexes.
        ready.reverse();
        Ok(ready)
    }

    /// While a container's input buffer is full, more input stays in the client's socket.
    fn may_read(&self, connection: &Connection) -> bool {
        let Some(attached) = &connection.attached else { return true };
        self.find(&attached.container).is_none_or(|container| container.accepts_input())
    }

    /// Whether an attached client reads too slowly. The container's output then waits, as with a terminal.
    fn is_held_back(&self, container: &str) -> bool {
        self.connections.iter().any(|connection| {
            connection.holds_back()
                && connection.attached.as_ref().is_some_and(|a| a.container == container)
        })
    }

    fn dispatch(&mut self, ready: &Ready, flags: PollFlags, buffer: &mut [u8]) {
        match *ready {
            Ready::Signals => {
                while let Ok(Some(_)) = self.signals.read_signal() {}
                self.reap(buffer);
            }
            Ready::Listener => {
                self.last_connection += 1;
                if let Ok((stream, _)) = self.listener.accept()
                    && let Ok(connection) = Connection::new(self.last_connection, stream)
                {
                    self.connections.push(connection);
                }
            }
            Ready::Connection(number) => self.serve_connection(number, flags, buffer),
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
            Some(read) => forward_output(&mut self.connections, &container.id, source, read),
            None => drop(container.streams.remove(which)),
        }
    }

    pub(super) fn connection(&mut self, number: u64) -> Option<&mut Connection> {
        self.connections.iter_mut().find(|connection| connection.number == number)
    }

    fn serve_connection(&mut self, number: u64, flags: PollFlags, buffer: &mut [u8]) {
        let Some(connection) = self.connection(number) else { return };
        let mut alive = !flags.contains(PollFlags::POLLOUT) || connection.flush();
        if alive && flags.intersects(PollFlags::POLLIN | PollFlags::POLLHUP | PollFlags::POLLERR) {
            alive = connection.fill(buffer);
        }
        while let Some(connection) = self.connection(number) {
            if let Some(attached) = &connection.attached {
                let (id, stdin) = (attached.container.clone(), attached.stdin);
                let Some((kind, content)) = take_frame(&mut connection.input) else { break };
                self.receive_input(&id, stdin, kind, &content);
                continue;
            }
            match decode::<Request>(&mut connection.input) {
                Ok(Some(request)) => self.handle(number, request),
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

    fn receive_input(&mut self, id: &str, stdin: bool, kind: u8, content: &[u8]) {
        let Some(container) = self.containers.iter_mut().find(|c| c.id == id) else { return };
        match (kind, content) {
            (frame::STDIN, []) if stdin => container.client_left(),
            (frame::STDIN, content) if stdin => container.queue_input(content),
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

    pub(super) fn find(&self, id: &str) -> Option<&Container> {
        self.containers.iter().find(|container| container.id == id)
    }

    pub(super) fn running(&mut self, id: &str) -> Result<&mut Container, String> {
        self.containers
            .iter_mut()
            .find(|container| container.id == id && container.exit.is_none())
            .ok_or_else(|| format!("container {id} is not running"))
    }

    pub(super) fn notify(&mut self, number: u64, event: &ShimEvent) {
        if let Some(connection) = self.connection(number)
            && (connection.attached.is_none() || matches!(event, ShimEvent::Answer { .. }))
        {
            connection.notify(event);
        }
    }

    pub(super) fn notify_all(&mut self, event: &ShimEvent) {
        for connection in self.connections.iter_mut().filter(|c| c.attached.is_none()) {
            connection.notify(event);
        }
    }
}

/// Sends a container's output to all attached clients that requested it.
pub(super) fn forward_output(
    connections: &mut [Connection],
    id: &str,
    source: Source,
    read: &[u8],
) {
    let kind = match source {
        Source::Stdout => frame::STDOUT,
        Source::Stderr => frame::STDERR,
    };
    for connection in connections.iter_mut() {
        let requested = connection.attached.as_ref().is_some_and(|attached| {
            attached.container == id
                && match source {
                    Source::Stdout => attached.stdout,
                    Source::Stderr => attached.stderr,
                }
        });
        if requested && !read.is_empty() {
            for part in read.chunks(frame::CONTENT_MAX) {
                connection.send(&frame_bytes(kind, part));
            }
        }
    }
}
