//! Zone hints in proportion to the CPUs of each zone, for Services with the annotation `topology-mode: Auto` (NET-86).
//!
//! Each ready endpoint is for its own zone, unless its zone has more endpoints than its share of the CPUs and another has
//! fewer. If a zone would get too few, there are no hints at all. Not here: hints of `trafficDistribution` (`slices`).

use super::backends;
use super::slices::{TOPOLOGY_HINTS, TOPOLOGY_MODE};
use api::quantity::Quantity;
use client::ObjectKey;
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointHints, ForZone};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// By how much an endpoint of a zone may get more traffic than the average. Upstream: `overloadThreshold`.
const OVERLOAD: f64 = 0.2;

const NO_NODE_INFO: &str =
    "Insufficient Node information: allocatable CPU or zone not specified on one or more nodes";
const ONE_ZONE: &str = "Nodes only ready in one zone";
const FEW_ENDPOINTS: &str = "Insufficient number of endpoints";
const OVERLOADED: &str = "Unable to allocate minimum required endpoints to each zone without exceeding overload threshold";
const NO_ZONE: &str = "One or more endpoints do not have a zone specified";

/// Nodes with these labels get no workload, so their CPUs do not count.
const CONTROL_PLANE: [&str; 2] =
    ["node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"];

/// Whether the Service asks for these hints. The older annotation wins.
pub(super) fn is_enabled(service: &Service) -> bool {
    let annotations = service.metadata.annotations.as_ref();
    let annotation = |key| annotations.and_then(|annotations| annotations.get(key));
    let mode = annotation(TOPOLOGY_HINTS).or_else(|| annotation(TOPOLOGY_MODE));
    mode.is_some_and(|mode| mode == "Auto" || mode == "auto")
}

/// What of a node matters here: its zone and its CPUs in thousandths. None if it does not count.
pub(super) fn capacity(node: &Node) -> Option<(Option<&str>, i64)> {
    let labels = node.metadata.labels.as_ref();
    let has = |label: &&str| labels.is_some_and(|labels| labels.contains_key(*label));
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let mut ready = conditions.filter(|condition| condition.type_ == "Ready");
    if CONTROL_PLANE.iter().any(has) || !ready.any(|condition| condition.status == "True") {
        return None;
    }
    let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
    let cpu = allocatable.and_then(|allocatable| allocatable.get("cpu"));
    let cpu = cpu.and_then(|cpu| Quantity::parse(&cpu.0).ok()).map_or(0, |cpu| cpu.milli_value());
    Some((backends::zone(node), cpu))
}

/// The share of each zone in the CPUs of all nodes, or why there is none.
pub(super) fn shares(nodes: &[Arc<Node>]) -> Result<BTreeMap<String, f64>, String> {
    let mut by_zone: BTreeMap<String, f64> = BTreeMap::new();
    for (zone, cpu) in nodes.iter().filter_map(|node| capacity(node)) {
        let Some(zone) = zone.filter(|_| cpu > 0) else { return Err(NO_NODE_INFO.to_owned()) };
        *by_zone.entry(zone.to_owned()).or_default() += cpu as f64;
    }
    let total: f64 = by_zone.values().sum();
    match by_zone.len() {
        0 => Err(NO_NODE_INFO.to_owned()),
        1 => Err(ONE_ZONE.to_owned()),
        _ => Ok(by_zone.into_iter().map(|(zone, cpu)| (zone, cpu / total)).collect()),
    }
}

/// What a zone should get.
struct Allocation {
    minimum: usize,
    desired: f64,
}

fn allocations(
    shares: &BTreeMap<String, f64>,
    endpoints: usize,
) -> Result<BTreeMap<&str, Allocation>, String> {
    let refused = |why: &str| format!("{why} ({endpoints} endpoints, {} zones)", shares.len());
    if shares.len() > endpoints {
        return Err(refused(FEW_ENDPOINTS));
    }
    let allocation = |share: f64| {
        let desired = share * endpoints as f64;
        let minimum = (desired / (1.0 + OVERLOAD)).ceil() as usize;
        Allocation { minimum, desired: desired.max(minimum as f64) }
    };
    let all: BTreeMap<&str, Allocation> =
        shares.iter().map(|(zone, share)| (zone.as_str(), allocation(*share))).collect();
    match all.values().map(|one| one.minimum).sum::<usize>() > endpoints {
        true => Err(refused(OVERLOADED)),
        false => Ok(all),
    }
}

/// Sets the hints of all ready endpoints of one address family. If that is not possible, none has hints.
pub(super) fn assign(
    endpoints: &mut [&mut Endpoint],
    shares: &Result<BTreeMap<String, f64>, String>,
) -> Result<(), String> {
    endpoints.iter_mut().for_each(|endpoint| endpoint.hints = None);
    let mut ready: Vec<&mut Endpoint> = endpoints
        .iter_mut()
        .map(|endpoint| &mut **endpoint)
        .filter(|endpoint| endpoint.conditions.as_ref().is_none_or(|one| one.ready != Some(false)))
        .collect();
    let shares = shares.as_ref().map_err(Clone::clone)?;
    let allocations = allocations(shares, ready.len())?;
    // The same endpoints always get the same hints.
    ready.sort_by(|a, b| a.addresses.cmp(&b.addresses));
    let zones: Option<Vec<String>> = ready.iter().map(|one| one.zone.clone()).collect();
    let mut zones = zones.ok_or_else(|| NO_ZONE.to_owned())?;
    redistribute(&mut zones, &allocations);
    for (endpoint, name) in ready.into_iter().zip(zones) {
        endpoint.hints =
            Some(EndpointHints { for_zones: Some(vec![ForZone { name }]), for_nodes: None });
    }
    Ok(())
}

