//! System calls without a safe wrapper. Each function is small, so that it is easy to review.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// The side of a fork that returned.
pub(crate) enum Forked {
    Child,
    Parent(i32),
}

/// Forks. Only the shim calls this. It has a single thread, so the child may allocate memory.
#[allow(unsafe_code, reason = "fork is sound in a process with one thread")]
pub(crate) fn fork() -> io::Result<Forked> {
    // SAFETY: the shim has one thread, so no lock can be held by a thread that is not copied.
    match unsafe { nix::unistd::fork() }? {
        nix::unistd::ForkResult::Child => Ok(Forked::Child),
        nix::unistd::ForkResult::Parent { child } => Ok(Forked::Parent(child.as_raw())),
    }
}

/// A fork with flags of clone(2), for example to create a PID namespace or a sibling of this process.
#[allow(unsafe_code, reason = "clone without a stack of its own is a fork with flags")]
pub(crate) fn fork_with(flags: i32) -> io::Result<Forked> {
    // With CLONE_PARENT the child inherits the caller's exit signal.
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

/// Exits at once, without running exit handlers, which belong to the parent.
#[allow(unsafe_code, reason = "_exit cannot fail")]
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: always sound; it does not return.
    unsafe { libc::_exit(code) }
}

/// Takes ownership of a descriptor.
#[allow(unsafe_code, reason = "the descriptor was handed over for this purpose")]
pub(crate) fn own(fd: RawFd) -> OwnedFd {
    // SAFETY: callers pass descriptors that have no other owner in this process.
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

/// Sets the name that `ps` shows. The kernel truncates it.
#[allow(unsafe_code, reason = "prctl with a string")]
pub(crate) fn set_name(name: &std::ffi::CStr) -> io::Result<()> {
    // SAFETY: the kernel reads up to the end of the string.
    match unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr(), 0, 0, 0) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// The user namespace that another namespace belongs to.
#[allow(unsafe_code, reason = "this ioctl has no wrapper")]
pub(crate) fn owner_of_namespace(namespace: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    const NS_GET_USERNS: libc::c_ulong = 0xb701;
    // SAFETY: no argument in, a new descriptor out.
    match unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_USERNS as _) } {
        -1 => Err(io::Error::last_os_error()),
        fd => Ok(own(fd)),
    }
}

/// Maps the owners of files in a detached mount with the mapping of a user namespace.
#[allow(unsafe_code, reason = "mount_setattr has no wrapper")]
pub(crate) fn map_users(mount: BorrowedFd<'_>, users: BorrowedFd<'_>) -> io::Result<()> {
    const MOUNT_ATTR_IDMAP: u64 = 0x0010_0000;
    #[repr(C)]
    struct Attributes {
        set: u64,
        clear: u64,
        propagation: u64,
        users: u64,
    }
    let users = users.as_raw_fd() as u64;
    let attributes = Attributes { set: MOUNT_ATTR_IDMAP, clear: 0, propagation: 0, users };
    // SAFETY: the kernel reads an empty string and the given number of bytes.
    let outcome = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attributes,
            size_of::<Attributes>(),
        )
    };
    if outcome == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Whether the kernel supports idmapped mounts and the node allows user namespaces.
#[allow(unsafe_code, reason = "mount_setattr has no wrapper")]
pub(crate) fn can_map_users() -> bool {
    let allowed = std::fs::read_to_string("/proc/sys/user/max_user_namespaces")
        .is_ok_and(|max| max.trim().parse::<u64>().is_ok_and(|max| max > 0));
    let nothing: *const libc::c_void = std::ptr::null();
    // SAFETY: without attributes the kernel only validates the call.
    let outcome =
        unsafe { libc::syscall(libc::SYS_mount_setattr, -1, c"".as_ptr(), 0, nothing, 0) };
    let supported =
        outcome == -1 && io::Error::last_os_error().raw_os_error() != Some(libc::ENOSYS);
    allowed && supported
}

/// A descriptor that becomes readable when the process exits.
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

/// Closes all descriptors except one.
pub(crate) fn close_all_but(kept: RawFd) -> io::Result<()> {
    let kept = kept as u32;
    if kept > 0 {
        close_range(0, kept - 1)?;
    }
    close_range(kept + 1, u32::MAX)
}

/// Closes the descriptors from `first` to `last`, even if they have owners in this process. Only for processes
/// that are about to exec or to wait forever.
#[allow(unsafe_code, reason = "close_range has no wrapper")]
pub(crate) fn close_range(first: u32, last: u32) -> io::Result<()> {
    if first > last {
        return Ok(());
    }
    // SAFETY: plain numbers; the callers use none of these descriptors afterwards.
    match unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Empties the bounding set, so that no executed program can gain a capability. This needs a capability itself.
pub(crate) fn drop_bounding_set() -> io::Result<()> {
    const CAPABILITIES_MAX: u64 = 64;
    for capability in 0..CAPABILITIES_MAX {
        match prctl(libc::PR_CAPBSET_DROP, capability) {
            // The kernel has no capability of this number.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => break,
            outcome => outcome?,
        }
    }
    Ok(())
}

/// Empties the permitted, effective and inheritable sets, and with them the ambient one.
#[allow(unsafe_code, reason = "capset has no wrapper")]
pub(crate) fn drop_capabilities() -> io::Result<()> {
    const VERSION_3: u32 = 0x2008_0522;
    let header: [u32; 2] = [VERSION_3, 0];
    let none = [0_u32; 6];
    // SAFETY: the header and two times three sets are what version 3 reads.
    match unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), none.as_ptr()) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Whether a process is a child of this one, running or not yet reaped.
#[allow(unsafe_code, reason = "the safe wrapper fails for children ended by a real-time signal")]
pub(crate) fn is_child(pid: i32) -> bool {
    let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    let Ok(id) = libc::id_t::try_from(pid) else { return false };
    // SAFETY: waitid accepts a null pointer for the result; WNOWAIT changes nothing.
    unsafe { libc::waitid(libc::P_PID, id, std::ptr::null_mut(), flags) == 0 }
}

/// Sends a signal by its number, because `nix` has no real-time signals and images may use them as stop signals.
#[allow(unsafe_code, reason = "kill with plain numbers")]
pub(crate) fn kill(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: plain numbers.
    match unsafe { libc::kill(pid, signal) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Reaps one child. Returns its PID, and its exit code or the signal that killed it.
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
