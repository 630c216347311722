//! Allocates cluster IPs and node ports for Services.
//!
//! A claim is an object in the store that can be created only once: an IPAddress named like the address (which
//! clients can see), or an entry of an internal collection named like the node port. So two servers on one store
//! cannot allocate the same one, and nothing is kept in memory. A claim is made before its Service is written. If
//! that write fails the claim is released; claims that a crash leaves behind are released at the next start.

mod allocator_metrics;
mod bands;
mod range;

pub(crate) use allocator_metrics::AllocatorMetrics;
pub use range::ServiceRanges;

use crate::object::{self, Store, Stored, store_name};
use crate::request::call::{Call, name_of};
use crate::response::error::{ApiError, Result};
use crate::server::Server;
use allocator_metrics::Scope;
use api::value::ValueExt;
use api::{At, Errors};
use range::{ServiceRange, family_of};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use store::{Change, Draft, Expect, Write, WriteError};
use tokio::time::Instant;

/// The ranges that cluster IPs come from: the one that the server creates, and those that users add (C-181).
pub(crate) const RANGES: &str = "networking.k8s.io/servicecidrs";

const NODE_PORTS: std::ops::RangeInclusive<u16> = 30000..=32767;
const PORT_COUNT: u64 = 2768;
/// The claims on node ports. Not an API resource.
const PORT_CLAIMS: &str = "internal/nodeports";
const ADDRESSES: &str = "networking.k8s.io/ipaddresses";

const PORT_TAKEN: &str = "provided port is already allocated";

/// Claims for one Service. Dropping them releases them, unless [`Claims::keep`] was called.
pub(crate) struct Claims {
    server: Option<Server>,
    claims: Vec<(&'static str, String)>,
}

impl Claims {
    fn none() -> Self {
        Claims { server: None, claims: Vec::new() }
    }

    /// The Service is stored.
    pub(crate) fn keep(&mut self) {
        self.claims.clear();
    }

    /// Releases the claims at once, so that the next attempt can claim the same again. Dropping them would release
    /// them in the background.
    pub(crate) async fn release(mut self) {
        if let Some(server) = &self.server {
            for (collection, name) in &self.claims {
                release_claim(server.store(), collection, name).await;
            }
        }
        // Only now: if this future is cancelled, the drop releases the rest.
        self.claims.clear();
    }
}

impl Drop for Claims {
    fn drop(&mut self) {
        let claims = std::mem::take(&mut self.claims);
        if let (Some(server), false) = (self.server.take(), claims.is_empty()) {
            tokio::spawn(async move {
                for (collection, name) in claims {
                    release_claim(server.store(), collection, &name).await;
                }
            });
        }
    }
}

fn is_service(call: &Call) -> bool {
    call.kind.plural == "services" && call.kind.group.is_empty()
}

/// Allocates the addresses and ports that a Service lacks. Does nothing for other kinds.
pub(crate) async fn allocate(
    call: &Call,
    service: &mut Value,
    old: Option<&Value>,
    dry_run: bool,
) -> Result<Claims> {
    if !is_service(call) {
        return Ok(Claims::none());
    }
    // Nothing to allocate, and a Service that was stored under other rules may still be updated.
    if old.is_some_and(|old| old.get("spec") == service.get("spec")) {
        return Ok(Claims::none());
    }
    let families = call.server.service_ranges().families();
    let wrong = rules::settle_ip_families(service, old, &families);
    if !wrong.is_empty() {
        return Err(ApiError::invalid(&call.kind, name_of(service), wrong));
    }
    let claims = Claims { server: Some(call.server.clone()), claims: Vec::new() };
    let mut allocation = Allocation { call, old, dry_run, claims };
    match allocation.everything(service).await {
        Ok(()) => Ok(allocation.claims),
        Err(error) => {
            // Before the client sees the error: it may correct one of several addresses or ports and try again.
            allocation.claims.release().await;
            Err(error)
        }
    }
}

/// The allocation for one write of a Service.
struct Allocation<'a> {
    call: &'a Call,
    old: Option<&'a Value>,
    /// Claims nothing.
    dry_run: bool,
    claims: Claims,
}

