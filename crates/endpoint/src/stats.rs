//! `/pods`, `/runningpods/` and `/stats/summary`: pods and their resource usage (N-168, N-170).

use crate::machine::{Filesystem, Machine};
use crate::response::{self, Response};
use crate::routes::Call;
use http::StatusCode;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use runtime::{ContainerState, ContainerUsage};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Arc, Mutex};

/// The pods that this node should run, with the status it last computed.
pub(crate) fn pods(call: &Call) -> Response {
    let pods = call.state.endpoint.pods.list();
    let items: Vec<&Pod> = pods.iter().map(Arc::as_ref).collect();
    response::json(
        &json!({ "kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items }),
    )
}

/// The pods with a running container, according to the runtime.
pub(crate) async fn running_pods(call: &Call) -> Response {
    let sandboxes = match call.state.endpoint.runtime.sandboxes().await {
        Ok(sandboxes) => sandboxes,
        Err(error) => {
            return response::text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string());
        }
    };
    let mut items = Vec::new();
    for sandbox in &sandboxes {
        let running = sandbox
            .containers
            .iter()
            .filter(|container| matches!(container.state, ContainerState::Running { .. }))
            .map(|one| json!({ "name": one.name, "image": one.image_name, "resources": {} }));
        let running: Vec<Value> = running.collect();
        if !running.is_empty() {
            let pod = &sandbox.pod;
            items.push(json!({
                "metadata": { "name": pod.name, "namespace": pod.namespace, "uid": pod.uid },
                "spec": { "containers": running },
                "status": {},
            }));
        }
    }
    response::json(
        &json!({ "kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items }),
    )
}

/// A rate over less time is not meaningful. Several callers may ask within this time.
const RATE_MIN: SignedDuration = SignedDuration::from_secs(5);

/// CPU usage rates, computed from two samples of a CPU time counter.
#[derive(Default)]
pub(crate) struct Rates(Mutex<HashMap<String, Sample>>);

#[derive(Clone, Copy)]
struct Sample {
    at: Timestamp,
    total: u64,
    /// Nanoseconds of CPU time per second up to this sample.
    rate: Option<u64>,
}

impl Rates {
    /// Adds a sample and returns the nanoseconds of CPU time per second since the last; None at the first.
    fn update(&self, key: &str, at: Timestamp, total: u64) -> Option<u64> {
        let mut samples = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let rate = match samples.get(key) {
            Some(last) if last.total <= total => {
                let passed = at.duration_since(last.at);
                if passed < RATE_MIN {
                    return last.rate;
                }
                let grown = u128::from(total - last.total) * 1_000_000_000;
                u64::try_from(grown / passed.as_nanos().unsigned_abs()).ok()
            }
            // The first sample, or the counter was reset.
            _ => None,
        };
        samples.insert(key.to_owned(), Sample { at, total, rate });
        rate
    }

    /// Drops samples of containers and pods that no longer exist.
    fn retain(&self, usage: &[ContainerUsage]) {
        let mut samples = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        samples.retain(|key, _| {
            key.is_empty() || usage.iter().any(|one| one.container_id == *key || one.pod == *key)
        });
    }
}

/// Resource usage of the node, its pods and containers (N-170).
pub(crate) async fn summary(call: &Call) -> Response {
    let runtime = &call.state.endpoint.runtime;
    let cpu_and_memory_only = call.query.flag("only_cpu_and_memory");
    let usage = if cpu_and_memory_only { runtime.load().await } else { runtime.usage().await };
    let usage = match usage {
        Ok(usage) => usage,
        Err(error) => {
            return response::text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string());
        }
    };
    let rates = &call.state.rates;
    rates.retain(&usage);
    let mut by_pod: BTreeMap<&str, Vec<&ContainerUsage>> = BTreeMap::new();
    for one in &usage {
        by_pod.entry(&one.pod).or_default().push(one);
    }
    let pods: Vec<Value> = by_pod
        .iter()
        .filter_map(|(uid, usage)| {
            let pod = call.state.endpoint.pods.by_uid(uid)?;
            Some(pod_stats(&pod, uid, usage, rates, cpu_and_memory_only))
        })
        .collect();
    response::json(&json!({ "node": node_stats(call, cpu_and_memory_only), "pods": pods }))
}

fn node_stats(call: &Call, cpu_and_memory_only: bool) -> Value {
    let now = clock::now();
    let machine = Machine::read();
    let endpoint = &call.state.endpoint;
    let mut memory = memory(now, machine.memory_used, machine.working_set, machine.rss);
    memory["availableBytes"] = machine.memory_total.saturating_sub(machine.working_set).into();
    memory["pageFaults"] = machine.page_faults.into();
    memory["majorPageFaults"] = machine.major_page_faults.into();
    let mut node = json!({
        "nodeName": endpoint.node,
        "startTime": seconds(call.state.started),
        "cpu": cpu(now, machine.cpu_nanoseconds, call.state.rates.update("", now, machine.cpu_nanoseconds)),
        "memory": memory,
        "swap": {
            "time": seconds(now),
            "swapAvailableBytes": machine.swap_total.saturating_sub(machine.swap_used),
            "swapUsageBytes": machine.swap_used,
        },
    });
    if !cpu_and_memory_only {
        node["fs"] = filesystem(now, &endpoint.log_root);
        let images = filesystem(now, &endpoint.runtime.images().directory());
        node["runtime"] = json!({ "imageFs": images, "containerFs": images });
        node["rlimit"] = json!({
            "time": seconds(now),
            "maxpid": machine.processes_max,
            "curproc": machine.processes,
        });
    }
    node
}

fn pod_stats(
    pod: &Pod,
    uid: &str,
    usage: &[&ContainerUsage],
    rates: &Rates,
    cpu_and_memory_only: bool,
) -> Value {
    let meta = &pod.metadata;
    let started = pod.status.as_ref().and_then(|status| status.start_time.as_ref());
    let containers: Vec<Value> = usage
        .iter()
        .map(|one| {
            let rate = rates.update(&one.container_id, one.at, one.cpu_nanoseconds);
            let mut memory = memory(one.at, one.memory_bytes, one.working_set_bytes, one.rss_bytes);
            memory["pageFaults"] = one.page_faults.into();
            memory["majorPageFaults"] = one.major_page_faults.into();
            let mut stats = json!({
                "name": one.container,
                "startTime": one.started_at.map(seconds),
                "cpu": cpu(one.at, one.cpu_nanoseconds, rate),
                "memory": memory,
            });
            if !cpu_and_memory_only {
                stats["rootfs"] = json!({ "time": seconds(one.at), "usedBytes": one.disk_bytes });
            }
            stats
        })
        .collect();
    let sum = |of: fn(&ContainerUsage) -> u64| usage.iter().map(|one| of(one)).sum::<u64>();
    let at = usage.iter().map(|one| one.at).max().unwrap_or_default();
    let total = sum(|one| one.cpu_nanoseconds);
    let mut stats = json!({
        "podRef": { "name": meta.name, "namespace": meta.namespace, "uid": uid },
        "startTime": started,
        "containers": containers,
        "cpu": cpu(at, total, rates.update(uid, at, total)),
        "memory": memory(
            at,
            sum(|one| one.memory_bytes),
            sum(|one| one.working_set_bytes),
            sum(|one| one.rss_bytes),
        ),
    });
    if !cpu_and_memory_only {
        let used = sum(|one| one.disk_bytes);
        stats["ephemeral-storage"] = json!({ "time": seconds(at), "usedBytes": used });
    }
    stats
}

fn cpu(at: Timestamp, total: u64, rate: Option<u64>) -> Value {
    let mut stats = Map::new();
    stats.insert("time".into(), seconds(at).into());
    if let Some(rate) = rate {
        stats.insert("usageNanoCores".into(), rate.into());
    }
    stats.insert("usageCoreNanoSeconds".into(), total.into());
    Value::Object(stats)
}

fn memory(at: Timestamp, used: u64, working_set: u64, rss: u64) -> Value {
    json!({
        "time": seconds(at),
        "usageBytes": used,
        "workingSetBytes": working_set,
        "rssBytes": rss,
    })
}

fn filesystem(at: Timestamp, path: &Path) -> Value {
    // The directory may not exist yet; use the filesystem of its closest existing parent.
    let found = path.ancestors().find_map(Filesystem::of).unwrap_or_default();
    let mut stats = serde_json::to_value(found).unwrap_or_default();
    stats["time"] = seconds(at).into();
    stats
}

fn seconds(at: Timestamp) -> String {
    clock::rfc3339(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n_170_the_rate_is_the_cpu_time_since_the_last_sample() {
        let rates = Rates::default();
        let at = |second| Timestamp::new(second, 0).unwrap();
        assert_eq!(rates.update("c", at(10), 5_000_000_000), None);
        assert_eq!(rates.update("c", at(20), 6_000_000_000), Some(100_000_000));
        assert_eq!(
            rates.update("c", at(21), 9_000_000_000),
            Some(100_000_000),
            "too soon for a new rate"
        );
        assert_eq!(rates.update("c", at(30), 7_000_000_000), Some(100_000_000));
        assert_eq!(rates.update("c", at(40), 1), None, "the counter was reset");
    }
}
