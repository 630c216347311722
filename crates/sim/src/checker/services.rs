//! The packet rules of Services on every node agree with what the API declares, and requests reach only endpoints that
//! were ready once.
//!
//! A request may still be lost: an endpoint can stop listening before every node has heard of it. Such requests are
//! counted, and are no violation.

use super::declared::{Change, Endpoints, NodeAddress, Service, Slice};
use super::{Checker, SLACK, Verdict, broken};
use crate::event_log::{Name, Request};
use network::ServiceRules;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

/// What happened to the requests of clients.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Requests {
    pub sent: u64,
    /// The endpoint was gone or did not listen any more.
    pub lost: u64,
    /// The rules had no endpoint.
    pub rejected: u64,
}

impl std::ops::AddAssign for Requests {
    fn add_assign(&mut self, other: Requests) {
        self.sent += other.sent;
        self.lost += other.lost;
        self.rejected += other.rejected;
    }
}

#[derive(Default)]
pub(super) struct ServiceTraffic {
    pub(super) services: BTreeMap<Name, Service>,
    /// With the Service to which they belong.
    pub(super) slices: BTreeMap<Name, (Name, Slice)>,
    pub(super) nodes: BTreeMap<Name, NodeRules>,
    /// Ready nodes, and since when they are.
    pub(super) ready_since: BTreeMap<Name, Duration>,
    /// Addresses of pods that got their stop signal after nothing sent them new connections.
    pub(super) drained: BTreeSet<IpAddr>,
    /// The uids of pods that listened at some time.
    listened: BTreeSet<Name>,
    requests: Requests,
}

pub(super) struct NodeRules {
    node: NodeAddress,
    /// The longest time from a change in the API to its commit; None: faults may delay it.
    commits_within: Option<Duration>,
    pub(super) services: BTreeMap<Name, Commitment>,
}

/// The rules of one Service on one node.
#[derive(Default)]
pub(super) struct Commitment {
    pub(super) in_force: Endpoints,
    /// What the API declared, and since when: from the state that is in force to the newest. Never empty once set.
    declared: Vec<(Duration, Endpoints)>,
    /// Since when the rules in force are not the newest.
    behind_since: Option<Duration>,
}

impl Commitment {
    fn declare(&mut self, at: Duration, endpoints: Endpoints) {
        if self.newest() != &endpoints {
            self.declared.push((at, endpoints));
        }
        self.compare(at);
    }

    /// Services and slices arrive on two watches, so a proxy may commit a state between two that were declared. Such a
    /// state does not count as newer than the one before it.
    fn compare(&mut self, at: Duration) {
        match self.declared.iter().rposition(|(_, endpoints)| *endpoints == self.in_force) {
            Some(place) => {
                self.declared.drain(..place);
                self.behind_since = self.declared.get(1).map(|(since, _)| *since);
            }
            None => {
                self.behind_since.get_or_insert(at);
            }
        }
    }

    pub(super) fn newest(&self) -> &Endpoints {
        self.declared.last().map_or(&self.in_force, |(_, endpoints)| endpoints)
    }
}

impl ServiceTraffic {
    pub(super) fn proxy_started(
        &mut self,
        at: Duration,
        node: &Name,
        addresses: &[IpAddr],
        longest_delay: Option<Duration>,
    ) {
        let known = self.nodes.remove(node).map(|known| known.services);
        let rules = NodeRules {
            node: NodeAddress { name: node.clone(), addresses: addresses.to_vec() },
            commits_within: longest_delay.map(|delay| delay + SLACK),
            services: known.unwrap_or_default(),
        };
        self.nodes.insert(node.clone(), rules);
        let services: Vec<Name> = self.services.keys().cloned().collect();
        services.iter().for_each(|service| self.declare(at, service));
    }

