//! Starts the controllers, each on what it shares with the others, and stops them again.

use crate::figures::Figures;
use crate::pod_cidrs::Range;
use crate::storage::LocalVolumes;
use crate::{
    cluster_roles, cron_job, daemon_set, deployment, disruption, finished_jobs, garbage,
    horizontal_pod_autoscaler, job, join_tokens, namespaces, node_leases, node_lost, node_taints,
    node_ttl, pod_cidrs, pod_garbage, pods, quotas, replica_set, service_addresses, service_ranges,
    services, signing_requests, stateful_set, storage, system_namespaces, taint_eviction,
    token_secrets, workload,
};
use client::{Cache, Client, ObjectKey, Queue, Recorder};
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::{Node, Pod, ReplicationController};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Who writes, as far as controllers are told apart from others.
const NAME: &str = "kube-controller-manager";

/// The lease that says who of several servers runs the controllers.
const LEASE: (&str, &str) = ("kube-system", "kube-controller-manager");

/// What can be chosen.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where pods get their addresses from, and how much of it a node gets.
    pub pod_cidrs: Range,
    /// If there are several servers: who this one is. Only one of them runs the controllers.
    pub identity: Option<String>,
    /// A node without a sign of life for so long is not heard of (T-CTRL-38).
    pub silent_nodes_after: Duration,
    /// How many finished pods may stay; `None` is all of them (T-CTRL-33).
    pub finished_pods_max: Option<usize>,
    /// If claims may have directories of this machine: which node it is, and where they are.
    pub local_volumes: Option<LocalVolumes>,
    pub who: Who,
}

/// Which controllers run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    All,
    /// Those who look after nodes and pods, and nobody who makes pods out of something else.
    OfPods,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            pod_cidrs: Range::default(),
            identity: None,
            silent_nodes_after: node_leases::SILENT_FOR,
            finished_pods_max: Some(pod_garbage::FINISHED_MAX),
            local_volumes: None,
            who: Who::All,
        }
    }
}

/// Controllers that run. Dropping the handle lets them run on.
pub struct Handle {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
    figures: Figures,
}

impl Handle {
    /// What they count, for whoever shows it.
    pub fn metrics(&self) -> Arc<metrics::Registry> {
        self.figures.registry()
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
    let figures = Figures::new();
    let counted = figures.clone();
    let task = tokio::spawn(async move {
        let stopped = async {
            // Without a handle nobody can stop them.
            if stopped.await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        match &options.identity {
            None => run(&client, &options, &counted, stopped).await,
            Some(identity) => {
                let lease = ObjectKey::new(LEASE.0, LEASE.1);
                let run = |until| run(&client, &options, &counted, until);
                client::lead(&client, &lease, identity, stopped, run).await;
            }
        }
    });
    Handle { stop, task, figures }
}

/// What controllers share.
pub(crate) struct Cluster {
    pub(crate) client: Client,
    pub(crate) nodes: Cache<Node>,
    /// With the indexes of `pods`.
    pub(crate) pods: Cache<Pod>,
    /// Namespaces that an object has left. Whoever sees all kinds says so; quotas are counted by it.
    pub(crate) left: Queue<String>,
    pub(crate) replica_sets: Cache<ReplicaSet>,
    /// For what is said about nodes.
    pub(crate) recorder: Recorder,
    pub(crate) figures: Figures,
}

/// A controller can be dropped at any time: what it left undone, the next one does.
async fn run(
    client: &Client,
    options: &Options,
    figures: &Figures,
    until: impl Future<Output = ()>,
) {
    let cluster = Cluster {
        client: client.clone(),
        nodes: Cache::start(client),
        pods: pods::cache(client),
        left: Queue::new(),
        replica_sets: replica_set::sets(client),
        recorder: Recorder::new(client, "node-controller", ""),
        figures: figures.clone(),
    };
    // Unordered: only who has something to do is looked at.
    let mut all: FuturesUnordered<_> = of_pods(&cluster, options).into_iter().collect();
    if options.who == Who::All {
        all.extend(of_objects(&cluster, options));
    }
    tokio::select! {
        biased;
        () = async { while all.next().await.is_some() {} } => (),
        () = until => (),
    }
    drop(all);
    cluster.recorder.flush().await;
}

/// Each on the heap: together they are more than a stack holds.
type Crew<'a> = Vec<BoxFuture<'a, ()>>;

fn of_pods<'a>(cluster: &'a Cluster, options: &'a Options) -> Crew<'a> {
    vec![
        Box::pin(node_taints::run(cluster)),
        Box::pin(node_leases::run(cluster, options.silent_nodes_after)),
        Box::pin(pod_cidrs::run(cluster, options.pod_cidrs)),
        Box::pin(pod_garbage::run(cluster, options.finished_pods_max)),
        Box::pin(node_lost::run(cluster)),
        Box::pin(taint_eviction::run(cluster)),
    ]
}

fn of_objects<'a>(cluster: &'a Cluster, options: &'a Options) -> Crew<'a> {
    let client = &cluster.client;
    let revisions = workload::revisions(client);
    let jobs = job::jobs(client);
    let namespaces = Cache::start(client);
    let known = services::services(client);
    let addresses = Cache::start(client);
    let ranges = Cache::start(client);
    let claims = storage::claims(client);
    vec![
        Box::pin(signing_requests::run(cluster)),
        Box::pin(join_tokens::run(cluster)),
        Box::pin(token_secrets::run(cluster)),
        Box::pin(namespaces::run(cluster, namespaces.clone())),
        Box::pin(garbage::run(cluster)),
        Box::pin(finished_jobs::run(cluster, jobs.clone())),
        Box::pin(services::run(cluster, known.clone())),
        Box::pin(service_ranges::run(cluster, ranges.clone(), addresses.clone())),
        Box::pin(service_addresses::run(cluster, known.clone(), addresses, ranges)),
        Box::pin(node_ttl::run(cluster)),
        Box::pin(disruption::run(cluster)),
        Box::pin(storage::run(cluster, claims.clone(), options.local_volumes.as_ref())),
        Box::pin(cluster_roles::run(cluster)),
        Box::pin(system_namespaces::run(cluster, namespaces)),
        Box::pin(quotas::run(cluster, known, claims.clone())),
        Box::pin(deployment::run(cluster)),
        Box::pin(stateful_set::run(cluster, revisions.clone(), claims)),
        Box::pin(daemon_set::run(cluster, revisions)),
        Box::pin(job::run(cluster, jobs.clone())),
        Box::pin(cron_job::run(cluster, jobs)),
        Box::pin(horizontal_pod_autoscaler::run(cluster)),
        Box::pin(replica_set::run(cluster, cluster.replica_sets.clone())),
        Box::pin(replica_set::run::<ReplicationController>(cluster, replica_set::sets(client))),
    ]
}
