//! What a sandbox and a container should be, in the kernel's terms: nothing here knows the API.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Whose pod it is. Kept with the sandbox, so that it is found again after a crash.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Identity {
    pub uid: String,
    pub namespace: String,
    pub name: String,
}

#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum PodNetwork {
    /// The node's own.
    Host,
    /// A network namespace the caller made and set up, as a path that can be opened.
    Path(PathBuf),
    /// The runtime makes one and reports its addresses ([`crate::Runtime::brings_network`]).
    Runtime,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Namespace {
    /// The node's.
    Host,
    /// One for the whole pod.
    Pod,
    /// One for each container.
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
    /// `Host`, `Pod` (shareProcessNamespace: a reaping process 1) or `Container`.
    pub pid: Namespace,
    pub sysctls: BTreeMap<String, String>,
    /// Below the controllers' roots, with the pod's own name last: `/kubepods/burstable/pod<uid>`.
    pub cgroup: String,
    /// For the pod's cgroup as a whole.
    pub resources: Resources,
    /// Directory of the pod's logs; container log paths are below it.
    pub log_directory: PathBuf,
    /// What a CRI runtime is told for its own resolv.conf and port mappings; native ignores these.
    pub dns: Option<Dns>,
    pub ports: Vec<PortMapping>,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    /// Handler of a RuntimeClass; empty is the default one.
    pub handler: String,
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
    /// Which instance of this container: its restart count.
    pub attempt: u32,
    /// The id of an image that is here ([`crate::Image::id`]).
    pub image: String,
    /// How the spec named the image, for people.
    pub image_name: String,
    /// None: the image's ENTRYPOINT. Given without `args`, the image's CMD is dropped as well (N-49).
    pub command: Option<Vec<String>>,
    pub args: Option<Vec<String>>,
    /// On top of the image's ENV; wins by name. Order is kept.
    pub env: Vec<(String, String)>,
    /// None: the image's WORKDIR, else `/`. Made if missing.
    pub working_dir: Option<String>,
    pub mounts: Vec<Mount>,
    pub devices: Vec<Device>,
    pub security: Security,
    pub resources: Resources,
    pub stdin: bool,
    /// Close stdin for good when the first attached client leaves.
    pub stdin_once: bool,
    pub tty: bool,
    /// Below the sandbox's `log_directory`: `<container>/<attempt>.log`.
    pub log_path: PathBuf,
    /// Joins the PID namespace of this container (ephemeral containers with a target).
    pub pid_of: Option<String>,
    /// Signal name such as `SIGUSR1`; None: the image's STOPSIGNAL, else TERM.
    pub stop_signal: Option<String>,
    /// Kept with the container and reported back; the node finds its own notes here after a crash.
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

/// A bind mount of something on the node into the container.
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
    /// Of `r`, `w`, `m`.
    pub permissions: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum User {
    /// The image's USER, else root.
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
    /// None: the user's primary group in the image, else 0.
    pub group: Option<u32>,
    pub supplemental_groups: Vec<u32>,
    /// False: also the groups that the image's /etc/group gives the user (policy Merge).
    pub strict_groups: bool,
    pub privileged: bool,
    pub no_new_privs: bool,
    pub read_only_root: bool,
    pub capabilities: Capabilities,
    pub seccomp: Seccomp,
    pub masked_paths: Vec<String>,
    pub read_only_paths: Vec<String>,
    /// What goes into oom_score_adj; where the kernel forbids it the runtime says so once and goes on.
    pub oom_score_adj: i32,
}

/// None or empty: no limit of that kind.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Resources {
    pub cpu_shares: Option<u64>,
    /// Of every 100 ms, in microseconds.
    pub cpu_quota: Option<i64>,
    pub memory_limit: Option<i64>,
    pub pids_limit: Option<i64>,
    pub swap_limit: Option<i64>,
    /// Page size as the kernel spells it (`2MB`) and bytes.
    pub hugepage_limits: Vec<(String, u64)>,
}

impl Resources {
    /// What the change leaves out stays as it was.
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

/// What to run in (or how to attach to) a container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Exec {
    /// Not used by attach.
    pub command: Vec<String>,
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
    pub tty: bool,
    /// The process is killed after this; None: never.
    pub timeout: Option<Duration>,
}

/// As written in a pod, with the default tag added: `busybox:latest`, `r.example/a@sha256:…`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ImageReference(pub String);

#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    pub username: String,
    pub password: String,
    /// A bearer token instead of name and password, if not empty.
    pub token: String,
}

/// Never shows what it holds.
impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("username", &self.username).finish_non_exhaustive()
    }
}
