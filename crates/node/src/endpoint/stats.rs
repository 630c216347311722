//! `/pods`, `/runningpods/` and `/stats/summary`: what is here and what it uses (N-168, N-170).

use super::answer::{self, Answer};
use super::machine::{Filesystem, Machine};
use super::routes::Call;
use http::StatusCode;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use runtime::{ContainerState, ContainerUsage};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Arc, Mutex};

/// The pods this node should run, with the status it last computed.
pub(super) fn pods(call: &Call) -> Answer {
    let pods = call.state.endpoint.pods.list();
    let items: Vec<&Pod> = pods.iter().map(Arc::as_ref).collect();
    answer::json(&json!({ "kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items }))
}

/// The pods that have something running, as the runtime knows them.
pub(super) async fn running_pods(call: &Call) -> Answer {
    let sandboxes = match call.state.endpoint.runtime.sandboxes().await {
        Ok(sandboxes) => sandboxes,
        Err(error) => {
            return answer::text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string());
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
    answer::json(&json!({ "kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items }))
}

/// Over less time a rate says little, and somebody else may have looked just now.
const RATE_MIN: SignedDuration = SignedDuration::from_secs(5);

/// How fast counters of CPU time grow, measured between two looks at each.
#[derive(Default)]
pub(super) struct Rates(Mutex<HashMap<String, Rate>>);

#[derive(Clone, Copy)]
struct Rate {
    since: Timestamp,
    total: u64,
    /// Nanoseconds per second up to `since`.
    before: Option<u64>,
}

impl Rates {
    /// Nanoseconds of CPU time per second between the last looks; None at the first.
    fn of(&self, key: &str, at: Timestamp, total: u64) -> Option<u64> {
        let mut known = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let rate = match known.get(key) {
            Some(last) if last.total <= total => {
                let passed = at.duration_since(last.since);
                if passed < RATE_MIN {
                    return last.before;
                }
                let grown = u128::from(total - last.total) * 1_000_000_000;
                u64::try_from(grown / passed.as_nanos().unsigned_abs()).ok()
            }
            // The first look, or it began anew.
            _ => None,
        };
        known.insert(key.to_owned(), Rate { since: at, total, before: rate });
        rate
    }

    /// Drops what no longer exists.
    fn keep(&self, usage: &[ContainerUsage]) {
        let mut known = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        known.retain(|key, _| {
            key.is_empty() || usage.iter().any(|one| one.container_id == *key || one.pod == *key)
        });
    }
}

/// N-170
pub(super) async fn summary(call: &Call) -> Answer {
    let runtime = &call.state.endpoint.runtime;
    let brief = call.query.flag("only_cpu_and_memory");
    let usage = if brief { runtime.load().await } else { runtime.usage().await };
    let usage = match usage {
        Ok(usage) => usage,
        Err(error) => {
            return answer::text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string());
        }
    };
    let rates = &call.state.rates;
    rates.keep(&usage);
    let mut by_pod: BTreeMap<&str, Vec<&ContainerUsage>> = BTreeMap::new();
    for one in &usage {
        by_pod.entry(&one.pod).or_default().push(one);
    }
    let pods: Vec<Value> = by_pod
        .iter()
        .filter_map(|(uid, usage)| {
            let pod = call.state.endpoint.pods.by_uid(uid)?;
            Some(pod_stats(&pod, uid, usage, rates, brief))
        })
        .collect();
    answer::json(&json!({ "node": node_stats(call, brief), "pods": pods }))
}

fn node_stats(call: &Call, brief: bool) -> Value {
    let now = clock::now();
    let machine = Machine::look();
    let endpoint = &call.state.endpoint;
    let mut memory = memory(now, machine.memory_used, machine.working_set, machine.rss);
    memory["availableBytes"] = machine.memory_total.saturating_sub(machine.working_set).into();
    memory["pageFaults"] = machine.page_faults.into();
    memory["majorPageFaults"] = machine.major_page_faults.into();
    let mut node = json!({
        "nodeName": endpoint.node,
        "startTime": seconds(call.state.started),
        "cpu": cpu(now, machine.cpu_nanoseconds, call.state.rates.of("", now, machine.cpu_nanoseconds)),
        "memory": memory,
        "swap": {
            "time": seconds(now),
            "swapAvailableBytes": machine.swap_total.saturating_sub(machine.swap_used),
            "swapUsageBytes": machine.swap_used,
        },
    });
    if !brief {
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

fn pod_stats(pod: &Pod, uid: &str, usage: &[&ContainerUsage], rates: &Rates, brief: bool) -> Value {
    let meta = &pod.metadata;
    let started = pod.status.as_ref().and_then(|status| status.start_time.as_ref());
    let containers: Vec<Value> = usage
        .iter()
        .map(|one| {
            let rate = rates.of(&one.container_id, one.at, one.cpu_nanoseconds);
            let mut memory = memory(one.at, one.memory_bytes, one.working_set_bytes, one.rss_bytes);
            memory["pageFaults"] = one.page_faults.into();
            memory["majorPageFaults"] = one.major_page_faults.into();
            let mut shown = json!({
                "name": one.container,
                "startTime": one.started_at.map(seconds),
                "cpu": cpu(one.at, one.cpu_nanoseconds, rate),
                "memory": memory,
            });
            if !brief {
                shown["rootfs"] = json!({ "time": seconds(one.at), "usedBytes": one.disk_bytes });
            }
            shown
        })
        .collect();
    let sum = |of: fn(&ContainerUsage) -> u64| usage.iter().map(|one| of(one)).sum::<u64>();
    let at = usage.iter().map(|one| one.at).max().unwrap_or_default();
    let total = sum(|one| one.cpu_nanoseconds);
    let mut shown = json!({
        "podRef": { "name": meta.name, "namespace": meta.namespace, "uid": uid },
        "startTime": started,
        "containers": containers,
        "cpu": cpu(at, total, rates.of(uid, at, total)),
        "memory": memory(
            at,
            sum(|one| one.memory_bytes),
            sum(|one| one.working_set_bytes),
            sum(|one| one.rss_bytes),
        ),
    });
    if !brief {
        let used = sum(|one| one.disk_bytes);
        shown["ephemeral-storage"] = json!({ "time": seconds(at), "usedBytes": used });
    }
    shown
}

fn cpu(at: Timestamp, total: u64, rate: Option<u64>) -> Value {
    let mut shown = Map::new();
    shown.insert("time".into(), seconds(at).into());
    if let Some(rate) = rate {
        shown.insert("usageNanoCores".into(), rate.into());
    }
    shown.insert("usageCoreNanoSeconds".into(), total.into());
    Value::Object(shown)
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
    // The directory may not have been made yet; what it will lie on is there.
    let found = path.ancestors().find_map(Filesystem::of).unwrap_or_default();
    let mut shown = serde_json::to_value(found).unwrap_or_default();
    shown["time"] = seconds(at).into();
    shown
}

fn seconds(at: Timestamp) -> String {
    clock::rfc3339(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n_170_the_rate_is_what_was_used_since_the_last_look() {
        let rates = Rates::default();
        let at = |second| Timestamp::new(second, 0).unwrap();
        assert_eq!(rates.of("c", at(10), 5_000_000_000), None);
        assert_eq!(rates.of("c", at(20), 6_000_000_000), Some(100_000_000));
        assert_eq!(rates.of("c", at(21), 9_000_000_000), Some(100_000_000), "too soon to say");
        assert_eq!(rates.of("c", at(30), 7_000_000_000), Some(100_000_000));
        assert_eq!(rates.of("c", at(40), 1), None, "it began anew");
    }
}
