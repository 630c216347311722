//! A client of a run: one operation after another on a few objects, through any server.

use super::operation::{Answer, Call};
use super::record::History;
use crate::process::{Client, Error, Random, Reach, Reply};
use http::Method;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::timeout;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const LABEL: &str = "labelSelector=history%3Dyes";
pub(crate) const NAMES: [&str; 3] = ["one", "two", "three"];

/// After this time a client gives up on a response. The operation may still happen.
const ANSWER_MAX: Duration = Duration::from_millis(700);
/// How long to wait before a server that does not respond is tried again.
const RETRY: Duration = Duration::from_millis(20);
/// The pause between two operations, so that clients do not use all CPU time.
const THINK_MS: u64 = 8;
/// The distance between the values of different clients.
const NUMBERS: u64 = 1_000_000;

pub(crate) struct Worker {
    pub(crate) id: usize,
    pub(crate) random: Random,
    pub(crate) history: Arc<History>,
    /// The current address of each server.
    pub(crate) servers: Vec<watch::Receiver<Reach>>,
    pub(crate) stop: Arc<AtomicBool>,
}

/// A version of an object: its value and its resourceVersion.
type Version = (u64, u64);

/// The result of an operation: its response and the version in it, or nothing to record.
type Outcome = Option<(Answer, Option<Version>)>;

impl Worker {
    pub(crate) async fn run(mut self) {
        let mut known: HashMap<&'static str, Version> = HashMap::new();
        let mut number = self.id as u64 * NUMBERS;
        while !self.stop.load(Ordering::Acquire) {
            let at = self.random.below(self.servers.len() as u64) as usize;
            let reach = self.servers[at].borrow().clone();
            let Ok(Ok(mut client)) = timeout(ANSWER_MAX, reach.connect()).await else {
                tokio::time::sleep(RETRY).await;
                continue;
            };
            while !self.stop.load(Ordering::Acquire) {
                let pause = self.random.below(THINK_MS);
                tokio::time::sleep(Duration::from_millis(pause)).await;
                number += 1;
                if !self.one(&mut client, &mut known, number).await {
                    break;
                }
            }
        }
    }

    /// Performs one operation. False: the connection is broken.
    async fn one(
        &mut self,
        client: &mut Client,
        known: &mut HashMap<&'static str, Version>,
        number: u64,
    ) -> bool {
        let name = NAMES[self.random.below(NAMES.len() as u64) as usize];
        let version = known.get(name).copied();
        let of = version.filter(|_| self.random.below(2) == 0).map(|(value, _)| value);
        let call = match (self.random.below(10), version) {
            (0..=2, _) => Call::Read,
            (3, _) => return self.list(client, known).await,
            (4 | 5, _) | (6..=8, None) => Call::Create(number),
            (6..=8, Some((from, _))) => Call::Update { from, to: number },
            _ => Call::Delete { of },
        };
        let start = self.history.now();
        let revision = version.map_or(0, |(_, revision)| revision);
        let reply = timeout(ANSWER_MAX, ask(client, name, call, revision)).await;
        let reply = reply.unwrap_or_else(|late| Err(late.into()));
        let fine = reply.is_ok();
        if let Some((answer, seen)) = outcome(call, reply) {
            self.history.add((self.id, name), start, call, answer, seen);
            match (seen, answer) {
                (Some(seen), _) => drop(known.insert(name, seen)),
                (None, Answer::Found(None) | Answer::Absent) => drop(known.remove(name)),
                // The remembered version may be old: the server must notice that.
                (None, _) => {}
            }
        }
        fine
    }

