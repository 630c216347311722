//! The shim's state of one container: its log, its standard streams and its exit.

use super::log::{Lines, Log, Source};
use super::message::Plan;
use super::sys;
use crate::cgroup::Cgroup;
use crate::{Exit, durable};
use jiff::Timestamp;
use nix::errno::Errno;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// Input that a container has not read yet is buffered up to this size; then the client waits.
const INPUT_MAX: usize = 64 << 10;
const DESCRIPTOR_TIMEOUT_MS: u16 = 5000;

/// One of a container's outputs: a pipe, or the master of its terminal.
pub(crate) struct Stream {
    pub(crate) source: Source,
    pub(crate) fd: OwnedFd,
    lines: Lines,
}

pub(crate) struct Container {
    pub(crate) id: String,
    pub(crate) directory: PathBuf,
    pub(crate) plan: Plan,
    pub(crate) cgroup: Cgroup,
    pub(crate) pid: Option<i32>,
    pub(crate) started_at: Option<Timestamp>,
    pub(crate) exit: Option<Exit>,
    /// The agent does not need this container any more.
    pub(crate) removed: bool,
    pub(crate) streams: Vec<Stream>,
    /// The write end of its stdin, or its terminal.
    stdin: Option<OwnedFd>,
    input: VecDeque<u8>,
    /// Stdin is closed after the buffered input.
    input_ends: bool,
    /// libcontainer sends the terminal's master to this socket.
    pub(crate) console: Option<UnixListener>,
    log: Log,
    /// Buffer for lines of the log file.
    records: Vec<u8>,
}

/// Stdin, stdout and stderr of process 1.
pub(crate) struct Stdio(pub(crate) [OwnedFd; 3]);

impl Container {
    /// Opens the log and creates the pipes.
    pub(crate) fn prepare(directory: PathBuf, id: String) -> Result<(Container, Stdio), String> {
        let plan =
            std::fs::read(directory.join("plan.json")).map_err(super::cannot("read plan.json"))?;
        let plan: Plan = serde_json::from_slice(&plan).map_err(super::cannot("read plan.json"))?;
        let log = Log::open(plan.log.clone(), plan.log_limits)
            .map_err(|error| format!("cannot open the log {}: {error}", plan.log.display()))?;
        let mut container = Container {
            cgroup: Cgroup::new(&plan.cgroup),
            id,
            pid: None,
            started_at: None,
            exit: None,
            removed: false,
            streams: Vec::new(),
            stdin: None,
            input: VecDeque::new(),
            input_ends: false,
            console: None,
            log,
            records: Vec::new(),
            directory,
            plan,
        };
        let stdio = container.open_stdio().map_err(super::cannot("create the pipes for stdio"))?;
        Ok((container, stdio))
    }

    fn open_stdio(&mut self) -> io::Result<Stdio> {
        if self.plan.terminal {
            let path = self.directory.join("console.sock");
            let _ = std::fs::remove_file(&path);
            let listener = bind(&path)?;
            listener.set_nonblocking(true)?;
            self.console = Some(listener);
            return Ok(Stdio([null()?, null()?, null()?]));
        }
        let stdin = if self.plan.stdin {
            let (read, write) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
            set_nonblocking(write.as_fd())?;
            self.stdin = Some(write);
            read
        } else {
            null()?
        };
        let mut output = |source| -> io::Result<OwnedFd> {
            let (read, write) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
            set_nonblocking(read.as_fd())?;
            self.streams.push(Stream { source, fd: read, lines: Lines::default() });
            Ok(write)
        };
        Ok(Stdio([stdin, output(Source::Stdout)?, output(Source::Stderr)?]))
    }

    /// Receives the container's terminal from the console socket.
    pub(crate) fn take_console(&mut self) {
        let Some(console) = &self.console else { return };
        let Ok((stream, _)) = console.accept() else { return };
        self.console = None;
        let _ = std::fs::remove_file(self.directory.join("console.sock"));
        let Some(master) = receive_descriptor(&stream) else { return };
        if set_nonblocking(master.as_fd()).is_err() {
            return;
        }
        self.stdin = master.try_clone().ok();
        self.streams.push(Stream { source: Source::Stdout, fd: master, lines: Lines::default() });
    }

