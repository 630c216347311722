//! Acknowledged writes survive, however the process ended.
//!
//! The process is killed in the middle of concurrent writes, again and again on the same directory. After every restart
//! each object must be in the last acknowledged state, or in the state that was requested when the process was killed:
//! completely, never in part. Two watchers continue after every restart and must see every change once.
//!
//! A kill does not lose data that the kernel already has; the tests of `store` cover a loss of power.

use crate::process::{self, Client, Error, Landfall, Random, Reach, Reply};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::Instant;

const ROUNDS: usize = 100;
const WRITERS: usize = 8;
/// Objects that only one writer touches, per writer.
const OWN: usize = 6;
/// Objects that every writer patches.
const SHARED: usize = 2;
/// A round ends after at most so many acknowledged writes, and so many milliseconds later.
const WRITES_MAX: u64 = 40;
const LATER_MS: u64 = 40;
/// How long these writes may take on a busy machine.
const LOAD_MAX: Duration = Duration::from_secs(60);

const CONFIG_MAPS: &str = "/api/v1/namespaces/load/configmaps";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_when_the_process_is_killed() {
    let mut random = Random::seeded();
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("data");
    let mut tally = Tally::default();
    let mut writers: Vec<Writer> = (0..WRITERS).map(|id| Writer::new(id, random.fork())).collect();
    let mut followers = [Follower::default(), Follower::default()];
    let started = Instant::now();

    for round in 0..ROUNDS {
        if round % 7 == 3 {
            kill_while_starting(&dir, &mut random).await;
            tally.early_kills += 1;
        }
        let landfall = Landfall::start(&dir).await;
        let mut client = landfall.client().await;
        if round == 0 {
            prepare(&mut client).await;
        }
        let found = Found::list(&mut client).await;
        assert!(
            found.revision >= tally.revision,
            "round {round}: revision {} was acknowledged, now it is {}",
            tally.revision,
            found.revision
        );
        for writer in &mut writers {
            writer.check(&found, &mut tally).unwrap_or_else(|why| panic!("round {round}: {why}"));
        }
        let written: Vec<u64> = writers.iter_mut().flat_map(Writer::take_revisions).collect();
        for (i, follower) in followers.iter_mut().enumerate() {
            follower.resume(&landfall.reach(), &found).await;
            follower.catch_up(&mut client, &written).await.unwrap_or_else(|why| {
                panic!("round {round}, watcher {i}: {why}");
            });
        }
        tally.took(&followers);

        let done = Arc::new(Semaphore::new(0));
        let load: Vec<_> = writers
            .drain(..)
            .map(|writer| tokio::spawn(writer.run(landfall.reach(), done.clone())))
            .collect();
        let enough = done.acquire_many(random.below(WRITES_MAX) as u32);
        let _ = tokio::time::timeout(LOAD_MAX, enough).await.expect("writes are acknowledged");
        tokio::time::sleep(Duration::from_millis(random.below(LATER_MS))).await;
        landfall.kill();
        for task in load {
            writers.push(task.await.unwrap().unwrap_or_else(|why| panic!("round {round}: {why}")));
        }
        for writer in &mut writers {
            tally.revision =
                tally.revision.max(writer.revisions.iter().copied().max().unwrap_or(0));
            tally.acknowledged += std::mem::take(&mut writer.acknowledged);
        }
        for follower in &mut followers {
            follower.pause().await;
            tally.revision = tally.revision.max(follower.last());
        }
    }

    // The same after an orderly stop.
    for orderly in [false, true] {
        let landfall = Landfall::start(&dir).await;
        let found = Found::list(&mut landfall.client().await).await;
        assert!(found.revision >= tally.revision);
        for writer in &mut writers {
            writer.check(&found, &mut tally).unwrap();
        }
        tally.revision = found.revision;
        if orderly { landfall.kill() } else { landfall.stop().await }
    }
    process::assert_no_panic(&dir);
    println!("{ROUNDS} rounds in {:?}: {tally:?}", started.elapsed());
    assert!(tally.acknowledged > ROUNDS * 5, "too little was written to prove anything: {tally:?}");
}

/// Counts for the test output.
#[derive(Debug, Default)]
struct Tally {
    /// The greatest revision that a client saw.
    revision: u64,
    acknowledged: usize,
    /// Objects compared with what was acknowledged.
    compared: usize,
    /// Writes without a response: those that happened, and those that did not.
    in_doubt_done: usize,
    in_doubt_not_done: usize,
    events: usize,
    expired: usize,
    early_kills: usize,
}