impl Allocation<'_> {
    async fn everything(&mut self, service: &mut Value) -> Result<()> {
        self.cluster_ips(service).await?;
        self.node_ports(service).await?;
        self.health_check_port(service).await
    }

    /// One address for each of the Service's families. Those that it has stay; after an upgrade to both families only
    /// the second is allocated (NET-26).
    async fn cluster_ips(&mut self, service: &mut Value) -> Result<()> {
        if service.text(&["spec", "type"]) == "ExternalName" {
            return Ok(());
        }
        let spec = service.object("spec");
        if spec.text(&["clusterIP"]) == "None" {
            spec["clusterIPs"] = json!(["None"]);
            return Ok(());
        }
        let had = self.old.map(|old| texts(&old["spec"], "clusterIPs")).unwrap_or_default();
        if had.first().is_some_and(|first| first == "None") {
            return Ok(()); // Validation refuses a headless Service that gets an address.
        }
        let (mut addresses, families) = (texts(spec, "clusterIPs"), texts(spec, "ipFamilies"));
        addresses.resize(addresses.len().max(families.len()), String::new());
        spec["clusterIPs"] = json!(addresses);
        // Validation refuses changes of addresses that the Service has.
        for (index, family) in families.iter().enumerate().skip(had.len()) {
            if addresses[index].is_empty() {
                addresses[index] = self.free_ip(service, family).await?;
            } else {
                self.requested_ip(service, &addresses[index]).await?;
            }
        }
        let spec = service.object("spec");
        spec["clusterIP"] = addresses.first().cloned().unwrap_or_default().into();
        spec["clusterIPs"] = json!(addresses);
        Ok(())
    }

    async fn requested_ip(&mut self, service: &Value, requested: &str) -> Result<()> {
        let started = Instant::now();
        let (address, range) = in_range(self.call, service, requested)?;
        // A dry run does not check whether the address is taken.
        if self.dry_run {
            return Ok(());
        }
        let claimed = claim_address(self.call, service, address).await?;
        self.metrics().address(&range.to_string(), Scope::Static, claimed, started.elapsed());
        if !claimed {
            let why = "provided IP is already allocated";
            return Err(invalid_address(self.call, service, requested, why));
        }
        self.claims.claims.push((ADDRESSES, address.to_string()));
        Ok(())
    }

    /// The first free address of the family in the order of [`ServiceRange::automatic`]. A dry run claims none and
    /// returns the network address as a placeholder (NET-149).
    async fn free_ip(&mut self, service: &Value, family: &str) -> Result<String> {
        let started = Instant::now();
        let ranges = ranges(self.call.store()).into_iter();
        let ranges: Vec<_> = ranges.filter(|range| range.family() == family).collect();
        if let (true, Some(range)) = (self.dry_run, ranges.first()) {
            return Ok(range.network().to_string());
        }
        for range in ranges {
            for address in range.automatic(clock::random_u64()) {
                let name = address.to_string();
                let is_free = self.call.store().get(ADDRESSES, &name).is_none();
                if is_free && claim_address(self.call, service, address).await? {
                    let took = started.elapsed();
                    self.metrics().address(&range.to_string(), Scope::Dynamic, true, took);
                    self.claims.claims.push((ADDRESSES, name.clone()));
                    return Ok(name);
                }
            }
            let took = started.elapsed();
            self.metrics().address(&range.to_string(), Scope::Dynamic, false, took);
        }
        Err(ApiError::Internal("failed to allocate a serviceIP: range is full".into()))
    }

    fn metrics(&self) -> &AllocatorMetrics {
        self.call.server.allocator_metrics()
    }

    async fn node_ports(&mut self, service: &mut Value) -> Result<()> {
        let kind = service.text(&["spec", "type"]);
        if kind != "NodePort" && kind != "LoadBalancer" {
            return Ok(());
        }
        // A load balancer may opt out, but gets the ports that it names.
        let automatic = kind == "NodePort"
            || service.at(&["spec", "allocateLoadBalancerNodePorts"]) != Some(&Value::Bool(false));
        let owner = owner(service);
        let mut own: BTreeSet<u16> = self.old.map(node_ports).unwrap_or_default();
        // Ports that the client names are claimed before others are allocated.
        let ports =
            service.at(&["spec", "ports"]).and_then(Value::as_array).cloned().unwrap_or_default();
        for (index, port) in ports.iter().enumerate() {
            let Some(number) = port["nodePort"].as_i64().filter(|number| *number != 0) else {
                continue;
            };
            let requested = in_port_range(number)
                .map_err(|why| invalid_port(self.call, service, index, number, &why))?;
            // Two protocols of one Service may share a number.
            if own.insert(requested)
                && !self.dry_run
                && !self.claim_port(requested, &owner, Scope::Static).await?
            {
                return Err(invalid_port(self.call, service, index, number, PORT_TAKEN));
            }
        }
        let count = if automatic { ports.len() } else { 0 };
        for index in 0..count {
            if service["spec"]["ports"][index]["nodePort"].as_i64().unwrap_or(0) == 0 {
                let port = match self.shared_port(service, index) {
                    Some(shared) => shared,
                    None => self.free_port(&owner).await?,
                };
                service["spec"]["ports"][index]["nodePort"] = port.into();
            }
        }
        Ok(())
    }

    /// The node port of another port with the same number, such as DNS over TCP and UDP. Only in a new Service: a port
    /// that is added later gets its own (NET-29).
    fn shared_port(&self, service: &Value, index: usize) -> Option<u16> {
        let ports = service["spec"]["ports"].as_array().filter(|_| self.old.is_none())?;
        let wanted = &ports[index];
        let same = |port: &&Value| {
            port["port"] == wanted["port"] && port["protocol"] != wanted["protocol"]
        };
        let numbers = ports.iter().filter(same).filter_map(|port| port["nodePort"].as_u64());
        let mut numbers = numbers.filter_map(|number| u16::try_from(number).ok());
        numbers.find(|number| *number != 0)
    }

    /// The port at which load balancers ask a node whether it has endpoints of the Service, from the same range
    /// (A-151, NET-149).
    async fn health_check_port(&mut self, service: &mut Value) -> Result<()> {
        let needs = rules::needs_health_check_port;
        if !needs(service) || self.old.is_some_and(needs) {
            return Ok(()); // An existing port was restored before and cannot change.
        }
        let owner = owner(service);
        let requested = service["spec"]["healthCheckNodePort"].as_i64().unwrap_or_default();
        let port = if requested == 0 {
            self.free_port(&owner).await?
        } else {
            let refused = |why: &str| {
                ApiError::Internal(format!(
                    "failed to allocate requested HealthCheck NodePort {requested}: {why}"
                ))
            };
            let port = in_port_range(requested).map_err(|why| refused(&why))?;
            let free = if self.dry_run {
                let claimed = self.call.store().get(PORT_CLAIMS, &port.to_string()).is_some();
                !claimed && !node_ports(service).contains(&port)
            } else {
                self.claim_port(port, &owner, Scope::Static).await?
            };
            if !free {
                return Err(refused(PORT_TAKEN));
            }
            port
        };
        service.object("spec")["healthCheckNodePort"] = port.into();
        Ok(())
    }

    /// The first free port in the order of [`bands::automatic`] (NET-148).
    async fn free_port(&mut self, owner: &str) -> Result<u16> {
        let offsets =
            bands::automatic(PORT_COUNT, bands::lower_ports(PORT_COUNT), clock::random_u64());
        for offset in offsets {
            let port = NODE_PORTS.start() + offset as u16;
            if self.call.store().get(PORT_CLAIMS, &port.to_string()).is_some() {
                continue;
            }
            if self.dry_run || self.claim_port(port, owner, Scope::Dynamic).await? {
                return Ok(port);
            }
        }
        self.metrics().port(Scope::Dynamic, false);
        Err(ApiError::Internal("failed to allocate a nodePort: range is full".into()))
    }

    /// False if the port is taken.
    async fn claim_port(&mut self, port: u16, owner: &str, scope: Scope) -> Result<bool> {
        let name = port.to_string();
        let claimed = claim(self.call.store(), PORT_CLAIMS, &name, port_claim(owner)).await?;
        // Automatic allocation tries the next port.
        if claimed || scope == Scope::Static {
            self.metrics().port(scope, claimed);
        }
        if claimed {
            self.claims.claims.push((PORT_CLAIMS, name));
        }
        Ok(claimed)
    }
}

