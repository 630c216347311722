//! What the agent counts about itself (N-182): the names are upstream's, and an interface.
//!
//! Whoever has something to count names it as the catalogue does. What can be seen by looking (pods,
//! containers) is not counted but looked at (`scrape`, `figures`).

use ::metrics::{Family, Registry, counter, gauge, histogram};
use http::Method;
use std::ops::Deref;
use std::time::Duration;

pub use ::metrics::Labels;

/// Bounds in seconds, as upstream has them: of one pass or request, of what the runtime does, of
/// starts and pulls, which may take an hour.
const PASS: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
const OPERATION: &[f64] = &[
    0.005,
    0.0125,
    0.03125,
    0.078125,
    0.1953125,
    0.48828125,
    1.220703125,
    3.0517578125,
    7.62939453,
    19.0734863,
    47.6837158,
    119.20929,
    298.023224,
    745.05806,
];
const START: &[f64] = &[
    0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 20.0, 30.0, 45.0, 60.0, 120.0, 180.0, 240.0,
    300.0, 360.0, 480.0, 600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0,
];
const PULL: &[f64] =
    &[1.0, 5.0, 10.0, 20.0, 30.0, 60.0, 180.0, 300.0, 600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0];
const STATUS: &[f64] = &[0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0];

/// N-182, and the catalogue of section 2.10 of the rules of termination.
const CATALOGUE: &[Family] = &[
    gauge("kubelet_active_pods", &["static"], "Pods that have not ended."),
    counter(
        "kubelet_admission_rejections_total",
        &["reason"],
        "Pods that this node did not take, by reason.",
    ),
    gauge("kubelet_desired_pods", &["static"], "Pods that this node was told to run."),
    histogram(
        "kubelet_eviction_stats_age_seconds",
        START,
        &["eviction_signal"],
        "Age of the figures that an eviction was decided by.",
    ),
    counter(
        "kubelet_evictions",
        &["eviction_signal"],
        "Pods evicted, by what the node was short of.",
    ),
    gauge(
        "kubelet_graceful_shutdown_end_time_seconds",
        &[],
        "When the last shutdown of the node ended, since 1970.",
    ),
    gauge(
        "kubelet_graceful_shutdown_start_time_seconds",
        &[],
        "When the last shutdown of the node began, since 1970.",
    ),
    counter(
        "kubelet_http_requests_total",
        &["long_running", "method", "path", "server_type"],
        "Requests to the node's endpoint.",
    ),
    histogram(
        "kubelet_http_requests_duration_seconds",
        PASS,
        &["long_running", "method", "path", "server_type"],
        "Time to answer requests to the node's endpoint.",
    ),
    counter(
        "kubelet_image_garbage_collected_total",
        &["reason"],
        "Images removed because nobody used them.",
    ),
    histogram(
        "kubelet_image_pull_duration_seconds",
        PULL,
        &["image_size_in_bytes"],
        "Time to pull an image, by its size.",
    ),
    counter(
        "kubelet_lifecycle_handler_http_fallbacks_total",
        &[],
        "Hooks over HTTPS that were answered in plain HTTP and tried again so.",
    ),
    gauge("kubelet_mirror_pods", &[], "Copies of static pods that the API has."),
    gauge("kubelet_node_name", &["node"], "The node's name; always 1."),
    counter(
        "kubelet_orphaned_runtime_pods_total",
        &[],
        "Pods found running that nobody knew, and ended.",
    ),
    histogram(
        "kubelet_pod_start_duration_seconds",
        START,
        &[],
        "From when the node first saw a pod until it ran.",
    ),
    histogram(
        "kubelet_pod_start_total_duration_seconds",
        START,
        &[],
        "From when a pod was created until it ran.",
    ),
    histogram(
        "kubelet_pod_status_sync_duration_seconds",
        STATUS,
        &[],
        "From a change of a pod's status until the API has it.",
    ),
    histogram(
        "kubelet_pod_worker_duration_seconds",
        PASS,
        &["operation_type"],
        "Time of one pass over a pod.",
    ),
    histogram(
        "kubelet_pod_worker_start_duration_seconds",
        PASS,
        &[],
        "From when the node first saw a pod until the first pass over it.",
    ),
    counter(
        "kubelet_preemptions",
        &["preemption_signal"],
        "Pods ended to make room for a critical one, by what was short.",
    ),
    counter(
        "kubelet_restarted_pods_total",
        &["static"],
        "Pods of which another with the same uid came.",
    ),
    gauge("kubelet_running_containers", &["container_state"], "Containers, by their state."),
    gauge("kubelet_running_pods", &[], "Pods with a sandbox that is ready."),
    histogram(
        "kubelet_run_podsandbox_duration_seconds",
        PASS,
        &["runtime_handler"],
        "Time to make the sandbox of a pod.",
    ),
    counter(
        "kubelet_run_podsandbox_errors_total",
        &["runtime_handler"],
        "Sandboxes that could not be made.",
    ),
    histogram(
        "kubelet_runtime_operations_duration_seconds",
        OPERATION,
        &["operation_type"],
        "Time of what the runtime was asked to do.",
    ),
    counter(
        "kubelet_runtime_operations_errors_total",
        &["operation_type"],
        "What the runtime was asked to do and could not.",
    ),
    counter(
        "kubelet_runtime_operations_total",
        &["operation_type"],
        "What the runtime was asked to do.",
    ),
    counter(
        "kubelet_sleep_action_terminated_early_total",
        &[],
        "Sleeping hooks that were cut short by the end of the grace period.",
    ),
    counter(
        "kubelet_started_containers_errors_total",
        &["code", "container_type"],
        "Containers that could not be started, by reason.",
    ),
    counter("kubelet_started_containers_total", &["container_type"], "Containers started."),
    counter("kubelet_started_pods_errors_total", &[], "Pods whose sandbox could not be made."),
    counter("kubelet_started_pods_total", &[], "Pods whose sandbox was made."),
    counter(
        "kubelet_terminated_containers_total",
        &["container_type", "exit_code", "reason"],
        "Containers that ended, each once.",
    ),
    gauge(
        "kubelet_working_pods",
        &["config", "lifecycle", "static"],
        "Pods that somebody works on, by what is done with them.",
    ),
    counter(
        "prober_probe_total",
        &["container", "namespace", "pod", "pod_uid", "probe_type", "result"],
        "Probes, by their result.",
    ),
];

