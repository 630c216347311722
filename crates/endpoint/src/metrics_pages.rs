//! `/metrics` and the pages below it (N-171, N-182).

use crate::machine::Machine;
use crate::response::{self, Response};
use crate::routes::Call;
use ::metrics::{self, Kind, Labels, Page};
use http::StatusCode;
use jiff::Timestamp;
use runtime::{ContainerState, ContainerUsage, SandboxState};
use std::collections::BTreeMap;

const GAUGE: Kind = Kind::Gauge;
const COUNTER: Kind = Kind::Counter;

fn response(page: Page) -> Response {
    response::full(StatusCode::OK, metrics::CONTENT_TYPE, page.into_text())
}

fn millis(at: Timestamp) -> Option<i64> {
    Some(at.as_millisecond())
}

pub(crate) async fn main(call: &Call) -> Response {
    let endpoint = &call.state.endpoint;
    let sandboxes = endpoint.runtime.sandboxes().await.unwrap_or_default();
    let mut states: BTreeMap<&str, u32> = BTreeMap::new();
    let mut running = 0;
    for sandbox in &sandboxes {
        running += u32::from(sandbox.state == SandboxState::Ready);
        for container in &sandbox.containers {
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
    let metrics = &endpoint.metrics;
    metrics.set("kubelet_node_name", &[("node", &endpoint.node)], 1.0);
    metrics.set("kubelet_running_pods", &[], running.into());
    metrics.clear("kubelet_running_containers");
    for (state, count) in states {
        metrics.set("kubelet_running_containers", &[("container_state", state)], count.into());
    }
    let mut page = Page::default();
    metrics.write(&mut page, |name| !name.starts_with("prober_"));
    client::metrics().write(&mut page, |_| true);
    response(page)
}

pub(crate) fn probes(call: &Call) -> Response {
    let mut page = Page::default();
    call.state.endpoint.metrics.write(&mut page, |name| name.starts_with("prober_"));
    response(page)
}

/// Health checks, for service level indicators.
pub(crate) fn slis() -> Response {
    let mut page = Page::default();
    page.family("kubernetes_healthcheck", GAUGE, "Whether a component of the node is healthy.");
    page.sample("kubernetes_healthcheck", &[("name", "ping"), ("type", "healthz")], 1.0, None);
    response(page)
}

/// The usage of a container with the name of its pod.
struct NamedUsage<'a> {
    usage: &'a ContainerUsage,
    namespace: String,
    pod: String,
}

async fn usage_by_name<'a>(call: &Call, usage: &'a [ContainerUsage]) -> Vec<NamedUsage<'a>> {
    let pods = &call.state.endpoint.pods;
    let named = usage.iter().filter_map(|usage| {
        let pod = pods.by_uid(&usage.pod)?;
        let namespace = pod.metadata.namespace.clone().unwrap_or_default();
        Some(NamedUsage { usage, namespace, pod: pod.metadata.name.clone().unwrap_or_default() })
    });
    named.collect()
}

/// What metrics-server scrapes (N-171).
pub(crate) async fn resource(call: &Call) -> Response {
    let runtime = &call.state.endpoint.runtime;
    let loaded = runtime.load().await;
    let failed = loaded.is_err();
    let mut usage = loaded.unwrap_or_default();
    if usage.iter().any(|one| one.started_at.is_none()) {
        // CRI statistics do not contain start times.
        let sandboxes = runtime.sandboxes().await.unwrap_or_default();
        let containers = sandboxes.iter().flat_map(|sandbox| &sandbox.containers);
        let started: BTreeMap<&str, Timestamp> = containers.filter_map(started).collect();
        for one in &mut usage {
            one.started_at = one.started_at.or(started.get(one.container_id.as_str()).copied());
        }
    }
    let named = usage_by_name(call, &usage).await;
    let mut page = Page::default();
    container_usage(&mut page, &named);
    node_usage(&mut page);
    pod_usage(&mut page, &named);
    for (name, help) in [
        ("resource_scrape_error", "1 if the usage of containers could not be read."),
        ("scrape_error", "Old name of resource_scrape_error."),
    ] {
        page.family(name, GAUGE, help);
        page.sample(name, &[], f64::from(u8::from(failed)), None);
    }
    response(page)
}

fn started(container: &runtime::Container) -> Option<(&str, Timestamp)> {
    match container.state {
        ContainerState::Running { started_at } => Some((&container.id, started_at)),
        ContainerState::Created | ContainerState::Exited(_) | ContainerState::Unknown => None,
    }
}

