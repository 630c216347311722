//! The packet rules of Services: which endpoint a new connection to a Service address gets.
//!
//!     rules of a Service ──▶ claims ──▶ entry of each address ──▶ elements ──▶ one transaction
//!
//! The cost of a change depends on the addresses and endpoints that change: the kernel's state is in memory
//! (`entries.rs`), and everything that differs between Services is an element of a map (`layout.rs`). After a restart
//! the tables are read once (`adoption.rs`) and only differences are sent, so traffic is not interrupted and clients
//! with session affinity keep their endpoints (NET-72).
//! Not here: which endpoints are usable (the crate `traffic`).

mod adoption;
mod entries;
mod layout;
mod slots;

use crate::nft::{Batch, Connection, Element, Key, Set};
use crate::{Cidr, Protocol, Result};
use adoption::Found;
use entries::{Elements, Installed, Stale, firewall_chain, transition};
use layout::{Layout, Pick, Scope};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

#[derive(Debug, Clone)]
pub struct ServicesConfig {
    /// Name of our nftables table in the families `ip` and `ip6`. No other program may use it.
    pub table: String,
    /// The ranges of Service addresses. Their families are the families that are served. Packets to addresses in
    /// them that belong to no Service are dropped.
    pub service_ranges: Vec<Cidr>,
    /// Addresses of pods. Their source stays as it is when they connect to a ClusterIP (NET-32).
    pub pod_ranges: Vec<Cidr>,
    /// This node's pod ranges and the node's address in each, which pods see if a source is rewritten.
    pub gateways: Vec<(Cidr, IpAddr)>,
}

/// The address ranges of the cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ranges {
    pub pods: Vec<Cidr>,
    pub services: Vec<Cidr>,
}

/// An address and port at which a Service is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Frontend {
    pub address: IpAddr,
    pub protocol: Protocol,
    pub port: u16,
}

impl Frontend {
    fn key(&self) -> Key {
        Key::new().address(self.address).protocol(self.protocol.number()).port(self.port)
    }
}

/// What happens to new connections that no endpoint can take (NET-34).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Unserved {
    /// There are endpoints for all clients.
    #[default]
    Served,
    /// The client sees that the connection is refused.
    Reject,
    /// The client gets no answer.
    Drop,
}

/// What happens at one address of a Service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServiceEntry {
    pub endpoints: Arc<[SocketAddr]>,
    /// With `externalTrafficPolicy: Local`, the endpoints for clients that are neither pods nor this node.
    pub outside: Option<Arc<[SocketAddr]>>,
    pub unserved: Unserved,
    /// Endpoints see the node's address instead of the client's, whoever the client is.
    pub masquerade: bool,
    pub affinity: Option<Affinity>,
    /// Other sources are dropped (`loadBalancerSourceRanges`).
    pub sources: Option<Arc<[Cidr]>>,
}

/// A client gets the same endpoint for this long after its last new connection (NET-38).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Affinity {
    /// Identifies the Service port: all its addresses share what is remembered.
    pub port: Arc<str>,
    pub seconds: u32,
}

/// Everything that the kernel has to know of one Service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServiceRules {
    pub entries: BTreeMap<Frontend, ServiceEntry>,
    pub cluster_ips: BTreeSet<IpAddr>,
    /// Endpoints on this node, which may connect to themselves through the Service (NET-7).
    pub local_endpoints: BTreeSet<IpAddr>,
}

impl ServiceRules {
    fn affinity_ports(&self) -> BTreeSet<Arc<str>> {
        let affinities = self.entries.values().filter_map(|entry| entry.affinity.as_ref());
        affinities.map(|affinity| affinity.port.clone()).collect()
    }
}

