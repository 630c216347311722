//! Records of sandboxes and containers on disk, from which the agent restores its state after a crash.
//!
//!     <state>/<sandbox>/sandbox.json     the sandbox; written first
//!                       shim.json        configuration of the shim
//!                       shim.pid         PID and start time of the shim
//!                       shim.sock
//!                       stopped          exists if the agent has stopped the sandbox
//!                       shm/             the pod's /dev/shm
//!                       proc/            /proc of the PID namespace that its containers share
//!                       containers/<container>/container.json   the container; written last
//!                                              config.json      OCI configuration for libcontainer
//!                                              plan.json        further instructions for the shim
//!                                              started          start time; written by the shim
//!                                              exit.json        its exit; written by the shim
//!                                              upper/ work/ rootfs/ state/ volumes/

use crate::{Container, Error, Exit, Identity, Namespace, PodNetwork, Result, UserRange, durable};
use jiff::Timestamp;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct SandboxRecord {
    pub(crate) id: String,
    pub(crate) pod: Identity,
    pub(crate) attempt: u32,
    pub(crate) created_at: Timestamp,
    pub(crate) network: PodNetwork,
    pub(crate) ipc: Namespace,
    pub(crate) pid: Namespace,
    #[serde(default)]
    pub(crate) users: Option<UserRange>,
    pub(crate) cgroup: String,
    pub(crate) log_directory: PathBuf,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) annotations: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ContainerRecord {
    /// The state in it may be outdated: `started` and `exit.json` have the current one.
    pub(crate) container: Container,
    pub(crate) stop_signal: i32,
    pub(crate) terminal: bool,
    pub(crate) stdin: bool,
}

/// Identifies the shim's process. The PID alone may have been reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ShimProcess {
    pub(crate) pid: i32,
    pub(crate) started: u64,
}

impl ShimProcess {
    pub(crate) fn of(pid: i32) -> Option<ShimProcess> {
        /// Fields of proc(5) between the state and the start time.
        const START_TIME_AFTER_STATE: usize = 18;
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name in parentheses may contain any character, so count fields after it.
        let (_, fields) = stat.rsplit_once(") ")?;
        let mut fields = fields.split(' ');
        let dead = fields.next() == Some("Z");
        let started = fields.nth(START_TIME_AFTER_STATE)?.parse().ok()?;
        (!dead).then_some(ShimProcess { pid, started })
    }

    pub(crate) fn is_alive(self) -> bool {
        ShimProcess::of(self.pid) == Some(self)
    }
}

pub(crate) fn write(path: &Path, record: &impl Serialize) -> Result<()> {
    let text = serde_json::to_vec(record)
        .map_err(|error| Error::Refused(format!("cannot write {}: {error}", path.display())))?;
    durable::replace(path, &text).map_err(Error::io("write", path))
}

/// `None` if the file does not exist or is incomplete.
pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}

pub(crate) fn exit_of(container: &Path) -> Option<Exit> {
    read(&container.join("exit.json"))
}

pub(crate) fn started_at(container: &Path) -> Option<Timestamp> {
    std::fs::read_to_string(container.join("started")).ok()?.parse().ok()
}
