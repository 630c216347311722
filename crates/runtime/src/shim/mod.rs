//! The shim: one small process per sandbox, which is the landfall binary run as `landfall shim`.
//!
//!     agent ⇄ socket ⇄ shim ──fork──▶ create (libcontainer) ──▶ process 1 of a container
//!                        │  ──fork──▶ enter ─────────────────▶ one more process in it (exec)
//!                        └─ logs, stdin, terminals, exit codes
//!
//! The shim is in the pod's namespaces. They exist as long as the shim, and its children start in them. It is
//! the parent of all processes that it starts, and of their orphans. To be small it has one thread and no
//! async runtime. Agents connect and disconnect; the shim writes an exit code to disk before it reports it.
//!
//! Start reading at `serve.rs`. Not here: what a container may do (`native` writes it to `config.json` and
//! `plan.json`), cgroup limits, images.

mod children;
mod connection;
mod container;
mod create;
mod enter;
mod log;
mod memory;
pub(crate) mod message;
mod pause;
mod requests;
mod root;
mod rotation;
mod serve;
mod sys;
mod users;

pub(crate) use container::{connect, receive_descriptor};
pub(crate) use root::{create_inside, open_in};
pub(crate) use sys::{can_map_users, pidfd, set_terminal_size};

use message::{ShimConfig, ShimEvent, encode};
use nix::sched::{CloneFlags, setns, unshare};
use std::fs;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;
use users::Users;

/// The first argument of a shim: `landfall shim <directory> [limit of open files]`.
pub const SUBCOMMAND: &str = "shim";

/// Must be called first in `main`. If the arguments request a shim, runs it and returns its exit code;
/// otherwise returns `None`.
pub fn run_if_asked() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next()? != SUBCOMMAND {
        return None;
    }
    let directory = arguments.next()?;
    let files = arguments.next().and_then(|limit| limit.to_str()?.parse().ok());
    if let Some(Err(error)) = files.map(crate::descriptors::restore) {
        eprintln!("shim: cannot restore the limit of open files: {error}");
    }
    Some(run(Path::new(&directory)))
}

fn run(directory: &Path) -> ExitCode {
    // The kernel's name for this process is a descriptor number, because the agent starts it by descriptor.
    if let Some(name) = std::env::args_os().next().as_deref().and_then(short_name) {
        let _ = sys::set_name(&name);
    }
    // Stdin is a socket to the agent that started this process.
    let mut agent = UnixStream::from(sys::own(0));
    let outcome = serve::Shim::prepare(directory).and_then(|shim| {
        let agent = agent
            .try_clone()
            .map_err(|error| format!("cannot duplicate the agent's socket: {error}"))?;
        shim.run(agent)
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            let _ = agent.write_all(&encode(&ShimEvent::Broken { message }));
            ExitCode::FAILURE
        }
    }
}

fn short_name(program: &std::ffi::OsStr) -> Option<std::ffi::CString> {
    use std::os::unix::ffi::OsStrExt;
    std::ffi::CString::new(Path::new(program).file_name()?.as_bytes()).ok()
}

/// Becomes a session leader and the parent of orphans, and enters or creates the pod's namespaces. Returns the
/// pod's users if it has a user namespace.
fn enter_namespaces(config: &ShimConfig) -> Result<Option<Users>, String> {
    let _ = nix::unistd::setsid();
    let _ = nix::unistd::setgroups(&[]);
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o022));
    sys::prctl(libc::PR_SET_CHILD_SUBREAPER, 1).map_err(cannot("become the parent of orphans"))?;
    // If the kernel forbids this, the OOM killer treats the shim like any process; the agent logs that once.
    let _ = fs::write("/proc/self/oom_score_adj", "-998");
    // Before anything is started, because children inherit the cgroup. The agent logs if there is none.
    if let Some(group) = &config.group {
        let _ = crate::cgroup::join_group(group);
    }
    let mut users = None;
    if let Some(network) = &config.network {
        let namespace = fs::File::open(network)
            .map_err(|error| format!("cannot open {}: {error}", network.display()))?;
        users = config.users.map(|first| Users::of_network(&namespace, first)).transpose()?;
        setns(namespace, CloneFlags::CLONE_NEWNET)
            .map_err(|error| format!("cannot enter {}: {error}", network.display()))?;
    }
    if config.users.is_some() && users.is_none() {
        return Err("a pod with a user namespace needs its own network namespace".into());
    }
    let mut new = CloneFlags::empty();
    if config.own_ipc {
        new |= CloneFlags::CLONE_NEWIPC;
    }
    if config.hostname.is_some() {
        new |= CloneFlags::CLONE_NEWUTS;
    }
    match &users {
        Some(users) => users.unshare(new, config)?,
        None => {
            unshare(new).map_err(cannot("create the pod's namespaces"))?;
            configure_namespaces(config)?;
        }
    }
    Ok(users)
}

/// Sets host name and sysctls in the namespaces of this process.
fn configure_namespaces(config: &ShimConfig) -> Result<(), String> {
    if let Some(hostname) = &config.hostname {
        nix::unistd::sethostname(hostname).map_err(cannot("set the host name"))?;
    }
    for (name, value) in &config.sysctls {
        set_sysctl(name, value)?;
    }
    Ok(())
}

/// Sets a sysctl in the namespaces of this process. N-131: both `.` and `/` may separate its parts.
fn set_sysctl(name: &str, value: &str) -> Result<(), String> {
    // If the name has a slash, slashes separate and dots are part of names (`net/ipv4/conf/eth0.1/…`).
    let path = if name.contains('/') { name.to_owned() } else { name.replace('.', "/") };
    if path.split('/').any(|part| part.is_empty() || part == "..") {
        return Err(format!("{name:?} is not a valid sysctl name"));
    }
    fs::write(Path::new("/proc/sys").join(&path), value)
        .map_err(|error| format!("cannot set sysctl {name:?} to {value:?}: {error}"))
}

/// For `map_err`: `cannot <doing>: <error>`.
fn cannot<E: std::fmt::Display>(doing: &'static str) -> impl FnOnce(E) -> String {
    move |error| format!("cannot {doing}: {error}")
}
