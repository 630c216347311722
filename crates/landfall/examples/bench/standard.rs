//! The reference load and its targets.
//!
//! The figures of Kubernetes v1.36.4 (API server with etcd 3.4) were measured with the same
//! requests on a machine with two cores, the load generator on the same two. They apply
//! only to this load.

use crate::fanout::{self, Watched};
use crate::link::Link;
use crate::load::{Ask, Clients, Took, pod};
use crate::process::{Memory, Processes};
use crate::table::{count, micros, number, table};
use crate::{Options, Subject};
use anyhow::Result;
use serde_json::{Value, json};

pub(crate) const CONNECTIONS: usize = 64;
const PODS: usize = 5_000;
const LISTS: usize = 20;
/// Watchers and events.
const FANOUTS: [(usize, usize); 2] = [(200, 200), (1_000, 100)];
/// How many connections list with a field selector.
const SELECTING: usize = 4;

const MEGABYTE: f64 = 1e6;

const HEAD: &[&str] = &[
    "what",
    "Kubernetes v1.36.4 (reference)",
    "landfall must reach",
    "measured here",
    "ok?",
    "server CPU per op",
];

/// One line of the result: the figure of Kubernetes, our target, and the measured figure.
struct Row {
    what: String,
    reference: &'static str,
    must: &'static str,
    measured: String,
    values: Value,
    ok: Option<bool>,
    cpu: Option<f64>,
}

struct Measuring<'a> {
    subject: &'a Subject,
    clients: Clients,
    pods: usize,
    connections: usize,
    quick: bool,
    rows: Vec<Row>,
}

pub(crate) async fn run(options: &Options, subject: &Subject) -> Result<String> {
    let surroundings = surroundings(subject);
    let mut measuring = Measuring {
        subject,
        clients: Clients::new(&subject.target, &subject.processes),
        pods: options.n.unwrap_or(if options.quick { PODS / 10 } else { PODS }),
        connections: options.connections,
        quick: options.quick,
        rows: Vec::new(),
    };
    measuring.fresh();
    measuring.pods().await?;
    for (watchers, events) in FANOUTS {
        measuring.fanout(watchers, events).await?;
    }
    measuring.used();
    let rows = measuring.rows;
    if options.json {
        return Ok(serde_json::to_string_pretty(&json!({
            "surroundings": surroundings,
            "rows": rows.iter().map(Row::json).collect::<Vec<Value>>(),
        }))?);
    }
    let cells: Vec<Vec<String>> = rows.into_iter().map(Row::cells).collect();
    let own = Processes(vec![std::process::id()]).cpu().unwrap_or_default();
    Ok(format!(
        "{surroundings}\n\n{}\nThe load generator itself used {:.1} s of CPU time.",
        table(HEAD, &cells),
        own.as_secs_f64()
    ))
}

