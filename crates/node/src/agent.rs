//! Starts everything a node needs, in order, and stops it again.
//!
//!     facts ▸ endpoint ▸ registration ▸ network ▸ pods ▸ workers
//!
//! Not here: what becomes of a pod (`worker`), what the Node object says (`node_object`).

use crate::config::{NodeFacts, Objects};
use crate::dispatch::{Dispatch, News};
use crate::images::ImageManager;
use crate::parts::Parts;
use crate::pods::Pods;
use crate::probes::Prober;
use crate::volumes::Volumes;
use crate::worker::observe::network_key;
use client::{Cache, Client, ObjectKey, Recorder};
use k8s_openapi::api::core::v1::{Node, Pod};
use runtime::Runtime;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::{broadcast, mpsc};
use tokio::task::JoinSet;

/// News that wait for the one task that hands them on. Senders wait when it is full.
const NEWS_WAITING: usize = 1024;
/// Probe results that wait.
const RESULTS_WAITING: usize = 256;

pub struct Config {
    pub name: String,
    /// Everything the agent keeps is below it.
    pub data_dir: PathBuf,
    /// `/var/log`, or what stands for it.
    pub log_dir: PathBuf,
    /// None: that of the default route.
    pub node_ip: Option<IpAddr>,
    /// Where logs, exec and the like are served.
    pub listen: SocketAddr,
    pub tls: rustls::ServerConfig,
    pub runtime: Arc<dyn Runtime>,
    /// The device that pods' links are called after.
    pub link: String,
    /// Static pods.
    pub manifests: Option<PathBuf>,
    pub cluster_dns: Vec<IpAddr>,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the container runtime cannot be used")]
    Runtime(#[source] runtime::Error),
    #[error("the pods' network cannot be set up")]
    Network(#[source] network::Error),
    #[error("cannot listen on {address}")]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error("the API server does not answer as it should")]
    Api(#[source] client::Error),
    #[error("cannot use {}", path.display())]
    Directory { path: PathBuf, source: std::io::Error },
    #[error("{0}")]
    Other(String),
}
