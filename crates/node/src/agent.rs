//! Starts everything a node needs, in order, and stops it again.
//!
//!     facts ▸ endpoint ▸ registration ▸ network ▸ pods ▸ workers
//!
//! Not here: what becomes of a pod (`worker`), what the Node object says (`node_object`).

#[cfg(test)]
pub(crate) mod bed;
mod leftovers;

use crate::allocations::Allocations;
use crate::cgroup_root;
use crate::deadlines::{Deadlines, GraceAfterRestart};
use crate::dependencies::Dependencies;
use crate::dispatch::{AgentEvent, Dispatch};
use crate::eviction::{Eviction, EvictionRequest, Filesystems, Reclaim, Thresholds};
use crate::images::ImageManager;
use crate::instrumented_runtime::InstrumentedRuntime;
use crate::kernel_state::{KernelState, remove_traffic_rules};
use crate::metrics;
use crate::node_object::{
    Hardware, Health, Registration, Settings, facts_of, given, node_reference, watch_runtime,
};
use crate::pod_ranges;
use crate::pods::Pods;
use crate::probes::Prober;
use crate::qos_cgroups;
use crate::shutdown::{Host, Outcome, Periods, ShortenedPod, Shutdown, were};
use crate::static_pods::{self, StaticPods};
use crate::timeline::Timeline;
use crate::traffic::{NodeNetwork, Traffic};
use crate::worker::KillRequest;
use client::{Cache, Changes, Client, Recorder};
use endpoint::logs::{self, Rotation};
use endpoint::{Endpoint, Metrics, Serving};
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use leftovers::{Found, remove_orphans, terminate_sandbox};
use lifecycle::status::{self, Verdict};
use podconfig::{NodeFacts, Objects, UserRanges};
use runtime::Runtime;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use tokio::sync::{broadcast, mpsc, watch};
use tokio::task::JoinSet;
use volumes::Volumes;

/// Events that wait for `dispatch`. Senders wait when the queue is full.
const EVENTS_MAX: usize = 1024;
/// Probe results that wait for `dispatch`.
const PROBE_RESULTS_MAX: usize = 256;
/// Evictions that wait for `dispatch`; there is one at a time.
const EVICTIONS_MAX: usize = 4;

pub struct Config {
    pub name: String,
    /// All files of the agent are below it.
    pub data_dir: PathBuf,
    /// `/var/log`, or another directory in its place.
    pub log_dir: PathBuf,
    /// One, or one per IP family. Empty: the address of the default route.
    pub node_ips: Vec<IpAddr>,
    /// Where logs, exec and port-forward are served. None: this node does not serve them.
    pub endpoint: Option<Listen>,
    /// None: this machine. Given, the machine is not examined, and the agent does not protect its disk and
    /// memory: no evictions, no log rotation, no image garbage collection. See `crates/sim`.
    pub hardware: Option<Hardware>,
    pub runtime: Arc<dyn Runtime>,
    /// Name of the device that connects the pods; their own devices are named after it.
    pub link: String,
    /// Directory of static pod manifests.
    pub manifests: Option<PathBuf>,
    pub cluster_dns: Vec<IpAddr>,
    /// Services, names, routes and policies. None: this node has none of them.
    pub traffic: Option<Arc<dyn Traffic>>,
    /// The parent cgroup of all pods: `/kubepods`.
    pub cgroup: String,
    /// Eviction thresholds: `memory.available<100Mi,…`. None: upstream's defaults.
    pub eviction_hard: Option<String>,
    /// The number of processes that one pod may have (N-113); None: no limit per pod.
    pub pod_pids_limit: Option<i64>,
    /// Containers without a seccomp profile get the runtime's default one.
    pub seccomp_default: bool,
    /// Node lease duration; the agent renews it four times per duration.
    pub lease: Duration,
    /// For pods that were terminating when an earlier agent stopped.
    pub grace_after_restart: GraceAfterRestart,
    /// Grace periods when the node shuts down.
    pub shutdown: Periods,
    /// The Kubernetes version: `v1.36.4`.
    pub version: String,
}

