//! What the node asks of whatever runs containers. Two implementations: `native` and `cri`.
//!
//! A sandbox is one incarnation of a pod: its namespaces and its parent of processes. Containers
//! live in sandboxes. Everything is asked by id; ids are unique for ever and survive the caller.

use crate::{
    Container, ContainerSpec, ContainerUsage, Credentials, Exec, Image, ImageReference, Resources,
    Result, Sandbox, SandboxSpec, Session,
};
use async_trait::async_trait;
use std::time::Duration;
use tokio::sync::broadcast;

/// `<name>://<version>` in the Node's status; `<name>://<id>` is how container ids are shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    pub name: String,
    pub version: String,
}

/// Something happened to a sandbox or one of its containers: look again. Carries no state, so that
/// nothing is ever acted upon that was not observed; may be late, may repeat, may lag (then relist).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The pod's uid, as given in [`SandboxSpec`].
    pub pod: String,
}

/// What not every runtime can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Features {
    /// Mounts that are read-only with all that is below them.
    pub recursive_read_only: bool,
    /// [`crate::Security::strict_groups`].
    pub strict_groups: bool,
    /// [`Runtime::stop_container`] answers as soon as the signal is sent. False: perhaps only when
    /// the container has ended.
    pub prompt_stop: bool,
}

#[async_trait]
pub trait Runtime: Send + Sync + 'static {
    async fn version(&self) -> Result<Version>;

    /// Ok when containers can be started. The error text becomes part of the Node's Ready condition.
    async fn ready(&self) -> Result<()>;

    /// What it can do besides what every runtime can; it does not change while this is connected.
    fn features(&self) -> Features {
        Features { recursive_read_only: true, strict_groups: true, prompt_stop: true }
    }

    /// True when sandboxes get their network from the runtime (CNI behind CRI), false when the
    /// caller prepares a network namespace and passes its path.
    fn brings_network(&self) -> bool;

    /// Creates the namespaces and whatever keeps them. On return the sandbox is ready.
    async fn run_sandbox(&self, spec: &SandboxSpec) -> Result<Sandbox>;

    /// Ends every process left in the sandbox at once and lets go of its namespaces. Idempotent.
    async fn stop_sandbox(&self, sandbox: &str) -> Result<()>;

    /// Forgets a stopped sandbox, its containers and their writable layers. Idempotent.
    async fn remove_sandbox(&self, sandbox: &str) -> Result<()>;

    /// Everything there is, running or not, as it is now.
    async fn sandboxes(&self) -> Result<Vec<Sandbox>>;

    /// All sandboxes of one pod, newest first, as they are now.
    async fn sandboxes_of(&self, pod: &str) -> Result<Vec<Sandbox>>;

    /// "Look again" for every change from now on.
    fn changes(&self) -> broadcast::Receiver<Change>;

    /// Everything but the start: root filesystem, mounts, cgroup. The process does not run yet.
    async fn create_container(&self, sandbox: &str, spec: &ContainerSpec) -> Result<Container>;

    /// Runs it. On [`crate::Error::Start`] the container is exited with 128 and reason StartError.
    async fn start_container(&self, container: &str) -> Result<()>;

    /// Sends its stop signal (the spec's, else the image's, else TERM) to process 1 and returns. A
    /// runtime that can only stop with a deadline uses `window`; the caller kills when time is up.
    /// A container that has ended is fine.
    async fn stop_container(&self, container: &str, window: Duration) -> Result<()>;

    /// The signal that [`Runtime::stop_container`] sends; None if that cannot be known.
    async fn stop_signal(&self, container: &str) -> Option<i32>;

    /// SIGKILL for every process of the container. A container that has ended is fine.
    async fn kill_container(&self, container: &str) -> Result<()>;

    /// Forgets an ended container: record, writable layer. Its log file stays. Idempotent.
    async fn remove_container(&self, container: &str) -> Result<()>;

    /// Changes limits of a running container.
    async fn update_container(&self, container: &str, resources: &Resources) -> Result<()>;

    /// Writes limits into a cgroup above the containers, a pod's for instance, and makes it if it is
    /// not there. What is None stays.
    async fn limit_group(&self, cgroup: &str, resources: &Resources) -> Result<()>;

    /// A process in a running container, with its stdio.
    async fn exec(&self, container: &str, exec: &Exec) -> Result<Session>;

    /// The stdio of the container itself, from now on.
    async fn attach(&self, container: &str, exec: &Exec) -> Result<Session>;

    /// The log file was renamed: write to a new one of the old name.
    async fn reopen_log(&self, container: &str) -> Result<()>;

    /// What running containers use.
    async fn usage(&self) -> Result<Vec<ContainerUsage>>;

    /// The same for those who ask often: without `disk_bytes` if that takes a walk through a disk.
    async fn load(&self) -> Result<Vec<ContainerUsage>> {
        self.usage().await
    }

    /// A TCP connection to `localhost:port` inside the sandbox's network namespace.
    async fn connect(&self, sandbox: &str, port: u16) -> Result<tokio::net::TcpStream>;

    fn images(&self) -> &dyn Images;
}

/// Told as a pull goes on. `total` is None until sizes are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PullProgress {
    pub done: u64,
    pub total: Option<u64>,
}

#[async_trait]
pub trait Images: Send + Sync {
    /// The image behind a name, digest or id, if it is here.
    async fn find(&self, image: &ImageReference) -> Result<Option<Image>>;

    async fn list(&self) -> Result<Vec<Image>>;

    /// Fetches what is missing. Credentials are tried in order; an empty list means anonymous.
    async fn pull(
        &self,
        image: &ImageReference,
        credentials: &[Credentials],
        progress: &(dyn Fn(PullProgress) + Send + Sync),
    ) -> Result<Image>;

    /// Forgets an image and the layers nobody else needs.
    async fn remove(&self, id: &str) -> Result<()>;

    /// Where image content lies, to ask the filesystem how full it is.
    fn directory(&self) -> std::path::PathBuf;

    /// Makes the merged content of an image readable at a directory (image volumes), read-only.
    async fn mount(&self, image: &str, target: &std::path::Path) -> Result<()>;
}