/// The rules of Services of one node.
pub struct Services {
    connection: Connection,
    layouts: Vec<Layout>,
    services: HashMap<Arc<str>, ServiceRules>,
    /// Which Services want an address. The first one gets it.
    claims: HashMap<Frontend, BTreeSet<Arc<str>>>,
    installed: HashMap<Frontend, Installed>,
    cluster_ips: Counted,
    hairpin: Counted,
    picks: HashSet<(bool, Scope, Pick)>,
    stale: Stale,
    affinity_ids: HashMap<(Arc<str>, Scope), u32>,
    next_affinity_id: u32,
    ranges: Ranges,
    /// The kernel's state is not the one in memory.
    broken: bool,
}

/// Addresses that several Services may have.
#[derive(Default)]
struct Counted {
    counts: HashMap<IpAddr, usize>,
    /// Those that the kernel has.
    present: BTreeSet<IpAddr>,
    changed: BTreeSet<IpAddr>,
}

impl Counted {
    fn replace(&mut self, before: &BTreeSet<IpAddr>, after: &BTreeSet<IpAddr>) {
        for address in before.difference(after) {
            if let Some(count) = self.counts.get_mut(address) {
                *count -= 1;
                if *count == 0 {
                    self.counts.remove(address);
                }
            }
            self.changed.insert(*address);
        }
        for address in after.difference(before) {
            *self.counts.entry(*address).or_default() += 1;
            self.changed.insert(*address);
        }
    }

    /// The addresses that the kernel lacks, and those that it should no longer have.
    fn take_changes(&mut self) -> (Vec<IpAddr>, Vec<IpAddr>) {
        let (mut added, mut removed) = (Vec::new(), Vec::new());
        for address in std::mem::take(&mut self.changed) {
            match self.counts.contains_key(&address) {
                true if self.present.insert(address) => added.push(address),
                false if self.present.remove(&address) => removed.push(address),
                true | false => {}
            }
        }
        (added, removed)
    }
}

impl Services {
    /// Creates the tables in the network namespace of the calling thread, or takes over those of an earlier process
    /// as they are. Traffic changes with the first [`Services::replace_all`].
    pub fn open(config: &ServicesConfig) -> Result<Services> {
        let families: BTreeSet<bool> = config.service_ranges.iter().map(Cidr::is_ipv4).collect();
        let layouts = families.into_iter().map(|ipv4| Layout::new(config, ipv4)).collect();
        let mut services = Services {
            connection: Connection::open()?,
            layouts,
            services: HashMap::new(),
            claims: HashMap::new(),
            installed: HashMap::new(),
            cluster_ips: Counted::default(),
            hairpin: Counted::default(),
            picks: HashSet::new(),
            stale: Stale::new(),
            affinity_ids: HashMap::new(),
            next_affinity_id: 1,
            ranges: Ranges::default(),
            broken: false,
        };
        services.write_layouts()?;
        services.set_ranges(Ranges {
            pods: config.pod_ranges.clone(),
            services: config.service_ranges.clone(),
        })?;
        let found = services.read()?;
        services.adopt(found);
        Ok(services)
    }

    fn write_layouts(&mut self) -> Result<()> {
        let mut batch = Batch::new();
        self.layouts.iter().for_each(|layout| layout.write(&mut batch));
        if self.connection.commit(batch).is_ok() {
            return Ok(());
        }
        // The sets of another version of landfall have other types.
        let mut batch = Batch::new();
        for layout in &self.layouts {
            batch.add_table(&layout.table).delete_table(&layout.table);
            layout.write(&mut batch);
        }
        self.connection.commit(batch)
    }

    fn read(&mut self) -> Result<Found> {
        let mut found = Found::default();
        for layout in &self.layouts {
            adoption::read(&mut self.connection, layout, &mut found)?;
        }
        Ok(found)
    }

