//! The Service proxy: keeps the packet rules of this node equal to the Services and EndpointSlices of the cluster.
//!
//!     caches ──▶ queue of Services ──▶ plan (pure) ──▶ one transaction ──▶ conntrack, health checks, metrics
//!
//! The first change after a pause is applied immediately. Changes that arrive while a transaction runs are applied
//! together in the next one (NET-71). A change costs what its Services cost, whatever the number of others (NET-70).
//! Not here: what a Service means (`plan.rs`), how the kernel learns of it (`network::Services`).

mod delay;
mod endpoints;
pub mod health;
mod http;
mod pending;
mod plan;
mod proxy_metrics;
mod rules;

pub use endpoints::NodeView;
pub use plan::UdpPort;
pub use rules::{Forgotten, PacketRules};

use crate::Watched;
use crate::watched::BY_SERVICE;
use client::{ObjectKey, Queue, Versions};
use delay::Delay;
use futures::FutureExt;
use k8s_openapi::api::core::v1::Node;
use network::{Cidr, Ranges, ServiceRules};
use pending::{Measured, PendingChanges};
use plan::{ServicePlan, plan};
use proxy_metrics::ProxyMetrics;
use rules::Rules;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Changes of this many Services are applied in one transaction.
const BATCH_MAX: usize = 500;
/// Endpoints that no rule selects any more are removed this long after the last change.
const SWEEP_AFTER: Duration = Duration::from_secs(1);
/// How often the kernel's tables are compared with what they should be. Upstream: full sync period.
const VERIFY_EVERY: Duration = Duration::from_secs(3600);
/// The first wait after a failed transaction, and the longest. Upstream's `syncPeriod` is the longest.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));

/// How often the deletion timestamp of a pod is looked up whose slice arrived first.
const DATE_EVERY: Duration = Duration::from_millis(100);

#[derive(Debug, Clone)]
pub struct Config {
    pub node_name: String,
    /// Addresses that count as pods besides the pod ranges of the Nodes.
    pub pod_ranges: Vec<Cidr>,
    /// Changes are applied after a delay from this range, to imitate slow proxies.
    pub delay: Option<RangeInclusive<Duration>>,
}

/// What the proxy has done so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProxyState {
    /// All Services of the first list are in force.
    pub synced: bool,
    /// `healthCheckNodePort` and the number of ready endpoints on this node, by Service.
    pub health_checks: BTreeMap<String, (u16, usize)>,
    /// When the oldest change that is not yet applied was received.
    pub waiting_since: Option<Instant>,
}

/// A running proxy. Dropping it stops it; the rules stay.
pub struct Running {
    state: watch::Receiver<ProxyState>,
    committed: watch::Receiver<u64>,
    metrics: Arc<metrics::Registry>,
    task: JoinHandle<()>,
}

impl Running {
    /// Waits until the rules of all Services that existed at the start are in force.
    pub async fn synced(&self) {
        let mut state = self.state.clone();
        let _ = state.wait_for(|state| state.synced).await;
    }

    pub fn state(&self) -> watch::Receiver<ProxyState> {
        self.state.clone()
    }

    /// The resource version up to which all changes of EndpointSlices are in force on this node. Zero: not yet any.
    pub fn committed(&self) -> watch::Receiver<u64> {
        self.committed.clone()
    }

