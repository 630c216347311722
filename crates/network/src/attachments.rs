//! Makes attachments and takes them away: the work behind `Pods`, in threads that may block.
//!
//! Everything starts in the node's network namespace ("home"). What is being made has a record
//! that says so, and is taken away again if the process dies or a step fails.

use crate::addresses::{GATEWAY, Places};
use crate::link::{self, Mac};
use crate::namespace::{self, Namespace};
use crate::netlink::Socket;
use crate::records::{Record, Records};
use crate::rules::{PodPorts, Rules};
use crate::{Attachment, Error, HostPort, PodsConfig, Protocol, Result, conntrack};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The node's end of every link. Locally administered; nobody else is on the wire.
const NEAR_MAC: Mac = [0x02, 0x6c, 0x66, 0, 0, 1];
const FAR_NAME: &str = "eth0";

pub(crate) struct Inner {
    pub(crate) home: Namespace,
    config: PodsConfig,
    disk: Records,
    state: Mutex<State>,
    rules: Mutex<Rules>,
    busy: Busy,
}

pub(crate) struct State {
    pub(crate) records: BTreeMap<String, Record>,
    places: Places,
}

impl Inner {
    /// Runs at home.
    pub(crate) fn open(config: PodsConfig, home: Namespace) -> Result<Inner> {
        fs::create_dir_all(&config.netns_dir).map_err(Error::io("create", &config.netns_dir))?;
        let disk = Records::open(&config.state_dir)?;
        let rules = Rules::open(&config)?;
        let places = Places::new(&config.cidrs, disk.last());
        let state = Mutex::new(State { records: BTreeMap::new(), places });
        let inner =
            Inner { home, config, disk, state, rules: Mutex::new(rules), busy: Busy::new() };
        inner.share()?;
        inner.adopt()?;
        Ok(inner)
    }

    /// What all pods share, except for the rules.
    fn share(&self) -> Result<()> {
        let mut socket = Socket::route()?;
        let name = &self.config.link;
        socket.request(vec![link::add_holder(name, self.config.mtu)])?;
        let index = link::index_of(&mut socket, name)?;
        let mut messages = vec![link::set_up(index)];
        messages.extend(self.addresses(GATEWAY).into_iter().map(|a| link::add_address(index, a)));
        messages.extend(self.config.cidrs.iter().map(link::add_unreachable));
        socket.request(messages)?;
        for range in &self.config.cidrs {
            forward(range.is_ipv4())?;
        }
        Ok(())
    }

    /// Keeps what an earlier process made and finished, and takes away the rest.
    fn adopt(&self) -> Result<()> {
        let mut socket = Socket::route()?;
        let links: BTreeSet<String> = link::names(&mut socket)?.into_iter().collect();
        let mut kept = BTreeSet::new();
        let mut ports = BTreeMap::new();
        for record in self.disk.load()? {
            let whole = record.complete
                && record.addresses == self.addresses(record.place)
                && links.contains(&self.link(record.place))
                && namespace::is_namespace(&self.netns(&record.key));
            let mut state = self.state();
            if whole && state.places.claim(record.place) {
                kept.insert(self.link(record.place));
                ports.insert(record.key.clone(), self.pod_ports(&record));
                state.records.insert(record.key.clone(), record);
            } else {
                drop(state);
                namespace::remove(&self.netns(&record.key))?;
                self.disk.remove(&record.key)?;
            }
        }
        let prefix = format!("{}p", self.config.link);
        let ours = |name: &&String| {
            let rest = name.strip_prefix(&prefix);
            rest.is_some_and(|rest| rest.bytes().all(|b| b.is_ascii_digit()) && !rest.is_empty())
        };
        let lost = links.iter().filter(ours).filter(|name| !kept.contains(*name));
        socket.request(lost.map(|name| link::delete(name)).collect())?;
        ports.retain(|_, pod: &mut PodPorts| !pod.ports.is_empty());
        self.rules().install(ports)
    }

