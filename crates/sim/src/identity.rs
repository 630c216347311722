//! The story of pods that have names of their own: StatefulSets on nodes that are cut off for as long
//! as it takes to be given up, with crashes, and people who delete, roll, scale and sometimes force.
//!
//! Not here: that no two processes ever have one name (`judge/identity.rs`).

use crate::book::What;
use crate::chance::Chance;
use crate::cluster::{Cluster, Person};
use crate::line::{State, Weather};
use crate::plan;
use crate::run;
use crate::scenario::Scenario;
use crate::script::{OnTerm, Script};
use client::{DeleteOptions, ObjectKey};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Node, Taint};
use serde_json::{Value, json};
use std::time::Duration;

const NAMESPACE: &str = "default";
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
/// Shorter than anybody notices; noticed; given up (a node is lost after 40 s, its pods stay for 300 s
/// unless they say otherwise).
const CUTS: [u64; 3] = [2, 60, 400];
/// After everything healed every set is whole within this: a queue waits up to a minute between two
/// attempts, and a set of three starts its pods one after another.
const PATIENCE: Duration = Duration::from_secs(900);
const LOOK: Duration = Duration::from_secs(1);

struct Deed {
    at: Duration,
    what: Act,
}

enum Act {
    Create(Box<StatefulSet>),
    Scale { set: String, replicas: u64 },
    Roll { set: String, to: u64 },
    Delete { pod: String, grace: Option<u32> },
    DeleteNode { host: usize },
    OutOfService { host: usize, lasts: Duration },
    Trouble(plan::Act),
}

pub(crate) async fn tell(cluster: &mut Cluster, scenario: &Scenario, seed: u64) {
    let began = tokio::time::Instant::now();
    for deed in draw(scenario, seed) {
        tokio::time::sleep_until(began + deed.at).await;
        if cluster.book.broken().is_some() {
            return;
        }
        act(cluster, deed.what).await;
    }
    tokio::time::sleep_until(began + scenario.span).await;
    heal(cluster);
    become_whole(cluster).await;
}

/// In the order of time.
fn draw(scenario: &Scenario, seed: u64) -> Vec<Deed> {
    let mut chance = Chance::new(seed, 3);
    let span = scenario.span.as_millis() as u64;
    let mut deeds = Vec::new();
    let mut names = Vec::new();
    for number in 0..chance.between(1, 2) {
        let (set, replicas) = (format!("db{number}"), chance.between(1, 3));
        names.extend((0..replicas).map(|ordinal| format!("{set}-{ordinal}")));
        let object = Box::new(stateful_set(&mut chance, &set, replicas));
        deeds.push(Deed { at: chance.millis(0, 2000), what: Act::Create(object) });
        if chance.percent(30) {
            let (set, replicas) = (set.clone(), chance.between(0, 4));
            let what = Act::Scale { set, replicas };
            deeds.push(Deed { at: chance.millis(5000, span), what });
        }
        if chance.percent(30) {
            let what = Act::Roll { set, to: chance.below(1000) };
            deeds.push(Deed { at: chance.millis(5000, span), what });
        }
    }
    // In most stories nobody forces anything, so that there is nothing to excuse.
    let force = chance.percent(30);
    for _ in 0..chance.between(1, 5) {
        let grace = match chance.below(10) {
            0..2 if force => Some(0),
            2..4 => Some(chance.between(1, 20) as u32),
            _ => None,
        };
        let what = Act::Delete { pod: chance.pick(&names).clone(), grace };
        deeds.push(Deed { at: chance.millis(5000, span), what });
    }
    for _ in 0..chance.between(1, 3) {
        cut(&mut deeds, &mut chance, scenario, force);
    }
    for _ in 0..chance.between(0, 2) {
        let at = chance.millis(0, span);
        deeds.push(Deed { at, what: Act::Trouble(crash(&mut chance, scenario)) });
    }
    // Ties in the order they were drawn.
    deeds.sort_by_key(|deed| deed.at);
    deeds
}

