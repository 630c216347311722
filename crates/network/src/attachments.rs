//! Creates and removes attachments: the implementation of `Pods`, in threads that may block.
//!
//! Every thread starts in the node's network namespace. An attachment has a record before anything of it
//! exists in the kernel, so that it can be removed after a crash or a failed step.

use crate::address_pool::{AddressPool, GATEWAY};
use crate::census::{self, Census};
use crate::link::{self, Device, Mac};
use crate::namespace::{self, Namespace, UserRange};
use crate::netlink::Socket;
use crate::overlay;
use crate::ownership::Instance;
use crate::records::{Record, Records};
use crate::routes::OverlayRules;
use crate::rules::{PodPorts, Rules};
use crate::{Attachment, Error, HostPort, PodsConfig, Protocol, Result, conntrack, ipv6, policies};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The node's end of every pod link. The same address can be used on all of them: a link has two ends only.
const NODE_MAC: Mac = [0x02, 0x6c, 0x66, 0, 0, 1];
/// The first bytes of the address of a pod's end; the address index follows.
const POD_MAC_PREFIX: [u8; 3] = [0x02, 0x6c, 0x67];
const POD_DEVICE: &str = "eth0";
const LOOPBACK_INDEX: u32 = 1;

pub(crate) struct Inner {
    pub(crate) node: Namespace,
    pub(crate) config: PodsConfig,
    disk: Records,
    pub(crate) instance: Instance,
    state: Mutex<State>,
    rules: Mutex<Rules>,
    pub(crate) overlay_rules: Mutex<OverlayRules>,
    locks: KeyLocks,
}

pub(crate) struct State {
    pub(crate) records: BTreeMap<String, Record>,
    pool: AddressPool,
}

impl Inner {
    /// Must run in the network namespace `node`.
    pub(crate) fn open(config: PodsConfig, node: Namespace) -> Result<Inner> {
        fs::create_dir_all(&config.netns_dir).map_err(Error::io("create", &config.netns_dir))?;
        let disk = Records::open(&config.state_dir)?;
        // First of all: this fails, and changes nothing, if another instance owns the link or the range.
        let instance = set_up_gateway(&config, disk.were_used)?;
        let gateways: Vec<IpAddr> =
            config.cidrs.iter().filter_map(|range| range.nth(GATEWAY)).collect();
        let rules = Rules::open(&config, &Inner::routed_ranges(&gateways)?)?;
        let pool = AddressPool::new(&config.cidrs, disk.last_allocated());
        let state = Mutex::new(State { records: BTreeMap::new(), pool });
        let (rules, locks) = (Mutex::new(rules), KeyLocks::new());
        let overlay_rules = Mutex::default();
        let inner = Inner { node, config, disk, instance, state, rules, overlay_rules, locks };
        inner.restore()?;
        // Without it, the ages of most connections are unknown. Connection tracking is there by now: the rules use it.
        conntrack::record_start_times();
        Ok(inner)
    }

    /// Keeps the complete attachments of an earlier process and removes everything else it left behind.
    fn restore(&self) -> Result<()> {
        let mut socket = Socket::route()?;
        let devices = link::devices(&mut socket)?;
        let ports = self.restore_records(&devices)?;
        self.remove_lost_links(&mut socket, &devices)?;
        self.rules().install(ports)
    }

    /// Returns the host ports of the attachments that are kept.
    fn restore_records(&self, devices: &[Device]) -> Result<BTreeMap<String, PodPorts>> {
        let ours = devices.iter().filter(|device| self.instance.owns_pod_link(device));
        let links: BTreeSet<&str> = ours.map(|device| device.name.as_str()).collect();
        let mut ports = BTreeMap::new();
        for record in self.disk.load()? {
            let intact = record.complete
                && record.addresses == self.addresses(record.address_index)
                && links.contains(self.link(record.address_index).as_str())
                && namespace::is_namespace(&self.netns(&record.key));
            let mut state = self.state();
            if intact && state.pool.reserve(record.address_index) {
                if !record.ports.is_empty() {
                    ports.insert(record.key.clone(), self.pod_ports(&record));
                }
                state.records.insert(record.key.clone(), record);
            } else {
                drop(state);
                namespace::remove(&self.netns(&record.key))?;
                self.disk.remove(&record.key)?;
            }
        }
        Ok(ports)
    }

