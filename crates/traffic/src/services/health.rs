//! The HTTP endpoints of the proxy: its health, its metrics, and the health check ports of Services.
//!
//! | listener | paths | rule |
//! |---|---|---|
//! | 0.0.0.0:10256 | `/healthz`, `/livez` | NET-65, T-NET-20 |
//! | 127.0.0.1:10249 | `/metrics`, `/healthz`, `/proxyMode`, `/configz` | NET-66 |
//! | `healthCheckNodePort` of a Service | any | NET-42, NET-43, T-NET-19 |

use super::ProxyState;
use super::http::{Listener, Reply};
use crate::Watched;
use client::ObjectKey;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// A change that waits for longer than this means that the proxy does not work. Upstream: two sync periods.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// A cluster autoscaler is about to remove the node.
const TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";
/// A port that could not be opened is tried again after this time.
const RETRY_AFTER: Duration = Duration::from_secs(30);

const HEALTHZ: &str = "kubeproxy_proxy_healthz_total";
const LIVEZ: &str = "kubeproxy_proxy_livez_total";

/// Upstream's metrics of the health endpoints (NET-64).
fn answers() -> Arc<metrics::Registry> {
    let registry = metrics::Registry::new(&[
        metrics::counter(HEALTHZ, &["code"], "Answers to /healthz."),
        metrics::counter(LIVEZ, &["code"], "Answers to /livez."),
    ]);
    Arc::new(registry)
}

#[derive(Debug, Clone)]
pub struct HealthConfig {
    pub node_name: String,
    pub health: Option<SocketAddr>,
    pub metrics: Option<SocketAddr>,
    /// The addresses at which health check ports are opened.
    pub addresses: Vec<IpAddr>,
}

/// The running endpoints. Dropping it closes them.
pub struct HealthServers {
    _listeners: Vec<Listener>,
    checks: JoinHandle<()>,
}

impl Drop for HealthServers {
    fn drop(&mut self) {
        self.checks.abort();
    }
}

/// Opens the endpoints. An address that is in use is reported in the log; the proxy works without it.
pub async fn start(
    watched: &Watched,
    state: watch::Receiver<ProxyState>,
    mut registries: Vec<Arc<metrics::Registry>>,
    config: HealthConfig,
) -> HealthServers {
    let settings = settings(&config);
    let health = Health {
        watched: watched.clone(),
        state: state.clone(),
        node: config.node_name,
        answers: answers(),
    };
    let health = Arc::new(health);
    registries.push(health.answers.clone());
    let mut listeners = Vec::new();
    if let Some(address) = config.health {
        let health = health.clone();
        listeners.extend(open(address, move |path| health.answer(path)).await);
    }
    if let Some(address) = config.metrics {
        listeners
            .extend(open(address, move |path| metrics_page(&registries, &settings, path)).await);
    }
    let checks = tokio::spawn(follow_checks(health, state, config.addresses));
    HealthServers { _listeners: listeners, checks }
}

async fn open(
    address: SocketAddr,
    answer: impl Fn(&str) -> Reply + Send + Sync + 'static,
) -> Option<Listener> {
    let opened = Listener::open(address, answer).await;
    let warn = |error: &std::io::Error| {
        tracing::warn!(%address, %error, "cannot open an HTTP endpoint of the Service proxy");
    };
    opened.inspect_err(warn).ok()
}

struct Health {
    watched: Watched,
    state: watch::Receiver<ProxyState>,
    node: String,
    /// How often each health was asked for, by answer.
    answers: Arc<metrics::Registry>,
}

impl Health {
    /// No change has waited for too long.
    fn is_healthy(&self) -> bool {
        let state = self.state.borrow();
        state.synced && state.waiting_since.is_none_or(|since| since.elapsed() < WAIT_MAX)
    }

    /// The node is not about to be removed. A node that does not exist gets no traffic either.
    fn is_eligible(&self) -> bool {
        let Some(node) = self.watched.nodes.get(&ObjectKey::cluster(&self.node)) else {
            return false;
        };
        let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
        let leaving = taints.into_iter().flatten().any(|taint| taint.key == TO_BE_DELETED);
        node.metadata.deletion_timestamp.is_none() && !leaving
    }

