//! One container as its shim knows it: where its output goes, where its input comes from, how it
//! ended.

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

/// Input for a container that does not read is kept up to this; then its sender waits.
const INPUT_MAX: usize = 64 << 10;

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
    pub(crate) forgotten: bool,
    pub(crate) streams: Vec<Stream>,
    /// The write end of its stdin, or its terminal.
    stdin: Option<OwnedFd>,
    input: VecDeque<u8>,
    input_ends: bool,
    /// Where the terminal will arrive.
    pub(crate) console: Option<UnixListener>,
    log: Log,
    records: Vec<u8>,
}

/// What process 1 is born with as descriptors 0, 1 and 2.
pub(crate) struct Stdio(pub(crate) [OwnedFd; 3]);

impl Container {
    /// Opens the log and makes the pipes.
    pub(crate) fn prepare(directory: PathBuf, id: String) -> Result<(Container, Stdio), String> {
        let plan =
            std::fs::read(directory.join("plan.json")).map_err(super::said("read plan.json"))?;
        let plan: Plan = serde_json::from_slice(&plan).map_err(super::said("read plan.json"))?;
        let log = Log::open(plan.log.clone())
            .map_err(|error| format!("cannot open the log {}: {error}", plan.log.display()))?;
        let mut container = Container {
            cgroup: Cgroup::new(&plan.cgroup),
            id,
            pid: None,
            started_at: None,
            exit: None,
            forgotten: false,
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
        let stdio = container.open_stdio().map_err(super::said("make pipes"))?;
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

    /// The container's terminal has arrived on the console socket.
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

    /// Reads what one stream has, into the log; answers what was read. None at its end.
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
        // A burst of tiny lines makes many records; the memory goes back afterwards.
        self.records.shrink_to(32 << 10);
    }

    pub(crate) fn reopen_log(&mut self) -> io::Result<()> {
        self.log.reopen()
    }

    /// Everything that was written before the end, then the end of every stream.
    pub(crate) fn drain(&mut self, buffer: &mut [u8], mut told: impl FnMut(Source, &[u8])) {
        for index in 0..self.streams.len() {
            let source = self.streams[index].source;
            while let Some(read) = self.read(index, buffer) {
                if read.is_empty() {
                    // Somebody else still holds the other end: what is there so far is all.
                    let stream = &mut self.streams[index];
                    stream.lines.finish(clock::now(), source, &mut self.records);
                    self.write_records();
                    break;
                }
                told(source, read);
            }
        }
        self.streams.clear();
        self.stdin = None;
        self.console = None;
    }

    pub(crate) fn takes_input(&self) -> bool {
        self.input.len() < INPUT_MAX
    }

    pub(crate) fn waits_to_write(&self) -> Option<BorrowedFd<'_>> {
        self.stdin.as_ref().filter(|_| !self.input.is_empty()).map(|fd| fd.as_fd())
    }

    pub(crate) fn put_input(&mut self, bytes: &[u8]) {
        if self.stdin.is_some() && !self.input_ends {
            self.input.extend(bytes);
            self.write_input();
        }
    }

    /// N-64: with stdinOnce the first client that leaves takes stdin with it.
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

    /// Writes down how it ended. Nobody is told before this is on disk.
    pub(crate) fn record_exit(&mut self, exit: Exit) -> Exit {
        let text = serde_json::to_vec(&exit).unwrap_or_default();
        let path = self.directory.join("exit.json");
        let mut exit = exit;
        if let Err(error) = durable::replace_synced(&path, &text) {
            exit.message = format!("{} (and its exit could not be stored: {error})", exit.message);
        }
        self.exit = Some(exit.clone());
        exit
    }
}

/// A listener below a directory whose path may be longer than an address can be.
pub(crate) fn bind(path: &Path) -> io::Result<UnixListener> {
    let (directory, name) = (path.parent(), path.file_name());
    let (Some(directory), Some(name)) = (directory, name) else {
        return Err(ErrorKind::InvalidInput.into());
    };
    let directory = File::open(directory)?;
    let short = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd())).join(name);
    UnixListener::bind(short)
}

/// Connects to a listener made by [`bind`].
pub(crate) fn connect(path: &Path) -> io::Result<UnixStream> {
    let (directory, name) = (path.parent(), path.file_name());
    let (Some(directory), Some(name)) = (directory, name) else {
        return Err(ErrorKind::InvalidInput.into());
    };
    let directory = File::open(directory)?;
    let short = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd())).join(name);
    UnixStream::connect(short)
}

/// Waits for one descriptor to come over a socket.
pub(crate) fn receive_descriptor(stream: &UnixStream) -> Option<OwnedFd> {
    let mut connection = super::connection::Connection::new(0, stream.try_clone().ok()?).ok()?;
    stream.set_nonblocking(false).ok()?;
    let mut byte = [0; 64];
    // Non-blocking reads: wait until there is something.
    let mut poll = [nix::poll::PollFd::new(stream.as_fd(), nix::poll::PollFlags::POLLIN)];
    nix::poll::poll(&mut poll, nix::poll::PollTimeout::from(5000u16)).ok()?;
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
