//! Specifications of sandboxes and containers, independent of the Kubernetes API.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

/// The pod of a sandbox. Stored with the sandbox, to find it again after a crash.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Identity {
    pub uid: String,
    pub namespace: String,
    pub name: String,
}

#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum PodNetwork {
    /// The network of the node.
    Host,
    /// Path of a network namespace that the caller has created.
    Path(PathBuf),
    /// The runtime creates the network and reports its addresses ([`crate::Runtime::brings_network`]).
    Runtime,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Namespace {
    /// The namespace of the node.
    Host,
    /// One namespace for the pod.
    Pod,
    /// One namespace per container.
    Container,
}

#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct SandboxSpec {
    pub pod: Identity,
    /// Counts the sandboxes of one pod, from 0.
    pub attempt: u32,
    pub hostname: Option<String>,
    pub network: PodNetwork,
    /// `Host` or `Pod`.
    pub ipc: Namespace,
    /// `Host`, `Pod` (shareProcessNamespace: a pause process is process 1) or `Container`.
    pub pid: Namespace,
    pub sysctls: BTreeMap<String, String>,
    /// Users of the pod's user namespace; `None` if it uses the node's. With a user namespace the pod must not use
    /// the node's network, and in the native runtime the network namespace must belong to the user namespace.
    #[serde(default)]
    pub users: Option<UserRange>,
    /// Path below the cgroup root: `/kubepods/burstable/pod<uid>`.
    pub cgroup: String,
    /// Limits of the pod's cgroup.
    pub resources: Resources,
    /// Directory of the pod's logs; container log paths are below it.
    pub log_directory: PathBuf,
    /// DNS and ports are for CRI runtimes; the native runtime ignores them.
    pub dns: Option<Dns>,
    pub ports: Vec<PortMapping>,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    /// Handler of a RuntimeClass; empty for the default.
    pub handler: String,
}

/// IDs of users and groups on the node to which a pod's IDs from 0 on are mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct UserRange {
    pub first: u32,
    pub count: u32,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Dns {
    pub servers: Vec<String>,
    pub searches: Vec<String>,
    pub options: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct PortMapping {
    /// TCP, UDP or SCTP.
    pub protocol: String,
    pub host_ip: Option<IpAddr>,
    pub host_port: u16,
    pub container_port: u16,
}

#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct ContainerSpec {
    pub name: String,
    /// The restart count.
    pub attempt: u32,
    /// Id of a local image ([`crate::Image::id`]).
    pub image: String,
    /// The image's name in the pod spec.
    pub image_name: String,
    /// `None`: use the image's ENTRYPOINT. If set without `args`, the image's CMD is ignored too (N-49).
    pub command: Option<Vec<String>>,
    pub args: Option<Vec<String>>,
    /// Added to the image's ENV, overriding variables of the same name. The order is kept.
    pub env: Vec<(String, String)>,
    /// `None`: the image's WORKDIR, else `/`. Created if it does not exist.
    pub working_dir: Option<String>,
    pub mounts: Vec<Mount>,
    pub devices: Vec<Device>,
    pub security: Security,
    pub resources: Resources,
    pub stdin: bool,
    /// Close stdin when the first attached client disconnects.
    pub stdin_once: bool,
    pub tty: bool,
    /// Relative to the sandbox's `log_directory`: `<container>/<attempt>.log`.
    pub log_path: PathBuf,
    /// Join the PID namespace of this container (ephemeral containers with a target).
    pub pid_of: Option<String>,
    /// Signal name such as `SIGUSR1`. `None`: the image's STOPSIGNAL, else SIGTERM.
    pub stop_signal: Option<String>,
    /// Stored with the container and reported back, so that the agent has them after a crash.
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Propagation {
    #[default]
    Private,
    Slave,
    Shared,
}

/// A bind mount of a file or directory of the node.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Mount {
    pub source: PathBuf,
    pub target: PathBuf,
    pub read_only: bool,
    pub recursive_read_only: bool,
    pub propagation: Propagation,
    pub no_exec: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Device {
    pub source: PathBuf,
    pub target: PathBuf,
    /// Some of `r`, `w` and `m`.
    pub permissions: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum User {
    /// The image's USER, or root if it has none.
    #[default]
    Image,
    Uid(u32),
}

#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Seccomp {
    #[default]
    Unconfined,
    RuntimeDefault,
    /// An OCI seccomp profile in JSON.
    Localhost(PathBuf),
}

/// Names without `CAP_`; `ALL` is allowed. Applied to the default set (N-129).
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Capabilities {
    pub add: Vec<String>,
    pub drop: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Security {
    pub user: User,
    /// `None`: the user's primary group in the image, else 0.
    pub group: Option<u32>,
    pub supplemental_groups: Vec<u32>,
    /// False: add the user's groups in the image's /etc/group (policy Merge).
    pub strict_groups: bool,
    pub privileged: bool,
    pub no_new_privs: bool,
    pub read_only_root: bool,
    pub capabilities: Capabilities,
    pub seccomp: Seccomp,
    pub masked_paths: Vec<String>,
    pub read_only_paths: Vec<String>,
    /// If the kernel does not allow this value, the runtime logs that once and continues.
    pub oom_score_adj: i32,
}

/// `None` or empty means no limit.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Resources {
    pub cpu_shares: Option<u64>,
    /// Microseconds per 100 ms.
    pub cpu_quota: Option<i64>,
    pub memory_limit: Option<i64>,
    pub pids_limit: Option<i64>,
    pub swap_limit: Option<i64>,
    /// Page size in the kernel's notation (`2MB`), and bytes.
    pub hugepage_limits: Vec<(String, u64)>,
}

impl Resources {
    /// Values that are missing in `to` do not change.
    pub(crate) fn change(&mut self, to: &Resources) {
        self.cpu_shares = to.cpu_shares.or(self.cpu_shares);
        self.cpu_quota = to.cpu_quota.or(self.cpu_quota);
        self.memory_limit = to.memory_limit.or(self.memory_limit);
        self.pids_limit = to.pids_limit.or(self.pids_limit);
        self.swap_limit = to.swap_limit.or(self.swap_limit);
        if !to.hugepage_limits.is_empty() {
            self.hugepage_limits = to.hugepage_limits.clone();
        }
    }
}

/// The parameters of exec and attach.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Exec {
    /// Not used by attach.
    pub command: Vec<String>,
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
    pub tty: bool,
    /// The process is killed after this time.
    pub timeout: Option<Duration>,
}

/// The image of a pod spec, with the default tag added: `busybox:latest`, `r.example/a@sha256:…`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ImageReference(pub String);

#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    pub username: String,
    pub password: String,
    /// If not empty, a bearer token to use instead of name and password.
    pub token: String,
}

/// Does not show secrets.
impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("username", &self.username).finish_non_exhaustive()
    }
}