    fn adopt(&mut self, found: Found) {
        let affinities = found.frontends.values().flat_map(|state| {
            Scope::ALL.into_iter().filter_map(|scope| state.choice(scope).affinity)
        });
        self.next_affinity_id = affinities.map(|(_, id)| id).max().unwrap_or(0).wrapping_add(1);
        self.broken = found.incomplete;
        self.installed = found.frontends;
        self.stale = found.stale;
        self.picks = found.picks;
        self.cluster_ips.changed.clone_from(&found.cluster_ips);
        self.cluster_ips.present = found.cluster_ips;
        self.hairpin.changed.clone_from(&found.hairpin);
        self.hairpin.present = found.hairpin;
    }

    /// Makes the kernel have exactly these Services. Returns how many elements were sent.
    pub fn replace_all(&mut self, services: HashMap<Arc<str>, ServiceRules>) -> Result<usize> {
        let gone: Vec<_> =
            self.services.keys().filter(|key| !services.contains_key(*key)).cloned().collect();
        let mut changes: Vec<(Arc<str>, Option<ServiceRules>)> =
            services.into_iter().map(|(key, rules)| (key, Some(rules))).collect();
        changes.extend(gone.into_iter().map(|key| (key, None)));
        let all = self.installed.keys().copied().collect();
        self.change(changes, all)
    }

    /// Replaces the rules of these Services in one transaction; `None` removes a Service. Returns how many elements
    /// were sent. After an error, the next call writes all Services again.
    pub fn apply(&mut self, changes: Vec<(Arc<str>, Option<ServiceRules>)>) -> Result<usize> {
        self.change(changes, BTreeSet::new())
    }

    fn change(
        &mut self,
        changes: Vec<(Arc<str>, Option<ServiceRules>)>,
        mut touched: BTreeSet<Frontend>,
    ) -> Result<usize> {
        for (key, rules) in changes {
            self.record(key, rules, &mut touched);
        }
        if self.broken {
            return self.write_everything();
        }
        let mut batch = Batch::new();
        let count = self.write(&mut batch, &touched);
        match self.connection.commit(batch) {
            Ok(()) => Ok(count),
            // Another program has changed our table, so that the differences do not apply.
            Err(_) => self.write_everything(),
        }
    }

    /// Updates what is wanted, and collects the addresses whose entry may have changed.
    fn record(
        &mut self,
        key: Arc<str>,
        rules: Option<ServiceRules>,
        touched: &mut BTreeSet<Frontend>,
    ) {
        let after = rules.unwrap_or_default();
        let before = self.services.remove(&key).unwrap_or_default();
        if before == after {
            if after != ServiceRules::default() {
                self.services.insert(key, after);
            }
            return;
        }
        for frontend in before.entries.keys() {
            touched.insert(*frontend);
            if let Some(claims) = self.claims.get_mut(frontend) {
                claims.remove(&key);
                if claims.is_empty() {
                    self.claims.remove(frontend);
                }
            }
        }
        for frontend in after.entries.keys() {
            touched.insert(*frontend);
            self.claims.entry(*frontend).or_default().insert(key.clone());
        }
        self.cluster_ips.replace(&before.cluster_ips, &after.cluster_ips);
        self.hairpin.replace(&before.local_endpoints, &after.local_endpoints);
        // A Service that gets session affinity again starts without remembered clients (NET-41).
        for port in before.affinity_ports().difference(&after.affinity_ports()) {
            for scope in Scope::ALL {
                self.affinity_ids.remove(&(port.clone(), scope));
            }
        }
        if after != ServiceRules::default() {
            self.services.insert(key, after);
        }
    }

