//! Network namespaces: one per pod, kept alive by a bind mount.
//!
//! A thread that changes its namespace is a thread of its own that ends afterwards, so that no thread of the
//! async runtime is ever in a pod's namespace.

use crate::{Error, Result};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::statfs::{NSFS_MAGIC, statfs};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use tokio::sync::oneshot;

const CURRENT: &str = "/proc/thread-self/ns/net";

/// IDs of users and groups on the node to which a pod's IDs from 0 on are mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UserRange {
    pub first: u32,
    pub count: u32,
}

/// An open network namespace. It exists at least as long as this value.
#[derive(Clone)]
pub(crate) struct Namespace(Arc<File>);

impl Namespace {
    /// The namespace of this thread.
    pub(crate) fn current() -> Result<Namespace> {
        let file = File::open(CURRENT).map_err(Error::io("open", CURRENT))?;
        Ok(Namespace(Arc::new(file)))
    }

    /// `None` if there is no namespace at `path` any more.
    pub(crate) fn open(path: &Path) -> Result<Option<Namespace>> {
        match File::open(path) {
            Ok(file) => Ok(Some(Namespace(Arc::new(file)))),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::io("open", path)(error)),
        }
    }

    pub(crate) fn is_same(&self, other: &Namespace) -> Result<bool> {
        use std::os::unix::fs::MetadataExt;
        let identity = |file: &File| -> Result<(u64, u64)> {
            let metadata = file.metadata().map_err(Error::io("read", CURRENT))?;
            Ok((metadata.dev(), metadata.ino()))
        };
        Ok(identity(&self.0)? == identity(&other.0)?)
    }

    /// Moves this thread into it.
    pub(crate) fn enter(&self) -> Result<()> {
        setns(&*self.0, CloneFlags::CLONE_NEWNET).map_err(Error::call("enter a network namespace"))
    }

    /// The file descriptor, for netlink messages.
    pub(crate) fn fd(&self) -> u32 {
        use std::os::fd::AsRawFd;
        self.0.as_raw_fd() as u32
    }

    /// Runs `work` in a new thread that starts in this namespace.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (sender, receiver) = oneshot::channel();
        let namespace = self.clone();
        std::thread::Builder::new()
            .name("network".into())
            .spawn(move || {
                let _ = sender.send(namespace.enter().and_then(|()| work()));
            })
            .map_err(|error| Error::Thread(error.to_string()))?;
        receiver.await.map_err(|_| Error::Thread("the thread panicked".into()))?
    }
}

/// Moves this thread into a new namespace and binds that to `path`.
pub(crate) fn create(path: &Path) -> Result<Namespace> {
    remove(path)?; // An earlier process may have died between creating the file and the mount.
    File::create(path).map_err(Error::io("create", path))?;
    unshare(CloneFlags::CLONE_NEWNET).map_err(Error::call("create a network namespace"))?;
    let none: Option<&str> = None;
    mount(Some(CURRENT), path, none, MsFlags::MS_BIND, none)
        .map_err(|errno| Error::io("bind a network namespace to", path)(errno.into()))?;
    Namespace::current()
}

/// Like [`create`], but the namespace belongs to a new user namespace with these users. Root of that user
/// namespace may configure this network.
pub(crate) fn create_for(path: &Path, users: UserRange) -> Result<Namespace> {
    remove(path)?;
    File::create(path).map_err(Error::io("create", path))?;
    let holder = NamespaceHolder::start()?;
    for kind in ["uid_map", "gid_map"] {
        let map = holder.file(kind);
        std::fs::write(&map, format!("0 {} {}\n", users.first, users.count))
            .map_err(Error::io("write", &map))?;
    }
    let none: Option<&str> = None;
    mount(Some(&holder.file("ns/net")), path, none, MsFlags::MS_BIND, none)
        .map_err(|errno| Error::io("bind a network namespace to", path)(errno.into()))?;
    let made = Namespace(Arc::new(File::open(path).map_err(Error::io("open", path))?));
    made.enter()?;
    Ok(made)
}

/// A process that keeps a new user and network namespace open until this value is dropped.
struct NamespaceHolder {
    pid: nix::unistd::Pid,
    /// The process exits when this end of the pipe is closed.
    pipe: Option<std::io::PipeWriter>,
}

impl NamespaceHolder {
    #[allow(unsafe_code, reason = "clone has no wrapper that forks")]
    fn start() -> Result<NamespaceHolder> {
        use std::os::fd::AsRawFd;
        let (reader, writer) = std::io::pipe().map_err(Error::io("make", "a pipe"))?;
        let reader_fd = reader.as_raw_fd();
        let flags = libc::CLONE_NEWUSER | libc::CLONE_NEWNET | libc::SIGCHLD;
        // SAFETY: no memory is shared. The child of a process with threads may only make system calls,
        // and makes only those below before it exits.
        let pid = unsafe { libc::syscall(libc::SYS_clone, flags as libc::c_ulong, 0, 0, 0, 0) };
        if pid == 0 {
            let mut byte = 0_u8;
            // Close everything but the reader: with a copy of another holder's `pipe` this process would keep
            // that holder alive.
            // SAFETY: the arguments are numbers, and a pointer to a byte on this stack.
            unsafe {
                libc::dup2(reader_fd, 0);
                libc::syscall(libc::SYS_close_range, 1, u32::MAX, 0);
                libc::read(0, (&raw mut byte).cast(), 1);
                libc::_exit(0)
            }
        }
        if pid < 0 {
            let errno = nix::errno::Errno::last();
            return Err(Error::call(
                "create a user namespace (check that this host allows them: sysctl user.max_user_namespaces)",
            )(errno));
        }
        Ok(NamespaceHolder { pid: nix::unistd::Pid::from_raw(pid as i32), pipe: Some(writer) })
    }

    fn file(&self, name: &str) -> std::path::PathBuf {
        format!("/proc/{}/{name}", self.pid).into()
    }
}

impl Drop for NamespaceHolder {
    fn drop(&mut self) {
        drop(self.pipe.take());
        let _ = nix::sys::wait::waitpid(self.pid, None);
    }
}

/// Removes the bind mount and its file. The namespace ends with its last process. Idempotent.
pub(crate) fn remove(path: &Path) -> Result<()> {
    use nix::errno::Errno;
    while is_namespace(path) {
        match umount2(path, MntFlags::MNT_DETACH) {
            Ok(()) => {}
            Err(Errno::EINVAL | Errno::ENOENT) => break,
            Err(errno) => return Err(Error::io("unmount", path)(errno.into())),
        }
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::io("remove", path)(error))
        }
        _ => Ok(()),
    }
}

/// Whether a namespace is mounted at `path`.
pub(crate) fn is_namespace(path: &Path) -> bool {
    statfs(path).is_ok_and(|found| found.filesystem_type() == NSFS_MAGIC)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_exits_while_a_later_one_runs() {
        let (first, second) =
            (NamespaceHolder::start().unwrap(), NamespaceHolder::start().unwrap());
        let (ended, done) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            drop(first);
            ended.send(()).unwrap();
        });
        let in_time = done.recv_timeout(std::time::Duration::from_secs(10));
        drop(second);
        thread.join().unwrap();
        assert!(in_time.is_ok(), "the first holder exited only after the second");
    }
}
