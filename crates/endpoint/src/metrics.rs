//! The metrics of the agent (N-182). Their names are upstream's, and dashboards depend on them.
//!
//! Code that counts something uses a name of the catalogue. Gauges of what exists now (pods,
//! containers) are computed when the metrics are read (`metrics_pages`, and `metrics` of the
//! agent).

use ::metrics::{Family, Registry, counter, gauge, histogram};
use http::Method;
use std::ops::Deref;
use std::time::Duration;

pub use ::metrics::Labels;

/// Upstream's histogram buckets in seconds: of one pass or request, of runtime operations, of
/// starts and pulls, which may take an hour, and of status updates.
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

/// All metrics of the agent (N-182, and section 2.10 of the rules of termination).
const CATALOGUE: &[Family] = &[
    gauge("kubelet_active_pods", &["static"], "Pods that have not terminated."),
    counter(
        "kubelet_admission_rejections_total",
        &["reason"],
        "Pods that this node rejected, by reason.",
    ),
    gauge("kubelet_desired_pods", &["static"], "Pods that this node should run."),
    histogram(
        "kubelet_eviction_stats_age_seconds",
        START,
        &["eviction_signal"],
        "Age of the statistics that an eviction was based on.",
    ),
    counter(
        "kubelet_evictions",
        &["eviction_signal"],
        "Evicted pods, by the resource that the node was short of.",
    ),
    gauge(
        "kubelet_graceful_shutdown_end_time_seconds",
        &[],
        "Unix time at which the last node shutdown ended.",
    ),
    gauge(
        "kubelet_graceful_shutdown_start_time_seconds",
        &[],
        "Unix time at which the last node shutdown started.",
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
        "Unused images that were removed.",
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
        "HTTPS lifecycle hooks that were retried over HTTP because the server answered in plain HTTP.",
    ),
    gauge("kubelet_mirror_pods", &[], "Mirror pods of static pods in the API."),
    gauge("kubelet_node_name", &["node"], "The node's name; always 1."),
    counter(
        "kubelet_orphaned_runtime_pods_total",
        &[],
        "Running pods unknown to the agent that it terminated.",
    ),
    histogram(
        "kubelet_pod_start_duration_seconds",
        START,
        &[],
        "Time from when the node first saw a pod until it was running.",
    ),
    histogram(
        "kubelet_pod_start_total_duration_seconds",
        START,
        &[],
        "Time from the creation of a pod until it was running.",
    ),
    histogram(
        "kubelet_pod_status_sync_duration_seconds",
        STATUS,
        &[],
        "Time from a change of a pod's status until the API server has it.",
    ),
    histogram(
        "kubelet_pod_worker_duration_seconds",
        PASS,
        &["operation_type"],
        "Duration of one pass of a pod worker.",
    ),
    histogram(
        "kubelet_pod_worker_start_duration_seconds",
        PASS,
        &[],
        "Time from when the node first saw a pod until the first pass of its worker.",
    ),
    counter(
        "kubelet_preemptions",
        &["preemption_signal"],
        "Pods preempted for a critical pod, by the resource that was short.",
    ),
    counter(
        "kubelet_restarted_pods_total",
        &["static"],
        "Pods that were restarted with the same uid.",
    ),
    gauge("kubelet_running_containers", &["container_state"], "Containers by state."),
    gauge("kubelet_running_pods", &[], "Pods with a ready sandbox."),
    histogram(
        "kubelet_run_podsandbox_duration_seconds",
        PASS,
        &["runtime_handler"],
        "Time to create the sandbox of a pod.",
    ),
    counter(
        "kubelet_run_podsandbox_errors_total",
        &["runtime_handler"],
        "Sandboxes that could not be created.",
    ),
    histogram(
        "kubelet_runtime_operations_duration_seconds",
        OPERATION,
        &["operation_type"],
        "Duration of runtime operations.",
    ),
    counter(
        "kubelet_runtime_operations_errors_total",
        &["operation_type"],
        "Runtime operations that failed.",
    ),
    counter("kubelet_runtime_operations_total", &["operation_type"], "Runtime operations."),
    counter(
        "kubelet_sleep_action_terminated_early_total",
        &[],
        "Sleep hooks that were cut short by the end of the grace period.",
    ),
    counter(
        "kubelet_started_containers_errors_total",
        &["code", "container_type"],
        "Containers that could not be started, by reason.",
    ),
    counter("kubelet_started_containers_total", &["container_type"], "Containers started."),
    counter("kubelet_started_pods_errors_total", &[], "Pods whose sandbox could not be created."),
    counter("kubelet_started_pods_total", &[], "Pods whose sandbox was created."),
    counter(
        "kubelet_terminated_containers_total",
        &["container_type", "exit_code", "reason"],
        "Containers that terminated.",
    ),
    gauge(
        "kubelet_working_pods",
        &["config", "lifecycle", "static"],
        "Pods with a worker, by what the worker does.",
    ),
    counter(
        "prober_probe_total",
        &["container", "namespace", "pod", "pod_uid", "probe_type", "result"],
        "Probes by result.",
    ),
];

/// The metrics of one agent.
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
    pub(crate) fn request(&self, method: &Method, path: &str, took: Duration) {
        let path = match path.split('/').find(|segment| !segment.is_empty()).unwrap_or_default() {
            // Only known paths become labels: callers could invent any number of others.
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

    #[test]
    fn n_182_metric_names_are_unique_and_have_help_texts() {
        let names: BTreeSet<&str> = CATALOGUE.iter().map(|family| family.name).collect();
        assert_eq!(names.len(), CATALOGUE.len());
        for Family { name, kind, help, .. } in CATALOGUE {
            assert!(help.ends_with('.'), "{name} has no help text");
            if let Kind::Histogram(bounds) = kind {
                assert!(bounds.windows(2).all(|pair| pair[0] < pair[1]), "{name}");
                assert!(name.ends_with("_seconds"), "{name}");
            }
        }
    }
}
