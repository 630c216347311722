//! One writer, many watchers: how long an event takes to each of them.
//!
//! Every watcher has a connection of its own. The writer creates one object after the other while
//! they wait; a delivery is one watcher having read one event, timed from when its create was sent.

use crate::link::{Link, Target, in_time};
use crate::load::{Ask, Took, config_map, pod};
use crate::process::Processes;
use anyhow::{Context, Result, bail};
use http_body_util::BodyExt;
use serde_json::Value;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// How long the server is asked to keep a watch open.
const WATCH_SECONDS: u64 = 120;

/// Objects are named `w-0`, `w-1`, …; so an event says which create it belongs to.
const NAMED: &[u8] = br#""name":"w-"#;

#[derive(Clone, Copy)]
pub(crate) enum Watched {
    Pods,
    ConfigMaps,
}

impl Watched {
    pub(crate) fn resource(self) -> &'static str {
        match self {
            Watched::Pods => "pods",
            Watched::ConfigMaps => "configmaps",
        }
    }

    fn object(self, name: &str) -> Value {
        match self {
            Watched::Pods => pod(name),
            Watched::ConfigMaps => config_map(name),
        }
    }
}

/// The objects stay: it is for the caller to delete them.
pub(crate) async fn run(
    target: &Arc<Target>,
    processes: &Processes,
    watched: Watched,
    watchers: usize,
    events: usize,
) -> Result<Took> {
    let path = target.path(watched.resource());
    let mut writer = Link::open(target).await?;
    let watch = Ask::get(format!(
        "{path}?watch=1&resourceVersion={}&labelSelector=app%3Dbench&timeoutSeconds={WATCH_SECONDS}",
        current_version(&mut writer, &path).await?
    ));
    let audience = Arc::new(Audience {
        watch,
        sent: (0..events).map(|_| OnceLock::new()).collect(),
        missing: AtomicUsize::new(watchers),
        complete: Notify::new(),
    });
    let mut watching = JoinSet::new();
    for _ in 0..watchers {
        let (target, audience) = (target.clone(), audience.clone());
        watching.spawn(async move { audience.attend(&target).await });
    }
    tokio::select! {
        () = audience.complete.notified() => {}
        // A watcher that finishes before the first event has failed.
        left = watching.join_next() => { left.context("there are no watchers")???; }
    }

    let cpu = processes.cpu();
    let begin = Instant::now();
    for (number, sent) in audience.sent.iter().enumerate() {
        let object = watched.object(&format!("w-{number}"));
        let _ = sent.set(Instant::now());
        writer.call(&Ask::create(path.clone(), &object)).await?;
    }
    let mut latencies = Vec::with_capacity(watchers * events);
    while let Some(watcher) = watching.join_next().await {
        latencies.extend(watcher??);
    }
    let wall = begin.elapsed();
    let cpu = processes.cpu().zip(cpu).map(|(after, before)| after - before);
    latencies.sort_unstable();
    Ok(Took { operations: latencies.len(), wall, cpu, latencies, bytes: 0 })
}

/// Watches from version 0 this many times, one after the other, each until all stored objects have
/// been reported as added.
pub(crate) async fn replay(
    target: &Arc<Target>,
    processes: &Processes,
    watched: Watched,
    objects: usize,
    times: usize,
) -> Result<Took> {
    let path = target.path(watched.resource());
    let watch =
        Ask::get(format!("{path}?watch=1&resourceVersion=0&timeoutSeconds={WATCH_SECONDS}"));
    // A watch uses up its connection; the time to open a connection is not measured.
    let mut links = Vec::new();
    for _ in 0..times {
        links.push(Link::open(target).await?);
    }
    let cpu = processes.cpu();
    let begin = Instant::now();
    let (mut latencies, mut bytes) = (Vec::new(), 0);
    for mut link in links {
        let begin = Instant::now();
        let answer = link.ask(&watch).await?;
        if !answer.status().is_success() {
            bail!("a watch was answered with {}", answer.status());
        }
        let (mut body, mut shown) = (answer.into_body(), 0);
        while shown < objects {
            let frame = in_time(body.frame()).await?;
            let frame = frame.with_context(|| format!("ended after {shown} objects"))??;
            let data = frame.data_ref().map_or(&[][..], |data| &data[..]);
            shown += data.iter().filter(|byte| **byte == b'\n').count();
            bytes += data.len();
        }
        latencies.push(begin.elapsed());
    }
    let wall = begin.elapsed();
    let cpu = processes.cpu().zip(cpu).map(|(after, before)| after - before);
    latencies.sort_unstable();
    Ok(Took { operations: times, wall, cpu, latencies, bytes: bytes / times.max(1) })
}

async fn current_version(link: &mut Link, path: &str) -> Result<String> {
    let list = link.call(&Ask::get(format!("{path}?limit=1"))).await?;
    let list: Value = serde_json::from_slice(&list)?;
    let version = list["metadata"]["resourceVersion"].as_str();
    Ok(version.context("the list has no resourceVersion")?.to_owned())
}

/// What the watchers share.
struct Audience {
    watch: Ask,
    /// When the create of each object was sent.
    sent: Vec<OnceLock<Instant>>,
    /// How many watchers are not connected yet.
    missing: AtomicUsize,
    complete: Notify,
}

impl Audience {
    /// One watcher, from connecting to the last event.
    async fn attend(&self, target: &Arc<Target>) -> Result<Vec<Duration>> {
        let mut link = Link::open(target).await?;
        let answer = link.ask(&self.watch).await?;
        if !answer.status().is_success() {
            bail!("a watch was answered with {}", answer.status());
        }
        if self.missing.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.complete.notify_one();
        }
        let mut body = answer.into_body();
        let mut latencies = Vec::with_capacity(self.sent.len());
        let mut read = Vec::new();
        while latencies.len() < self.sent.len() {
            let frame = in_time(body.frame()).await?;
            let frame = frame.with_context(|| format!("ended after {} events", latencies.len()))?;
            let now = Instant::now();
            read.extend_from_slice(frame?.data_ref().map_or(&[], |data| &data[..]));
            let whole = read.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
            for event in read[..whole].split(|byte| *byte == b'\n') {
                let sent = number(event).and_then(|number| self.sent.get(number)?.get());
                latencies.extend(sent.map(|sent| now - *sent));
            }
            read.drain(..whole);
        }
        Ok(latencies)
    }
}

/// Which create an event belongs to.
fn number(event: &[u8]) -> Option<usize> {
    let at = event.windows(NAMED.len()).position(|window| window == NAMED)? + NAMED.len();
    let digits = event[at..].split(|byte| !byte.is_ascii_digit()).next()?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}
