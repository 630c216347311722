//! Addresses and ports for Services.
//!
//! A claim is an object in the store that can be created only once: an IPAddress named like the
//! address (which clients can see), or an entry of an internal collection named like the node port.
//! So two servers on one store cannot hand out the same one, and nothing has to be remembered. A
//! claim is made before its Service is written; if that fails the claim is given back, and what a
//! crash leaves behind is swept at the next start.

use crate::call::Call;
use crate::error::{ApiError, Result};
use crate::object::{self, Store, Stored, store_name};
use crate::server::Server;
use api::value::ValueExt;
use api::{At, Errors};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::Arc;
use store::{Change, Draft, Expect, Write, WriteError};

/// The range of cluster addresses, and the first of it, which is the API's own.
pub(crate) const SERVICE_RANGE: (Ipv4Addr, u8) = (Ipv4Addr::new(10, 96, 0, 0), 16);
pub(crate) const API_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);

/// Where the ranges are that addresses come from: the first one, and those that people add (C-181).
const RANGES: &str = "networking.k8s.io/servicecidrs";

const NODE_PORTS: std::ops::RangeInclusive<u16> = 30000..=32767;
/// Not an API resource: the claims on node ports.
const PORT_CLAIMS: &str = "internal/nodeports";
const ADDRESSES: &str = "networking.k8s.io/ipaddresses";

/// Tries at random before giving up on a crowded range.
const ATTEMPTS: usize = 64;

/// Claims that are given back unless the Service they were made for is stored.
pub(crate) struct Lease {
    server: Option<Server>,
    claims: Vec<(&'static str, String)>,
}

impl Lease {
    fn none() -> Self {
        Lease { server: None, claims: Vec::new() }
    }

    pub(crate) fn keep(&mut self) {
        self.claims.clear();
    }

    /// Before the same is claimed again: dropped, they would be given back in a while only.
    pub(crate) async fn give_back(mut self) {
        if let Some(server) = &self.server {
            for (collection, name) in &self.claims {
                give_back(server.store(), collection, name).await;
            }
        }
        // Not before: whoever is cut here leaves the rest to the drop.
        self.claims.clear();
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let claims = std::mem::take(&mut self.claims);
        if let (Some(server), false) = (self.server.take(), claims.is_empty()) {
            tokio::spawn(async move {
                for (collection, name) in claims {
                    give_back(server.store(), collection, &name).await;
                }
            });
        }
    }
}

fn is_service(call: &Call) -> bool {
    call.kind.plural == "services" && call.kind.group.is_empty()
}

/// Gives a Service what it lacks of addresses and ports. Other kinds need nothing.
pub(crate) async fn allocate(
    call: &Call,
    service: &mut Value,
    old: Option<&Value>,
    dry_run: bool,
) -> Result<Lease> {
    if !is_service(call) {
        return Ok(Lease::none());
    }
    api::rules::default_ip_families(service);
    let mut lease = Lease { server: Some(call.server.clone()), claims: Vec::new() };
    address(call, service, old, dry_run, &mut lease).await?;
    ports(call, service, old, dry_run, &mut lease).await?;
    Ok(lease)
}

async fn address(
    call: &Call,
    service: &mut Value,
    old: Option<&Value>,
    dry_run: bool,
    lease: &mut Lease,
) -> Result<()> {
    if service.text(&["spec", "type"]) == "ExternalName" {
        return Ok(());
    }
    let wanted = service.text(&["spec", "clusterIP"]).to_owned();
    if wanted == "None" {
        service.object("spec")["clusterIPs"] = json!(["None"]);
        return Ok(());
    }
    let had = old.map_or("", |old| old.text(&["spec", "clusterIP"]));
    if !wanted.is_empty() {
        service.object("spec")["clusterIPs"] = json!([wanted]);
        if wanted != had && had.is_empty() {
            let address = in_range(call, service, &wanted)?;
            if !dry_run && !claim_address(call, service, address).await? {
                return Err(invalid_address(
                    call,
                    service,
                    &wanted,
                    "failed to allocate IP ",
                    "provided IP is already allocated",
                ));
            }
            // A dry run has claimed nothing: the address may be somebody else's.
            if !dry_run {
                lease.claims.push((ADDRESSES, wanted));
            }
        }
        return Ok(());
    }
    let ranges = ranges(call.store());
    for _ in 0..ATTEMPTS {
        let Some(address) = random_address(&ranges) else { break };
        let name = address.to_string();
        let free = if dry_run {
            call.store().get(ADDRESSES, &name).is_none()
        } else {
            claim_address(call, service, address).await?
        };
        if free {
            if !dry_run {
                lease.claims.push((ADDRESSES, name.clone()));
            }
            let spec = service.object("spec");
            spec["clusterIP"] = name.clone().into();
            spec["clusterIPs"] = json!([name]);
            return Ok(());
        }
    }
    Err(ApiError::Internal("failed to allocate a serviceIP: range is full".into()))
}

/// An IPv4 network and the bits of it that are fixed.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Range {
    network: Ipv4Addr,
    bits: u32,
}

