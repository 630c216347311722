//! Metrics of the controllers, with upstream's names (T-CTRL-37). Controllers with many metrics have their own
//! catalogue.

use crate::services;
use metrics::{Family, Labels, Registry, counter};
use std::sync::Arc;

const DELETED: &str = "pod_gc_collector_force_delete_pods_total";
const FAILED: &str = "pod_gc_collector_force_delete_pod_errors_total";

const CATALOGUE: &[Family] = &[
    counter(
        FAILED,
        &["namespace", "reason"],
        "Failed attempts to delete pods that no node will delete, by namespace and reason.",
    ),
    counter(
        DELETED,
        &["namespace", "reason"],
        "Deleted pods that no node would have deleted, by namespace and reason.",
    ),
];

#[derive(Clone)]
pub(crate) struct ControllerMetrics(Arc<Registry>);

impl ControllerMetrics {
    pub(crate) fn new() -> ControllerMetrics {
        ControllerMetrics(Arc::new(Registry::new(&[CATALOGUE, services::CATALOGUE].concat())))
    }

    pub(crate) fn registry(&self) -> Arc<Registry> {
        self.0.clone()
    }

    /// Counts an attempt of the pod garbage collector to delete a pod.
    pub(crate) fn pod_deleted(&self, namespace: &str, reason: &str, succeeded: bool) {
        let labels: Labels<'_> = &[("namespace", namespace), ("reason", reason)];
        self.0.add(if succeeded { DELETED } else { FAILED }, labels, 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t_ctrl_37_deletions_are_counted_by_namespace_and_reason() {
        let controller_metrics = ControllerMetrics::new();
        for (namespace, reason, succeeded) in [
            ("a", "terminated", true),
            ("a", "terminated", true),
            ("b", "orphaned", true),
            ("b", "orphaned", false),
        ] {
            controller_metrics.pod_deleted(namespace, reason, succeeded);
        }
        let mut page = metrics::Page::default();
        controller_metrics.registry().write(&mut page, |_| true);
        let text = page.into_text();
        metrics::parse(&text).unwrap();
        for line in [
            "pod_gc_collector_force_delete_pods_total{namespace=\"a\",reason=\"terminated\"} 2",
            "pod_gc_collector_force_delete_pods_total{namespace=\"b\",reason=\"orphaned\"} 1",
            "pod_gc_collector_force_delete_pod_errors_total{namespace=\"b\",reason=\"orphaned\"} 1",
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line} is not in\n{text}");
        }
    }
}