    pub fn metrics(&self) -> Arc<metrics::Registry> {
        self.metrics.clone()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Starts the proxy. `rules` are the packet rules of this node.
pub fn start(watched: Watched, rules: Box<dyn PacketRules>, config: Config) -> Running {
    let (sender, state) = watch::channel(ProxyState::default());
    let (committed_sender, committed) = watch::channel(0);
    let mut families: BTreeSet<bool> = watched.service_ranges().iter().map(Cidr::is_ipv4).collect();
    if families.is_empty() {
        families.insert(true);
    }
    let metrics = Arc::new(ProxyMetrics::new(families));
    let registry = metrics.registry();
    let pending = PendingChanges::new(metrics.clone(), config.node_name.clone());
    let proxy = Proxy {
        measured: Measured::new(metrics.clone(), watched.pods.clone()),
        pending: Arc::new(pending),
        slice_versions: watched.slices.versions(),
        committed: committed_sender,
        watched,
        queue: Queue::with_backoff(RETRY.0, RETRY.1),
        node: NodeView { name: config.node_name.clone(), ..NodeView::default() },
        ranges: Ranges::default(),
        rules: Rules::new(rules),
        delay: Delay::new(config.delay.clone()),
        config,
        state: sender,
        metrics,
        without_local: HashMap::new(),
    };
    Running { state, committed, metrics: registry, task: tokio::spawn(proxy.run()) }
}

struct Proxy {
    watched: Watched,
    queue: Queue<ObjectKey>,
    node: NodeView,
    ranges: Ranges,
    rules: Rules,
    config: Config,
    delay: Delay,
    state: watch::Sender<ProxyState>,
    metrics: Arc<ProxyMetrics>,
    pending: Arc<PendingChanges>,
    slice_versions: Versions,
    committed: watch::Sender<u64>,
    measured: Measured,
    without_local: HashMap<ObjectKey, plan::WithoutLocal>,
}

impl Proxy {
    async fn run(mut self) {
        self.watched.synced().await;
        let mut nodes = self.watched.nodes.subscribe();
        let mut service_ranges = self.watched.service_ranges.subscribe();
        let mut slice_versions = self.slice_versions.clone();
        self.follow_services();
        self.observe_ranges().await;
        self.observe_node();
        self.sync_all().await;
        let mut verify_at = Instant::now() + VERIFY_EVERY;
        loop {
            tokio::select! {
                key = self.queue.get() => match key {
                    Some(first) => self.sync(first).await,
                    None => return,
                },
                _ = nodes.next() => {
                    self.observe_ranges().await;
                    if self.observe_node() {
                        self.sync_all().await;
                    }
                }
                _ = service_ranges.next() => self.observe_ranges().await,
                // The cache counts a change after its listeners know of it, so the change may be applied before that.
                true = slice_versions.changed() => self.publish_committed(slice_versions.current()),
                () = tokio::time::sleep(SWEEP_AFTER), if self.rules.needs_sweep() => {
                    if !self.rules.sweep().await {
                        self.metrics.cleanup_failed();
                    }
                }
                () = tokio::time::sleep(DATE_EVERY), if self.measured.has_undated() => {
                    self.measured.date();
                }
                () = tokio::time::sleep_until(verify_at) => {
                    verify_at = Instant::now() + VERIFY_EVERY;
                    let equal = self.rules.verify().await;
                    self.metrics.verified(equal);
                    if !equal {
                        tracing::warn!("the packet rules of Services were changed by another program; writing them again");
                        self.sync_all().await;
                    }
                }
            }
        }
    }

    /// Queues a Service when it or one of its slices changes.
    fn follow_services(&self) {
        let (pending, delay, queue) =
            (self.pending.clone(), self.delay.clone(), self.queue.clone());
        self.watched.services.feed_changes(&self.queue, move |before, after| {
            delay.hold(pending.service_changed(before, after), &queue)
        });
        let (pending, delay, queue) =
            (self.pending.clone(), self.delay.clone(), self.queue.clone());
        let versions = self.slice_versions.clone();
        self.watched.slices.feed_changes(&self.queue, move |before, after| {
            delay.hold(pending.slice_changed(versions.current(), before, after), &queue)
        });
    }

    /// Pod ranges of the Nodes, and ranges of Services (NET-52).
    async fn observe_ranges(&mut self) {
        let mut pods = self.config.pod_ranges.clone();
        pods.extend(self.watched.nodes.list().iter().flat_map(|node| pod_ranges(node)));
        pods.sort();
        pods.dedup();
        let ranges = Ranges { pods, services: self.watched.service_ranges() };
        if ranges != self.ranges && self.rules.set_ranges(ranges.clone()).await {
            self.ranges = ranges;
        }
    }

    /// Whether something changed on which the rules of all Services depend.
    fn observe_node(&mut self) -> bool {
        let node = self.watched.nodes.get(&ObjectKey::cluster(&self.config.node_name));
        if let Some(node) = &node {
            self.delay.observe(node);
        }
        let view = node.map_or_else(|| self.node.clone(), |node| node_view(&node));
        let changed = view != self.node;
        self.node = view;
        changed
    }

    /// Plans all Services and writes the differences. Retries until it succeeds.
    async fn sync_all(&mut self) {
        let mut wait = RETRY.0;
        loop {
            let began = Instant::now();
            let seen = self.slice_versions.current();
            let pending = self.pending.take_all();
            let services = self.watched.services.list();
            let plans: Vec<(ObjectKey, ServicePlan)> = services
                .iter()
                .map(|service| ObjectKey::of(&**service))
                .map(|key| (key.clone(), self.plan(&key)))
                .collect();
            let rules = plans.iter().map(|(key, plan)| (name(key), plan.rules.clone())).collect();
            if self.rules.replace_all(rules).await {
                self.metrics.full_sync(began.elapsed());
                self.measured.committed(pending);
                self.publish_committed(seen);
                self.state.send_modify(|state| {
                    state.health_checks.clear();
                    state.synced = true;
                });
                self.without_local.clear();
                for (key, plan) in plans {
                    self.applied(key, &plan, true).await;
                }
                self.metrics.synced(&self.without_local);
                return;
            }
            self.metrics.failed();
            self.pending.put_back(pending);
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(RETRY.1);
        }
    }

    /// Applies the change of this Service, and of all others that have changed.
    async fn sync(&mut self, first: ObjectKey) {
        let began = Instant::now();
        self.state.send_if_modified(|state| {
            state.waiting_since.get_or_insert(began);
            false
        });
        let mut keys = vec![first];
        while keys.len() < BATCH_MAX
            && let Some(Some(key)) = self.queue.get().now_or_never()
        {
            keys.push(key);
        }
        let seen = self.slice_versions.current();
        let pending = self.pending.take(&keys);
        let plans: Vec<ServicePlan> = keys.iter().map(|key| self.plan(key)).collect();
        let changes = keys.iter().zip(&plans).map(|(key, plan)| {
            let is_empty = plan.rules == ServiceRules::default();
            (name(key), (!is_empty).then(|| plan.rules.clone()))
        });
        match self.rules.apply(changes.collect()).await {
            Some(elements) => {
                self.metrics.partial_sync(began.elapsed(), elements);
                self.measured.committed(pending);
                self.publish_committed(seen);
                self.state.send_if_modified(|state| {
                    state.waiting_since = None;
                    false
                });
                for (key, plan) in keys.iter().zip(&plans) {
                    self.applied(key.clone(), plan, elements > 0).await;
                    self.queue.forget(key);
                }
                self.metrics.synced(&self.without_local);
            }
            None => {
                self.metrics.failed();
                self.pending.put_back(pending);
                for key in &keys {
                    self.queue.retry(key.clone());
                }
            }
        }
        keys.iter().for_each(|key| self.queue.done(key));
    }

    /// `seen` is the version of the slices when the changes of the transaction were taken.
    fn publish_committed(&self, seen: u64) {
        let version = self.pending.committed_version(seen);
        self.committed.send_if_modified(|committed| {
            let newer = version > *committed;
            *committed = version.max(*committed);
            newer
        });
    }

    fn plan(&self, key: &ObjectKey) -> ServicePlan {
        let Some(service) = self.watched.services.get(key) else { return ServicePlan::default() };
        let slices = self.watched.slices.by_index(BY_SERVICE, &name(key));
        plan(&service, &slices, &self.node)
    }

    /// What follows from rules that are in force now (NET-57).
    async fn applied(&mut self, key: ObjectKey, plan: &ServicePlan, changed: bool) {
        let service = name(&key);
        let check = plan.health_check.map(|check| (check.port, check.local_endpoints));
        self.state.send_if_modified(|state| {
            let before = state.health_checks.get(&*service).copied();
            match check {
                Some(check) => state.health_checks.insert(service.to_string(), check),
                None => state.health_checks.remove(&*service),
            };
            before != check
        });
        match plan.without_local == plan::WithoutLocal::default() {
            true => self.without_local.remove(&key),
            false => self.without_local.insert(key, plan.without_local),
        };
        if changed && !plan.udp.is_empty() {
            for done in self.rules.forget_udp_clients(plan.udp.clone()).await {
                self.metrics.conntrack(done.ipv4, done.connections, done.took);
            }
        }
    }
}

/// `namespace/name`
fn name(key: &ObjectKey) -> Arc<str> {
    format!("{}/{}", key.namespace(), key.name()).into()
}

fn pod_ranges(node: &Node) -> Vec<Cidr> {
    let ranges = node.spec.as_ref().and_then(|spec| spec.pod_cidrs.as_ref());
    ranges.into_iter().flatten().filter_map(|text| text.parse().ok()).collect()
}

/// Node ports are served at the node's first internal address of each family, or else the first external one (NET-35).
fn node_view(node: &Node) -> NodeView {
    const ZONE: &str = "topology.kubernetes.io/zone";
    let status = node.status.as_ref().and_then(|status| status.addresses.as_ref());
    let of_type = |wanted: &'static str| {
        let found = status.into_iter().flatten().filter(move |address| address.type_ == wanted);
        found.filter_map(|address| address.address.parse::<IpAddr>().ok())
    };
    let all: Vec<IpAddr> = of_type("InternalIP").chain(of_type("ExternalIP")).collect();
    let first = |ipv4: bool| {
        let mut usable = all.iter().filter(|ip| ip.is_ipv4() == ipv4 && !ip.is_loopback());
        usable.next().copied()
    };
    NodeView {
        name: node.metadata.name.clone().unwrap_or_default(),
        zone: node.metadata.labels.as_ref().and_then(|labels| labels.get(ZONE).cloned()),
        addresses: [true, false].into_iter().filter_map(first).collect(),
    }
}
