//! The packet rules of every node follow the API, and the checker finds rules and slices that do not.

use client::Client;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use network::{Ranges, Result, ServiceEntry, ServiceRules};
use sim::{Interference, Options, Outcome, Scenario, SimulationSetup, WrapRules};
use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use traffic::services::{Forgotten, PacketRules, UdpPort};

fn traffic() -> &'static Scenario {
    Scenario::find("traffic").expect("the scenario exists")
}

fn drain() -> &'static Scenario {
    Scenario::find("drain").expect("the scenario exists")
}

/// T-NET-14, T-NET-16, NET-71: every change is committed on every node, and no request reaches a pod that was never ready.
/// `make sim` runs more seeds.
#[test]
fn rules_follow_the_api_and_requests_reach_only_pods_that_were_ready() {
    let setup = SimulationSetup::prepare().unwrap();
    let options = Options { twice: true, ..Options::default() };
    let summary = sim::run_many(&setup, traffic(), 0..2, &options, &|_| true).unwrap();
    if let Some(outcome) = &summary.failure {
        panic!("{:?}\n{}", outcome.violation, outcome.trace.join("\n"));
    }
    let requests = summary.requests;
    assert!(requests.sent > 500, "{requests:?}");
    assert!(requests.lost < requests.sent / 4, "{requests:?}");
}

/// Requests are lost while a node still has the rules of a moment ago. Slower proxies lose more.
#[test]
fn slow_proxies_lose_more_requests() {
    let setup = SimulationSetup::prepare().unwrap();
    let lost = |millis: u64| {
        let delay = Duration::from_millis(millis)..=Duration::from_millis(millis);
        let options = Options { proxy_delay: Some(delay), ..Options::default() };
        let outcome = sim::run(&setup, traffic(), 0, &options).unwrap();
        assert!(outcome.violation.is_none(), "{:?}", outcome.violation);
        outcome.requests.lost
    };
    let (fast, slow) = (lost(0), lost(5000));
    assert!(slow > 2 * fast + 10, "{fast} lost without a delay, {slow} with 5 s");
}

/// Acknowledged drain: no hook and no stop signal before all ready nodes send requests elsewhere, unless the grace period is
/// over. Seed 11 found a last endpoint that did not wait for a replacement that was ready but not in the slices yet.
#[test]
fn pods_with_acknowledged_drain_wait_for_all_nodes() {
    let setup = SimulationSetup::prepare().unwrap();
    let options = Options { twice: true, ..Options::default() };
    for seeds in [0..1, 11..12] {
        let summary = sim::run_many(&setup, drain(), seeds, &options, &|_| true).unwrap();
        if let Some(outcome) = &summary.failure {
            panic!("{:?}\n{}", outcome.violation, outcome.trace.join("\n"));
        }
    }
}

/// Nodes that acknowledge what they have not committed are found.
#[test]
fn false_acknowledgements_are_found() {
    let (_, rule) = found_in(drain(), (1..40).step_by(2), &plant(Fault::KeepsEndpoints));
    assert_eq!(rule, "no stop signal before the last acknowledgement");
}

/// Rules that do not do quite what the proxy asks for.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    /// Endpoints are added, and never removed.
    KeepsEndpoints,
    /// The second and every later transaction is acknowledged and not made.
    Forgets,
}

struct FaultyRules {
    inner: Box<dyn PacketRules>,
    fault: Fault,
    transactions: u32,
    used: HashMap<Arc<str>, BTreeSet<SocketAddr>>,
}

fn plant(fault: Fault) -> Options {
    let wrap: WrapRules = Arc::new(move |inner| {
        Box::new(FaultyRules { inner, fault, transactions: 0, used: HashMap::new() })
    });
    Options { wrap_rules: Some(wrap), ..Options::default() }
}

