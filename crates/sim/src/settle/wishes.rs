//! What a person wants of a cluster: workloads that come, change and go, and namespaces with all that is
//! in them.

use crate::chance::Chance;
use crate::cluster::Person;
use crate::plan;
use crate::scenario::Scenario;
use crate::script::{OnTerm, Script};
use client::{Client, DeleteOptions, Object, ObjectKey, Propagation};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, StatefulSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Namespace, Service};
use serde_json::{Value, json};
use std::time::Duration;

/// The second one may be deleted with everything in it.
pub(super) const NAMESPACES: [&str; 2] = ["default", "shop"];

pub(super) struct Deed {
    pub(super) at: Duration,
    pub(super) what: Act,
}

pub(super) enum Act {
    Wish(Wish),
    Trouble(plan::Act),
}

#[derive(Clone)]
pub(super) struct Wish {
    kind: Kind,
    key: ObjectKey,
    verb: Verb,
}

#[derive(Clone)]
enum Verb {
    Create(Value),
    Patch(Value),
    Delete(Option<Propagation>),
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Namespace,
    Deployment,
    StatefulSet,
    DaemonSet,
    Job,
    Service,
}

/// In the order of time.
pub(super) fn draw(scenario: &Scenario, seed: u64) -> Vec<Deed> {
    let mut chance = Chance::new(seed, 5);
    let span = scenario.span.as_millis() as u64;
    let mut deeds = Vec::new();
    let [_, shop] = NAMESPACES;
    let namespace = |verb| Wish { kind: Kind::Namespace, key: ObjectKey::cluster(shop), verb };
    let made = json!({ "metadata": { "name": shop } });
    deeds.push((0, namespace(Verb::Create(made.clone()))));
    if chance.percent(40) {
        let gone = chance.between(span / 3, span * 2 / 3);
        deeds.push((gone, namespace(Verb::Delete(None))));
        if chance.percent(50) {
            deeds.push((gone + chance.between(0, 20_000), namespace(Verb::Create(made))));
        }
    }
    for number in 0..chance.between(3, 7) {
        life(&mut deeds, &mut chance, number, span);
    }
    let wish = |(at, wish)| Deed { at: Duration::from_millis(at), what: Act::Wish(wish) };
    let mut deeds: Vec<Deed> = deeds.into_iter().map(wish).collect();
    for _ in 0..chance.between(0, 3) {
        let what = Act::Trouble(trouble(&mut chance, scenario));
        deeds.push(Deed { at: chance.millis(0, span), what });
    }
    // Ties in the order they were drawn.
    deeds.sort_by_key(|deed| deed.at);
    deeds
}

fn life(deeds: &mut Vec<(u64, Wish)>, chance: &mut Chance, number: u64, span: u64) {
    use Kind::*;
    let kind = *chance.pick(&[Deployment, Deployment, StatefulSet, DaemonSet, Job, Service]);
    let namespace = *chance.pick(&NAMESPACES);
    let name = format!("w{number}");
    let key = ObjectKey::new(namespace, &name);
    let wish = |verb| Wish { kind, key: key.clone(), verb };
    let born = chance.between(500, span / 2);
    let object = object(chance, kind, namespace, &name);
    deeds.push((born, wish(Verb::Create(object.clone()))));
    for _ in 0..chance.between(0, 2) {
        let at = chance.between(born, span);
        deeds.extend(change(chance, kind).map(|patch| (at, wish(Verb::Patch(patch)))));
    }
    if chance.percent(40) {
        let dies = chance.between(born, span);
        // A Job's pods would otherwise stay, as they always have (batch/v1 orphans them by default).
        let default = if kind == Kind::Job { Some(Propagation::Background) } else { None };
        let how = [default, Some(Propagation::Background), Some(Propagation::Foreground)];
        deeds.push((dies, wish(Verb::Delete(*chance.pick(&how)))));
        if chance.percent(40) {
            deeds.push((dies + chance.between(0, 10_000), wish(Verb::Create(object))));
        }
    }
}

