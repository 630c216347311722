//! `/metrics` and the pages below it, for those who scrape (N-171, N-182).

use super::answer::{self, Answer};
use super::machine::Machine;
use super::metrics::{Labels, text_of};
use super::routes::Call;
use http::StatusCode;
use jiff::Timestamp;
use runtime::{ContainerState, ContainerUsage};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Text that is Prometheus'.
#[derive(Default)]
struct Page(String);

impl Page {
    fn family(&mut self, name: &str, kind: &str) {
        let _ = writeln!(self.0, "# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: Labels<'_>, value: f64, at: Option<Timestamp>) {
        let labels = match labels {
            [] => String::new(),
            labels => format!("{{{}}}", text_of(labels)),
        };
        let at = at.map_or(String::new(), |at| format!(" {}", at.as_millisecond()));
        let _ = writeln!(self.0, "{name}{labels} {value}{at}");
    }

    fn answer(self) -> Answer {
        answer::of(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", self.0)
    }
}

pub(super) async fn main(call: &Call) -> Answer {
    let endpoint = &call.state.endpoint;
    let mut page = Page::default();
    endpoint.metrics.write(&mut page.0, |name| !name.starts_with("prober_"));
    page.family("kubelet_node_name", "gauge");
    page.sample("kubelet_node_name", &[("node", &endpoint.node)], 1.0, None);
    let sandboxes = endpoint.runtime.sandboxes().await.unwrap_or_default();
    let mut states: BTreeMap<&str, u32> = BTreeMap::new();
    let mut running = 0;
    for sandbox in &sandboxes {
        let containers = &sandbox.containers;
        let runs = |state: &ContainerState| matches!(state, ContainerState::Running { .. });
        running += u32::from(containers.iter().any(|container| runs(&container.state)));
        for container in containers {
            *states
                .entry(match container.state {
                    ContainerState::Created => "created",
                    ContainerState::Running { .. } => "running",
                    ContainerState::Exited(_) => "exited",
                    ContainerState::Unknown => "unknown",
                })
                .or_default() += 1;
        }
    }
    page.family("kubelet_running_pods", "gauge");
    page.sample("kubelet_running_pods", &[], running.into(), None);
    page.family("kubelet_running_containers", "gauge");
    for (state, count) in states {
        page.sample(
            "kubelet_running_containers",
            &[("container_state", state)],
            count.into(),
            None,
        );
    }
    page.answer()
}

pub(super) fn probes(call: &Call) -> Answer {
    let mut page = Page::default();
    call.state.endpoint.metrics.write(&mut page.0, |name| name.starts_with("prober_"));
    page.answer()
}

/// Whether the parts are well, for service levels.
pub(super) fn slis() -> Answer {
    let mut page = Page::default();
    page.family("kubernetes_healthcheck", "gauge");
    page.sample("kubernetes_healthcheck", &[("name", "ping"), ("type", "healthz")], 1.0, None);
    page.answer()
}

/// Container and pod of a usage, by name.
struct Named<'a> {
    usage: &'a ContainerUsage,
    namespace: String,
    pod: String,
}

async fn usage_by_name<'a>(call: &Call, usage: &'a [ContainerUsage]) -> Vec<Named<'a>> {
    let pods = &call.state.endpoint.pods;
    let named = usage.iter().filter_map(|usage| {
        let pod = pods.by_uid(&usage.pod)?;
        let namespace = pod.metadata.namespace.clone().unwrap_or_default();
        Some(Named { usage, namespace, pod: pod.metadata.name.clone().unwrap_or_default() })
    });
    named.collect()
}

