//! Repairs IPAddress objects of Services that somebody deleted, changed or left behind (C-182).
//!
//! The server creates an IPAddress (the claim) before it stores a Service, and deletes it after the Service, so there
//! is work here only if another client interfered. IPAddresses without our label are never touched.

use crate::service_ranges;
use crate::start::Cluster;
use crate::workload::{label, name, namespace};
use client::{Cache, DeleteOptions, Next, ObjectKey, Queue, Recorder, reference, run_controller};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::{IPAddress, IPAddressSpec, ParentReference, ServiceCIDR};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

const FAMILY: &str = "ipaddress.kubernetes.io/ip-family";
const MANAGED_BY: &str = "ipaddress.kubernetes.io/managed-by";
const US: &str = "ipallocator.k8s.io";

/// Index of Services by their addresses.
pub(crate) const BY_ADDRESS: &str = "address";

/// A claim is created before its Service, so only claims older than this can be orphaned or wrong.
const CLAIM_AGE_MIN: SignedDuration = SignedDuration::from_secs(60);

pub(crate) fn is_managed(address: &IPAddress) -> bool {
    label(address, MANAGED_BY) == Some(US)
}

/// `services` is the cache with the index by address.
pub(crate) async fn run(
    cluster: &Cluster,
    services: Cache<Service>,
    claims: Cache<IPAddress>,
    ranges: Cache<ServiceCIDR>,
) {
    let queue = Queue::new();
    services.feed(&queue, addresses);
    claims.feed(&queue, |claim| vec![name(claim).to_owned()]);
    // When a range changes, addresses become valid or invalid.
    let known = services.clone();
    ranges.feed_changes(&queue, move |before, after| {
        let blocks = |range: Option<&ServiceCIDR>| range.and_then(|range| range.spec.clone());
        if blocks(before) == blocks(after) {
            return Vec::new();
        }
        let holds = |range: Option<&ServiceCIDR>, address: &str| {
            range.is_some_and(|range| is_in(range, address))
        };
        let services = known.list();
        let all = services.iter().flat_map(|service| addresses(service));
        all.filter(|address| holds(before, address) != holds(after, address)).collect()
    });
    services.synced().await;
    claims.synced().await;
    ranges.synced().await;
    let recorder = Recorder::new(&cluster.client, "ipallocator-repair-controller", "landfall");
    let recorder = recorder.with_action("ClusterIPAllocation");
    run_controller("service-addresses", &queue, 1, |address: String| async {
        let services = services.by_index(BY_ADDRESS, &address);
        let claim = claims.get(&ObjectKey::cluster(&address));
        let is_possible = ranges.list().iter().any(|range| is_in(range, &address));
        let found = Found { services, claim, is_possible };
        repair(cluster, &recorder, address, found).await
    })
    .await;
}

/// The addresses of a Service, as IPAddress objects are named: in canonical form.
pub(crate) fn addresses(service: &Service) -> Vec<String> {
    let addresses = service.spec.iter().flat_map(|spec| spec.cluster_ips.iter().flatten());
    addresses.filter_map(|text| Some(text.parse::<IpAddr>().ok()?.to_string())).collect()
}

fn is_in(range: &ServiceCIDR, address: &str) -> bool {
    address.parse().is_ok_and(|address| service_ranges::contains(range, address))
}

/// The state of one address.
struct Found {
    services: Vec<Arc<Service>>,
    claim: Option<Arc<IPAddress>>,
    /// Whether it is in one of the ranges.
    is_possible: bool,
}

