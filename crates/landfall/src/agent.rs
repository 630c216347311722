//! The node's side of a landfall: its runtime, its credentials, its agent.

use crate::command::{GraceAfterRestart, NodeOptions};
use crate::image;
use anyhow::Context;
use client::Client;
use runtime::{Cri, ImageStore, Native, NativeConfig, Precedence, Runtime};
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where the server gives Services their addresses.
const SERVICES: &str = "10.96.0.0/16";

/// What the agent shows to whoever calls it, and whose callers it knows (PEM).
pub(crate) struct Serving {
    pub(crate) shown: Arc<tls::Shown>,
    pub(crate) ca: String,
}

pub(crate) async fn start(
    client: Client,
    data_dir: &Path,
    options: &NodeOptions,
    serving: &Serving,
    precedence: &Precedence,
) -> anyhow::Result<node::Running> {
    let tls = node::endpoint::server_config(serving.shown.clone(), &serving.ca)?;
    let config = node::Config {
        name: name(options)?,
        data_dir: data_dir.to_owned(),
        log_dir: log_dir(data_dir),
        node_ip: Some(address(options)),
        endpoint: Some(node::Listen { address: options.node_listen, tls: Arc::new(tls) }),
        hardware: None,
        runtime: open_runtime(data_dir, &options.runtime, precedence.shims()).await?,
        link: options.pod_link.clone(),
        manifests: options.pod_manifests.clone(),
        cluster_dns: Vec::new(),
        service_cidrs: vec![SERVICES.to_owned()],
        cgroup: cgroup(&options.pod_link),
        eviction_hard: options.eviction_hard.clone(),
        pod_pids_limit: options.pod_pids_limit,
        lease: options.node_lease_duration,
        grace_after_restart: match options.grace_after_restart {
            GraceAfterRestart::Full => node::GraceAfterRestart::Full,
            GraceAfterRestart::Kept => node::GraceAfterRestart::Kept,
        },
        shutdown: options.shutdown.periods()?,
        version: server::discovery::git_version().to_owned(),
    };
    node::start(client, config).await.context("the node could not be started")
}

pub(crate) async fn open_runtime(
    data_dir: &Path,
    choice: &str,
    shims: Option<PathBuf>,
) -> anyhow::Result<Arc<dyn Runtime>> {
    if choice != "native" {
        let cri = Cri::connect(choice).await;
        return Ok(Arc::new(cri.with_context(|| format!("--runtime {choice} cannot be used"))?));
    }
    let images = image::directory(data_dir);
    let images = ImageStore::open(&images).context("the images cannot be used")?;
    let native = Native::open(NativeConfig {
        state_dir: data_dir.join("run"),
        images: Arc::new(images),
        executable: std::env::current_exe().context("landfall does not find itself")?,
        shims,
    });
    Ok(Arc::new(native.await.context("containers cannot be run here")?))
}

/// The node's name: as given, else the host's (N-3).
pub(crate) fn name(options: &NodeOptions) -> anyhow::Result<String> {
    let name = options.name.clone().unwrap_or_else(node::default_name);
    let name = name.trim().to_lowercase();
    anyhow::ensure!(!name.is_empty(), "this host has no name; give one with --node-name");
    Ok(name)
}

/// As given, else that of the default route, else loopback.
pub(crate) fn address(options: &NodeOptions) -> IpAddr {
    let of_default_route = || {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
        // No packet is sent: the kernel only chooses the way, and with it our address.
        socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    options.node_ip.or_else(of_default_route).unwrap_or(Ipv4Addr::LOCALHOST.into())
}

/// Log shippers look below /var/log; a landfall beside the usual one keeps its logs to itself.
fn log_dir(data_dir: &Path) -> PathBuf {
    if data_dir == Path::new(crate::command::DATA_DIR) {
        "/var/log".into()
    } else {
        data_dir.join("log")
    }
}

/// Before anything of the node runs, so that all of it has it. Held until nothing does.
pub(crate) fn precedence(options: &NodeOptions) -> Precedence {
    Precedence::take(&cgroup(&options.pod_link))
}

/// Nodes on one machine have different ones, as they have different links.
fn cgroup(link: &str) -> String {
    if link == crate::command::POD_LINK { "/kubepods".into() } else { format!("/kubepods-{link}") }
}