/// A node is cut off, and somebody may think that he knows what to do about it.
fn cut(deeds: &mut Vec<Deed>, chance: &mut Chance, scenario: &Scenario, force: bool) {
    let host = chance.below(u64::from(scenario.nodes)) as usize;
    let seconds = *chance.pick(&CUTS);
    let lasts = Duration::from_secs(seconds);
    let at = chance.millis(3000, scenario.span.as_millis() as u64 / 2);
    let trouble = match chance.percent(50) {
        true => plan::Act::Refuse { host, lasts },
        false => plan::Act::Silence { host, lasts },
    };
    deeds.push(Deed { at, what: Act::Trouble(trouble) });
    if force && seconds > 2 && chance.percent(60) {
        let at = at + chance.millis(1000, seconds * 500);
        let what = match chance.percent(50) {
            true => Act::DeleteNode { host },
            false => Act::OutOfService { host, lasts: chance.millis(60_000, seconds * 1000) },
        };
        deeds.push(Deed { at, what });
    }
}

fn crash(chance: &mut Chance, scenario: &Scenario) -> plan::Act {
    let host = chance.below(u64::from(scenario.nodes)) as usize;
    let downtime = match chance.percent(20) {
        true => chance.millis(60_000, 200_000),
        false => chance.millis(0, 20_000),
    };
    match chance.below(3) {
        0 => plan::Act::CrashPlane { downtime: downtime.min(Duration::from_secs(90)) },
        1 => {
            plan::Act::CutPlane { writes: chance.between(0, 30), downtime: Duration::from_secs(1) }
        }
        _ => plan::Act::CrashAgent { host, steps: chance.below(60), downtime },
    }
}

fn stateful_set(chance: &mut Chance, name: &str, replicas: u64) -> StatefulSet {
    let term = match chance.below(3) {
        0 => OnTerm::Ignore,
        1 => OnTerm::Exit { after: chance.millis(50, 9000), code: 0 },
        _ => OnTerm::Exit { after: Duration::ZERO, code: 0 },
    };
    let start = if chance.percent(15) { chance.millis(200, 4000) } else { Duration::ZERO };
    let script = Script { start, term, run: None };
    let grace = *chance.pick(&[1, 5, 12, 30]);
    let policy = *chance.pick(&["OrderedReady", "Parallel"]);
    // How long it stays on a node that nobody hears of; by default 300 s.
    let tolerations: Vec<Value> = match chance.pick(&[None, Some(0), Some(5), Some(60)]) {
        None => Vec::new(),
        Some(seconds) => ["not-ready", "unreachable"]
            .iter()
            .map(|what| {
                json!({ "key": format!("node.kubernetes.io/{what}"), "operator": "Exists",
                        "effect": "NoExecute", "tolerationSeconds": seconds })
            })
            .collect(),
    };
    let set = json!({
        "metadata": { "name": name, "namespace": NAMESPACE },
        "spec": {
            "serviceName": name,
            "replicas": replicas,
            "podManagementPolicy": policy,
            "selector": { "matchLabels": { "app": name } },
            "template": {
                "metadata": { "labels": { "app": name } },
                "spec": {
                    "automountServiceAccountToken": false,
                    "enableServiceLinks": false,
                    "terminationGracePeriodSeconds": grace,
                    "tolerations": tolerations,
                    "containers": [{ "name": "c", "image": "sim/here:1", "args": script.args() }],
                },
            },
        },
    });
    typed::from_value(set).unwrap_or_default()
}

async fn act(cluster: &mut Cluster, what: Act) {
    let person = cluster.person.clone();
    match what {
        Act::Trouble(trouble) => run::act(cluster, trouble).await,
        Act::Create(set) => drop(tokio::spawn(create(person, set))),
        Act::Scale { set, replicas } => {
            let patch = json!({ "spec": { "replicas": replicas } });
            cluster.book.say(format!("somebody wants {replicas} of {set}"));
            tokio::spawn(change(person, set, patch));
        }
        Act::Roll { set, to } => {
            let annotations = json!({ "rolled": to.to_string() });
            let template = json!({ "metadata": { "annotations": annotations } });
            cluster.book.say(format!("somebody rolls {set}"));
            tokio::spawn(change(person, set, json!({ "spec": { "template": template } })));
        }
        Act::Delete { pod, grace } => drop(tokio::spawn(person.delete(pod, grace))),
        Act::DeleteNode { host } => {
            tokio::spawn(delete_node(person, cluster.hosts[host].name.clone()));
        }
        Act::OutOfService { host, lasts } => {
            tokio::spawn(out_of_service(person, cluster.hosts[host].name.clone(), lasts));
        }
    }
}