impl Measuring<'_> {
    /// Before any load.
    fn fresh(&mut self) {
        if let Some(took) = self.subject.started {
            let seconds = took.as_secs_f64();
            self.rows.push(Row {
                what: "start → /readyz ok".into(),
                reference: "4.05 s (etcd and API server)",
                must: "≤ 0.8 s",
                measured: format!("{} s", number(seconds)),
                values: json!({ "seconds": seconds }),
                ok: Some(seconds <= 0.8),
                cpu: None,
            });
        }
        if let Some(memory) = self.subject.processes.memory() {
            let ok = Some(megabytes(memory.resident) <= 100.0);
            let reference = "316 MB (two of seven processes)";
            self.rows.push(Row::memory("memory, fresh", reference, "≤ 100 MB", memory, ok));
        }
    }

    async fn pods(&mut self) -> Result<()> {
        let (pods, connections) = (self.pods, self.connections);
        let same = pods == PODS && connections == CONNECTIONS;
        let path = self.subject.target.path("pods");
        let named = {
            let path = path.clone();
            move |number: usize| format!("{path}/bench-{number}")
        };

        let to = path.clone();
        let create = move |i| Ask::create(to.clone(), &pod(&format!("bench-{i}")));
        let took = self.phase("create pods", pods, connections, create).await?;
        let reference = "969 /s, p99 197 ms";
        self.rate("create pods", reference, "≥ 4,000 /s", same.then_some(4_000.0), &took);

        let name = named.clone();
        let get = move |i| Ask::get(name(i));
        let took = self.phase("get pods", pods, connections, get).await?;
        self.rate("get pods", "2,825 /s", "≥ 10,000 /s", same.then_some(10_000.0), &took);

        let lists = if self.quick { LISTS / 4 } else { LISTS };
        let to = path.clone();
        let took = self.phase("list pods", lists, 1, move |_| Ask::get(to.clone())).await?;
        self.list(&took);
        let to = path.clone();
        let one =
            move |i| Ask::get(format!("{to}?fieldSelector=metadata.name%3Dbench-{}", i % pods));
        let took = self.phase("list one pod by name", lists, SELECTING, one).await?;
        self.rate("list one pod by name", "-", "-", None, &took);

        let name = named.clone();
        let patch = move |i| Ask::annotate(name(i), i);
        let took = self.phase("patch pods", pods, connections, patch).await?;
        self.rate("patch pods", "703 /s", "≥ 4,000 /s", same.then_some(4_000.0), &took);
        if let Some(memory) = self.subject.processes.memory() {
            let what = format!("memory, {} pods stored", count(pods));
            self.rows.push(Row::memory(&what, "-", "-", memory, None));
        }

        let delete = move |i| Ask::delete(named(i));
        let took = self.phase("delete pods", pods, connections, delete).await?;
        self.rate("delete pods", "608 /s", "≥ 4,000 /s", same.then_some(4_000.0), &took);
        Ok(())
    }

    async fn phase(
        &mut self,
        what: &str,
        count: usize,
        at_once: usize,
        ask: impl Fn(usize) -> Ask + Send + Sync + 'static,
    ) -> Result<Took> {
        eprintln!("bench: {what}");
        self.clients.run(count, at_once, ask).await
    }

    async fn fanout(&mut self, watchers: usize, events: usize) -> Result<()> {
        let all = (watchers, events);
        let (reference, must, latest) = if all == FANOUTS[0] {
            ("23,204 deliveries/s, p99 29 ms", "≥ 100,000 /s, p99 ≤ 10 ms", 10.0)
        } else {
            ("37,616 deliveries/s, p99 70 ms", "≥ 100,000 /s, p99 ≤ 30 ms", 30.0)
        };
        let (watchers, events) = if self.quick { (watchers / 10, events / 10) } else { all };
        let what = format!("watch: {} watchers × {events} events", count(watchers));
        eprintln!("bench: {what}");
        let Subject { target, processes, .. } = self.subject;
        let took = fanout::run(target, processes, Watched::ConfigMaps, watchers, events).await?;
        let all_of_them = format!("{}?labelSelector=app%3Dbench", target.path("configmaps"));
        Link::open(target).await?.call(&Ask::delete(all_of_them)).await?;

        let (rate, p99) = (took.per_second(), took.millis(0.99));
        self.rows.push(Row {
            what,
            reference,
            must,
            measured: format!("{} deliveries/s, p99 {} ms", number(rate), number(p99)),
            values: json!({ "perSecond": rate, "p50Ms": took.millis(0.5), "p99Ms": p99 }),
            ok: (!self.quick).then_some(rate >= 100_000.0 && p99 <= latest),
            cpu: took.cpu_each(),
        });
        Ok(())
    }

    /// After the whole load, when everything is deleted again.
    fn used(&mut self) {
        if let Some(memory) = self.subject.processes.memory() {
            let same = self.pods == PODS && self.connections == CONNECTIONS && !self.quick;
            let ok = same.then_some(megabytes(memory.resident) <= 200.0);
            let reference = "1,330 MB (all seven processes)";
            self.rows.push(Row::memory(
                "memory, after the load",
                reference,
                "≤ 200 MB",
                memory,
                ok,
            ));
        }
    }

    fn rate(
        &mut self,
        what: &str,
        reference: &'static str,
        must: &'static str,
        least: Option<f64>,
        took: &Took,
    ) {
        let (rate, p50, p99) = (took.per_second(), took.millis(0.5), took.millis(0.99));
        self.rows.push(Row {
            what: what.to_owned(),
            reference,
            must,
            measured: format!("{} /s, p99 {} ms", number(rate), number(p99)),
            values: json!({ "perSecond": rate, "p50Ms": p50, "p99Ms": p99 }),
            ok: least.map(|least| rate >= least),
            cpu: took.cpu_each(),
        });
    }

    fn list(&mut self, took: &Took) {
        let (p50, size) = (took.millis(0.5), megabytes(took.bytes as u64));
        self.rows.push(Row {
            what: format!("list {} pods", count(self.pods)),
            reference: "p50 273 ms (5,000 pods, 10.5 MB)",
            must: "p50 ≤ 50 ms",
            measured: format!("p50 {} ms ({} MB)", number(p50), number(size)),
            values: json!({ "p50Ms": p50, "p99Ms": took.millis(0.99), "bytes": took.bytes }),
            ok: (self.pods == PODS).then_some(p50 <= 50.0),
            cpu: took.cpu_each(),
        });
    }
}

impl Row {
    fn memory(
        what: &str,
        reference: &'static str,
        must: &'static str,
        memory: Memory,
        ok: Option<bool>,
    ) -> Row {
        let (resident, peak) = (megabytes(memory.resident), megabytes(memory.peak));
        Row {
            what: what.to_owned(),
            reference,
            must,
            measured: format!("{} MB (peak {} MB)", number(resident), number(peak)),
            values: json!({ "residentBytes": memory.resident, "peakBytes": memory.peak }),
            ok,
            cpu: None,
        }
    }

    fn cells(self) -> Vec<String> {
        let ok = match self.ok {
            Some(true) => "yes",
            Some(false) => "NO",
            None => "-",
        };
        let (reference, must) = (self.reference.to_owned(), self.must.to_owned());
        vec![self.what, reference, must, self.measured, ok.to_owned(), micros(self.cpu)]
    }

    fn json(&self) -> Value {
        json!({
            "what": self.what,
            "reference": self.reference,
            "mustReach": self.must,
            "measured": self.values,
            "ok": self.ok,
            "serverCpuMicrosPerOp": self.cpu,
        })
    }
}

fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / MEGABYTE
}

/// What else the figures depend on: the machine, its load and its disk.
pub(crate) fn surroundings(subject: &Subject) -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or("?").to_owned();
    let data = subject.own.as_ref().and_then(|own| own.file_system());
    let data = data.map_or_else(String::new, |kind| format!(", data on {kind}"));
    format!("{cores} cores, load average {load} at the start{data}")
}
