//! The same kind of request many times, from a given number of connections.

use crate::link::{Link, Target};
use crate::process::Processes;
use anyhow::Result;
use bytes::Bytes;
use hyper::Method;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

pub(crate) struct Ask {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) content_type: &'static str,
    pub(crate) body: Bytes,
}

impl Ask {
    pub(crate) fn get(path: String) -> Self {
        Ask::empty(Method::GET, path)
    }

    pub(crate) fn delete(path: String) -> Self {
        Ask::empty(Method::DELETE, path)
    }

    pub(crate) fn create(path: String, object: &Value) -> Self {
        let body = object.to_string().into();
        Ask { method: Method::POST, path, content_type: "application/json", body }
    }

    /// A merge patch of one annotation.
    pub(crate) fn annotate(path: String, value: usize) -> Self {
        let body = format!(r#"{{"metadata":{{"annotations":{{"n":"{value}"}}}}}}"#).into();
        let content_type = "application/merge-patch+json";
        Ask { method: Method::PATCH, path, content_type, body }
    }

    fn empty(method: Method, path: String) -> Self {
        Ask { method, path, content_type: "application/json", body: Bytes::new() }
    }
}

/// A pod like those that people write. Its node does not exist, so no component changes it.
pub(crate) fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name, "labels": { "app": "bench", "tier": "web" } },
        "spec": {
            "terminationGracePeriodSeconds": 30,
            "nodeSelector": { "bench": "nowhere" },
            "containers": [{
                "name": "app",
                "image": "example.invalid/app:1",
                "ports": [{ "containerPort": 8080 }],
                "env": [{ "name": "A", "value": "1" }, { "name": "B", "value": "2" }],
                "resources": { "requests": { "cpu": "10m", "memory": "16Mi" } },
                "lifecycle": { "preStop": { "exec": { "command": ["/bin/sh", "-c", "sleep 5"] } } },
            }],
        },
    })
}

pub(crate) fn config_map(name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": { "name": name, "labels": { "app": "bench" } },
        "data": { "a": "x".repeat(512), "b": "y".repeat(512) },
    })
}

/// What one phase of operations cost.
pub(crate) struct Took {
    pub(crate) operations: usize,
    pub(crate) wall: Duration,
    /// CPU time of the server, if it is on this machine.
    pub(crate) cpu: Option<Duration>,
    /// One latency per operation, the shortest first.
    pub(crate) latencies: Vec<Duration>,
    /// The size of the last answer.
    pub(crate) bytes: usize,
}

impl Took {
    pub(crate) fn per_second(&self) -> f64 {
        self.operations as f64 / self.wall.as_secs_f64()
    }

    /// The latency that this share (0 to 1) of operations did not exceed, in milliseconds.
    pub(crate) fn millis(&self, share: f64) -> f64 {
        let last = self.latencies.len().saturating_sub(1);
        let at = (last as f64 * share) as usize;
        self.latencies.get(at).map_or(f64::NAN, |latency| latency.as_secs_f64() * 1e3)
    }

    /// Microseconds of the server's CPU time for one operation.
    pub(crate) fn cpu_each(&self) -> Option<f64> {
        Some(self.cpu?.as_secs_f64() * 1e6 / self.operations as f64)
    }
}

/// Connections that stay open from one phase to the next. Each is opened when it is first needed,
/// so that the first phase includes it, as in the reference figures.
pub(crate) struct Clients {
    target: Arc<Target>,
    processes: Processes,
    idle: Vec<Link>,
}

impl Clients {
    pub(crate) fn new(target: &Arc<Target>, processes: &Processes) -> Self {
        Clients { target: target.clone(), processes: processes.clone(), idle: Vec::new() }
    }

    /// Asks `ask(0)` to `ask(count - 1)`, from `at_once` connections at the same time.
    pub(crate) async fn run(
        &mut self,
        count: usize,
        at_once: usize,
        ask: impl Fn(usize) -> Ask + Send + Sync + 'static,
    ) -> Result<Took> {
        let ask = Arc::new(ask);
        let next = Arc::new(AtomicUsize::new(0));
        let cpu = self.processes.cpu();
        let begin = Instant::now();
        let mut workers = JoinSet::new();
        for _ in 0..at_once {
            let (ask, next) = (ask.clone(), next.clone());
            let (link, target) = (self.idle.pop(), self.target.clone());
            workers.spawn(async move { work(link, &target, count, &next, &*ask).await });
        }
        let (mut latencies, mut bytes) = (Vec::with_capacity(count), 0);
        while let Some(worker) = workers.join_next().await {
            let (link, mine, size) = worker??;
            self.idle.extend(link);
            latencies.extend(mine);
            bytes = bytes.max(size);
        }
        let wall = begin.elapsed();
        let cpu = self.processes.cpu().zip(cpu).map(|(after, before)| after - before);
        latencies.sort_unstable();
        Ok(Took { operations: count, wall, cpu, latencies, bytes })
    }
}

/// One connection: takes the next number until there are no more.
async fn work(
    mut link: Option<Link>,
    target: &Arc<Target>,
    count: usize,
    next: &AtomicUsize,
    ask: &(impl Fn(usize) -> Ask + Send + Sync),
) -> Result<(Option<Link>, Vec<Duration>, usize)> {
    let (mut latencies, mut bytes) = (Vec::new(), 0);
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        if number >= count {
            return Ok((link, latencies, bytes));
        }
        let begin = Instant::now();
        let open = match &mut link {
            Some(open) => open,
            none => none.insert(Link::open(target).await?),
        };
        bytes = open.call(&ask(number)).await?.len();
        latencies.push(begin.elapsed());
    }
}
