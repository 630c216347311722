//! The cost of operations as more objects are stored: a cost that grows with the store is a scan that
//! should be a lookup.
//!
//! One server is filled step by step. At each size the same few operations are measured, and the objects
//! that they created are deleted again.

use crate::fanout::{self, Watched};
use crate::load::{Ask, Clients, Took, pod};
use crate::standard::surroundings;
use crate::table::{count, micros, number, table};
use crate::{Options, Subject};
use anyhow::Result;
use serde_json::json;

const SIZES: &[usize] = &[1_000, 5_000, 20_000];
const SIZES_QUICK: &[usize] = &[100, 500, 2_000];
/// Number of operations of a kind that are measured at each size.
const PROBES: usize = 1_000;
const LISTS: usize = 10;
const WATCHERS: usize = 50;
const EVENTS: usize = 50;

/// The operations that are measured at every size, in this order.
const OPERATIONS: [&str; 8] = [
    "create a pod",
    "get a pod",
    "patch a pod",
    "list, per pod",
    "list one by name",
    "watch from 0, per pod",
    "deliver one event",
    "delete a pod",
];

/// Microseconds for one operation.
struct Cost {
    wall: f64,
    cpu: Option<f64>,
}

impl Cost {
    /// If one answer contains many objects, the cost of one.
    fn each(took: &Took, objects: usize) -> Cost {
        let count = (took.operations * objects) as f64;
        let micros = |time: std::time::Duration| time.as_secs_f64() * 1e6 / count;
        Cost { wall: micros(took.wall), cpu: took.cpu.map(micros) }
    }
}

pub(crate) async fn run(options: &Options, subject: &Subject) -> Result<String> {
    let mut sizes = options.sizes.clone();
    if sizes.is_empty() {
        sizes = if options.quick { SIZES_QUICK } else { SIZES }.to_vec();
    }
    sizes.sort_unstable();
    let surroundings = surroundings(subject);
    let mut clients = Clients::new(&subject.target, &subject.processes);
    let (mut stored, mut steps) = (0, Vec::new());
    for size in &sizes {
        eprintln!("bench: {size} pods");
        let (path, from) = (subject.target.path("pods"), stored);
        let fill = move |i| Ask::create(path.clone(), &pod(&format!("grown-{}", from + i)));
        clients.run(size - stored, options.connections, fill).await?;
        stored = *size;
        steps.push(step(options, subject, &mut clients, stored).await?);
    }
    if options.server.is_some() {
        let path = subject.target.path("pods");
        let empty = move |i| Ask::delete(format!("{path}/grown-{i}"));
        clients.run(stored, options.connections, empty).await?;
    }
    Ok(if options.json {
        as_json(&sizes, &steps)?
    } else {
        as_table(&surroundings, &sizes, &steps)
    })
}

/// The costs at one size, in the order of [`OPERATIONS`].
async fn step(
    options: &Options,
    subject: &Subject,
    clients: &mut Clients,
    stored: usize,
) -> Result<Vec<Cost>> {
    let at_once = options.connections;
    let probes = PROBES.min(stored);
    let path = subject.target.path("pods");
    let to = move |rest: String| format!("{path}{rest}");
    let mut costs = Vec::new();

    let path = to.clone();
    let create = move |i| Ask::create(path(String::new()), &pod(&format!("probe-{i}")));
    costs.push(Cost::each(&clients.run(probes, at_once, create).await?, 1));

    // Spread over all stored objects, so that a small cache does not help.
    let spread = move |i: usize| i * stored / probes;
    let path = to.clone();
    let get = move |i| Ask::get(path(format!("/grown-{}", spread(i))));
    costs.push(Cost::each(&clients.run(probes, at_once, get).await?, 1));
    let path = to.clone();
    let patch = move |i| Ask::annotate(path(format!("/grown-{}", spread(i))), stored + i);
    costs.push(Cost::each(&clients.run(probes, at_once, patch).await?, 1));

    let path = to.clone();
    let list = move |_| Ask::get(path(String::new()));
    costs.push(Cost::each(&clients.run(LISTS, 1, list).await?, stored + probes));
    let path = to.clone();
    let one =
        move |i| Ask::get(path(format!("?fieldSelector=metadata.name%3Dgrown-{}", spread(i))));
    costs.push(Cost::each(&clients.run(probes, at_once, one).await?, 1));
    let Subject { target, processes, .. } = subject;
    let all = stored + probes;
    let took = fanout::replay(target, processes, Watched::Pods, all, LISTS).await?;
    costs.push(Cost::each(&took, all));
    let took = fanout::run(target, processes, Watched::Pods, WATCHERS, EVENTS).await?;
    costs.push(Cost::each(&took, 1));
    let path = to.clone();
    let clear = move |i| Ask::delete(path(format!("/w-{i}")));
    clients.run(EVENTS, at_once, clear).await?;
    let delete = move |i| Ask::delete(to(format!("/probe-{i}")));
    costs.push(Cost::each(&clients.run(probes, at_once, delete).await?, 1));
    Ok(costs)
}

fn as_table(surroundings: &str, sizes: &[usize], steps: &[Vec<Cost>]) -> String {
    let titles: Vec<String> =
        sizes.iter().map(|size| format!("{} pods: time, CPU", count(*size))).collect();
    let mut head = vec!["what"];
    head.extend(titles.iter().map(String::as_str));
    head.push("growth of CPU");
    let rows: Vec<Vec<String>> = OPERATIONS
        .iter()
        .enumerate()
        .map(|(at, what)| {
            let costs: Vec<&Cost> = steps.iter().map(|step| &step[at]).collect();
            let mut row = vec![(*what).to_owned()];
            row.extend(costs.iter().map(|cost| shown(cost)));
            row.push(growth(&costs));
            row
        })
        .collect();
    format!("{surroundings}\n\n{}", table(&head, &rows))
}

fn shown(cost: &Cost) -> String {
    format!("{}, {}", micros(Some(cost.wall)), micros(cost.cpu))
}

/// The cost at the last size as a multiple of the cost at the first.
fn growth(costs: &[&Cost]) -> String {
    let (first, last) = (costs.first().and_then(|c| c.cpu), costs.last().and_then(|c| c.cpu));
    match (first, last) {
        // Less than one tick of the kernel's clock cannot be measured.
        (Some(first), Some(last)) if first > 0.0 => format!("× {}", number(last / first)),
        _ => "-".to_owned(),
    }
}

fn as_json(sizes: &[usize], steps: &[Vec<Cost>]) -> Result<String> {
    let step = |(size, costs): (&usize, &Vec<Cost>)| {
        let costs = OPERATIONS.iter().zip(costs).map(|(what, cost)| {
            json!({ "what": what, "micros": cost.wall, "serverCpuMicros": cost.cpu })
        });
        json!({ "pods": size, "costs": costs.collect::<Vec<_>>() })
    };
    let steps: Vec<_> = sizes.iter().zip(steps).map(step).collect();
    Ok(serde_json::to_string_pretty(&steps)?)
}