/// Updates the gauges of [`AllocatorMetrics`].
pub(crate) fn measure(store: &Store, metrics: &AllocatorMetrics) {
    let claims = store.list(ADDRESSES, "", None).1;
    let claimed: Vec<IpAddr> =
        claims.iter().filter_map(|claim| claim.name().parse().ok()).collect();
    let of_range = |range: ServiceRange| {
        let used = claimed.iter().filter(|address| range.contains(**address)).count() as u64;
        (range.to_string(), used, range.usable().saturating_sub(used))
    };
    let ranges: Vec<_> = ranges(store).into_iter().map(of_range).collect();
    let ports = store.list(PORT_CLAIMS, "", None).1.len() as u64;
    metrics.in_use(&ranges, (ports, PORT_COUNT.saturating_sub(ports)));
}

/// The name of the ServiceCIDR that the server creates.
pub(crate) const DEFAULT_RANGE: &str = "kubernetes";

/// The ranges of the existing cluster; `configured` in a new one. A cluster keeps its ranges, as Services have addresses
/// of them (NET-143), but a second family can be added.
pub(crate) fn effective_ranges(store: &Store, configured: ServiceRanges) -> ServiceRanges {
    let stored = store.get(RANGES, DEFAULT_RANGE).map(|range| cidrs(&range.value()));
    match stored.and_then(|cidrs| ServiceRanges::of(&cidrs)) {
        Some(stored) if stored.can_grow_to(&configured) => configured,
        Some(stored) => stored,
        None => configured,
    }
}

