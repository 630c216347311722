//! What Services want, kept small: every node remembers every Service of the cluster.
//!
//! The types of the interface are larger than what they usually hold: a `BTreeMap` with one entry has the space for
//! eleven, and a `SocketAddr` that of an IPv6 address. A Service with ten endpoints takes less than a kilobyte here.

use super::{Frontend, ServiceEntry, ServiceRules, Unserved};
use crate::Cidr;
use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::sync::Arc;

/// Endpoints of one IP family, in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum EndpointList {
    /// Also a list without endpoints, whatever its family, so that all empty lists are equal.
    V4(Box<[SocketAddrV4]>),
    V6(Box<[SocketAddrV6]>),
}

impl Default for EndpointList {
    fn default() -> EndpointList {
        EndpointList::V4(Box::default())
    }
}

impl EndpointList {
    /// The list of those `endpoints` that are of the family. Others cannot be reached at an address of the family.
    pub(super) fn new(ipv4: bool, endpoints: &[SocketAddr]) -> EndpointList {
        let v4 = |endpoint: &SocketAddr| match endpoint {
            SocketAddr::V4(endpoint) => Some(*endpoint),
            SocketAddr::V6(_) => None,
        };
        let v6 = |endpoint: &SocketAddr| match endpoint {
            SocketAddr::V6(endpoint) => Some(*endpoint),
            SocketAddr::V4(_) => None,
        };
        if ipv4 {
            return EndpointList::V4(endpoints.iter().filter_map(v4).collect());
        }
        let list: Box<[SocketAddrV6]> = endpoints.iter().filter_map(v6).collect();
        if list.is_empty() { EndpointList::default() } else { EndpointList::V6(list) }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            EndpointList::V4(list) => list.len(),
            EndpointList::V6(list) => list.len(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn get(&self, number: usize) -> Option<SocketAddr> {
        match self {
            EndpointList::V4(list) => list.get(number).copied().map(SocketAddr::V4),
            EndpointList::V6(list) => list.get(number).copied().map(SocketAddr::V6),
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        (0..self.len()).filter_map(|number| self.get(number))
    }
}

/// [`ServiceRules`], as they are remembered.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct StoredRules {
    /// Sorted by address, as the other lists are.
    entries: Box<[(Frontend, StoredEntry)]>,
    pub(super) cluster_ips: Box<[IpAddr]>,
    pub(super) local_endpoints: Box<[IpAddr]>,
}

/// [`ServiceEntry`], as it is remembered.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct StoredEntry {
    pub(super) endpoints: EndpointList,
    pub(super) outside: Option<EndpointList>,
    pub(super) unserved: Unserved,
    pub(super) masquerade: bool,
    pub(super) affinity_seconds: Option<u32>,
    pub(super) sources: Option<Arc<[Cidr]>>,
}

impl StoredRules {
    pub(super) fn new(rules: ServiceRules) -> StoredRules {
        let ServiceRules { entries, cluster_ips, local_endpoints } = rules;
        let entries = entries.into_iter().map(|(frontend, entry)| {
            let stored = StoredEntry::new(entry, frontend.address.is_ipv4());
            (frontend, stored)
        });
        StoredRules {
            entries: entries.collect(),
            cluster_ips: cluster_ips.into_iter().collect(),
            local_endpoints: local_endpoints.into_iter().collect(),
        }
    }

    /// The Service has nothing that the kernel must know.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.cluster_ips.is_empty() && self.local_endpoints.is_empty()
    }

    pub(super) fn frontends(&self) -> impl Iterator<Item = Frontend> + '_ {
        self.entries.iter().map(|(frontend, _)| *frontend)
    }

    pub(super) fn entry(&self, frontend: &Frontend) -> Option<&StoredEntry> {
        let found = self.entries.binary_search_by_key(frontend, |(frontend, _)| *frontend);
        found.ok().map(|index| &self.entries[index].1)
    }
}

impl StoredEntry {
    fn new(entry: ServiceEntry, ipv4: bool) -> StoredEntry {
        StoredEntry {
            endpoints: EndpointList::new(ipv4, &entry.endpoints),
            outside: entry.outside.map(|outside| EndpointList::new(ipv4, &outside)),
            unserved: entry.unserved,
            masquerade: entry.masquerade,
            affinity_seconds: entry.affinity_seconds,
            sources: entry.sources,
        }
    }
}

/// The Services that want one address: nearly always one. The first by name gets it.
#[derive(Debug)]
pub(super) enum Claims {
    One(Arc<str>),
    Several(BTreeSet<Arc<str>>),
}

impl Claims {
    pub(super) fn owner(&self) -> Option<&Arc<str>> {
        match self {
            Claims::One(service) => Some(service),
            Claims::Several(services) => services.first(),
        }
    }

    pub(super) fn add(&mut self, service: Arc<str>) {
        match self {
            Claims::One(other) if *other == service => {}
            Claims::One(other) => *self = Claims::Several([other.clone(), service].into()),
            Claims::Several(services) => {
                services.insert(service);
            }
        }
    }

    /// False if no Service is left.
    pub(super) fn remove(&mut self, service: &Arc<str>) -> bool {
        match self {
            Claims::One(other) => other != service,
            Claims::Several(services) => {
                services.remove(service);
                !services.is_empty()
            }
        }
    }
}

