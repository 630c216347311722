//! The agent's own figures for `/metrics` and `/metrics/probes` (N-182): how many of what there is.

use crate::parts::Parts;
use k8s_openapi::api::core::v1::ContainerStatus;
use lifecycle::probe::ProbeKind;
use lifecycle::status::is_terminal;
use std::sync::Arc;
use std::time::Duration;

/// Scrapers come every half a minute or so.
const EVERY: Duration = Duration::from_secs(5);

/// Keeps the gauges true, for ever.
pub(crate) async fn keep(parts: Arc<Parts>) {
    let metrics = &parts.metrics;
    metrics.set("kubelet_node_name", &[("node", &parts.facts.name)], 1.0);
    loop {
        let pods = parts.pods.list();
        let statuses = pods.iter().filter_map(|pod| pod.status.as_ref());
        let active = statuses.clone().filter(|status| !is_terminal(status)).count();
        let containers = statuses.flat_map(|status| status.container_statuses.iter().flatten());
        let running = |status: &&ContainerStatus| {
            status.state.as_ref().is_some_and(|state| state.running.is_some())
        };
        let running = containers.filter(running).count();
        metrics.set("kubelet_desired_pods", &[("static", "")], pods.len() as f64);
        metrics.set("kubelet_active_pods", &[("static", "")], active as f64);
        metrics.set("kubelet_running_pods", &[], parts.active.borrow().len() as f64);
        metrics.set(
            "kubelet_running_containers",
            &[("container_state", "running")],
            running as f64,
        );
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

fn probe_type(kind: ProbeKind) -> &'static str {
    match kind {
        ProbeKind::Startup => "Startup",
        ProbeKind::Readiness => "Readiness",
        ProbeKind::Liveness => "Liveness",
    }
}
