//! The scenario `traffic`: Deployments behind Services are rolled out, scaled and deleted while clients send requests
//! through the packet rules of every node.
//!
//!     users ──▶ API ──▶ proxy of each node ──▶ RuleTable ◀── clients ──▶ pods
//!
//! Even seeds have no faults, so that every change has to be committed in time; odd seeds have some. At the end, the rules
//! of every node are what the API declares, and no request is lost.
//! Not here: what users request (`service_traffic/workloads.rs`), how a request finds a pod (`service_traffic/clients.rs`),
//! the rules (`checker/services.rs`).

mod clients;
mod workloads;

use crate::cluster::Cluster;
use crate::connection::{NetworkFaults, State};
use crate::proxy::{ProxyConfig, WrapRules};
use crate::random::Random;
use crate::run;
use crate::scenario::Scenario;
use crate::settle::desired_state;
use clients::Clients;
use std::ops::RangeInclusive;
use std::time::Duration;
use workloads::Action;

/// The cluster reaches the desired state, and the proxies commit it, within this time after all faults have ended: a
/// queue waits up to a minute between two attempts, and some steps depend on others.
const PATIENCE: Duration = Duration::from_secs(900);
const POLL: Duration = Duration::from_secs(1);
/// Nothing changes during this time once the cluster is idle.
const REST: Duration = Duration::from_secs(30);

/// The proxies of a run. The seed decides how slow each is, unless a delay is given.
pub(crate) fn proxies(
    scenario: &Scenario,
    seed: u64,
    delay: Option<&RangeInclusive<Duration>>,
    wrap: Option<&WrapRules>,
) -> Vec<ProxyConfig> {
    let mut random = Random::new(seed, 6);
    let proxy = |_| {
        let drawn = match random.below(3) {
            0 => None,
            1 => Some(Duration::ZERO..=random.millis(1, 300)),
            _ => Some(random.millis(100, 1000)..=random.millis(1000, 4000)),
        };
        let delay = delay.cloned().or(drawn);
        ProxyConfig { delay, undisturbed: !has_faults(seed), wrap: wrap.cloned() }
    };
    (0..scenario.nodes).map(proxy).collect()
}

fn has_faults(seed: u64) -> bool {
    !seed.is_multiple_of(2)
}

pub(crate) async fn simulate(cluster: &mut Cluster, scenario: &Scenario, seed: u64) {
    let began = tokio::time::Instant::now();
    let clients = Clients::start(cluster, seed);
    for action in workloads::draw(scenario, seed) {
        tokio::time::sleep_until(began + action.at).await;
        if cluster.log.violation().is_some() {
            return;
        }
        match action.what {
            Action::Workload(request) => request.send(&cluster.operator),
            Action::DeletePod(number) => delete_pod(cluster, number),
            Action::Fault(fault) => run::perform(cluster, fault).await,
        }
    }
    tokio::time::sleep_until(began + scenario.span).await;
    cluster.log.note("all requests of users are made and all faults end");
    for host in &cluster.hosts {
        host.connection.set_state(State::Up);
        host.connection.set_faults(NetworkFaults::default());
        host.cancel_crash();
    }
    if !until_idle(cluster).await {
        return;
    }
    tokio::time::sleep(REST).await;
    if let Some(difference) = cluster.log.with_checker(|checker| checker.rules_difference()) {
        return cluster.log.report("when idle, rules equal the declared state", difference);
    }
    if let Some(lost) = clients.send_everywhere() {
        cluster.log.report("when idle, no request is lost", lost);
    }
}

/// Deletes one of the pods that exist now.
fn delete_pod(cluster: &Cluster, number: u64) {
    let mut names = cluster.log.with_checker(|checker| checker.undeleted());
    names.sort();
    if names.is_empty() {
        return;
    }
    let name = &names[(number % names.len() as u64) as usize];
    let name = name.rsplit('/').next().unwrap_or_default().to_owned();
    tokio::spawn(cluster.operator.clone().delete(name, None));
}

/// True when the API shows the desired state and every proxy has committed it.
async fn until_idle(cluster: &Cluster) -> bool {
    let until = tokio::time::Instant::now() + PATIENCE;
    while cluster.log.violation().is_none() {
        tokio::time::sleep(POLL).await;
        let late = tokio::time::Instant::now() > until;
        match desired_state::difference(cluster).await {
            Some(difference) if late => {
                cluster.log.report("the desired state is reached", difference);
            }
            Some(_) => {}
            None => match cluster.log.with_checker(|checker| checker.rules_difference()) {
                None => return true,
                Some(difference) if late => {
                    let rule = "when idle, rules equal the declared state";
                    cluster.log.report(rule, difference);
                }
                Some(_) => {}
            },
        }
    }
    false
}
