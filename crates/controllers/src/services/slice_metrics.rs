//! Metrics of the EndpointSlice controller, with upstream's names (NET-88).
//!
//! [`SyncStats`] are the numbers of one reconcile of a Service. They are computed from the plan, so that planning need
//! not count. Not here: the registry (`controller_metrics`).

use super::backends::Port;
use super::plan::{Plan, identity, ports_of, sorted};
use client::ObjectKey;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use metrics::{Family, Registry, counter, gauge, histogram};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

const ADDED: &str = "endpoint_slice_controller_endpoints_added_per_sync";
const REMOVED: &str = "endpoint_slice_controller_endpoints_removed_per_sync";
const ENDPOINTS: &str = "endpoint_slice_controller_endpoints_desired";
const SLICES: &str = "endpoint_slice_controller_num_endpoint_slices";
const SLICES_LEAST: &str = "endpoint_slice_controller_desired_endpoint_slices";
const CHANGES: &str = "endpoint_slice_controller_changes";
const CHANGED: &str = "endpoint_slice_controller_endpointslices_changed_per_sync";
const SYNCS: &str = "endpoint_slice_controller_syncs";
const DISTRIBUTIONS: &str = "endpoint_slice_controller_services_count_by_traffic_distribution";

/// Powers of two up to 2^15.
const NUMBERS: &[f64] = &[
    2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0,
    32768.0,
];
/// The default buckets of upstream's library, which are meant for seconds.
const DEFAULT_BUCKETS: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

pub(crate) const CATALOGUE: &[Family] = &[
    histogram(ADDED, NUMBERS, &[], "Endpoints added by one reconcile of a Service."),
    histogram(REMOVED, NUMBERS, &[], "Endpoints removed by one reconcile of a Service."),
    gauge(ENDPOINTS, &[], "Desired endpoints."),
    gauge(SLICES, &[], "EndpointSlices of Services with a selector."),
    gauge(SLICES_LEAST, &[], "EndpointSlices that would be enough if all were full."),
    counter(CHANGES, &["operation"], "EndpointSlices created, updated and deleted."),
    histogram(
        CHANGED,
        DEFAULT_BUCKETS,
        &["topology", "traffic_distribution"],
        "EndpointSlices changed by one reconcile of a Service.",
    ),
    counter(SYNCS, &["result"], "Reconciles of Services, by result."),
    gauge(DISTRIBUTIONS, &["traffic_distribution"], "Services with a traffic distribution."),
];

#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub(super) struct SyncStats {
    added: usize,
    removed: usize,
    changed: usize,
    /// Numbers after the plan, and how few slices would be enough.
    endpoints: usize,
    slices: usize,
    slices_least: usize,
}

impl SyncStats {
    pub(super) fn of(existing: &[Arc<EndpointSlice>], plan: &Plan, slice_max: usize) -> SyncStats {
        let updated: BTreeSet<_> = plan.update.iter().map(|slice| &slice.metadata.name).collect();
        let deleted: BTreeSet<_> = plan.delete.iter().map(|slice| &slice.metadata.name).collect();
        let (mut before, mut after) = (BTreeSet::new(), BTreeSet::new());
        let mut sizes: BTreeMap<(&str, Vec<Port>), usize> = BTreeMap::new();
        let mut count = |slice: &'_ EndpointSlice, family| {
            *sizes.entry((family, sorted(ports_of(slice)))).or_default() += size(slice);
        };
        for slice in existing {
            let name = &slice.metadata.name;
            if deleted.contains(name) || updated.contains(name) {
                before.extend(slice.endpoints.iter().flatten().map(identity));
            } else {
                count(slice, &slice.address_type);
            }
        }
        for slice in plan.create.iter().chain(&plan.update) {
            after.extend(slice.endpoints.iter().flatten().map(identity));
            count(slice, &slice.address_type);
        }
        let least: usize = sizes.values().map(|size| size.div_ceil(slice_max)).sum();
        SyncStats {
            added: after.difference(&before).count(),
            removed: before.difference(&after).count(),
            changed: plan.create.len() + plan.update.len() + plan.delete.len(),
            endpoints: sizes.values().sum(),
            slices: (existing.len() + plan.create.len()).saturating_sub(plan.delete.len()),
            // There is always at least one slice.
            slices_least: least.max(1),
        }
    }
}

