//! Starts and stops the controllers.

use crate::controller_metrics::ControllerMetrics;
use crate::pod_cidrs::Ranges;
use crate::storage::LocalVolumes;
use crate::{
    cluster_roles, cron_job, daemon_set, deployment, disruption, finished_jobs, garbage,
    horizontal_pod_autoscaler, job, join_tokens, load_balancer, namespaces, node_leases, node_lost,
    node_taints, node_ttl, pod_cidrs, pod_garbage, pods, quotas, replica_set, service_addresses,
    service_ranges, services, signing_requests, stateful_set, storage, system_namespaces,
    taint_eviction, token_secrets, workload,
};
use client::{Cache, Client, ObjectKey, Queue, Recorder};
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::{Node, Pod, ReplicationController};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// User agent and field manager of the controllers.
const NAME: &str = "kube-controller-manager";

/// The account for work that upstream's API server does itself.
const APISERVER: &str = "apiserver";

/// The lease for leader election among several servers.
const LEASE: (&str, &str) = ("kube-system", "kube-controller-manager");

#[derive(Debug, Clone)]
pub struct Options {
    /// The ranges of pod addresses: one, or one per IP family.
    pub pod_cidrs: Ranges,
    /// The identity of this server if there are several; only one of them runs the controllers.
    pub identity: Option<String>,
    /// Without a heartbeat for this long, a node is unreachable (T-CTRL-38).
    pub node_grace_period: Duration,
    /// How many finished pods to keep; `None` keeps all of them (T-CTRL-33).
    pub finished_pods_max: Option<usize>,
    /// The node name and directory for local volumes, if this machine offers them.
    pub local_volumes: Option<LocalVolumes>,
    pub controllers: ControllerSet,
    /// Lets each controller use its own service account. Without it all share one (C-197).
    pub accounts: Option<Accounts>,
}

/// Creates a client for the service account of a given name in `kube-system`.
#[derive(Clone)]
pub struct Accounts(Arc<dyn Fn(&str) -> Client + Send + Sync>);

impl Accounts {
    pub fn new(client_of: impl Fn(&str) -> Client + Send + Sync + 'static) -> Accounts {
        Accounts(Arc::new(client_of))
    }
}

impl std::fmt::Debug for Accounts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Accounts").finish_non_exhaustive()
    }
}

/// Which controllers to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ControllerSet {
    All,
    /// Only the controllers of nodes and pods, none that creates pods.
    NodesAndPods,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            pod_cidrs: Ranges::default(),
            identity: None,
            node_grace_period: node_leases::GRACE_PERIOD,
            finished_pods_max: Some(pod_garbage::FINISHED_MAX),
            local_volumes: None,
            controllers: ControllerSet::All,
            accounts: None,
        }
    }
}

/// Running controllers. Dropping the handle does not stop them.
pub struct Handle {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
    metrics: ControllerMetrics,
}

impl Handle {
    pub fn metrics(&self) -> Arc<metrics::Registry> {
        self.metrics.registry()
    }

    pub async fn stop(self) {
        let _ = self.stop.send(());
        let _ = self.task.await;
    }
}

