//! Pods: readiness, one-word status and restarts, computed from all containers.

use super::column::{AGE, NAME, Printed, text};
use super::subject::{NONE, Subject, or};
use crate::pod::is_terminal_phase;
use crate::value::ValueExt as _;
use jiff::Timestamp;
use serde_json::{Value, json};

pub(super) const POD: &[Printed] = &[
    NAME,
    text("Ready", "How many of the containers are ready.", |o| {
        let pod = Summary::of(o);
        format!("{}/{}", pod.ready, pod.total).into()
    }),
    text("Status", "What the states of the containers add up to.", |o| {
        Summary::of(o).status.into()
    }),
    text("Restarts", "How often containers were restarted, and when last.", |o| {
        let pod = Summary::of(o);
        match pod.restarts {
            Restarts { count, last: Some((_, time)) } if count != 0 => {
                format!("{count} ({} ago)", o.age_of(time)).into()
            }
            Restarts { count, .. } => count.to_string().into(),
        }
    }),
    AGE,
    text("IP", "The pod's first address.", |o| {
        let first = o.list("status.podIPs").first();
        or(first.map_or("", |address| address.text(&["ip"])), NONE).into()
    })
    .wide(),
    text("Node", "The node it runs on.", |o| o.text_or("spec.nodeName", NONE).into()).wide(),
    text("Nominated Node", "The node where room is being made for it.", |o| {
        o.text_or("status.nominatedNodeName", NONE).into()
    })
    .wide(),
    text("Readiness Gates", "How many of its readiness gates are open.", |o| {
        readiness_gates(o).into()
    })
    .wide(),
];

/// Marks terminal pods, so that clients can hide them.
pub(super) fn row_conditions(pod: &Value) -> Vec<Value> {
    let (reason, message) = match pod.text(&["status", "phase"]) {
        "Succeeded" => ("Succeeded", "The pod has completed successfully."),
        "Failed" => ("Failed", "The pod failed."),
        _ => return Vec::new(),
    };
    vec![json!({"type": "Completed", "status": "True", "reason": reason, "message": message})]
}

fn readiness_gates(o: &Subject) -> String {
    let gates = o.list("spec.readinessGates");
    if gates.is_empty() {
        return NONE.to_owned();
    }
    let open = gates.iter().filter(|gate| o.has_true_condition(gate.text(&["conditionType"])));
    format!("{}/{}", open.count(), gates.len())
}

/// The cells that are computed from a pod's containers.
#[derive(Default)]
struct Summary<'v> {
    status: String,
    ready: usize,
    total: usize,
    restarts: Restarts<'v>,
}

#[derive(Default, Clone, Copy)]
struct Restarts<'v> {
    count: i64,
    /// The latest end of a container, parsed and as written.
    last: Option<(Timestamp, &'v str)>,
}

impl<'v> Restarts<'v> {
    fn add(&mut self, container: &'v Value) {
        self.count += container["restartCount"].as_i64().unwrap_or_default();
        let ended = container.text(&["lastState", "terminated", "finishedAt"]);
        if let Ok(time) = ended.parse() {
            self.last = self.last.max(Some((time, ended)));
        }
    }
}

