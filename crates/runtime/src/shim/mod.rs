//! The shim: one small process for each sandbox, the landfall binary in a mode of its own.
//!
//!     agent ⇄ socket ⇄ shim ──fork──▶ create (libcontainer) ──▶ process 1 of a container
//!                        │  ──fork──▶ enter ─────────────────▶ one more process in it (exec)
//!                        └─ logs, stdin, terminals, exit codes
//!
//! It lives in the pod's namespaces, so that they live as long as it does and whatever it starts is
//! born in them. It is the parent of every process it starts and of their orphans. It has one thread
//! and no async runtime, because there is one of it for every pod. Agents come and go; an exit code
//! is on disk before any of them is told.
//!
//! Not here: what a container may do (`native` decides and writes it down), cgroup limits, images.

mod connection;
mod container;
mod create;
mod enter;
mod log;
mod memory;
pub(crate) mod message;
mod pause;
mod root;
mod serve;
mod sys;

pub(crate) use container::{connect, receive_descriptor};
pub(crate) use root::{make_inside, open_in};
pub(crate) use sys::{pidfd, set_terminal_size};

use message::{Pod, Told, encode};
use nix::sched::{CloneFlags, setns, unshare};
use std::fs;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;

/// `landfall shim <directory>`: how the binary is asked to be a shim.
pub const MODE: &str = "shim";

/// Must be the first thing in `main`: when this process was started to be a shim, it is one, and
/// the answer is how it ended. Otherwise None, and nothing has happened.
pub fn run_if_asked() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next()? != MODE {
        return None;
    }
    let directory = arguments.next()?;
    Some(run(Path::new(&directory)))
}

fn run(directory: &Path) -> ExitCode {
    // The agent that started this process is at the other end of its stdin.
    let mut agent = UnixStream::from(sys::own(0));
    let outcome = serve::Shim::prepare(directory).and_then(|shim| {
        let agent =
            agent.try_clone().map_err(|error| format!("cannot keep the socket: {error}"))?;
        shim.run(agent)
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            let _ = agent.write_all(&encode(&Told::Broken { message }));
            ExitCode::FAILURE
        }
    }
}

/// Becomes a leader of its own session, parent of orphans, and enters the pod's namespaces.
fn settle(pod: &Pod) -> Result<(), String> {
    let _ = nix::unistd::setsid();
    let _ = nix::unistd::setgroups(&[]);
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o022));
    sys::prctl(libc::PR_SET_CHILD_SUBREAPER, 1).map_err(said("become the parent of orphans"))?;
    // Where the kernel forbids it the shim is an ordinary victim; the agent says so once.
    let _ = fs::write("/proc/self/oom_score_adj", "-998");
    // First, so that whatever it starts is not left in the agent's. The agent has said if there is none.
    if let Some(group) = &pod.group {
        let _ = crate::cgroup::join_group(group);
    }
    if let Some(network) = &pod.network {
        let namespace = fs::File::open(network)
            .map_err(|error| format!("cannot open {}: {error}", network.display()))?;
        setns(namespace, CloneFlags::CLONE_NEWNET)
            .map_err(|error| format!("cannot enter {}: {error}", network.display()))?;
    }
    let mut own = CloneFlags::empty();
    if pod.own_ipc {
        own |= CloneFlags::CLONE_NEWIPC;
    }
    if pod.hostname.is_some() {
        own |= CloneFlags::CLONE_NEWUTS;
    }
    unshare(own).map_err(said("make the pod's namespaces"))?;
    if let Some(hostname) = &pod.hostname {
        nix::unistd::sethostname(hostname).map_err(said("set the host name"))?;
    }
    for (name, value) in &pod.sysctls {
        set_sysctl(name, value)?;
    }
    Ok(())
}

/// N-131: both `.` and `/` separate; the namespaces are those of this process.
fn set_sysctl(name: &str, value: &str) -> Result<(), String> {
    // With a slash anywhere, slashes separate and dots belong to names (`net/ipv4/conf/eth0.1/…`).
    let path = if name.contains('/') { name.to_owned() } else { name.replace('.', "/") };
    if path.split('/').any(|part| part.is_empty() || part == "..") {
        return Err(format!("sysctl {name:?} is not a name"));
    }
    fs::write(Path::new("/proc/sys").join(&path), value)
        .map_err(|error| format!("cannot set sysctl {name:?} to {value:?}: {error}"))
}

fn said<E: std::fmt::Display>(doing: &'static str) -> impl FnOnce(E) -> String {
    move |error| format!("cannot {doing}: {error}")
}
