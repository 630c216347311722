//! Starts a process in an existing PID namespace: another process of a running container (exec), or the
//! first process of a container that shares the namespace. A short-lived child of the shim does this.
//!
//! The process gets the same namespaces, cgroup, user, capabilities, environment and seccomp filter as
//! process 1 (N-164). libcontainer's own exec leaves out the filter, so only parts of libcontainer are used.
//!
//! A process in the namespace with CAP_SYS_PTRACE can stop any other process there, access its root and its
//! descriptors, and run code in it. So the new process is forked last, when it has no access to the node any
//! more. An attacker gains nothing that the container does not have anyway.

use super::cannot;
use super::container::Container;
use super::create::{Report, restore_signals, set_oom_score};
use super::sys::{self, Forked};
use super::users::become_root;
use crate::cgroup::Cgroup;
use crate::error::plain;
use libcontainer::syscall::syscall::create_syscall;
use libcontainer::{capabilities, seccomp};
use nix::sched::{CloneFlags, setns};
use nix::unistd::{Gid, Uid};
use oci_spec::runtime::{Process, Spec};
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

/// PATH of a container that does not set it.
pub(crate) const DEFAULT_PATH: &str =
    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Exit code of a process whose program cannot be executed.
const CANNOT_EXECUTE: i32 = 126;

/// The stdio of the new process.
pub(crate) enum ExecStdio {
    /// The socket to which the terminal's master is sent.
    Terminal(OwnedFd),
    Pipes([OwnedFd; 3]),
}

/// Like [`super::create::start`], for a process in a running container.
pub(crate) fn start(
    container: &Container,
    pid: i32,
    own_users: bool,
    command: Vec<String>,
    stdio: &ExecStdio,
) -> io::Result<OwnedFd> {
    let (read, write) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
    match sys::fork()? {
        Forked::Parent(_) => Ok(read),
        Forked::Child => {
            drop(read);
            let report = Report(write.as_raw_fd());
            let outcome = enter(container, pid, own_users, command, stdio, report);
            match outcome {
                Ok(()) => sys::exit_now(0),
                Err(message) => {
                    report.failed(&message);
                    sys::exit_now(1)
                }
            }
        }
    }
}

fn enter(
    container: &Container,
    pid: i32,
    own_users: bool,
    command: Vec<String>,
    stdio: &ExecStdio,
    report: Report,
) -> Result<(), String> {
    restore_signals();
    set_oom_score(container.plan.oom_score_adj);
    let spec =
        Spec::load(container.directory.join("config.json")).map_err(cannot("read config.json"))?;
    let namespaces =
        ["pid", "cgroup", "mnt"].map(|name| PathBuf::from(format!("/proc/{pid}/ns/{name}")));
    let users = own_users.then(|| PathBuf::from(format!("/proc/{pid}/ns/user")));
    let environment =
        Environment { cgroup: &container.cgroup, namespaces: &namespaces, users, console: false };
    spawn(&environment, &spec, &command, stdio, report)
}

/// The cgroup and the namespaces of a new process.
pub(crate) struct Environment<'a> {
    pub(crate) cgroup: &'a Cgroup,
    /// In the order to enter them. The mount namespace must be last, because it hides the other files.
    pub(crate) namespaces: &'a [PathBuf],
    /// The pod's user namespace, if it has one.
    pub(crate) users: Option<PathBuf>,
    /// Mount the terminal as the container's /dev/console.
    pub(crate) console: bool,
}

/// Moves this process into the namespaces, gives up its privileges and descriptors, and forks the new process.
/// The caller must exit afterwards.
pub(crate) fn spawn(
    environment: &Environment<'_>,
    spec: &Spec,
    command: &[String],
    stdio: &ExecStdio,
    report: Report,
) -> Result<(), String> {
    // No process without CAP_SYS_PTRACE may inspect this one.
    let _ = sys::prctl(libc::PR_SET_DUMPABLE, 0);
    environment.cgroup.join(std::process::id()).map_err(cannot("join the cgroup"))?;
    let open = |path: &PathBuf| File::open(path).map_err(cannot("open the container's namespaces"));
    let namespaces = environment.namespaces.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    let users = environment.users.as_ref().map(open).transpose()?;
    for namespace in namespaces {
        setns(namespace, CloneFlags::empty()).map_err(cannot("enter the container"))?;
    }
    if let Some(users) = users {
        // Last, because the steps before need privileges on the node. From here on this process is root in the pod only.
        setns(users, CloneFlags::CLONE_NEWUSER).map_err(cannot("enter the user namespace"))?;
        become_root()?;
    }
    assume_identity(environment, spec, command, stdio, report)?;
    // A process enters a PID namespace only by fork. The new process must be a child of the shim.
    match sys::fork_with(libc::CLONE_PARENT)
        .map_err(cannot("fork (a custom seccomp profile must allow clone)"))?
    {
        Forked::Parent(pid) => {
            report.pid(pid);
            Ok(())
        }
        Forked::Child => {
            let error = start_session(stdio).err();
            report.failed(&error.unwrap_or_else(|| run_command(command, path_of(spec))));
            sys::exit_now(CANNOT_EXECUTE)
        }
    }
}