impl Tally {
    fn took(&mut self, followers: &[Follower]) {
        self.events = followers.iter().map(|follower| follower.log.lock().unwrap().seen).sum();
        self.expired = followers.iter().map(|follower| follower.expired).sum();
    }
}

/// Kills the process before it is ready.
async fn kill_while_starting(dir: &Path, random: &mut Random) {
    let mut child = process::spawn(dir);
    tokio::time::sleep(Duration::from_millis(random.below(150))).await;
    child.kill().unwrap();
    child.wait().unwrap();
}

async fn prepare(client: &mut Client) {
    let namespace = json!({ "metadata": { "name": "load" } });
    assert_eq!(client.post("/api/v1/namespaces", &namespace).await.unwrap().code(), 201);
    let names = (0..SHARED).map(|i| format!("shared-{i}")).chain(["marker".to_owned()]);
    for name in names {
        let shared = json!({ "metadata": { "name": name }, "data": {} });
        assert_eq!(client.post(CONFIG_MAPS, &shared).await.unwrap().code(), 201);
    }
}

/// All existing objects, by name.
struct Found {
    revision: u64,
    objects: BTreeMap<String, Value>,
}

impl Found {
    async fn list(client: &mut Client) -> Found {
        let reply = client.get(CONFIG_MAPS).await.unwrap();
        assert_eq!(reply.code(), 200, "{}", reply.text());
        let list = reply.json();
        let items = list["items"].as_array().unwrap().iter();
        let objects = items.map(|item| (name_of(item), plain(item.clone()))).collect();
        Found { revision: revision_of(&list), objects }
    }
}

fn name_of(object: &Value) -> String {
    object["metadata"]["name"].as_str().unwrap_or_default().to_owned()
}

fn revision_of(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().unwrap_or("0").parse().unwrap()
}

/// Removes kind and apiVersion, which items of a list do not have.
fn plain(mut object: Value) -> Value {
    if let Some(fields) = object.as_object_mut() {
        fields.remove("kind");
        fields.remove("apiVersion");
    }
    object
}

/// A client that writes one object after another and remembers what was acknowledged.
struct Writer {
    id: usize,
    random: Random,
    own: Vec<Own>,
    shared: [Count; SHARED],
    step: u64,
    /// The revisions of the writes acknowledged since the last restart.
    revisions: Vec<u64>,
    acknowledged: usize,
}

/// An object that only one writer changes.
struct Own {
    name: String,
    acknowledged: Option<Value>,
    doubt: Option<Doubt>,
}

/// A request without a response.
#[derive(Debug)]
enum Doubt {
    Write(Value),
    Delete,
}

/// How far a writer has counted in a shared object.
#[derive(Debug, Clone, Copy, Default)]
struct Count {
    acknowledged: u64,
    asked: u64,
}

impl Writer {
    fn new(id: usize, random: Random) -> Writer {
        let own = (0..OWN)
            .map(|i| Own { name: format!("own-{id}-{i}"), acknowledged: None, doubt: None })
            .collect();
        let shared = [Count::default(); SHARED];
        Writer { id, random, own, shared, step: 0, revisions: Vec::new(), acknowledged: 0 }
    }

