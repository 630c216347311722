//! Metrics of the allocation of addresses and node ports, with upstream's names (NET-150).

use ::metrics::{Family, Registry, counter, gauge, histogram};
use std::sync::Arc;
use std::time::Duration;

const IPS: &str = "kube_apiserver_clusterip_allocator_allocated_ips";
const IPS_LEFT: &str = "kube_apiserver_clusterip_allocator_available_ips";
const IP_TOTAL: &str = "kube_apiserver_clusterip_allocator_allocation_total";
const IP_ERRORS: &str = "kube_apiserver_clusterip_allocator_allocation_errors_total";
const IP_SECONDS: &str = "kube_apiserver_clusterip_allocator_allocation_duration_seconds";
const PORTS: &str = "kube_apiserver_nodeport_allocator_allocated_ports";
const PORTS_LEFT: &str = "kube_apiserver_nodeport_allocator_available_ports";
const PORT_TOTAL: &str = "kube_apiserver_nodeport_allocator_allocation_total";
const PORT_ERRORS: &str = "kube_apiserver_nodeport_allocator_allocation_errors_total";

const SECONDS: &[f64] = &[0.0001, 0.001, 0.01, 0.1, 1.0, 10.0];

const CATALOGUE: &[Family] = &[
    gauge(IPS, &["cidr"], "Allocated cluster IPs, by range."),
    gauge(IPS_LEFT, &["cidr"], "Free cluster IPs, by range."),
    counter(IP_TOTAL, &["cidr", "scope"], "Allocations of cluster IPs."),
    counter(IP_ERRORS, &["cidr", "scope"], "Allocations of cluster IPs that failed."),
    histogram(IP_SECONDS, SECONDS, &["cidr"], "Time to allocate a cluster IP."),
    gauge(PORTS, &[], "Allocated node ports."),
    gauge(PORTS_LEFT, &[], "Free node ports."),
    counter(PORT_TOTAL, &["scope"], "Allocations of node ports."),
    counter(PORT_ERRORS, &["scope"], "Allocations of node ports that failed."),
];

/// Who chose the address or port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// The client named it.
    Static,
    Dynamic,
}

impl Scope {
    fn text(self) -> &'static str {
        match self {
            Scope::Static => "static",
            Scope::Dynamic => "dynamic",
        }
    }
}

pub(crate) struct AllocatorMetrics(Arc<Registry>);

impl Default for AllocatorMetrics {
    fn default() -> Self {
        AllocatorMetrics(Arc::new(Registry::new(CATALOGUE)))
    }
}

impl AllocatorMetrics {
    pub(crate) fn registry(&self) -> Arc<Registry> {
        self.0.clone()
    }

    pub(super) fn address(&self, cidr: &str, scope: Scope, allocated: bool, took: Duration) {
        let name = if allocated { IP_TOTAL } else { IP_ERRORS };
        self.0.add(name, &[("cidr", cidr), ("scope", scope.text())], 1);
        self.0.observe(IP_SECONDS, &[("cidr", cidr)], took);
    }

    pub(super) fn port(&self, scope: Scope, allocated: bool) {
        let name = if allocated { PORT_TOTAL } else { PORT_ERRORS };
        self.0.add(name, &[("scope", scope.text())], 1);
    }

    /// Sets the gauges: each range with its allocated and free addresses, and the same for node ports.
    pub(super) fn in_use(&self, ranges: &[(String, u64, u64)], ports: (u64, u64)) {
        self.0.clear(IPS);
        self.0.clear(IPS_LEFT);
        for (cidr, allocated, free) in ranges {
            self.0.set(IPS, &[("cidr", cidr)], *allocated as f64);
            self.0.set(IPS_LEFT, &[("cidr", cidr)], *free as f64);
        }
        self.0.set(PORTS, &[], ports.0 as f64);
        self.0.set(PORTS_LEFT, &[], ports.1 as f64);
    }
}