    /// Reads from a stream and writes to the log. Returns the bytes, or `None` at the end of the stream.
    pub(crate) fn read<'b>(&mut self, index: usize, buffer: &'b mut [u8]) -> Option<&'b [u8]> {
        let stream = self.streams.get_mut(index)?;
        match nix::unistd::read(stream.fd.as_raw_fd(), buffer) {
            Ok(0) | Err(Errno::EIO) => {
                stream.lines.finish(clock::now(), stream.source, &mut self.records);
                self.write_records();
                None
            }
            Ok(length) => {
                stream.lines.take(
                    clock::now(),
                    stream.source,
                    &buffer[..length],
                    &mut self.records,
                );
                self.write_records();
                Some(&buffer[..length])
            }
            Err(_) => Some(&[]),
        }
    }

    fn write_records(&mut self) {
        self.log.write(&self.records);
        self.records.clear();
        // Many short lines need much memory; release it afterwards.
        self.records.shrink_to(32 << 10);
    }

    pub(crate) fn reopen_log(&mut self) -> io::Result<()> {
        self.log.reopen()
    }

    /// Reads all remaining output and closes all streams.
    pub(crate) fn drain(&mut self, buffer: &mut [u8], mut forward: impl FnMut(Source, &[u8])) {
        for index in 0..self.streams.len() {
            let source = self.streams[index].source;
            while let Some(read) = self.read(index, buffer) {
                if read.is_empty() {
                    // Another process still has the pipe open. Do not wait for it.
                    let stream = &mut self.streams[index];
                    stream.lines.finish(clock::now(), source, &mut self.records);
                    self.write_records();
                    break;
                }
                forward(source, read);
            }
        }
        self.streams.clear();
        self.stdin = None;
        self.console = None;
    }

    pub(crate) fn accepts_input(&self) -> bool {
        self.input.len() < INPUT_MAX
    }

    /// Stdin, if there is buffered input for it.
    pub(crate) fn pending_stdin(&self) -> Option<BorrowedFd<'_>> {
        self.stdin.as_ref().filter(|_| !self.input.is_empty()).map(|fd| fd.as_fd())
    }

    pub(crate) fn queue_input(&mut self, bytes: &[u8]) {
        if self.stdin.is_some() && !self.input_ends {
            self.input.extend(bytes);
            self.write_input();
        }
    }

    /// N-64: with stdinOnce, stdin is closed when the first client disconnects.
    pub(crate) fn client_left(&mut self) {
        if self.plan.stdin_once && !self.plan.terminal {
            self.input_ends = true;
            self.write_input();
        }
    }

    pub(crate) fn write_input(&mut self) {
        let Some(stdin) = &self.stdin else { return };
        while !self.input.is_empty() {
            let (front, _) = self.input.as_slices();
            match nix::unistd::write(stdin, front) {
                Ok(written) => drop(self.input.drain(..written)),
                Err(Errno::EAGAIN) => return,
                Err(Errno::EINTR) => {}
                Err(_) => {
                    self.input.clear();
                    self.stdin = None;
                    return;
                }
            }
        }
        if self.input_ends {
            self.stdin = None;
        }
    }

    pub(crate) fn resize(&self, width: u16, height: u16) {
        if let Some(terminal) = self.stdin.as_ref().filter(|_| self.plan.terminal) {
            let _ = sys::set_terminal_size(terminal.as_fd(), width, height);
        }
    }

    /// Writes the exit to disk. It must not be reported before.
    pub(crate) fn record_exit(&mut self, exit: Exit) -> Exit {
        let text = serde_json::to_vec(&exit).unwrap_or_default();
        let path = self.directory.join("exit.json");
        let mut exit = exit;
        if let Err(error) = durable::replace_synced(&path, &text) {
            exit.message =
                format!("{} (and its exit could not be written to disk: {error})", exit.message);
        }
        self.exit = Some(exit.clone());
        exit
    }
}

/// Listens on a socket whose path may be longer than a socket address.
pub(crate) fn bind(path: &Path) -> io::Result<UnixListener> {
    let (_directory, short) = short_path(path)?;
    UnixListener::bind(short)
}

/// Connects to a socket whose path may be longer than a socket address.
pub(crate) fn connect(path: &Path) -> io::Result<UnixStream> {
    let (_directory, short) = short_path(path)?;
    UnixStream::connect(short)
}

/// A short path to the same file, valid while the returned directory is open.
fn short_path(path: &Path) -> io::Result<(File, PathBuf)> {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(ErrorKind::InvalidInput.into());
    };
    let directory = File::open(directory)?;
    let short = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd())).join(name);
    Ok((directory, short))
}

/// Receives one file descriptor from a socket.
pub(crate) fn receive_descriptor(stream: &UnixStream) -> Option<OwnedFd> {
    let mut connection = super::connection::Connection::new(0, stream.try_clone().ok()?).ok()?;
    stream.set_nonblocking(false).ok()?;
    let mut byte = [0; 64];
    // `Connection` reads without blocking, so wait here.
    let mut poll = [nix::poll::PollFd::new(stream.as_fd(), nix::poll::PollFlags::POLLIN)];
    nix::poll::poll(&mut poll, nix::poll::PollTimeout::from(DESCRIPTOR_TIMEOUT_MS)).ok()?;
    connection.fill(&mut byte);
    connection.descriptors.pop_front()
}

fn null() -> io::Result<OwnedFd> {
    Ok(File::options().read(true).write(true).open("/dev/null")?.into())
}

fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    fcntl(fd.as_raw_fd(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok(())
}
