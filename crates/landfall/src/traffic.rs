//! Joins the agent with the crate `traffic`: starts routes, policies, the Service proxy and the DNS server once the
//! network is open, and removes them with the last pod.

use async_trait::async_trait;
use client::Client;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::Pod;
use lifecycle::drain::DrainUpdate;
use network::{Cidr, Pods, Services, ServicesConfig};
use node::NodeNetwork;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use traffic::policies::{LocalServer, Policies};
use traffic::services::health::{self, HealthConfig, HealthServers};
use traffic::{Watched, dns, drain, policies, routes, services};

/// Ports at which the DNS server listens, in this order of preference: another resolver may have the first one.
const DNS_PORTS: [u16; 2] = [53, 0];

pub(crate) struct NodeTraffic {
    client: Client,
    config: TrafficConfig,
    running: Mutex<Option<Parts>>,
}

#[derive(Debug, Clone)]
pub(crate) struct TrafficConfig {
    pub(crate) node_name: String,
    /// The device of the pod network, after which tables are named.
    pub(crate) link: String,
    pub(crate) proxy_delay: Option<RangeInclusive<Duration>>,
    /// For pods without an annotation.
    pub(crate) drain: drain::Drain,
    /// Where the proxy's health and metrics are served. None: nowhere.
    pub(crate) health: Option<SocketAddr>,
    pub(crate) metrics: Option<SocketAddr>,
}

/// Everything that runs. Dropping it stops it.
struct Parts {
    _proxy: services::Running,
    drain: drain::Running,
    _health: HealthServers,
    dns: Option<Names>,
    routes: Option<routes::Running>,
    policies: Option<policies::Running>,
}

struct Names {
    server: dns::Running,
    _registration: dns::Registration,
    /// The address that pods use.
    cluster_ip: IpAddr,
}

impl NodeTraffic {
    pub(crate) fn new(client: &Client, config: TrafficConfig) -> NodeTraffic {
        NodeTraffic { client: client.clone(), config, running: Mutex::new(None) }
    }

    async fn start_parts(&self, network: NodeNetwork) -> Result<Parts, String> {
        let watched = Watched::start(&self.client);
        watched.synced().await;
        let gateways = network.pods.as_ref().map(|pods| pods.gateways()).unwrap_or_default();
        let routes = network.pods.as_ref().map(|pods| {
            let config = routes::Config::new(&self.config.node_name, &network.addresses);
            routes::start(watched.clone(), pods.clone(), config)
        });
        let dns = self.start_dns(&watched, &gateways, &network.addresses);
        let policies = match &network.pods {
            Some(pods) => Some(self.start_policies(&watched, pods, dns.as_ref()).await?),
            None => None,
        };
        let service_ranges = usable_ranges(watched.service_ranges());
        if let Some(pods) = &network.pods {
            // Only programs on a node without a default route need them.
            if let Err(error) = pods.add_service_routes(&service_ranges).await {
                tracing::warn!(%error, "adding routes to Services failed; pods reach them, programs on this node may not");
            }
        }
        let proxy = self.start_proxy(&watched, service_ranges, gateways).await?;
        let config = HealthConfig {
            node_name: self.config.node_name.clone(),
            health: self.config.health,
            metrics: self.config.metrics,
            addresses: network.addresses,
        };
        let drain =
            drain::Config { node_name: self.config.node_name.clone(), default: self.config.drain };
        let drain = drain::start(&self.client, &watched, proxy.committed(), drain);
        let mut registries = vec![proxy.metrics()];
        registries.extend(dns.as_ref().map(|dns| dns.server.metrics()));
        let health = health::start(&watched, proxy.state(), registries, config).await;
        Ok(Parts { _proxy: proxy, drain, _health: health, dns, routes, policies })
    }

    async fn start_proxy(
        &self,
        watched: &Watched,
        service_ranges: Vec<Cidr>,
        gateways: Vec<(Cidr, IpAddr)>,
    ) -> Result<services::Running, String> {
        let config = ServicesConfig {
            table: node::service_table(&self.config.link),
            service_ranges,
            pod_ranges: gateways.iter().map(|(range, _)| *range).collect(),
            gateways,
        };
        let pod_ranges = config.pod_ranges.clone();
        let opened = clock::run_blocking(move || Services::open(&config)).await;
        let opened = opened.map_err(|error| error.to_string())?;
        let rules = opened.map_err(|error| format!("writing packet rules failed: {error}"))?;
        let config = services::Config {
            node_name: self.config.node_name.clone(),
            pod_ranges,
            delay: self.config.proxy_delay.clone(),
        };
        let proxy = services::start(watched.clone(), Box::new(rules), config);
        proxy.synced().await;
        Ok(proxy)
    }

