//! The Node object: registers this machine in the API and keeps its status up to date (N-1 to N-18, N-202).
//!
//!     machine, runtime ──▶ Facts ─┐
//!     the agent ─────────▶ Health ┼─▶ status (pure) ─▶ patch (pure) ─▶ registration, lease ─▶ API
//!     the current Node ───────────┘
//!
//! Not here: when the node is under pressure (`eviction`), and how that affects pods (`admission`).

mod address;
mod conditions;
mod facts;
mod lease;
mod machine;
mod patch;
mod registration;
mod resources;
mod status;

pub(crate) use address::Addresses;
pub(crate) use facts::{facts_of, given, watch_runtime};
pub(crate) use machine::{Machine, kilobytes};
pub(crate) use registration::{FactsProvider, Registration, node_reference};

use k8s_openapi::api::core::v1::Taint;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use runtime::{Features, Image, Version};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Upstream: `nodeLeaseDurationSeconds`.
pub const LEASE_DURATION: Duration = Duration::from_secs(40);

/// The configuration of the node.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// Name of the Node and its Lease, and its hostname label (N-3).
    pub(crate) name: String,
    /// Empty means automatic (N-8). Two for dual stack.
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) taints: Vec<Taint>,
    /// The filesystem that holds this directory is the node's ephemeral storage.
    pub(crate) directory: PathBuf,
    pub(crate) pods_max: i64,
    /// 0 means no such limit.
    pub(crate) pods_per_core: i64,
    /// Quantities reserved for the system and the agent together, by resource name.
    pub(crate) reserved: BTreeMap<String, String>,
    /// Port of the agent's HTTPS endpoint.
    pub(crate) port: u16,
    /// Duration of the Lease, in whole seconds.
    pub(crate) lease: Duration,
    /// Version of this program, such as `v1.36.4`.
    pub(crate) version: String,
    /// Features of the runtime.
    pub(crate) features: Features,
}

/// The default name of a node: the kernel's hostname, trimmed and in lower case (N-3).
pub fn default_name() -> String {
    let hostname = nix::unistd::gethostname().unwrap_or_default();
    hostname.to_string_lossy().trim().to_lowercase()
}

impl Settings {
    /// Upstream's defaults.
    pub(crate) fn new(name: &str, directory: impl Into<PathBuf>, version: &str) -> Settings {
        Settings {
            name: name.trim().to_lowercase(),
            addresses: Vec::new(),
            labels: BTreeMap::new(),
            taints: Vec::new(),
            directory: directory.into(),
            pods_max: 110,
            pods_per_core: 0,
            reserved: BTreeMap::new(),
            port: 10250,
            lease: LEASE_DURATION,
            version: version.to_owned(),
            features: Features::default(),
        }
    }
}

/// Facts about the machine and its runtime.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Facts {
    pub(crate) machine: Machine,
    pub(crate) addresses: Addresses,
    /// Size of the filesystem of the node's directory, in bytes.
    pub(crate) storage: Option<u64>,
    pub(crate) runtime: Option<Version>,
    pub(crate) images: Vec<Image>,
}

/// The size of a machine, for simulated nodes.
#[derive(Debug, Clone, Copy)]
pub struct Hardware {
    pub cores: u64,
    pub memory_bytes: u64,
    pub storage_bytes: u64,
}

/// The health of the node. The agent sends it on a watch channel, and each change is written at once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Health {
    /// None until the runtime was checked once.
    pub(crate) runtime: Option<Result<(), RuntimeProblem>>,
    /// None until the network was checked once. The error is a message for the condition.
    pub(crate) network: Option<Result<(), String>>,
    /// Whether the pods of all other nodes can be reached. None until it is known, or if this node does not keep routes.
    /// The error is a message for the condition.
    pub(crate) routes: Option<Result<(), String>>,
    pub(crate) memory_pressure: bool,
    pub(crate) disk_pressure: bool,
    pub(crate) pid_pressure: bool,
    pub(crate) shutting_down: bool,
}

impl Health {
    /// The types of the pressure conditions that are true.
    pub(crate) fn pressure(&self) -> Vec<String> {
        let all = [
            ("MemoryPressure", self.memory_pressure),
            ("DiskPressure", self.disk_pressure),
            ("PIDPressure", self.pid_pressure),
        ];
        all.into_iter().filter(|(_, pressure)| *pressure).map(|(name, _)| name.to_owned()).collect()
    }
}

/// Quantities by resource name.
pub(crate) type Amounts = BTreeMap<String, Quantity>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RuntimeProblem {
    /// The runtime has not answered for 30 s.
    Down,
    /// The runtime reports that it is not ready, and why.
    NotReady(String),
}