    pub(super) fn api(&mut self, at: Duration, line: &[u8]) -> Verdict {
        match Change::read(line) {
            None => {}
            Some(Change::Node(name, true)) => {
                self.ready_since.entry(name).or_insert(at);
            }
            Some(Change::Node(name, false)) => {
                self.ready_since.remove(&name);
            }
            Some(Change::Service(name, service)) => {
                match service {
                    Some(service) => self.services.insert(name.clone(), service),
                    None => self.services.remove(&name),
                };
                self.declare(at, &name);
            }
            Some(Change::Slice(name, slice)) => {
                let new = slice.as_ref().map(|(service, _)| service.clone());
                let old = match slice {
                    Some(slice) => self.slices.insert(name, slice),
                    None => self.slices.remove(&name),
                };
                let services: BTreeSet<Name> =
                    old.map(|(service, _)| service).into_iter().chain(new).collect();
                services.iter().for_each(|service| self.declare(at, service));
            }
        }
        self.overdue(at)
    }

    /// Compares the rules of every node with what the API declares now.
    fn declare(&mut self, at: Duration, service: &Name) {
        let slices = self.slices.values().filter(|(of, _)| of == service);
        let slices: Vec<&Slice> = slices.map(|(_, slice)| slice).collect();
        let object = self.services.get(service);
        for node in self.nodes.values_mut() {
            let declared = object.map(|object| Endpoints::declared(object, &slices, &node.node));
            if let Some(declared) = &declared {
                self.drained.retain(|address| !declared.use_address(*address));
            }
            let commitment = node.services.entry(service.clone()).or_default();
            if commitment.declared.is_empty() {
                commitment.declared.push((at, commitment.in_force.clone()));
            }
            commitment.declare(at, declared.unwrap_or_default());
        }
    }

    pub(super) fn committed(
        &mut self,
        at: Duration,
        node: &Name,
        service: &Name,
        rules: Option<&ServiceRules>,
    ) -> Verdict {
        if let Some(node) = self.nodes.get_mut(node) {
            let commitment = node.services.entry(service.clone()).or_default();
            if commitment.declared.is_empty() {
                commitment.declared.push((at, Endpoints::default()));
            }
            commitment.in_force = rules.map(Endpoints::in_rules).unwrap_or_default();
            commitment.compare(at);
        }
        self.overdue(at)
    }

    /// Without faults every change is committed on every node, at most the proxy's own delay after it.
    fn overdue(&self, at: Duration) -> Verdict {
        for (name, node) in &self.nodes {
            let Some(within) = node.commits_within else { continue };
            for (service, commitment) in &node.services {
                let Some(since) = commitment.behind_since.filter(|since| *since + within < at)
                else {
                    continue;
                };
                let why = format!(
                    "{name} is behind with {service} since {since:?}: it has {}, declared is {}",
                    commitment.in_force,
                    commitment.newest(),
                );
                return broken("every change is committed on every node", why);
            }
        }
        Ok(())
    }

    pub(super) fn request(&mut self, at: Duration, request: &Request) -> Verdict {
        self.requests.sent += 1;
        self.reaches_drained(at, request)?;
        match (&request.endpoint, &request.pod) {
            (None, _) => self.requests.rejected += 1,
            (Some(endpoint), Some((uid, _))) if !self.listened.contains(uid) => {
                let why = format!(
                    "a request through {} to {} reaches {endpoint}, and {uid} never listened",
                    request.node, request.service
                );
                return broken("no request reaches an endpoint that was never ready", why);
            }
            (Some(_), Some((_, true))) => {}
            (Some(_), Some((_, false)) | None) => self.requests.lost += 1,
        }
        self.overdue(at)
    }
}

impl ServiceTraffic {
    /// Whether some node has to send new connections to the address.
    pub(super) fn is_declared(&self, address: IpAddr) -> bool {
        let commitments = self.nodes.values().flat_map(|node| node.services.values());
        commitments.into_iter().any(|commitment| commitment.newest().use_address(address))
    }
}

impl Checker {
    pub(super) fn listening(&mut self, container: &Name) {
        if let Some(container) = self.containers.get(container) {
            self.traffic.listened.insert(container.uid.clone());
        }
    }

    pub(crate) fn requests(&self) -> Requests {
        self.traffic.requests
    }

    /// The first Service whose rules on some node are not what the API declares; None: all are.
    pub(crate) fn rules_difference(&self) -> Option<String> {
        for (name, node) in &self.traffic.nodes {
            for (service, commitment) in &node.services {
                if commitment.behind_since.is_some() {
                    let (is, wanted) = (&commitment.in_force, commitment.newest());
                    return Some(format!("{service} on {name}: {is}; declared is {wanted}"));
                }
            }
        }
        None
    }
}