/// Addresses that several Services may have, and whether the kernel has them.
#[derive(Default)]
pub(super) struct Counted {
    addresses: HashMap<IpAddr, Uses>,
    changed: BTreeSet<IpAddr>,
}

#[derive(Default)]
struct Uses {
    services: u32,
    installed: bool,
}

impl Counted {
    /// Addresses that the kernel has, and of which no Service is known yet.
    pub(super) fn adopted(addresses: BTreeSet<IpAddr>) -> Counted {
        let installed = |address: &IpAddr| (*address, Uses { services: 0, installed: true });
        Counted { addresses: addresses.iter().map(installed).collect(), changed: addresses }
    }

    /// A Service has the addresses `after` instead of `before`. Both are sorted.
    pub(super) fn replace(&mut self, before: &[IpAddr], after: &[IpAddr]) {
        for address in before.iter().filter(|address| after.binary_search(address).is_err()) {
            if let Some(uses) = self.addresses.get_mut(address) {
                uses.services = uses.services.saturating_sub(1);
            }
            self.changed.insert(*address);
        }
        for address in after.iter().filter(|address| before.binary_search(address).is_err()) {
            self.addresses.entry(*address).or_default().services += 1;
            self.changed.insert(*address);
        }
    }

    /// The kernel has none of them any more.
    pub(super) fn forget_installed(&mut self) {
        self.addresses.retain(|_, uses| {
            uses.installed = false;
            uses.services > 0
        });
        self.changed = self.addresses.keys().copied().collect();
    }

    /// The addresses that the kernel lacks, and those that it should no longer have.
    pub(super) fn take_changes(&mut self) -> (Vec<IpAddr>, Vec<IpAddr>) {
        let (mut added, mut removed) = (Vec::new(), Vec::new());
        for address in std::mem::take(&mut self.changed) {
            let Some(uses) = self.addresses.get_mut(&address) else { continue };
            match (uses.services > 0, uses.installed) {
                (true, false) => added.push(address),
                (false, true) => removed.push(address),
                (true, true) | (false, false) => {}
            }
            uses.installed = uses.services > 0;
            if !uses.installed {
                self.addresses.remove(&address);
            }
        }
        (added, removed)
    }

    pub(super) fn installed(&self) -> BTreeSet<IpAddr> {
        let installed = self.addresses.iter().filter(|(_, uses)| uses.installed);
        installed.map(|(address, _)| *address).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Protocol;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn lists_of_endpoints_keep_their_order_and_family() {
        let endpoints: Vec<SocketAddr> = ["10.0.0.2:80", "[fd00::1]:80", "10.0.0.1:81"]
            .iter()
            .map(|text| text.parse().unwrap())
            .collect();
        let v4 = EndpointList::new(true, &endpoints);
        assert_eq!(v4.iter().collect::<Vec<_>>(), [endpoints[0], endpoints[2]]);
        let v6 = EndpointList::new(false, &endpoints);
        assert_eq!((v6.len(), v6.get(0), v6.get(1)), (1, Some(endpoints[1]), None));
        for ipv4 in [true, false] {
            assert_eq!(EndpointList::new(ipv4, &[]), EndpointList::default());
        }
    }

    #[test]
    fn entries_are_found_by_their_address() {
        let frontend = |port| Frontend { address: ip("10.96.0.1"), protocol: Protocol::Tcp, port };
        let entry =
            |seconds| ServiceEntry { affinity_seconds: Some(seconds), ..ServiceEntry::default() };
        let entries = [443, 80, 8080].map(|port| (frontend(port), entry(u32::from(port))));
        let rules = ServiceRules { entries: entries.into(), ..ServiceRules::default() };
        let stored = StoredRules::new(rules);
        for port in [80, 443, 8080] {
            let found = stored.entry(&frontend(port)).unwrap();
            assert_eq!(found.affinity_seconds, Some(u32::from(port)));
        }
        assert_eq!(stored.entry(&frontend(81)), None);
        assert!(!stored.is_empty() && StoredRules::default().is_empty());
    }

    #[test]
    fn an_address_belongs_to_the_first_service_that_wants_it() {
        let [a, b, c]: [Arc<str>; 3] = ["a", "b", "c"].map(Into::into);
        let mut claims = Claims::One(b.clone());
        claims.add(b.clone());
        claims.add(c.clone());
        claims.add(a.clone());
        assert_eq!(claims.owner(), Some(&a));
        assert!(claims.remove(&a));
        assert_eq!(claims.owner(), Some(&b));
        assert!(claims.remove(&b));
        assert!(!claims.remove(&c), "none is left");
    }

    #[test]
    fn shared_addresses_are_installed_once_and_removed_with_the_last_service() {
        let [a, b, c] = ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(ip);
        let mut counted = Counted::adopted([a, b].into());
        counted.replace(&[], &[a, c]);
        assert_eq!(counted.take_changes(), (vec![c], vec![b]), "only what differs");
        counted.replace(&[], &[c]);
        counted.replace(&[a, c], &[a]);
        assert_eq!(counted.take_changes(), (vec![], vec![]), "another Service still has it");
        counted.replace(&[c], &[]);
        assert_eq!(counted.take_changes(), (vec![], vec![c]));
        counted.forget_installed();
        assert_eq!(counted.installed(), [].into());
        assert_eq!(counted.take_changes(), (vec![a], vec![]));
        assert_eq!(counted.installed(), [a].into());
    }
}