    fn answer(&self, path: &str) -> Reply {
        let now = clock::now_rfc3339();
        let healthy = self.is_healthy();
        let (counter, ok, eligible) = match path {
            "/healthz" => {
                let eligible = self.is_eligible();
                (HEALTHZ, healthy && eligible, format!(",\"nodeEligible\":{eligible}"))
            }
            "/livez" => (LIVEZ, healthy, String::new()),
            _ => return Reply::not_found(),
        };
        let code = if ok { 200 } else { 503 };
        self.answers.add(counter, &[("code", &code.to_string())], 1);
        let families = self.families().into_iter().map(|family| {
            format!("\"{family}\":{{\"lastUpdated\":\"{now}\",\"healthy\":{healthy}}}")
        });
        let families = families.collect::<Vec<_>>().join(",");
        let body = format!(
            "{{\"lastUpdated\":\"{now}\",\"currentTime\":\"{now}\",\"healthy\":{healthy},\
             \"status\":{{{families}}}{eligible}}}"
        );
        Reply::json(code, body)
    }

    /// The families of Services. One transaction has the rules of both, so they are healthy or not together.
    fn families(&self) -> BTreeSet<&'static str> {
        let ranges = self.watched.service_ranges();
        ranges.iter().map(|range| if range.is_ipv4() { "IPv4" } else { "IPv6" }).collect()
    }

    /// The health check port of a Service.
    fn check(&self, service: &str) -> Reply {
        let count =
            self.state.borrow().health_checks.get(service).map_or(0, |(_, endpoints)| *endpoints);
        let healthy = self.is_healthy();
        let (namespace, name) = service.split_once('/').unwrap_or_default();
        let body = format!(
            "{{\"service\":{{\"namespace\":\"{namespace}\",\"name\":\"{name}\"}},\
             \"localEndpoints\":{count},\"serviceProxyHealthy\":{healthy}}}"
        );
        Reply::json(if count > 0 && healthy { 200 } else { 503 }, body)
            .header("x-load-balancing-endpoint-weight", count.to_string())
    }
}

/// The settings of upstream's proxy that this one has, with upstream's names.
fn settings(config: &HealthConfig) -> String {
    let text = |address: Option<SocketAddr>| {
        address.map_or_else(String::new, |address| address.to_string())
    };
    let (name, health) = (&config.node_name, text(config.health));
    let metrics = text(config.metrics);
    format!(
        "{{\"kubeproxy.config.k8s.io\":{{\"HostnameOverride\":\"{name}\",\"HealthzBindAddress\":\"{health}\",\
         \"MetricsBindAddress\":\"{metrics}\",\"Mode\":\"nftables\",\"NodePortAddresses\":[\"primary\"]}}}}"
    )
}

fn metrics_page(registries: &[Arc<metrics::Registry>], settings: &str, path: &str) -> Reply {
    match path {
        "/metrics" => {
            let mut page = metrics::Page::default();
            registries.iter().for_each(|registry| registry.write(&mut page, |_| true));
            Reply::text(200, page.into_text())
        }
        "/healthz" => Reply::text(200, "ok".to_owned()),
        "/proxyMode" => Reply::text(200, "nftables".to_owned()),
        "/configz" => Reply::json(200, settings.to_owned()),
        _ => Reply::not_found(),
    }
}

/// Opens and closes health check ports as Services get and lose them.
async fn follow_checks(
    health: Arc<Health>,
    mut state: watch::Receiver<ProxyState>,
    addresses: Vec<IpAddr>,
) {
    let mut open_ports: BTreeMap<(String, u16), Vec<Listener>> = BTreeMap::new();
    loop {
        let wanted: Vec<(String, u16)> = {
            let state = state.borrow_and_update();
            let checks = state.health_checks.iter();
            checks.map(|(service, (port, _))| (service.clone(), *port)).collect()
        };
        open_ports.retain(|port, _| wanted.contains(port));
        let mut failed = false;
        for (service, port) in wanted {
            if open_ports.contains_key(&(service.clone(), port)) {
                continue;
            }
            let mut listeners = Vec::new();
            for address in &addresses {
                let (health, service) = (health.clone(), service.clone());
                let address = SocketAddr::new(*address, port);
                listeners.extend(open(address, move |_| health.check(&service)).await);
            }
            match listeners.is_empty() {
                true => failed = true,
                false => drop(open_ports.insert((service, port), listeners)),
            }
        }
        tokio::select! {
            changed = state.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(RETRY_AFTER), if failed => {}
        }
    }
}
