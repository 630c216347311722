//! The scenario `identity`: StatefulSets on nodes that are disconnected, some long enough for their pods to be
//! evicted, with crashes and users who delete, roll out, scale and sometimes force.
//!
//! Not here: the check that no two pods of one name run at once (`checker/identity.rs`).

use crate::cluster::{Cluster, Operator};
use crate::connection::{NetworkFaults, State};
use crate::event_log::Event;
use crate::plan;
use crate::random::Random;
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
/// Seconds of a disconnection: too short to be noticed; noticed (a node counts as lost after 40 s); long enough for
/// evictions (by default pods tolerate a lost node for 300 s).
const CUTS: [u64; 3] = [2, 60, 400];
/// Every set is complete within this time after all faults have ended: a queue waits up to a minute between two
/// attempts, and a set of three starts its pods one after another.
const PATIENCE: Duration = Duration::from_secs(900);
const POLL: Duration = Duration::from_secs(1);

struct PlannedAction {
    at: Duration,
    what: Action,
}

enum Action {
    Create(Box<StatefulSet>),
    Scale { set: String, replicas: u64 },
    Roll { set: String, to: u64 },
    Delete { pod: String, grace: Option<u32> },
    DeleteNode { host: usize },
    OutOfService { host: usize, lasts: Duration },
    Fault(plan::Action),
}

pub(crate) async fn simulate(cluster: &mut Cluster, scenario: &Scenario, seed: u64) {
    let began = tokio::time::Instant::now();
    for action in draw(scenario, seed) {
        tokio::time::sleep_until(began + action.at).await;
        if cluster.log.violation().is_some() {
            return;
        }
        perform(cluster, action.what).await;
    }
    tokio::time::sleep_until(began + scenario.span).await;
    heal(cluster);
    wait_until_complete(cluster).await;
}

/// All actions, ordered by time.
fn draw(scenario: &Scenario, seed: u64) -> Vec<PlannedAction> {
    let mut random = Random::new(seed, 3);
    let span = scenario.span.as_millis() as u64;
    let mut actions = Vec::new();
    let mut names = Vec::new();
    for number in 0..random.between(1, 2) {
        let (set, replicas) = (format!("db{number}"), random.between(1, 3));
        names.extend((0..replicas).map(|ordinal| format!("{set}-{ordinal}")));
        let object = Box::new(stateful_set(&mut random, &set, replicas));
        actions.push(PlannedAction { at: random.millis(0, 2000), what: Action::Create(object) });
        if random.percent(30) {
            let (set, replicas) = (set.clone(), random.between(0, 4));
            let what = Action::Scale { set, replicas };
            actions.push(PlannedAction { at: random.millis(5000, span), what });
        }
        if random.percent(30) {
            let what = Action::Roll { set, to: random.below(1000) };
            actions.push(PlannedAction { at: random.millis(5000, span), what });
        }
    }
    // In most runs no user forces anything, so that the strict rules apply.
    let force = random.percent(30);
    for _ in 0..random.between(1, 5) {
        let grace = match random.below(10) {
            0..2 if force => Some(0),
            2..4 => Some(random.between(1, 20) as u32),
            _ => None,
        };
        let what = Action::Delete { pod: random.pick(&names).clone(), grace };
        actions.push(PlannedAction { at: random.millis(5000, span), what });
    }
    for _ in 0..random.between(1, 3) {
        cut(&mut actions, &mut random, scenario, force);
    }
    for _ in 0..random.between(0, 2) {
        let at = random.millis(0, span);
        actions.push(PlannedAction { at, what: Action::Fault(crash(&mut random, scenario)) });
    }
    // The sort is stable: actions at the same time stay in the order in which they were drawn.
    actions.sort_by_key(|action| action.at);
    actions
}

/// Disconnects a node; a user may then delete the node or mark it out of service although it still runs.
fn cut(actions: &mut Vec<PlannedAction>, random: &mut Random, scenario: &Scenario, force: bool) {
    let host = random.below(u64::from(scenario.nodes)) as usize;
    let seconds = *random.pick(&CUTS);
    let lasts = Duration::from_secs(seconds);
    let at = random.millis(3000, scenario.span.as_millis() as u64 / 2);
    let fault = match random.percent(50) {
        true => plan::Action::Refuse { host, lasts },
        false => plan::Action::Silence { host, lasts },
    };
    actions.push(PlannedAction { at, what: Action::Fault(fault) });
    if force && seconds > 2 && random.percent(60) {
        let at = at + random.millis(1000, seconds * 500);
        let what = match random.percent(50) {
            true => Action::DeleteNode { host },
            false => Action::OutOfService { host, lasts: random.millis(60_000, seconds * 1000) },
        };
        actions.push(PlannedAction { at, what });
    }
}

fn crash(random: &mut Random, scenario: &Scenario) -> plan::Action {
    let host = random.below(u64::from(scenario.nodes)) as usize;
    let downtime = match random.percent(20) {
        true => random.millis(60_000, 200_000),
        false => random.millis(0, 20_000),
    };
    match random.below(3) {
        0 => plan::Action::CrashControlPlane { downtime: downtime.min(Duration::from_secs(90)) },
        1 => plan::Action::StopStoring {
            writes: random.between(0, 30),
            downtime: Duration::from_secs(1),
        },
        _ => plan::Action::CrashAgent { host, steps: random.below(60), downtime },
    }
}