    /// Removes links of this instance that belong to no record.
    fn remove_lost_links(&self, socket: &mut Socket, devices: &[Device]) -> Result<()> {
        let mut state = self.state();
        let indexes = state.records.values().map(|record| record.address_index);
        let kept: BTreeSet<String> = indexes.map(|index| self.link(index)).collect();
        let mut lost = Vec::new();
        let shared = [self.config.link.clone(), overlay::device_name(&self.config.link)];
        for device in devices.iter().filter(|device| !shared.contains(&device.name)) {
            match self.address_index_of(device) {
                _ if kept.contains(&device.name) => {}
                _ if self.instance.marked(device) => lost.push(link::delete(&device.name)),
                Some(_) if self.instance.owns_pod_link(device) => {
                    lost.push(link::delete(&device.name));
                }
                // Another program uses the device name, so no pod of ours can have this index.
                Some(index) => drop(state.pool.reserve(index)),
                None => {}
            }
        }
        socket.request(lost).map(drop)
    }

    pub(crate) fn attach(
        &self,
        key: &str,
        ports: Vec<HostPort>,
        users: Option<UserRange>,
    ) -> Result<Attachment> {
        let _lock = self.locks.lock(key);
        let known = self.state().records.get(key).cloned();
        let mut record = match known {
            Some(record) if record.complete => record,
            Some(incomplete) => {
                self.tear_down(&incomplete)?;
                self.allocate(key)?
            }
            None => self.allocate(key)?,
        };
        let attached = self.set_up(&mut record, ports, users);
        if attached.is_err() && !record.complete {
            // Report the first error. If the cleanup fails too, a later `attach` or `open` repeats it.
            let _ = self.tear_down(&record);
        }
        attached.map(|()| self.attachment(&record))
    }

    /// Allocates an address index and records it on disk.
    fn allocate(&self, key: &str) -> Result<Record> {
        let mut state = self.state();
        let Some(address_index) = state.pool.allocate() else {
            let ranges: Vec<String> = self.config.cidrs.iter().map(ToString::to_string).collect();
            return Err(Error::Exhausted(ranges.join(", ")));
        };
        let record = Record {
            key: key.into(),
            address_index,
            addresses: self.addresses(address_index),
            ports: vec![],
            complete: false,
        };
        let saved = self
            .disk
            .save_last_allocated(state.pool.last_allocated())
            .and_then(|()| self.disk.save(&record));
        if let Err(error) = saved {
            state.pool.release(address_index);
            return Err(error);
        }
        clock::crash_point("address reserved");
        state.records.insert(key.into(), record.clone());
        Ok(record)
    }

    fn set_up(
        &self,
        record: &mut Record,
        ports: Vec<HostPort>,
        users: Option<UserRange>,
    ) -> Result<()> {
        let mut node = Socket::route()?;
        if !record.complete {
            self.connect(&mut node, record, users)?;
        } else if record.ports == ports {
            return Ok(());
        }
        if record.ports != ports {
            let index = link::index_of(&mut node, &self.link(record.address_index))?;
            let loopback = ports.iter().any(HostPort::is_on_loopback);
            node.request(vec![link::set_route_localnet(index, loopback)])?;
        }
        let pod = PodPorts { addresses: record.addresses.clone(), ports: ports.clone() };
        self.rules().set(&record.key, pod)?;
        clock::crash_point("host ports opened");
        self.delete_stale_udp_connections(&record.addresses, &ports)?;
        *record = Record { ports, complete: true, ..record.clone() };
        self.disk.save(record)?;
        clock::crash_point("attachment recorded");
        self.state().records.insert(record.key.clone(), record.clone());
        Ok(())
    }

    /// Creates namespace, link, addresses and routes. Afterwards this thread is in the pod's namespace.
    fn connect(&self, node: &mut Socket, record: &Record, users: Option<UserRange>) -> Result<()> {
        let path = self.netns(&record.key);
        let namespace = match users {
            None => namespace::create(&path)?,
            Some(users) => namespace::create_for(&path, users)?,
        };
        clock::crash_point("network namespace made");
        let mut pod = Socket::route()?;
        let (node_device, pod_mac) =
            (self.link(record.address_index), pod_mac(record.address_index));
        let (node_end, pod_end) = ((node_device.as_str(), NODE_MAC), (POD_DEVICE, pod_mac));
        node.request(vec![link::add_veth_pair(node_end, pod_end, &namespace, self.config.mtu)])?;
        clock::crash_point("link made");

        let pod_index = link::index_of(&mut pod, POD_DEVICE)?;
        let node_index = link::index_of(node, &node_device)?;
        let mut pod_side = vec![link::set_up(LOOPBACK_INDEX), link::set_up(pod_index)];
        let mut node_side = vec![];
        for (address, gateway) in record.addresses.iter().zip(self.addresses(GATEWAY)) {
            pod_side.push(link::add_address(pod_index, *address));
            pod_side.push(link::add_neighbour(pod_index, gateway, NODE_MAC));
            pod_side.push(link::add_default_route(pod_index, gateway));
            node_side.push(link::add_neighbour(node_index, *address, pod_mac));
            node_side.push(link::add_route(node_index, *address, gateway));
        }
        node_side.push(link::set_alias(node_index, self.instance.alias()));
        pod.request(pod_side)?;
        node.request(node_side)?;
        // The node's end was set up before the pod's. The kernel notices later, in the background, that it has a
        // carrier, and drops packets until then. Reading the device makes it notice now.
        link::index_of(node, &node_device)?;
        clock::crash_point("link set up");
        Ok(())
    }

