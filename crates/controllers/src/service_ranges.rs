//! Marks ServiceCIDRs as ready, and keeps one that is being deleted until no address depends on it alone (C-181).
//! Not here: allocating addresses (the server).

use crate::start::Cluster;
use crate::workload::{is_being_deleted, name};
use client::{Cache, Next, ObjectKey, Queue, Recorder, reference, run_controller};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::networking::v1::{IPAddress, ServiceCIDR};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use serde_json::json;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

const FINALIZER: &str = "networking.k8s.io/service-cidr-finalizer";
const READY: &str = "Ready";

/// Wait for other API servers, which may still allocate addresses until they notice the deletion. Upstream:
/// `deletionGracePeriod`.
const ALLOCATION_DELAY: SignedDuration = SignedDuration::from_secs(10);

pub(crate) async fn run(
    cluster: &Cluster,
    ranges: Cache<ServiceCIDR>,
    addresses: Cache<IPAddress>,
) {
    let queue = Queue::new();
    // A change of one range can affect whether others are still needed.
    let all = ranges.clone();
    ranges.feed(&queue, move |range| {
        let others = all.list();
        let others = others.iter().map(|other| ObjectKey::of(other.as_ref()));
        others.chain([ObjectKey::of(range)]).collect()
    });
    let all = ranges.clone();
    addresses.feed_changes(&queue, move |_, after| match after {
        Some(_) => Vec::new(),
        // Only ranges that are being deleted wait for addresses.
        None => {
            let ranges = all.list();
            let terminating = ranges.iter().filter(|range| is_being_deleted(range.as_ref()));
            terminating.map(|range| ObjectKey::of(range.as_ref())).collect()
        }
    });
    ranges.synced().await;
    addresses.synced().await;
    let recorder = Recorder::new(&cluster.client, "service-cidr-controller", "");
    run_controller("service-ranges", &queue, 1, |key| {
        reconcile(cluster, &recorder, &ranges, &addresses, key)
    })
    .await;
}

async fn reconcile(
    cluster: &Cluster,
    recorder: &Recorder,
    ranges: &Cache<ServiceCIDR>,
    addresses: &Cache<IPAddress>,
    key: ObjectKey,
) -> client::Result<Next> {
    let Some(range) = ranges.get(&key) else { return Ok(Next::Change) };
    let used = if is_being_deleted(range.as_ref()) { addresses.list() } else { Vec::new() };
    let step = decide(&range, &ranges.list(), &used, clock::now());
    let done = match &step {
        Step::Nothing => Ok(()),
        Step::Wait(after) => return Ok(Next::After(*after)),
        Step::AddFinalizer => {
            let patch = json!({ "metadata": { "finalizers": [FINALIZER] } });
            cluster.client.patch_strategic::<ServiceCIDR>(&key, &patch).await.map(drop)
        }
        Step::SetCondition(condition) => {
            let patch = json!({ "status": { "conditions": [condition] } });
            cluster.client.patch_status::<ServiceCIDR>(&key, &patch).await.map(drop)
        }
        Step::RemoveFinalizer => {
            let patch =
                json!({ "metadata": { "$deleteFromPrimitiveList/finalizers": [FINALIZER] } });
            cluster.client.patch_strategic::<ServiceCIDR>(&key, &patch).await.map(drop)
        }
    };
    match done {
        Err(error) if error.is_not_found() || error.is_conflict() => Ok(Next::Change),
        Err(error) => {
            if let Step::SetCondition(condition) = &step
                && condition.status == "True"
            {
                let message = "The ServiceCIDR Status can not be set to Ready=True";
                recorder.warning(&reference(range.as_ref()), "KubernetesServiceCIDRError", message);
            }
            Err(error)
        }
        Ok(()) => Ok(Next::Change),
    }
}

#[derive(Debug, PartialEq)]
enum Step {
    Nothing,
    AddFinalizer,
    SetCondition(Box<Condition>),
    Wait(Duration),
    RemoveFinalizer,
}

/// One step at a time: each write causes the next reconcile.
fn decide(
    range: &ServiceCIDR,
    all: &[Arc<ServiceCIDR>],
    addresses: &[Arc<IPAddress>],
    now: Timestamp,
) -> Step {
    let held = range.metadata.finalizers.iter().flatten().any(|one| one == FINALIZER);
    let Some(deleted) = &range.metadata.deletion_timestamp else {
        let ready = condition(range, "True", "", "Kubernetes Service CIDR is ready", now);
        return match held {
            false => Step::AddFinalizer,
            true => set_condition(range, ready),
        };
    };
    if !held {
        return Step::Nothing;
    }
    if is_needed(range, all, addresses) {
        let message = "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR";
        return set_condition(range, condition(range, "False", "Terminating", message, now));
    }
    let due = deleted.0.checked_add(ALLOCATION_DELAY).unwrap_or(now);
    match Duration::try_from(due.duration_since(now)) {
        Ok(left) if !left.is_zero() => Step::Wait(left),
        _ => Step::RemoveFinalizer,
    }
}

fn set_condition(range: &ServiceCIDR, condition: Condition) -> Step {
    let there = range.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let same = |one: &Condition| {
        one.type_ == READY && one.status == condition.status && one.reason == condition.reason
    };
    match there.into_iter().any(same) {
        true => Step::Nothing,
        false => Step::SetCondition(Box::new(condition)),
    }
}

fn condition(
    range: &ServiceCIDR,
    status: &str,
    reason: &str,
    message: &str,
    now: Timestamp,
) -> Condition {
    Condition {
        type_: READY.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        last_transition_time: Time(now),
        observed_generation: range.metadata.generation,
    }
}