/// The ranges that are ready and not being deleted.
fn ranges(store: &Store) -> Vec<ServiceRange> {
    let (_, ranges) = store.list(RANGES, "", None);
    let ranges = ranges.iter().filter(|range| range.meta().deletion_timestamp.is_none());
    let ranges = ranges.map(|range: &Arc<object::Object>| range.value());
    ranges.filter(is_ready).flat_map(|range| cidrs(&range)).collect()
}

fn is_ready(range: &Value) -> bool {
    let conditions = range.at(&["status", "conditions"]).and_then(Value::as_array);
    let ready = |one: &Value| one["type"] == "Ready" && one["status"] == "True";
    conditions.into_iter().flatten().any(ready)
}

fn cidrs(range: &Value) -> Vec<ServiceRange> {
    let cidrs = range.at(&["spec", "cidrs"]).and_then(Value::as_array);
    cidrs.into_iter().flatten().filter_map(Value::as_str).filter_map(ServiceRange::parse).collect()
}

/// The strings of a list.
fn texts(spec: &Value, field: &str) -> Vec<String> {
    let list = spec.at(&[field]).and_then(Value::as_array).into_iter().flatten();
    list.map(|text| text.as_str().unwrap_or_default().to_owned()).collect()
}

/// The addresses of a Service, as IPAddress objects are named.
fn addresses(service: &Value) -> BTreeSet<String> {
    let texts = texts(&service["spec"], "clusterIPs");
    texts.iter().filter_map(|text| Some(text.parse::<IpAddr>().ok()?.to_string())).collect()
}

fn in_range(call: &Call, service: &Value, text: &str) -> Result<(IpAddr, ServiceRange)> {
    let ranges = ranges(call.store());
    let range_of = |address: IpAddr| {
        let range = ranges.iter().find(|range| range.contains(address))?;
        Some((address, *range))
    };
    text.parse().ok().and_then(range_of).ok_or_else(|| {
        let six = text.contains(':');
        let of_family = ranges.iter().filter(|range| (range.family() == "IPv6") == six);
        let all = of_family.map(ToString::to_string).collect::<Vec<_>>().join(",");
        let why = format!(
            "the provided IP ({text}) is not in the valid range. The range of valid IPs is {all}"
        );
        invalid_address(call, service, text, &why)
    })
}

fn invalid_address(call: &Call, service: &Value, text: &str, why: &str) -> ApiError {
    let root = At::root(service);
    let spec = root.field("spec");
    let mut errors = Errors::default();
    errors.invalid(&spec.field("clusterIPs"), &format!("failed to allocate IP {text}: {why}"));
    ApiError::invalid(&call.kind, service.text(&["metadata", "name"]), errors)
}

async fn claim_address(call: &Call, service: &Value, address: IpAddr) -> Result<bool> {
    let registry = call.server.registry();
    let Some(kind) = registry.resource("networking.k8s.io", "v1", "ipaddresses") else {
        return Err(ApiError::Internal("IPAddress is not served".into()));
    };
    let object = ip_address(
        service.text(&["metadata", "namespace"]),
        service.text(&["metadata", "name"]),
        address,
    );
    claim(call.store(), ADDRESSES, &address.to_string(), object::draft(kind, &object)).await
}

/// The IPAddress that names the Service of an address.
pub(crate) fn ip_address(namespace: &str, name: &str, address: IpAddr) -> Value {
    json!({
        "metadata": {
            "name": address.to_string(),
            "uid": clock::uuid(),
            "creationTimestamp": clock::now_rfc3339(),
            "labels": {
                "ipaddress.kubernetes.io/ip-family": family_of(address),
                "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io",
            },
        },
        "spec": { "parentRef": { "group": "", "resource": "services", "namespace": namespace, "name": name } },
    })
}

