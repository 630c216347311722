//! What one Service means for the packets of this node. Pure: a Service, its slices and this node come in, and the
//! rules go out.

use super::endpoints::{Endpoints, NodeView, Usable, of_port, usable};
use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use network::{Cidr, Frontend, Protocol, ServiceEntry, ServiceRules, Unserved};
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// A Service with this label belongs to another proxy (NET-24).
const OTHER_PROXY: &str = "service.kubernetes.io/service-proxy-name";
/// How long clients are remembered if the Service does not say it.
const AFFINITY_SECONDS: i32 = 10_800;

/// What one Service means for this node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ServicePlan {
    pub(crate) rules: ServiceRules,
    pub(crate) health_check: Option<HealthCheck>,
    pub(crate) udp: Vec<UdpPort>,
    /// Ports with a Local policy that have endpoints, but none on this node.
    pub(crate) without_local: WithoutLocal,
}

/// `healthCheckNodePort` (NET-42).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HealthCheck {
    pub(crate) port: u16,
    /// Distinct addresses of ready endpoints on this node.
    pub(crate) local_endpoints: usize,
}

/// A UDP port, whose clients may keep sending to an endpoint that is gone (NET-60).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UdpPort {
    pub frontends: Vec<Frontend>,
    pub serving: BTreeSet<SocketAddr>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct WithoutLocal {
    pub(crate) ipv4: PolicyCounts,
    pub(crate) ipv6: PolicyCounts,
}

/// Ports by the policy that is Local.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PolicyCounts {
    pub(crate) internal: usize,
    pub(crate) external: usize,
}

impl WithoutLocal {
    pub(crate) fn of_family(self, ipv4: bool) -> PolicyCounts {
        if ipv4 { self.ipv4 } else { self.ipv6 }
    }
}

pub(crate) fn plan(
    service: &Service,
    slices: &[Arc<EndpointSlice>],
    node: &NodeView,
) -> ServicePlan {
    let mut plan = ServicePlan::default();
    let Some(spec) = service.spec.as_ref().filter(|spec| is_proxied(service, spec)) else {
        return plan;
    };
    let mut local_ready = BTreeSet::new();
    for ipv4 in [true, false] {
        let Some(cluster_ip) = cluster_ip(spec, ipv4) else { continue };
        plan.rules.cluster_ips.insert(cluster_ip);
        for port in spec.ports.iter().flatten() {
            let endpoints = of_port(port, slices, ipv4, node);
            let ready = endpoints.iter().filter(|(_, endpoint)| endpoint.ready && endpoint.local);
            local_ready.extend(ready.map(|(address, _)| address.ip()));
            let port = Port { service, spec, port, cluster_ip, node };
            port.add(&endpoints, &mut plan);
        }
    }
    let health_check = spec.health_check_node_port.and_then(|port| u16::try_from(port).ok());
    plan.health_check = health_check
        .filter(|port| *port > 0 && is_local(spec.external_traffic_policy.as_deref()))
        .map(|port| HealthCheck { port, local_endpoints: local_ready.len() });
    plan
}

/// Headless Services and ExternalNames have no address to serve (NET-19).
fn is_proxied(service: &Service, spec: &ServiceSpec) -> bool {
    let cluster_ip = spec.cluster_ip.as_deref().unwrap_or_default();
    let labels = service.metadata.labels.as_ref();
    spec.type_.as_deref() != Some("ExternalName")
        && !matches!(cluster_ip, "" | "None")
        && !labels.is_some_and(|labels| labels.contains_key(OTHER_PROXY))
}

/// The ClusterIP of a family, if the Service has the family (NET-26).
fn cluster_ip(spec: &ServiceSpec, ipv4: bool) -> Option<IpAddr> {
    let all = spec.cluster_ips.iter().flatten().chain(&spec.cluster_ip);
    let mut addresses = all.filter_map(|text| text.parse::<IpAddr>().ok());
    addresses.find(|address| address.is_ipv4() == ipv4)
}

fn is_local(policy: Option<&str>) -> bool {
    policy == Some("Local")
}

/// One port of a Service in one family.
struct Port<'a> {
    service: &'a Service,
    spec: &'a ServiceSpec,
    port: &'a ServicePort,
    cluster_ip: IpAddr,
    node: &'a NodeView,
}

