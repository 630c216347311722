//! Whatever came, changed and went in whatever order, with crashes in between: the cluster reaches what
//! was declared, and then goes silent. For an hour nothing is written but signs of life.
//!
//! Not here: what the workloads are (`settle/wishes.rs`) and whether they are as declared
//! (`settle/declared.rs`).

mod declared;
mod wishes;

use crate::cluster::Cluster;
use crate::line::{Sent, State};
use crate::run;
use crate::scenario::Scenario;
use k8s_openapi::api::core::v1::Event;
use std::collections::BTreeSet;
use std::time::Duration;

/// After everything healed, what was declared is so within this: a queue waits up to a minute between
/// two attempts, and some things come one after another.
const PATIENCE: Duration = Duration::from_secs(900);
const LOOK: Duration = Duration::from_secs(1);
/// What is so may still have to be told: events are sent late, records of endings again and again.
const LAST_WORDS: Duration = Duration::from_secs(60);
/// This long nobody may write.
const SILENCE: Duration = Duration::from_secs(3600);

pub(crate) async fn tell(cluster: &mut Cluster, scenario: &Scenario, seed: u64) {
    let began = tokio::time::Instant::now();
    for deed in wishes::draw(scenario, seed) {
        tokio::time::sleep_until(began + deed.at).await;
        if cluster.book.broken().is_some() {
            return;
        }
        match deed.what {
            wishes::Act::Wish(wish) => wishes::make(&cluster.person, wish),
            wishes::Act::Trouble(trouble) => run::act(cluster, trouble).await,
        }
    }
    tokio::time::sleep_until(began + scenario.span).await;
    cluster.book.say("nobody wants anything any more, and everything heals");
    for host in &cluster.hosts {
        host.line.set(State::Up);
        host.spare();
    }
    if converge(cluster).await {
        tokio::time::sleep(LAST_WORDS).await;
        be_silent(cluster).await;
    }
}

/// Whether it did.
async fn converge(cluster: &Cluster) -> bool {
    let until = tokio::time::Instant::now() + PATIENCE;
    while cluster.book.broken().is_none() {
        tokio::time::sleep(LOOK).await;
        let Some(missing) = declared::missing(cluster).await else { return true };
        if tokio::time::Instant::now() > until {
            cluster.book.find("what is declared becomes so", missing);
        }
    }
    false
}

/// Two counts that have to agree: of requests on the lines, which say whose they are, and of what was
/// stored, which nobody can hide.
async fn be_silent(cluster: &Cluster) {
    let before = (cluster.revision().await, events(cluster).await);
    cluster.plane.meter.start();
    tokio::time::sleep(SILENCE).await;
    let (read, written) = apart(cluster.plane.meter.stop());
    let after = (cluster.revision().await, events(cluster).await);
    if let Some((what, times)) =
        written.iter().find(|(what, times)| !is_sign_of_life(what, **times))
    {
        return cluster.book.find("silence", format!("in an hour {times} times: {what}"));
    }
    let ((Some(from), Some(was)), (Some(to), Some(is))) = (before, after) else {
        return cluster.book.find("silence", "nobody answers".to_owned());
    };
    if let Some(new) = is.difference(&was).next() {
        return cluster.book.find("silence", format!("there is a new event {new}"));
    }
    let expired = (was.len() - is.len()) as u64;
    let alive: u64 = written.values().sum();
    let stored = to - from;
    cluster.book.say(format!(
        "{stored} writes in an hour: {alive} signs of life, {expired} old events; read was {} times",
        read.values().sum::<u64>()
    ));
    cluster.book.say(format!("read was {}", shown(&read)));
    if stored != alive + expired {
        let why =
            format!("{stored} writes are stored, {alive} signs of life, {expired} old events");
        cluster.book.find("silence", format!("{why}; {}", shown(&written)));
    }
}

/// A node renews its Lease every 10 s and writes its status every 5 min (N-17, N-18). Nothing else, and
/// no more often.
fn is_sign_of_life(what: &str, times: u64) -> bool {
    let mut words = what.split(' ');
    let (Some(user), Some(method), Some(path)) = (words.next(), words.next(), words.next()) else {
        return false;
    };
    let Some(node) = user.strip_prefix("system:node:") else { return false };
    let lease = format!("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{node}");
    let status = format!("/api/v1/nodes/{node}/status");
    let hourly = match method {
        "PUT" if path == lease => SILENCE.as_secs() / 10,
        "PATCH" if path == status => SILENCE.as_secs() / 300,
        _ => return false,
    };
    times <= hourly + 1
}

async fn events(cluster: &Cluster) -> Option<BTreeSet<String>> {
    let events = cluster.person.client.list::<Event>(&Default::default()).await.ok()?;
    let version = |event: &Event| event.metadata.resource_version.clone().unwrap_or_default();
    Some(events.iter().map(version).collect())
}

/// Reads, and what is none.
fn apart(sent: Sent) -> (Sent, Sent) {
    sent.into_iter().partition(|(what, _)| what.contains(" GET "))
}

fn shown(sent: &Sent) -> String {
    let all: Vec<String> = sent.iter().map(|(what, times)| format!("{times} × {what}")).collect();
    all.join(", ")
}
