//! What is on disk about sandboxes and containers, so that they are found again after a crash.
//!
//!     <state>/<sandbox>/sandbox.json     what was asked for; written first
//!                       shim.json        for the shim
//!                       shim.pid         pid and start time of the shim
//!                       shim.sock
//!                       stopped          it was stopped as asked
//!                       shm/             the pod's /dev/shm
//!                       containers/<container>/container.json   what was asked for
//!                                              config.json      for libcontainer
//!                                              plan.json        for the shim
//!                                              started          when; written by the shim
//!                                              exit.json        how it ended; written by the shim
//!                                              upper/ work/ rootfs/ state/ volumes/

use crate::{Container, Error, Exit, Identity, Namespace, PodNetwork, Result, durable};
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
    pub(crate) cgroup: String,
    pub(crate) log_directory: PathBuf,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) annotations: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ContainerRecord {
    /// With the state it had when it was written; the truth is in the files beside it.
    pub(crate) container: Container,
    pub(crate) stop_signal: i32,
    pub(crate) terminal: bool,
    pub(crate) stdin: bool,
}

/// Which process the shim is. A pid alone may have become somebody else's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ShimProcess {
    pub(crate) pid: i32,
    pub(crate) started: u64,
}

impl ShimProcess {
    pub(crate) fn of(pid: i32) -> Option<ShimProcess> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name in parentheses may contain anything; fields are counted after it.
        let (_, fields) = stat.rsplit_once(") ")?;
        let mut fields = fields.split(' ');
        let dead = fields.next() == Some("Z");
        let started = fields.nth(18)?.parse().ok()?;
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

/// None when there is no such file, or it is not whole.
pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}

pub(crate) fn exit_of(container: &Path) -> Option<Exit> {
    read(&container.join("exit.json"))
}

pub(crate) fn started_at(container: &Path) -> Option<Timestamp> {
    std::fs::read_to_string(container.join("started")).ok()?.parse().ok()
}