pub struct Listen {
    pub address: SocketAddr,
    /// See [`endpoint::server_config`].
    pub tls: Arc<rustls::ServerConfig>,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the container runtime does not work")]
    Runtime(#[source] runtime::Error),
    #[error("setting up the pod network failed")]
    Network(#[source] network::Error),
    #[error("cannot route traffic to pods: {0}")]
    Traffic(String),
    #[error("cannot listen on {address}")]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error("a request to the API server failed")]
    Api(#[source] client::Error),
    #[error("cannot use {}", path.display())]
    Directory { path: PathBuf, source: std::io::Error },
    #[error("{0}")]
    Other(String),
}

/// The agent's name as source of events, as user agent and as field manager.
pub(crate) const NAME: &str = "kubelet";

/// A running agent. When it is dropped, the agent stops; its pods keep running.
pub struct Running {
    /// Address of the HTTPS endpoint.
    pub address: Option<SocketAddr>,
    serving: Option<Serving>,
    pub(crate) deps: Arc<Dependencies>,
    registration: Registration,
    shutdown: Arc<Shutdown>,
    tasks: JoinSet<()>,
}

/// Starts the agent. [`Running::ready`] waits until the API shows the node as Ready.
///
/// The future is boxed so that the code behind it is compiled in this crate, not in every program that awaits it.
pub fn start(client: Client, config: Config) -> BoxFuture<'static, Result<Running, Error>> {
    Box::pin(start_agent(client, config))
}

async fn start_agent(client: Client, mut config: Config) -> Result<Running, Error> {
    let client = client.named(NAME);
    let recorder = Recorder::new(&client, NAME, &config.name);
    let version = config.runtime.version().await.map_err(Error::Runtime)?;
    let pods = Arc::new(Pods::default());
    let metrics = Arc::new(Metrics::default());
    config.runtime = InstrumentedRuntime::wrap(config.runtime, metrics.clone());
    let mut tasks = JoinSet::new();
    let serving = serve(&config, &client, &pods, &metrics).await?;
    let address = serving.as_ref().map(|serving| serving.address);

    let settings = settings(&config, address);
    let gather = match config.hardware {
        Some(hardware) => given(hardware, config.runtime.clone()),
        None => facts_of(&settings, config.runtime.clone()),
    };
    let health = watch::Sender::new(Health::default());
    tasks.spawn(watch_runtime(config.runtime.clone(), health.clone()));
    let registration = Registration::start(
        client.clone(),
        recorder.clone(),
        settings.clone(),
        gather.clone(),
        health.subscribe(),
    );
    let node = registered(&registration).await;
    let mut facts = facts(&config, &node);
    make_private(&facts.root_dir)?;
    let network = network(&config, &registration, &recorder).await;
    health.send_modify(|health| {
        health.network = Some(network.as_ref().map(drop).map_err(ToString::to_string));
    });
    let network = network?;
    facts.cluster_dns.extend(start_traffic(&config, &facts, &network).await?);
    if let Some(routes) = config.traffic.as_ref().and_then(|traffic| traffic.routes()) {
        tasks.spawn(follow_routes(routes, health.clone()));
    }
    let facts = Arc::new(facts);

    let (results, probed) = mpsc::channel(PROBE_RESULTS_MAX);
    let objects = Objects::new(&client);
    let deps = Arc::new(Dependencies {
        client: client.clone(),
        recorder: recorder.clone(),
        timeline: Timeline::open(&client, &config.name, &config.data_dir.join("timeline")),
        runtime: config.runtime.clone(),
        runtime_name: version.name,
        network,
        traffic: config.traffic.clone(),
        images: ImageManager::new(
            config.runtime.clone(),
            recorder.clone(),
            config.data_dir.join("pulls"),
        ),
        objects: objects.clone(),
        volumes: Volumes::new(facts.clone(), objects.clone(), &client, config.runtime.clone()),
        users: user_ranges(&facts)?,
        allocations: Allocations::open(facts.root_dir.join("allocations")),
        facts,
        metrics,
        active: watch::Sender::new(BTreeMap::new()),
        log_links: config.log_dir.join("containers"),
        prober: Prober::new(config.runtime.clone(), recorder.clone(), results),
        pods,
        node: registration.subscribe(),
        deadlines: deadlines(&config)?,
        dns_told: AtomicBool::new(false),
        started_at: clock::now(),
    });
    let events = manage_pods(&mut tasks, &client, &config, &deps, probed, &health).await?;
    if serving.is_some() {
        tasks.spawn(metrics::run(deps.clone()));
    }
    let shutdown = Arc::new(Shutdown::new(deps.clone(), events, health, config.shutdown));
    if config.hardware.is_none() {
        tasks.spawn(Host::system().follow(shutdown.clone()));
    }
    Ok(Running { address, serving, deps, registration, shutdown, tasks })
}

/// Services and names work before the first pod starts. Returns the DNS servers for pods.
async fn start_traffic(
    config: &Config,
    facts: &NodeFacts,
    network: &Option<Arc<network::Pods>>,
) -> Result<Vec<IpAddr>, Error> {
    let Some(traffic) = &config.traffic else { return Ok(Vec::new()) };
    let network = NodeNetwork { pods: network.clone(), addresses: facts.host_ips.clone() };
    traffic.start(network).await.map_err(Error::Traffic)
}

/// Starts workers for the pods of this node, and everything that wakes them. Returns where to send events.
async fn manage_pods(
    tasks: &mut JoinSet<()>,
    client: &Client,
    config: &Config,
    deps: &Arc<Dependencies>,
    probed: mpsc::Receiver<crate::probes::ProbeResult>,
    health: &watch::Sender<Health>,
) -> Result<mpsc::Sender<AgentEvent>, Error> {
    let cache =
        Cache::<Pod>::builder(client).fields(&format!("spec.nodeName={}", config.name)).start();
    let (events, received) = mpsc::channel(EVENTS_MAX);
    // Subscribe before listing, so that no change is missed in between.
    tasks.spawn(follow_runtime(config.runtime.changes(), events.clone()));
    tasks.spawn(follow_probes(probed, events.clone()));
    tasks.spawn(follow_objects(deps.objects.clone(), events.clone()));
    cache.synced().await;
    tasks.spawn(follow_pods(cache.subscribe(), events.clone()));
    let found = cache.list();
    let mut known: BTreeSet<String> = found.iter().filter_map(uid).collect();
    if let Some(manifests) = &config.manifests {
        let mut found = static_pods::follow(manifests, &config.name, deps.recorder.clone());
        // Nothing is removed before every source of pods has been read (N-20).
        if let Ok(first) = found.wait_for(Option::is_some).await {
            known.extend(first.iter().flat_map(|pods| pods.iter()).filter_map(uid));
        }
        tasks.spawn(follow_manifests(found, events.clone()));
    } else {
        let _ = events.send(AgentEvent::StaticPods(Arc::default())).await;
    }
    let Found { running, removal } = remove_orphans(deps, known).await;
    tasks.spawn(removal);
    if config.hardware.is_none() {
        tasks.spawn(logs::run_rotation(config.runtime.clone(), Rotation::default()));
        tasks.spawn(evict(config, deps, health.clone(), events.clone())?);
        tasks.spawn(collect_images(deps.clone()));
        tasks.spawn(qos_cgroups::run(deps.clone()));
    }
    tasks.spawn(
        Dispatch::new(deps.clone(), cache, health.subscribe()).run(found, running, received),
    );
    Ok(events)
}

async fn serve(
    config: &Config,
    client: &Client,
    pods: &Arc<Pods>,
    metrics: &Arc<Metrics>,
) -> Result<Option<Serving>, Error> {
    let Some(listen) = &config.endpoint else { return Ok(None) };
    let serving = endpoint::serve(Endpoint {
        node: config.name.clone(),
        listen: listen.address,
        tls: listen.tls.clone(),
        client: client.clone(),
        pods: pods.clone(),
        runtime: config.runtime.clone(),
        log_root: config.log_dir.join("pods"),
        host_logs: config.log_dir.clone(),
        metrics: metrics.clone(),
        config: serde_json::json!({}),
    });
    let served = serving.await;
    served.map(Some).map_err(|source| Error::Listen { address: listen.address, source })
}

fn deadlines(config: &Config) -> Result<Option<Deadlines>, Error> {
    let failed = |source| Error::Directory { path: config.data_dir.clone(), source };
    match config.grace_after_restart {
        GraceAfterRestart::Full => Ok(None),
        GraceAfterRestart::Kept => Deadlines::open(&config.data_dir).map(Some).map_err(failed),
    }
}

fn settings(config: &Config, address: Option<SocketAddr>) -> Settings {
    Settings {
        addresses: config.node_ips.clone(),
        port: address.map_or(0, |address| address.port()),
        lease: config.lease,
        features: config.runtime.features(),
        ..Settings::new(&config.name, &config.data_dir, &config.version)
    }
}

/// Evicts pods when the node runs short of memory, disk or processes (N-115, N-137).
fn evict(
    config: &Config,
    deps: &Arc<Dependencies>,
    health: watch::Sender<Health>,
    events: mpsc::Sender<AgentEvent>,
) -> Result<impl Future<Output = ()> + use<>, Error> {
    let thresholds = Thresholds::hard(config.eviction_hard.as_deref()).map_err(Error::Other)?;
    let places =
        Filesystems { node: config.data_dir.clone(), images: deps.runtime.images().directory() };
    let freeing = deps.clone();
    let reclaim: Reclaim = Arc::new(move || {
        let deps = freeing.clone();
        Box::pin(async move {
            if let Err(error) = deps.images.delete_unused(image_volumes(&deps)).await {
                tracing::warn!(%error, "removing unused images failed");
            }
        })
    });
    let eviction = Eviction::new(deps.clone(), thresholds, places, reclaim);
    Ok(async move {
        let (victims, mut chosen) = mpsc::channel::<EvictionRequest>(EVICTIONS_MAX);
        let hand_on = async {
            while let Some(victim) = chosen.recv().await {
                let verdict = Verdict {
                    reason: "Evicted".into(),
                    message: victim.message,
                    disruption: victim.disruption,
                };
                let uid = victim.pod.metadata.uid.clone().unwrap_or_default();
                let kill = KillRequest { verdict, grace: Some(victim.grace) };
                let _ = events.send(AgentEvent::Kill { uid, kill }).await;
            }
        };
        tokio::join!(eviction.run(health, victims), hand_on);
    })
}

/// Removes unused images when the disk fills up (N-177).
async fn collect_images(deps: Arc<Dependencies>) {
    let node = node_reference(&deps.facts.name);
    deps.images.keep_collecting(&node, || image_volumes(&deps)).await;
}

/// Images that pods use as volumes.
fn image_volumes(deps: &Dependencies) -> BTreeSet<String> {
    let pods = deps.pods.list();
    let volumes = pods.iter().filter_map(|pod| pod.spec.as_ref()?.volumes.as_ref()).flatten();
    volumes.filter_map(|volume| volume.image.as_ref()?.reference.clone()).collect()
}

/// The directory of volumes and other files of pods.
fn root_dir(data_dir: &Path) -> PathBuf {
    data_dir.join("kubelet")
}

/// Containers can write setuid files into volumes, so no other user of the node may reach them.
fn make_private(path: &Path) -> Result<(), Error> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::create_dir_all(path)
        .and_then(|()| std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700)))
        .map_err(|source| Error::Directory { path: path.to_owned(), source })
}

