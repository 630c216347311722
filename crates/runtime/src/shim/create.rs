//! Starts a container from its prepared directory, with libcontainer, in a short-lived helper process. The
//! helper exits as soon as process 1 runs. Process 1 is a child of the shim, not of the helper.
//!
//! The root filesystem is mounted in the helper's own mount namespace, which the container's namespace is
//! copied from. The mount exists nowhere else and disappears with the container, even after a crash.
//!
//! If containers share a PID namespace, libcontainer's process must not run in it: this process has the
//! node's root and all capabilities, and another container with CAP_SYS_PTRACE could take it over. So
//! libcontainer creates the container outside. Its process waits there, and `enter` starts the container's
//! process 1 inside.

use super::cannot;
use super::container::{Container, Stdio, connect};
use super::enter::{Environment, ExecStdio, command_of, find_executable, run_command, spawn};
use super::sys::{self, Forked};
use super::users::Users;
use libcontainer::container::builder::ContainerBuilder;
use libcontainer::syscall::syscall::SyscallType;
use libcontainer::workload::{Executor, ExecutorError, ExecutorValidationError};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use oci_spec::runtime::Spec;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

/// mount(2) accepts one page of options. With more layers, short symbolic links replace their paths.
const MOUNT_OPTIONS_MAX: usize = 4000;

/// Starts the helper process. It writes a line `P<pid>` or `E<error>` to the returned pipe. The pipe is closed
/// when the container's program runs or the start has failed.
pub(crate) fn start(
    container: &Container,
    stdio: Stdio,
    shared: Option<&Shared>,
    users: Option<&Users>,
) -> io::Result<OwnedFd> {
    let (read, write) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
    match sys::fork()? {
        Forked::Parent(_) => Ok(read),
        Forked::Child => {
            drop(read);
            let report = Report(write.as_raw_fd());
            match create(container, &stdio, shared, users, report) {
                Ok(()) => sys::exit_now(0),
                Err(message) => {
                    report.failed(&message);
                    sys::exit_now(1)
                }
            }
        }
    }
}

/// A PID namespace that a container joins.
pub(crate) struct Shared {
    /// A process in the namespace.
    pub(crate) pid: i32,
    /// Where its /proc is mounted on the node. `None`: use the /proc that this process sees.
    pub(crate) proc: Option<PathBuf>,
}

/// The write end of the report pipe. All processes up to the container's program inherit this descriptor.
#[derive(Clone, Copy)]
pub(crate) struct Report(pub(crate) RawFd);

impl Report {
    fn line(self, line: &str) {
        use std::os::fd::BorrowedFd;
        #[allow(
            unsafe_code,
            reason = "the descriptor is open in this process for as long as it lives"
        )]
        // SAFETY: the children of the shim do not close it before they exit or exec.
        let pipe = unsafe { BorrowedFd::borrow_raw(self.0) };
        let _ = nix::unistd::write(pipe, line.as_bytes());
    }

    pub(crate) fn pid(self, pid: i32) {
        self.line(&format!("P{pid}\n"));
    }

    pub(crate) fn failed(self, error: &str) {
        self.line(&format!("E{}\n", error.replace('\n', " ")));
    }
}

fn create(
    container: &Container,
    stdio: &Stdio,
    shared: Option<&Shared>,
    users: Option<&Users>,
    report: Report,
) -> Result<(), String> {
    let _ = sys::prctl(libc::PR_SET_DUMPABLE, 0);
    restore_signals();
    for (number, fd) in stdio.0.iter().enumerate() {
        nix::unistd::dup2(fd.as_raw_fd(), number as RawFd).map_err(cannot("set up stdio"))?;
    }
    set_oom_score(container.plan.oom_score_adj);
    // libcontainer joins cgroups with controllers only. On hybrid machines, join the v2 tree here.
    container.cgroup.join_v2_of_hybrid(std::process::id()).map_err(cannot("join the cgroup"))?;
    unshare_mounts(container)?;
    let spec = shared.map(|shared| bind_shared_proc(&container.directory, shared)).transpose()?;
    let staged = users.map(|users| users.stage(container)).transpose()?;
    let (root, layers) = match staged {
        Some(staged) => (staged.root, staged.layers),
        None => (container.directory.join("rootfs"), container.plan.layers.clone()),
    };
    mount_root(&container.directory, &layers, &root)?;
    super::root::fill(&root, &container.plan, users.map(|users| users.first))?;
    let socket = container.plan.terminal.then(|| container.directory.join("console.sock"));
    match (shared, spec) {
        (Some(shared), Some(spec)) => {
            create_in_shared_namespace(container, socket, shared, &spec, users.is_some(), report)
        }
        _ => {
            let mut built = build(container, socket, report)?;
            report.pid(pid_of(&built)?);
            built.start().map_err(chain)
        }
    }
}

