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
mod affinity;
mod entries;
mod layout;
mod slots;
mod stored;

use crate::nft::{Batch, Connection, Element, Key, Set};
use crate::{Cidr, Protocol, Result};
use adoption::Found;
use entries::{Elements, Installed, Stale, firewall_chain, transition};
use layout::{Layout, Pick, Scope};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use stored::{Claims, Counted, StoredRules};

/// How many chains that choose endpoints may be unused. They are kept because Services often return to a number of
/// endpoints that they had, and because the kernel validates all chains whenever a rule is added.
const UNUSED_PICKS_MAX: usize = 256;

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
    /// A client gets the same endpoint for this long after its last new connection (NET-38).
    pub affinity_seconds: Option<u32>,
    /// Other sources are dropped (`loadBalancerSourceRanges`).
    pub sources: Option<Arc<[Cidr]>>,
}

/// Everything that the kernel has to know of one Service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServiceRules {
    pub entries: BTreeMap<Frontend, ServiceEntry>,
    pub cluster_ips: BTreeSet<IpAddr>,
    /// Endpoints on this node, which may connect to themselves through the Service (NET-7).
    pub local_endpoints: BTreeSet<IpAddr>,
}

/// The rules of Services of one node.
pub struct Services {
    connection: Connection,
    layouts: Vec<Layout>,
    services: HashMap<Arc<str>, StoredRules>,
    /// Which Services want an address.
    claims: HashMap<Frontend, Claims>,
    installed: HashMap<Frontend, Installed>,
    cluster_ips: Counted,
    hairpin: Counted,
    /// The chains that choose endpoints, by family (`ipv4`). Those that no Service uses stay for a while.
    picks: HashSet<(bool, Scope, Pick)>,
    /// Unused chains are looked for when there are this many.
    collect_picks_at: usize,
    stale: Stale,
    ranges: Ranges,
    /// The kernel's state is not the one in memory.
    broken: bool,
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
            collect_picks_at: UNUSED_PICKS_MAX,
            stale: Stale::new(),
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
        self.broken = found.incomplete;
        self.installed = found.frontends;
        self.stale = found.stale;
        self.picks = found.picks;
        self.cluster_ips = Counted::adopted(found.cluster_ips);
        self.hairpin = Counted::adopted(found.hairpin);
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
        let had_affinity = self.with_affinity(&touched);
        let sent = self.commit(&touched)?;
        let has_affinity = self.with_affinity(&touched);
        let lost: HashSet<Frontend> = had_affinity.difference(&has_affinity).copied().collect();
        if !lost.is_empty() {
            self.forget_clients(&lost)?;
        }
        Ok(sent)
    }

    /// Those of these addresses that remember clients.
    fn with_affinity(&self, among: &BTreeSet<Frontend>) -> HashSet<Frontend> {
        let remembers = |frontend: &&Frontend| {
            let state = self.installed.get(*frontend);
            state.is_some_and(|state| {
                Scope::ALL.iter().any(|scope| state.choice(*scope).affinity.is_some())
            })
        };
        among.iter().filter(remembers).copied().collect()
    }

    fn commit(&mut self, touched: &BTreeSet<Frontend>) -> Result<usize> {
        if self.broken {
            return self.write_everything();
        }
        let mut batch = Batch::new();
        let count = self.write(&mut batch, touched);
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
        let after = StoredRules::new(rules.unwrap_or_default());
        let before = self.services.remove(&key).unwrap_or_default();
        if before != after {
            for frontend in before.frontends() {
                touched.insert(frontend);
                if self.claims.get_mut(&frontend).is_some_and(|claims| !claims.remove(&key)) {
                    self.claims.remove(&frontend);
                }
            }
            for frontend in after.frontends() {
                touched.insert(frontend);
                let claims = self.claims.entry(frontend);
                let one = || Claims::One(key.clone());
                claims.and_modify(|claims| claims.add(key.clone())).or_insert_with(one);
            }
            self.cluster_ips.replace(&before.cluster_ips, &after.cluster_ips);
            self.hairpin.replace(&before.local_endpoints, &after.local_endpoints);
        }
        if !after.is_empty() {
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
            for (frontend, before, after) in &states {
                if ours(&frontend.address) && before.sources.is_some() && after.sources.is_none() {
                    layout.delete_chain(batch, &firewall_chain(frontend));
                }
            }
        }
        let installed = states.into_iter().filter(|(_, _, after)| *after != Installed::default());
        self.installed.extend(installed.map(|(frontend, _, after)| (frontend, after)));
        count
    }

    /// What the kernel should have at this address.
    fn wanted(&self, frontend: &Frontend, before: &Installed) -> Installed {
        let owner = self.claims.get(frontend).and_then(Claims::owner);
        let rules = owner.and_then(|owner| self.services.get(owner));
        let Some(entry) = rules.and_then(|rules| rules.entry(frontend)) else {
            return Installed::default();
        };
        Installed::of(frontend, entry, before)
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
        self.installed.clear();
        self.stale.clear();
        self.picks.clear();
        for counted in [&mut self.cluster_ips, &mut self.hairpin] {
            counted.forget_installed();
        }
        let all: BTreeSet<Frontend> = self.claims.keys().copied().collect();
        let count = self.write(&mut batch, &all);
        self.connection.commit(batch)?;
        Ok(count)
    }

    /// Services that had session affinity and have it no more forget their clients: if they get it again, they start
    /// without any (NET-41).
    fn forget_clients(&mut self, services: &HashSet<Frontend>) -> Result<()> {
        for layout in &self.layouts {
            if !services.iter().any(|service| service.address.is_ipv4() == layout.ipv4) {
                continue;
            }
            for key in adoption::clients(&mut self.connection, layout, services)? {
                let mut batch = Batch::new();
                let element = Element::key(Key::new().bytes(&key));
                batch.delete_elements(&layout.table, &layout.affinity, &[element]);
                // It may just have expired.
                let _ = self.connection.commit(batch);
            }
        }
        Ok(())
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
        !self.stale.is_empty() || self.picks.len() > self.collect_picks_at
    }

    /// Deletes endpoints and chains that no rule selects any more. Call it a moment after changes, when no packet is
    /// left that found one of them just before. The next change deletes endpoints too.
    pub fn sweep(&mut self) -> Result<()> {
        if !self.stale.is_empty() {
            self.apply(Vec::new())?;
        }
        if self.picks.len() > self.collect_picks_at { self.delete_unused_picks() } else { Ok(()) }
    }

    /// The cost depends on the number of Services, but it is rare: [`UNUSED_PICKS_MAX`] chains are added in between.
    fn delete_unused_picks(&mut self) -> Result<()> {
        let used = self.installed.iter().flat_map(|(frontend, state)| {
            let pick =
                |scope| Some((frontend.address.is_ipv4(), scope, state.choice(scope).pick()?));
            Scope::ALL.into_iter().filter_map(pick)
        });
        let used: HashSet<(bool, Scope, Pick)> = used.collect();
        self.collect_picks_at = used.len() + UNUSED_PICKS_MAX;
        if self.picks.len() <= self.collect_picks_at {
            return Ok(());
        }
        let mut batch = Batch::new();
        for layout in &self.layouts {
            let ours = self.picks.difference(&used).filter(|(ipv4, ..)| *ipv4 == layout.ipv4);
            for (_, scope, pick) in ours {
                layout.delete_pick(&mut batch, *scope, *pick);
            }
        }
        let result = self.connection.commit(batch);
        match &result {
            Ok(()) => self.picks = used,
            Err(_) => self.broken = true,
        }
        result
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
            && found.cluster_ips == self.cluster_ips.installed()
            && found.hairpin == self.hairpin.installed()
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
