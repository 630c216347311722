//! Metrics of the Service proxy, with upstream's names (NET-64, T-NET-31).

use super::plan::WithoutLocal;
use client::ObjectKey;
use metrics::{Family, Registry, counter, gauge, histogram};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

const SYNC: &str = "kubeproxy_sync_proxy_rules_duration_seconds";
const FULL_SYNC: &str = "kubeproxy_sync_full_proxy_rules_duration_seconds";
const PARTIAL_SYNC: &str = "kubeproxy_sync_partial_proxy_rules_duration_seconds";
const LAST: &str = "kubeproxy_sync_proxy_rules_last_timestamp_seconds";
const FAILURES: &str = "kubeproxy_sync_proxy_rules_nftables_sync_failures_total";
const NO_LOCAL: &str = "kubeproxy_sync_proxy_rules_no_local_endpoints_total";
const CONNTRACK: &str = "kubeproxy_conntrack_reconciler_deleted_entries_total";
const ELEMENTS: &str = "landfall_proxy_elements_per_sync";

/// 15 buckets from 1 ms, doubling.
const EXPONENTIAL: &[f64] = &[
    0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096,
    8.192, 16.384,
];
const COUNTS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0];

const CATALOGUE: &[Family] = &[
    histogram(SYNC, EXPONENTIAL, &[], "Duration of a transaction of packet rules."),
    histogram(FULL_SYNC, EXPONENTIAL, &[], "Duration of a comparison of all Services."),
    histogram(PARTIAL_SYNC, EXPONENTIAL, &[], "Duration of a change of single Services."),
    gauge(LAST, &[], "Time of the last successful transaction."),
    counter(FAILURES, &[], "Transactions that failed."),
    gauge(NO_LOCAL, &["traffic_policy"], "Service ports with a Local policy and no endpoint here."),
    counter(CONNTRACK, &[], "Tracked UDP connections that were deleted."),
    histogram(ELEMENTS, COUNTS, &[], "Elements of sets and maps in one transaction."),
];

pub(super) struct ProxyMetrics {
    registry: Arc<Registry>,
}

impl ProxyMetrics {
    pub(super) fn new() -> ProxyMetrics {
        ProxyMetrics { registry: Arc::new(Registry::new(CATALOGUE)) }
    }

    pub(super) fn registry(&self) -> Arc<Registry> {
        self.registry.clone()
    }

    pub(super) fn full_sync(&self, took: Duration) {
        self.registry.observe(SYNC, &[], took);
        self.registry.observe(FULL_SYNC, &[], took);
    }

    pub(super) fn partial_sync(&self, took: Duration, elements: usize) {
        self.registry.observe(SYNC, &[], took);
        self.registry.observe(PARTIAL_SYNC, &[], took);
        self.registry.observe_number(ELEMENTS, &[], elements as f64);
    }

    pub(super) fn synced(&self, without_local: &HashMap<ObjectKey, WithoutLocal>) {
        self.registry.set(LAST, &[], clock::now().as_second() as f64);
        let sum = |of: fn(&WithoutLocal) -> usize| without_local.values().map(of).sum::<usize>();
        let (internal, external) = (sum(|all| all.internal), sum(|all| all.external));
        self.registry.set(NO_LOCAL, &[("traffic_policy", "internal")], internal as f64);
        self.registry.set(NO_LOCAL, &[("traffic_policy", "external")], external as f64);
    }

    pub(super) fn failed(&self) {
        self.registry.add(FAILURES, &[], 1);
    }

    pub(super) fn conntrack(&self, deleted: usize) {
        self.registry.add(CONNTRACK, &[], deleted as u64);
    }
}