/// Lets libcontainer create the container outside of the shared PID namespace, and starts process 1 inside it.
fn create_in_shared_namespace(
    container: &Container,
    socket: Option<PathBuf>,
    shared: &Shared,
    spec: &Spec,
    own_users: bool,
    report: Report,
) -> Result<(), String> {
    let stdio = match socket {
        Some(socket) => {
            ExecStdio::Terminal(connect(&socket).map_err(cannot("connect to the console"))?.into())
        }
        None => ExecStdio::Pipes(current_stdio().map_err(cannot("set up stdio"))?),
    };
    let built = build(container, None, report)?;
    let waiting = pid_of(&built)?;
    let namespaces = [
        format!("/proc/{}/ns/pid", shared.pid),
        format!("/proc/{waiting}/ns/cgroup"),
        format!("/proc/{waiting}/ns/mnt"),
    ]
    .map(PathBuf::from);
    let users = own_users.then(|| PathBuf::from(format!("/proc/{waiting}/ns/user")));
    let environment =
        Environment { cgroup: &container.cgroup, namespaces: &namespaces, users, console: true };
    let (command, _) = command_of(spec);
    let (entered, entering) =
        nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC).map_err(cannot("create a pipe"))?;
    match sys::fork_with(libc::CLONE_PARENT).map_err(cannot("fork"))? {
        Forked::Child => {
            if let Err(message) = spawn(&environment, spec, command, &stdio, report) {
                report.failed(&message);
            }
            sys::exit_now(0)
        }
        Forked::Parent(_) => {
            drop(entering);
            // The child closes the pipe when it is in the namespaces. They then no longer need the process
            // that waits in them.
            let _ = io::Read::read(&mut fs::File::from(entered), &mut [0]);
            let _ = sys::kill(waiting, libc::SIGKILL);
            Ok(())
        }
    }
}

/// Copies of descriptors 0, 1 and 2.
fn current_stdio() -> io::Result<[OwnedFd; 3]> {
    use std::os::fd::AsFd;
    Ok([
        io::stdin().as_fd().try_clone_to_owned()?,
        io::stdout().as_fd().try_clone_to_owned()?,
        io::stderr().as_fd().try_clone_to_owned()?,
    ])
}

fn build(
    container: &Container,
    console: Option<PathBuf>,
    report: Report,
) -> Result<libcontainer::container::Container, String> {
    ContainerBuilder::new(container.id.clone(), SyscallType::default())
        .with_executor(Program { report })
        .with_root_path(container.directory.join("state"))
        .map_err(chain)?
        .with_console_socket(console)
        .as_init(&container.directory)
        .with_systemd(false)
        .with_detach(true)
        .as_sibling(true)
        .build()
        .map_err(chain)
}

fn pid_of(built: &libcontainer::container::Container) -> Result<i32, String> {
    built.pid().map(|pid| pid.as_raw()).ok_or_else(|| "the container has no process".to_owned())
}

/// The shim blocks signals to read them from a descriptor, and ignores SIGPIPE. Programs must not inherit that.
pub(crate) fn restore_signals() {
    use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal, signal, sigprocmask};
    let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None);
    #[allow(unsafe_code, reason = "the default disposition runs no code of ours")]
    // SAFETY: SIG_DFL is always sound.
    let _ = unsafe { signal(Signal::SIGPIPE, SigHandler::SigDfl) };
}

/// Without CAP_SYS_RESOURCE the kernel may forbid a lower value; the parent's value then remains.
pub(crate) fn set_oom_score(score: i32) {
    let _ = fs::write("/proc/self/oom_score_adj", score.to_string());
}

/// Creates a mount namespace for this process, unless the container shares a volume with the node.
fn unshare_mounts(container: &Container) -> Result<(), String> {
    if !container.plan.visible_root {
        unshare(CloneFlags::CLONE_NEWNS).map_err(cannot("create a mount namespace"))?;
        let slave = MsFlags::MS_SLAVE | MsFlags::MS_REC;
        mount(None::<&str>, "/", None::<&str>, slave, None::<&str>)
            .map_err(cannot("stop mount propagation to the node"))?;
        stage(&container.plan.staged)?;
    }
    Ok(())
}