    /// Writes the differences at these addresses.
    fn write(&mut self, batch: &mut Batch, touched: &BTreeSet<Frontend>) -> usize {
        let mut pending = std::mem::take(&mut self.stale);
        let states: Vec<(Frontend, Installed, Installed)> = touched
            .iter()
            .map(|frontend| {
                let before = self.installed.remove(frontend).unwrap_or_default();
                let after = self.wanted(frontend, &before);
                (*frontend, before, after)
            })
            .collect();
        let (cluster_ips, hairpin) = (self.cluster_ips.take_changes(), self.hairpin.take_changes());
        let mut count = 0;
        for layout in &self.layouts {
            let ours = |address: &IpAddr| address.is_ipv4() == layout.ipv4;
            let mut elements = Elements::default();
            for (frontend, before, after) in &states {
                if !ours(&frontend.address) {
                    continue;
                }
                for scope in Scope::ALL {
                    let pick = after.choice(scope).pick();
                    if let Some(pick) = pick.filter(|p| self.picks.insert((layout.ipv4, scope, *p)))
                    {
                        layout.add_pick(batch, scope, pick);
                    }
                }
                if let Some(ranges) =
                    after.sources.as_ref().filter(|_| before.sources != after.sources)
                {
                    layout.add_firewall(batch, &firewall_chain(frontend), ranges);
                }
                let stale = (&mut pending, &mut self.stale);
                transition(layout, &mut elements, stale, frontend, before, after);
            }
            for (scope, frontend, number) in pending.keys().filter(|key| ours(&key.1.address)) {
                elements.delete(&layout.maps(*scope).endpoints, frontend.key().number(*number));
            }
            let single = |address: &IpAddr| Key::new().address(*address);
            let pair = |address: &IpAddr| Key::new().address(*address).address(*address);
            members(&mut elements, &layout.cluster_ips, &cluster_ips, ours, single);
            members(&mut elements, &layout.hairpin, &hairpin, ours, pair);
            count += elements.count();
            elements.write(batch, layout);
        }
        let installed = states.into_iter().filter(|(_, _, after)| *after != Installed::default());
        self.installed.extend(installed.map(|(frontend, _, after)| (frontend, after)));
        count
    }

    /// What the kernel should have at this address.
    fn wanted(&mut self, frontend: &Frontend, before: &Installed) -> Installed {
        let owner = self.claims.get(frontend).and_then(BTreeSet::first);
        let rules = owner.and_then(|owner| self.services.get(owner));
        let Some(entry) = rules.and_then(|rules| rules.entries.get(frontend)) else {
            return Installed::default();
        };
        let (ids, next) = (&mut self.affinity_ids, &mut self.next_affinity_id);
        Installed::of(entry, before, |scope| {
            let port = entry.affinity.as_ref().map(|affinity| affinity.port.clone());
            let key = (port.unwrap_or_default(), scope);
            *ids.entry(key).or_insert_with(|| match before.choice(scope).affinity {
                Some((_, id)) => id,
                None => {
                    *next = next.wrapping_add(1);
                    *next - 1
                }
            })
        })
    }

    /// Writes all Services into empty sets, in one transaction. Clients with session affinity stay remembered, unless
    /// the table itself has to be replaced.
    fn write_everything(&mut self) -> Result<usize> {
        let result =
            self.write_into_empty_sets(false).or_else(|_| self.write_into_empty_sets(true));
        self.broken = result.is_err();
        result
    }

    fn write_into_empty_sets(&mut self, replace_table: bool) -> Result<usize> {
        let mut batch = Batch::new();
        for layout in &self.layouts {
            if replace_table {
                batch.add_table(&layout.table).delete_table(&layout.table);
            }
            layout.write(&mut batch);
            layout.empty(&mut batch);
        }
        self.write_ranges(&mut batch);
        let ids = self.installed.drain().flat_map(|(frontend, state)| {
            Scope::ALL.map(|scope| ((frontend, scope), state.choice(scope).affinity))
        });
        let ids: HashMap<_, _> = ids.collect();
        self.keep_affinity(&ids);
        self.stale.clear();
        self.picks.clear();
        for counted in [&mut self.cluster_ips, &mut self.hairpin] {
            counted.present.clear();
            counted.changed = counted.counts.keys().copied().collect();
        }
        let all: BTreeSet<Frontend> = self.claims.keys().copied().collect();
        let count = self.write(&mut batch, &all);
        self.connection.commit(batch)?;
        Ok(count)
    }