async fn repair(
    cluster: &Cluster,
    recorder: &Recorder,
    address: String,
    found: Found,
) -> client::Result<Next> {
    let step = decide(&found, clock::now());
    let done = match step {
        Step::Nothing => Ok(()),
        Step::Wait(after) => return Ok(Next::After(after)),
        Step::Claim(service) => claim_for(cluster, recorder, &service, &address).await,
        Step::Remove(claim, why) => remove(cluster, recorder, claim, why).await,
        Step::WarnOutside => {
            for service in &found.services {
                let message = format!(
                    "Cluster IP [{}]: {address} is not within any configured Service CIDR; please recreate service",
                    family(&address)
                );
                recorder.warning(&reference(service.as_ref()), "ClusterIPOutOfRange", message);
            }
            Ok(())
        }
        Step::Warn(services) => {
            for service in services {
                let message = format!(
                    "Cluster IP [{}]:{address} was assigned to multiple services; please recreate service",
                    family(&address)
                );
                recorder.warning(
                    &reference(service.as_ref()),
                    "ClusterIPAlreadyAllocated",
                    message,
                );
            }
            Ok(())
        }
    };
    match done {
        Err(error) if error.is_not_found() || error.is_conflict() || error.is_already_exists() => {
            Ok(Next::Change)
        }
        done => done.map(|()| Next::Change),
    }
}

#[derive(Debug)]
enum Step<'a> {
    Nothing,
    Wait(Duration),
    Claim(Arc<Service>),
    Remove(&'a IPAddress, Why),
    /// The address is in no range. The Service keeps it.
    WarnOutside,
    /// Several Services have the address; these are the ones without the claim.
    Warn(Vec<Arc<Service>>),
}

#[derive(Debug, Clone, Copy)]
enum Why {
    Orphaned,
    WrongParent,
}

fn decide(found: &Found, now: Timestamp) -> Step<'_> {
    let services = found.services.as_slice();
    if !services.is_empty() && !found.is_possible {
        return Step::WarnOutside;
    }
    let Some(claim) = found.claim.as_deref() else {
        return match services {
            [] => Step::Nothing,
            [first, ..] => Step::Claim(first.clone()),
        };
    };
    if !is_managed(claim) {
        return Step::Nothing;
    }
    let is_of = |service: &Arc<Service>| {
        parent(claim) == Some(("services", namespace(service.as_ref()), name(service.as_ref())))
    };
    let why = match services {
        [] => Why::Orphaned,
        [one] if is_of(one) => return Step::Nothing,
        all if all.iter().any(is_of) => {
            return Step::Warn(all.iter().filter(|service| !is_of(service)).cloned().collect());
        }
        _ => Why::WrongParent,
    };
    let made = claim.metadata.creation_timestamp.as_ref().map_or(now, |time| time.0);
    let due = made.checked_add(CLAIM_AGE_MIN).unwrap_or(now);
    match Duration::try_from(due.duration_since(now)) {
        Ok(left) if !left.is_zero() => Step::Wait(left),
        _ => Step::Remove(claim, why),
    }
}

fn parent(claim: &IPAddress) -> Option<(&str, &str, &str)> {
    let parent = &claim.spec.parent_ref;
    let namespace = parent.namespace.as_deref().unwrap_or_default();
    let (resource, name) = (parent.resource.as_str(), parent.name.as_str());
    parent.group.as_deref().unwrap_or_default().is_empty().then_some((resource, namespace, name))
}

fn family(address: &str) -> &'static str {
    if address.contains(':') { "IPv6" } else { "IPv4" }
}

async fn claim_for(
    cluster: &Cluster,
    recorder: &Recorder,
    service: &Service,
    address: &str,
) -> client::Result<()> {
    // A Service is deleted before its claim, so a deleted Service must not get a new claim.
    let live = cluster.client.find::<Service>(&ObjectKey::of(service)).await?;
    if live.is_none_or(|live| live.metadata.uid != service.metadata.uid) {
        return Ok(());
    }
    let message =
        format!("Cluster IP [{}]: {address} is not allocated; repairing", family(address));
    let labels = [(FAMILY, family(address)), (MANAGED_BY, US)];
    let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let claim = IPAddress {
        metadata: ObjectMeta {
            name: Some(address.to_owned()),
            labels: Some(BTreeMap::from(labels)),
            ..ObjectMeta::default()
        },
        spec: IPAddressSpec {
            parent_ref: ParentReference {
                group: Some(String::new()),
                resource: "services".to_owned(),
                namespace: service.metadata.namespace.clone(),
                name: name(service).to_owned(),
            },
        },
    };
    cluster.client.create(&claim).await?;
    recorder.warning(&reference(service), "ClusterIPNotAllocated", message);
    Ok(())
}