async fn create(person: Person, set: Box<StatefulSet>) {
    let set = &*set;
    person.insist("a set", |client| async move { client.create(set).await }).await;
}

async fn change(person: Person, set: String, patch: Value) {
    let (key, patch) = (&ObjectKey::new(NAMESPACE, &set), &patch);
    person
        .insist(
            "a change",
            |client| async move { client.patch_merge::<StatefulSet>(key, patch).await },
        )
        .await;
}

/// It is off until its agent, which knows better, has made it again.
async fn delete_node(person: Person, name: String) {
    let key = &ObjectKey::cluster(&name);
    let disowned = |still| What::Disowned { node: name.as_str().into(), still };
    person.book.write(disowned(true));
    let delete = |client: client::Client| async move {
        client.delete::<Node>(key, &DeleteOptions::default()).await
    };
    person.insist("the end of a node", delete).await;
    while !matches!(person.client.find::<Node>(key).await, Ok(Some(_))) {
        tokio::time::sleep(LOOK).await;
    }
    person.book.write(disowned(false));
}

async fn out_of_service(person: Person, name: String, lasts: Duration) {
    let disowned = |still| What::Disowned { node: name.as_str().into(), still };
    person.book.write(disowned(true));
    taint(&person, &name, true).await;
    tokio::time::sleep(lasts).await;
    taint(&person, &name, false).await;
    person.book.write(disowned(false));
}

async fn taint(person: &Person, name: &str, there: bool) {
    let key = &ObjectKey::cluster(name);
    let ask = |client: client::Client| async move {
        let mut node = client.get::<Node>(key).await?;
        let taints = node.spec.get_or_insert_default().taints.get_or_insert_default();
        taints.retain(|taint| taint.key != OUT_OF_SERVICE);
        if there {
            taints.push(Taint {
                key: OUT_OF_SERVICE.to_owned(),
                value: Some("nodeshutdown".to_owned()),
                effect: "NoExecute".to_owned(),
                time_added: None,
            });
        }
        client.update(&node).await
    };
    person.insist("a taint", ask).await;
}

/// Nothing goes wrong any more.
fn heal(cluster: &Cluster) {
    cluster.book.say("everything heals");
    for host in &cluster.hosts {
        host.line.set(State::Up);
        host.line.set_weather(Weather::default());
        host.spare();
        tokio::spawn({
            let (person, name) = (cluster.person.clone(), host.name.clone());
            async move { taint(&person, &name, false).await }
        });
    }
}

/// Every set has what it wants, and nothing is left of what it had.
async fn become_whole(cluster: &Cluster) {
    let until = tokio::time::Instant::now() + PATIENCE;
    while cluster.book.broken().is_none() {
        tokio::time::sleep(LOOK).await;
        let missing = missing(cluster).await;
        let Some(missing) = missing else { return };
        if tokio::time::Instant::now() > until {
            return cluster.book.find("sets become whole", missing);
        }
    }
}

async fn missing(cluster: &Cluster) -> Option<String> {
    // Its pods may yet be given up, though all is well so far.
    if let Some(host) = cluster.hosts.iter().find(|host| host.is_away()) {
        return Some(format!("nobody runs on {}", host.name));
    }
    if !cluster.book.ask(|judge| judge.is_quiet()) {
        return Some("something still ends".to_owned());
    }
    match cluster.person.client.list::<StatefulSet>(&Default::default()).await {
        Err(error) => Some(error.to_string()),
        Ok(sets) => {
            let unfinished = sets.iter().find(|set| !is_whole(set))?;
            Some(format!("{:?}: {:?}", unfinished.metadata.name, unfinished.status))
        }
    }
}

fn is_whole(set: &StatefulSet) -> bool {
    let wanted = set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    set.status.as_ref().is_some_and(|status| {
        status.replicas == wanted
            && status.ready_replicas.unwrap_or(0) == wanted
            && status.updated_replicas.unwrap_or(0) == wanted
            && status.observed_generation == set.metadata.generation
    })
}
