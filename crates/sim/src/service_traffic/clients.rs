//! Clients that send requests to Services. A request goes to one endpoint of the rules of one node, and is accepted if
//! the pod with that address listens at that moment.

use crate::cluster::Cluster;
use crate::event_log::{Event, EventLog, Name, Request};
use crate::machine::Machine;
use crate::proxy::RuleTable;
use crate::random::Random;
use network::{Frontend, ServiceEntry};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::task::JoinHandle;

/// The longest pause between two requests, in milliseconds.
const PAUSE_MAX: u64 = 200;

/// Dropping it stops the clients.
pub(super) struct Clients {
    network: Network,
    task: JoinHandle<()>,
}

/// Every node's rules, and the machines that they lead to.
#[derive(Clone)]
struct Network {
    nodes: Vec<(Name, RuleTable)>,
    machines: Vec<Arc<Machine>>,
    log: EventLog,
}

impl Clients {
    pub(super) fn start(cluster: &Cluster, seed: u64) -> Clients {
        let hosts = &cluster.hosts;
        let nodes = hosts.iter().map(|host| (host.name.as_str().into(), host.rules.clone()));
        let network = Network {
            nodes: nodes.collect(),
            machines: hosts.iter().map(|host| host.machine.clone()).collect(),
            log: cluster.log.clone(),
        };
        let task = tokio::spawn(send(network.clone(), Random::new(seed, 7)));
        Clients { network, task }
    }

    /// Sends a request through every node to every endpoint of every Service. Returns the first one that is lost.
    pub(super) fn send_everywhere(&self) -> Option<String> {
        for (node, rules) in &self.network.nodes {
            for (service, to, entry) in rules.entries(is_of_a_user) {
                let endpoints =
                    entry.endpoints.iter().chain(entry.outside.iter().flat_map(|it| &**it));
                for endpoint in endpoints {
                    let request = self.network.request(node, &service, to, Some(*endpoint));
                    self.network.log.record(Event::Request(request.clone()));
                    if request.is_lost() {
                        return Some(request.to_string());
                    }
                }
            }
        }
        None
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn send(network: Network, mut random: Random) {
    loop {
        tokio::time::sleep(random.millis(1, PAUSE_MAX)).await;
        let (node, rules) = random.pick(&network.nodes);
        let entries = rules.entries(is_of_a_user);
        if entries.is_empty() {
            continue;
        }
        let (service, to, entry) = random.pick(&entries);
        let endpoint = choose(&mut random, entry);
        let request = network.request(node, service, *to, endpoint);
        network.log.record(Event::Request(request));
    }
}

/// As the node chooses: at random, and for clients outside the cluster perhaps from other endpoints.
fn choose(random: &mut Random, entry: &ServiceEntry) -> Option<SocketAddr> {
    let outside = entry.outside.as_ref().filter(|_| random.percent(50));
    let endpoints = outside.unwrap_or(&entry.endpoints);
    (!endpoints.is_empty()).then(|| *random.pick(endpoints))
}

/// The cluster's own Services lead to no simulated pod.
fn is_of_a_user(service: &str) -> bool {
    service.starts_with("default/") && service != "default/kubernetes"
}

impl Network {
    fn request(
        &self,
        node: &Name,
        service: &Name,
        to: Frontend,
        endpoint: Option<SocketAddr>,
    ) -> Request {
        let pod = endpoint.and_then(|endpoint| {
            self.machines.iter().find_map(|machine| machine.receive(endpoint))
        });
        Request { node: node.clone(), service: service.clone(), to, endpoint, pod }
    }
}