/// Starts all controllers.
pub fn start(client: &Client, options: Options) -> Handle {
    let (stop, stopped) = oneshot::channel();
    let client = client.clone().named(NAME);
    let metrics = ControllerMetrics::new();
    let recorded = metrics.clone();
    let task = tokio::spawn(async move {
        let stopped = async {
            // If the handle was dropped, the controllers run forever.
            if stopped.await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        match &options.identity {
            None => run(&client, &options, &recorded, stopped).await,
            Some(identity) => {
                let lease = ObjectKey::new(LEASE.0, LEASE.1);
                let run = |until| run(&client, &options, &recorded, until);
                client::lead(&client, &lease, identity, stopped, run).await;
            }
        }
    });
    Handle { stop, task, metrics }
}

/// The client, caches and recorder that controllers share.
#[derive(Clone)]
pub(crate) struct Cluster {
    pub(crate) client: Client,
    pub(crate) nodes: Cache<Node>,
    /// With the indexes of `pods`.
    pub(crate) pods: Cache<Pod>,
    /// Namespaces from which an object was deleted. The garbage collector, which watches all kinds, adds them, and the
    /// quota controller recounts them.
    pub(crate) namespaces_to_recount: Queue<String>,
    pub(crate) replica_sets: Cache<ReplicaSet>,
    /// For events about nodes.
    pub(crate) recorder: Recorder,
    pub(crate) metrics: ControllerMetrics,
    pub(crate) accounts: Option<Accounts>,
}

impl Cluster {
    /// The same with the client of a service account, whose rights are those of the role
    /// `system:controller:<account>`. Caches are shared, like upstream's informers.
    pub(crate) fn with_account(&self, account: &str) -> Cluster {
        let mut own = self.clone();
        if let Some(accounts) = &self.accounts {
            let user = match account {
                APISERVER => "system:apiserver".to_owned(),
                account => format!("system:serviceaccount:kube-system:{account}"),
            };
            own.client = self.client.acting_as(&(accounts.0)(account), &user);
        }
        own
    }
}

/// Runs the controllers until `until` resolves. They can be stopped at any time: the next ones continue their work.
async fn run(
    client: &Client,
    options: &Options,
    metrics: &ControllerMetrics,
    until: impl Future<Output = ()>,
) {
    let cluster = Cluster {
        client: client.clone(),
        nodes: Cache::start(client),
        pods: pods::cache(client),
        namespaces_to_recount: Queue::new(),
        replica_sets: replica_set::sets(client),
        recorder: Recorder::new(client, "node-controller", ""),
        metrics: metrics.clone(),
        accounts: options.accounts.clone(),
    };
    let accounts = ClusterByAccount::new(&cluster);
    // FuturesUnordered polls only the controllers that were woken.
    let mut all: FuturesUnordered<_> =
        node_and_pod_controllers(&accounts, options).into_iter().collect();
    if options.controllers == ControllerSet::All {
        all.extend(object_controllers(&cluster, &accounts, options));
    }
    tokio::select! {
        biased;
        () = async { while all.next().await.is_some() {} } => (),
        () = until => (),
    }
    drop(all);
    cluster.recorder.flush().await;
}

/// The service accounts of the controllers below. `services` and `storage` run several controllers each and switch to
/// further accounts.
const ACCOUNTS: [&str; 22] = [
    "node-controller",
    "pod-garbage-collector",
    "certificate-controller",
    "token-cleaner",
    "namespace-controller",
    "generic-garbage-collector",
    "ttl-after-finished-controller",
    "service-cidrs-controller",
    "service-controller",
    APISERVER,
    "ttl-controller",
    "disruption-controller",
    "clusterrole-aggregation-controller",
    "resourcequota-controller",
    "deployment-controller",
    "statefulset-controller",
    "daemon-set-controller",
    "job-controller",
    "cronjob-controller",
    "horizontal-pod-autoscaler",
    "replicaset-controller",
    "replication-controller",
];

/// The cluster with the rights of each service account.
struct ClusterByAccount(BTreeMap<&'static str, Cluster>);

impl ClusterByAccount {
    fn new(cluster: &Cluster) -> ClusterByAccount {
        let all = ACCOUNTS.iter().map(|account| (*account, cluster.with_account(account)));
        ClusterByAccount(all.collect())
    }

    fn get(&self, account: &str) -> &Cluster {
        self.0.get(account).expect("ACCOUNTS lists every account")
    }
}

/// Boxed, because together the futures are too large for the stack.
type Controllers<'a> = Vec<BoxFuture<'a, ()>>;

fn node_and_pod_controllers<'a>(
    accounts: &'a ClusterByAccount,
    options: &'a Options,
) -> Controllers<'a> {
    let node_controller = accounts.get("node-controller");
    vec![
        node_taints::run(node_controller).boxed(),
        node_leases::run(node_controller, options.node_grace_period).boxed(),
        pod_cidrs::run(node_controller, options.pod_cidrs.clone()).boxed(),
        pod_garbage::run(accounts.get("pod-garbage-collector"), options.finished_pods_max).boxed(),
        node_lost::run(node_controller).boxed(),
        // As in upstream, it shares the account of the node controller.
        taint_eviction::run(node_controller).boxed(),
    ]
}

fn object_controllers<'a>(
    cluster: &'a Cluster,
    accounts: &'a ClusterByAccount,
    options: &'a Options,
) -> Controllers<'a> {
    let client = &cluster.client;
    let revisions = workload::revisions(client);
    let jobs = job::jobs(client);
    let namespaces = Cache::start(client);
    let services = services::services(client);
    let addresses = Cache::start(client);
    let ranges = Cache::start(client);
    let claims = storage::claims(client);
    let replica_sets = cluster.replica_sets.clone();
    let replication_controllers = replica_set::sets::<ReplicationController>(client);
    let own = |account| accounts.get(account);
    vec![
        signing_requests::run(own("certificate-controller")).boxed(),
        join_tokens::run(own("token-cleaner")).boxed(),
        // As in upstream, it uses the account of the controller manager itself.
        token_secrets::run(cluster).boxed(),
        namespaces::run(own("namespace-controller"), namespaces.clone()).boxed(),
        garbage::run(own("generic-garbage-collector")).boxed(),
        finished_jobs::run(own("ttl-after-finished-controller"), jobs.clone()).boxed(),
        services::run(cluster, services.clone()).boxed(),
        service_ranges::run(own("service-cidrs-controller"), ranges.clone(), addresses.clone())
            .boxed(),
        load_balancer::run(own("service-controller"), services.clone()).boxed(),
        // In upstream these two are part of the API server.
        service_addresses::run(own(APISERVER), services.clone(), addresses, ranges).boxed(),
        system_namespaces::run(own(APISERVER), namespaces.clone()).boxed(),
        node_ttl::run(own("ttl-controller")).boxed(),
        disruption::run(own("disruption-controller")).boxed(),
        storage::run(cluster, claims.clone(), options.local_volumes.as_ref()).boxed(),
        cluster_roles::run(own("clusterrole-aggregation-controller")).boxed(),
        quotas::run(own("resourcequota-controller"), services, claims.clone()).boxed(),
        deployment::run(own("deployment-controller")).boxed(),
        stateful_set::run(own("statefulset-controller"), revisions.clone(), claims).boxed(),
        daemon_set::run(own("daemon-set-controller"), revisions).boxed(),
        job::run(own("job-controller"), jobs.clone(), namespaces).boxed(),
        cron_job::run(own("cronjob-controller"), jobs).boxed(),
        horizontal_pod_autoscaler::run(own("horizontal-pod-autoscaler")).boxed(),
        replica_set::run(own("replicaset-controller"), replica_sets).boxed(),
        replica_set::run(own("replication-controller"), replication_controllers).boxed(),
    ]
}
