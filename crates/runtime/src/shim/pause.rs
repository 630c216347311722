//! Process 1 of a pod whose containers share one process namespace (N-123): it reaps and waits.

use super::sys::{self, Forked};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};

/// Makes a process namespace and its first process; answers that one's pid as seen from here.
pub(crate) fn start() -> std::io::Result<i32> {
    match sys::fork_with(libc::CLONE_NEWPID)? {
        Forked::Parent(pid) => Ok(pid),
        Forked::Child => {
            let _ = sys::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as u64);
            let _ = sys::close_on_exec_from(3);
            close_everything();
            reap_for_ever()
        }
    }
}

/// A pause that kept the shim's sockets open would hide the shim's death from the agent.
fn close_everything() {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return };
    let open: Vec<i32> =
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    for fd in open {
        let _ = nix::unistd::close(fd);
    }
}

fn reap_for_ever() -> ! {
    let mut waited_for = SigSet::empty();
    waited_for.add(Signal::SIGCHLD);
    let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&waited_for), None);
    loop {
        while sys::reap_one().is_some() {}
        let _ = waited_for.wait();
    }
}