impl Port<'_> {
    fn add(&self, endpoints: &Endpoints, plan: &mut ServicePlan) {
        let Some(protocol) = self.protocol() else { return };
        let Ok(number) = u16::try_from(self.port.port) else { return };
        let usable = usable(endpoints, self.node);
        let frontend = |address, port| Frontend { address, protocol, port };
        let mut frontends = vec![frontend(self.cluster_ip, number)];
        let internal = self.internal(&usable);
        plan.rules.entries.insert(frontends[0], internal);

        let external = self.external(&usable);
        for address in self.addresses(self.spec.external_ips.iter().flatten()) {
            frontends.push(frontend(address, number));
            plan.rules.entries.insert(frontend(address, number), external.clone());
        }
        let sources = self.source_ranges();
        for address in self.load_balancers() {
            frontends.push(frontend(address, number));
            let entry = ServiceEntry { sources: sources.clone(), ..external.clone() };
            plan.rules.entries.insert(frontend(address, number), entry);
        }
        let node_port = self.port.node_port.and_then(|port| u16::try_from(port).ok());
        for port in node_port.into_iter().filter(|port| *port > 0) {
            for address in self.node.addresses.iter().filter(|ip| self.is_of_family(ip)) {
                frontends.push(frontend(*address, port));
                plan.rules.entries.insert(frontend(*address, port), external.clone());
            }
        }
        self.add_local_endpoints(endpoints, &usable, plan);
        self.count_without_local(&usable, frontends.len() > 1, plan);
        if protocol == Protocol::Udp {
            let serving = endpoints.iter().filter(|(_, endpoint)| endpoint.serving);
            let serving = serving.map(|(address, _)| *address).collect();
            plan.udp.push(UdpPort { frontends, serving });
        }
    }

    fn protocol(&self) -> Option<Protocol> {
        match self.port.protocol.as_deref().unwrap_or("TCP") {
            "TCP" => Some(Protocol::Tcp),
            "UDP" => Some(Protocol::Udp),
            "SCTP" => Some(Protocol::Sctp),
            _ => None,
        }
    }

    fn is_of_family(&self, address: &IpAddr) -> bool {
        address.is_ipv4() == self.cluster_ip.is_ipv4()
    }

    fn addresses<'b>(&'b self, texts: impl Iterator<Item = &'b String> + 'b) -> Vec<IpAddr> {
        let parsed = texts.filter_map(|text| text.parse::<IpAddr>().ok());
        parsed.filter(|address| self.is_of_family(address)).collect()
    }

    /// Only addresses that packets really have: with `ipMode: Proxy` the balancer is the client (NET-24).
    fn load_balancers(&self) -> Vec<IpAddr> {
        let status = self.service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
        let ingress = status.and_then(|status| status.ingress.as_ref()).into_iter().flatten();
        let virtual_ips = ingress.filter(|entry| entry.ip_mode.as_deref() != Some("Proxy"));
        self.addresses(virtual_ips.filter_map(|entry| entry.ip.as_ref()))
    }

    fn affinity_seconds(&self) -> Option<u32> {
        if self.spec.session_affinity.as_deref() != Some("ClientIP") {
            return None;
        }
        let client_ip =
            self.spec.session_affinity_config.as_ref().and_then(|config| config.client_ip.as_ref());
        let seconds = client_ip.and_then(|config| config.timeout_seconds);
        u32::try_from(seconds.unwrap_or(AFFINITY_SECONDS)).ok()
    }

    /// At the ClusterIP.
    fn internal(&self, usable: &Usable) -> ServiceEntry {
        let local = is_local(self.spec.internal_traffic_policy.as_deref());
        let endpoints = if local { &usable.local } else { &usable.cluster };
        let unserved = match (endpoints.is_empty(), local && !usable.cluster.is_empty()) {
            (false, _) => Unserved::Served,
            (true, false) => Unserved::Reject,
            (true, true) => Unserved::Drop,
        };
        ServiceEntry {
            endpoints: endpoints.as_slice().into(),
            unserved,
            affinity_seconds: self.affinity_seconds(),
            ..ServiceEntry::default()
        }
    }

    /// At addresses outside the cluster: external IPs, load balancers and node ports (NET-31, NET-34).
    fn external(&self, usable: &Usable) -> ServiceEntry {
        let local = is_local(self.spec.external_traffic_policy.as_deref());
        let nowhere = usable.cluster.is_empty() && (usable.local.is_empty() || !local);
        let unserved = match (nowhere, local && usable.local.is_empty()) {
            (true, _) => Unserved::Reject,
            (false, true) => Unserved::Drop,
            (false, false) => Unserved::Served,
        };
        ServiceEntry {
            endpoints: usable.cluster.as_slice().into(),
            outside: local.then(|| usable.local.as_slice().into()),
            unserved,
            masquerade: !local,
            affinity_seconds: self.affinity_seconds(),
            sources: None,
        }
    }

    /// `loadBalancerSourceRanges` of this family. `None`: every source is allowed, because no range is of this family or
    /// one contains everything. If a range contains a node's own address, the balancer's addresses are allowed too: the
    /// node's packets to them may have them as their source.
    fn source_ranges(&self) -> Option<Arc<[Cidr]>> {
        let texts = self.spec.load_balancer_source_ranges.iter().flatten();
        let ranges = texts.filter_map(|text| text.trim().parse::<Cidr>().ok());
        let mut ranges: Vec<Cidr> =
            ranges.filter(|range| range.is_ipv4() == self.cluster_ip.is_ipv4()).collect();
        if ranges.is_empty() || ranges.iter().any(|range| range.bits() == 0) {
            return None;
        }
        let is_allowed = |address: &IpAddr| ranges.iter().any(|range| range.contains(*address));
        if self.node.addresses.iter().any(is_allowed) {
            let width = if self.cluster_ip.is_ipv4() { 32 } else { 128 };
            let own = self.load_balancers();
            ranges.extend(own.into_iter().filter_map(|address| Cidr::new(address, width)));
        }
        Some(ranges.into())
    }

    fn add_local_endpoints(&self, endpoints: &Endpoints, usable: &Usable, plan: &mut ServicePlan) {
        let used = usable.cluster.iter().chain(&usable.local);
        let local = used.filter(|address| endpoints.get(address).is_some_and(|one| one.local));
        plan.rules.local_endpoints.extend(local.map(|address| address.ip()));
    }

    fn count_without_local(&self, usable: &Usable, external: bool, plan: &mut ServicePlan) {
        if !usable.local.is_empty() || usable.cluster.is_empty() {
            return;
        }
        let counts = match self.cluster_ip.is_ipv4() {
            true => &mut plan.without_local.ipv4,
            false => &mut plan.without_local.ipv6,
        };
        counts.internal += usize::from(is_local(self.spec.internal_traffic_policy.as_deref()));
        let external_local = is_local(self.spec.external_traffic_policy.as_deref());
        counts.external += usize::from(external && external_local);
    }
}

#[cfg(test)]
mod tests;