fn user_ranges(facts: &NodeFacts) -> Result<UserRanges, Error> {
    let path = facts.pods_dir();
    UserRanges::open(path.clone()).map_err(|source| Error::Directory { path, source })
}

/// What pods and their configuration need to know of this node.
fn facts(config: &Config, node: &Node) -> NodeFacts {
    let status = node.status.clone().unwrap_or_default();
    NodeFacts {
        log_root: config.log_dir.join("pods"),
        cluster_dns: config.cluster_dns.clone(),
        host_ips: internal_addresses(node),
        cgroup_root: config.cgroup.clone(),
        pod_pids_limit: config.pod_pids_limit,
        seccomp_default: config.seccomp_default,
        huge_pages: huge_pages(&status.capacity.clone().unwrap_or_default()),
        swap: swap_is_on(),
        recursive_read_only: config.runtime.features().recursive_read_only,
        allocatable: status.allocatable.unwrap_or_default(),
        capacity: status.capacity.unwrap_or_default(),
        ..NodeFacts::new(&config.name, root_dir(&config.data_dir))
    }
}

fn internal_addresses(node: &Node) -> Vec<IpAddr> {
    let addresses = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
    let internal = addresses.filter(|address| address.type_ == "InternalIP");
    internal.filter_map(|address| address.address.parse().ok()).collect()
}