/// Gives this process the stdio, working directory, user, capabilities and environment of the new one.
fn assume_identity(
    environment: &Environment<'_>,
    spec: &Spec,
    command: &[String],
    stdio: &ExecStdio,
    report: Report,
) -> Result<(), String> {
    let process = spec.process().as_ref().ok_or("config.json has no process")?;
    match stdio {
        ExecStdio::Terminal(socket) => open_terminal(socket, environment.console)?,
        ExecStdio::Pipes(pipes) => {
            for (number, fd) in pipes.iter().enumerate() {
                nix::unistd::dup2(fd.as_raw_fd(), number as RawFd)
                    .map_err(cannot("set up stdio"))?;
            }
        }
    }
    // Close the shim's descriptors now, not only at the exec.
    close_all_but_stdio(report).map_err(cannot("close descriptors"))?;
    let changed = nix::unistd::chdir(process.cwd());
    drop_privileges(spec, process)?;
    if changed.is_err() {
        // On some network filesystems the user has access although root has not.
        nix::unistd::chdir(process.cwd())
            .map_err(|error| format!("chdir to cwd ({:?}): {error}", process.cwd()))?;
    }
    set_environment(process);
    find_executable(command.first().map_or("", String::as_str), path_of(spec)).map(drop)
}

/// Keeps the report pipe too, which is closed by the exec.
fn close_all_but_stdio(report: Report) -> io::Result<()> {
    let kept = report.0 as u32;
    sys::close_range(3, kept - 1)?;
    sys::close_range(kept + 1, u32::MAX)
}

/// Starts a session, so that a signal reaches the process and its children, and takes the terminal.
fn start_session(stdio: &ExecStdio) -> Result<(), String> {
    let session = nix::unistd::setsid();
    if matches!(stdio, ExecStdio::Terminal(_)) {
        session.map_err(cannot("start a session"))?;
        sys::take_terminal(io::stdin().as_fd()).map_err(cannot("take the terminal"))?;
    }
    Ok(())
}

/// The order is that of libcontainer. Without no_new_privs, installing the filter needs privileges, so these
/// are dropped after it. With no_new_privs the filter is installed last.
fn drop_privileges(spec: &Spec, process: &Process) -> Result<(), String> {
    let syscall = create_syscall();
    let user = process.user();
    let groups: Vec<Gid> =
        user.additional_gids().iter().flatten().map(|group| Gid::from_raw(*group)).collect();
    let no_new_privs = process.no_new_privileges() == Some(true);
    if no_new_privs {
        sys::prctl(libc::PR_SET_NO_NEW_PRIVS, 1).map_err(cannot("set no_new_privs"))?;
    }
    let filter = spec.linux().as_ref().and_then(|linux| linux.seccomp().as_ref());
    let apply_filter = || match filter {
        Some(filter) => seccomp::initialize_seccomp(filter)
            .map(drop)
            .map_err(|error| format!("cannot apply the seccomp profile: {error}")),
        None => Ok(()),
    };
    syscall.set_groups(&groups).map_err(cannot("set groups"))?;
    syscall
        .set_id(Uid::from_raw(user.uid()), Gid::from_raw(user.gid()))
        .map_err(cannot("change to the container's user"))?;
    if !no_new_privs {
        apply_filter()?;
    }
    capabilities::reset_effective(syscall.as_ref()).map_err(cannot("reset capabilities"))?;
    if let Some(allowed) = process.capabilities() {
        capabilities::drop_privileges(allowed, syscall.as_ref())
            .map_err(cannot("drop capabilities"))?;
    }
    if no_new_privs {
        apply_filter()?;
    }
    Ok(())
}

/// Opens a terminal of the container's /dev/pts, so that programs in the container find it.
fn open_terminal(socket: &OwnedFd, console: bool) -> Result<(), String> {
    use nix::fcntl::{OFlag, open};
    use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
    let master = nix::pty::posix_openpt(OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC)
        .map_err(cannot("open a terminal"))?;
    nix::pty::grantpt(&master)
        .and_then(|()| nix::pty::unlockpt(&master))
        .map_err(cannot("open a terminal"))?;
    let name = nix::pty::ptsname_r(&master).map_err(cannot("open a terminal"))?;
    let flags = OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let slave = open(name.as_str(), flags, nix::sys::stat::Mode::empty())
        .map(sys::own)
        .map_err(cannot("open a terminal"))?;
    if console {
        mount_as_console(&name).map_err(cannot("mount /dev/console"))?;
    }
    let descriptors = [master.as_raw_fd()];
    sendmsg::<()>(
        socket.as_raw_fd(),
        &[io::IoSlice::new(b"t")],
        &[ControlMessage::ScmRights(&descriptors)],
        MsgFlags::empty(),
        None,
    )
    .map_err(cannot("send the terminal to the agent"))?;
    for number in 0..3 {
        nix::unistd::dup2(slave.as_raw_fd(), number).map_err(cannot("set up stdio"))?;
    }
    Ok(())
}

