//! The objects that decide about traffic, each kind watched once for all parts of this crate.

use client::{Cache, Client};
use k8s_openapi::api::core::v1::{Namespace, Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use network::Cidr;

/// The label that says to which Service an EndpointSlice belongs (NET-21).
pub(crate) const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// Index of EndpointSlices: `namespace/name` of their Service.
pub(crate) const BY_SERVICE: &str = "service";

#[derive(Clone)]
pub struct Watched {
    pub(crate) services: Cache<Service>,
    pub(crate) slices: Cache<EndpointSlice>,
    pub(crate) namespaces: Cache<Namespace>,
    pub(crate) nodes: Cache<Node>,
    pub(crate) service_ranges: Cache<ServiceCIDR>,
}

impl Watched {
    pub fn start(client: &Client) -> Watched {
        Watched {
            services: Cache::start(client),
            slices: Cache::builder(client).index(BY_SERVICE, service_of).start(),
            namespaces: Cache::start(client),
            nodes: Cache::start(client),
            service_ranges: Cache::start(client),
        }
    }

    /// Waits until all caches are complete.
    pub async fn synced(&self) {
        self.services.synced().await;
        self.slices.synced().await;
        self.namespaces.synced().await;
        self.nodes.synced().await;
        self.service_ranges.synced().await;
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