async fn remove(
    cluster: &Cluster,
    recorder: &Recorder,
    claim: &IPAddress,
    why: Why,
) -> client::Result<()> {
    let (resource, namespace, parent) = parent(claim).unwrap_or_default();
    // The cache may lag: the Service may exist, or have got the address from another one.
    if resource == "services" && !parent.is_empty() {
        let service = ObjectKey::new(namespace, parent);
        let live = cluster.client.find::<Service>(&service).await?;
        if live.is_some_and(|live| addresses(&live).iter().any(|one| one == name(claim))) {
            return Ok(());
        }
    }
    let only = DeleteOptions::only(claim);
    cluster.client.delete::<IPAddress>(&ObjectKey::of(claim), &only).await?;
    let (reason, message) = match why {
        Why::Orphaned => (
            "IPAddressNotAllocated",
            format!(
                "IPAddress: {} for Service {namespace}/{parent} appears to have leaked: cleaning up",
                name(claim)
            ),
        ),
        Why::WrongParent => (
            "IPAddressWrongReference",
            format!(
                "IPAddress: {} for Service {namespace}/{parent} has a wrong reference; cleaning up",
                name(claim)
            ),
        ),
    };
    recorder.warning(&reference(claim), reason, message);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const NOW: &str = "2026-01-01T00:01:00Z";

    fn service(name: &str) -> Arc<Service> {
        let service = json!({ "metadata": { "namespace": "a", "name": name },
                              "spec": { "clusterIPs": ["10.0.0.9"] } });
        Arc::new(typed::from_value(service).unwrap())
    }

    fn claim(parent: &str, by: &str, made: &str) -> IPAddress {
        let meta = json!({ "name": "10.0.0.9", "labels": { MANAGED_BY: by },
                           "creationTimestamp": made });
        let parent = json!({ "resource": "services", "namespace": "a", "name": parent });
        typed::from_value(json!({ "metadata": meta, "spec": { "parentRef": parent } })).unwrap()
    }

    #[test]
    fn net_145_addresses_have_the_canonical_form_of_claims() {
        let spec = json!({ "clusterIPs": ["10.0.0.9", "FD00:0:0::9", "None"] });
        let service: Service = typed::from_value(json!({ "spec": spec })).unwrap();
        assert_eq!(addresses(&service), ["10.0.0.9", "fd00::9"]);
    }

    #[test]
    fn c_182_managed_claims_are_repaired_and_others_left_alone() {
        let (web, db) = (service("web"), service("db"));
        let (old, new) = ("2026-01-01T00:00:00Z", "2026-01-01T00:00:50Z");
        let ours = |parent: &str, made: &str| Some(claim(parent, US, made));
        let rows = [
            ("nothing", vec![], None, "nothing"),
            ("correct", vec![web.clone()], ours("web", old), "nothing"),
            ("the claim is gone", vec![web.clone()], None, "claim web"),
            ("the Service is gone", vec![], ours("web", old), "remove Orphaned"),
            ("the Service is being created", vec![], ours("web", new), "wait 50s"),
            ("another's", vec![web.clone()], ours("gone", old), "remove WrongParent"),
            (
                "of another Service that is being created",
                vec![web.clone()],
                ours("next", new),
                "wait 50s",
            ),
            ("two on one", vec![web.clone(), db], ours("web", old), "warn db"),
            ("not managed", vec![], Some(claim("x", "me", old)), "nothing"),
            ("not managed, in use", vec![web], Some(claim("x", "me", old)), "nothing"),
        ];
        for (what, services, claim, expected) in rows {
            let found = Found { services, claim: claim.map(Arc::new), is_possible: true };
            let step = match decide(&found, NOW.parse().unwrap()) {
                Step::Nothing => "nothing".to_owned(),
                Step::Wait(after) => format!("wait {after:?}"),
                Step::Claim(service) => format!("claim {}", name(service.as_ref())),
                Step::Remove(_, why) => format!("remove {why:?}"),
                Step::WarnOutside => "warn outside".to_owned(),
                Step::Warn(all) => {
                    let names: Vec<&str> = all.iter().map(|one| name(one.as_ref())).collect();
                    format!("warn {}", names.join(" "))
                }
            };
            assert_eq!(step, expected, "{what}");
        }
    }
}
