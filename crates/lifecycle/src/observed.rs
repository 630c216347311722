//! What was observed of a pod on its node: sandboxes, containers and probe results.
//!
//! The node fills this in from its runtime and its probes. Decisions depend on nothing else that is remembered,
//! so after a crash they are the same as always.

use crate::probe::Outcome;
use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Everything that was observed of one pod.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Observed {
    /// Newest first.
    pub sandboxes: Vec<Sandbox>,
    /// All containers that the runtime has, of all sandboxes, newest first.
    pub containers: Vec<Container>,
    /// Probe results by container name. They are valid only for the container ID in them.
    pub health: BTreeMap<String, Health>,
    /// Why the last attempt to start a container failed, by its name. A success removes the entry.
    pub failures: BTreeMap<String, StartFailure>,
    /// The highest attempt known from log files, by container name: restart counts continue from there when the
    /// runtime's records are lost (N-48).
    pub past_attempts: BTreeMap<String, u32>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Sandbox {
    pub id: String,
    pub attempt: u32,
    pub ready: bool,
    pub host_network: bool,
    /// Addresses of the pod; without any it cannot be reached (N-36).
    pub addresses: Vec<IpAddr>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Container {
    pub id: String,
    pub name: String,
    /// The id of its sandbox.
    pub sandbox: String,
    /// Number of this instance: the restart count.
    pub attempt: u32,
    pub state: State,
    /// The image's name in the runtime.
    pub image: String,
    /// `repo@sha256:…` if known, else the image's ID.
    pub image_id: String,
    /// The [`fingerprint`] at its creation; empty if unknown.
    pub fingerprint: String,
    /// Applied resources. None: those of the spec.
    pub resources: Option<core::ResourceRequirements>,
    pub user: Option<User>,
    pub mounts: Vec<Mounted>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum State {
    Created,
    Running {
        started_at: Timestamp,
    },
    Exited(Exit),
    /// It ran; whether and how it exited is unknown.
    Unknown,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Exit {
    /// 128 + signal if a signal ended the process.
    pub code: i32,
    pub signal: Option<i32>,
    /// `OOMKilled`, `StartError`, or empty.
    pub reason: String,
    /// The termination message (T-NODE-59), or why it did not start.
    pub message: String,
    /// None when it never started.
    pub started_at: Option<Timestamp>,
    pub finished_at: Timestamp,
}

impl Exit {
    /// OOMKilled is a failure whatever the code says (N-38).
    pub fn failed(&self) -> bool {
        self.code != 0 || self.reason == "OOMKilled"
    }
}

/// User of the first process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    pub uid: i64,
    pub gid: i64,
    pub groups: Vec<i64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mounted {
    pub target: String,
    pub recursive_read_only: bool,
}

/// Probe results of one container; `Unknown` without a result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    pub container_id: String,
    pub startup: Outcome,
    pub readiness: Outcome,
    pub liveness: Outcome,
}

/// Why a container waits: `ErrImagePull`, `CreateContainerConfigError`, `CrashLoopBackOff`, …
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartFailure {
    pub reason: String,
    pub message: String,
}

impl Observed {
    /// The newest instance of a container, in whatever sandbox.
    pub fn latest(&self, name: &str) -> Option<&Container> {
        self.instances(name).next()
    }

    /// All instances of a container, newest first.
    pub fn instances<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a Container> {
        self.containers.iter().filter(move |container| container.name == name)
    }

    /// The newest sandbox if it is ready.
    pub fn ready_sandbox(&self) -> Option<&Sandbox> {
        self.sandboxes.first().filter(|sandbox| sandbox.ready)
    }

    /// Some container of the pod is running.
    pub fn any_running(&self) -> bool {
        self.containers.iter().any(Container::is_running)
    }

    /// Probe results of this instance.
    pub(crate) fn health_of(&self, container: &Container) -> Option<&Health> {
        self.health.get(&container.name).filter(|health| health.container_id == container.id)
    }
}

impl Container {
    pub fn is_running(&self) -> bool {
        matches!(self.state, State::Running { .. })
    }

    pub fn exit(&self) -> Option<&Exit> {
        match &self.state {
            State::Exited(exit) => Some(exit),
            State::Created | State::Running { .. } | State::Unknown => None,
        }
    }
}

/// Identifies what a container was created from: its name and image, nothing else. If it changes, the container is
/// replaced (N-21). The node stores it with the container.
pub fn fingerprint(name: &str, image: Option<&str>) -> String {
    hash(&[name, image.unwrap_or_default()])
}

/// A short hash that is the same in every build: FNV-1a. It detects changes; it is not secure.
pub(crate) fn hash(parts: &[&str]) -> String {
    let mut sum: u64 = 0xcbf2_9ce4_8422_2325;
    for byte in parts.iter().flat_map(|part| part.bytes().chain([0])) {
        sum = (sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    format!("{sum:016x}")
}