async fn claim(store: &Store, collection: &str, name: &str, draft: Draft) -> Result<bool> {
    let write = Write {
        collection: collection.into(),
        name: name.into(),
        expect: Expect::Absent,
        change: Change::Put(draft),
    };
    match store.write(write).await {
        Ok(_) => Ok(true),
        Err(WriteError::Conflict { .. }) => Ok(false),
        Err(WriteError::Backend(error)) => {
            Err(ApiError::store("claiming an address or port", &error))
        }
    }
}

fn owner(service: &Value) -> String {
    store_name(service.text(&["metadata", "namespace"]), service.text(&["metadata", "name"]))
}

fn in_port_range(number: i64) -> std::result::Result<u16, String> {
    let port = u16::try_from(number).ok().filter(|number| NODE_PORTS.contains(number));
    port.ok_or_else(|| {
        format!(
            "provided port is not in the valid range. The range of valid ports is {}-{}",
            NODE_PORTS.start(),
            NODE_PORTS.end()
        )
    })
}

fn port_claim(owner: &str) -> Draft {
    let mut bytes = b"{\"metadata\":{\"resourceVersion\":\"".to_vec();
    let revision_at = bytes.len();
    bytes.extend_from_slice(b"\"},\"owner\":");
    bytes.extend_from_slice(Value::from(owner).to_string().as_bytes());
    bytes.push(b'}');
    Draft { bytes, revision_at }
}

fn invalid_port(call: &Call, service: &Value, index: usize, number: i64, why: &str) -> ApiError {
    let root = At::root(service);
    let spec = root.field("spec");
    let ports = spec.field("ports");
    let mut errors = Errors::default();
    if let Some(port) = ports.items().nth(index) {
        errors.invalid_value(&port.field("nodePort"), number, why);
    }
    ApiError::invalid(&call.kind, service.text(&["metadata", "name"]), errors)
}

fn node_ports(service: &Value) -> BTreeSet<u16> {
    let ports = service.at(&["spec", "ports"]).and_then(Value::as_array);
    ports
        .into_iter()
        .flatten()
        .filter_map(|port| port["nodePort"].as_u64())
        .filter_map(|port| u16::try_from(port).ok())
        .filter(|port| *port != 0)
        .collect()
}

/// All ports of the range that a Service uses.
fn claimed_ports(service: &Value) -> BTreeSet<u16> {
    let mut ports = node_ports(service);
    if rules::needs_health_check_port(service) {
        let port = service["spec"]["healthCheckNodePort"].as_u64();
        ports.extend(port.and_then(|port| u16::try_from(port).ok()).filter(|port| *port != 0));
    }
    ports
}

/// Releases the claims of a deleted Service.
pub(crate) async fn release(call: &Call, service: &Value) {
    release_changed(call, service, &Value::Null).await;
}

/// Releases the claims that a Service no longer needs.
pub(crate) async fn release_changed(call: &Call, old: &Value, new: &Value) {
    if !is_service(call) {
        return;
    }
    for address in addresses(old).difference(&addresses(new)) {
        release_claim(call.store(), ADDRESSES, address).await;
    }
    for port in claimed_ports(old).difference(&claimed_ports(new)) {
        release_claim(call.store(), PORT_CLAIMS, &port.to_string()).await;
    }
}

async fn release_claim(store: &Store, collection: &str, name: &str) {
    let Some(claim) = store.get(collection, name) else { return };
    let write = Write {
        collection: collection.into(),
        name: name.into(),
        expect: Expect::Revision(claim.revision()),
        change: Change::Delete,
    };
    if let Err(WriteError::Backend(error)) = store.write(write).await {
        tracing::warn!(%collection, %name, %error, "releasing a claim failed; the next start releases it");
    }
}

/// Releases claims whose Service does not exist, because of a crash between the two writes.
pub(crate) async fn release_unused(store: &Store) {
    let (_, services) = store.list("services", "", None);
    let services: Vec<Value> =
        services.iter().map(|service: &Arc<object::Object>| service.value()).collect();
    let addresses: BTreeSet<String> = services.iter().flat_map(addresses).collect();
    let ports: BTreeSet<u16> = services.iter().flat_map(claimed_ports).collect();
    for claim in store.list(ADDRESSES, "", None).1 {
        let ours = claim.label("ipaddress.kubernetes.io/managed-by") == Some("ipallocator.k8s.io");
        if ours && !addresses.contains(claim.name()) {
            release_claim(store, ADDRESSES, claim.name()).await;
        }
    }
    for claim in store.list(PORT_CLAIMS, "", None).1 {
        if !claim.name().parse().is_ok_and(|port: u16| ports.contains(&port)) {
            release_claim(store, PORT_CLAIMS, claim.name()).await;
        }
    }
}
