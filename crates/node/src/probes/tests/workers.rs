//! Probes over time, on a paused clock. They are exec probes whose result the test sets.

use super::{exit, machine, pod};
use crate::probes::{ContainerRun, ProbeKind, ProbeResult, Prober, Restored};
use client::{RecordedEvent, Recorder};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use testbed::Machine;
use testbed::machine::Commands;
use tokio::sync::mpsc;
use tokio::time::sleep;

/// The wall clock is not paused, so containers have been running for long. Delays are tested in
/// `lifecycle`.
const LONG_AGO: &str = "2020-01-01T00:00:00Z";

struct Fixture {
    prober: Prober,
    machine: Arc<Machine>,
    results: mpsc::Receiver<ProbeResult>,
    events: mpsc::Receiver<RecordedEvent>,
}

impl Fixture {
    async fn with(container: Value, commands: Commands) -> Fixture {
        let fixture = Fixture::of_pod(pod(container), commands);
        fixture.observe_running("id-1", None);
        fixture
    }

    fn of_pod(pod: Arc<Pod>, commands: Commands) -> Fixture {
        let machine = machine(commands);
        let (recorder, events) = Recorder::collecting();
        let (sender, results) = mpsc::channel(100);
        let prober = Prober::new(machine.clone(), recorder, sender);
        prober.add_pod(&pod);
        Fixture { prober, machine, results, events }
    }

    fn observe_running(&self, id: &str, restored: Option<Restored>) {
        let since: Timestamp = LONG_AGO.parse().unwrap();
        let now = ContainerRun::Running { id: id.into(), since, restored };
        self.prober.observe("u1", "127.0.0.1", "c", now);
    }

    fn status(&self) -> (bool, bool, Option<ProbeKind>) {
        let status = self.prober.statuses("u1").remove("c").unwrap();
        (status.started, status.ready, status.failed)
    }

    fn changes(&mut self) -> Vec<(ProbeKind, bool)> {
        let mut changes = Vec::new();
        while let Ok(result) = self.results.try_recv() {
            changes.push((result.kind, result.success));
        }
        changes
    }

    fn recorded(&mut self) -> Vec<(String, String)> {
        let mut recorded = Vec::new();
        while let Ok(event) = self.events.try_recv() {
            assert_eq!(event.on.field_path.as_deref(), Some("spec.containers{c}"));
            recorded.push((event.reason, event.message));
        }
        recorded
    }
}

fn probe(more: Value) -> Value {
    let mut probe = json!({ "exec": { "command": ["check"] }, "periodSeconds": 10 });
    for (key, value) in more.as_object().unwrap() {
        probe[key] = value.clone();
    }
    probe
}

