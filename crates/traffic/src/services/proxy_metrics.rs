//! Metrics of the Service proxy: upstream's (NET-64, T-NET-31), and those that upstream lacks (NET-74, T-EDGE-26).
//!
//! One transaction has the rules of both IP families. Metrics with the label `ip_family` therefore show the same sync
//! once for each family that the cluster has.

use super::plan::WithoutLocal;
use client::ObjectKey;
use metrics::{Family, Registry, counter, gauge, histogram};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

const SYNC: &str = "kubeproxy_sync_proxy_rules_duration_seconds";
const FULL_SYNC: &str = "kubeproxy_sync_full_proxy_rules_duration_seconds";
const PARTIAL_SYNC: &str = "kubeproxy_sync_partial_proxy_rules_duration_seconds";
const PROGRAMMING: &str = "kubeproxy_network_programming_duration_seconds";
const LAST: &str = "kubeproxy_sync_proxy_rules_last_timestamp_seconds";
const LAST_QUEUED: &str = "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds";
const ENDPOINTS_PENDING: &str = "kubeproxy_sync_proxy_rules_endpoint_changes_pending";
const ENDPOINTS_TOTAL: &str = "kubeproxy_sync_proxy_rules_endpoint_changes_total";
const SERVICES_PENDING: &str = "kubeproxy_sync_proxy_rules_service_changes_pending";
const SERVICES_TOTAL: &str = "kubeproxy_sync_proxy_rules_service_changes_total";
const NO_LOCAL: &str = "kubeproxy_sync_proxy_rules_no_local_endpoints_total";
const FAILURES: &str = "kubeproxy_sync_proxy_rules_nftables_sync_failures_total";
const CLEANUP_FAILURES: &str = "kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total";
const CONNTRACK_SYNC: &str = "kubeproxy_conntrack_reconciler_sync_duration_seconds";
const CONNTRACK_DELETED: &str = "kubeproxy_conntrack_reconciler_deleted_entries_total";

const ELEMENTS: &str = "landfall_proxy_elements_per_sync";
const CHANGE: &str = "landfall_proxy_change_duration_seconds";
const DELETION: &str = "landfall_proxy_pod_deletion_duration_seconds";
const VERIFICATIONS: &str = "landfall_proxy_verifications_total";

/// 15 buckets from 1 ms, doubling.
const EXPONENTIAL: &[f64] = &[
    0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096,
    8.192, 16.384,
];
/// Upstream's: 0.25, 0.5, 1 to 59 by 1, 60 to 115 by 5, 120 to 300 by 30.
const PROGRAMMING_BUCKETS: &[f64] = &{
    const SINGLE: usize = 59;
    const FIVES: usize = 12;
    const THIRTIES: usize = 7;
    let mut buckets = [0.0; 2 + SINGLE + FIVES + THIRTIES];
    (buckets[0], buckets[1]) = (0.25, 0.5);
    let mut number = 0;
    while number < SINGLE + FIVES + THIRTIES {
        buckets[2 + number] = if number < SINGLE {
            (number + 1) as f64
        } else if number < SINGLE + FIVES {
            (60 + (number - SINGLE) * 5) as f64
        } else {
            (120 + (number - SINGLE - FIVES) * 30) as f64
        };
        number += 1;
    }
    buckets
};
/// The API has deletion timestamps in whole seconds, so most values are below two.
const DELETION_BUCKETS: &[f64] =
    &[0.1, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 60.0];
const COUNTS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0];

const BY_FAMILY: &[&str] = &["ip_family"];

