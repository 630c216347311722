//! Measures what a pod costs in a cluster of any size: Deployments are created, rolled out and deleted on one
//! thread, and the CPU time of that thread is read after each phase.
//!
//! The cluster is the same as in the other scenarios (server, controllers, scheduler, one agent per node), but no rule
//! is checked: the event log of that many pods would not fit into memory.

use crate::cluster::{Cluster, ClusterConfig};
use crate::run::{Error, SimulationSetup, block_on_simulated};
use client::{Client, DeleteOptions, ObjectKey, Propagation, Selection};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use std::time::Duration;

/// Pods of one Deployment.
const REPLICAS: u32 = 100;
const POLL: Duration = Duration::from_secs(5);
/// Simulated time after which a phase counts as unfinished.
const PATIENCE: Duration = Duration::from_secs(4 * 3600);

#[derive(Debug, Clone, Copy)]
pub struct Size {
    pub nodes: u16,
    pub pods: u32,
}

/// The measurements of one phase.
#[derive(Debug, Clone)]
pub struct Phase {
    pub name: &'static str,
    /// The number of pods that were started or terminated.
    pub pods: u32,
    /// CPU time of the thread that runs everything.
    pub cpu: Duration,
    pub simulated: Duration,
    /// Writes of the store, including the heartbeats of nodes.
    pub writes: u64,
    /// The highest memory use of the process so far.
    pub peak_bytes: u64,
    /// The phase did not finish in time.
    pub unfinished: bool,
}

/// Measures all phases on this thread.
pub fn scale(setup: &SimulationSetup, size: Size, report: &dyn Fn(&Phase)) -> Result<(), Error> {
    let directory = tempfile::Builder::new().prefix("scale-").tempdir_in(setup.directory.path())?;
    let config = ClusterConfig {
        foundation: &setup.foundation,
        seed: 0,
        nodes: size.nodes,
        controllers: controllers::ControllerSet::All,
        directory: directory.path(),
        wrap_runtime: None,
        proxies: Vec::new(),
        checked: false,
    };
    let run = async {
        let began = Measurement::now(None).await;
        match Cluster::start(config).await {
            Ok(cluster) => {
                report(&began.phase("nodes join", 0, Some(&cluster)).await);
                measure(&cluster, size.pods, report).await;
                Ok(())
            }
            Err(why) => Err(std::io::Error::other(why)),
        }
    };
    Ok(block_on_simulated(0, run)??)
}

async fn measure(cluster: &Cluster, pods: u32, report: &dyn Fn(&Phase)) {
    let client = &cluster.operator.client;
    let count = pods.div_ceil(REPLICAS);
    let phases: [(&'static str, u32); 4] =
        [("create", pods), ("roll", 2 * pods), ("rest", 0), ("delete", pods)];
    for (name, moved) in phases {
        let mark = Measurement::now(Some(cluster)).await;
        for number in 0..count {
            request(client, name, number, pods).await;
        }
        let over = match name {
            "rest" => {
                tokio::time::sleep(Duration::from_secs(60)).await;
                true
            }
            "delete" => until(async || nothing_left(client).await).await,
            _ => until(async || all_there(client).await).await,
        };
        let mut phase = mark.phase(name, moved, Some(cluster)).await;
        phase.unfinished = !over;
        report(&phase);
    }
}

async fn request(client: &Client, what: &str, number: u32, pods: u32) {
    let name = format!("web{number}");
    let key = ObjectKey::new("default", &name);
    let asked = match what {
        "create" => {
            let replicas = REPLICAS.min(pods - number * REPLICAS);
            let object = typed::from_value(deployment(&name, replicas)).unwrap_or_default();
            client.create::<Deployment>(&object).await.map(drop)
        }
        "roll" => {
            let template = json!({ "metadata": { "annotations": { "rolled": "yes" } } });
            let patch = json!({ "spec": { "template": template } });
            client.patch_merge::<Deployment>(&key, &patch).await.map(drop)
        }
        "delete" => {
            let options = DeleteOptions::default().propagation(Propagation::Background);
            client.delete::<Deployment>(&key, &options).await.map(drop)
        }
        _ => Ok(()),
    };
    if let Err(error) = asked {
        tracing::warn!(%error, "the server rejected a request for a Deployment");
    }
}

fn deployment(name: &str, replicas: u32) -> Value {
    json!({
        "metadata": { "name": name, "namespace": "default" },
        "spec": {
            "replicas": replicas,
            "selector": { "matchLabels": { "app": name } },
            "template": {
                "metadata": { "labels": { "app": name } },
                "spec": {
                    "automountServiceAccountToken": false,
                    "enableServiceLinks": false,
                    "terminationGracePeriodSeconds": 5,
                    "containers": [{ "name": "c", "image": "sim/here:1",
                                     "resources": { "requests": { "cpu": "10m" } } }],
                },
            },
        },
    })
}

/// Waits until the condition holds; false: it did not in time.
async fn until(mut is_so: impl AsyncFnMut() -> bool) -> bool {
    let end = tokio::time::Instant::now() + PATIENCE;
    while tokio::time::Instant::now() < end {
        tokio::time::sleep(POLL).await;
        if is_so().await {
            return true;
        }
    }
    false
}

async fn all_there(client: &Client) -> bool {
    let Ok(all) = client.list::<Deployment>(&Selection::default()).await else { return false };
    all.iter().all(|it| {
        let wanted = it.spec.as_ref().and_then(|spec| spec.replicas);
        it.status.as_ref().is_some_and(|status| {
            status.observed_generation == it.metadata.generation
                && status.replicas == wanted
                && status.updated_replicas == wanted
                && status.available_replicas == wanted
        })
    })
}

async fn nothing_left(client: &Client) -> bool {
    client.list::<Pod>(&Selection::default()).await.is_ok_and(|pods| pods.is_empty())
}

/// The clocks and the revision at one moment.
struct Measurement {
    cpu: Duration,
    at: tokio::time::Instant,
    revision: u64,
}

impl Measurement {
    async fn now(cluster: Option<&Cluster>) -> Measurement {
        let revision = match cluster {
            Some(cluster) => cluster.revision().await.unwrap_or_default(),
            None => 0,
        };
        Measurement { cpu: cpu(), at: tokio::time::Instant::now(), revision }
    }

    async fn phase(&self, name: &'static str, pods: u32, cluster: Option<&Cluster>) -> Phase {
        let now = Measurement::now(cluster).await;
        Phase {
            name,
            pods,
            cpu: now.cpu.saturating_sub(self.cpu),
            simulated: now.at - self.at,
            writes: now.revision.saturating_sub(self.revision),
            peak_bytes: peak(),
            unfinished: false,
        }
    }
}

/// CPU time of this thread.
fn cpu() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = text.split(' ').next().and_then(|first| first.parse().ok());
    Duration::from_nanos(nanos.unwrap_or_default())
}

fn peak() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes.unwrap_or_default() * 1024
}