async fn wait(seconds: u64) {
    sleep(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn n_91_a_running_container_without_probes_is_started_and_ready() {
    let fixture = Fixture::of_pod(pod(json!({})), Commands::Hang);
    assert!(fixture.prober.statuses("u1").is_empty());
    fixture.observe_running("id-1", None);
    assert_eq!(fixture.status(), (true, true, None));
    fixture.prober.observe("u1", "", "c", ContainerRun::NotRunning);
    assert!(fixture.prober.statuses("u1").is_empty());
}

#[tokio::test(start_paused = true)]
async fn n_89_a_probe_runs_once_per_period() {
    let container = json!({ "livenessProbe": probe(json!({})) });
    let fixture = Fixture::with(container, exit(0, "")).await;
    wait(100).await;
    assert!(
        (9..=11).contains(&fixture.machine.commands_run().len()),
        "{}",
        fixture.machine.commands_run().len()
    );
}

#[tokio::test(start_paused = true)]
async fn n_92_and_n_212_a_started_container_that_is_not_ready_is_probed_at_once() {
    let container = json!({ "readinessProbe": probe(json!({ "periodSeconds": 3600 })) });
    let mut fixture = Fixture::with(container, exit(1, "")).await;
    fixture.prober.refresh("u1");
    sleep(Duration::from_millis(10)).await;
    assert_eq!(fixture.machine.commands_run().len(), 1);
    assert_eq!(fixture.status(), (true, false, None));
    fixture.machine.set_commands(exit(0, ""));
    assert!(!fixture.prober.refresh("u1")["c"].ready);
    sleep(Duration::from_millis(10)).await;
    assert_eq!(fixture.status(), (true, true, None));
    assert_eq!(fixture.changes(), [(ProbeKind::Readiness, true)]);
    // It is ready: the probe keeps to its period.
    let before = fixture.machine.commands_run().len();
    fixture.prober.refresh("u1");
    sleep(Duration::from_millis(10)).await;
    assert_eq!(fixture.machine.commands_run().len(), before);
}

#[tokio::test(start_paused = true)]
async fn n_90_n_93_only_the_startup_probe_runs_until_it_succeeds() {
    let container = json!({
        "startupProbe": probe(json!({ "failureThreshold": 100, "exec": { "command": ["started"] } })),
        "livenessProbe": probe(json!({ "exec": { "command": ["alive"] } })),
        "readinessProbe": probe(json!({ "exec": { "command": ["ready"] } })),
    });
    let mut fixture = Fixture::with(container, exit(1, "")).await;
    wait(60).await;
    assert_eq!(fixture.status(), (false, false, None));
    let ran = fixture.machine.commands_run();
    assert!(!ran.is_empty() && ran.iter().all(|command| command == &["started"]), "{ran:?}");
    fixture.machine.set_commands(exit(0, ""));
    wait(60).await;
    assert_eq!(fixture.status(), (true, true, None));
    let changes = fixture.changes();
    assert_eq!(changes, [(ProbeKind::Startup, true), (ProbeKind::Readiness, true)]);
    let ran = fixture.machine.commands_run();
    let last = ran.iter().rposition(|command| command == &["started"]).unwrap();
    assert!(ran[last..].len() > 5, "the startup probe does not run again: {ran:?}");
}

#[tokio::test(start_paused = true)]
async fn n_93_n_104_a_failed_liveness_probe_pauses_until_there_is_a_new_container() {
    let container = json!({ "livenessProbe": probe(json!({ "failureThreshold": 3 })) });
    let mut fixture = Fixture::with(container, exit(1, "dead")).await;
    wait(100).await;
    assert_eq!(fixture.machine.commands_run().len(), 3);
    assert_eq!(fixture.status(), (true, true, Some(ProbeKind::Liveness)));
    assert_eq!(fixture.changes(), [(ProbeKind::Liveness, false)]);
    // There is an event for every failed attempt, not only for the last.
    let event = ("Unhealthy".to_owned(), "Liveness probe failed: dead!".to_owned());
    assert_eq!(fixture.recorded(), vec![event; 3]);
    fixture.observe_running("id-2", None);
    assert_eq!(fixture.status(), (true, true, None));
    fixture.machine.set_commands(exit(0, ""));
    wait(50).await;
    assert!(fixture.machine.commands_run().len() > 5);
    assert_eq!(fixture.changes(), []);
}

#[tokio::test(start_paused = true)]
async fn n_94_and_n_211_an_error_is_retried_twice_and_does_not_count() {
    let container = json!({ "livenessProbe": probe(json!({ "failureThreshold": 1 })) });
    let mut fixture = Fixture::with(container, Commands::Fail("no shim")).await;
    wait(15).await;
    let events = fixture.recorded();
    let message = "Liveness probe errored and resulted in unknown state: no shim";
    assert!(events.iter().all(|event| *event == ("Unhealthy".to_owned(), message.to_owned())));
    assert_eq!(fixture.machine.commands_run().len(), events.len() * 3);
    assert_eq!(fixture.status(), (true, true, None));
    assert_eq!(fixture.changes(), []);
}

#[tokio::test(start_paused = true)]
async fn n_95_a_container_from_before_a_restart_keeps_its_status_until_the_first_new_result() {
    let container = json!({
        "startupProbe": probe(json!({})),
        "readinessProbe": probe(json!({ "failureThreshold": 1 })),
    });
    let mut fixture = Fixture::of_pod(pod(container), exit(1, ""));
    fixture.observe_running("id-1", Some(Restored { ready: true, started: true }));
    assert_eq!(fixture.status(), (true, true, None));
    wait(30).await;
    assert_eq!(fixture.status(), (true, false, None));
    assert_eq!(fixture.changes(), [(ProbeKind::Readiness, false)]);
}

#[tokio::test(start_paused = true)]
async fn t_node_60_t_node_61_termination_stops_liveness_probes_of_regular_containers_only() {
    let mut pod = Pod::clone(&pod(json!({
        "livenessProbe": probe(json!({ "exec": { "command": ["alive"] } })),
        "readinessProbe": probe(json!({ "exec": { "command": ["ready"] } })),
    })));
    let sidecar = json!({ "name": "side", "restartPolicy": "Always",
        "livenessProbe": probe(json!({ "exec": { "command": ["side-alive"] } })) });
    pod.spec.as_mut().unwrap().init_containers = serde_json::from_value(json!([sidecar])).unwrap();
    let fixture = Fixture::of_pod(Arc::new(pod), exit(0, ""));
    fixture.observe_running("id-1", None);
    let now = ContainerRun::Running {
        id: "s-1".into(),
        since: LONG_AGO.parse().unwrap(),
        restored: None,
    };
    fixture.prober.observe("u1", "127.0.0.1", "side", now);
    wait(20).await;
    fixture.prober.stop_liveness("u1");
    fixture.machine.clear_commands_run();
    wait(60).await;
    let ran = fixture.machine.commands_run().concat();
    for (command, expected) in [("alive", false), ("ready", true), ("side-alive", true)] {
        assert_eq!(ran.iter().any(|ran| ran == command), expected, "{command}");
    }
    fixture.prober.remove_pod("u1");
    fixture.machine.clear_commands_run();
    wait(60).await;
    assert_eq!(fixture.machine.commands_run().len(), 0);
}

/// T-NODE-44, T-NODE-60: stopping the startup probe does not make a container started or ready.
#[tokio::test(start_paused = true)]
async fn termination_does_not_make_a_container_started() {
    let startup = probe(json!({ "failureThreshold": 100, "exec": { "command": ["started"] } }));
    let mut fixture = Fixture::with(json!({ "startupProbe": startup.clone() }), exit(1, "")).await;
    wait(20).await;
    assert_eq!(fixture.status(), (false, false, None));
    fixture.prober.stop_liveness("u1");
    fixture.machine.clear_commands_run();
    wait(60).await;
    assert_eq!(fixture.status(), (false, false, None));
    assert_eq!(fixture.machine.commands_run().len(), 0, "no probe runs any more");

    let mut pod = Pod::clone(&pod(json!({})));
    let sidecar = json!({ "name": "side", "restartPolicy": "Always", "startupProbe": startup });
    pod.spec.as_mut().unwrap().init_containers = serde_json::from_value(json!([sidecar])).unwrap();
    fixture = Fixture::of_pod(Arc::new(pod), exit(1, ""));
    let since = LONG_AGO.parse().unwrap();
    let now = ContainerRun::Running { id: "s-1".into(), since, restored: None };
    fixture.prober.observe("u1", "127.0.0.1", "side", now);
    wait(20).await;
    fixture.prober.stop_liveness_of("u1", "side");
    let status = fixture.prober.statuses("u1").remove("side").unwrap();
    assert_eq!((status.started, status.ready), (false, false), "T-EDGE-12");
}

#[tokio::test(start_paused = true)]
async fn attempts_are_counted_by_result() {
    let container = json!({ "readinessProbe": probe(json!({})) });
    let fixture = Fixture::with(container, exit(0, "")).await;
    wait(25).await;
    fixture.machine.set_commands(exit(1, ""));
    wait(20).await;
    let counts = fixture.prober.counts();
    let of = |result: &str| counts.iter().find(|c| c.result == result).map_or(0, |c| c.count);
    assert!(of("successful") >= 2 && of("failed") == 2 && of("unknown") == 0, "{counts:?}");
    assert_eq!((counts[0].pod.as_str(), counts[0].container.as_str()), ("web", "c"));
}