fn trouble(chance: &mut Chance, scenario: &Scenario) -> plan::Act {
    let host = chance.below(u64::from(scenario.nodes)) as usize;
    match chance.below(4) {
        0 => plan::Act::CrashPlane { downtime: chance.millis(0, 15_000) },
        1 => {
            let writes = chance.between(0, 30);
            plan::Act::CutPlane { writes, downtime: chance.millis(0, 5000) }
        }
        2 => {
            let downtime = chance.millis(0, 20_000);
            plan::Act::CrashAgent { host, steps: chance.below(60), downtime }
        }
        _ => plan::Act::Refuse { host, lasts: chance.millis(100, 60_000) },
    }
}

/// None: there is nothing to change about one.
fn change(chance: &mut Chance, kind: Kind) -> Option<Value> {
    let scale = json!({ "spec": { "replicas": chance.between(0, 4) } });
    let annotations = json!({ "rolled": chance.below(1000).to_string() });
    let roll = json!({ "spec": { "template": { "metadata": { "annotations": annotations } } } });
    match kind {
        Kind::Deployment | Kind::StatefulSet => Some(if chance.percent(50) { scale } else { roll }),
        Kind::DaemonSet => Some(roll),
        Kind::Job | Kind::Service | Kind::Namespace => None,
    }
}

fn object(chance: &mut Chance, kind: Kind, namespace: &str, name: &str) -> Value {
    let ends = (kind == Kind::Job)
        .then(|| (chance.millis(500, 20_000), if chance.percent(70) { 0 } else { 1 }));
    let after = chance.millis(0, 5000);
    let script = Script { start: Duration::ZERO, term: OnTerm::Exit { after, code: 0 }, run: ends };
    let labels = json!({ "app": name });
    let mut template = json!({
        "metadata": { "labels": labels },
        "spec": {
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "terminationGracePeriodSeconds": *chance.pick(&[1, 5, 30]),
            "containers": [{ "name": "c", "image": "sim/here:1", "args": script.args() }],
        },
    });
    let metadata = json!({ "namespace": namespace, "name": name });
    let selector = json!({ "matchLabels": labels });
    let replicas = chance.between(0, 3);
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
            let completions = chance.between(1, 3);
            json!({ "completions": completions, "parallelism": 2, "backoffLimit": 1,
                    "template": template })
        }
        // Of whichever workload has that number, if there is one.
        Kind::Service => {
            let app = format!("w{}", chance.below(5));
            json!({ "selector": { "app": app }, "ports": [{ "port": 80 }] })
        }
    };
    json!({ "metadata": metadata, "spec": spec })
}

/// He asks until there is an answer.
pub(super) fn make(person: &Person, wish: Wish) {
    let person = person.clone();
    let verb = match &wish.verb {
        Verb::Create(_) => "wants",
        Verb::Patch(_) => "changes",
        Verb::Delete(_) => "deletes",
    };
    person.book.say(format!("somebody {verb} {:?} {}", wish.kind, wish.key));
    tokio::spawn(async move {
        let wish = &wish;
        let ask = |client: Client| async move {
            match wish.kind {
                Kind::Namespace => ask::<Namespace>(&client, wish).await,
                Kind::Deployment => ask::<Deployment>(&client, wish).await,
                Kind::StatefulSet => ask::<StatefulSet>(&client, wish).await,
                Kind::DaemonSet => ask::<DaemonSet>(&client, wish).await,
                Kind::Job => ask::<Job>(&client, wish).await,
                Kind::Service => ask::<Service>(&client, wish).await,
            }
        };
        person.insist("a wish", ask).await;
    });
}

async fn ask<K: Object<DynamicType = ()>>(client: &Client, wish: &Wish) -> client::Result<()> {
    match &wish.verb {
        Verb::Create(object) => {
            // It is our own, so it can be read; if not, the server says what is wrong.
            let Ok(object) = typed::from_value::<K>(object.clone()) else { return Ok(()) };
            client.create(&object).await.map(drop)
        }
        Verb::Patch(patch) => client.patch_merge::<K>(&wish.key, patch).await.map(drop),
        Verb::Delete(how) => {
            let options = DeleteOptions { propagation: *how, ..DeleteOptions::default() };
            client.delete::<K>(&wish.key, &options).await.map(drop)
        }
    }
}