/// Moves endpoints from zones with too many to zones with too few. `zones` has the zone of each endpoint.
fn redistribute(zones: &mut [String], allocations: &BTreeMap<&str, Allocation>) {
    // Every move brings two zones nearer to their shares, so there are fewer moves than endpoints.
    for _ in 0..zones.len() {
        let mut counts: BTreeMap<&str, usize> = allocations.keys().map(|zone| (*zone, 0)).collect();
        for zone in zones.iter() {
            *counts.entry(zone).or_default() += 1;
        }
        let excess = |zone: &str, count: usize| {
            count as f64 - allocations.get(zone).map_or(0.0, |one| one.desired)
        };
        let minimum = |zone: &str| allocations.get(zone).map_or(0, |one| one.minimum);
        let by_excess = |a: &(&&str, &usize), b: &(&&str, &usize)| {
            excess(a.0, *a.1).total_cmp(&excess(b.0, *b.1))
        };
        let giving =
            counts.iter().filter(|(zone, count)| **count > minimum(zone)).max_by(by_excess);
        let receiving = counts.iter().min_by(by_excess);
        let (Some((from, had)), Some((to, has))) = (giving, receiving) else { return };
        let short = *has < minimum(to);
        let gap = excess(from, *had).min(-excess(to, *has));
        if from == to || (!short && gap < 1.0) {
            return;
        }
        let (from, to) = ((*from).to_owned(), (*to).to_owned());
        // The last one, so that the others keep their hints when endpoints are added.
        let Some(moved) = zones.iter().rposition(|zone| *zone == from) else { return };
        zones[moved] = to;
    }
}

/// The last outcome for each Service and address family, so that an event is recorded only when it changes.
#[derive(Default)]
pub(super) struct Reported(Mutex<BTreeMap<(ObjectKey, String), Result<(), String>>>);

/// An event: whether it is a warning, and the message.
#[derive(Debug, PartialEq)]
pub(super) struct Report {
    pub(super) warning: bool,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

const ENABLED: (&str, &str) =
    ("TopologyAwareHintsEnabled", "Topology Aware Hints has been enabled");
const DISABLED: (&str, &str) =
    ("TopologyAwareHintsDisabled", "Topology Aware Hints has been disabled");

impl Reported {
    /// `outcome` is None if the Service does not ask for these hints. Returns the event to record.
    pub(super) fn change(
        &self,
        key: &ObjectKey,
        family: &str,
        outcome: Option<Result<(), String>>,
    ) -> Option<Report> {
        let mut all = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let place = (key.clone(), family.to_owned());
        let before = match &outcome {
            Some(outcome) => all.insert(place, outcome.clone()),
            None => all.remove(&place),
        };
        if before == outcome {
            return None;
        }
        let report = |warning, reason, message: &str| Report {
            warning,
            reason,
            message: format!("{message}, addressType: {family}"),
        };
        match outcome {
            Some(Ok(())) => Some(report(false, ENABLED.0, ENABLED.1)),
            Some(Err(why)) => Some(report(true, DISABLED.0, &why)),
            None if before == Some(Ok(())) => Some(report(true, DISABLED.0, DISABLED.1)),
            None => None,
        }
    }

