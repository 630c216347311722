//! A short-lived child of the shim that turns a prepared directory into a running container, by
//! way of libcontainer. It ends as soon as process 1 runs; that one is the shim's own child.
//!
//! The root filesystem is mounted in a mount namespace of this child's, which the container's is
//! copied from. So it exists nowhere else, and is gone with the container whatever happens.

use super::container::{Container, Stdio};
use super::enter::{command_of, find_executable, run_command};
use super::said;
use super::sys::{self, Forked};
use libcontainer::container::builder::ContainerBuilder;
use libcontainer::syscall::syscall::SyscallType;
use libcontainer::workload::{Executor, ExecutorError, ExecutorValidationError};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use oci_spec::runtime::{LinuxNamespaceBuilder, LinuxNamespaceType, Spec};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

/// mount(2) takes one page of options; longer ones name the layers by links.
const MOUNT_OPTIONS_MAX: usize = 4000;

/// Starts it. What the child has to say comes out of the pipe: a line `P<pid>`, a line `E<why not>`,
/// and the end of it when the container's program runs or nothing will come of it.
pub(crate) fn start(
    container: &Container,
    stdio: Stdio,
    pid_namespace: Option<PathBuf>,
) -> io::Result<OwnedFd> {
    let (read, write) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
    match sys::fork()? {
        Forked::Parent(_) => Ok(read),
        Forked::Child => {
            drop(read);
            let report = Report(write.as_raw_fd());
            match create(container, &stdio, pid_namespace, report) {
                Ok(()) => sys::exit_now(0),
                Err(message) => {
                    report.failed(&message);
                    sys::exit_now(1)
                }
            }
        }
    }
}

/// The write end of the pipe; every process on the way to the program has it under this number.
#[derive(Clone, Copy)]
pub(crate) struct Report(pub(crate) RawFd);

impl Report {
    fn line(self, line: &str) {
        use std::os::fd::BorrowedFd;
        #[allow(
            unsafe_code,
            reason = "the descriptor is open in this process for as long as it lives"
        )]
        // SAFETY: nothing in the children of the shim closes it before they end or exec.
        let pipe = unsafe { BorrowedFd::borrow_raw(self.0) };
        let _ = nix::unistd::write(pipe, line.as_bytes());
    }

    pub(crate) fn pid(self, pid: i32) {
        self.line(&format!("P{pid}\n"));
    }

    pub(crate) fn failed(self, why: &str) {
        self.line(&format!("E{}\n", why.replace('\n', " ")));
    }
}

fn create(
    container: &Container,
    stdio: &Stdio,
    pid_namespace: Option<PathBuf>,
    report: Report,
) -> Result<(), String> {
    restore_signals();
    for (number, fd) in stdio.0.iter().enumerate() {
        nix::unistd::dup2(fd.as_raw_fd(), number as RawFd).map_err(said("set up stdio"))?;
    }
    set_oom_score(container.plan.oom_score_adj);
    // libcontainer joins what has controllers; on hybrid machines the v2 tree is left to us.
    container.cgroup.join_bare_tree(std::process::id()).map_err(said("join the cgroup"))?;
    mount_root(container)?;
    super::root::fill(&container.directory.join("rootfs"), &container.plan)?;
    if let Some(path) = pid_namespace {
        name_pid_namespace(&container.directory, &path)?;
    }
    let state = container.directory.join("state");
    let console = container.plan.terminal.then(|| container.directory.join("console.sock"));
    let mut built = ContainerBuilder::new(container.id.clone(), SyscallType::default())
        .with_executor(Program { report })
        .with_root_path(state)
        .map_err(chain)?
        .with_console_socket(console)
        .as_init(&container.directory)
        .with_systemd(false)
        .with_detach(true)
        .as_sibling(true)
        .build()
        .map_err(chain)?;
    let pid = built.pid().ok_or("the container has no process")?;
    report.pid(pid.as_raw());
    built.start().map_err(chain)
}

/// The shim blocks signals to read them from a descriptor, and ignores SIGPIPE; programs must not.
pub(crate) fn restore_signals() {
    use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal, signal, sigprocmask};
    let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None);
    #[allow(unsafe_code, reason = "the default disposition runs no code of ours")]
    // SAFETY: SIG_DFL is always sound.
    let _ = unsafe { signal(Signal::SIGPIPE, SigHandler::SigDfl) };
}

/// Where the kernel forbids to lower it (no CAP_SYS_RESOURCE) the value stays the parent's.
pub(crate) fn set_oom_score(score: i32) {
    let _ = fs::write("/proc/self/oom_score_adj", score.to_string());
}

