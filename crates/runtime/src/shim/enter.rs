//! One more process in a running container (exec), started by a short-lived child of the shim.
//!
//! It gets everything process 1 was given: namespaces, cgroup, user, capabilities, environment and
//! the system call filter (N-164). libcontainer can do this too, but leaves the filter out, so only
//! its parts are used here.

use super::container::Container;
use super::create::{Report, restore_signals, set_oom_score};
use super::said;
use super::sys::{self, Forked};
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

/// Where programs are looked for when a container says nothing.
pub(crate) const DEFAULT_PATH: &str =
    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What the new process is born with: a socket to send the terminal's master to, or its stdio.
pub(crate) enum Ends {
    Terminal(OwnedFd),
    Pipes([OwnedFd; 3]),
}

/// As [`super::create::start`], for a process in a container that runs.
pub(crate) fn start(
    container: &Container,
    pid: i32,
    command: Vec<String>,
    ends: &Ends,
) -> io::Result<OwnedFd> {
    let (read, write) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
    match sys::fork()? {
        Forked::Parent(_) => Ok(read),
        Forked::Child => {
            drop(read);
            let report = Report(write.as_raw_fd());
            let outcome = enter(container, pid, command, ends, report);
            if let Err(message) = outcome {
                report.failed(&message);
            }
            sys::exit_now(1)
        }
    }
}

fn enter(
    container: &Container,
    pid: i32,
    command: Vec<String>,
    ends: &Ends,
    report: Report,
) -> Result<(), String> {
    // What runs in the container must not look into this process, which is not yet one of its own.
    let _ = sys::prctl(libc::PR_SET_DUMPABLE, 0);
    restore_signals();
    set_oom_score(container.plan.oom_score_adj);
    let spec =
        Spec::load(container.directory.join("config.json")).map_err(said("read config.json"))?;
    container.cgroup.join(std::process::id()).map_err(said("join the cgroup"))?;
    let namespaces = ["pid", "cgroup", "mnt"].map(|name| {
        File::open(format!("/proc/{pid}/ns/{name}")).map_err(said("find the container"))
    });
    for namespace in namespaces {
        setns(namespace?, CloneFlags::empty()).map_err(said("enter the container"))?;
    }
    // Only children are born into a process namespace; this one is to be the shim's.
    match sys::fork_with(libc::CLONE_PARENT).map_err(said("fork"))? {
        Forked::Parent(pid) => {
            report.pid(pid);
            sys::exit_now(0)
        }
        Forked::Child => {
            let why = become_process(&spec, &command, ends).err();
            report.failed(&why.unwrap_or_else(|| run_command(&command, path_of(&spec))));
            sys::exit_now(126)
        }
    }
}

fn become_process(spec: &Spec, command: &[String], ends: &Ends) -> Result<(), String> {
    let process = spec.process().as_ref().ok_or("config.json names no process")?;
    nix::unistd::setsid().map_err(said("make a session"))?;
    match ends {
        Ends::Terminal(socket) => open_terminal(socket)?,
        Ends::Pipes(pipes) => {
            for (number, fd) in pipes.iter().enumerate() {
                nix::unistd::dup2(fd.as_raw_fd(), number as RawFd).map_err(said("set up stdio"))?;
            }
        }
    }
    let moved = nix::unistd::chdir(process.cwd());
    take_identity(spec, process)?;
    if moved.is_err() {
        // What root may not enter (a network filesystem), the user perhaps may.
        nix::unistd::chdir(process.cwd())
            .map_err(|error| format!("chdir to cwd ({:?}): {error}", process.cwd()))?;
    }
    set_environment(process);
    find_executable(command.first().map_or("", String::as_str), path_of(spec))?;
    sys::close_on_exec_from(3).map_err(said("close descriptors"))
}

/// The order is libcontainer's: without no_new_privs the filter needs privileges that are dropped
/// after it; with it, it comes last.
fn take_identity(spec: &Spec, process: &Process) -> Result<(), String> {
    let syscall = create_syscall();
    let user = process.user();
    let groups: Vec<Gid> =
        user.additional_gids().iter().flatten().map(|group| Gid::from_raw(*group)).collect();
    let no_new_privs = process.no_new_privileges() == Some(true);
    if no_new_privs {
        sys::prctl(libc::PR_SET_NO_NEW_PRIVS, 1).map_err(said("set no_new_privs"))?;
    }
    let filter = spec.linux().as_ref().and_then(|linux| linux.seccomp().as_ref());
    let apply_filter = || match filter {
        Some(filter) => seccomp::initialize_seccomp(filter)
            .map(drop)
            .map_err(|error| format!("cannot apply the seccomp profile: {error}")),
        None => Ok(()),
    };
    syscall.set_groups(&groups).map_err(said("set groups"))?;
    syscall
        .set_id(Uid::from_raw(user.uid()), Gid::from_raw(user.gid()))
        .map_err(said("become the container's user"))?;
    if !no_new_privs {
        apply_filter()?;
    }
    capabilities::reset_effective(syscall.as_ref()).map_err(said("reset capabilities"))?;
    if let Some(allowed) = process.capabilities() {
        capabilities::drop_privileges(allowed, syscall.as_ref())
            .map_err(said("drop capabilities"))?;
    }
    if no_new_privs {
        apply_filter()?;
    }
    Ok(())
}

/// The terminal is one of the container's own, so that programs in it can find it.
fn open_terminal(socket: &OwnedFd) -> Result<(), String> {
    use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
    let pty = nix::pty::openpty(None, None).map_err(said("open a terminal"))?;
    let descriptors = [pty.master.as_raw_fd()];
    sendmsg::<()>(
        socket.as_raw_fd(),
        &[io::IoSlice::new(b"t")],
        &[ControlMessage::ScmRights(&descriptors)],
        MsgFlags::empty(),
        None,
    )
    .map_err(said("hand over the terminal"))?;
    sys::take_terminal(pty.slave.as_fd()).map_err(said("take the terminal"))?;
    for number in 0..3 {
        nix::unistd::dup2(pty.slave.as_raw_fd(), number).map_err(said("set up stdio"))?;
    }
    Ok(())
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

/// The command of a container, and where to look for it.
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

/// Which file a command names, or why there is none, in the words people know.
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

/// Becomes the program. Returns only to say why it could not.
pub(crate) fn run_command(command: &[String], path: &str) -> String {
    let name = command.first().map_or("", String::as_str);
    let file = match find_executable(name, path) {
        Ok(file) => file,
        Err(why) => return why,
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

    /// N-45: the texts people search for.
    #[test]
    fn a_command_that_cannot_be_run_says_why() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("plain"), "").unwrap();
        let path = directory.path().to_str().unwrap();
        let why = |name: &str| find_executable(name, path).unwrap_err();
        assert_eq!(why("nope"), "exec: \"nope\": executable file not found in $PATH");
        assert_eq!(why("plain"), "exec: \"plain\": executable file not found in $PATH");
        assert_eq!(why("/nope"), "exec: \"/nope\": stat /nope: no such file or directory");
        assert_eq!(why("/"), "exec: \"/\": is a directory");
        let file = format!("{path}/plain");
        assert_eq!(why(&file), format!("exec: {file:?}: permission denied"));
        assert_eq!(why(""), "exec: \"\": executable file not found in $PATH");
    }
}