    /// Service ports that have session affinity keep the number under which their clients are remembered.
    fn keep_affinity(&mut self, ids: &HashMap<(Frontend, Scope), Option<(u32, u32)>>) {
        for rules in self.services.values() {
            for (frontend, entry) in &rules.entries {
                let Some(affinity) = &entry.affinity else { continue };
                for scope in Scope::ALL {
                    if let Some(Some((_, id))) = ids.get(&(*frontend, scope)) {
                        self.affinity_ids.entry((affinity.port.clone(), scope)).or_insert(*id);
                    }
                }
            }
        }
    }

    /// Replaces the address ranges of the cluster.
    pub fn set_ranges(&mut self, ranges: Ranges) -> Result<()> {
        self.ranges = ranges;
        let mut batch = Batch::new();
        self.write_ranges(&mut batch);
        self.connection.commit(batch)
    }

    fn write_ranges(&self, batch: &mut Batch) {
        for layout in &self.layouts {
            let sets = [
                (&layout.pod_ranges, &self.ranges.pods),
                (&layout.service_ranges, &self.ranges.services),
            ];
            for (set, ranges) in sets {
                let ours = ranges.iter().filter(|range| range.is_ipv4() == layout.ipv4);
                let ranges = Cidr::without_overlaps(ours.copied());
                let elements: Vec<Element> = ranges.iter().map(Element::cidr).collect();
                batch.flush_set(&layout.table, &set.name);
                batch.add_elements(&layout.table, set, &elements);
            }
        }
    }

    pub fn needs_sweep(&self) -> bool {
        !self.stale.is_empty()
    }

    /// Deletes endpoints that no rule selects any more. Call it a moment after changes; the next change does it too.
    pub fn sweep(&mut self) -> Result<()> {
        if self.needs_sweep() { self.apply(Vec::new()).map(drop) } else { Ok(()) }
    }

    /// Whether the kernel has what is wanted (NET-74). If not, the next change writes all Services again.
    pub fn verify(&mut self) -> Result<bool> {
        let found = self.read();
        self.broken |= found.is_err();
        let found = found?;
        let ranges_apart = |state: &Installed| Installed { sources: None, ..state.clone() };
        let equal = found.frontends.len() == self.installed.len()
            && self.installed.iter().all(|(frontend, state)| {
                found.frontends.get(frontend).map(ranges_apart) == Some(ranges_apart(state))
            });
        let same = equal
            && found.cluster_ips == self.cluster_ips.present
            && found.hairpin == self.hairpin.present
            && found.stale == self.stale;
        self.broken |= !same;
        Ok(same)
    }

    /// Removes the tables.
    pub fn remove(mut self) -> Result<()> {
        remove_tables(&mut self.connection, self.layouts.iter().map(|layout| &layout.table))
    }
}

/// Removes the tables of Services with this name, for an instance that does not run.
pub fn remove_service_rules(table: &str) -> Result<()> {
    use crate::nft::{Family, Table};
    let tables = [Family::Ipv4, Family::Ipv6].map(|family| Table::new(family, table));
    remove_tables(&mut Connection::open()?, tables.iter())
}

fn remove_tables<'a>(
    connection: &mut Connection,
    tables: impl Iterator<Item = &'a crate::nft::Table>,
) -> Result<()> {
    let mut batch = Batch::new();
    for table in tables {
        batch.add_table(table).delete_table(table);
    }
    connection.commit(batch)
}

fn members<'a>(
    elements: &mut Elements<'a>,
    set: &'a Set,
    (added, removed): &(Vec<IpAddr>, Vec<IpAddr>),
    ours: impl Fn(&IpAddr) -> bool,
    key: impl Fn(&IpAddr) -> Key,
) {
    for address in removed.iter().filter(|address| ours(address)) {
        elements.delete(set, key(address));
    }
    for address in added.iter().filter(|address| ours(address)) {
        elements.add(set, Element::key(key(address)));
    }
}