fn container_usage(page: &mut Page, named: &[NamedUsage<'_>]) {
    type Row = (&'static str, Kind, &'static str, fn(&ContainerUsage) -> Option<f64>);
    let rows: [Row; 3] = [
        ("container_cpu_usage_seconds_total", COUNTER, "CPU time of the container.", |usage| {
            Some(usage.cpu_nanoseconds as f64 / 1e9)
        }),
        ("container_memory_working_set_bytes", GAUGE, "Working set of the container.", |usage| {
            Some(usage.working_set_bytes as f64)
        }),
        (
            "container_start_time_seconds",
            GAUGE,
            "Unix time at which the container started.",
            |usage| usage.started_at.map(|at| at.as_millisecond() as f64 / 1e3),
        ),
    ];
    for (name, kind, help, value) in rows {
        let values = named.iter().filter_map(|one| Some((one, value(one.usage)?)));
        let mut announced = false;
        for (NamedUsage { usage, namespace, pod }, value) in values {
            if !std::mem::replace(&mut announced, true) {
                page.family(name, kind, help);
            }
            let labels: Labels<'_> =
                &[("container", &usage.container), ("namespace", namespace), ("pod", pod)];
            page.sample(name, labels, value, millis(usage.at));
        }
    }
}

fn node_usage(page: &mut Page) {
    let (now, machine) = (millis(clock::now()), Machine::read());
    for (name, kind, help, value) in [
        (
            "node_cpu_usage_seconds_total",
            COUNTER,
            "CPU time of the node.",
            machine.cpu_nanoseconds as f64 / 1e9,
        ),
        (
            "node_memory_working_set_bytes",
            GAUGE,
            "Working set of the node.",
            machine.working_set as f64,
        ),
        ("node_swap_usage_bytes", GAUGE, "Swap in use on the node.", machine.swap_used as f64),
    ] {
        page.family(name, kind, help);
        page.sample(name, &[], value, now);
    }
}

/// The usage of a pod is the sum of its containers'.
fn pod_usage(page: &mut Page, named: &[NamedUsage<'_>]) {
    let mut pods: BTreeMap<(&str, &str), (f64, f64, Timestamp)> = BTreeMap::new();
    for NamedUsage { usage, namespace, pod } in named {
        let sum = pods.entry((namespace, pod)).or_insert((0.0, 0.0, usage.at));
        sum.0 += usage.cpu_nanoseconds as f64 / 1e9;
        sum.1 += usage.working_set_bytes as f64;
        sum.2 = sum.2.max(usage.at);
    }
    if pods.is_empty() {
        return;
    }
    page.family("pod_cpu_usage_seconds_total", COUNTER, "CPU time of the pod.");
    for ((namespace, pod), (cpu, _, at)) in &pods {
        let labels: Labels<'_> = &[("namespace", namespace), ("pod", pod)];
        page.sample("pod_cpu_usage_seconds_total", labels, *cpu, millis(*at));
    }
    page.family("pod_memory_working_set_bytes", GAUGE, "Working set of the pod.");
    for ((namespace, pod), (_, memory, at)) in &pods {
        let labels: Labels<'_> = &[("namespace", namespace), ("pod", pod)];
        page.sample("pod_memory_working_set_bytes", labels, *memory, millis(*at));
    }
}

/// The metrics of cAdvisor that dashboards use most.
pub(crate) async fn cadvisor(call: &Call) -> Response {
    let usage = call.state.endpoint.runtime.usage().await.unwrap_or_default();
    let named = usage_by_name(call, &usage).await;
    let mut page = Page::default();
    type Row = (&'static str, Kind, &'static str, fn(&ContainerUsage) -> f64);
    let rows: [Row; 5] = [
        ("container_cpu_usage_seconds_total", COUNTER, "CPU time of the container.", |one| {
            one.cpu_nanoseconds as f64 / 1e9
        }),
        (
            "container_memory_usage_bytes",
            GAUGE,
            "Memory usage of the container, with caches.",
            |one| one.memory_bytes as f64,
        ),
        ("container_memory_working_set_bytes", GAUGE, "Working set of the container.", |one| {
            one.working_set_bytes as f64
        }),
        ("container_memory_rss", GAUGE, "Anonymous memory of the container.", |one| {
            one.rss_bytes as f64
        }),
        (
            "container_fs_usage_bytes",
            GAUGE,
            "Bytes that the container has written to its filesystem.",
            |one| one.disk_bytes as f64,
        ),
    ];
    for (name, kind, help, value) in rows.into_iter().filter(|_| !named.is_empty()) {
        page.family(name, kind, help);
        for NamedUsage { usage, namespace, pod } in &named {
            let id = &usage.container_id;
            let labels: Labels<'_> = &[
                ("container", &usage.container),
                ("id", id),
                ("name", id),
                ("namespace", namespace),
                ("pod", pod),
            ];
            page.sample(name, labels, value(usage), millis(usage.at));
        }
    }
    let processors = std::thread::available_parallelism().map_or(1, |count| count.get());
    page.family("machine_cpu_cores", GAUGE, "Processors of the node.");
    page.sample("machine_cpu_cores", &[], processors as f64, None);
    page.family("machine_memory_bytes", GAUGE, "Memory of the node.");
    page.sample("machine_memory_bytes", &[], Machine::read().memory_total as f64, None);
    response(page)
}
