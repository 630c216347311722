//! The pause process: process 1 of a PID namespace that a pod's containers share (N-123). It reaps orphans.
//!
//! Containers see this process. One with CAP_SYS_PTRACE can inspect it and even run code in it, so it has no
//! privileges: an empty read-only root in its own mount namespace, no descriptors, no capabilities, a user that
//! owns no files, and a seccomp filter for the few system calls of its loop.

use super::cannot;
use super::sys::{self, Forked};
use libcontainer::seccomp::initialize_seccomp;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};
use nix::unistd::{Gid, Uid, chdir, pivot_root, setgroups, setresgid, setresuid};
use oci_spec::runtime::LinuxSeccomp;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};

/// The user of pause images. It owns no files.
const NOBODY: u32 = 65535;
/// The system calls of its loop, and `close` for the pipe that reports success.
const ALLOWED_CALLS: &[&str] = &[
    "rt_sigtimedwait",
    "rt_sigtimedwait_time64",
    "wait4",
    "waitid",
    "rt_sigreturn",
    "restart_syscall",
    "close",
    "exit",
    "exit_group",
];

/// Where the /proc of the shared PID namespace is mounted, for containers to bind.
pub(crate) fn proc_mount(directory: &Path) -> PathBuf {
    directory.join("proc")
}

/// Creates a PID namespace and its process 1. Returns the PID of this process in the shim's namespace.
pub(crate) fn start(directory: &Path) -> Result<i32, String> {
    let proc = proc_mount(directory);
    std::fs::create_dir_all(&proc).map_err(cannot("create a directory for /proc"))?;
    let (read, write) =
        nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC).map_err(cannot("create a pipe"))?;
    match sys::fork_with(libc::CLONE_NEWPID).map_err(cannot("fork"))? {
        Forked::Parent(pid) => {
            drop(write);
            let mut error = String::new();
            std::fs::File::from(read).read_to_string(&mut error).map_err(cannot("read a pipe"))?;
            if error.is_empty() { Ok(pid) } else { Err(error) }
        }
        Forked::Child => {
            if let Err(error) = confine(directory, &proc, write.as_raw_fd()) {
                let _ = nix::unistd::write(write.as_fd(), error.as_bytes());
                sys::exit_now(1)
            }
            // Closing the pipe without an error reports success.
            let _ = nix::unistd::close(write.as_raw_fd());
            reap_forever()
        }
    }
}

/// Gives up all privileges, in an order in which each step is still permitted.
fn confine(directory: &Path, proc: &Path, report: i32) -> Result<(), String> {
    // Only a process in the namespace can mount its /proc, and this is the only one that can be trusted.
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("proc"), proc, Some("proc"), flags, None::<&str>).map_err(cannot("mount /proc"))?;
    // This includes the shim's sockets: if they stayed open here, the agent would not notice the shim's death.
    sys::close_all_but(report).map_err(cannot("close descriptors"))?;
    pivot_to_empty_root(directory)?;
    drop_privileges()?;
    let filter: LinuxSeccomp = serde_json::from_value(serde_json::json!({
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": libc::EPERM,
        "syscalls": [{ "names": ALLOWED_CALLS, "action": "SCMP_ACT_ALLOW" }],
    }))
    .map_err(cannot("create a seccomp filter"))?;
    initialize_seccomp(&filter).map(drop).map_err(cannot("apply the seccomp filter"))
}

/// Makes an empty read-only tmpfs the root.
fn pivot_to_empty_root(mount_point: &Path) -> Result<(), String> {
    unshare(CloneFlags::CLONE_NEWNS).map_err(cannot("create a mount namespace"))?;
    let private = MsFlags::MS_PRIVATE | MsFlags::MS_REC;
    mount(None::<&str>, "/", None::<&str>, private, None::<&str>)
        .map_err(cannot("stop mount propagation to the node"))?;
    let flags = MsFlags::MS_RDONLY | MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("pause"), mount_point, Some("tmpfs"), flags, Some("mode=555,size=4k"))
        .map_err(cannot("mount an empty root"))?;
    chdir(mount_point).map_err(cannot("change to the empty root"))?;
    // This mounts the old root over the new one; the next line unmounts it.
    pivot_root(".", ".").map_err(cannot("pivot to the empty root"))?;
    umount2(".", MntFlags::MNT_DETACH).map_err(cannot("unmount the old root"))?;
    chdir("/").map_err(cannot("change to the new root"))
}

fn drop_privileges() -> Result<(), String> {
    sys::prctl(libc::PR_SET_NO_NEW_PRIVS, 1).map_err(cannot("set no_new_privs"))?;
    sys::drop_bounding_set().map_err(cannot("empty the bounding set"))?;
    setgroups(&[]).map_err(cannot("leave groups"))?;
    let (user, group) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
    setresgid(group, group, group).map_err(cannot("change the group"))?;
    setresuid(user, user, user).map_err(cannot("change the user"))?;
    sys::drop_capabilities().map_err(cannot("drop capabilities"))?;
    // The kernel resets these two when the user changes.
    sys::prctl(libc::PR_SET_DUMPABLE, 0).map_err(cannot("protect the process from inspection"))?;
    sys::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as u64)
        .map_err(cannot("tie the process to the shim"))
}

fn reap_forever() -> ! {
    let mut child_exited = SigSet::empty();
    child_exited.add(Signal::SIGCHLD);
    let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&child_exited), None);
    loop {
        while sys::reap_one().is_some() {}
        let _ = child_exited.wait();
    }
}