/// Numbers of one agent.
pub struct Metrics(Registry);

impl Default for Metrics {
    fn default() -> Metrics {
        Metrics(Registry::new(CATALOGUE))
    }
}

impl Deref for Metrics {
    type Target = Registry;

    fn deref(&self) -> &Registry {
        &self.0
    }
}

impl Metrics {
    pub(super) fn request(&self, method: &Method, path: &str, took: Duration) {
        let path = match path.split('/').find(|segment| !segment.is_empty()).unwrap_or_default() {
            // Known paths only: callers could think of any number of others.
            known @ ("pods" | "runningpods" | "healthz" | "configz" | "metrics" | "stats"
            | "containerLogs" | "exec" | "attach" | "run" | "portForward" | "logs"
            | "checkpoint") => known,
            _ => "other",
        };
        let long = matches!(path, "containerLogs" | "exec" | "attach" | "portForward");
        let labels: Labels<'_> = &[
            ("long_running", if long { "true" } else { "false" }),
            ("method", if method == Method::GET { "GET" } else { "other" }),
            ("path", path),
            ("server_type", "readwrite"),
        ];
        self.add("kubelet_http_requests_total", labels, 1);
        self.observe("kubelet_http_requests_duration_seconds", labels, took);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::metrics::Kind;
    use std::collections::BTreeSet;

    /// N-182: no name is there twice, and each says what it is.
    #[test]
    fn n_182_the_catalogue_is_sound() {
        let names: BTreeSet<&str> = CATALOGUE.iter().map(|family| family.name).collect();
        assert_eq!(names.len(), CATALOGUE.len());
        for Family { name, kind, help, .. } in CATALOGUE {
            assert!(help.ends_with('.'), "{name} does not say what it is");
            if let Kind::Histogram(bounds) = kind {
                assert!(bounds.windows(2).all(|pair| pair[0] < pair[1]), "{name}");
                assert!(name.ends_with("_seconds"), "{name}");
            }
        }
    }
}