    fn take_revisions(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.revisions)
    }

    /// Writes until the connection breaks, and counts what was acknowledged in `done`. An unexpected response is an error.
    async fn run(mut self, reach: Reach, done: Arc<Semaphore>) -> Result<Writer, String> {
        let Ok(mut client) = reach.connect().await else { return Ok(self) };
        loop {
            self.step += 1;
            let going = match self.random.below(4) {
                0 => self.count(&mut client).await?,
                _ => self.change(&mut client).await?,
            };
            if !going {
                return Ok(self);
            }
            done.add_permits(1);
        }
    }

    async fn count(&mut self, client: &mut Client) -> Result<bool, String> {
        let at = self.random.below(SHARED as u64) as usize;
        self.shared[at].asked = self.step;
        let patch = json!({ "data": { format!("w{}", self.id): self.step.to_string() } });
        let answer = client.merge(&format!("{CONFIG_MAPS}/shared-{at}"), &patch).await;
        let Some(object) = self.take(answer, 200)? else { return Ok(false) };
        self.shared[at].acknowledged = self.step;
        self.revisions.push(revision_of(&object));
        Ok(true)
    }

    async fn change(&mut self, client: &mut Client) -> Result<bool, String> {
        let at = self.random.below(OWN as u64) as usize;
        let delete = self.random.below(4) == 0;
        // Some are larger than a page of the store.
        let size = [10, 300, 9000][self.random.below(3) as usize];
        let data = json!({ "a": self.step.to_string(), "b": self.step.to_string(), "fill": "x".repeat(size) });
        let own = &mut self.own[at];
        let path = format!("{CONFIG_MAPS}/{}", own.name);
        let (answer, code) = if own.acknowledged.is_none() {
            own.doubt = Some(Doubt::Write(data.clone()));
            let object = json!({ "metadata": { "name": own.name }, "data": data });
            (client.post(CONFIG_MAPS, &object).await, 201)
        } else if delete {
            own.doubt = Some(Doubt::Delete);
            (client.delete(&path).await, 200)
        } else {
            own.doubt = Some(Doubt::Write(data.clone()));
            (client.merge(&path, &json!({ "data": data })).await, 200)
        };
        let Some(object) = self.take(answer, code)? else { return Ok(false) };
        let own = &mut self.own[at];
        own.acknowledged = match own.doubt.take() {
            Some(Doubt::Delete) | None => None,
            Some(Doubt::Write(data)) => {
                if object["data"] != data {
                    return Err(format!("{} was acknowledged with other data", own.name));
                }
                self.revisions.push(revision_of(&object));
                Some(plain(object))
            }
        };
        Ok(true)
    }

    /// The object of a response; None: the connection is broken.
    fn take(&mut self, answer: Result<Reply, Error>, code: u16) -> Result<Option<Value>, String> {
        let Ok(reply) = answer else { return Ok(None) };
        if reply.code() != code {
            return Err(format!("writer {}: {} {}", self.id, reply.status, reply.text()));
        }
        self.acknowledged += 1;
        Ok(Some(reply.json()))
    }

    /// Compares the objects with what was acknowledged, and takes them as the new state.
    fn check(&mut self, found: &Found, tally: &mut Tally) -> Result<(), String> {
        for own in &mut self.own {
            let there = found.objects.get(&own.name);
            let done = own.is_done(there)?;
            if own.doubt.take().is_some() {
                if done { tally.in_doubt_done += 1 } else { tally.in_doubt_not_done += 1 }
            }
            own.acknowledged = there.cloned();
            tally.compared += 1;
        }
        for (i, count) in self.shared.iter_mut().enumerate() {
            let field = format!("w{}", self.id);
            let there = found.objects.get(&format!("shared-{i}")).map(|shared| &shared["data"]);
            let there = there.and_then(|data| data[&field].as_str()).unwrap_or("0");
            let there: u64 = there.parse().unwrap();
            if there != count.acknowledged && there != count.asked {
                return Err(format!("shared-{i} has {field}={there}, but {count:?}"));
            }
            *count = Count { acknowledged: there, asked: there };
            tally.compared += 1;
        }
        Ok(())
    }
}

impl Own {
    /// Whether the request without a response has happened. Err: the object is in a state that was never requested.
    fn is_done(&self, there: Option<&Value>) -> Result<bool, String> {
        if there == self.acknowledged.as_ref() {
            return Ok(false);
        }
        let done = match (&self.doubt, there) {
            (Some(Doubt::Delete), None) => true,
            (Some(Doubt::Write(data)), Some(there)) => {
                let newer = self.acknowledged.as_ref().is_none_or(|old| {
                    revision_of(there) > revision_of(old)
                        && there["metadata"]["uid"] == old["metadata"]["uid"]
                });
                newer && there["data"] == *data
            }
            (Some(Doubt::Delete), Some(_)) | (Some(Doubt::Write(_)) | None, _) => false,
        };
        if done {
            return Ok(true);
        }
        Err(format!(
            "{}: found {there:?}, acknowledged was {:?}, in doubt was {:?}",
            self.name, self.acknowledged, self.doubt
        ))
    }
}

/// A watcher that continues at its last revision after every restart.
#[derive(Default)]
struct Follower {
    log: Arc<Mutex<Log>>,
    task: Option<tokio::task::JoinHandle<()>>,
    expired: usize,
}