fn mount_root(container: &Container) -> Result<(), String> {
    if !container.plan.visible_root {
        unshare(CloneFlags::CLONE_NEWNS).map_err(said("make a mount namespace"))?;
        let slave = MsFlags::MS_SLAVE | MsFlags::MS_REC;
        mount(None::<&str>, "/", None::<&str>, slave, None::<&str>)
            .map_err(said("keep mounts from the node"))?;
        stage(&container.plan.staged)?;
    }
    let directory = &container.directory;
    let target = directory.join("rootfs");
    let mut options = overlay_options(directory, container.plan.layers.iter().map(|l| l.display()));
    if options.len() > MOUNT_OPTIONS_MAX {
        let links = link_layers(directory, &container.plan.layers).map_err(said("link layers"))?;
        options = overlay_options(directory, links.iter());
    }
    let overlay = |options: &str| {
        mount(Some("overlay"), &target, Some("overlay"), MsFlags::empty(), Some(options))
    };
    // Nobody needs a dead container's layer to have reached the disk; old kernels do not know that.
    overlay(&format!("{options},volatile"))
        .or_else(|_| overlay(&options))
        .map_err(|error| format!("cannot mount the root filesystem: {error}"))
}

/// In the container's own namespace, so nobody has to take them away.
fn stage(staged: &[(PathBuf, PathBuf)]) -> Result<(), String> {
    let (bind, private) =
        (MsFlags::MS_BIND | MsFlags::MS_REC, MsFlags::MS_PRIVATE | MsFlags::MS_REC);
    for (source, place) in staged {
        mount(Some(source), place, None::<&str>, bind, None::<&str>)
            .and_then(|()| mount(None::<&str>, place, None::<&str>, private, None::<&str>))
            .map_err(|error| format!("cannot mount {}: {error}", source.display()))?;
    }
    Ok(())
}

fn overlay_options(
    directory: &Path,
    layers: impl Iterator<Item = impl std::fmt::Display>,
) -> String {
    let layers: Vec<String> = layers.map(|layer| layer.to_string()).collect();
    let directory = directory.display();
    format!("lowerdir={},upperdir={directory}/upper,workdir={directory}/work", layers.join(":"))
}

/// Short names for many layers, relative to a directory this process goes to.
fn link_layers(directory: &Path, layers: &[PathBuf]) -> io::Result<Vec<String>> {
    let links = directory.join("layers");
    fs::create_dir_all(&links)?;
    std::env::set_current_dir(&links)?;
    let mut names = Vec::with_capacity(layers.len());
    for (number, layer) in layers.iter().enumerate() {
        let name = number.to_string();
        std::os::unix::fs::symlink(layer, &name)?;
        names.push(name);
    }
    Ok(names)
}

/// Only the shim knows where the namespace is: it was made after the configuration was written.
fn name_pid_namespace(directory: &Path, namespace: &Path) -> Result<(), String> {
    let path = directory.join("config.json");
    let mut spec = Spec::load(&path).map_err(said("read config.json"))?;
    let entry = LinuxNamespaceBuilder::default()
        .typ(LinuxNamespaceType::Pid)
        .path(namespace)
        .build()
        .map_err(said("name the process namespace"))?;
    let mut linux = spec.linux().clone().unwrap_or_default();
    let mut namespaces = linux.namespaces().clone().unwrap_or_default();
    namespaces.retain(|namespace| namespace.typ() != LinuxNamespaceType::Pid);
    namespaces.push(entry);
    linux.set_namespaces(Some(namespaces));
    spec.set_linux(Some(linux));
    spec.save(&path).map_err(said("write config.json"))
}

/// Runs the program, saying precisely why when it cannot.
#[derive(Clone)]
struct Program {
    report: Report,
}

impl Executor for Program {
    fn validate(&self, spec: &Spec) -> Result<(), ExecutorValidationError> {
        let (command, path) = command_of(spec);
        find_executable(command.first().map_or("", String::as_str), path)
            .map(drop)
            .map_err(ExecutorValidationError::ArgValidationError)
    }

    fn exec(&self, spec: &Spec) -> Result<(), ExecutorError> {
        let (command, path) = command_of(spec);
        let why = run_command(command, path);
        self.report.failed(&why);
        sys::exit_now(128)
    }
}

/// An error with everything below it, in one line.
fn chain(error: impl std::error::Error) -> String {
    let mut text = error.to_string();
    let mut below = error.source();
    while let Some(source) = below {
        let more = source.to_string();
        if !text.ends_with(&more) {
            text = format!("{text}: {more}");
        }
        below = source.source();
    }
    text
}