fn mount_root(directory: &Path, layers: &[PathBuf], target: &Path) -> Result<(), String> {
    let mut options = overlay_options(directory, layers.iter().map(|l| l.display()));
    if options.len() > MOUNT_OPTIONS_MAX {
        let links = link_layers(directory, layers).map_err(cannot("link layers"))?;
        options = overlay_options(directory, links.iter());
    }
    let overlay = |options: &str| {
        mount(Some("overlay"), target, Some("overlay"), MsFlags::empty(), Some(options))
    };
    // A container's writable layer need not survive a power loss. Old kernels do not support `volatile`.
    overlay(&format!("{options},volatile"))
        .or_else(|_| overlay(&options))
        .map_err(|error| format!("cannot mount the root filesystem: {error}"))
}

/// These mounts are in the container's mount namespace and disappear with it.
fn stage(staged: &[(PathBuf, PathBuf)]) -> Result<(), String> {
    let (bind, private) =
        (MsFlags::MS_BIND | MsFlags::MS_REC, MsFlags::MS_PRIVATE | MsFlags::MS_REC);
    for (source, target) in staged {
        mount(Some(source), target, None::<&str>, bind, None::<&str>)
            .and_then(|()| mount(None::<&str>, target, None::<&str>, private, None::<&str>))
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

/// Creates a symbolic link with a short name for each layer, in a new working directory.
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

/// Replaces the container's /proc mount in `config.json` by a bind mount of the shared namespace's /proc.
/// libcontainer would mount the /proc of its own PID namespace. Only the shim can do this: the namespace did not
/// exist when the agent wrote the configuration.
fn bind_shared_proc(directory: &Path, shared: &Shared) -> Result<Spec, String> {
    let source = match &shared.proc {
        Some(proc) => proc.clone(),
        None => copy_proc_mount(shared.pid, &directory.join("proc"))?,
    };
    let path = directory.join("config.json");
    let mut spec = Spec::load(&path).map_err(cannot("read config.json"))?;
    let mut mounts = spec.mounts().clone().unwrap_or_default();
    for mount in mounts.iter_mut().filter(|mount| mount.destination() == Path::new("/proc")) {
        if mount.typ().as_deref() == Some("proc") {
            mount.set_typ(Some("bind".into()));
            mount.set_source(Some(source.clone()));
            let options = ["bind", "rprivate", "nosuid", "noexec", "nodev"];
            mount.set_options(Some(options.map(str::to_owned).to_vec()));
        }
    }
    spec.set_mounts(Some(mounts));
    if let Some(process) = spec.process_mut() {
        // Process 1 inside the namespace opens the terminal, not libcontainer.
        process.set_terminal(Some(false));
    }
    spec.save(&path).map_err(cannot("write config.json"))?;
    Ok(spec)
}

/// Copies the /proc mount of another container to `target`.
fn copy_proc_mount(pid: i32, target: &Path) -> Result<PathBuf, String> {
    use nix::sched::setns;
    use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};
    let open = |path: String| {
        fs::File::open(path).map_err(cannot("open the target container's mount namespace"))
    };
    let (own, other) = (open("/proc/self/ns/mnt".into())?, open(format!("/proc/{pid}/ns/mnt"))?);
    setns(&other, CloneFlags::CLONE_NEWNS).map_err(cannot("enter the target container"))?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let copy = open_tree(rustix::fs::CWD, "/proc", flags);
    setns(&own, CloneFlags::CLONE_NEWNS).map_err(cannot("leave the target container"))?;
    let copy = copy.map_err(cannot("copy the target container's /proc"))?;
    let found =
        nix::sys::statfs::fstatfs(&copy).map_err(cannot("inspect the target container's /proc"))?;
    if found.filesystem_type() != nix::sys::statfs::PROC_SUPER_MAGIC {
        return Err("the target container's /proc is not a proc file system".into());
    }
    fs::create_dir_all(target).map_err(cannot("create a directory for /proc"))?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    move_mount(&copy, "", rustix::fs::CWD, target, flags).map_err(cannot("mount /proc"))?;
    Ok(target.to_owned())
}

/// Executes the container's program, and reports why if that fails.
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
        let error = run_command(command, path);
        self.report.failed(&error);
        sys::exit_now(128)
    }
}

/// An error and all its sources in one line.
fn chain(error: impl std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let more = source.to_string();
        if !text.ends_with(&more) {
            text = format!("{text}: {more}");
        }
        next = source.source();
    }
    text
}
