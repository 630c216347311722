//! Applying and deleting many CustomResourceDefinitions, one after the other, as `kubectl apply` and `delete` do.
//!
//! The cost of one should not depend on how many there are, so the first and the last ones are compared.

use crate::load::{Ask, Clients, Took};
use crate::standard::surroundings;
use crate::table::{micros, number, table};
use crate::{Options, Subject};
use anyhow::{Result, bail};
use serde_json::{Map, Value, json};
use std::time::Duration;
use tokio::time::Instant;

const PATH: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
/// As many as 26 real projects have together.
const COUNT: usize = 314;
const COUNT_QUICK: usize = 60;
/// How many of the first and of the last ones are compared.
const COMPARED: usize = 20;
/// Every API group has this many kinds.
const GROUP_SIZE: usize = 8;

/// Deleted definitions disappear in the background.
const GONE_MAX: Duration = Duration::from_secs(600);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What applying or deleting all of them cost.
struct Phase {
    what: &'static str,
    wall: Duration,
    all: Option<Duration>,
    first: Took,
    last: Took,
}

pub(crate) async fn run(options: &Options, subject: &Subject) -> Result<String> {
    let count = options.n.unwrap_or(if options.quick { COUNT_QUICK } else { COUNT });
    if count < 2 * COMPARED {
        bail!("--n must be at least {}", 2 * COMPARED);
    }
    let surroundings = surroundings(subject);
    let mut clients = Clients::new(&subject.target, &subject.processes);
    let create = |i| Ask::create(PATH.to_owned(), &definition(i));
    let delete = |i| Ask::delete(format!("{PATH}/{}", name(i)));
    let phases = [
        phase("apply", subject, &mut clients, count, create).await?,
        phase("delete", subject, &mut clients, count, delete).await?,
    ];
    let size = definition(0).to_string().len();
    if options.json {
        return Ok(serde_json::to_string_pretty(&json!({
            "definitions": count, "bytes": size,
            "phases": phases.iter().map(Phase::json).collect::<Vec<Value>>(),
        }))?);
    }
    let rows: Vec<Vec<String>> = phases.iter().map(Phase::cells).collect();
    let head = ["what", "all", "server CPU for all", "CPU each, first", "CPU each, last"];
    Ok(format!("{surroundings}\n{count} definitions of {size} bytes\n\n{}", table(&head, &rows)))
}

/// Sends all requests, and waits until all deleted definitions are gone.
async fn phase(
    what: &'static str,
    subject: &Subject,
    clients: &mut Clients,
    count: usize,
    ask: impl Fn(usize) -> Ask + Clone + Send + Sync + 'static,
) -> Result<Phase> {
    eprintln!("bench: {what} {count} definitions");
    let (cpu, begin) = (subject.processes.cpu(), Instant::now());
    let first = clients.run(COMPARED, 1, ask.clone()).await?;
    let (rest, last) = (ask.clone(), count - COMPARED);
    clients.run(last - COMPARED, 1, move |i| rest(i + COMPARED)).await?;
    let last = clients.run(COMPARED, 1, move |i| ask(i + last)).await?;
    if what == "delete" {
        wait_until_gone(clients).await?;
    }
    let wall = begin.elapsed();
    let all = subject.processes.cpu().zip(cpu).map(|(after, before)| after - before);
    Ok(Phase { what, wall, all, first, last })
}

async fn wait_until_gone(clients: &mut Clients) -> Result<()> {
    let selector = format!("{PATH}?limit=1&labelSelector=app%3Dbench");
    let empty = clients.run(1, 1, {
        let none = format!("{PATH}?limit=1&labelSelector=app%3Dnone");
        move |_| Ask::get(none.clone())
    });
    // A list without items is short; one with a definition is not.
    let limit = empty.await?.bytes * 2;
    let deadline = Instant::now() + GONE_MAX;
    while Instant::now() < deadline {
        let path = selector.clone();
        if clients.run(1, 1, move |_| Ask::get(path.clone())).await?.bytes <= limit {
            return Ok(());
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    bail!("definitions are still there {} s after they were deleted", GONE_MAX.as_secs())
}

impl Phase {
    fn cells(&self) -> Vec<String> {
        let seconds = |time: Duration| format!("{} s", number(time.as_secs_f64()));
        vec![
            self.what.to_owned(),
            seconds(self.wall),
            self.all.map_or("-".to_owned(), seconds),
            micros(self.first.cpu_each()),
            micros(self.last.cpu_each()),
        ]
    }

    fn json(&self) -> Value {
        json!({
            "what": self.what, "seconds": self.wall.as_secs_f64(),
            "serverCpuSeconds": self.all.map(|all| all.as_secs_f64()),
            "firstCpuMicros": self.first.cpu_each(), "lastCpuMicros": self.last.cpu_each(),
        })
    }
}

fn group(number: usize) -> String {
    format!("group{}.bench.example.com", number / GROUP_SIZE)
}

fn name(number: usize) -> String {
    format!("things{number}.{}", group(number))
}

/// About as large and as nested as the definitions of real projects: 50 KB.
fn definition(number: usize) -> Value {
    let text =
        "What this field is for, in a sentence or two, as real definitions have it. ".repeat(3);
    let fields = |prefix: &str, of: &dyn Fn() -> Value| -> Map<String, Value> {
        (0..14).map(|i| (format!("{prefix}{i}"), of())).collect()
    };
    let leaf = || json!({ "type": "string", "description": text, "maxLength": 64 });
    let inner =
        || json!({ "type": "object", "description": text, "properties": fields("leaf", &leaf) });
    let spec = json!({ "type": "object", "properties": fields("inner", &inner) });
    let schema = json!({ "type": "object", "properties": { "spec": spec } });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": name(number), "labels": { "app": "bench" } },
        "spec": {
            "group": group(number),
            "scope": "Namespaced",
            "names": { "plural": format!("things{number}"), "kind": format!("Thing{number}") },
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": { "openAPIV3Schema": schema },
            }],
        },
    })
}
