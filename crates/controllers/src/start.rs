//! Starts the controllers, each on what it shares with the others, and stops them again.

use crate::pod_cidrs::Range;
use crate::{
    deployment, finished_jobs, garbage, namespaces, node_leases, node_taints, pod_cidrs,
    pod_garbage, pods, replica_set,
};
use client::{Cache, Client, Leadership, ObjectKey, Recorder};
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::{Node, Pod, ReplicationController};
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
    /// How many finished pods may stay; `None` is all of them (T-CTRL-33).
    pub finished_pods_max: Option<usize>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            pod_cidrs: Range::default(),
            identity: None,
            finished_pods_max: Some(pod_garbage::FINISHED_MAX),
        }
    }
}

/// Controllers that run. Dropping the handle lets them run on.
pub struct Handle {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Handle {
    pub async fn stop(self) {
        let _ = self.stop.send(());
        let _ = self.task.await;
    }
}

/// Starts all controllers.
pub fn start(client: &Client, options: Options) -> Handle {
    let (stop, stopped) = oneshot::channel();
    let client = client.clone().named(NAME);
    let task = tokio::spawn(async move {
        let stopped = async {
            // Without a handle nobody can stop them.
            if stopped.await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        tokio::pin!(stopped);
        match &options.identity {
            None => run(&client, &options, stopped).await,
            Some(identity) => lead(&client, &options, identity, stopped).await,
        }
    });
    Handle { stop, task }
}

/// Runs the controllers whenever this server leads.
async fn lead(
    client: &Client,
    options: &Options,
    identity: &str,
    mut stopped: impl Future<Output = ()> + Unpin,
) {
    let lease = ObjectKey::new(LEASE.0, LEASE.1);
    loop {
        let mut leadership = tokio::select! {
            biased;
            leadership = Leadership::acquire(client, &lease, identity) => leadership,
            () = &mut stopped => return,
        };
        tokio::select! {
            biased;
            () = run(client, options, leadership.lost()) => (),
            () = &mut stopped => {
                if let Err(error) = leadership.release().await {
                    tracing::debug!(%error, "the lease runs out by itself");
                }
                return;
            }
        }
    }
}

/// What controllers share.
pub(crate) struct Cluster {
    pub(crate) client: Client,
    pub(crate) nodes: Cache<Node>,
    /// With the indexes of `pods`.
    pub(crate) pods: Cache<Pod>,
    pub(crate) replica_sets: Cache<ReplicaSet>,
    /// For what is said about nodes.
    pub(crate) recorder: Recorder,
}

/// A controller can be dropped at any time: what it left undone, the next one does.
async fn run(client: &Client, options: &Options, until: impl Future<Output = ()>) {
    let cluster = Cluster {
        client: client.clone(),
        nodes: Cache::start(client),
        pods: pods::cache(client),
        replica_sets: replica_set::sets(client),
        recorder: Recorder::new(client, "node-controller", ""),
    };
    tokio::select! {
        biased;
        _ = async {
            tokio::join!(
                node_taints::run(&cluster),
                node_leases::run(&cluster),
                pod_cidrs::run(&cluster, options.pod_cidrs),
                namespaces::run(&cluster),
                garbage::run(&cluster),
                pod_garbage::run(&cluster, options.finished_pods_max),
                finished_jobs::run(&cluster),
                deployment::run(&cluster),
                replica_set::run(&cluster, cluster.replica_sets.clone()),
                replica_set::run::<ReplicationController>(&cluster, replica_set::sets(client)),
            )
        } => (),
        () = until => (),
    }
    cluster.recorder.flush().await;
}