const CATALOGUE: &[Family] = &[
    histogram(SYNC, EXPONENTIAL, BY_FAMILY, "Duration of a transaction of packet rules."),
    histogram(FULL_SYNC, EXPONENTIAL, BY_FAMILY, "Duration of a comparison of all Services."),
    histogram(PARTIAL_SYNC, EXPONENTIAL, BY_FAMILY, "Duration of a change of single Services."),
    histogram(
        PROGRAMMING,
        PROGRAMMING_BUCKETS,
        BY_FAMILY,
        "Time from the change of a Service or of the readiness of a pod to its packet rules.",
    ),
    gauge(LAST, BY_FAMILY, "Time of the last successful transaction."),
    gauge(LAST_QUEUED, BY_FAMILY, "Time of the last change that was received."),
    gauge(ENDPOINTS_PENDING, &[], "Changes of EndpointSlices that are not in force yet."),
    counter(ENDPOINTS_TOTAL, &[], "Changes of EndpointSlices."),
    gauge(SERVICES_PENDING, &[], "Changes of Services that are not in force yet."),
    counter(SERVICES_TOTAL, &[], "Changes of Services."),
    gauge(
        NO_LOCAL,
        &["traffic_policy", "ip_family"],
        "Service ports with a Local policy and no endpoint here.",
    ),
    counter(FAILURES, BY_FAMILY, "Transactions that failed."),
    counter(CLEANUP_FAILURES, BY_FAMILY, "Removals of unused elements that failed."),
    histogram(CONNTRACK_SYNC, EXPONENTIAL, BY_FAMILY, "Duration of a search for UDP connections."),
    counter(CONNTRACK_DELETED, BY_FAMILY, "Tracked UDP connections that were deleted."),
    histogram(ELEMENTS, COUNTS, &[], "Elements of sets and maps in one transaction."),
    histogram(
        CHANGE,
        EXPONENTIAL,
        &[],
        "Time from receiving the first pending change of a Service to its packet rules.",
    ),
    histogram(
        DELETION,
        DELETION_BUCKETS,
        &["local"],
        "Time from a pod's deletion, in whole seconds, to packet rules that reflect it. \
         local: the pod is on this node.",
    ),
    counter(
        VERIFICATIONS,
        &["result"],
        "Comparisons of the packet rules with the desired state: equal or different.",
    ),
];

pub(super) struct ProxyMetrics {
    registry: Arc<Registry>,
    /// The label values of the families that the cluster has.
    families: Vec<&'static str>,
}

/// The value of the label `ip_family`.
fn family(ipv4: bool) -> &'static str {
    if ipv4 { "IPv4" } else { "IPv6" }
}

impl ProxyMetrics {
    /// `ipv4`: the families that the cluster has.
    pub(super) fn new(ipv4: impl IntoIterator<Item = bool>) -> ProxyMetrics {
        let families: Vec<&'static str> = ipv4.into_iter().map(family).collect();
        let registry = Registry::new(CATALOGUE);
        for family in &families {
            // Counters are shown from the start, so that their first increase is seen as one.
            for name in [FAILURES, CLEANUP_FAILURES, CONNTRACK_DELETED] {
                registry.add(name, &[("ip_family", family)], 0);
            }
        }
        for result in ["equal", "different"] {
            registry.add(VERIFICATIONS, &[("result", result)], 0);
        }
        ProxyMetrics { registry: Arc::new(registry), families }
    }

    pub(super) fn registry(&self) -> Arc<Registry> {
        self.registry.clone()
    }