    /// The DNS server of this node, at the pods' gateway, or at the node's address if the runtime provides the network.
    /// Without it pods use the node's resolvers.
    fn start_dns(
        &self,
        watched: &Watched,
        gateways: &[(Cidr, IpAddr)],
        addresses: &[IpAddr],
    ) -> Option<Names> {
        let cluster_ip = watched.primary_service_range().and_then(dns::dns_address)?;
        let own = gateways.iter().map(|(_, gateway)| gateway).chain(addresses);
        let address = own.copied().find(|address| address.is_ipv4() == cluster_ip.is_ipv4())?;
        let start = |port| {
            let listen = vec![SocketAddr::new(address, port)];
            let config = dns::Config { listen, own: vec![cluster_ip], ..dns::Config::default() };
            dns::start(watched.clone(), config)
        };
        let started = start(DNS_PORTS[0]).or_else(|_| start(DNS_PORTS[1]));
        let warn = |error: &dns::Error| {
            tracing::warn!(%error, "the DNS server does not run; pods use the node's resolvers");
        };
        let server = started.inspect_err(warn).ok()?;
        let config = dns::RegistrationConfig {
            node: self.config.node_name.clone(),
            server: *server.addresses().first()?,
        };
        let registration = dns::register(&self.client, watched, config);
        Some(Names { server, _registration: registration, cluster_ip })
    }

    async fn start_policies(
        &self,
        watched: &Watched,
        pods: &Arc<Pods>,
        dns: Option<&Names>,
    ) -> Result<policies::Running, String> {
        let mut config = policies::Config::new(pods.config(), &self.config.node_name);
        config.servers = dns.map(dns_as_pod).into_iter().collect();
        let started = policies::start(&self.client, watched, config).await;
        started.map_err(|error| format!("writing network policies failed: {error}"))
    }

    fn running(&self) -> MutexGuard<'_, Option<Parts>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// None if the runtime provides the network: it then enforces policies too, or not.
    fn policies(&self) -> Option<Policies> {
        self.running().as_ref()?.policies.as_ref().map(policies::Running::policies)
    }
}

/// On a host without IPv6, Services are served at their IPv4 addresses only.
fn usable_ranges(mut ranges: Vec<Cidr>) -> Vec<Cidr> {
    if network::ipv6_unavailable().is_some() {
        ranges.retain(Cidr::is_ipv4);
    }
    ranges
}

/// Policies select the DNS server by the labels that its pods have in other clusters.
fn dns_as_pod(dns: &Names) -> LocalServer {
    let addresses = dns.server.addresses();
    let port = addresses.first().map_or(DNS_PORTS[0], SocketAddr::port);
    LocalServer {
        namespace: "kube-system".to_owned(),
        labels: BTreeMap::from([("k8s-app".to_owned(), "kube-dns".to_owned())]),
        addresses: addresses.iter().map(SocketAddr::ip).collect(),
        ports: vec![
            ("dns".to_owned(), network::Protocol::Udp, port),
            ("dns-tcp".to_owned(), network::Protocol::Tcp, port),
        ],
    }
}

/// The current state of the routes, and then every change. It ends with the task that keeps them.
fn follow_routes(
    mut status: watch::Receiver<routes::Status>,
) -> impl Stream<Item = Result<(), String>> {
    status.mark_changed();
    futures::stream::unfold(status, |mut status| async move {
        loop {
            status.changed().await.ok()?;
            let reachable = status.borrow_and_update().reachable();
            if let Some(reachable) = reachable {
                return Some((reachable, status));
            }
        }
    })
}

#[async_trait]
impl node::Traffic for NodeTraffic {
    async fn start(&self, network: NodeNetwork) -> Result<Vec<IpAddr>, String> {
        let parts = self.start_parts(network).await?;
        let cluster_dns = parts.dns.as_ref().map(|dns| dns.cluster_ip);
        *self.running() = Some(parts);
        Ok(cluster_dns.into_iter().collect())
    }

    fn routes(&self) -> Option<BoxStream<'static, Result<(), String>>> {
        let status = self.running().as_ref()?.routes.as_ref()?.status();
        Some(follow_routes(status).boxed())
    }

    async fn pod_attached(&self, pod: &Pod, addresses: &[IpAddr]) -> Result<(), String> {
        let Some(policies) = self.policies() else { return Ok(()) };
        policies.pod_attached(pod, addresses).await.map_err(|error| error.to_string())
    }

    fn drain(&self, pod: &Pod) -> Option<mpsc::Receiver<DrainUpdate>> {
        self.running().as_ref()?.drain.drains().wait(pod)
    }

    async fn pod_detached(&self, uid: &str) {
        let Some(policies) = self.policies() else { return };
        if let Err(error) = policies.pod_detached(uid).await {
            tracing::warn!(uid, %error, "removing the network policies of a pod failed");
        }
    }

    async fn remove(&self) {
        drop(self.running().take());
        let link = self.config.link.clone();
        let removed = clock::run_blocking(move || node::remove_traffic_rules(&link)).await;
        if let Ok(Err(error)) = removed {
            tracing::warn!(%error, "removing packet rules failed");
        }
    }
}
