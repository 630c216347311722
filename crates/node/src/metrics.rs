//! Metrics of the agent for `/metrics` and `/metrics/probes` (N-182): numbers of pods and probes,
//! and events that are derived from changes of a pod's status. `endpoint` has the catalogue and
//! serves them.

use crate::dependencies::Dependencies;
use crate::static_pods::is_static;
use endpoint::Metrics;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod, PodStatus};
use lifecycle::probe::ProbeKind;
use lifecycle::status::is_terminal_pod;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// More often than scrapers ask.
const EVERY: Duration = Duration::from_secs(5);

/// Updates the gauges until it is dropped.
pub(crate) async fn run(deps: Arc<Dependencies>) {
    let metrics = &deps.metrics;
    loop {
        set_pod_gauges(metrics, &deps.pods.list(), &deps.active.borrow());
        for count in deps.prober.counts() {
            let labels = [
                ("probe_type", probe_type(count.kind)),
                ("result", count.result),
                ("container", &count.container),
                ("pod", &count.pod),
                ("namespace", &count.namespace),
                ("pod_uid", &count.uid),
            ];
            metrics.set("prober_probe_total", &labels, count.count as f64);
        }
        tokio::time::sleep(EVERY).await;
    }
}

/// Sets the numbers of pods, by static or not and by what their workers do. `active` are those with
/// a worker, by uid.
fn set_pod_gauges(metrics: &Metrics, pods: &[Arc<Pod>], active: &BTreeMap<String, String>) {
    let mut counts: BTreeMap<(&'static str, &str, &str), u32> = BTreeMap::new();
    for label in ["false", "true"] {
        counts.insert(("kubelet_desired_pods", "", label), 0);
        counts.insert(("kubelet_active_pods", "", label), 0);
    }
    for pod in pods {
        let label = if is_static(pod) { "true" } else { "false" };
        let has_worker = active.contains_key(pod.metadata.uid.as_deref().unwrap_or_default());
        let finished = is_terminal_pod(pod);
        let stage = match (has_worker, pod.metadata.deletion_timestamp.is_some() || finished) {
            (true, false) => "sync",
            (true, true) => "terminating",
            (false, _) => "terminated",
        };
        *counts.entry(("kubelet_desired_pods", "", label)).or_default() += 1;
        *counts.entry(("kubelet_active_pods", "", label)).or_default() += u32::from(!finished);
        *counts.entry(("kubelet_working_pods", stage, label)).or_default() += 1;
    }
    metrics.clear("kubelet_working_pods");
    for ((name, stage, label), count) in counts {
        let labels = [("config", "desired"), ("lifecycle", stage), ("static", label)];
        let labels = if stage.is_empty() { &labels[2..] } else { &labels };
        metrics.set(name, labels, count.into());
    }
}

/// Records what a new status adds to the one before: exits of containers, and that the pod is
/// running. `known` is the time since the node first saw the pod.
pub(crate) fn record_status_change(
    metrics: &Metrics,
    before: Option<&Pod>,
    pod: &Pod,
    now: Timestamp,
    known: Duration,
) {
    let empty = PodStatus::default();
    let before = before.and_then(|before| before.status.as_ref()).unwrap_or(&empty);
    let Some(status) = &pod.status else { return };
    for (container_type, exit) in new_exits(before, status) {
        let code = exit.exit_code.to_string();
        let labels = [
            ("container_type", container_type),
            ("exit_code", code.as_str()),
            ("reason", exit.reason.as_deref().unwrap_or_default()),
        ];
        metrics.add("kubelet_terminated_containers_total", &labels, 1);
    }
    let runs = |status: &PodStatus| status.phase.as_deref() == Some("Running");
    if runs(status) && !runs(before) {
        metrics.observe("kubelet_pod_start_duration_seconds", &[], known);
        let created = pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
        let took = created.and_then(|at| Duration::try_from(now.duration_since(at)).ok());
        if let Some(took) = took {
            metrics.observe("kubelet_pod_start_total_duration_seconds", &[], took);
        }
    }
}

/// Exits that only the later status has, with the type of container.
fn new_exits<'a>(
    before: &'a PodStatus,
    after: &'a PodStatus,
) -> impl Iterator<Item = (&'static str, &'a ContainerStateTerminated)> {
    let known: Vec<&str> =
        exits(before).filter_map(|(_, exit)| exit.container_id.as_deref()).collect();
    exits(after).filter(move |(_, exit)| {
        exit.container_id.as_deref().is_some_and(|id| !known.contains(&id))
    })
}

