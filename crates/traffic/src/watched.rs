//! The objects that decide about traffic, each kind watched once for all parts of this crate.

use client::{Cache, Client, ObjectKey};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use network::Cidr;
use std::collections::BTreeSet;
use std::net::IpAddr;

/// The label that says to which Service an EndpointSlice belongs (NET-21).
pub(crate) const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// The ServiceCIDR that the API server keeps.
const DEFAULT_SERVICE_CIDR: &str = "kubernetes";

/// Index of EndpointSlices: `namespace/name` of their Service.
pub(crate) const BY_SERVICE: &str = "service";

/// Index of Services: their cluster IPs.
pub(crate) const BY_CLUSTER_IP: &str = "cluster-ip";

/// Index of EndpointSlices: the addresses of their endpoints.
pub(crate) const BY_ADDRESS: &str = "address";

#[derive(Clone)]
pub struct Watched {
    pub(crate) services: Cache<Service>,
    pub(crate) slices: Cache<EndpointSlice>,
    pub(crate) namespaces: Cache<Namespace>,
    pub(crate) nodes: Cache<Node>,
    /// For policies, and for the metric of deletions.
    pub(crate) pods: Cache<Pod>,
    pub(crate) service_ranges: Cache<ServiceCIDR>,
}

impl Watched {
    pub fn start(client: &Client) -> Watched {
        Watched {
            services: Cache::builder(client).index(BY_CLUSTER_IP, cluster_ips_of).start(),
            slices: Cache::builder(client)
                .index(BY_SERVICE, service_of)
                .index(BY_ADDRESS, addresses_of)
                .start(),
            namespaces: Cache::start(client),
            nodes: Cache::start(client),
            pods: Cache::start(client),
            service_ranges: Cache::start(client),
        }
    }

    /// Waits until all caches are complete, except that of pods: only policies need it from the start.
    pub async fn synced(&self) {
        self.services.synced().await;
        self.slices.synced().await;
        self.namespaces.synced().await;
        self.nodes.synced().await;
        self.service_ranges.synced().await;
    }

    /// The range of the Service `kubernetes` and of cluster DNS: the first one of the default ServiceCIDR.
    pub fn primary_service_range(&self) -> Option<Cidr> {
        let default = self.service_ranges.get(&ObjectKey::cluster(DEFAULT_SERVICE_CIDR));
        let first = default.and_then(|it| it.spec.as_ref()?.cidrs.as_ref()?.first()?.parse().ok());
        first.or_else(|| self.service_ranges().first().copied())
    }

    /// The ranges of Service addresses, without duplicates.
    pub fn service_ranges(&self) -> Vec<Cidr> {
        let all = self.service_ranges.list();
        let texts = all.iter().filter_map(|range| range.spec.as_ref()).flat_map(|spec| &spec.cidrs);
        let mut ranges: Vec<Cidr> = texts.flatten().filter_map(|text| text.parse().ok()).collect();
        ranges.sort();
        ranges.dedup();
        ranges
    }
}

/// `namespace/name` of the Service that the slice belongs to.
fn service_of(slice: &EndpointSlice) -> Vec<String> {
    let metadata = &slice.metadata;
    let name = metadata.labels.as_ref().and_then(|labels| labels.get(SERVICE_NAME));
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    name.map(|name| format!("{namespace}/{name}")).into_iter().collect()
}

/// The cluster IPs, written in one way only, so that they can be looked up.
fn cluster_ips_of(service: &Service) -> Vec<String> {
    let Some(spec) = &service.spec else {
        return Vec::new();
    };
    let all = spec.cluster_ips.iter().flatten().chain(&spec.cluster_ip);
    normalized(all.map(String::as_str))
}

fn addresses_of(slice: &EndpointSlice) -> Vec<String> {
    let endpoints = slice.endpoints.iter().flatten();
    normalized(endpoints.flat_map(|endpoint| &endpoint.addresses).map(String::as_str))
}

/// Without `None`, host names and duplicates.
fn normalized<'a>(addresses: impl Iterator<Item = &'a str>) -> Vec<String> {
    let addresses = addresses.filter_map(|address| address.parse::<IpAddr>().ok());
    let unique: BTreeSet<IpAddr> = addresses.collect();
    unique.iter().map(IpAddr::to_string).collect()
}
