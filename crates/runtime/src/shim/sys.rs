//! The few system calls that have no safe wrapper, each small enough to check by eye.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Which side of a fork one is on.
pub(crate) enum Forked {
    Child,
    Parent(i32),
}

/// Forks. Only ever called by the shim, which has a single thread: the child may allocate.
#[allow(unsafe_code, reason = "fork is sound in a process with one thread")]
pub(crate) fn fork() -> io::Result<Forked> {
    // SAFETY: the shim has one thread, so no lock can be held by a thread that is not copied.
    match unsafe { nix::unistd::fork() }? {
        nix::unistd::ForkResult::Child => Ok(Forked::Child),
        nix::unistd::ForkResult::Parent { child } => Ok(Forked::Parent(child.as_raw())),
    }
}

/// A fork with flags of clone(2): a new PID namespace, or a child of one's own parent.
#[allow(unsafe_code, reason = "clone without a stack of its own is a fork with flags")]
pub(crate) fn fork_with(flags: i32) -> io::Result<Forked> {
    // CLONE_PARENT takes the exit signal of the caller; elsewhere SIGCHLD is asked for.
    let signal = if flags & libc::CLONE_PARENT != 0 { 0 } else { libc::SIGCHLD };
    let arguments = [(flags | signal) as libc::c_ulong, 0, 0, 0, 0];
    // SAFETY: no memory is shared (no CLONE_VM) and there is one thread, as with fork.
    let pid = unsafe {
        libc::syscall(
            libc::SYS_clone,
            arguments[0],
            arguments[1],
            arguments[2],
            arguments[3],
            arguments[4],
        )
    };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Forked::Child),
        pid => Ok(Forked::Parent(pid as i32)),
    }
}

/// Ends this process at once, without running what the parent registered for its own end.
#[allow(unsafe_code, reason = "_exit cannot fail")]
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: always sound; it does not return.
    unsafe { libc::_exit(code) }
}

/// Takes ownership of a descriptor this process was given by number.
#[allow(unsafe_code, reason = "the descriptor was handed over for this purpose")]
pub(crate) fn own(fd: RawFd) -> OwnedFd {
    // SAFETY: callers pass descriptors nobody else in this process owns.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

#[allow(unsafe_code, reason = "prctl with plain numbers")]
pub(crate) fn prctl(option: i32, argument: u64) -> io::Result<()> {
    // SAFETY: the options used take numbers only.
    match unsafe { libc::prctl(option, argument, 0, 0, 0) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// A descriptor that becomes readable when the process ends.
#[allow(unsafe_code, reason = "pidfd_open has no wrapper")]
pub(crate) fn pidfd(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: plain numbers in, a new descriptor out.
    match unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) } {
        -1 => Err(io::Error::last_os_error()),
        fd => Ok(own(fd as RawFd)),
    }
}

#[allow(unsafe_code, reason = "ioctl with a struct that outlives the call")]
pub(crate) fn set_terminal_size(
    terminal: BorrowedFd<'_>,
    width: u16,
    height: u16,
) -> io::Result<()> {
    let size = libc::winsize { ws_row: height, ws_col: width, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: TIOCSWINSZ reads one winsize.
    match unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Makes a terminal the controlling one of this session.
#[allow(unsafe_code, reason = "ioctl with a number")]
pub(crate) fn take_terminal(terminal: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: TIOCSCTTY takes a number.
    match unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSCTTY, 0) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Everything from `first` up is closed by the next exec.
#[allow(unsafe_code, reason = "close_range has no wrapper")]
pub(crate) fn close_on_exec_from(first: u32) -> io::Result<()> {
    const CLOSE_RANGE_CLOEXEC: u32 = 4;
    // SAFETY: plain numbers; closes nothing now.
    match unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, CLOSE_RANGE_CLOEXEC) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Sends a signal by its number: real-time signals, which images do ask for, have no name.
#[allow(unsafe_code, reason = "kill with plain numbers")]
pub(crate) fn kill(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: plain numbers.
    match unsafe { libc::kill(pid, signal) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// One child that has ended: its pid, and its exit code or the signal that ended it.
#[allow(unsafe_code, reason = "the safe wrapper fails for children ended by a real-time signal")]
pub(crate) fn reap_one() -> Option<(i32, Result<i32, i32>)> {
    let mut status = 0;
    // SAFETY: waitpid writes one number.
    let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) };
    if pid <= 0 {
        return None;
    }
    let signalled = libc::WIFSIGNALED(status);
    Some((pid, if signalled { Err(libc::WTERMSIG(status)) } else { Ok(libc::WEXITSTATUS(status)) }))
}
