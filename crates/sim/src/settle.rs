//! The scenario `settle`: workloads are created, changed and deleted in any order, with crashes in between. The cluster
//! reaches the desired state, and then for an hour nothing is written but heartbeats of nodes.
//!
//! Not here: which workloads there are (`settle/workloads.rs`) and whether they are in the desired state
//! (`settle/desired_state.rs`).

pub(crate) mod desired_state;
mod workloads;

use crate::cluster::Cluster;
use crate::connection::{RequestCounts, State};
use crate::run;
use crate::scenario::Scenario;
use k8s_openapi::api::core::v1::Event;
use std::collections::BTreeSet;
use std::time::Duration;

/// The cluster reaches the desired state within this time after all faults have ended: a queue waits up to a minute
/// between two attempts, and some steps depend on others.
const PATIENCE: Duration = Duration::from_secs(900);
const POLL: Duration = Duration::from_secs(1);
/// Reports may follow after the desired state is reached: events are sent late, termination records are retried.
const REPORTS_MAX: Duration = Duration::from_secs(60);
/// For this long no component may write anything but heartbeats.
const SILENCE: Duration = Duration::from_secs(3600);

pub(crate) async fn simulate(cluster: &mut Cluster, scenario: &Scenario, seed: u64) {
    let began = tokio::time::Instant::now();
    for action in workloads::draw(scenario, seed) {
        tokio::time::sleep_until(began + action.at).await;
        if cluster.log.violation().is_some() {
            return;
        }
        match action.what {
            workloads::Action::Workload(request) => request.send(&cluster.operator),
            workloads::Action::Fault(fault) => run::perform(cluster, fault).await,
        }
    }
    tokio::time::sleep_until(began + scenario.span).await;
    cluster.log.note("all requests are made and all faults end");
    for host in &cluster.hosts {
        host.connection.set_state(State::Up);
        host.cancel_crash();
    }
    if converge(cluster).await {
        tokio::time::sleep(REPORTS_MAX).await;
        check_silence(cluster).await;
    }
}

/// True when the desired state is reached.
async fn converge(cluster: &Cluster) -> bool {
    let until = tokio::time::Instant::now() + PATIENCE;
    while cluster.log.violation().is_none() {
        tokio::time::sleep(POLL).await;
        let Some(difference) = desired_state::difference(cluster).await else { return true };
        if tokio::time::Instant::now() > until {
            cluster.log.report("the desired state is reached", difference);
        }
    }
    false
}

/// Compares two counts: requests on the connections, which tell who sent them, and writes of the store, which include
/// everything.
async fn check_silence(cluster: &Cluster) {
    let before = (cluster.revision().await, events(cluster).await);
    cluster.control_plane.counter.start();
    tokio::time::sleep(SILENCE).await;
    let (read, written) = split_reads(cluster.control_plane.counter.stop());
    let after = (cluster.revision().await, events(cluster).await);
    if let Some((what, times)) = written.iter().find(|(what, times)| !is_heartbeat(what, **times)) {
        return cluster.log.report("silence", format!("in an hour {times} times: {what}"));
    }
    let ((Some(from), Some(was)), (Some(to), Some(is))) = (before, after) else {
        return cluster.log.report("silence", "the server does not respond".to_owned());
    };
    if let Some(new) = is.difference(&was).next() {
        return cluster.log.report("silence", format!("there is a new event {new}"));
    }
    let expired = (was.len() - is.len()) as u64;
    let alive: u64 = written.values().sum();
    let stored = to - from;
    cluster.log.note(format!(
        "{stored} writes in an hour: {alive} heartbeats, {expired} expired events; {} reads",
        read.values().sum::<u64>()
    ));
    cluster.log.note(format!("reads: {}", shown(&read)));
    if stored != alive + expired {
        let why = format!(
            "{stored} writes are stored, of them {alive} heartbeats and {expired} expired events"
        );
        cluster.log.report("silence", format!("{why}; {}", shown(&written)));
    }
}

/// A node renews its Lease every 10 s and writes its status every 5 min (N-17, N-18), and not more often.
fn is_heartbeat(what: &str, times: u64) -> bool {
    let mut words = what.split(' ');
    let (Some(user), Some(method), Some(path)) = (words.next(), words.next(), words.next()) else {
        return false;
    };
    let Some(node) = user.strip_prefix("system:node:") else { return false };
    let lease = format!("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{node}");
    let status = format!("/api/v1/nodes/{node}/status");
    let hourly = match method {
        "PUT" if path == lease => SILENCE.as_secs() / 10,
        "PATCH" if path == status => SILENCE.as_secs() / 300,
        _ => return false,
    };
    times <= hourly + 1
}

async fn events(cluster: &Cluster) -> Option<BTreeSet<String>> {
    let events = cluster.operator.client.list::<Event>(&Default::default()).await.ok()?;
    let version = |event: &Event| event.metadata.resource_version.clone().unwrap_or_default();
    Some(events.iter().map(version).collect())
}

/// Splits reads from other requests.
fn split_reads(counts: RequestCounts) -> (RequestCounts, RequestCounts) {
    counts.into_iter().partition(|(what, _)| what.contains(" GET "))
}

fn shown(counts: &RequestCounts) -> String {
    let all: Vec<String> = counts.iter().map(|(what, times)| format!("{times} × {what}")).collect();
    all.join(", ")
}
