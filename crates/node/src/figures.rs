//! The agent's own figures for `/metrics` and `/metrics/probes` (N-182): how many of what there is, and
//! what a pod's statuses say has happened to it.

use crate::endpoint::Metrics;
use crate::parts::Parts;
use crate::static_pods::is_static;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod, PodStatus};
use lifecycle::probe::ProbeKind;
use lifecycle::status::is_terminal;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Scrapers come every half a minute or so.
const EVERY: Duration = Duration::from_secs(5);

/// Keeps the gauges true, for ever.
pub(crate) async fn keep(parts: Arc<Parts>) {
    let metrics = &parts.metrics;
    loop {
        population(metrics, &parts.pods.list(), &parts.active.borrow());
        for count in parts.prober.counts() {
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

/// How many pods there are, of which sort, and what is done with them. `active` are those that have
/// not ended, by uid.
fn population(metrics: &Metrics, pods: &[Arc<Pod>], active: &BTreeMap<String, String>) {
    let mut counts: BTreeMap<(&'static str, &str, &str), u32> = BTreeMap::new();
    for sort in ["false", "true"] {
        counts.insert(("kubelet_desired_pods", "", sort), 0);
        counts.insert(("kubelet_active_pods", "", sort), 0);
    }
    for pod in pods {
        let sort = if is_static(pod) { "true" } else { "false" };
        let works = active.contains_key(pod.metadata.uid.as_deref().unwrap_or_default());
        let over = pod.status.as_ref().is_some_and(is_terminal);
        let stage = match (works, pod.metadata.deletion_timestamp.is_some() || over) {
            (true, false) => "sync",
            (true, true) => "terminating",
            (false, _) => "terminated",
        };
        *counts.entry(("kubelet_desired_pods", "", sort)).or_default() += 1;
        *counts.entry(("kubelet_active_pods", "", sort)).or_default() += u32::from(!over);
        *counts.entry(("kubelet_working_pods", stage, sort)).or_default() += 1;
    }
    metrics.clear("kubelet_working_pods");
    for ((name, stage, sort), count) in counts {
        let labels = [("config", "desired"), ("lifecycle", stage), ("static", sort)];
        let labels = if stage.is_empty() { &labels[2..] } else { &labels };
        metrics.set(name, labels, count.into());
    }
}

/// What a new status says that the one before did not: ends of containers, and that the pod runs.
/// The node has known of the pod for `known`.
pub(crate) fn told(
    metrics: &Metrics,
    before: Option<&Pod>,
    pod: &Pod,
    now: Timestamp,
    known: Duration,
) {
    let empty = PodStatus::default();
    let before = before.and_then(|before| before.status.as_ref()).unwrap_or(&empty);
    let Some(status) = &pod.status else { return };
    for (sort, end) in new_ends(before, status) {
        let code = end.exit_code.to_string();
        let labels = [
            ("container_type", sort),
            ("exit_code", code.as_str()),
            ("reason", end.reason.as_deref().unwrap_or_default()),
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

/// Ends that the later status has and the earlier has not, each with the sort of container.
fn new_ends<'a>(
    before: &'a PodStatus,
    after: &'a PodStatus,
) -> impl Iterator<Item = (&'static str, &'a ContainerStateTerminated)> {
    let known: Vec<&str> =
        ends(before).filter_map(|(_, end)| end.container_id.as_deref()).collect();
    ends(after)
        .filter(move |(_, end)| end.container_id.as_deref().is_some_and(|id| !known.contains(&id)))
}

fn ends(status: &PodStatus) -> impl Iterator<Item = (&'static str, &ContainerStateTerminated)> {
    let sorts = [
        ("container", &status.container_statuses),
        ("init_container", &status.init_container_statuses),
        ("ephemeral_container", &status.ephemeral_container_statuses),
    ];
    let all = sorts.into_iter().flat_map(|(sort, statuses)| {
        statuses.iter().flatten().map(move |status: &ContainerStatus| (sort, status))
    });
    all.flat_map(|(sort, status)| {
        let states = [&status.last_state, &status.state];
        states
            .into_iter()
            .filter_map(move |state| Some((sort, state.as_ref()?.terminated.as_ref()?)))
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

    fn ended(id: &str, code: i32) -> Value {
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
        ::metrics::check(&text).unwrap();
        text
    }

    /// T-NODE-47, T-NODE-48 and section 2.10 of the rules of termination.
    #[test]
    fn every_end_of_a_container_is_counted_once() {
        let metrics = Metrics::default();
        let now = "2026-01-01T00:00:03Z".parse().unwrap();
        let running = json!({"running": {}});
        let story = [
            pod(json!({"phase": "Pending"})),
            pod(
                json!({"phase": "Running", "containerStatuses": [container(running.clone(), Value::Null)]}),
            ),
            pod(
                json!({"phase": "Running", "containerStatuses": [container(ended("a", 3), Value::Null)]}),
            ),
            // Told again, as another's last state.
            pod(
                json!({"phase": "Running", "containerStatuses": [container(running.clone(), ended("a", 3))]}),
            ),
            // Two ends at once: one restart was not seen.
            pod(
                json!({"phase": "Running", "containerStatuses": [container(ended("c", 137), ended("b", 3))]}),
            ),
        ];
        let mut before = None;
        for pod in &story {
            told(&metrics, before, pod, now, Duration::from_secs(2));
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

    /// N-182, T-NODE-1
    #[test]
    fn pods_are_counted_by_what_is_done_with_them() {
        let metrics = Metrics::default();
        let named = |uid: &str, status: Value| {
            let mut pod = pod(status);
            pod.metadata.uid = Some(uid.into());
            pod
        };
        let mut going = named("b", json!({"phase": "Running"}));
        going.metadata.deletion_timestamp = going.metadata.creation_timestamp.clone();
        let pods = [
            named("a", json!({"phase": "Running"})),
            going,
            named("c", json!({"phase": "Succeeded"})),
        ];
        let pods = pods.map(Arc::new);
        let active = ["a", "b"].map(|uid| (uid.to_owned(), String::new()));
        population(&metrics, &pods, &active.into());
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
        population(&metrics, &[], &BTreeMap::new());
        assert!(!self::text(&metrics).contains("kubelet_working_pods{"), "nobody is left");
    }
}