fn exits(status: &PodStatus) -> impl Iterator<Item = (&'static str, &ContainerStateTerminated)> {
    let types = [
        ("container", &status.container_statuses),
        ("init_container", &status.init_container_statuses),
        ("ephemeral_container", &status.ephemeral_container_statuses),
    ];
    let all = types.into_iter().flat_map(|(container_type, statuses)| {
        statuses.iter().flatten().map(move |status: &ContainerStatus| (container_type, status))
    });
    all.flat_map(|(container_type, status)| {
        let states = [&status.last_state, &status.state];
        states
            .into_iter()
            .filter_map(move |state| Some((container_type, state.as_ref()?.terminated.as_ref()?)))
    })
}

fn probe_type(kind: ProbeKind) -> &'static str {
    match kind {
        ProbeKind::Startup => "Startup",
        ProbeKind::Readiness => "Readiness",
        ProbeKind::Liveness => "Liveness",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(status: Value) -> Pod {
        typed::from_value(json!({
            "metadata": {"name": "p", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "status": status,
        }))
        .unwrap()
    }

    fn terminated(id: &str, code: i32) -> Value {
        json!({"terminated": {"containerID": id, "exitCode": code, "reason": "Error"}})
    }

    fn container(state: Value, last: Value) -> Value {
        json!({"name": "c", "image": "i", "imageID": "i", "ready": false, "restartCount": 0,
               "state": state, "lastState": last})
    }

    fn text(metrics: &Metrics) -> String {
        let mut page = ::metrics::Page::default();
        metrics.write(&mut page, |_| true);
        let text = page.into_text();
        ::metrics::parse(&text).unwrap();
        text
    }

    /// Also section 2.10 of the rules of termination.
    #[test]
    fn t_node_47_t_node_48_every_exit_of_a_container_is_counted_once() {
        let metrics = Metrics::default();
        let now = "2026-01-01T00:00:03Z".parse().unwrap();
        let running = json!({"running": {}});
        let statuses = [
            pod(json!({"phase": "Pending"})),
            pod(
                json!({"phase": "Running", "containerStatuses": [container(running.clone(), Value::Null)]}),
            ),
            pod(
                json!({"phase": "Running", "containerStatuses": [container(terminated("a", 3), Value::Null)]}),
            ),
            // Reported again, as last state of the next instance.
            pod(
                json!({"phase": "Running", "containerStatuses": [container(running.clone(), terminated("a", 3))]}),
            ),
            // Two exits at once: the agent missed a restart.
            pod(
                json!({"phase": "Running", "containerStatuses": [container(terminated("c", 137), terminated("b", 3))]}),
            ),
        ];
        let mut before = None;
        for pod in &statuses {
            record_status_change(&metrics, before, pod, now, Duration::from_secs(2));
            before = Some(pod);
        }
        let text = text(&metrics);
        for line in [
            "kubelet_terminated_containers_total{container_type=\"container\",exit_code=\"3\",reason=\"Error\"} 2",
            "kubelet_terminated_containers_total{container_type=\"container\",exit_code=\"137\",reason=\"Error\"} 1",
            "kubelet_pod_start_total_duration_seconds_sum 3",
            "kubelet_pod_start_total_duration_seconds_count 1",
            "kubelet_pod_start_duration_seconds_sum 2",
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn n_182_t_node_1_pods_are_counted_by_the_state_of_their_workers() {
        let metrics = Metrics::default();
        let named = |uid: &str, status: Value| {
            let mut pod = pod(status);
            pod.metadata.uid = Some(uid.into());
            pod
        };
        let mut terminating = named("b", json!({"phase": "Running"}));
        terminating.metadata.deletion_timestamp = terminating.metadata.creation_timestamp.clone();
        let pods = [
            named("a", json!({"phase": "Running"})),
            terminating,
            named("c", json!({"phase": "Succeeded"})),
        ];
        let pods = pods.map(Arc::new);
        let active = ["a", "b"].map(|uid| (uid.to_owned(), String::new()));
        set_pod_gauges(&metrics, &pods, &active.into());
        let text = text(&metrics);
        for line in [
            "kubelet_desired_pods{static=\"false\"} 3",
            "kubelet_desired_pods{static=\"true\"} 0",
            "kubelet_active_pods{static=\"false\"} 2",
            "kubelet_working_pods{config=\"desired\",lifecycle=\"sync\",static=\"false\"} 1",
            "kubelet_working_pods{config=\"desired\",lifecycle=\"terminating\",static=\"false\"} 1",
            "kubelet_working_pods{config=\"desired\",lifecycle=\"terminated\",static=\"false\"} 1",
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line} is not in\n{text}");
        }
        set_pod_gauges(&metrics, &[], &BTreeMap::new());
        assert!(!self::text(&metrics).contains("kubelet_working_pods{"), "no pod is left");
    }
}
