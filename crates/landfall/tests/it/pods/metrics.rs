//! The metrics of a node, the API server and the scheduler (N-171, N-182, A-57).

use super::on_a_node;
use crate::harness::{Kubectl, tool};
use metrics::ParsedSample;
use std::io::Write as _;
use std::process::{Command, Stdio};

/// Upstream names that do not follow the naming rules of Prometheus.
const AS_UPSTREAM: &[&str] = &[
    "endpoint_slice_controller_changes",
    "endpoint_slice_controller_syncs",
    "kubelet_evictions",
    "kubelet_preemptions",
];

/// N-171, N-182, A-57, T-NODE-47: the metrics show running and terminated pods, and Prometheus can parse all of them.
#[test]
fn prometheus_parses_all_metrics_pages() {
    on_a_node(&["busybox"], |_, kubectl| {
        kubectl.ok("kubectl run stays --image=busybox:1 -- sleep 1000
kubectl run ends --image=busybox:1 --restart=Never -- sh -c 'exit 3'
kubectl run never --image=busybox:1 --restart=Never --overrides='{\"spec\": {\"nodeSelector\": {\"no\": \"where\"}}}'
kubectl wait --for=condition=Ready pod/stays --timeout=60s
kubectl wait --for=jsonpath='{.status.phase}'=Failed pod/ends --timeout=60s
kubectl wait --for=condition=PodScheduled=false pod/never --timeout=60s");
        let node = page(kubectl, "/api/v1/nodes/n1/proxy/metrics");
        let ends = &[("container_type", "container"), ("exit_code", "3"), ("reason", "Error")];
        assert_eq!(value(&node, "kubelet_terminated_containers_total", ends), 1.0);
        assert_eq!(
            value(&node, "kubelet_running_containers", &[("container_state", "running")]),
            1.0
        );
        assert!(value(&node, "kubelet_running_pods", &[]) >= 1.0);
        assert_eq!(value(&node, "kubelet_started_pods_total", &[]), 2.0);
        assert_eq!(value(&node, "kubelet_started_pods_errors_total", &[]), 0.0);
        let started = &[("container_type", "container")];
        assert_eq!(value(&node, "kubelet_started_containers_total", started), 2.0);
        assert!(value(&node, "kubelet_pod_start_duration_seconds_count", &[]) >= 1.0);
        let create = &[("operation_type", "create")];
        assert_eq!(value(&node, "kubelet_pod_worker_duration_seconds_count", create), 2.0);
        let made = &[("operation_type", "create_container")];
        assert_eq!(value(&node, "kubelet_runtime_operations_total", made), 2.0);
        assert_eq!(value(&node, "kubelet_node_name", &[("node", "n1")]), 1.0);

        let resource = page(kubectl, "/api/v1/nodes/n1/proxy/metrics/resource");
        let own = &[("container", "stays"), ("namespace", "default"), ("pod", "stays")];
        assert!(value(&resource, "container_memory_working_set_bytes", own) > 0.0);
        assert!(value(&resource, "container_start_time_seconds", own) > 1e9);
        assert!(value(&resource, "pod_cpu_usage_seconds_total", &own[1..]) >= 0.0);
        assert!(value(&resource, "node_cpu_usage_seconds_total", &[]) > 0.0);
        assert_eq!(value(&resource, "scrape_error", &[]), 0.0);
        for rest in ["cadvisor", "probes", "slis"] {
            page(kubectl, &format!("/api/v1/nodes/n1/proxy/metrics/{rest}"));
        }

        let server = page(kubectl, "/metrics");
        let result = |result| [("profile", "default-scheduler"), ("result", result)];
        let attempts = "scheduler_schedule_attempts_total";
        assert_eq!(value(&server, attempts, &result("scheduled")), 2.0);
        assert!(value(&server, attempts, &result("unschedulable")) >= 1.0);
        assert_eq!(value(&server, "scheduler_pending_pods", &[("queue", "unschedulable")]), 1.0);
        assert!(
            value(&server, "scheduler_scheduling_algorithm_duration_seconds_count", &[]) >= 3.0
        );
    });
}

/// Parses a page strictly, and with the tool of Prometheus.
fn page(kubectl: &Kubectl, path: &str) -> Vec<ParsedSample> {
    let text = kubectl.ok(&format!("kubectl get --raw {path}"));
    let text = format!("{}\n", text.trim_end());
    if text.trim().is_empty() {
        return Vec::new();
    }
    let mut child = Command::new(tool("prometheus/usr/bin/promtool"))
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool can be run");
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let output = String::from_utf8_lossy(&output.stderr).into_owned();
    let wrong = |line: &&str| !AS_UPSTREAM.iter().any(|name| line.starts_with(name));
    let wrong: Vec<&str> = output.lines().filter(wrong).collect();
    assert!(wrong.is_empty(), "{path}: {wrong:#?}");
    metrics::parse(&text).unwrap_or_else(|why| panic!("{path}: {why}\n{text}"))
}

#[track_caller]
fn value(page: &[ParsedSample], name: &str, labels: &[(&str, &str)]) -> f64 {
    let has = |one: &&ParsedSample| {
        one.name == name
            && one.labels.len() == labels.len()
            && labels
                .iter()
                .all(|(label, value)| one.labels.get(*label).is_some_and(|v| v == value))
    };
    let Some(found) = page.iter().find(has) else {
        let named: Vec<&ParsedSample> = page.iter().filter(|one| one.name == name).collect();
        panic!("{name}{labels:?} is not there, only {named:#?}");
    };
    found.value
}
