//! Starts the agent of this node, with its container runtime, its address and its name.

use crate::command::{Drain, GraceAfterRestart, NodeOptions};
use crate::image;
use crate::traffic::{NodeTraffic, TrafficConfig};
use anyhow::Context;
use client::Client;
use runtime::{CpuPriority, Cri, ImageStore, Native, NativeConfig, Runtime};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// In the data directory: the value of --runtime.
const RUNTIME_FILE: &str = "runtime";

/// The value of --runtime for landfall's own container runtime.
pub(crate) const NATIVE: &str = "native";

/// How the agent identifies itself to callers, and the authority of their certificates (PEM).
pub(crate) struct ServingIdentity {
    pub(crate) certificate: Arc<tls::RenewableCertificate>,
    pub(crate) ca: String,
}

pub(crate) async fn start(
    client: Client,
    data_dir: &Path,
    options: &NodeOptions,
    addresses: &[IpAddr],
    serving: &ServingIdentity,
    cpu_priority: &CpuPriority,
) -> anyhow::Result<node::Running> {
    remember_runtime(data_dir, &options.runtime)?;
    let tls = endpoint::server_config(serving.certificate.clone(), &serving.ca)?;
    let config = node::Config {
        name: name(options)?,
        data_dir: data_dir.to_owned(),
        log_dir: log_dir(data_dir),
        node_ips: addresses.to_vec(),
        endpoint: Some(node::Listen {
            address: listen_address(options.node_listen, addresses),
            tls: Arc::new(tls),
        }),
        hardware: None,
        runtime: open_runtime(data_dir, &options.runtime, cpu_priority.shims()).await?,
        link: options.pod_link.clone(),
        manifests: options.pod_manifests.clone(),
        cluster_dns: Vec::new(),
        traffic: Some(Arc::new(NodeTraffic::new(&client, traffic_config(options)?))),
        cgroup: cgroup(&options.pod_link),
        eviction_hard: options.eviction_hard.clone(),
        pod_pids_limit: options.pod_pids_limit.0,
        seccomp_default: options.seccomp_default,
        lease: options.node_lease_duration,
        grace_after_restart: match options.grace_after_restart {
            GraceAfterRestart::Full => node::GraceAfterRestart::Full,
            GraceAfterRestart::Kept => node::GraceAfterRestart::Kept,
        },
        shutdown: options.shutdown.periods()?,
        version: server::discovery::git_version().to_owned(),
    };
    let started = node::start(client, config).await;
    started.map_err(|error| {
        let advice = match &error {
            node::Error::Network(error) => advice(error),
            _ => String::new(),
        };
        anyhow::Error::new(error).context(format!("cannot start the node{advice}"))
    })
}

fn traffic_config(options: &NodeOptions) -> anyhow::Result<TrafficConfig> {
    Ok(TrafficConfig {
        node_name: name(options)?,
        link: options.pod_link.clone(),
        proxy_delay: options.proxy_delay.clone().map(|delay| delay.0),
        drain: match options.drain {
            Drain::Upstream => traffic::drain::Drain::Upstream,
            Drain::Acknowledged => traffic::drain::Drain::Acknowledged,
        },
        health: options.proxy_health_listen.0,
        metrics: options.proxy_metrics_listen.0,
    })
}

/// Fails if the pod network's device belongs to another landfall. Call it before anything is created.
pub(crate) fn check_link(data_dir: &Path, options: &NodeOptions) -> anyhow::Result<()> {
    if options.runtime != NATIVE {
        return Ok(()); // A CRI runtime makes its own network.
    }
    let checked = network::check_link(&options.pod_link, &node::network_records(data_dir));
    checked.map_err(|error| {
        let advice = advice(&error);
        anyhow::Error::new(error).context(format!("cannot start the node{advice}"))
    })
}

/// The flag that resolves a conflict with another landfall.
fn advice(error: &network::Error) -> String {
    let flag = match error {
        network::Error::LinkTaken { .. } => "another device, such as --pod-link lf1",
        network::Error::RangeTaken { .. } => {
            "other pod addresses, such as --pod-cidr 10.245.0.0/16"
        }
        _ => return String::new(),
    };
    format!(
        "; start it with {flag} (or end the other landfall first: landfall down --data-dir DIR)"
    )
}