    pub(crate) fn detach(&self, key: &str) -> Result<()> {
        self.detach_in_two_steps(key, || ())
    }

    /// Calls `disconnected` as soon as no packet reaches the pod, before the kernel has removed everything.
    pub(crate) fn detach_in_two_steps(&self, key: &str, disconnected: impl FnOnce()) -> Result<()> {
        let _lock = self.locks.lock(key);
        let Some(record) = self.state().records.get(key).cloned() else { return Ok(()) };
        self.disconnect(&record)?;
        disconnected();
        self.dispose(&record)
    }

    fn tear_down(&self, record: &Record) -> Result<()> {
        self.disconnect(record)?;
        self.dispose(record)
    }

    /// No packet reaches the pod from now on.
    fn disconnect(&self, record: &Record) -> Result<()> {
        self.rules().remove_pod(&record.key)?;
        clock::crash_point("host ports closed");
        self.delete_stale_udp_connections(&record.addresses, &record.ports)?;
        self.node.enter()?; // `connect` may have left this thread in the pod's namespace.
        let mut node = Socket::route()?;
        let link = self.link(record.address_index);
        let device = link::find(&mut node, &link)?;
        let Some(device) = device.filter(|device| self.instance.owns_pod_link(device)) else {
            return Ok(());
        };
        let routes = record.addresses.iter();
        node.request(routes.map(|address| link::delete_route(device.index, *address)).collect())?;
        Ok(())
    }

    /// Removes what is left of a disconnected pod. Releases the address last, when nothing points to it any more: the
    /// next pod may get it.
    fn dispose(&self, record: &Record) -> Result<()> {
        self.node.enter()?;
        let mut node = Socket::route()?;
        let device = link::find(&mut node, &self.link(record.address_index))?;
        if let Some(device) = device.filter(|device| self.instance.owns_pod_link(device)) {
            node.request(vec![link::delete(&device.name)])?;
        }
        clock::crash_point("link removed");
        namespace::remove(&self.netns(&record.key))?;
        clock::crash_point("network namespace removed");
        self.disk.remove(&record.key)?;
        clock::crash_point("address freed");
        let mut state = self.state();
        state.records.remove(&record.key);
        state.pool.release(record.address_index);
        Ok(())
    }

    /// Deletes conntrack entries of UDP clients of these host ports that lead to another pod or to no pod,
    /// so that the next packet is translated by the current rules.
    fn delete_stale_udp_connections(&self, pod: &[IpAddr], ports: &[HostPort]) -> Result<()> {
        let ports: Vec<_> = ports.iter().filter(|port| port.protocol == Protocol::Udp).collect();
        if ports.is_empty() {
            return Ok(());
        }
        self.node.enter()?;
        for range in &self.config.cidrs {
            conntrack::delete_matching(range.is_ipv4(), |connection| {
                ports.iter().any(|port| port.matches(connection))
                    && range.contains(connection.reply.source)
                        == pod.contains(&connection.reply.source)
            })?;
        }
        Ok(())
    }

    /// `None` if there is no such attachment.
    pub(crate) fn census(&self, key: &str) -> Result<Option<Census>> {
        let _lock = self.locks.lock(key);
        if !self.state().records.get(key).is_some_and(|record| record.complete) {
            return Ok(None);
        }
        let pod = Namespace::open(&self.netns(key))?;
        pod.map(|pod| census::take(&self.node, &pod)).transpose()
    }

    /// Removes what all pods share. Attachments must be gone already.
    pub(crate) fn remove(&self) -> Result<()> {
        self.rules().remove()?;
        let mut socket = Socket::route()?;
        self.remove_routes(&mut socket)?;
        let mut messages = vec![link::delete(&self.config.link)];
        messages.extend(self.config.cidrs.iter().map(link::delete_unreachable));
        socket.request(messages)?;
        let _ = fs::remove_dir(&self.config.netns_dir); // Fails, as intended, if another instance uses it.
        self.instance.release()?;
        self.disk.close()
    }

