//! The requests of users: workloads that are created, changed and deleted, and namespaces that are deleted with
//! everything in them.

use crate::plan;
use crate::random::Random;
use crate::scenario::Scenario;
use crate::script::{OnTerm, Script};
use crate::workload_request::{Kind, Verb, WorkloadRequest};
use client::{ObjectKey, Propagation};
use serde_json::{Value, json};
use std::time::Duration;

/// The second one may be deleted.
pub(super) const NAMESPACES: [&str; 2] = ["default", "shop"];

pub(super) struct PlannedAction {
    pub(super) at: Duration,
    pub(super) what: Action,
}

pub(super) enum Action {
    Workload(WorkloadRequest),
    Fault(plan::Action),
}

/// All actions, ordered by time.
pub(super) fn draw(scenario: &Scenario, seed: u64) -> Vec<PlannedAction> {
    let mut random = Random::new(seed, 5);
    let span = scenario.span.as_millis() as u64;
    let mut actions = Vec::new();
    let [_, shop] = NAMESPACES;
    let namespace =
        |verb| WorkloadRequest { kind: Kind::Namespace, key: ObjectKey::cluster(shop), verb };
    let made = json!({ "metadata": { "name": shop } });
    actions.push((0, namespace(Verb::Create(made.clone()))));
    if random.percent(40) {
        let gone = random.between(span / 3, span * 2 / 3);
        actions.push((gone, namespace(Verb::Delete(None))));
        if random.percent(50) {
            actions.push((gone + random.between(0, 20_000), namespace(Verb::Create(made))));
        }
    }
    for number in 0..random.between(3, 7) {
        add_workload(&mut actions, &mut random, number, span);
    }
    let request = |(at, request)| PlannedAction {
        at: Duration::from_millis(at),
        what: Action::Workload(request),
    };
    let mut actions: Vec<PlannedAction> = actions.into_iter().map(request).collect();
    for _ in 0..random.between(0, 3) {
        let what = Action::Fault(fault(&mut random, scenario));
        actions.push(PlannedAction { at: random.millis(0, span), what });
    }
    // The sort is stable: actions at the same time stay in the order in which they were drawn.
    actions.sort_by_key(|action| action.at);
    actions
}

fn add_workload(
    actions: &mut Vec<(u64, WorkloadRequest)>,
    random: &mut Random,
    number: u64,
    span: u64,
) {
    use Kind::*;
    let kind = *random.pick(&[Deployment, Deployment, StatefulSet, DaemonSet, Job, Service]);
    let namespace = *random.pick(&NAMESPACES);
    let name = format!("w{number}");
    let key = ObjectKey::new(namespace, &name);
    let request = |verb| WorkloadRequest { kind, key: key.clone(), verb };
    let created = random.between(500, span / 2);
    let object = object(random, kind, namespace, &name);
    actions.push((created, request(Verb::Create(object.clone()))));
    for _ in 0..random.between(0, 2) {
        let at = random.between(created, span);
        actions.extend(change(random, kind).map(|patch| (at, request(Verb::Patch(patch)))));
    }
    if random.percent(40) {
        let deleted = random.between(created, span);
        // By default the pods of a deleted Job are orphaned, as upstream does for batch/v1.
        let default = if kind == Kind::Job { Some(Propagation::Background) } else { None };
        let how = [default, Some(Propagation::Background), Some(Propagation::Foreground)];
        actions.push((deleted, request(Verb::Delete(*random.pick(&how)))));
        if random.percent(40) {
            actions.push((deleted + random.between(0, 10_000), request(Verb::Create(object))));
        }
    }
}

fn fault(random: &mut Random, scenario: &Scenario) -> plan::Action {
    let host = random.below(u64::from(scenario.nodes)) as usize;
    match random.below(4) {
        0 => plan::Action::CrashControlPlane { downtime: random.millis(0, 15_000) },
        1 => {
            let writes = random.between(0, 30);
            plan::Action::StopStoring { writes, downtime: random.millis(0, 5000) }
        }
        2 => {
            let downtime = random.millis(0, 20_000);
            plan::Action::CrashAgent { host, steps: random.below(60), downtime }
        }
        _ => plan::Action::Refuse { host, lasts: random.millis(100, 60_000) },
    }
}

/// None: objects of this kind are not changed.
fn change(random: &mut Random, kind: Kind) -> Option<Value> {
    let scale = json!({ "spec": { "replicas": random.between(0, 4) } });
    let annotations = json!({ "rolled": random.below(1000).to_string() });
    let roll = json!({ "spec": { "template": { "metadata": { "annotations": annotations } } } });
    match kind {
        Kind::Deployment | Kind::StatefulSet => Some(if random.percent(50) { scale } else { roll }),
        Kind::DaemonSet => Some(roll),
        Kind::Job | Kind::Service | Kind::Namespace => None,
    }
}

fn object(random: &mut Random, kind: Kind, namespace: &str, name: &str) -> Value {
    let ends = (kind == Kind::Job)
        .then(|| (random.millis(500, 20_000), if random.percent(70) { 0 } else { 1 }));
    let after = random.millis(0, 5000);
    let term = OnTerm::Exit { after, code: 0 };
    let script = Script { term, run: ends, ..Script::default() };
    let labels = json!({ "app": name });
    let mut template = json!({
        "metadata": { "labels": labels },
        "spec": {
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "terminationGracePeriodSeconds": *random.pick(&[1, 5, 30]),
            "containers": [{ "name": "c", "image": "sim/here:1", "args": script.args() }],
        },
    });
    let metadata = json!({ "namespace": namespace, "name": name });
    let selector = json!({ "matchLabels": labels });
    let replicas = random.between(0, 3);
    let spec = match kind {
        Kind::Namespace => return json!({ "metadata": { "name": name } }),
        Kind::Deployment => {
            json!({ "replicas": replicas, "selector": selector, "template": template })
        }
        Kind::StatefulSet => json!({
            "replicas": replicas, "selector": selector, "template": template, "serviceName": name,
        }),
        Kind::DaemonSet => json!({ "selector": selector, "template": template }),
        Kind::Job => {
            template["spec"]["restartPolicy"] = "Never".into();
            let completions = random.between(1, 3);
            json!({ "completions": completions, "parallelism": 2, "backoffLimit": 1,
                    "template": template })
        }
        // Selects the pods of the workload with that number, if there is one.
        Kind::Service => {
            let app = format!("w{}", random.below(5));
            json!({ "selector": { "app": app }, "ports": [{ "port": 80 }] })
        }
    };
    json!({ "metadata": metadata, "spec": spec })
}
