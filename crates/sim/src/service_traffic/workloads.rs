//! What users request: Deployments and their Services, which are created, changed and deleted.

use crate::plan;
use crate::random::Random;
use crate::scenario::Scenario;
use crate::script::{Hook, IS_LISTENING, Listen, OnTerm, Script};
use crate::workload_request::{Kind, Verb, WorkloadRequest};
use client::{ObjectKey, Propagation};
use serde_json::{Value, json};
use std::time::Duration;

const NAMESPACE: &str = "default";
/// At which all pods listen.
const PORT: u16 = 8080;

pub(super) struct PlannedAction {
    pub(super) at: Duration,
    pub(super) what: Action,
}

pub(super) enum Action {
    Workload(WorkloadRequest),
    /// One of the pods that exist then; the number says which.
    DeletePod(u64),
    Fault(plan::Action),
}

/// All actions, ordered by time.
pub(super) fn draw(scenario: &Scenario, seed: u64) -> Vec<PlannedAction> {
    let mut random = Random::new(seed, 8);
    let span = scenario.span.as_millis() as u64;
    let mut actions = Vec::new();
    for number in 0..random.between(1, 3) {
        let name = format!("web{number}");
        add_deployment(&mut actions, &mut random, &name, scenario);
        add_service(&mut actions, &mut random, &name, span);
    }
    for _ in 0..random.between(0, 3) {
        let what = Action::DeletePod(random.next());
        actions.push(PlannedAction { at: random.millis(span / 6, span), what });
    }
    if super::has_faults(seed) {
        for _ in 0..random.between(1, 4) {
            let fault = *random.pick(scenario.faults);
            let what = Action::Fault(plan::fault_of(&mut random, scenario, fault));
            actions.push(PlannedAction { at: random.millis(0, span), what });
        }
    }
    // The sort is stable: actions at the same time stay in the order in which they were drawn.
    actions.sort_by_key(|action| action.at);
    actions
}

fn add(actions: &mut Vec<PlannedAction>, at: u64, kind: Kind, name: &str, verb: Verb) {
    let request = WorkloadRequest { kind, key: ObjectKey::new(NAMESPACE, name), verb };
    actions.push(PlannedAction { at: Duration::from_millis(at), what: Action::Workload(request) });
}

fn add_deployment(
    actions: &mut Vec<PlannedAction>,
    random: &mut Random,
    name: &str,
    scenario: &Scenario,
) {
    let (kind, span) = (Kind::Deployment, scenario.span.as_millis() as u64);
    let mut object = deployment(random, name);
    if scenario.acknowledged {
        object["spec"]["template"]["metadata"]["annotations"] =
            json!({ "landfall.dev/drain": "acknowledged" });
    }
    add(actions, random.between(0, 2000), kind, name, Verb::Create(object.clone()));
    for _ in 0..random.between(1, 4) {
        let annotations = json!({ "rolled": random.below(1000).to_string() });
        let patch = match random.percent(60) {
            true => {
                json!({ "spec": { "template": { "metadata": { "annotations": annotations } } } })
            }
            false => json!({ "spec": { "replicas": random.between(0, 5) } }),
        };
        add(actions, random.between(5000, span), kind, name, Verb::Patch(patch));
    }
    if random.percent(25) {
        let deleted = random.between(span / 3, span);
        let how = *random.pick(&[Propagation::Background, Propagation::Foreground]);
        add(actions, deleted, kind, name, Verb::Delete(Some(how)));
        if random.percent(60) {
            let again = deleted + random.between(0, 10_000);
            add(actions, again, kind, name, Verb::Create(object));
        }
    }
}

fn add_service(actions: &mut Vec<PlannedAction>, random: &mut Random, name: &str, span: u64) {
    let kind = Kind::Service;
    let object = service(random, name);
    let created = random.between(0, 5000);
    add(actions, created, kind, name, Verb::Create(object.clone()));
    if random.percent(30) {
        let policy = *random.pick(&["Local", "Cluster"]);
        let patch = json!({ "spec": { "internalTrafficPolicy": policy } });
        add(actions, random.between(created, span), kind, name, Verb::Patch(patch));
    }
    if random.percent(20) {
        let deleted = random.between(span / 3, span);
        add(actions, deleted, kind, name, Verb::Delete(None));
        if random.percent(60) {
            let again = deleted + random.between(0, 5000);
            add(actions, again, kind, name, Verb::Create(object));
        }
    }
}

fn deployment(random: &mut Random, name: &str) -> Value {
    let term = match random.below(4) {
        0 => OnTerm::Ignore,
        1 => OnTerm::Exit { after: Duration::ZERO, code: 0 },
        _ => OnTerm::Exit { after: random.millis(50, 9000), code: 0 },
    };
    let probed = random.percent(70);
    // Without a probe a pod counts as ready as soon as it runs.
    let after = if probed { random.millis(0, 6000) } else { Duration::ZERO };
    let listen = Some(Listen { port: PORT, after, until_exit: random.percent(50) });
    let start = if random.percent(30) { random.millis(200, 4000) } else { Duration::ZERO };
    let script = Script { start, term, run: None, listen };
    let mut container = json!({
        "name": "c",
        "image": "sim/here:1",
        "args": script.args(),
        "ports": [{ "name": "http", "containerPort": PORT }],
    });
    if probed {
        container["readinessProbe"] =
            json!({ "exec": { "command": [IS_LISTENING] }, "periodSeconds": random.between(1, 3) });
    }
    // Most users wait in a hook until no node sends requests any more.
    if random.percent(50) {
        let hook = Hook { takes: Some(random.millis(500, 6000)), code: 0 };
        container["lifecycle"] = json!({ "preStop": { "exec": { "command": hook.command() } } });
    }
    let surge = *random.pick(&[(0, 1), (1, 0), (1, 1), (2, 0)]);
    let labels = json!({ "app": name });
    json!({
        "metadata": { "namespace": NAMESPACE, "name": name },
        "spec": {
            "replicas": random.between(1, 4),
            "selector": { "matchLabels": labels },
            "strategy": { "rollingUpdate": { "maxSurge": surge.0, "maxUnavailable": surge.1 } },
            "template": {
                "metadata": { "labels": labels },
                "spec": {
                    "automountServiceAccountToken": false,
                    "enableServiceLinks": false,
                    "terminationGracePeriodSeconds": *random.pick(&[1, 5, 12, 30]),
                    "containers": [container],
                },
            },
        },
    })
}

fn service(random: &mut Random, name: &str) -> Value {
    let target = if random.percent(50) { json!("http") } else { json!(PORT) };
    let mut ports = vec![json!({ "name": "web", "port": 80, "targetPort": target })];
    if random.percent(30) {
        let port = json!({ "name": "quic", "port": 443, "protocol": "UDP", "targetPort": PORT });
        ports.push(port);
    }
    let mut spec = json!({ "selector": { "app": name }, "ports": ports });
    if random.percent(25) {
        spec["internalTrafficPolicy"] = "Local".into();
    }
    if random.percent(30) {
        spec["type"] = "NodePort".into();
        spec["externalTrafficPolicy"] = (*random.pick(&["Cluster", "Local"])).into();
    }
    json!({ "metadata": { "namespace": NAMESPACE, "name": name }, "spec": spec })
}
