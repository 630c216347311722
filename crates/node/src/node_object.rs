//! The Node object: what this machine is and how it feels, said to the API and kept fresh there
//! (N-1 to N-18, N-202).
//!
//!     machine, runtime ──▶ Facts ─┐
//!     the agent ─────────▶ Health ┼─▶ status (pure) ─▶ patch (pure) ─▶ registration, lease ─▶ API
//!     the Node as it is ──────────┘
//!
//! Not here: when the node is under pressure (`eviction`), what that means for pods (`admission`).

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

/// What whoever runs the node has chosen.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// Of the Node, its Lease and its hostname label (N-3).
    pub(crate) name: String,
    /// Empty: chosen (N-8). Two for dual stack.
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) taints: Vec<Taint>,
    /// The filesystem that holds this directory is the node's ephemeral storage.
    pub(crate) directory: PathBuf,
    pub(crate) pods_max: i64,
    /// 0: no such limit.
    pub(crate) pods_per_core: i64,
    /// For the system and for the agent together, as quantities by resource name.
    pub(crate) reserved: BTreeMap<String, String>,
    /// Of the agent's HTTPS endpoint.
    pub(crate) port: u16,
    /// How long the Lease lasts; whole seconds.
    pub(crate) lease: Duration,
    /// Of this program, as `v1.36.4`.
    pub(crate) version: String,
    /// What the runtime can do.
    pub(crate) features: Features,
}

/// Name of a node by default: the kernel's hostname, trimmed and in lower case (N-3).
pub fn default_name() -> String {
    let hostname = nix::unistd::gethostname().unwrap_or_default();
    hostname.to_string_lossy().trim().to_lowercase()
}

impl Settings {
    /// As upstream's defaults have it.
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
            features: Features {
                recursive_read_only: true,
                strict_groups: true,
                prompt_stop: true,
            },
        }
    }
}

/// What is so, as read a moment ago.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Facts {
    pub(crate) machine: Machine,
    pub(crate) addresses: Addresses,
    /// Bytes of the filesystem that holds the node's directory.
    pub(crate) storage: Option<u64>,
    pub(crate) runtime: Option<Version>,
    pub(crate) images: Vec<Image>,
}

/// A machine in a few numbers, for a node that has none.
#[derive(Debug, Clone, Copy)]
pub struct Hardware {
    pub cores: u64,
    pub memory_bytes: u64,
    pub storage_bytes: u64,
}

/// How the node feels; told by the agent on a watch channel, each change is written at once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Health {
    /// None: the runtime has not been asked yet.
    pub(crate) runtime: Option<Result<(), RuntimeTrouble>>,
    /// None: the network has not been asked yet. The error is a text for people.
    pub(crate) network: Option<Result<(), String>>,
    pub(crate) memory_pressure: bool,
    pub(crate) disk_pressure: bool,
    pub(crate) pid_pressure: bool,
    pub(crate) shutting_down: bool,
}

impl Health {
    /// The condition types that are true, as admission wants them.
    pub(crate) fn pressure(&self) -> Vec<String> {
        let all = [
            ("MemoryPressure", self.memory_pressure),
            ("DiskPressure", self.disk_pressure),
            ("PIDPressure", self.pid_pressure),
        ];
        all.into_iter().filter(|(_, pressed)| *pressed).map(|(name, _)| name.to_owned()).collect()
    }
}

/// Quantities by resource name.
pub(crate) type Amounts = BTreeMap<String, Quantity>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RuntimeTrouble {
    /// No answer for half a minute.
    Down,
    /// It answers, and says why it cannot.
    NotReady(String),
}