    pub(super) fn forget(&self, key: &ObjectKey) {
        let mut all = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        all.retain(|(service, _), _| service != key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn node(zone: &str, cpu: &str, more: Value) -> Arc<Node> {
        let node = json!({
            "metadata": { "labels": { "topology.kubernetes.io/zone": zone } },
            "status": { "allocatable": { "cpu": cpu }, "conditions": [{ "type": "Ready", "status": "True" }] },
        });
        Arc::new(typed::from_value(api::patch::merge(&node, &more).unwrap()).unwrap())
    }

    /// `a3 b1` is three nodes' worth of CPUs in zone a and one in zone b.
    fn nodes(text: &str) -> Vec<Arc<Node>> {
        let each = text.split_whitespace().map(|word| node(&word[..1], &word[1..], json!({})));
        each.collect()
    }

    /// `aab` is two endpoints in zone a and one in b; `-` has no zone, and a capital letter is not ready.
    fn endpoints(text: &str) -> Vec<Endpoint> {
        let endpoint = |(number, letter): (usize, char)| Endpoint {
            addresses: vec![format!("10.0.0.{:03}", number)],
            zone: (letter != '-').then(|| letter.to_ascii_lowercase().to_string()),
            conditions: Some(k8s_openapi::api::discovery::v1::EndpointConditions {
                ready: Some(!letter.is_ascii_uppercase()),
                ..Default::default()
            }),
            ..Endpoint::default()
        };
        text.chars().enumerate().map(endpoint).collect()
    }

    /// The zone of each endpoint's hint, `.` for none.
    fn hinted(nodes: &[Arc<Node>], text: &str) -> (String, Result<(), String>) {
        let mut all = endpoints(text);
        let mut borrowed: Vec<&mut Endpoint> = all.iter_mut().collect();
        let outcome = assign(&mut borrowed, &shares(nodes));
        let letter = |endpoint: &Endpoint| {
            let zones = endpoint.hints.as_ref().and_then(|hints| hints.for_zones.clone());
            zones.map_or(".".to_owned(), |zones| zones[0].name.clone())
        };
        (all.iter().map(letter).collect(), outcome)
    }

    #[test]
    fn net_86_endpoints_are_distributed_in_proportion_to_the_cpus() {
        for (cpus, given, expected) in [
            ("a1 b1", "ab", "ab"),
            ("a1 b1", "aabb", "aabb"),
            ("a1 b1", "aaab", "aabb"),
            ("a1 b1", "aaaa", "aabb"),
            ("a3 b1", "aabb", "aaba"),
            ("a1 b1 c1", "aaaaaa", "aabbcc"),
            // One more than the share is no reason to leave the zone.
            ("a1 b1", "aaaaaabbbbb", "aaaaaabbbbb"),
            // Endpoints in a zone without nodes are for other zones.
            ("a1 b1", "abcc", "abab"),
            // Those that are not ready have no hint and do not count.
            ("a1 b1", "aBabb", "a.abb"),
        ] {
            let (found, outcome) = hinted(&nodes(cpus), given);
            let sorted = |text: &str| {
                let mut letters: Vec<char> = text.chars().collect();
                letters.sort_unstable();
                letters
            };
            assert_eq!(
                (sorted(&found), outcome),
                (sorted(expected), Ok(())),
                "{cpus} {given}: {found}"
            );
            let stays = found.chars().zip(given.chars()).filter(|(now, zone)| now == zone).count();
            let best =
                expected.chars().zip(given.chars()).filter(|(now, zone)| now == zone).count();
            assert!(stays >= best, "{cpus} {given}: {found}");
        }
    }

    #[test]
    fn net_86_without_a_safe_distribution_there_are_no_hints() {
        let control = json!({ "metadata": { "labels": { CONTROL_PLANE[0]: "" } } });
        let lost = json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }] } });
        let mut with_control = nodes("a1 b1");
        with_control.push(node("c", "64", control));
        with_control.push(node("d", "64", lost));
        assert_eq!(hinted(&with_control, "ab"), ("ab".to_owned(), Ok(())), "they do not count");
        for (nodes, given, why) in [
            (nodes("a1"), "aa", ONE_ZONE),
            (nodes(""), "aa", NO_NODE_INFO),
            (nodes("a1 b0"), "aa", NO_NODE_INFO),
            (vec![node("", "1", json!({})), node("b", "1", json!({}))], "bb", NO_NODE_INFO),
            (nodes("a1 b1"), "a", "Insufficient number of endpoints (1 endpoints, 2 zones)"),
            (nodes("a1 b1"), "aB", "Insufficient number of endpoints (1 endpoints, 2 zones)"),
            (nodes("a1 b1"), "a-bb", NO_ZONE),
            (
                nodes("a5 b3"),
                "aabb",
                "Unable to allocate minimum required endpoints to each zone without exceeding overload threshold (4 endpoints, 2 zones)",
            ),
        ] {
            let (found, outcome) = hinted(&nodes, given);
            assert_eq!(outcome, Err(why.to_owned()));
            assert!(found.chars().all(|letter| letter == '.'), "{found}");
        }
    }

    #[test]
    fn net_86_an_event_says_when_hints_begin_and_end() {
        let (reported, key) = (Reported::default(), ObjectKey::new("default", "web"));
        let shown = |outcome| {
            let report = reported.change(&key, "IPv4", outcome)?;
            Some((report.warning, report.reason, report.message))
        };
        let enabled = || {
            let message = "Topology Aware Hints has been enabled, addressType: IPv4".to_owned();
            Some((false, "TopologyAwareHintsEnabled", message))
        };
        let disabled = |why: &str| {
            Some((true, "TopologyAwareHintsDisabled", format!("{why}, addressType: IPv4")))
        };
        assert_eq!(shown(None), None);
        assert_eq!(shown(Some(Ok(()))), enabled());
        assert_eq!(shown(Some(Ok(()))), None, "nothing has changed");
        assert_eq!(shown(Some(Err(ONE_ZONE.into()))), disabled(ONE_ZONE));
        assert_eq!(shown(Some(Err(ONE_ZONE.into()))), None);
        assert_eq!(shown(Some(Ok(()))), enabled());
        assert_eq!(shown(None), disabled("Topology Aware Hints has been disabled"));
        assert_eq!(shown(None), None);
        shown(Some(Ok(())));
        reported.forget(&key);
        assert_eq!(shown(None), None);
    }
}