fn stateful_set(random: &mut Random, name: &str, replicas: u64) -> StatefulSet {
    let term = match random.below(3) {
        0 => OnTerm::Ignore,
        1 => OnTerm::Exit { after: random.millis(50, 9000), code: 0 },
        _ => OnTerm::Exit { after: Duration::ZERO, code: 0 },
    };
    let start = if random.percent(15) { random.millis(200, 4000) } else { Duration::ZERO };
    let script = Script { start, term, run: None, listen: None };
    let grace = *random.pick(&[1, 5, 12, 30]);
    let policy = *random.pick(&["OrderedReady", "Parallel"]);
    // How long pods stay on a lost node; by default 300 s.
    let tolerations: Vec<Value> = match random.pick(&[None, Some(0), Some(5), Some(60)]) {
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

async fn perform(cluster: &mut Cluster, what: Action) {
    let operator = cluster.operator.clone();
    match what {
        Action::Fault(fault) => run::perform(cluster, fault).await,
        Action::Create(set) => drop(tokio::spawn(create(operator, set))),
        Action::Scale { set, replicas } => {
            let patch = json!({ "spec": { "replicas": replicas } });
            cluster.log.note(format!("a user scales {set} to {replicas}"));
            tokio::spawn(change(operator, set, patch));
        }
        Action::Roll { set, to } => {
            let annotations = json!({ "rolled": to.to_string() });
            let template = json!({ "metadata": { "annotations": annotations } });
            cluster.log.note(format!("a user rolls out {set}"));
            tokio::spawn(change(operator, set, json!({ "spec": { "template": template } })));
        }
        Action::Delete { pod, grace } => drop(tokio::spawn(operator.delete(pod, grace))),
        Action::DeleteNode { host } => {
            tokio::spawn(delete_node(operator, cluster.hosts[host].name.clone()));
        }
        Action::OutOfService { host, lasts } => {
            tokio::spawn(out_of_service(operator, cluster.hosts[host].name.clone(), lasts));
        }
    }
}

async fn create(operator: Operator, set: Box<StatefulSet>) {
    let set = &*set;
    operator.retry("a set", |client| async move { client.create(set).await }).await;
}

async fn change(operator: Operator, set: String, patch: Value) {
    let (key, patch) = (&ObjectKey::new(NAMESPACE, &set), &patch);
    operator
        .retry(
            "a change",
            |client| async move { client.patch_merge::<StatefulSet>(key, patch).await },
        )
        .await;
}

/// Deletes a node. It counts as declared down until its agent has registered it again.
async fn delete_node(operator: Operator, name: String) {
    let key = &ObjectKey::cluster(&name);
    let declared = |down| Event::NodeDeclaredDown { node: name.as_str().into(), down };
    operator.log.record(declared(true));
    let delete = |client: client::Client| async move {
        client.delete::<Node>(key, &DeleteOptions::default()).await
    };
    operator.retry("the deletion of a node", delete).await;
    while !matches!(operator.client.find::<Node>(key).await, Ok(Some(_))) {
        tokio::time::sleep(POLL).await;
    }
    operator.log.record(declared(false));
}

async fn out_of_service(operator: Operator, name: String, lasts: Duration) {
    let declared = |down| Event::NodeDeclaredDown { node: name.as_str().into(), down };
    operator.log.record(declared(true));
    taint(&operator, &name, true).await;
    tokio::time::sleep(lasts).await;
    taint(&operator, &name, false).await;
    operator.log.record(declared(false));
}

async fn taint(operator: &Operator, name: &str, there: bool) {
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
    operator.retry("a taint", ask).await;
}

/// Ends all faults.
fn heal(cluster: &Cluster) {
    cluster.log.note("all faults end");
    for host in &cluster.hosts {
        host.connection.set_state(State::Up);
        host.connection.set_faults(NetworkFaults::default());
        host.cancel_crash();
        tokio::spawn({
            let (operator, name) = (cluster.operator.clone(), host.name.clone());
            async move { taint(&operator, &name, false).await }
        });
    }
}

/// Waits until every set has all its replicas and no termination is under way.
async fn wait_until_complete(cluster: &Cluster) {
    let until = tokio::time::Instant::now() + PATIENCE;
    while cluster.log.violation().is_none() {
        tokio::time::sleep(POLL).await;
        let missing = missing(cluster).await;
        let Some(missing) = missing else { return };
        if tokio::time::Instant::now() > until {
            return cluster.log.report("sets become complete", missing);
        }
    }
}

async fn missing(cluster: &Cluster) -> Option<String> {
    // While the agent is down its pods may still be evicted, although everything looks complete.
    if let Some(host) = cluster.hosts.iter().find(|host| host.is_down()) {
        return Some(format!("no agent runs on {}", host.name));
    }
    if !cluster.log.with_checker(|checker| checker.is_quiet()) {
        return Some("a termination is under way".to_owned());
    }
    match cluster.operator.client.list::<StatefulSet>(&Default::default()).await {
        Err(error) => Some(error.to_string()),
        Ok(sets) => {
            let unfinished = sets.iter().find(|set| !is_complete(set))?;
            Some(format!("{:?}: {:?}", unfinished.metadata.name, unfinished.status))
        }
    }
}

fn is_complete(set: &StatefulSet) -> bool {
    let wanted = set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    set.status.as_ref().is_some_and(|status| {
        status.replicas == wanted
            && status.ready_replicas.unwrap_or(0) == wanted
            && status.updated_replicas.unwrap_or(0) == wanted
            && status.observed_generation == set.metadata.generation
    })
}
