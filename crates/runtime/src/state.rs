//! The observed state of sandboxes, containers and images. A container is exited when its exit was observed, not
//! when a signal was sent.

use crate::{Identity, PodNetwork, Resources};
use jiff::Timestamp;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::IpAddr;

#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum SandboxState {
    Ready,
    /// Stopped, or its shim has died. Its containers have exited or will soon.
    NotReady,
}

#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Sandbox {
    pub id: String,
    pub pod: Identity,
    pub attempt: u32,
    pub state: SandboxState,
    /// Why it is not ready, unless it was stopped: "the pod's shim was killed by signal 9".
    pub message: String,
    pub created_at: Timestamp,
    pub network: PodNetwork,
    /// Empty unless the runtime creates the network.
    pub addresses: Vec<IpAddr>,
    /// Newest first.
    pub containers: Vec<Container>,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
}

#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Container {
    pub id: String,
    pub sandbox: String,
    pub name: String,
    pub attempt: u32,
    pub state: ContainerState,
    pub created_at: Timestamp,
    /// The image's name in the pod spec, and its id.
    pub image_name: String,
    pub image: String,
    /// The limits in effect.
    pub resources: Resources,
    /// UID, GID and groups of process 1, if known.
    pub user: Option<(u32, u32, Vec<u32>)>,
    pub mounts: Vec<Mounted>,
    pub log_path: std::path::PathBuf,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
}

/// Sorts containers, newest first. By attempt before creation time: if the clock was set back, an exited container
/// could otherwise hide the one that runs.
pub fn newest_first(containers: &mut [Container]) {
    containers.sort_by_key(|one| Reverse((one.attempt, one.created_at)));
}

/// Sorts sandboxes in the same way.
pub fn newest_sandbox_first(sandboxes: &mut [Sandbox]) {
    sandboxes.sort_by_key(|one| Reverse((one.attempt, one.created_at)));
}

#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Mounted {
    pub target: std::path::PathBuf,
    pub read_only: bool,
    pub recursive_read_only: bool,
}

#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub enum ContainerState {
    Created,
    Running {
        started_at: Timestamp,
    },
    Exited(Exit),
    /// It was started, and its exit is unknown.
    Unknown,
}

#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Exit {
    /// 128 + signal if a signal killed the process.
    pub code: i32,
    pub signal: Option<i32>,
    /// `OOMKilled`, `StartError`, or empty: the agent then reports Completed or Error.
    pub reason: String,
    pub message: String,
    /// `None` if it was never started.
    pub started_at: Option<Timestamp>,
    pub finished_at: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Image {
    /// Digest of its configuration: `sha256:…`.
    pub id: String,
    /// `docker.io/library/busybox:latest`
    pub tags: Vec<String>,
    /// `docker.io/library/busybox@sha256:…`
    pub digests: Vec<String>,
    pub size: u64,
    /// USER of the image if it is a number; otherwise `username` has it.
    pub uid: Option<u32>,
    pub username: String,
    /// Excluded from garbage collection.
    pub pinned: bool,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct ContainerUsage {
    pub pod: String,
    pub container_id: String,
    pub container: String,
    pub at: Timestamp,
    pub cpu_nanoseconds: u64,
    pub memory_bytes: u64,
    pub working_set_bytes: u64,
    pub rss_bytes: u64,
    pub page_faults: u64,
    pub major_page_faults: u64,
    /// Size of the writable layer.
    pub disk_bytes: u64,
    /// Including threads. 0 with CRI, which does not report it.
    pub processes: u64,
    pub started_at: Option<Timestamp>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_first_ignores_a_clock_that_was_set_back() {
        let container = |attempt: u32, created: i64| Container {
            id: format!("c{attempt}"),
            sandbox: "s".into(),
            name: "web".into(),
            attempt,
            state: ContainerState::Created,
            created_at: Timestamp::constant(created, 0),
            image_name: String::new(),
            image: String::new(),
            resources: Resources::default(),
            user: None,
            mounts: Vec::new(),
            log_path: Default::default(),
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
        };
        let mut all = [container(0, 5000), container(2, 4100), container(1, 4000)];
        newest_first(&mut all);
        assert_eq!(all.map(|one| one.attempt), [2, 1, 0]);
    }
}