    pub(crate) fn attachment(&self, record: &Record) -> Attachment {
        Attachment { netns: self.netns(&record.key), addresses: record.addresses.clone() }
    }

    fn pod_ports(&self, record: &Record) -> PodPorts {
        PodPorts { addresses: record.addresses.clone(), ports: record.ports.clone() }
    }

    pub(crate) fn config(&self) -> &PodsConfig {
        &self.config
    }

    /// One address per range, in the order of the ranges.
    pub(crate) fn addresses(&self, address_index: u64) -> Vec<IpAddr> {
        self.config.cidrs.iter().filter_map(|range| range.nth(address_index)).collect()
    }

    pub(crate) fn ranges(&self) -> &[crate::Cidr] {
        &self.config.cidrs
    }

    /// `None` if the device is not named like a pod's link.
    fn address_index_of(&self, device: &Device) -> Option<u64> {
        let digits = device.name.strip_prefix(&self.config.link)?.strip_prefix('p')?;
        digits.parse().ok().filter(|_| digits.bytes().all(|byte| byte.is_ascii_digit()))
    }

    /// Name of the node's end of a pod's link.
    fn link(&self, address_index: u64) -> String {
        policies::link_name(&self.config.link, address_index)
    }

    fn netns(&self, key: &str) -> PathBuf {
        self.config.netns_dir.join(key)
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn rules(&self) -> MutexGuard<'_, Rules> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Creates the device with the node's own addresses and the routes of the pod ranges, and enables forwarding.
/// Fails if another instance uses the same device name or ranges.
fn set_up_gateway(config: &PodsConfig, has_records: bool) -> Result<Instance> {
    let mut instance = Instance::open(&config.state_dir, has_records)?;
    let mut socket = Socket::route()?;
    let devices = link::devices(&mut socket)?;
    let existing = devices.iter().find(|device| device.name == config.link);
    if !instance.owns_gateway_device(existing)? {
        instance.check_ranges(&mut socket, &devices, &config.cidrs)?;
        instance.claim(&config.link)?;
        socket.request(vec![link::add_gateway_device(&config.link, config.mtu)])?;
    }
    let index = link::index_of(&mut socket, &config.link)?;
    let mut messages = vec![link::set_alias(index, instance.alias()), link::set_up(index)];
    messages.push(link::set_mtu(index, config.mtu)); // An earlier process may have used another one.
    let gateways = config.cidrs.iter().filter_map(|range| range.nth(GATEWAY));
    messages.extend(gateways.map(|address| link::add_address(index, address)));
    messages.extend(config.cidrs.iter().map(link::add_unreachable));
    socket.request(messages)?;
    for range in &config.cidrs {
        match range.is_ipv4() {
            true => enable_forwarding()?,
            false => ipv6::enable_forwarding()?,
        }
    }
    Ok(instance)
}

fn pod_mac(address_index: u64) -> Mac {
    let [a, b, c] = POD_MAC_PREFIX;
    let [.., d, e, f] = address_index.to_be_bytes();
    [a, b, c, d, e, f]
}

/// Makes the node a router for IPv4 packets that are not addressed to itself.
fn enable_forwarding() -> Result<()> {
    let path = "/proc/sys/net/ipv4/ip_forward";
    let now = fs::read_to_string(path).map_err(Error::io("read", path))?;
    if now.trim() == "1" {
        return Ok(()); // The file may be read-only for us, so do not write without need.
    }
    fs::write(path, "1").map_err(Error::io("write", path))
}

/// One lock per key. The thread that does the work holds it, so the lock stays held if the caller's future
/// is dropped early.
struct KeyLocks {
    locked: Mutex<BTreeSet<String>>,
    unlocked: Condvar,
}

struct KeyLock<'a> {
    locks: &'a KeyLocks,
    key: String,
}

impl KeyLocks {
    fn new() -> KeyLocks {
        KeyLocks { locked: Mutex::default(), unlocked: Condvar::new() }
    }

    fn lock(&self, key: &str) -> KeyLock<'_> {
        let locked = self.locked.lock().unwrap_or_else(PoisonError::into_inner);
        let locked = self.unlocked.wait_while(locked, |locked| locked.contains(key));
        locked.unwrap_or_else(PoisonError::into_inner).insert(key.into());
        KeyLock { locks: self, key: key.into() }
    }
}

impl Drop for KeyLock<'_> {
    fn drop(&mut self) {
        self.locks.locked.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
        self.locks.unlocked.notify_all();
    }
}