impl Range {
    fn parse(text: &str) -> Option<Range> {
        let (network, bits) = text.split_once('/')?;
        let (network, bits) = (network.parse().ok()?, bits.parse().ok()?);
        (1..=32).contains(&bits).then_some(Range { network, bits })
    }

    fn has(self, address: Ipv4Addr) -> bool {
        let cut = |address: Ipv4Addr| u32::from(address) >> (32 - self.bits);
        cut(address) == cut(self.network)
    }

    /// Neither the network's own address nor the broadcast address, if it has room for such.
    fn random(self) -> Ipv4Addr {
        let hosts = 1u64 << (32 - self.bits);
        let host = match hosts {
            1..=2 => clock::random_u64() % hosts,
            hosts => 1 + clock::random_u64() % (hosts - 2),
        };
        Ipv4Addr::from(u32::from(self.network).wrapping_add(host as u32))
    }
}

impl std::fmt::Display for Range {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.network, self.bits)
    }
}

/// Those that are ready and stay.
fn ranges(store: &Store) -> Vec<Range> {
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

fn cidrs(range: &Value) -> Vec<Range> {
    let cidrs = range.at(&["spec", "cidrs"]).and_then(Value::as_array);
    cidrs.into_iter().flatten().filter_map(Value::as_str).filter_map(Range::parse).collect()
}

fn random_address(ranges: &[Range]) -> Option<Ipv4Addr> {
    let count = ranges.len() as u64;
    let range = ranges.get(usize::try_from(clock::random_u64().checked_rem(count)?).ok()?)?;
    // The API's own is claimed already, but for a dry run on an empty store.
    Some(range.random()).filter(|address| *address != API_ADDRESS).or(Some(range.random()))
}

fn in_range(call: &Call, service: &Value, text: &str) -> Result<Ipv4Addr> {
    let ranges = ranges(call.store());
    let inside = |address: &Ipv4Addr| ranges.iter().any(|range| range.has(*address));
    text.parse().ok().filter(inside).ok_or_else(|| {
        let all = ranges.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        let why = format!(
            "the provided IP ({text}) is not in the valid range. The range of valid IPs is {all}"
        );
        invalid_address(call, service, text, "failed to allocate IP ", &why)
    })
}

fn invalid_address(call: &Call, service: &Value, text: &str, doing: &str, why: &str) -> ApiError {
    let shown = json!({ "spec": { "clusterIPs": [text] } });
    let root = At::root(&shown);
    let spec = root.field("spec");
    let mut errors = Errors::default();
    errors.invalid(&spec.field("clusterIPs"), &format!("{doing}{text}: {why}"));
    ApiError::invalid(&call.kind, service.text(&["metadata", "name"]), errors)
}

async fn claim_address(call: &Call, service: &Value, address: Ipv4Addr) -> Result<bool> {
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

/// The IPAddress that says which Service has an address.
pub(crate) fn ip_address(namespace: &str, name: &str, address: Ipv4Addr) -> Value {
    json!({
        "metadata": {
            "name": address.to_string(),
            "uid": clock::uuid(),
            "creationTimestamp": clock::now_rfc3339(),
            "labels": {
                "ipaddress.kubernetes.io/ip-family": "IPv4",
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

async fn ports(
    call: &Call,
    service: &mut Value,
    old: Option<&Value>,
    dry_run: bool,
    lease: &mut Lease,
) -> Result<()> {
    let kind = service.text(&["spec", "type"]);
    let balanced = kind == "LoadBalancer"
        && service.at(&["spec", "allocateLoadBalancerNodePorts"]) != Some(&Value::Bool(false));
    if kind != "NodePort" && !balanced {
        return Ok(());
    }
    let owner =
        store_name(service.text(&["metadata", "namespace"]), service.text(&["metadata", "name"]));
    let held: BTreeSet<u16> = old.map(node_ports).unwrap_or_default();
    let mut mine = held;
    // Ports the client names are claimed before others are handed out.
    let named =
        service.at(&["spec", "ports"]).and_then(Value::as_array).cloned().unwrap_or_default();
    for (index, port) in named.iter().enumerate() {
        let Some(number) = port["nodePort"].as_i64().filter(|number| *number != 0) else {
            continue;
        };
        let wanted = u16::try_from(number).ok().filter(|number| NODE_PORTS.contains(number));
        let Some(wanted) = wanted else {
            let why = format!(
                "provided port is not in the valid range. The range of valid ports is {}-{}",
                NODE_PORTS.start(),
                NODE_PORTS.end()
            );
            return Err(invalid_port(call, service, index, number, &why));
        };
        if mine.contains(&wanted) {
            continue; // Two protocols of one Service may share a number.
        }
        if !dry_run {
            if !claim(call.store(), PORT_CLAIMS, &wanted.to_string(), port_claim(&owner)).await? {
                return Err(invalid_port(
                    call,
                    service,
                    index,
                    number,
                    "provided port is already allocated",
                ));
            }
            lease.claims.push((PORT_CLAIMS, wanted.to_string()));
        }
        mine.insert(wanted);
    }
    let count = named.len();
    for index in 0..count {
        if service["spec"]["ports"][index]["nodePort"].as_i64().unwrap_or(0) != 0 {
            continue;
        }
        let port = free_port(call, &owner, dry_run).await?;
        if !dry_run {
            lease.claims.push((PORT_CLAIMS, port.to_string()));
        }
        service["spec"]["ports"][index]["nodePort"] = port.into();
    }
    Ok(())
}

async fn free_port(call: &Call, owner: &str, dry_run: bool) -> Result<u16> {
    let span = u64::from(NODE_PORTS.end() - NODE_PORTS.start()) + 1;
    let first = clock::random_u64() % span;
    for step in 0..span {
        let port = NODE_PORTS.start() + ((first + step) % span) as u16;
        let name = port.to_string();
        if call.store().get(PORT_CLAIMS, &name).is_some() {
            continue;
        }
        if dry_run || claim(call.store(), PORT_CLAIMS, &name, port_claim(owner)).await? {
            return Ok(port);
        }
    }
    Err(ApiError::Internal("failed to allocate a nodePort: range is full".into()))
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

/// Gives back what a removed Service had.
pub(crate) async fn release(call: &Call, service: &Value) {
    release_changed(call, service, &Value::Null).await;
}

/// Gives back what a Service had and has no longer.
pub(crate) async fn release_changed(call: &Call, old: &Value, new: &Value) {
    if !is_service(call) {
        return;
    }
    let had = old.text(&["spec", "clusterIP"]);
    if !had.is_empty() && had != "None" && new.text(&["spec", "clusterIP"]) != had {
        give_back(call.store(), ADDRESSES, had).await;
    }
    for port in node_ports(old).difference(&node_ports(new)) {
        give_back(call.store(), PORT_CLAIMS, &port.to_string()).await;
    }
}

async fn give_back(store: &Store, collection: &str, name: &str) {
    let Some(claim) = store.get(collection, name) else { return };
    let write = Write {
        collection: collection.into(),
        name: name.into(),
        expect: Expect::Revision(claim.revision()),
        change: Change::Delete,
    };
    if let Err(WriteError::Backend(error)) = store.write(write).await {
        tracing::warn!(%collection, %name, %error, "a claim could not be given back; the next start sweeps it");
    }
}

/// Gives back claims whose Service does not exist: a crash came between the two writes.
pub(crate) async fn sweep(store: &Store) {
    let (_, services) = store.list("services", "", None);
    let services: Vec<Value> =
        services.iter().map(|service: &Arc<object::Object>| service.value()).collect();
    let addresses: BTreeSet<&str> =
        services.iter().map(|service| service.text(&["spec", "clusterIP"])).collect();
    let ports: BTreeSet<u16> = services.iter().flat_map(node_ports).collect();
    for claim in store.list(ADDRESSES, "", None).1 {
        let ours = claim.label("ipaddress.kubernetes.io/managed-by") == Some("ipallocator.k8s.io");
        if ours && !addresses.contains(claim.name()) {
            give_back(store, ADDRESSES, claim.name()).await;
        }
    }
    for claim in store.list(PORT_CLAIMS, "", None).1 {
        if !claim.name().parse().is_ok_and(|port: u16| ports.contains(&port)) {
            give_back(store, PORT_CLAIMS, claim.name()).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_of_their_range() {
        for text in ["10.96.0.0/16", "10.9.0.0/29", "10.9.0.4/31", "10.9.0.9/32", "128.0.0.0/1"] {
            let range = Range::parse(text).unwrap();
            assert_eq!(range.to_string(), text);
            for _ in 0..200 {
                let address = range.random();
                assert!(range.has(address), "{address} of {text}");
                let ends = [range.network, Ipv4Addr::from(u32::from(range.network) | 7)];
                assert!(text != "10.9.0.0/29" || !ends.contains(&address), "{address} of {text}");
            }
        }
        for text in ["fd00::/64", "10.0.0.0", "10.0.0.0/33", "10.0.0.0/0", ""] {
            assert_eq!(Range::parse(text), None, "{text}");
        }
        assert!(!Range::parse("10.9.0.0/29").unwrap().has("10.9.0.8".parse().unwrap()));
    }
}