    /// Records a list as a read of every object.
    async fn list(
        &mut self,
        client: &mut Client,
        known: &mut HashMap<&'static str, Version>,
    ) -> bool {
        let start = self.history.now();
        let path = format!("{MAPS}?{LABEL}");
        let Ok(Ok(reply)) = timeout(ANSWER_MAX, client.get(&path)).await else { return false };
        if reply.code() != 200 {
            return true;
        }
        let list = reply.json();
        let items = list["items"].as_array().cloned().unwrap_or_default();
        for name in NAMES {
            let seen = items.iter().find(|item| item["metadata"]["name"] == name).map(version_of);
            let answer = Answer::Found(seen.map(|(value, _)| value));
            self.history.add((self.id, name), start, Call::Read, answer, seen);
            known.extend(seen.map(|seen| (name, seen)));
        }
        true
    }
}

async fn ask(client: &mut Client, name: &str, call: Call, revision: u64) -> Result<Reply, Error> {
    let path = format!("{MAPS}/{name}");
    let object = |value: u64| {
        json!({ "kind": "ConfigMap", "apiVersion": "v1",
                "metadata": { "name": name, "labels": { "history": "yes" } },
                "data": { "v": value.to_string() } })
    };
    let body = |value: &Value| value.to_string().into();
    match call {
        Call::Read => client.get(&path).await,
        Call::Create(value) => client.post(MAPS, &object(value)).await,
        Call::Update { to, .. } => {
            let mut object = object(to);
            object["metadata"]["resourceVersion"] = revision.to_string().into();
            client.call(Method::PUT, &path, "application/json", body(&object)).await
        }
        Call::Delete { of: None } => client.delete(&path).await,
        Call::Delete { of: Some(_) } => {
            let options = json!({ "kind": "DeleteOptions", "apiVersion": "v1",
                "preconditions": { "resourceVersion": revision.to_string() } });
            client.call(Method::DELETE, &path, "application/json", body(&options)).await
        }
    }
}

fn version_of(object: &Value) -> Version {
    let number = |value: &Value| value.as_str().and_then(|text| text.parse().ok());
    let version = number(&object["data"]["v"]).zip(number(&object["metadata"]["resourceVersion"]));
    version.unwrap_or_else(|| panic!("not an object of this run: {object}"))
}

/// Interprets a response. A server error does not tell whether a write happened.
fn outcome(call: Call, reply: Result<Reply, Error>) -> Outcome {
    let unknown = || (call != Call::Read).then_some((Answer::Unknown, None));
    let Ok(reply) = reply else { return unknown() };
    match (call, reply.code(), reply.reason().as_str()) {
        (Call::Read, 200, _) => {
            let seen = version_of(&reply.json());
            Some((Answer::Found(Some(seen.0)), Some(seen)))
        }
        (Call::Read, 404, "NotFound") => Some((Answer::Found(None), None)),
        (Call::Create(_), 201, _) | (Call::Update { .. }, 200, _) => {
            Some((Answer::Done, Some(version_of(&reply.json()))))
        }
        (Call::Create(_), 409, "AlreadyExists") => Some((Answer::Exists, None)),
        (Call::Delete { .. }, 200, _) => Some((Answer::Done, None)),
        (Call::Update { .. } | Call::Delete { of: Some(_) }, 409, "Conflict") => {
            Some((Answer::Changed, None))
        }
        (Call::Update { .. } | Call::Delete { .. }, 404, "NotFound") => {
            Some((Answer::Absent, None))
        }
        // The operation was not started.
        (_, 429, _) => None,
        (_, 500.., _) => unknown(),
        (_, code, _) => panic!("{call:?} was answered with {code}: {}", reply.text()),
    }
}

/// Reads every object through this server, after all faults have ended.
pub(crate) async fn read_all(server: &Reach, history: &History) -> Result<(), Error> {
    let mut client = server.connect().await?;
    for name in NAMES {
        let start = history.now();
        let reply = client.get(&format!("{MAPS}/{name}")).await?;
        let (code, text) = (reply.code(), reply.text());
        match outcome(Call::Read, Ok(reply)) {
            Some((answer, seen)) => history.add((0, name), start, Call::Read, answer, seen),
            None => return Err(format!("{code}: {text}").into()),
        }
    }
    Ok(())
}