impl<'v> Summary<'v> {
    fn of(o: &Subject<'v>) -> Summary<'v> {
        let sidecars: Vec<&str> = o
            .list("spec.initContainers")
            .iter()
            .filter(|container| container["restartPolicy"] == "Always")
            .map(|container| container.text(&["name"]))
            .collect();
        let mut pod = Summary {
            status: or(o.text("status.reason"), o.text("status.phase")).to_owned(),
            total: o.list("spec.containers").len() + sidecars.len(),
            ..Summary::default()
        };
        let gated = |c: &Value| c["type"] == "PodScheduled" && c["reason"] == "SchedulingGated";
        if o.list("status.conditions").iter().any(gated) {
            pod.status = "SchedulingGated".to_owned();
        }
        let (initialized, sidecar_restarts) = pod.add_init_containers(o, &sidecars);
        if initialized || o.has_true_condition("Initialized") {
            // After initialization, only restarts of sidecars and main containers count.
            pod.restarts = sidecar_restarts;
            pod.add_containers(o);
        }
        pod.mark_deletion(o);
        pod
    }

    /// Adds the init containers up to the first unfinished one. Returns false if there is one, and the
    /// restarts of the sidecars separately.
    fn add_init_containers(&mut self, o: &Subject<'v>, sidecars: &[&str]) -> (bool, Restarts<'v>) {
        let mut sidecar_restarts = Restarts::default();
        for (i, container) in o.list("status.initContainerStatuses").iter().enumerate() {
            self.restarts.add(container);
            let is_sidecar = sidecars.contains(&container.text(&["name"]));
            if is_sidecar {
                sidecar_restarts.add(container);
            }
            let terminated = container.at(&["state", "terminated"]);
            if terminated.is_some_and(|end| exit_code(end) == 0) {
                continue;
            }
            if is_sidecar && container["started"] == true {
                self.ready += usize::from(container["ready"] == true);
                continue;
            }
            let waiting = container.text(&["state", "waiting", "reason"]);
            self.status = match terminated {
                Some(end) => format!("Init:{}", termination_reason(end)),
                None if !matches!(waiting, "" | "PodInitializing") => format!("Init:{waiting}"),
                None => format!("Init:{i}/{}", o.list("spec.initContainers").len()),
            };
            return (false, sidecar_restarts);
        }
        (true, sidecar_restarts)
    }

    /// Adds the main containers from last to first, so that the first one determines the status.
    fn add_containers(&mut self, o: &Subject<'v>) {
        let (mut running, mut failure) = (false, None);
        for container in o.list("status.containerStatuses").iter().rev() {
            self.restarts.add(container);
            let waiting = container.text(&["state", "waiting", "reason"]);
            if !waiting.is_empty() {
                self.status = waiting.to_owned();
            } else if let Some(end) = container.at(&["state", "terminated"]) {
                self.status = termination_reason(end);
                if exit_code(end) != 0 {
                    failure = Some(termination_reason(end));
                }
            } else if container["ready"] == true && container.at(&["state", "running"]).is_some() {
                running = true;
                self.ready += 1;
            }
        }
        if self.status == "Completed" {
            // A completed container does not hide a failed one.
            self.status = match failure {
                _ if running && o.has_true_condition("Ready") => "Running".to_owned(),
                Some(failure) => failure,
                None if running => "NotReady".to_owned(),
                None => return,
            };
        }
    }

    fn mark_deletion(&mut self, o: &Subject) {
        if !o.is_deleting() {
            return;
        }
        if o.text("status.reason") == "NodeLost" {
            self.status = "Unknown".to_owned();
        } else if !is_terminal_phase(o.text("status.phase")) {
            self.status = "Terminating".to_owned();
        }
    }
}

fn exit_code(terminated: &Value) -> i64 {
    terminated["exitCode"].as_i64().unwrap_or_default()
}

/// `Completed`, `Signal:9`, `ExitCode:1`.
fn termination_reason(terminated: &Value) -> String {
    let reason = terminated.text(&["reason"]);
    match terminated["signal"].as_i64().unwrap_or_default() {
        _ if !reason.is_empty() => reason.to_owned(),
        0 => format!("ExitCode:{}", exit_code(terminated)),
        signal => format!("Signal:{signal}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ready, status and restarts of a pod an hour after the start of 2026.
    fn row(pod: &Value) -> String {
        let now = "2026-01-01T01:00:00Z".parse().unwrap();
        let cells = super::super::print(POD, pod, now);
        let shown: Vec<&str> = cells[1..4].iter().filter_map(Value::as_str).collect();
        shown.join(" ")
    }

    /// A pod with main containers a and b and, unless empty, these init containers.
    fn pod(init: Value, status: Value) -> Value {
        json!({
            "metadata": {"name": "p"},
            "spec": {"containers": [{"name": "a"}, {"name": "b"}], "initContainers": init},
            "status": status,
        })
    }

    fn plain(status: Value) -> Value {
        pod(json!([]), status)
    }

    fn running(name: &str) -> Value {
        json!({"name": name, "ready": true, "restartCount": 0, "state": {"running": {}}})
    }

    fn ended(name: &str, end: Value) -> Value {
        json!({"name": name, "ready": false, "restartCount": 0, "state": {"terminated": end}})
    }

    fn waiting(name: &str, reason: &str) -> Value {
        json!({"name": name, "restartCount": 0, "state": {"waiting": {"reason": reason}}})
    }

    #[test]
    fn a_197_pods_without_init_containers() {
        let ready = json!([{"type": "Ready", "status": "True"}]);
        let gated = json!([{"type": "PodScheduled", "reason": "SchedulingGated"}]);
        let done = || ended("b", json!({"reason": "Completed"}));
        for (status, shown) in [
            (json!({"phase": "Pending"}), "0/2 Pending 0"),
            (json!({"phase": "Failed", "reason": "Evicted"}), "0/2 Evicted 0"),
            (json!({"phase": "Pending", "conditions": gated}), "0/2 SchedulingGated 0"),
            (
                json!({"phase": "Running", "containerStatuses": [running("a"), running("b")]}),
                "2/2 Running 0",
            ),
            (
                json!({"phase": "Running", "containerStatuses": [waiting("a", "CrashLoopBackOff"), running("b")]}),
                "1/2 CrashLoopBackOff 0",
            ),
            // The first container determines the status.
            (
                json!({"phase": "Running", "containerStatuses": [ended("a", json!({"reason": "Error"})), done()]}),
                "0/2 Error 0",
            ),
            (
                json!({"phase": "Running", "containerStatuses": [ended("a", json!({"signal": 9, "exitCode": 137})), running("b")]}),
                "1/2 Signal:9 0",
            ),
            (
                json!({"phase": "Running", "containerStatuses": [ended("a", json!({"exitCode": 3}))]}),
                "0/2 ExitCode:3 0",
            ),
            (
                json!({"phase": "Running", "containerStatuses": [running("a"), done()]}),
                "1/2 NotReady 0",
            ),
            (
                json!({"phase": "Running", "conditions": ready, "containerStatuses": [running("a"), done()]}),
                "1/2 Running 0",
            ),
            (json!({"phase": "Succeeded", "containerStatuses": [done()]}), "0/2 Completed 0"),
        ] {
            assert_eq!(row(&plain(status.clone())), shown, "{status}");
        }
    }

    #[test]
    fn t_cli_20_a_container_that_failed_is_not_hidden_behind_one_that_completed() {
        let done = || ended("a", json!({"reason": "Completed", "exitCode": 0}));
        let failed = |end: Value| ended("b", end);
        let error = || failed(json!({"reason": "Error", "exitCode": 1}));
        let ready = json!([{"type": "Ready", "status": "True"}]);
        for (status, shown) in [
            (json!({"phase": "Failed", "containerStatuses": [done(), error()]}), "0/2 Error 0"),
            (
                json!({"phase": "Failed", "containerStatuses": [done(), failed(json!({"exitCode": 137, "signal": 9}))]}),
                "0/2 Signal:9 0",
            ),
            // Of several failed containers, the first one.
            (
                json!({"phase": "Failed", "containerStatuses": [done(), error(), failed(json!({"exitCode": 3}))]}),
                "0/2 Error 0",
            ),
            // Running takes precedence over a failed container, and that over NotReady.
            (
                json!({"phase": "Running", "conditions": ready, "containerStatuses": [done(), error(), running("c")]}),
                "1/2 Running 0",
            ),
            (
                json!({"phase": "Running", "containerStatuses": [done(), error(), running("c")]}),
                "1/2 Error 0",
            ),
            (
                json!({"phase": "Running", "containerStatuses": [done(), running("c")]}),
                "1/2 NotReady 0",
            ),
        ] {
            assert_eq!(row(&plain(status.clone())), shown, "{status}");
        }
    }

    #[test]
    fn a_197_pods_that_are_still_initialising() {
        let init =
            json!([{"name": "i"}, {"name": "side", "restartPolicy": "Always"}, {"name": "j"}]);
        let done = || ended("i", json!({"exitCode": 0, "reason": "Completed"}));
        let side = || json!({"name": "side", "started": true, "ready": true, "restartCount": 2});
        for (statuses, shown) in [
            (json!([running("i")]), "0/3 Init:0/3 0"),
            (json!([waiting("i", "PodInitializing")]), "0/3 Init:0/3 0"),
            (json!([waiting("i", "ErrImagePull")]), "0/3 Init:ErrImagePull 0"),
            (json!([ended("i", json!({"exitCode": 1, "reason": "Error"}))]), "0/3 Init:Error 0"),
            (json!([ended("i", json!({"exitCode": 1}))]), "0/3 Init:ExitCode:1 0"),
            (json!([ended("i", json!({"exitCode": 137, "signal": 9}))]), "0/3 Init:Signal:9 0"),
            (json!([done(), {"name": "side", "restartCount": 0}]), "0/3 Init:1/3 0"),
            (json!([done(), side(), running("j")]), "1/3 Init:2/3 2"),
        ] {
            let status = json!({"phase": "Pending", "initContainerStatuses": statuses});
            assert_eq!(row(&pod(init.clone(), status)), shown, "{statuses}");
        }
    }

    #[test]
    fn a_197_once_initialised_restarts_of_plain_init_containers_no_longer_count() {
        let init = json!([{"name": "i"}, {"name": "side", "restartPolicy": "Always"}]);
        let time = |time: &str| json!({"terminated": {"finishedAt": time}});
        let status = json!({
            "phase": "Running",
            "initContainerStatuses": [
                {"name": "i", "restartCount": 9, "state": {"terminated": {"exitCode": 0}}, "lastState": time("2026-01-01T00:59:59Z")},
                {"name": "side", "restartCount": 1, "started": true, "ready": true, "state": {"running": {}}, "lastState": time("2026-01-01T00:50:00Z")},
            ],
            "containerStatuses": [
                {"name": "a", "restartCount": 3, "ready": true, "state": {"running": {}}, "lastState": time("2026-01-01T00:55:00Z")},
                running("b"),
            ],
        });
        assert_eq!(row(&pod(init, status)), "3/3 Running 4 (5m ago)");
    }

    #[test]
    fn a_197_deletion_is_shown_unless_the_pod_is_terminal() {
        for (status, shown) in [
            (json!({"phase": "Running", "containerStatuses": [running("a")]}), "1/2 Terminating 0"),
            (json!({"phase": "Running", "reason": "NodeLost"}), "0/2 Unknown 0"),
            (json!({"phase": "Succeeded"}), "0/2 Succeeded 0"),
            (json!({"phase": "Failed"}), "0/2 Failed 0"),
        ] {
            let mut pod = plain(status.clone());
            pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:59:00Z");
            assert_eq!(row(&pod), shown, "{status}");
        }
    }

    #[test]
    fn a_197_t_cli_24_rows_of_terminal_pods_are_marked_completed() {
        let marked = row_conditions(&json!({"status": {"phase": "Succeeded"}}));
        assert_eq!(marked[0]["type"], "Completed");
        assert_eq!(marked[0]["reason"], "Succeeded");
        assert_eq!(row_conditions(&json!({"status": {"phase": "Failed"}}))[0]["reason"], "Failed");
        assert!(row_conditions(&json!({"status": {"phase": "Running"}})).is_empty());
    }

    #[test]
    fn a_196_empty_wide_columns_of_pods_show_none() {
        let now = Timestamp::UNIX_EPOCH;
        let cells = super::super::print(POD, &json!({}), now);
        assert_eq!(cells[5..], ["<none>", "<none>", "<none>", "<none>"]);
        let pod = json!({
            "spec": {"nodeName": "n", "readinessGates": [{"conditionType": "x"}, {"conditionType": "y"}]},
            "status": {
                "podIPs": [{"ip": "10.0.0.1"}],
                "conditions": [{"type": "x", "status": "True"}],
            },
        });
        let cells = super::super::print(POD, &pod, now);
        assert_eq!(cells[5..], ["10.0.0.1", "n", "<none>", "1/2"]);
    }
}
