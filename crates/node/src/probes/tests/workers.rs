//! Probes over time, on a paused clock: exec probes, whose end the test decides.

use super::{Commands, End, pod};
use crate::probes::{ContainerNow, Kind, ProbeResult, Prober, Restored};
use client::{Happening, Recorder};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::sleep;

/// The system's clock does not pause, so containers have simply run for long; delays are tested in
/// `lifecycle`, whose clock is an argument.
const LONG_AGO: &str = "2020-01-01T00:00:00Z";

struct Stage {
    prober: Prober,
    commands: Arc<Commands>,
    results: mpsc::Receiver<ProbeResult>,
    events: mpsc::Receiver<Happening>,
}

impl Stage {
    async fn with(container: Value, end: End) -> Stage {
        let stage = Stage::of_pod(pod(container), end);
        stage.runs("id-1", None);
        stage
    }

    fn of_pod(pod: Arc<Pod>, end: End) -> Stage {
        let commands = Commands::ending(end);
        let (recorder, events) = Recorder::collecting();
        let (sender, results) = mpsc::channel(100);
        let prober = Prober::new(commands.clone(), recorder, sender);
        prober.add_pod(&pod);
        Stage { prober, commands, results, events }
    }

    fn runs(&self, id: &str, restored: Option<Restored>) {
        let since: Timestamp = LONG_AGO.parse().unwrap();
        let now = ContainerNow::Running { id: id.into(), since, restored };
        self.prober.observe("u1", "127.0.0.1", "c", now);
    }

    fn said(&self) -> (bool, bool, Option<Kind>) {
        let verdict = self.prober.results("u1").remove("c").unwrap();
        (verdict.started, verdict.ready, verdict.failed)
    }

    fn news(&mut self) -> Vec<(Kind, bool)> {
        let mut news = Vec::new();
        while let Ok(result) = self.results.try_recv() {
            news.push((result.kind, result.success));
        }
        news
    }

    fn told(&mut self) -> Vec<(String, String)> {
        let mut told = Vec::new();
        while let Ok(event) = self.events.try_recv() {
            assert_eq!(event.on.field_path.as_deref(), Some("spec.containers{c}"));
            told.push((event.reason, event.message));
        }
        told
    }
}

fn probe(more: Value) -> Value {
    let mut probe = json!({ "exec": { "command": ["check"] }, "periodSeconds": 10 });
    for (key, value) in more.as_object().unwrap() {
        probe[key] = value.clone();
    }
    probe
}