/// The events that a watcher has received.
#[derive(Default)]
struct Log {
    last: u64,
    seen: usize,
    /// Revisions of the events since the last restart but one.
    recent: HashSet<u64>,
    /// The watcher has just listed and did not watch before.
    fresh: bool,
    /// The objects as the events leave them.
    objects: HashMap<String, Value>,
    /// The first incorrect event.
    wrong: Option<String>,
    expired: bool,
}

impl Follower {
    fn last(&self) -> u64 {
        self.log.lock().unwrap().last
    }

    async fn resume(&mut self, reach: &Reach, found: &Found) {
        let mut log = self.log.lock().unwrap();
        if log.last == 0 || std::mem::take(&mut log.expired) {
            log.last = found.revision;
            log.recent.clear();
            log.fresh = false;
            log.objects = found.objects.clone().into_iter().collect();
        }
        let path = format!("{CONFIG_MAPS}?watch=true&resourceVersion={}", log.last);
        self.task = Some(tokio::spawn(follow(reach.clone(), path, self.log.clone())));
    }

    /// Writes an object and waits for its event: by then all earlier writes must have arrived, and all events together must
    /// give the same objects as a list.
    async fn catch_up(&mut self, client: &mut Client, written: &[u64]) -> Result<(), String> {
        let mark = json!({ "data": { "now": self.last().to_string() } });
        let marker = client.merge(&format!("{CONFIG_MAPS}/marker"), &mark).await.unwrap();
        let wanted = revision_of(&marker.json());
        let deadline = Instant::now() + process::ANSWER_MAX;
        loop {
            {
                let log = self.log.lock().unwrap();
                if let Some(wrong) = &log.wrong {
                    return Err(wrong.clone());
                }
                if log.last >= wanted {
                    break;
                }
                if log.expired {
                    self.expired += 1;
                    return Ok(());
                }
                if Instant::now() > deadline {
                    return Err(format!("waited for {wanted}, has {}", log.last));
                }
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let found = Found::list(client).await;
        let mut log = self.log.lock().unwrap();
        let missed = written.iter().find(|revision| !log.recent.contains(revision));
        if let (Some(missed), false) = (missed, log.fresh) {
            return Err(format!("revision {missed} was acknowledged and never seen"));
        }
        log.recent.clear();
        log.fresh = false;
        let followed: BTreeMap<String, Value> = log.objects.clone().into_iter().collect();
        if followed != found.objects {
            return Err("the events do not add up to the list: one is missing".to_owned());
        }
        Ok(())
    }

    async fn pause(&mut self) {
        if let Some(task) = self.task.take() {
            let _ = tokio::time::timeout(process::ANSWER_MAX, task).await;
        }
    }
}

/// Reads events until the connection breaks; an incomplete last line is not an event.
async fn follow(reach: Reach, path: String, log: Arc<Mutex<Log>>) {
    let Ok(mut client) = reach.connect().await else { return };
    let request = http::Request::get(path).body(Full::default()).unwrap();
    let Ok(response) = client.open(request).await else { return };
    if response.status() == http::StatusCode::GONE {
        log.lock().unwrap().expired = true;
        return;
    }
    let mut body = response.into_body();
    let mut text = Vec::new();
    while let Some(Ok(frame)) = body.frame().await {
        text.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
        while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = text.drain(..=end).collect();
            log.lock().unwrap().take(&line);
        }
    }
}

impl Log {
    fn take(&mut self, line: &[u8]) {
        let event: Value = match serde_json::from_slice(line) {
            Ok(event) => event,
            Err(error) => return self.is_wrong(format!("not an event: {error}")),
        };
        let object = plain(event["object"].clone());
        let (name, revision) = (name_of(&object), revision_of(&object));
        let kind = event["type"].as_str().unwrap_or_default();
        if kind == "ERROR" && event["object"]["code"] == 410 {
            self.expired = true;
            return;
        }
        if revision <= self.last {
            return self.is_wrong(format!("{kind} {name} {revision} came after {}", self.last));
        }
        let known = self.objects.contains_key(&name);
        let fits = matches!((kind, known), ("ADDED", false) | ("MODIFIED" | "DELETED", true));
        if !fits {
            return self.is_wrong(format!("{kind} {name} {revision} does not follow"));
        }
        self.last = revision;
        self.seen += 1;
        self.recent.insert(revision);
        match kind {
            "DELETED" => drop(self.objects.remove(&name)),
            _ => drop(self.objects.insert(name, object)),
        }
    }

    fn is_wrong(&mut self, what: String) {
        self.wrong.get_or_insert(what);
    }
}