/// Whether an allocated address is in no other range.
fn is_needed(range: &ServiceCIDR, all: &[Arc<ServiceCIDR>], addresses: &[Arc<IPAddress>]) -> bool {
    let others = || all.iter().filter(|one| name(one.as_ref()) != name(range));
    let given = addresses.iter().filter(|one| crate::service_addresses::is_managed(one));
    let mut given = given.filter_map(|one| name(one.as_ref()).parse::<IpAddr>().ok());
    given.any(|address| {
        contains(range, address)
            && !others().any(|other| !is_being_deleted(other.as_ref()) && contains(other, address))
    })
}

pub(crate) fn contains(range: &ServiceCIDR, address: IpAddr) -> bool {
    let cidrs = range.spec.iter().flat_map(|spec| spec.cidrs.iter().flatten());
    cidrs.into_iter().any(|cidr| is_in(cidr, address))
}

fn is_in(cidr: &str, address: IpAddr) -> bool {
    let Some((network, bits)) = cidr.split_once('/') else { return false };
    let (Ok(network), Ok(bits)) = (network.parse::<IpAddr>(), bits.parse::<u32>()) else {
        return false;
    };
    match (network, address) {
        (IpAddr::V4(network), IpAddr::V4(address)) if bits <= 32 => {
            let cut = |ip: std::net::Ipv4Addr| u32::from(ip).checked_shr(32 - bits).unwrap_or(0);
            cut(network) == cut(address)
        }
        (IpAddr::V6(network), IpAddr::V6(address)) if bits <= 128 => {
            let cut = |ip: std::net::Ipv6Addr| u128::from(ip).checked_shr(128 - bits).unwrap_or(0);
            cut(network) == cut(address)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    const NOW: &str = "2026-01-01T00:00:07Z";

    fn range(name: &str, cidr: &str, more: Value) -> Arc<ServiceCIDR> {
        let mut meta = json!({ "name": name, "finalizers": [FINALIZER] });
        meta.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let ready = json!([{ "type": "Ready", "status": "True", "reason": "", "message": "",
                             "lastTransitionTime": NOW }]);
        let range = json!({ "metadata": meta, "spec": { "cidrs": [cidr] },
                            "status": { "conditions": ready } });
        Arc::new(typed::from_value(range).unwrap())
    }

    fn address(ip: &str, managed: bool) -> Arc<IPAddress> {
        let by = if managed { "ipallocator.k8s.io" } else { "me" };
        let meta = json!({ "name": ip, "labels": { "ipaddress.kubernetes.io/managed-by": by } });
        Arc::new(typed::from_value(json!({ "metadata": meta })).unwrap())
    }

    #[test]
    fn c_181_a_range_is_ready_and_released_when_no_address_needs_it() {
        let deleted = |at: &str| json!({ "deletionTimestamp": at });
        let (just, before) = ("2026-01-01T00:00:05Z", "2026-01-01T00:00:00Z");
        let long = "2025-12-31T23:59:00Z";
        let new = range("a", "10.0.0.0/24", json!({ "finalizers": [] }));
        let mut unsaid = range("a", "10.0.0.0/24", json!({})).as_ref().clone();
        unsaid.status = None;
        let ours = [address("10.0.0.9", true)];
        let others = [address("10.0.0.9", false), address("10.0.1.9", true)];
        let wider = range("b", "10.0.0.0/16", json!({}));
        let at = |time: &str| range("a", "10.0.0.0/24", deleted(time));
        let step = |range: &ServiceCIDR, more: &[Arc<ServiceCIDR>], given: &[Arc<IPAddress>]| {
            let all: Vec<Arc<ServiceCIDR>> =
                more.iter().cloned().chain([Arc::new(range.clone())]).collect();
            match decide(range, &all, given, NOW.parse().unwrap()) {
                Step::SetCondition(condition) => {
                    format!("{} {}", condition.status, condition.reason)
                }
                step => format!("{step:?}"),
            }
        };
        for (what, found, expected) in [
            ("new", step(&new, &[], &[]), "AddFinalizer"),
            ("without the ready condition", step(&unsaid, &[], &[]), "True "),
            ("ready", step(&range("a", "10.0.0.0/24", json!({})), &[], &ours), "Nothing"),
            ("deleted, in use", step(&at(long), &[], &ours), "False Terminating"),
            (
                "deleted, another range has the address too",
                step(&at(long), &[wider], &ours),
                "RemoveFinalizer",
            ),
            (
                "deleted, used by unmanaged addresses",
                step(&at(long), &[], &others),
                "RemoveFinalizer",
            ),
            ("deleted just now", step(&at(just), &[], &[]), "Wait(8s)"),
            ("deleted a moment ago", step(&at(before), &[], &[]), "Wait(3s)"),
        ] {
            assert_eq!(found, expected, "{what}");
        }
        let terminating = range("b", "10.0.0.0/16", deleted(long));
        assert_eq!(
            step(&at(long), &[terminating], &ours),
            "False Terminating",
            "both are being deleted"
        );
    }

    #[test]
    fn an_address_is_in_its_range() {
        let is = |cidr: &str, ip: &str| is_in(cidr, ip.parse().unwrap());
        assert!(is("10.96.0.0/16", "10.96.255.1") && !is("10.96.0.0/16", "10.97.0.1"));
        assert!(is("0.0.0.0/0", "1.2.3.4") && is("fd00::/64", "fd00::9"));
        assert!(!is("fd00::/64", "10.0.0.1") && !is("nonsense", "10.0.0.1"));
    }
}
