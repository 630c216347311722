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
use crate::class_groups;
use crate::config::{NodeFacts, Objects};
use crate::counted::Counted;
use crate::deadlines::{Deadlines, GraceAfterRestart};
use crate::dispatch::{Dispatch, News};
use crate::endpoint::{self, Endpoint, Metrics, Serving};
use crate::eviction::{Evict, Eviction, Places, Reclaim, Thresholds};
use crate::figures;
use crate::images::ImageManager;
use crate::logs::{self, Rotation};
use crate::node_object::{
    Hardware, Health, Registration, Settings, facts_of, given, node_reference, watch_runtime,
};
use crate::parts::Parts;
use crate::pods::Pods;
use crate::probes::Prober;
use crate::shutdown::{Cut, Host, How, Periods, Shutdown, were};
use crate::static_pods::{self, StaticPods};
use crate::timeline::Timeline;
use crate::traces::Traces;
use crate::volumes::Volumes;
use crate::worker::Kill;
use client::{Cache, Changes, Client, Recorder};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use leftovers::{end_sandbox, sweep};
use lifecycle::status::Verdict;
use runtime::Runtime;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use tokio::sync::{broadcast, mpsc, watch};
use tokio::task::JoinSet;

/// News that wait for the one task that hands them on. Senders wait when it is full.
const NEWS_WAITING: usize = 1024;
/// Probe results that wait.
const RESULTS_WAITING: usize = 256;
/// Evictions that wait; there is one at a time.
const EVICTIONS_WAITING: usize = 4;

pub struct Config {
    pub name: String,
    /// Everything the agent keeps is below it.
    pub data_dir: PathBuf,
    /// `/var/log`, or what stands for it.
    pub log_dir: PathBuf,
    /// None: that of the default route.
    pub node_ip: Option<IpAddr>,
    /// Where logs, exec and the like are served. None: nobody can ask this node for them.
    pub endpoint: Option<Listen>,
    /// None: what this machine is. Given, this machine is not looked at, and nothing on it is kept
    /// from filling up: no evictions, no rotated logs, no collected images. See `crates/sim`.
    pub hardware: Option<Hardware>,
    pub runtime: Arc<dyn Runtime>,
    /// The device that pods' links are called after.
    pub link: String,
    /// Static pods.
    pub manifests: Option<PathBuf>,
    pub cluster_dns: Vec<IpAddr>,
    /// Where Services have their addresses: what pods send there does not leave the cluster.
    pub service_cidrs: Vec<String>,
    /// The cgroup that all pods are below: `/kubepods`.
    pub cgroup: String,
    /// When pods are evicted: `memory.available<100Mi,…`. None: upstream's thresholds.
    pub eviction_hard: Option<String>,
    /// How many processes one pod may have (N-113); None: as many as the node can.
    pub pod_pids_limit: Option<i64>,
    /// How long the node's Lease lasts: it is renewed four times as often.
    pub lease: Duration,
    /// Of pods that were ending when an agent before this one went away.
    pub grace_after_restart: GraceAfterRestart,
    /// How long pods get when the node shuts down.
    pub shutdown: Periods,
    /// Of Kubernetes: `v1.36.4`.
    pub version: String,
}

