//! Keeps the Service `kube-dns`, through which pods reach the cluster's DNS server.
//!
//! Every node answers DNS queries itself and writes an EndpointSlice of this Service. Not here: the slices, which nodes
//! write (`node_restriction` checks them). A Service of this name that somebody else created is left as it is.

use crate::background::follower::{Followed, Follower};
use crate::background::system_objects::{IfExists, ensure};
use crate::bootstrap;
use crate::object::{Stored, store_name};
use crate::server::Server;
use crate::service_allocation;
use api::value::ValueExt as _;
use store::EventKind;

pub(crate) const NAMESPACE: &str = "kube-system";
pub(crate) const NAME: &str = "kube-dns";

/// Creates the Service and the claim of its address if they do not exist.
pub(crate) async fn create_missing(server: &Server) -> Result<(), String> {
    let address = server.service_ranges().dns_address();
    if let Some(stored) = server.store().get("services", &store_name(NAMESPACE, NAME))
        && stored.value().text(&["spec", "clusterIP"]) != address.to_string()
    {
        return Ok(()); // Somebody else's.
    }
    if !server.service_ranges().contains(address) {
        tracing::warn!(%address, "no Service kube-dns: its address is outside of the Service range");
        return Ok(());
    }
    if let Some(owner) = other_owner(server, &address.to_string()) {
        tracing::warn!(%address, owner, "no Service kube-dns: another Service has its address");
        return Ok(());
    }
    let mut claim = service_allocation::ip_address(NAMESPACE, NAME, address);
    claim["apiVersion"] = "networking.k8s.io/v1".into();
    claim["kind"] = "IPAddress".into();
    // The claim first: a Service without one could lose its address to another Service.
    ensure(server, claim, IfExists::Keep).await?;
    ensure(server, bootstrap::dns_service(address), IfExists::Keep).await
}

/// The Service that has claimed the address, if it is not this one.
fn other_owner(server: &Server, address: &str) -> Option<String> {
    let claim = server.store().get("networking.k8s.io/ipaddresses", address)?.value();
    let parent = |field: &str| claim.text(&["spec", "parentRef", field]).to_owned();
    let owner = store_name(&parent("namespace"), &parent("name"));
    (owner != store_name(NAMESPACE, NAME)).then_some(owner)
}

/// Restores the Service when somebody deletes it, and the claim of its address, which is released after the Service is
/// deleted.
pub(crate) async fn follow(server: Server, collection: &'static str) {
    let mut follower = Follower::of(server.store(), collection);
    let address = server.service_ranges().dns_address().to_string();
    loop {
        let gone = match follower.next().await {
            Followed::Gap => true,
            Followed::Events(events) => events.iter().any(|event| {
                let place = event.object.place();
                event.kind == EventKind::Deleted
                    && (place == (NAMESPACE, NAME) || place == ("", &address))
            }),
        };
        if gone && let Err(error) = create_missing(&server).await {
            tracing::warn!(error, "restoring the Service kube-dns failed");
        }
    }
}
