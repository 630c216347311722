//! Joins the agent with the crate `traffic`: starts the Service proxy and the other parts once the network is open.

use async_trait::async_trait;
use client::Client;
use k8s_openapi::api::core::v1::Pod;
use network::{Cidr, Services, ServicesConfig};
use node::NodeNetwork;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use traffic::services::health::{self, HealthConfig, HealthServers};
use traffic::{Watched, services};

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
    /// Where the proxy's health and metrics are served. None: nowhere.
    pub(crate) health: Option<SocketAddr>,
    pub(crate) metrics: Option<SocketAddr>,
}

/// Everything that runs. Dropping it stops it.
struct Parts {
    _proxy: services::Running,
    _health: HealthServers,
}

impl NodeTraffic {
    pub(crate) fn new(client: &Client, config: TrafficConfig) -> NodeTraffic {
        NodeTraffic { client: client.clone(), config, running: Mutex::new(None) }
    }

    async fn start_proxy(
        &self,
        watched: &Watched,
        gateways: Vec<(Cidr, IpAddr)>,
    ) -> Result<services::Running, String> {
        let config = ServicesConfig {
            table: node::service_table(&self.config.link),
            service_ranges: watched.service_ranges(),
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
        let proxy = services::start(watched.clone(), rules, config);
        proxy.synced().await;
        Ok(proxy)
    }

    fn take(&self) -> Option<Parts> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[async_trait]
impl node::Traffic for NodeTraffic {
    async fn start(&self, network: NodeNetwork) -> Result<(), String> {
        let watched = Watched::start(&self.client);
        watched.synced().await;
        let gateways = network.pods.as_ref().map(|pods| pods.gateways()).unwrap_or_default();
        let proxy = self.start_proxy(&watched, gateways).await?;
        let config = HealthConfig {
            node_name: self.config.node_name.clone(),
            health: self.config.health,
            metrics: self.config.metrics,
            addresses: network.addresses,
        };
        let health = health::start(&watched, proxy.state(), proxy.metrics(), config).await;
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        *running = Some(Parts { _proxy: proxy, _health: health });
        Ok(())
    }

    async fn pod_attached(&self, _pod: &Pod, _addresses: &[IpAddr]) {}

    async fn pod_detached(&self, _uid: &str) {}

    async fn remove(&self) {
        drop(self.take());
        let table = node::service_table(&self.config.link);
        let removed = clock::run_blocking(move || network::remove_service_rules(&table)).await;
        if let Ok(Err(error)) = removed {
            tracing::warn!(%error, "removing the packet rules of Services failed");
        }
    }
}
