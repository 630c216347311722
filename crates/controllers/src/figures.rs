//! What controllers count about themselves, under upstream's names (T-CTRL-37). Who counts
//! much has a catalogue of its own.

use crate::services;
use metrics::{Family, Labels, Registry, counter};
use std::sync::Arc;

const REMOVED: &str = "pod_gc_collector_force_delete_pods_total";
const NOT_REMOVED: &str = "pod_gc_collector_force_delete_pod_errors_total";

const CATALOGUE: &[Family] = &[
    counter(
        NOT_REMOVED,
        &["namespace", "reason"],
        "Pods that nobody ends and that could not be removed, by why they should be.",
    ),
    counter(
        REMOVED,
        &["namespace", "reason"],
        "Pods that nobody ends and that were removed, by why.",
    ),
];

#[derive(Clone)]
pub(crate) struct Figures(Arc<Registry>);

impl Figures {
    pub(crate) fn new() -> Figures {
        Figures(Arc::new(Registry::new(&[CATALOGUE, services::CATALOGUE].concat())))
    }

    pub(crate) fn registry(&self) -> Arc<Registry> {
        self.0.clone()
    }

    /// A pod that nobody ends was removed, or was not.
    pub(crate) fn removed(&self, namespace: &str, reason: &str, well: bool) {
        let labels: Labels<'_> = &[("namespace", namespace), ("reason", reason)];
        self.0.add(if well { REMOVED } else { NOT_REMOVED }, labels, 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t_ctrl_37_removals_are_counted_by_namespace_and_reason() {
        let figures = Figures::new();
        for (namespace, reason, well) in [
            ("a", "terminated", true),
            ("a", "terminated", true),
            ("b", "orphaned", true),
            ("b", "orphaned", false),
        ] {
            figures.removed(namespace, reason, well);
        }
        let mut page = metrics::Page::default();
        figures.registry().write(&mut page, |_| true);
        let text = page.into_text();
        metrics::check(&text).unwrap();
        for line in [
            "pod_gc_collector_force_delete_pods_total{namespace=\"a\",reason=\"terminated\"} 2",
            "pod_gc_collector_force_delete_pods_total{namespace=\"b\",reason=\"orphaned\"} 1",
            "pod_gc_collector_force_delete_pod_errors_total{namespace=\"b\",reason=\"orphaned\"} 1",
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line} is not in\n{text}");
        }
    }
}
