//! What all pod workers of the node share.

use crate::allocations::Allocations;
use crate::deadlines::Deadlines;
use crate::images::ImageManager;
use crate::pods::Pods;
use crate::probes::Prober;
use crate::timeline::Timeline;
use crate::traffic::Traffic;
use client::{Client, Recorder};
use endpoint::Metrics;
use k8s_openapi::api::core::v1::Node;
use podconfig::{NodeFacts, Objects, UserRanges};
use runtime::Runtime;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tokio::sync::watch;
use volumes::Volumes;

pub(crate) struct Dependencies {
    pub(crate) client: Client,
    pub(crate) recorder: Recorder,
    pub(crate) timeline: Timeline,
    pub(crate) runtime: Arc<dyn Runtime>,
    /// The part before `://` in container ids.
    pub(crate) runtime_name: String,
    /// None if the runtime provides the network.
    pub(crate) network: Option<Arc<network::Pods>>,
    pub(crate) traffic: Option<Arc<dyn Traffic>>,
    pub(crate) images: ImageManager,
    pub(crate) facts: Arc<NodeFacts>,
    pub(crate) objects: Arc<Objects>,
    pub(crate) volumes: Volumes,
    pub(crate) users: UserRanges,
    pub(crate) prober: Prober,
    pub(crate) pods: Arc<Pods>,
    pub(crate) allocations: Allocations,
    /// The Node object of this node.
    pub(crate) node: watch::Receiver<Option<Arc<Node>>>,
    /// Names of the pods that have a worker, by uid.
    pub(crate) active: watch::Sender<BTreeMap<String, String>>,
    pub(crate) metrics: Arc<Metrics>,
    /// `/var/log/containers`: a second path for every log, with the container's id in it (N-157).
    pub(crate) log_links: std::path::PathBuf,
    /// None: a termination that an earlier agent began starts over (T-NODE-11).
    pub(crate) deadlines: Option<Deadlines>,
    /// The event about missing cluster DNS was created.
    pub(crate) dns_told: AtomicBool,
    /// When this agent started.
    pub(crate) started_at: jiff::Timestamp,
}

impl Dependencies {
    pub(crate) fn node(&self) -> Option<Arc<Node>> {
        self.node.borrow().clone()
    }
}