/// As libcontainer does for a container's terminal.
fn mount_as_console(terminal: &str) -> io::Result<()> {
    use nix::mount::{MsFlags, mount};
    const CONSOLE: &str = "/dev/console";
    File::options().create(true).truncate(false).write(true).open(CONSOLE)?;
    Ok(mount(Some(terminal), CONSOLE, None::<&str>, MsFlags::MS_BIND, None::<&str>)?)
}

#[allow(unsafe_code, reason = "this process has one thread and is about to exec")]
fn set_environment(process: &Process) {
    for (name, _) in std::env::vars_os() {
        // SAFETY: there is no other thread that could read the environment.
        unsafe { std::env::remove_var(name) };
    }
    for variable in process.env().iter().flatten() {
        if let Some((name, value)) = variable.split_once('=') {
            // SAFETY: as above.
            unsafe { std::env::set_var(name, value) };
        }
    }
}

/// The command of a container and its PATH.
pub(crate) fn command_of(spec: &Spec) -> (&[String], &str) {
    let command = spec.process().as_ref().and_then(|process| process.args().as_deref());
    (command.unwrap_or_default(), path_of(spec))
}

fn path_of(spec: &Spec) -> &str {
    spec.process()
        .as_ref()
        .and_then(|process| process.env().as_ref())
        .and_then(|env| env.iter().find_map(|variable| variable.strip_prefix("PATH=")))
        .unwrap_or(DEFAULT_PATH)
}

/// Finds the executable file of a command. Errors have the texts of runc.
pub(crate) fn find_executable(name: &str, path: &str) -> Result<PathBuf, String> {
    if name.contains('/') {
        let file = PathBuf::from(name);
        return match std::fs::metadata(&file) {
            Ok(found) if found.is_dir() => Err(format!("exec: {name:?}: is a directory")),
            Ok(found) if found.permissions().mode() & 0o111 == 0 => {
                Err(format!("exec: {name:?}: permission denied"))
            }
            Ok(_) => Ok(file),
            Err(error) => Err(format!("exec: {name:?}: stat {name}: {}", plain(&error))),
        };
    }
    path.split(':')
        .map(|directory| {
            PathBuf::from(if directory.is_empty() { "." } else { directory }).join(name)
        })
        .find(|file| {
            !name.is_empty()
                && std::fs::metadata(file)
                    .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
        })
        .ok_or_else(|| format!("exec: {name:?}: executable file not found in $PATH"))
}

/// Executes the program. Returns only if that fails, with the error.
pub(crate) fn run_command(command: &[String], path: &str) -> String {
    let name = command.first().map_or("", String::as_str);
    let file = match find_executable(name, path) {
        Ok(file) => file,
        Err(error) => return error,
    };
    let Ok(program) = CString::new(file.to_string_lossy().as_bytes()) else {
        return format!("exec: {name:?}: invalid argument");
    };
    let arguments: Result<Vec<CString>, _> =
        command.iter().map(|argument| CString::new(argument.as_bytes())).collect();
    let Ok(arguments) = arguments else {
        return format!("exec: {name:?}: invalid argument");
    };
    match nix::unistd::execv(&program, &arguments) {
        Ok(never) => match never {},
        Err(error) => format!("exec {}: {}", file.display(), plain(&io::Error::from(error))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// N-45: the error texts of runc, which users search for.
    #[test]
    fn errors_for_missing_and_invalid_commands() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("plain"), "").unwrap();
        let path = directory.path().to_str().unwrap();
        let error = |name: &str| find_executable(name, path).unwrap_err();
        assert_eq!(error("nope"), "exec: \"nope\": executable file not found in $PATH");
        assert_eq!(error("plain"), "exec: \"plain\": executable file not found in $PATH");
        assert_eq!(error("/nope"), "exec: \"/nope\": stat /nope: no such file or directory");
        assert_eq!(error("/"), "exec: \"/\": is a directory");
        let file = format!("{path}/plain");
        assert_eq!(error(&file), format!("exec: {file:?}: permission denied"));
        assert_eq!(error(""), "exec: \"\": executable file not found in $PATH");
    }
}