/// What metrics-server scrapes (N-171).
pub(super) async fn resource(call: &Call) -> Answer {
    let asked = call.state.endpoint.runtime.usage().await;
    let failed = asked.is_err();
    let usage = asked.unwrap_or_default();
    let named = usage_by_name(call, &usage).await;
    let mut page = Page::default();
    let mut of_containers =
        |name: &str, kind: &str, value: &dyn Fn(&ContainerUsage) -> Option<f64>| {
            page.family(name, kind);
            for Named { usage, namespace, pod } in &named {
                let labels: Labels<'_> =
                    &[("container", &usage.container), ("namespace", namespace), ("pod", pod)];
                if let Some(value) = value(usage) {
                    page.sample(name, labels, value, Some(usage.at));
                }
            }
        };
    let cpu = |usage: &ContainerUsage| usage.cpu_nanoseconds as f64 / 1e9;
    of_containers("container_cpu_usage_seconds_total", "counter", &|usage| Some(cpu(usage)));
    of_containers("container_memory_working_set_bytes", "gauge", &|usage| {
        Some(usage.working_set_bytes as f64)
    });
    of_containers("container_start_time_seconds", "gauge", &|usage| {
        usage.started_at.map(|at| at.as_millisecond() as f64 / 1e3)
    });
    let now = clock::now();
    let machine = Machine::look();
    page.family("node_cpu_usage_seconds_total", "counter");
    let busy = machine.cpu_nanoseconds as f64 / 1e9;
    page.sample("node_cpu_usage_seconds_total", &[], busy, Some(now));
    page.family("node_memory_working_set_bytes", "gauge");
    page.sample("node_memory_working_set_bytes", &[], machine.working_set as f64, Some(now));
    page.family("node_swap_usage_bytes", "gauge");
    page.sample("node_swap_usage_bytes", &[], machine.swap_used as f64, Some(now));
    let mut pods: BTreeMap<(&str, &str), (f64, f64, Timestamp)> = BTreeMap::new();
    for Named { usage, namespace, pod } in &named {
        let sum = pods.entry((namespace, pod)).or_insert((0.0, 0.0, usage.at));
        *sum = (sum.0 + cpu(usage), sum.1 + usage.working_set_bytes as f64, sum.2.max(usage.at));
    }
    page.family("pod_cpu_usage_seconds_total", "counter");
    for ((namespace, pod), (cpu, _, at)) in &pods {
        let labels: Labels<'_> = &[("namespace", namespace), ("pod", pod)];
        page.sample("pod_cpu_usage_seconds_total", labels, *cpu, Some(*at));
    }
    page.family("pod_memory_working_set_bytes", "gauge");
    for ((namespace, pod), (_, memory, at)) in &pods {
        let labels: Labels<'_> = &[("namespace", namespace), ("pod", pod)];
        page.sample("pod_memory_working_set_bytes", labels, *memory, Some(*at));
    }
    for name in ["resource_scrape_error", "scrape_error"] {
        page.family(name, "gauge");
        page.sample(name, &[], f64::from(u8::from(failed)), None);
    }
    page.answer()
}

/// The few that dashboards read most, under the names cAdvisor gave them.
pub(super) async fn cadvisor(call: &Call) -> Answer {
    let usage = call.state.endpoint.runtime.usage().await.unwrap_or_default();
    let named = usage_by_name(call, &usage).await;
    let mut page = Page::default();
    type Row = (&'static str, &'static str, fn(&ContainerUsage) -> f64);
    let rows: [Row; 5] = [
        ("container_cpu_usage_seconds_total", "counter", |one| one.cpu_nanoseconds as f64 / 1e9),
        ("container_memory_usage_bytes", "gauge", |one| one.memory_bytes as f64),
        ("container_memory_working_set_bytes", "gauge", |one| one.working_set_bytes as f64),
        ("container_memory_rss", "gauge", |one| one.rss_bytes as f64),
        ("container_fs_usage_bytes", "gauge", |one| one.disk_bytes as f64),
    ];
    for (name, kind, value) in rows {
        page.family(name, kind);
        for Named { usage, namespace, pod } in &named {
            let id = &usage.container_id;
            let labels: Labels<'_> = &[
                ("container", &usage.container),
                ("id", id),
                ("name", id),
                ("namespace", namespace),
                ("pod", pod),
            ];
            page.sample(name, labels, value(usage), Some(usage.at));
        }
    }
    let processors = std::thread::available_parallelism().map_or(1, |count| count.get());
    page.family("machine_cpu_cores", "gauge");
    page.sample("machine_cpu_cores", &[], processors as f64, None);
    page.family("machine_memory_bytes", "gauge");
    page.sample("machine_memory_bytes", &[], Machine::look().memory_total as f64, None);
    page.answer()
}