pub(crate) async fn open_runtime(
    data_dir: &Path,
    choice: &str,
    shims: Option<PathBuf>,
) -> anyhow::Result<Arc<dyn Runtime>> {
    if choice != NATIVE {
        let cri = Cri::connect(choice).await;
        return Ok(Arc::new(cri.with_context(|| format!("cannot use --runtime {choice}"))?));
    }
    let images = image::directory(data_dir);
    let images = ImageStore::open(&images).context("cannot open the image store")?;
    let native = Native::open(NativeConfig {
        state_dir: data_dir.join("run"),
        images: Arc::new(images),
        executable: std::env::current_exe().context("cannot find the path of this program")?,
        shims,
    });
    Ok(Arc::new(native.await.context("cannot run containers on this machine")?))
}

/// Stored for `landfall down`, which terminates pods even if no agent is running.
fn remember_runtime(data_dir: &Path, choice: &str) -> anyhow::Result<()> {
    let path = data_dir.join(RUNTIME_FILE);
    // On a full disk the write would fail.
    if std::fs::read(&path).is_ok_and(|found| found == choice.as_bytes()) {
        return Ok(());
    }
    std::fs::write(&path, choice).with_context(|| format!("cannot write {}", path.display()))
}

/// The runtime that the last agent used.
pub(crate) fn last_runtime(data_dir: &Path) -> String {
    let stored = std::fs::read_to_string(data_dir.join(RUNTIME_FILE));
    stored.map_or_else(|_| NATIVE.to_owned(), |choice| choice.trim().to_owned())
}

/// The node's name: --node-name, or the name of the host (N-3).
pub(crate) fn name(options: &NodeOptions) -> anyhow::Result<String> {
    let name = options.name.clone().unwrap_or_else(node::default_name);
    let name = name.trim().to_lowercase();
    anyhow::ensure!(!name.is_empty(), "this host has no name; set one with --node-name");
    Ok(name)
}

/// The node's addresses: --node-ip, or those of the default routes, or loopback. `pod_ranges` is the value of
/// --pod-cidr, if the server is in this process; the node gets an address of each of its families that has a route.
pub(crate) fn addresses(options: &NodeOptions, pod_ranges: &str) -> anyhow::Result<Vec<IpAddr>> {
    match options.node_ip[..] {
        [] => {}
        [one] => return Ok(vec![one]),
        [a, b] if a.is_ipv4() != b.is_ipv4() => return Ok(vec![a, b]),
        _ => anyhow::bail!("--node-ip: give one address, or one of IPv4 and one of IPv6"),
    }
    let families = pod_ranges.split(',').map(|range| !range.contains(':'));
    let mut found: Vec<IpAddr> = families.filter_map(of_default_route).collect();
    if found.is_empty() {
        let any = of_default_route(true).or_else(|| of_default_route(false));
        found.push(any.unwrap_or(Ipv4Addr::LOCALHOST.into()));
    }
    Ok(found)
}

/// This machine's address on its default route of an IP family.
fn of_default_route(ipv4: bool) -> Option<IpAddr> {
    let (from, to): (IpAddr, IpAddr) = match ipv4 {
        true => (Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::new(192, 0, 2, 1).into()),
        false => {
            (Ipv6Addr::UNSPECIFIED.into(), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into())
        }
    };
    let socket = UdpSocket::bind((from, 0)).ok()?;
    // No packet is sent: the kernel only chooses the route, and with it our address.
    socket.connect((to, 9)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// `0.0.0.0` does not accept connections to the IPv6 address of a node; `::` accepts both families.
fn listen_address(given: SocketAddr, addresses: &[IpAddr]) -> SocketAddr {
    match given.ip() == Ipv4Addr::UNSPECIFIED && addresses.iter().any(IpAddr::is_ipv6) {
        true => SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), given.port()),
        false => given,
    }
}

/// Log shippers read /var/log. A landfall with another data directory keeps its logs there.
fn log_dir(data_dir: &Path) -> PathBuf {
    if data_dir == Path::new(crate::command::DATA_DIR) {
        "/var/log".into()
    } else {
        data_dir.join("log")
    }
}

/// Gives this process more CPU weight than pods have. Call it before the node starts, and keep the
/// result until the node has stopped.
pub(crate) fn cpu_priority(options: &NodeOptions) -> CpuPriority {
    CpuPriority::acquire(&cgroup(&options.pod_link))
}

/// Several nodes on one machine have different cgroups, as they have different links.
fn cgroup(link: &str) -> String {
    if link == crate::command::POD_LINK { "/kubepods".into() } else { format!("/kubepods-{link}") }
}
