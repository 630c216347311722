//! The cluster's DNS server (NET-96 to NET-106), one per node.
//!
//!     UDP, TCP ──▶ server ──▶ zone: from the caches, at once
//!                      └────▶ forward: names outside the zone, to the node's resolvers
//!
//! It has its own two threads, so that answers do not wait for other work of the process. `registration` adds it
//! to the Service kube-system/kube-dns. Not here: how packets to the address of that Service reach this server
//! (`services`).

mod dns_metrics;
mod endpoints;
mod exchange;
mod forward;
mod limits;
mod message;
mod name;
mod registration;
mod resolv_conf;
mod server;
mod sockets;
mod tcp;
mod udp;
mod zone;

pub use registration::{Registration, RegistrationConfig, dns_address, register};

use crate::Watched;
use dns_metrics::DnsMetrics;
use forward::Forwarder;
use hickory_proto::rr::Name;
use limits::Shares;
use resolv_conf::Sources;
use server::Responder;
use sockets::Sockets;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};
use zone::Zone;

/// Threads of the server, and receiving loops per UDP socket.
const THREADS: usize = 2;

#[derive(Debug, Clone)]
pub struct Config {
    /// Where to answer, over UDP and TCP. Not the unspecified address: replies must come from the address that was
    /// asked. Port 0 chooses one.
    pub listen: Vec<SocketAddr>,
    /// The zone, such as `cluster.local`.
    pub domain: String,
    /// The node's resolvers, for names outside the zone.
    pub resolv_conf: PathBuf,
    /// Used instead if `resolv_conf` names systemd-resolved and this file exists.
    pub systemd_resolv_conf: PathBuf,
    /// Further addresses that lead to this server, such as the cluster IP of kube-dns: never forwarded to.
    pub own: Vec<IpAddr>,
    /// The port of the node's resolvers; only tests have another one than 53.
    pub upstream_port: u16,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            listen: Vec::new(),
            domain: "cluster.local".into(),
            resolv_conf: "/etc/resolv.conf".into(),
            systemd_resolv_conf: "/run/systemd/resolve/resolv.conf".into(),
            own: Vec::new(),
            upstream_port: 53,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the cluster domain {domain:?} is not a DNS name")]
    Domain { domain: String },
    #[error("the DNS server has no address to listen on")]
    NoAddress,
    #[error("cannot listen for DNS requests on {address}")]
    Listen {
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
    #[error("cannot start the threads of the DNS server")]
    Threads {
        #[source]
        source: io::Error,
    },
}

/// A running DNS server. It stops when this is dropped.
pub struct Running {
    addresses: Vec<SocketAddr>,
    metrics: DnsMetrics,
    stop: Option<oneshot::Sender<()>>,
    sockets: Option<JoinHandle<()>>,
    runtime: Option<Runtime>,
}

/// Starts the DNS server. Until the caches are complete, names in the zone are answered with SERVFAIL.
pub fn start(watched: Watched, config: Config) -> Result<Running, Error> {
    let domain = zone_name(&config.domain)?;
    if config.listen.is_empty() {
        return Err(Error::NoAddress);
    }
    let mut bound = Vec::new();
    for address in &config.listen {
        let listening = Sockets::bind(*address);
        bound.push(listening.map_err(|source| Error::Listen { address: *address, source })?);
    }
    let addresses: Vec<SocketAddr> = bound.iter().map(|sockets| sockets.address).collect();
    let own = addresses.iter().copied();
    let own = own.chain(config.own.iter().map(|address| SocketAddr::new(*address, 53)));
    let forwarder = Forwarder::new(Sources {
        resolv_conf: config.resolv_conf,
        systemd_resolv_conf: config.systemd_resolv_conf,
        port: config.upstream_port,
        own: own.collect(),
    });
    let metrics = DnsMetrics::new();
    let zone = Zone::new(watched, domain, clock::random_u64);
    let responder = Arc::new(Responder { zone, forwarder, metrics: metrics.clone() });

    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .thread_name("dns")
        .enable_all()
        .build()
        .map_err(|source| Error::Threads { source })?;
    let (stop, stopped) = oneshot::channel();
    let serving = serve(bound, responder, stopped);
    let sockets = runtime.spawn(serving);
    tracing::info!(?addresses, domain = config.domain, "DNS server started");
    Ok(Running {
        addresses,
        metrics,
        stop: Some(stop),
        sockets: Some(sockets),
        runtime: Some(runtime),
    })
}

fn zone_name(domain: &str) -> Result<Name, Error> {
    let labels = domain.trim_end_matches('.').split('.').map(|label| label.to_ascii_lowercase());
    let name = Name::from_labels(labels.map(String::into_bytes));
    name.map_err(|_| Error::Domain { domain: domain.to_owned() })
}

/// Serves all sockets until `stopped`, then closes them.
async fn serve(bound: Vec<Sockets>, responder: Arc<Responder>, stopped: oneshot::Receiver<()>) {
    let mut tasks = JoinSet::new();
    let shares = Shares::new(tcp::CONNECTIONS_MAX, tcp::CLIENT_CONNECTIONS_MAX);
    for sockets in bound {
        let address = sockets.address;
        let (udp, tcp) = match sockets.into_tokio() {
            Ok(sockets) => sockets,
            Err(error) => {
                tracing::error!(%address, %error, "cannot serve DNS requests");
                continue;
            }
        };
        for _ in 0..THREADS {
            tasks.spawn(udp::serve(udp.clone(), responder.clone()));
        }
        tasks.spawn(tcp::serve(tcp, responder.clone(), shares.clone()));
    }
    // Also when the handle is dropped.
    let _ = stopped.await;
    tasks.shutdown().await;
}

impl Running {
    /// Where the server answers, with the ports that were chosen.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    pub fn metrics(&self) -> Arc<metrics::Registry> {
        self.metrics.registry()
    }

    /// Stops the server. Its sockets are closed when this returns.
    pub async fn stop(mut self) {
        drop(self.stop.take());
        if let Some(sockets) = self.sockets.take() {
            let _ = sockets.await;
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Does not wait, so it is allowed in async code.
            runtime.shutdown_background();
        }
    }
}
