//! The interface of a container runtime. There are two implementations: `native` and `cri`.
//!
//! A sandbox is one incarnation of a pod: its namespaces and the process that holds them. Containers run in
//! sandboxes. Ids are never reused and stay valid when the agent restarts.

use crate::{
    Container, ContainerSpec, ContainerUsage, Credentials, Exec, Image, ImageReference, Resources,
    Result, Sandbox, SandboxSpec, Session,
};
use async_trait::async_trait;
use std::time::Duration;
use tokio::sync::broadcast;

/// Shown as `<name>://<version>` in the Node's status. Container ids are shown as `<name>://<id>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    pub name: String,
    pub version: String,
}

/// A sandbox or one of its containers has changed. It has no state, so that callers always act on the observed
/// state. A change may be late or repeated; if a subscriber lags, it must list everything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The pod's uid, as given in [`SandboxSpec`].
    pub pod: String,
}

/// Features that only some runtimes have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Features {
    /// Recursively read-only mounts.
    pub recursive_read_only: bool,
    /// [`crate::Security::strict_groups`].
    pub strict_groups: bool,
    /// [`Runtime::stop_container`] returns as soon as the signal is sent. Otherwise it may return only when the
    /// container has exited.
    pub prompt_stop: bool,
    /// [`crate::SandboxSpec::users`].
    pub user_namespaces: bool,
}

impl Default for Features {
    /// All features.
    fn default() -> Features {
        Features {
            recursive_read_only: true,
            strict_groups: true,
            prompt_stop: true,
            user_namespaces: true,
        }
    }
}

#[async_trait]
pub trait Runtime: Send + Sync + 'static {
    async fn version(&self) -> Result<Version>;

    /// Whether containers can be started. The error text becomes part of the Node's Ready condition.
    async fn ready(&self) -> Result<()>;

    /// Does not change while this value exists.
    fn features(&self) -> Features {
        Features::default()
    }

    /// True if the runtime creates the network of a sandbox (CNI behind CRI). False if the caller has to create a
    /// network namespace.
    fn brings_network(&self) -> bool;

    /// Creates a sandbox. It is ready when this returns.
    async fn run_sandbox(&self, spec: &SandboxSpec) -> Result<Sandbox>;

    /// Kills all processes of the sandbox and releases its namespaces. Idempotent.
    async fn stop_sandbox(&self, sandbox: &str) -> Result<()>;

    /// Removes a stopped sandbox, its containers and their writable layers. Idempotent.
    async fn remove_sandbox(&self, sandbox: &str) -> Result<()>;

    /// The current state of all sandboxes, running or not.
    async fn sandboxes(&self) -> Result<Vec<Sandbox>>;

    /// The current state of all sandboxes of one pod, newest first.
    async fn sandboxes_of(&self, pod: &str) -> Result<Vec<Sandbox>>;

    /// Subscribes to changes.
    fn changes(&self) -> broadcast::Receiver<Change>;

    /// Prepares root filesystem, mounts and cgroup, without starting the process.
    async fn create_container(&self, sandbox: &str, spec: &ContainerSpec) -> Result<Container>;

    /// Starts a container. After [`crate::Error::Start`] it is exited with code 128 and reason StartError.
    async fn start_container(&self, container: &str) -> Result<()>;

    /// Sends the stop signal (of the spec, else of the image, else SIGTERM) to process 1. Only a runtime that
    /// cannot stop without a deadline uses `window`; the caller kills the container after the grace period.
    /// No error if the container has exited.
    async fn stop_container(&self, container: &str, window: Duration) -> Result<()>;

    /// The signal that [`Runtime::stop_container`] sends; `None` if unknown.
    async fn stop_signal(&self, container: &str) -> Option<i32>;

    /// Sends SIGKILL to all processes of the container. No error if it has exited.
    async fn kill_container(&self, container: &str) -> Result<()>;

    /// Removes the record and the writable layer of an exited container, but not its log. Idempotent.
    async fn remove_container(&self, container: &str) -> Result<()>;

    /// Changes limits of a running container.
    async fn update_container(&self, container: &str, resources: &Resources) -> Result<()>;

    /// Sets limits of a cgroup above the containers, for example of a pod. Creates the cgroup if needed. Limits
    /// that are `None` do not change.
    async fn limit_group(&self, cgroup: &str, resources: &Resources) -> Result<()>;

    /// Starts a process in a running container.
    async fn exec(&self, container: &str, exec: &Exec) -> Result<Session>;

    /// Connects to the stdio of the container's process 1.
    async fn attach(&self, container: &str, exec: &Exec) -> Result<Session>;

    /// Continues the log in a new file of the same name, after the caller has renamed the old one.
    async fn reopen_log(&self, container: &str) -> Result<()>;

    /// Resource usage of running containers.
    async fn usage(&self) -> Result<Vec<ContainerUsage>>;

    /// A cheaper [`Runtime::usage`] for frequent calls: without `disk_bytes` if computing it is slow.
    async fn load(&self) -> Result<Vec<ContainerUsage>> {
        self.usage().await
    }

    /// Opens a TCP connection to `localhost:port` in the sandbox's network namespace.
    async fn connect(&self, sandbox: &str, port: u16) -> Result<tokio::net::TcpStream>;

    fn images(&self) -> &dyn Images;
}

/// Bytes of a pull. `total` is `None` until the sizes are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PullProgress {
    pub done: u64,
    pub total: Option<u64>,
}

#[async_trait]
pub trait Images: Send + Sync {
    /// Finds a local image by name, digest or id.
    async fn find(&self, image: &ImageReference) -> Result<Option<Image>>;

    async fn list(&self) -> Result<Vec<Image>>;

    /// Downloads missing layers. Tries the credentials in order; an empty list means anonymous.
    async fn pull(
        &self,
        image: &ImageReference,
        credentials: &[Credentials],
        progress: &(dyn Fn(PullProgress) + Send + Sync),
    ) -> Result<Image>;

    /// Removes an image and the layers that no other image or container uses.
    async fn remove(&self, id: &str) -> Result<()>;

    /// Directory of image content, to determine the free space of its file system.
    fn directory(&self) -> std::path::PathBuf;

    /// Mounts the content of an image read-only at a directory (image volumes).
    async fn mount(&self, image: &str, target: &std::path::Path) -> Result<()>;
}