    fn for_families(&self, record: impl Fn(&Registry, &[(&'static str, &str)])) {
        for family in &self.families {
            record(&self.registry, &[("ip_family", family)]);
        }
    }

    pub(super) fn full_sync(&self, took: Duration) {
        self.for_families(|registry, labels| {
            registry.observe(SYNC, labels, took);
            registry.observe(FULL_SYNC, labels, took);
        });
    }

    pub(super) fn partial_sync(&self, took: Duration, elements: usize) {
        self.for_families(|registry, labels| {
            registry.observe(SYNC, labels, took);
            registry.observe(PARTIAL_SYNC, labels, took);
        });
        self.registry.observe_number(ELEMENTS, &[], elements as f64);
    }

    pub(super) fn synced(&self, without_local: &HashMap<ObjectKey, WithoutLocal>) {
        let now = clock::now().as_second() as f64;
        self.for_families(|registry, labels| registry.set(LAST, labels, now));
        for is_ipv4 in [true, false] {
            let family = family(is_ipv4);
            if !self.families.contains(&family) {
                continue;
            }
            let all = || without_local.values().map(|counts| counts.of_family(is_ipv4));
            let internal: usize = all().map(|counts| counts.internal).sum();
            let external: usize = all().map(|counts| counts.external).sum();
            for (policy, count) in [("internal", internal), ("external", external)] {
                let labels = [("traffic_policy", policy), ("ip_family", family)];
                self.registry.set(NO_LOCAL, &labels, count as f64);
            }
        }
    }

    pub(super) fn failed(&self) {
        self.for_families(|registry, labels| registry.add(FAILURES, labels, 1));
    }

    pub(super) fn cleanup_failed(&self) {
        self.for_families(|registry, labels| registry.add(CLEANUP_FAILURES, labels, 1));
    }

    pub(super) fn conntrack(&self, ipv4: bool, deleted: usize, took: Duration) {
        let labels = [("ip_family", family(ipv4))];
        self.registry.observe(CONNTRACK_SYNC, &labels, took);
        self.registry.add(CONNTRACK_DELETED, &labels, deleted as u64);
    }

    pub(super) fn service_changed(&self, pending: u64) {
        self.registry.add(SERVICES_TOTAL, &[], 1);
        self.queued(SERVICES_PENDING, pending);
    }

    pub(super) fn endpoints_changed(&self, pending: u64) {
        self.registry.add(ENDPOINTS_TOTAL, &[], 1);
        self.queued(ENDPOINTS_PENDING, pending);
    }

    fn queued(&self, gauge: &'static str, pending: u64) {
        self.registry.set(gauge, &[], pending as f64);
        let now = clock::now().as_second() as f64;
        self.for_families(|registry, labels| registry.set(LAST_QUEUED, labels, now));
    }

    /// How many changes wait now.
    pub(super) fn pending(&self, services: u64, endpoints: u64) {
        self.registry.set(SERVICES_PENDING, &[], services as f64);
        self.registry.set(ENDPOINTS_PENDING, &[], endpoints as f64);
    }

    pub(super) fn programmed(&self, ipv4: bool, took: Duration) {
        self.registry.observe(PROGRAMMING, &[("ip_family", family(ipv4))], took);
    }

    pub(super) fn change_applied(&self, took: Duration) {
        self.registry.observe(CHANGE, &[], took);
    }

    pub(super) fn deletion_applied(&self, local: bool, took: Duration) {
        let local = if local { "true" } else { "false" };
        self.registry.observe(DELETION, &[("local", local)], took);
    }

    pub(super) fn verified(&self, equal: bool) {
        let result = if equal { "equal" } else { "different" };
        self.registry.add(VERIFICATIONS, &[("result", result)], 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(metrics: &ProxyMetrics) -> String {
        let mut page = metrics::Page::default();
        metrics.registry.write(&mut page, |_| true);
        page.into_text()
    }

    /// NET-64: 0.25, 0.5, 1 to 59 by 1, 60 to 115 by 5, 120 to 300 by 30.
    #[test]
    fn net_64_buckets_of_the_network_programming_duration() {
        let whole = (1..60).chain((60..120).step_by(5)).chain((120..=300).step_by(30));
        let expected: Vec<f64> = [0.25, 0.5].into_iter().chain(whole.map(f64::from)).collect();
        assert_eq!(PROGRAMMING_BUCKETS, expected);
    }

    /// NET-64, T-NET-31: names and labels of the metrics.
    #[test]
    fn net_64_metrics_have_upstreams_names_and_labels() {
        let metrics = ProxyMetrics::new([true, false]);
        let second = Duration::from_secs(1);
        metrics.full_sync(second);
        metrics.partial_sync(second, 3);
        metrics.synced(&HashMap::new());
        metrics.failed();
        metrics.cleanup_failed();
        metrics.conntrack(true, 2, second);
        metrics.service_changed(1);
        metrics.endpoints_changed(4);
        metrics.programmed(false, second);
        let text = page(&metrics);
        for line in [
            "sync_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"} 2",
            "sync_full_proxy_rules_duration_seconds_count{ip_family=\"IPv6\"} 1",
            "sync_partial_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"} 1",
            "network_programming_duration_seconds_count{ip_family=\"IPv6\"} 1",
            "sync_proxy_rules_endpoint_changes_pending 4",
            "sync_proxy_rules_endpoint_changes_total 1",
            "sync_proxy_rules_service_changes_pending 1",
            "sync_proxy_rules_service_changes_total 1",
            "sync_proxy_rules_no_local_endpoints_total{traffic_policy=\"internal\",ip_family=\"IPv4\"} 0",
            "sync_proxy_rules_nftables_sync_failures_total{ip_family=\"IPv4\"} 1",
            "sync_proxy_rules_nftables_cleanup_failures_total{ip_family=\"IPv6\"} 1",
            "conntrack_reconciler_sync_duration_seconds_count{ip_family=\"IPv4\"} 1",
            "conntrack_reconciler_deleted_entries_total{ip_family=\"IPv4\"} 2",
        ] {
            let line = format!("kubeproxy_{line}");
            assert!(text.lines().any(|shown| shown == line), "{line} is not in\n{text}");
        }
        for name in [LAST, LAST_QUEUED] {
            let start = format!("{name}{{ip_family=\"IPv4\"}} ");
            let value = text.lines().find_map(|line| line.strip_prefix(&start));
            let value: f64 = value.and_then(|value| value.parse().ok()).unwrap_or_default();
            assert!(value > 1e9, "{name} is a time: {text}");
        }
    }
}