fn size(slice: &EndpointSlice) -> usize {
    slice.endpoints.as_ref().map_or(0, Vec::len)
}

/// The result of a reconcile.
#[derive(Debug, Clone, Copy)]
pub(super) enum SyncResult {
    Success,
    Error,
    /// The cache did not have the writes of the previous reconcile yet.
    Stale,
}

/// The metrics of all Services.
pub(super) struct SliceMetrics {
    registry: Arc<Registry>,
    all: Mutex<All>,
}

#[derive(Default)]
struct All {
    services: BTreeMap<ObjectKey, (SyncStats, Option<&'static str>)>,
    sum: SyncStats,
    distributions: BTreeMap<&'static str, usize>,
}

impl All {
    fn replace(&mut self, key: &ObjectKey, by: Option<(SyncStats, Option<&'static str>)>) {
        let before = match by {
            Some(now) => self.services.insert(key.clone(), now),
            None => self.services.remove(key),
        };
        let (gone, left) = before.unwrap_or_default();
        let (come, chosen) = by.unwrap_or_default();
        self.sum.endpoints = self.sum.endpoints + come.endpoints - gone.endpoints;
        self.sum.slices = self.sum.slices + come.slices - gone.slices;
        self.sum.slices_least = self.sum.slices_least + come.slices_least - gone.slices_least;
        if let Some(name) = chosen {
            *self.distributions.entry(name).or_default() += 1;
        }
        if let Some(number) = left.and_then(|name| self.distributions.get_mut(name)) {
            *number -= 1;
        }
    }
}

impl SliceMetrics {
    pub(super) fn new(registry: Arc<Registry>) -> SliceMetrics {
        SliceMetrics { registry, all: Mutex::default() }
    }

    /// A slice was created, updated or deleted.
    pub(super) fn changed(&self, operation: &str) {
        self.registry.add(CHANGES, &[("operation", operation)], 1);
    }

    pub(super) fn ended(&self, how: SyncResult) {
        let result = match how {
            SyncResult::Success => "success",
            SyncResult::Error => "error",
            SyncResult::Stale => "stale",
        };
        self.registry.add(SYNCS, &[("result", result)], 1);
    }

    /// Records the numbers of a Service and its traffic distribution.
    pub(super) fn record(&self, key: &ObjectKey, stats: SyncStats, distribution: Option<&str>) {
        self.registry.observe_number(ADDED, &[], stats.added as f64);
        self.registry.observe_number(REMOVED, &[], stats.removed as f64);
        let labels =
            [("topology", "Disabled"), ("traffic_distribution", distribution.unwrap_or(""))];
        self.registry.observe_number(CHANGED, &labels, stats.changed as f64);
        // Upstream distinguishes only this one by name.
        let distribution = distribution.map(|name| match name {
            "PreferClose" => "PreferClose",
            _ => "ImplementationSpecific",
        });
        self.replace(key, Some((stats, distribution)));
    }

    pub(super) fn forget(&self, key: &ObjectKey) {
        self.replace(key, None);
    }

