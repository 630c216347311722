//! What every pod's worker works with: one of each for the whole node.

use crate::allocations::Allocations;
use crate::config::{NodeFacts, Objects};
use crate::deadlines::Deadlines;
use crate::endpoint::Metrics;
use crate::images::ImageManager;
use crate::pods::Pods;
use crate::probes::Prober;
use crate::timeline::Timeline;
use crate::volumes::Volumes;
use client::{Client, Recorder};
use k8s_openapi::api::core::v1::Node;
use runtime::Runtime;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tokio::sync::watch;

pub(crate) struct Parts {
    pub(crate) client: Client,
    pub(crate) recorder: Recorder,
    pub(crate) timeline: Timeline,
    pub(crate) runtime: Arc<dyn Runtime>,
    /// What stands before `://` in container ids.
    pub(crate) runtime_name: String,
    /// None: the runtime brings the network.
    pub(crate) network: Option<Arc<network::Pods>>,
    pub(crate) images: ImageManager,
    pub(crate) facts: Arc<NodeFacts>,
    pub(crate) objects: Arc<Objects>,
    pub(crate) volumes: Volumes,
    pub(crate) prober: Prober,
    pub(crate) pods: Arc<Pods>,
    pub(crate) allocations: Allocations,
    /// Our own Node object.
    pub(crate) node: watch::Receiver<Option<Arc<Node>>>,
    /// Pods that have not ended, by uid, with their names.
    pub(crate) active: watch::Sender<BTreeMap<String, String>>,
    pub(crate) metrics: Arc<Metrics>,
    /// `/var/log/containers`: a second path for every log, with the container's id in it (N-157).
    pub(crate) log_links: std::path::PathBuf,
    /// None: an ending that an agent before this one began starts over (T-NODE-11).
    pub(crate) deadlines: Option<Deadlines>,
    /// It was said that there is no cluster DNS.
    pub(crate) dns_told: AtomicBool,
    /// When this agent began.
    pub(crate) started_at: jiff::Timestamp,
}

impl Parts {
    pub(crate) fn node(&self) -> Option<Arc<Node>> {
        self.node.borrow().clone()
    }
}