/// Sizes of the huge pages that the node has (N-112).
fn huge_pages(capacity: &BTreeMap<String, Quantity>) -> Vec<u64> {
    let sizes = capacity.keys().filter_map(|name| name.strip_prefix("hugepages-"));
    let bytes = sizes.filter_map(|size| api::quantity::Quantity::parse(size).ok());
    bytes.filter_map(|size| u64::try_from(size.value()).ok()).collect()
}

/// `/proc/swaps` has a heading, and a line for each swap device.
fn swap_is_on() -> bool {
    std::fs::read_to_string("/proc/swaps").is_ok_and(|table| table.lines().count() > 1)
}

/// Waits until the API has the Node.
async fn registered(registration: &Registration) -> Arc<Node> {
    let mut node = registration.subscribe();
    loop {
        if let Some(node) = node.borrow_and_update().clone() {
            return node;
        }
        if node.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// The pod network, once the Node has its address range (N-7). None: the runtime provides it.
async fn network(
    config: &Config,
    registration: &Registration,
    recorder: &Recorder,
) -> Result<Option<Arc<network::Pods>>, Error> {
    let brings_network = config.runtime.brings_network();
    let assigned = if brings_network { Vec::new() } else { pod_cidrs(registration).await? };
    let usable = pod_ranges::usable(assigned, network::ipv6_unavailable());
    let (cidrs, warning) =
        usable.map_err(|message| Error::Network(network::Error::Invalid(message)))?;
    if let Some(message) = warning {
        tracing::warn!("{message}");
        recorder.warning(&node_reference(&config.name), pod_ranges::IPV6_NOT_AVAILABLE, message);
    }
    let kernel_state =
        KernelState { link: config.link.clone(), cidrs, cgroup: config.cgroup.clone() };
    if let Some(before) =
        KernelState::read(&config.data_dir).filter(|before| *before != kernel_state)
    {
        remove_network(&before, &config.data_dir).await?;
    }
    let path = kernel_state.write(&config.data_dir);
    path.map_err(|source| Error::Directory { path: config.data_dir.clone(), source })?;
    if brings_network {
        return Ok(None);
    }
    let node = registered(registration).await;
    let shared = network::PodsConfig {
        mtu: network::pod_mtu(&internal_addresses(&node)).map_err(Error::Network)?,
        ..kernel_state.network(&config.data_dir)
    };
    let opened = network::Pods::open(shared).await;
    Ok(Some(Arc::new(opened.map_err(Error::Network)?)))
}

/// After a change of link or address range, the network of the earlier agent cannot be used.
async fn remove_network(before: &KernelState, data_dir: &Path) -> Result<(), Error> {
    if before.cidrs.is_empty() {
        return Ok(());
    }
    match network::Pods::open(before.network(data_dir)).await {
        Ok(network) => network.remove().await.map_err(Error::Network),
        Err(error) if error.is_taken() => Ok(()), // It was never created, or it is gone.
        Err(error) => Err(Error::Network(error)),
    }
}

/// Waits for the controller that assigns address ranges to nodes.
async fn pod_cidrs(registration: &Registration) -> Result<Vec<String>, Error> {
    let mut node = registration.subscribe();
    loop {
        let known = node.borrow_and_update().clone();
        let spec = known.as_ref().and_then(|node| node.spec.as_ref());
        let texts = spec.and_then(|spec| spec.pod_cidrs.clone()).unwrap_or_default();
        if !texts.is_empty() {
            return Ok(texts);
        }
        if node.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

fn uid(pod: &Arc<Pod>) -> Option<String> {
    pod.metadata.uid.clone()
}

async fn follow_pods(mut changes: Changes, events: mpsc::Sender<AgentEvent>) {
    loop {
        let key = changes.next().await;
        if events.send(AgentEvent::PodChanged(key)).await.is_err() {
            return;
        }
    }
}

async fn follow_manifests(
    mut found: watch::Receiver<StaticPods>,
    events: mpsc::Sender<AgentEvent>,
) {
    loop {
        let pods = found.borrow_and_update().clone();
        if let Some(pods) = pods
            && events.send(AgentEvent::StaticPods(pods)).await.is_err()
        {
            return;
        }
        if found.changed().await.is_err() {
            return;
        }
    }
}

async fn follow_runtime(
    mut changes: broadcast::Receiver<runtime::Change>,
    events: mpsc::Sender<AgentEvent>,
) {
    loop {
        let event = match changes.recv().await {
            Ok(change) => AgentEvent::PodObserved(change.pod),
            Err(broadcast::error::RecvError::Lagged(_)) => AgentEvent::EventsLost,
            Err(broadcast::error::RecvError::Closed) => return,
        };
        if events.send(event).await.is_err() {
            return;
        }
    }
}

async fn follow_probes(
    mut results: mpsc::Receiver<crate::probes::ProbeResult>,
    events: mpsc::Sender<AgentEvent>,
) {
    while let Some(result) = results.recv().await {
        if events.send(AgentEvent::PodObserved(result.uid)).await.is_err() {
            return;
        }
    }
}

/// Writes into the Node whether the pods of other nodes can be reached.
async fn follow_routes(
    mut routes: BoxStream<'static, Result<(), String>>,
    health: watch::Sender<Health>,
) {
    while let Some(routes) = routes.next().await {
        health.send_if_modified(|health| {
            let new = Some(routes);
            let changed = health.routes != new;
            health.routes = new;
            changed
        });
    }
}

async fn follow_objects(objects: Arc<Objects>, events: mpsc::Sender<AgentEvent>) {
    loop {
        let uid = objects.changed().await;
        if events.send(AgentEvent::UsedObjectChanged(uid)).await.is_err() {
            return;
        }
    }
}

impl Running {
    /// Resolves when the API has the node as Ready, with the address of this agent: an earlier agent may have left it
    /// as Ready a moment ago, with another port.
    pub async fn ready(&self) {
        let mut node = self.registration.subscribe();
        let port = self.address.map(|address| i32::from(address.port()));
        let ready = |node: &Option<Arc<Node>>| {
            node.as_ref().is_some_and(|node| {
                is_ready(node) && port.is_none_or(|port| endpoint_port(node) == Some(port))
            })
        };
        if node.wait_for(ready).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Terminates every pod and removes the pod network (T-NODE-88). `say` is called with progress messages;
    /// the result lists pods that did not get all their time.
    pub async fn terminate_pods<F: Future<Output = ()>>(
        &self,
        say: impl Fn(String) -> F,
    ) -> Vec<ShortenedPod> {
        let shortened = self.shutdown.terminate_pods(&say).await;
        let still_runs = Outcome::NotTerminated { running: true };
        if shortened.iter().any(|pod| pod.outcome == still_runs) {
            return shortened;
        }
        if let Some(traffic) = &self.deps.traffic {
            traffic.remove().await;
        }
        if let Some(network) = &self.deps.network
            && let Err(error) = network.remove().await
        {
            say(format!("removing the pod network failed: {error}")).await;
        }
        cgroup_root::remove(&self.deps.facts.cgroup_root);
        shortened
    }

    /// Whether a signal to stop the agent is part of a host shutdown, in which pods terminate too.
    pub async fn host_is_stopping(&self) -> bool {
        self.shutdown.host_is_stopping(&Host::system()).await
    }

    /// The node's addresses in its pod ranges: where pods reach it. None if the runtime provides the network.
    pub fn gateways(&self) -> Vec<IpAddr> {
        let ranges = self.deps.network.as_ref().map(|network| network.gateways());
        ranges.into_iter().flatten().map(|(_, gateway)| gateway).collect()
    }

    /// The node's own addresses, at which the pods of a CRI runtime reach it. Loopback addresses are not among them.
    pub fn addresses(&self) -> Vec<IpAddr> {
        let all = self.deps.facts.host_ips.iter();
        all.filter(|address| !address.is_loopback()).copied().collect()
    }

    /// How many pods of this node have neither succeeded nor failed.
    pub fn running_pods(&self) -> usize {
        self.deps.pods.list().iter().filter(|pod| !status::is_terminal_pod(pod)).count()
    }

    /// During [`Running::terminate_pods`]: the remaining pods get no more than two seconds.
    pub fn hurry(&self) {
        self.shutdown.hurry();
    }

    /// Stops the agent. Pods keep running, and the next agent takes them over.
    pub async fn stop(mut self) {
        if let Some(serving) = self.serving.take() {
            serving.stop().await;
        }
        self.tasks.shutdown().await;
        self.deps.timeline.flush_all().await;
        self.deps.recorder.flush().await;
    }
}

/// The port at which the API server reaches the agent.
fn endpoint_port(node: &Node) -> Option<i32> {
    let endpoints = node.status.as_ref()?.daemon_endpoints.as_ref()?;
    Some(endpoints.kubelet_endpoint.as_ref()?.port)
}

pub(crate) fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True")
}

/// Removes everything that a killed landfall left running. Without an API the specs of the pods are not
/// known: no hooks run, and every container gets two seconds.
pub async fn remove_leftovers(
    data_dir: &Path,
    runtime: Arc<dyn Runtime>,
    say: impl Fn(String),
) -> Result<(), Error> {
    let sandboxes = runtime.sandboxes().await.map_err(Error::Runtime)?;
    let terminated = futures::future::join_all(sandboxes.iter().map(|sandbox| {
        say(format!("terminating {}/{}", sandbox.pod.namespace, sandbox.pod.name));
        terminate_sandbox(&runtime, sandbox)
    }));
    for (sandbox, killed) in sandboxes.iter().zip(terminated.await) {
        let killed = killed.map_err(Error::Runtime)?;
        if !killed.is_empty() {
            let (pod, killed) = (&sandbox.pod, were(&killed));
            let late =
                "did not stop within two seconds, the time it gets when landfall does not run";
            say(format!("{}/{} {late}: {killed} killed", pod.namespace, pod.name));
        }
    }
    let kernel_state = KernelState::read(data_dir);
    remove_pod_files(data_dir, kernel_state.as_ref()).await?;
    let Some(kernel_state) = kernel_state else { return Ok(()) };
    let opened = match kernel_state.cidrs.is_empty() {
        true => Ok(None),
        false => network::Pods::open(kernel_state.network(data_dir)).await.map(Some),
    };
    match opened {
        Ok(Some(network)) => network.remove().await.map_err(Error::Network)?,
        Ok(None) => {}
        // Another instance uses this network, and the cgroups as well.
        Err(error) if error.is_taken() => {
            say(format!("left alone: {error}"));
            return Ok(());
        }
        Err(error) => return Err(Error::Network(error)),
    }
    remove_traffic_rules(&kernel_state.link).map_err(Error::Network)?;
    cgroup_root::remove(&kernel_state.cgroup);
    runtime::CpuPriority::remove(&kernel_state.cgroup);
    Ok(())
}

/// Kills processes whose sandbox the runtime does not know any more, and removes the volumes of all pods.
async fn remove_pod_files(
    data_dir: &Path,
    kernel_state: Option<&KernelState>,
) -> Result<(), Error> {
    let path = root_dir(data_dir).join("pods");
    let failed = |source| Error::Directory { path: path.clone(), source };
    if let Some(kernel_state) = kernel_state {
        for uid in podconfig::pod_uids(&path).map_err(failed)? {
            cgroup_root::kill_pod(&kernel_state.cgroup, &uid).await;
        }
    }
    volumes::remove_all(&path).map_err(failed)
}
