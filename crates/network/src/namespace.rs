//! Network namespaces: one per pod, kept alive by a name in the filesystem.
//!
//! Whatever changes the namespace of a thread happens in a thread of its own that then ends, so that
//! none of the runtime's threads is ever in the wrong place.

use crate::{Error, Result};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::statfs::{NSFS_MAGIC, statfs};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use tokio::sync::oneshot;

const OF_THIS_THREAD: &str = "/proc/thread-self/ns/net";

/// A network namespace that is open, and so cannot go away.
#[derive(Clone)]
pub(crate) struct Namespace(Arc<File>);

impl Namespace {
    /// The one this thread is in.
    pub(crate) fn current() -> Result<Namespace> {
        let file = File::open(OF_THIS_THREAD).map_err(Error::io("open", OF_THIS_THREAD))?;
        Ok(Namespace(Arc::new(file)))
    }

    /// Moves this thread into it.
    pub(crate) fn enter(&self) -> Result<()> {
        setns(&*self.0, CloneFlags::CLONE_NEWNET).map_err(Error::call("enter a network namespace"))
    }

    /// For messages that name a namespace.
    pub(crate) fn number(&self) -> u32 {
        use std::os::fd::AsRawFd;
        self.0.as_raw_fd() as u32
    }

    /// Does `work` in a new thread that starts out in this namespace.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (answer, answered) = oneshot::channel();
        let namespace = self.clone();
        std::thread::Builder::new()
            .name("network".into())
            .spawn(move || {
                let _ = answer.send(namespace.enter().and_then(|()| work()));
            })
            .map_err(|error| Error::Thread(error.to_string()))?;
        answered.await.map_err(|_| Error::Thread("the thread ended early".into()))?
    }
}

/// Moves this thread into a new namespace and gives that the name `path`.
pub(crate) fn create(path: &Path) -> Result<Namespace> {
    remove(path)?; // A name without a namespace, from a process that died in between.
    File::create(path).map_err(Error::io("create", path))?;
    unshare(CloneFlags::CLONE_NEWNET).map_err(Error::call("make a network namespace"))?;
    let none: Option<&str> = None;
    mount(Some(OF_THIS_THREAD), path, none, MsFlags::MS_BIND, none)
        .map_err(|errno| Error::io("bind a network namespace to", path)(errno.into()))?;
    Namespace::current()
}

/// Takes the name away; the namespace goes with its last process. Idempotent.
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

/// Whether a namespace lies behind this name.
pub(crate) fn is_namespace(path: &Path) -> bool {
    statfs(path).is_ok_and(|found| found.filesystem_type() == NSFS_MAGIC)
}