impl FaultyRules {
    fn with_former_endpoints(&mut self, service: &Arc<str>, rules: &mut ServiceRules) {
        let used = self.used.entry(service.clone()).or_default();
        for entry in rules.entries.values_mut() {
            used.extend(entry.endpoints.iter());
            let endpoints = used.iter().copied().collect();
            *entry = ServiceEntry { endpoints, ..entry.clone() };
        }
    }
}

impl PacketRules for FaultyRules {
    fn replace_all(&mut self, services: HashMap<Arc<str>, ServiceRules>) -> Result<usize> {
        self.inner.replace_all(services)
    }

    fn apply(&mut self, mut changes: Vec<(Arc<str>, Option<ServiceRules>)>) -> Result<usize> {
        self.transactions += 1;
        match self.fault {
            Fault::KeepsEndpoints => {
                for (service, rules) in &mut changes {
                    if let Some(rules) = rules {
                        self.with_former_endpoints(service, rules);
                    }
                }
            }
            Fault::Forgets if self.transactions > 1 => return Ok(changes.len()),
            Fault::Forgets => {}
        }
        self.inner.apply(changes)
    }

    fn set_ranges(&mut self, ranges: Ranges) -> Result<()> {
        self.inner.set_ranges(ranges)
    }
    fn sweep(&mut self) -> Result<()> {
        self.inner.sweep()
    }
    fn needs_sweep(&self) -> bool {
        self.inner.needs_sweep()
    }
    fn verify(&mut self) -> Result<bool> {
        self.inner.verify()
    }
    fn forget_udp_clients(&mut self, ports: &[UdpPort]) -> Vec<Forgotten> {
        self.inner.forget_udp_clients(ports)
    }
}

/// The first of these seeds that breaks a rule, and which.
fn found(seeds: impl Iterator<Item = u64>, options: &Options) -> (Outcome, &'static str) {
    found_in(traffic(), seeds, options)
}

fn found_in(
    scenario: &'static Scenario,
    seeds: impl Iterator<Item = u64>,
    options: &Options,
) -> (Outcome, &'static str) {
    let setup = SimulationSetup::prepare().unwrap();
    for seed in seeds {
        let outcome = sim::run(&setup, scenario, seed, options).unwrap();
        if let Some(violation) = &outcome.violation {
            let rule = violation.broken.rule;
            return (outcome, rule);
        }
    }
    panic!("the checker does not find the fault");
}

/// Even seeds have no faults, so that a change that is not committed is found soon after it.
#[test]
fn rules_that_keep_a_removed_endpoint_are_found() {
    let (outcome, rule) = found((0..20).step_by(2), &plant(Fault::KeepsEndpoints));
    assert_eq!(rule, "every change is committed on every node");
    assert!(outcome.trace.iter().any(|line| line.contains("commits default/web")));
}

/// Odd seeds have faults, so that changes may be late, but not for ever.
#[test]
fn rules_that_stay_old_are_found_when_the_cluster_is_idle() {
    let (_, rule) = found((1..20).step_by(2), &plant(Fault::Forgets));
    assert_eq!(rule, "when idle, rules equal the declared state");
}

/// T-NET-16: endpoints that are not ready get no requests.
#[test]
fn a_controller_that_lists_pods_as_ready_before_they_are_is_found() {
    let interference: Interference = Arc::new(|client: Client| {
        Box::pin(async move {
            loop {
                tokio::time::sleep(Duration::from_millis(100)).await;
                let slices = client.list::<EndpointSlice>(&Default::default()).await;
                for slice in slices.unwrap_or_default() {
                    list_all_as_ready(&client, slice).await;
                }
            }
        })
    });
    let options = Options { interference: Some(interference), ..Options::default() };
    let (_, rule) = found(0..20, &options);
    assert_eq!(rule, "no request reaches an endpoint that was never ready");
}

async fn list_all_as_ready(client: &Client, mut slice: EndpointSlice) {
    let before = slice.clone();
    for endpoint in slice.endpoints.iter_mut().flatten() {
        endpoint.conditions.get_or_insert_default().ready = Some(true);
    }
    if slice != before {
        let _ = client.update(&slice).await;
    }
}