async fn pass(seconds: u64) {
    sleep(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn n_91_a_container_without_probes_is_all_it_can_be_as_soon_as_it_runs() {
    let stage = Stage::of_pod(pod(json!({})), End::Never);
    assert!(stage.prober.results("u1").is_empty());
    stage.runs("id-1", None);
    assert_eq!(stage.said(), (true, true, None));
    stage.prober.observe("u1", "", "c", ContainerNow::NotRunning);
    assert!(stage.prober.results("u1").is_empty());
}

#[tokio::test(start_paused = true)]
async fn n_89_a_probe_ticks_every_period() {
    let container = json!({ "livenessProbe": probe(json!({})) });
    let stage = Stage::with(container, End::Exit(0, "")).await;
    pass(100).await;
    assert!((9..=11).contains(&stage.commands.count()), "{}", stage.commands.count());
}

#[tokio::test(start_paused = true)]
async fn n_92_and_n_212_a_container_that_could_be_ready_is_asked_at_once() {
    let container = json!({ "readinessProbe": probe(json!({ "periodSeconds": 3600 })) });
    let mut stage = Stage::with(container, End::Exit(1, "")).await;
    stage.prober.judge("u1");
    sleep(Duration::from_millis(10)).await;
    assert_eq!(stage.commands.count(), 1);
    assert_eq!(stage.said(), (true, false, None));
    stage.commands.ends(End::Exit(0, ""));
    assert!(!stage.prober.judge("u1")["c"].ready);
    sleep(Duration::from_millis(10)).await;
    assert_eq!(stage.said(), (true, true, None));
    assert_eq!(stage.news(), [(Kind::Readiness, true)]);
    // Ready already: nobody hurries any more.
    let before = stage.commands.count();
    stage.prober.judge("u1");
    sleep(Duration::from_millis(10)).await;
    assert_eq!(stage.commands.count(), before);
}

#[tokio::test(start_paused = true)]
async fn n_90_n_93_nothing_but_startup_is_asked_until_it_succeeds() {
    let container = json!({
        "startupProbe": probe(json!({ "failureThreshold": 100, "exec": { "command": ["started"] } })),
        "livenessProbe": probe(json!({ "exec": { "command": ["alive"] } })),
        "readinessProbe": probe(json!({ "exec": { "command": ["ready"] } })),
    });
    let mut stage = Stage::with(container, End::Exit(1, "")).await;
    pass(60).await;
    assert_eq!(stage.said(), (false, false, None));
    let ran = stage.commands.ran.lock().unwrap().clone();
    assert!(!ran.is_empty() && ran.iter().all(|command| command == &["started"]), "{ran:?}");
    stage.commands.ends(End::Exit(0, ""));
    pass(60).await;
    assert_eq!(stage.said(), (true, true, None));
    let news = stage.news();
    assert_eq!(news, [(Kind::Startup, true), (Kind::Readiness, true)]);
    let ran = stage.commands.ran.lock().unwrap().clone();
    let last = ran.iter().rposition(|command| command == &["started"]).unwrap();
    assert!(ran[last..].len() > 5, "startup is not asked again: {ran:?}");
}

#[tokio::test(start_paused = true)]
async fn n_93_n_104_a_failed_liveness_probe_rests_until_there_is_a_new_container() {
    let container = json!({ "livenessProbe": probe(json!({ "failureThreshold": 3 })) });
    let mut stage = Stage::with(container, End::Exit(1, "dead")).await;
    pass(100).await;
    assert_eq!(stage.commands.count(), 3);
    assert_eq!(stage.said(), (true, true, Some(Kind::Liveness)));
    assert_eq!(stage.news(), [(Kind::Liveness, false)]);
    // Every failed attempt is told, not only the last.
    let event = ("Unhealthy".to_owned(), "Liveness probe failed: dead!".to_owned());
    assert_eq!(stage.told(), vec![event; 3]);
    stage.runs("id-2", None);
    assert_eq!(stage.said(), (true, true, None));
    stage.commands.ends(End::Exit(0, ""));
    pass(50).await;
    assert!(stage.commands.count() > 5);
    assert_eq!(stage.news(), []);
}

#[tokio::test(start_paused = true)]
async fn n_94_and_n_211_what_could_not_be_tried_is_tried_thrice_and_counts_for_nothing() {
    let container = json!({ "livenessProbe": probe(json!({ "failureThreshold": 1 })) });
    let mut stage = Stage::with(container, End::Refused("no shim")).await;
    pass(15).await;
    let told = stage.told();
    let said = "Liveness probe errored and resulted in unknown state: no shim";
    assert!(told.iter().all(|event| *event == ("Unhealthy".to_owned(), said.to_owned())));
    assert_eq!(stage.commands.count(), told.len() * 3);
    assert_eq!(stage.said(), (true, true, None));
    assert_eq!(stage.news(), []);
}

#[tokio::test(start_paused = true)]
async fn n_95_what_ran_before_the_agent_keeps_its_word_until_the_first_new_result() {
    let container = json!({
        "startupProbe": probe(json!({})),
        "readinessProbe": probe(json!({ "failureThreshold": 1 })),
    });
    let mut stage = Stage::of_pod(pod(container), End::Exit(1, ""));
    stage.runs("id-1", Some(Restored { ready: true, started: true }));
    assert_eq!(stage.said(), (true, true, None));
    pass(30).await;
    assert_eq!(stage.said(), (true, false, None));
    assert_eq!(stage.news(), [(Kind::Readiness, false)]);
}

#[tokio::test(start_paused = true)]
async fn t_node_60_t_node_61_ending_stops_liveness_of_regular_containers_only() {
    let mut pod = Pod::clone(&pod(json!({
        "livenessProbe": probe(json!({ "exec": { "command": ["alive"] } })),
        "readinessProbe": probe(json!({ "exec": { "command": ["ready"] } })),
    })));
    let sidecar = json!({ "name": "side", "restartPolicy": "Always",
        "livenessProbe": probe(json!({ "exec": { "command": ["side-alive"] } })) });
    pod.spec.as_mut().unwrap().init_containers = serde_json::from_value(json!([sidecar])).unwrap();
    let stage = Stage::of_pod(Arc::new(pod), End::Exit(0, ""));
    stage.runs("id-1", None);
    let now = ContainerNow::Running {
        id: "s-1".into(),
        since: LONG_AGO.parse().unwrap(),
        restored: None,
    };
    stage.prober.observe("u1", "127.0.0.1", "side", now);
    pass(20).await;
    stage.prober.stop_liveness("u1");
    stage.commands.ran.lock().unwrap().clear();
    pass(60).await;
    let ran = stage.commands.ran.lock().unwrap().concat();
    for (command, expected) in [("alive", false), ("ready", true), ("side-alive", true)] {
        assert_eq!(ran.iter().any(|ran| ran == command), expected, "{command}");
    }
    stage.prober.remove_pod("u1");
    stage.commands.ran.lock().unwrap().clear();
    pass(60).await;
    assert_eq!(stage.commands.count(), 0);
}

/// T-NODE-44, T-NODE-60: what a pod has not become before its end, it does not become by ending.
#[tokio::test(start_paused = true)]
async fn a_container_that_has_not_started_is_not_ready_because_it_ends() {
    let startup = probe(json!({ "failureThreshold": 100, "exec": { "command": ["started"] } }));
    let mut stage = Stage::with(json!({ "startupProbe": startup.clone() }), End::Exit(1, "")).await;
    pass(20).await;
    assert_eq!(stage.said(), (false, false, None));
    stage.prober.stop_liveness("u1");
    stage.commands.ran.lock().unwrap().clear();
    pass(60).await;
    assert_eq!(stage.said(), (false, false, None));
    assert_eq!(stage.commands.count(), 0, "nobody asks any more");

    let mut pod = Pod::clone(&pod(json!({})));
    let sidecar = json!({ "name": "side", "restartPolicy": "Always", "startupProbe": startup });
    pod.spec.as_mut().unwrap().init_containers = serde_json::from_value(json!([sidecar])).unwrap();
    stage = Stage::of_pod(Arc::new(pod), End::Exit(1, ""));
    let since = LONG_AGO.parse().unwrap();
    let now = ContainerNow::Running { id: "s-1".into(), since, restored: None };
    stage.prober.observe("u1", "127.0.0.1", "side", now);
    pass(20).await;
    stage.prober.stop_liveness_of("u1", "side");
    let verdict = stage.prober.results("u1").remove("side").unwrap();
    assert_eq!((verdict.started, verdict.ready), (false, false), "T-EDGE-12");
}

#[tokio::test(start_paused = true)]
async fn attempts_are_counted_by_their_end() {
    let container = json!({ "readinessProbe": probe(json!({})) });
    let stage = Stage::with(container, End::Exit(0, "")).await;
    pass(25).await;
    stage.commands.ends(End::Exit(1, ""));
    pass(20).await;
    let counts = stage.prober.counts();
    let of = |result: &str| counts.iter().find(|c| c.result == result).map_or(0, |c| c.count);
    assert!(of("successful") >= 2 && of("failed") == 2 && of("unknown") == 0, "{counts:?}");
    assert_eq!((counts[0].pod.as_str(), counts[0].container.as_str()), ("web", "c"));
}