    pub(crate) fn attach(&self, key: &str, ports: Vec<HostPort>) -> Result<Attachment> {
        let _turn = self.busy.enter(key);
        let known = self.state().records.get(key).cloned();
        let mut record = match known {
            Some(record) if record.complete => record,
            Some(broken) => {
                self.take_away(&broken)?;
                self.reserve(key)?
            }
            None => self.reserve(key)?,
        };
        let attached = self.make(&mut record, ports);
        if attached.is_err() && !record.complete {
            // The first error is the one to report; what cannot be undone now is found later.
            let _ = self.take_away(&record);
        }
        attached.map(|()| self.attachment(&record))
    }

    /// A place and a record that says it is taken.
    fn reserve(&self, key: &str) -> Result<Record> {
        let mut state = self.state();
        let Some(place) = state.places.take() else {
            let ranges: Vec<String> = self.config.cidrs.iter().map(ToString::to_string).collect();
            return Err(Error::Exhausted(ranges.join(", ")));
        };
        let addresses = self.addresses(place);
        let record = Record { key: key.into(), place, addresses, ports: vec![], complete: false };
        let saved = self.disk.save_last(state.places.last()).and_then(|()| self.disk.save(&record));
        if let Err(error) = saved {
            state.places.give_back(place);
            return Err(error);
        }
        state.records.insert(key.into(), record.clone());
        Ok(record)
    }

    fn make(&self, record: &mut Record, ports: Vec<HostPort>) -> Result<()> {
        let mut home = Socket::route()?;
        if !record.complete {
            self.connect(&mut home, record)?;
        } else if record.ports == ports {
            return Ok(());
        }
        if record.ports != ports {
            let index = link::index_of(&mut home, &self.link(record.place))?;
            let loopback = ports.iter().any(HostPort::is_on_loopback);
            home.request(vec![link::let_loopback_through(index, loopback)])?;
        }
        let pod = PodPorts { addresses: record.addresses.clone(), ports: ports.clone() };
        self.rules().set(&record.key, pod)?;
        self.forget_connections(&record.addresses, &ports)?;
        *record = Record { ports, complete: true, ..record.clone() };
        self.disk.save(record)?;
        self.state().records.insert(record.key.clone(), record.clone());
        Ok(())
    }

    /// Namespace, link, addresses, routes. This thread ends up in the pod's namespace.
    fn connect(&self, home: &mut Socket, record: &Record) -> Result<()> {
        let there = namespace::create(&self.netns(&record.key))?;
        let mut pod = Socket::route()?;
        let (near, far_mac) = (self.link(record.place), far_mac(record.place));
        let (near_end, far_end) = ((near.as_str(), NEAR_MAC), (FAR_NAME, far_mac));
        home.request(vec![link::add_pair(near_end, far_end, &there, self.config.mtu)])?;

        const LOOPBACK: u32 = 1;
        let far_index = link::index_of(&mut pod, FAR_NAME)?;
        let near_index = link::index_of(home, &near)?;
        let mut inside = vec![link::set_up(LOOPBACK), link::set_up(far_index)];
        let mut outside = vec![];
        for (address, gateway) in record.addresses.iter().zip(self.addresses(GATEWAY)) {
            inside.push(link::add_address(far_index, *address));
            inside.push(link::add_neighbour(far_index, gateway, NEAR_MAC));
            inside.push(link::add_default_route(far_index, gateway));
            outside.push(link::add_neighbour(near_index, *address, far_mac));
            outside.push(link::add_route(near_index, *address, gateway));
        }
        pod.request(inside)?;
        home.request(outside)?;
        Ok(())
    }

    pub(crate) fn detach(&self, key: &str) -> Result<()> {
        let _turn = self.busy.enter(key);
        let known = self.state().records.get(key).cloned();
        known.map_or(Ok(()), |record| self.take_away(&record))
    }