pub struct Listen {
    pub address: SocketAddr,
    /// See [`crate::endpoint::server_config`].
    pub tls: Arc<rustls::ServerConfig>,
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

/// An agent at work. Dropped, it stops; its pods do not.
pub struct Running {
    /// Where the endpoint answers.
    pub address: Option<SocketAddr>,
    serving: Option<Serving>,
    pub(crate) parts: Arc<Parts>,
    registration: Registration,
    shutdown: Arc<Shutdown>,
    tasks: JoinSet<()>,
}

/// Starts the agent. On return it works; [`Running::ready`] waits until the API says so too.
pub async fn start(client: Client, mut config: Config) -> Result<Running, Error> {
    let recorder = Recorder::new(&client, "kubelet", &config.name);
    let version = config.runtime.version().await.map_err(Error::Runtime)?;
    let pods = Arc::new(Pods::default());
    let metrics = Arc::new(Metrics::default());
    config.runtime = Counted::around(config.runtime, metrics.clone());
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
    let facts = Arc::new(facts(&config, &node));
    let network = network(&config, &registration).await;
    health.send_modify(|health| {
        health.network = Some(network.as_ref().map(drop).map_err(ToString::to_string));
    });
    let network = network?;

    let (results, probed) = mpsc::channel(RESULTS_WAITING);
    let objects = Objects::new(&client);
    let parts = Arc::new(Parts {
        client: client.clone(),
        recorder: recorder.clone(),
        timeline: Timeline::open(&client, &config.name, &config.data_dir.join("timeline")),
        runtime: config.runtime.clone(),
        runtime_name: version.name,
        network,
        images: ImageManager::new(
            config.runtime.clone(),
            recorder.clone(),
            config.data_dir.join("pulls"),
        ),
        objects: objects.clone(),
        volumes: Volumes::new(facts.clone(), objects.clone(), &client, config.runtime.clone()),
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
    let cache =
        Cache::<Pod>::builder(&client).fields(&format!("spec.nodeName={}", config.name)).start();
    let (news, told) = mpsc::channel(NEWS_WAITING);
    // Listen before looking, so that nothing falls in between.
    tasks.spawn(follow_runtime(config.runtime.changes(), news.clone()));
    tasks.spawn(follow_probes(probed, news.clone()));
    tasks.spawn(follow_objects(objects, news.clone()));
    cache.synced().await;
    tasks.spawn(follow_pods(cache.subscribe(), news.clone()));
    let found = cache.list();
    let mut known: BTreeSet<String> = found.iter().filter_map(uid).collect();
    if let Some(manifests) = &config.manifests {
        let mut found = static_pods::follow(manifests, &config.name, recorder.clone());
        // Nothing is cleared away before every source has spoken (N-20).
        if let Ok(first) = found.wait_for(Option::is_some).await {
            known.extend(first.iter().flat_map(|pods| pods.iter()).filter_map(uid));
        }
        tasks.spawn(follow_manifests(found, news.clone()));
    } else {
        let _ = news.send(News::Static(Arc::default())).await;
    }
    tasks.spawn(sweep(&parts, known).await);
    if config.hardware.is_none() {
        tasks.spawn(logs::run_rotation(config.runtime.clone(), Rotation::default()));
        tasks.spawn(evict(&config, &parts, health.clone(), news.clone())?);
        tasks.spawn(collect_images(parts.clone()));
        tasks.spawn(class_groups::keep(parts.clone()));
    }
    if serving.is_some() {
        tasks.spawn(figures::keep(parts.clone()));
    }
    tasks.spawn(Dispatch::new(parts.clone(), cache, health.subscribe()).run(found, told));
    let shutdown = Arc::new(Shutdown::new(parts.clone(), news, health, config.shutdown));
    if config.hardware.is_none() {
        tasks.spawn(Host::system().follow(shutdown.clone()));
    }
    Ok(Running { address, serving, parts, registration, shutdown, tasks })
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
        addresses: config.node_ip.into_iter().collect(),
        port: address.map_or(0, |address| address.port()),
        lease: config.lease,
        features: config.runtime.features(),
        ..Settings::new(&config.name, &config.data_dir, &config.version)
    }
}

/// Ends pods when the node runs short of something (N-115, N-137).
fn evict(
    config: &Config,
    parts: &Arc<Parts>,
    health: watch::Sender<Health>,
    news: mpsc::Sender<News>,
) -> Result<impl Future<Output = ()> + use<>, Error> {
    let thresholds = Thresholds::hard(config.eviction_hard.as_deref()).map_err(Error::Other)?;
    let places =
        Places { node: config.data_dir.clone(), images: parts.runtime.images().directory() };
    let freeing = parts.clone();
    let reclaim: Reclaim = Arc::new(move || {
        let parts = freeing.clone();
        Box::pin(async move {
            if let Err(error) = parts.images.delete_unused(image_volumes(&parts)).await {
                tracing::warn!(%error, "unused images were not removed");
            }
        })
    });
    let eviction = Eviction::new(parts.clone(), thresholds, places, reclaim);
    Ok(async move {
        let (victims, mut chosen) = mpsc::channel::<Evict>(EVICTIONS_WAITING);
        let hand_on = async {
            while let Some(victim) = chosen.recv().await {
                let verdict = Verdict {
                    reason: "Evicted".into(),
                    message: victim.message,
                    disruption: victim.disruption,
                };
                let uid = victim.pod.metadata.uid.clone().unwrap_or_default();
                let kill = Kill { verdict, grace: Some(victim.grace) };
                let _ = news.send(News::Kill { uid, kill }).await;
            }
        };
        tokio::join!(eviction.run(health, victims), hand_on);
    })
}

/// N-177
async fn collect_images(parts: Arc<Parts>) {
    let node = node_reference(&parts.facts.name);
    parts.images.keep_collecting(&node, || image_volumes(&parts)).await;
}

/// Images that pods show as volumes.
fn image_volumes(parts: &Parts) -> BTreeSet<String> {
    let pods = parts.pods.list();
    let volumes = pods.iter().filter_map(|pod| pod.spec.as_ref()?.volumes.as_ref()).flatten();
    volumes.filter_map(|volume| volume.image.as_ref()?.reference.clone()).collect()
}

/// What pods are told of this node.
fn facts(config: &Config, node: &Node) -> NodeFacts {
    let status = node.status.clone().unwrap_or_default();
    let addresses = status.addresses.unwrap_or_default();
    let internal = addresses.iter().filter(|address| address.type_ == "InternalIP");
    NodeFacts {
        log_root: config.log_dir.join("pods"),
        cluster_dns: config.cluster_dns.clone(),
        host_ips: internal.filter_map(|address| address.address.parse().ok()).collect(),
        cgroup_root: config.cgroup.clone(),
        pod_pids_limit: config.pod_pids_limit,
        huge_pages: huge_pages(&status.capacity.clone().unwrap_or_default()),
        swap: swap_is_on(),
        recursive_read_only: config.runtime.features().recursive_read_only,
        allocatable: status.allocatable.unwrap_or_default(),
        capacity: status.capacity.unwrap_or_default(),
        ..NodeFacts::new(&config.name, config.data_dir.join("kubelet"))
    }
}

/// Sizes of the huge pages that there are (N-112).
fn huge_pages(capacity: &BTreeMap<String, Quantity>) -> Vec<u64> {
    let sizes = capacity.keys().filter_map(|name| name.strip_prefix("hugepages-"));
    let bytes = sizes.filter_map(|size| api::quantity::Quantity::parse(size).ok());
    bytes.filter_map(|size| u64::try_from(size.value()).ok()).collect()
}

/// The table has a line for each place to swap to, below its heading.
fn swap_is_on() -> bool {
    std::fs::read_to_string("/proc/swaps").is_ok_and(|table| table.lines().count() > 1)
}

/// The Node as it was accepted.
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

/// The pods' side of the network, once the Node has its range (N-7). None: the runtime brings it.
async fn network(
    config: &Config,
    registration: &Registration,
) -> Result<Option<Arc<network::Pods>>, Error> {
    if config.runtime.brings_network() {
        return Ok(None);
    }
    let traces = Traces {
        link: config.link.clone(),
        cidrs: pod_cidrs(registration).await?,
        cgroup: config.cgroup.clone(),
    };
    let path = traces.write(&config.data_dir);
    path.map_err(|source| Error::Directory { path: config.data_dir.clone(), source })?;
    let services = config.service_cidrs.iter().map(|range| range.parse::<network::Cidr>());
    let services = services.collect::<Result<Vec<_>, _>>().map_err(Error::Network)?;
    let shared =
        network::PodsConfig { service_cidrs: services, ..traces.network(&config.data_dir) };
    let opened = network::Pods::open(shared).await;
    Ok(Some(Arc::new(opened.map_err(Error::Network)?)))
}

/// Waits for the controller that hands out ranges.
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

async fn follow_pods(mut changes: Changes, news: mpsc::Sender<News>) {
    loop {
        let key = changes.next().await;
        if news.send(News::Pod(key)).await.is_err() {
            return;
        }
    }
}

async fn follow_manifests(mut found: watch::Receiver<StaticPods>, news: mpsc::Sender<News>) {
    loop {
        let pods = found.borrow_and_update().clone();
        if let Some(pods) = pods
            && news.send(News::Static(pods)).await.is_err()
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
    news: mpsc::Sender<News>,
) {
    loop {
        let told = match changes.recv().await {
            Ok(change) => News::Look(change.pod),
            Err(broadcast::error::RecvError::Lagged(_)) => News::LookAtAll,
            Err(broadcast::error::RecvError::Closed) => return,
        };
        if news.send(told).await.is_err() {
            return;
        }
    }
}

async fn follow_probes(
    mut results: mpsc::Receiver<crate::probes::ProbeResult>,
    news: mpsc::Sender<News>,
) {
    while let Some(result) = results.recv().await {
        if news.send(News::Look(result.uid)).await.is_err() {
            return;
        }
    }
}

async fn follow_objects(objects: Arc<Objects>, news: mpsc::Sender<News>) {
    loop {
        let uid = objects.changed().await;
        if news.send(News::Anew(uid)).await.is_err() {
            return;
        }
    }
}

impl Running {
    /// Resolves when the API has the node as Ready.
    pub async fn ready(&self) {
        let mut node = self.registration.subscribe();
        let ready = |node: &Option<Arc<Node>>| node.as_ref().is_some_and(|node| is_ready(node));
        if node.wait_for(ready).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Ends every pod, writes down how, and takes the network away (T-NODE-88). Says on the way who is
    /// left, and at the end what was cut.
    pub async fn end_pods<F: Future<Output = ()>>(&self, say: impl Fn(String) -> F) -> Vec<Cut> {
        let cuts = self.shutdown.end_pods(&say).await;
        if cuts.iter().any(|cut| cut.how == How::Left { running: true }) {
            return cuts;
        }
        if let Some(network) = &self.parts.network
            && let Err(error) = network.remove().await
        {
            say(format!("the pods' network was not removed: {error}")).await;
        }
        cgroup_root::remove(&self.parts.facts.cgroup_root);
        cuts
    }

    /// A signal to end may come because the host goes down: then pods are to end too.
    pub async fn host_is_stopping(&self) -> bool {
        self.shutdown.host_is_stopping(&Host::system()).await
    }

    /// While pods are being ended: those that have not ended get no more than two seconds.
    pub fn hurry(&self) {
        self.shutdown.hurry();
    }

    /// Pods go on running and are found again.
    pub async fn stop(mut self) {
        if let Some(serving) = self.serving.take() {
            serving.stop().await;
        }
        self.tasks.shutdown().await;
        self.parts.timeline.flush_all().await;
        self.parts.recorder.flush().await;
    }
}

pub(crate) fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True")
}

/// Takes away what a landfall that was killed has left running below its data directory. Nobody asks
/// the pods: their specs are in the API, and there is none.
pub async fn clear_away(
    data_dir: &Path,
    runtime: Arc<dyn Runtime>,
    say: impl Fn(String),
) -> Result<(), Error> {
    let sandboxes = runtime.sandboxes().await.map_err(Error::Runtime)?;
    let ended = futures::future::join_all(sandboxes.iter().map(|sandbox| {
        say(format!("ending {}/{}", sandbox.pod.namespace, sandbox.pod.name));
        end_sandbox(&runtime, sandbox)
    }));
    for (sandbox, ended) in sandboxes.iter().zip(ended.await) {
        let killed = ended.map_err(Error::Runtime)?;
        if !killed.is_empty() {
            let (pod, killed) = (&sandbox.pod, were(&killed));
            let short = "did not end within two seconds, all that there is without a landfall";
            say(format!("{}/{} {short}: {killed} killed", pod.namespace, pod.name));
        }
    }
    let pods = data_dir.join("kubelet/pods");
    crate::volumes::clear_away(&pods).map_err(|source| Error::Directory { path: pods, source })?;
    let Some(traces) = Traces::read(data_dir) else { return Ok(()) };
    let network = network::Pods::open(traces.network(data_dir)).await.map_err(Error::Network)?;
    network.remove().await.map_err(Error::Network)?;
    cgroup_root::remove(&traces.cgroup);
    runtime::Precedence::clear_away(&traces.cgroup);
    Ok(())
}