    fn replace(&self, key: &ObjectKey, by: Option<(SyncStats, Option<&'static str>)>) {
        let mut all = self.all.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        all.replace(key, by);
        self.registry.set(ENDPOINTS, &[], all.sum.endpoints as f64);
        self.registry.set(SLICES, &[], all.sum.slices as f64);
        self.registry.set(SLICES_LEAST, &[], all.sum.slices_least as f64);
        for (name, number) in &all.distributions {
            let labels = [("traffic_distribution", *name)];
            self.registry.set(DISTRIBUTIONS, &labels, *number as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn slice(name: &str, port: i32, endpoints: std::ops::Range<usize>) -> EndpointSlice {
        let endpoints: Vec<_> = endpoints
            .map(|n| json!({ "addresses": [format!("10.0.{}.{}", n / 250, n % 250)] }))
            .collect();
        typed::from_value(json!({
            "metadata": { "name": name }, "addressType": "IPv4",
            "endpoints": endpoints, "ports": [{ "port": port }],
        }))
        .unwrap()
    }

    /// NET-88: metrics of the controller.
    #[test]
    fn net_88_numbers_are_computed_from_the_plan() {
        let existing = [
            slice("unchanged", 80, 0..60),
            slice("changed", 80, 60..100),
            slice("deleted", 81, 100..103),
        ]
        .map(Arc::new);
        let plan = Plan {
            create: vec![slice("", 80, 200..260)],
            update: vec![slice("changed", 80, 61..102)],
            delete: vec![existing[2].clone()],
        };
        let expected = SyncStats {
            added: 60, // Two endpoints of the deleted slice are in another one now.
            removed: 2,
            changed: 3,
            endpoints: 60 + 41 + 60,
            slices: 3,
            slices_least: 2,
        };
        assert_eq!(SyncStats::of(&existing, &plan, 100), expected);
        let nothing = SyncStats { slices_least: 1, ..SyncStats::default() };
        assert_eq!(SyncStats::of(&[], &Plan::default(), 100), nothing, "there is always one slice");
    }

    /// NET-88: metrics of the controller.
    #[test]
    fn net_88_metrics_have_upstreams_names() {
        let registry = Arc::new(Registry::new(CATALOGUE));
        let metrics = SliceMetrics::new(registry.clone());
        let (a, b) = (ObjectKey::new("ns", "a"), ObjectKey::new("ns", "b"));
        let stats = |added: usize, endpoints: usize| SyncStats {
            added,
            changed: 1,
            endpoints,
            slices: 2,
            slices_least: 1,
            ..SyncStats::default()
        };
        metrics.record(&a, stats(3, 3), Some("PreferClose"));
        metrics.record(&a, stats(100, 103), Some("PreferSameNode"));
        metrics.record(&b, stats(7, 7), None);
        metrics.record(&b, stats(0, 7), Some("PreferClose"));
        metrics.forget(&b);
        metrics.forget(&ObjectKey::new("ns", "never seen"));
        ["create", "create", "update", "delete"].iter().for_each(|each| metrics.changed(each));
        let ends = [SyncResult::Success, SyncResult::Success, SyncResult::Error, SyncResult::Stale];
        ends.into_iter().for_each(|how| metrics.ended(how));
        let mut page = metrics::Page::default();
        registry.write(&mut page, |_| true);
        let text = page.into_text();
        metrics::parse(&text).unwrap();
        for line in [
            "endpoints_added_per_sync_bucket{le=\"2\"} 1",
            "endpoints_added_per_sync_bucket{le=\"4\"} 2",
            "endpoints_added_per_sync_bucket{le=\"32768\"} 4",
            "endpoints_added_per_sync_count 4",
            "endpoints_removed_per_sync_bucket{le=\"32768\"} 4",
            "endpoints_desired 103",
            "num_endpoint_slices 2",
            "desired_endpoint_slices 1",
            "changes{operation=\"create\"} 2",
            "changes{operation=\"update\"} 1",
            "changes{operation=\"delete\"} 1",
            "endpointslices_changed_per_sync_count{topology=\"Disabled\",traffic_distribution=\"PreferClose\"} 2",
            "endpointslices_changed_per_sync_count{topology=\"Disabled\",traffic_distribution=\"\"} 1",
            "syncs{result=\"success\"} 2",
            "syncs{result=\"error\"} 1",
            "syncs{result=\"stale\"} 1",
            "services_count_by_traffic_distribution{traffic_distribution=\"PreferClose\"} 0",
            "services_count_by_traffic_distribution{traffic_distribution=\"ImplementationSpecific\"} 1",
        ] {
            let line = format!("endpoint_slice_controller_{line}");
            assert!(text.lines().any(|shown| shown == line), "{line} is not in\n{text}");
        }
    }
}