    /// In such an order that nothing leads to an address that may be given to somebody else.
    fn take_away(&self, record: &Record) -> Result<()> {
        self.rules().forget(&record.key)?;
        self.forget_connections(&record.addresses, &record.ports)?;
        self.home_socket()?.request(vec![link::delete(&self.link(record.place))])?;
        namespace::remove(&self.netns(&record.key))?;
        self.disk.remove(&record.key)?;
        let mut state = self.state();
        state.records.remove(&record.key);
        state.places.give_back(record.place);
        Ok(())
    }

    /// A UDP client that had no answer at a host port, or had it from another pod, starts anew.
    fn forget_connections(&self, pod: &[IpAddr], ports: &[HostPort]) -> Result<()> {
        let ports: Vec<_> = ports.iter().filter(|port| port.protocol == Protocol::Udp).collect();
        if ports.is_empty() {
            return Ok(());
        }
        self.home.enter()?;
        for range in &self.config.cidrs {
            conntrack::forget(range.is_ipv4(), |connection| {
                ports.iter().any(|port| port.is_of(connection))
                    && range.contains(connection.reply.source)
                        == pod.contains(&connection.reply.source)
            })?;
        }
        Ok(())
    }

    /// Everything but attachments.
    pub(crate) fn remove(&self) -> Result<()> {
        self.rules().remove()?;
        let mut messages = vec![link::delete(&self.config.link)];
        messages.extend(self.config.cidrs.iter().map(link::delete_unreachable));
        Socket::route()?.request(messages)?;
        let _ = fs::remove_dir(&self.config.netns_dir); // Only if nobody else uses it.
        self.disk.close()
    }

    /// Also from a thread that has left home.
    fn home_socket(&self) -> Result<Socket> {
        self.home.enter()?;
        Socket::route()
    }

    pub(crate) fn attachment(&self, record: &Record) -> Attachment {
        Attachment { netns: self.netns(&record.key), addresses: record.addresses.clone() }
    }

    fn pod_ports(&self, record: &Record) -> PodPorts {
        PodPorts { addresses: record.addresses.clone(), ports: record.ports.clone() }
    }

    /// Of a place, in the order of the ranges.
    pub(crate) fn addresses(&self, place: u64) -> Vec<IpAddr> {
        self.config.cidrs.iter().filter_map(|range| range.nth(place)).collect()
    }

    fn link(&self, place: u64) -> String {
        format!("{}p{place}", self.config.link)
    }

    fn netns(&self, key: &str) -> PathBuf {
        self.config.netns_dir.join(key)
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn rules(&self) -> MutexGuard<'_, Rules> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn far_mac(place: u64) -> Mac {
    let bytes = place.to_be_bytes();
    [0x02, 0x6c, 0x67, bytes[5], bytes[6], bytes[7]]
}

/// Lets packets through that are for somebody else.
fn forward(ipv4: bool) -> Result<()> {
    let path = match ipv4 {
        true => "/proc/sys/net/ipv4/ip_forward",
        false => "/proc/sys/net/ipv6/conf/all/forwarding",
    };
    let now = fs::read_to_string(path).map_err(Error::io("read", path))?;
    if now.trim() == "1" {
        return Ok(()); // It may be right and still not ours to write.
    }
    fs::write(path, "1").map_err(Error::io("write", path))
}

/// One thing at a time happens to one key, also when a caller has stopped waiting for it.
struct Busy {
    keys: Mutex<BTreeSet<String>>,
    left: Condvar,
}

struct Turn<'a> {
    busy: &'a Busy,
    key: String,
}

impl Busy {
    fn new() -> Busy {
        Busy { keys: Mutex::default(), left: Condvar::new() }
    }

    fn enter(&self, key: &str) -> Turn<'_> {
        let keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        let free = self.left.wait_while(keys, |keys| keys.contains(key));
        free.unwrap_or_else(PoisonError::into_inner).insert(key.into());
        Turn { busy: self, key: key.into() }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.busy.keys.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
        self.busy.left.notify_all();
    }
}
