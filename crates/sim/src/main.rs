//! `landfall-sim`: runs seeds, prints what happened and which rule was broken.
//!
//! It is a separate program, so that a build of landfall does not include the simulation.

use anyhow::Context;
use clap::Parser;
use jiff::Timestamp;
use sim::{Options, Outcome, Phase, SCENARIOS, Scenario, SimulationSetup, Size, Summary};
use std::io::{IsTerminal, Write};
use std::ops::Range;
use std::process::ExitCode;
use std::time::Duration;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Run a whole cluster without machines, on simulated time, and check every pod termination
///
/// Server, controllers, scheduler and node agents are the real ones; machines, the network and the
/// clock are simulated. One number, the seed, decides everything that happens: which pods exist,
/// what their containers do on a stop signal, which process crashes when, which response is lost.
/// The same seed always gives the same run, byte for byte. After every event the rules of
/// terminations are checked against what really happened.
///
///     landfall-sim --list                      list the scenarios
///     landfall-sim crash --seed 7 --trace      run one seed and print its events
///     landfall-sim mix --seeds 0..10000        run many seeds, until one breaks a rule
///     landfall-sim mix --seed 7000 --for 120   run seeds from 7000 on for two minutes
///     landfall-sim scale --nodes 1000 --pods 20000   measure what a pod costs in a large cluster
///
/// A seed that breaks a rule is printed with its trace and the command that repeats it.
#[derive(Parser)]
#[command(name = "landfall-sim", version, verbatim_doc_comment)]
struct Cli {
    /// Scenario to simulate; see --list
    #[arg(default_value = "mix")]
    scenario: String,
    /// Number that decides everything that happens
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Run the seeds from A to B - 1, on all cores
    #[arg(long, value_name = "A..B", value_parser = seeds, conflicts_with = "seed")]
    seeds: Option<Range<u64>>,
    /// Run seeds from --seed on, on all cores, until this many seconds have passed
    #[arg(long = "for", value_name = "SECONDS", conflicts_with = "seeds")]
    seconds: Option<u64>,
    /// Print all events even if no rule was broken
    #[arg(long, alias = "story")]
    trace: bool,
    /// With --seeds: run each seed twice and compare the runs byte by byte
    #[arg(long, requires = "seeds")]
    twice: bool,
    /// With `scale`: number of nodes; each runs at most 110 pods
    #[arg(long, value_name = "N", default_value_t = 20)]
    nodes: u16,
    /// With `scale`: number of pods
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pods: u32,
    /// List the scenarios
    #[arg(long)]
    list: bool,
}

fn seeds(text: &str) -> Result<Range<u64>, String> {
    let range =
        text.split_once("..").and_then(|(from, to)| Some(from.parse().ok()?..to.parse().ok()?));
    range.ok_or_else(|| "expected a range such as 0..100".to_owned())
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("landfall-sim: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Cli) -> anyhow::Result<()> {
    if options.list {
        list();
        return Ok(());
    }
    let name = options.scenario.as_str();
    if name == sim::SCALE.0 {
        return scale(Size { nodes: options.nodes, pods: options.pods });
    }
    let scenario = Scenario::find(name).with_context(|| {
        format!("there is no scenario {name:?}; `landfall-sim --list` lists them")
    })?;
    let setup = SimulationSetup::prepare()?;
    match (&options.seeds, options.seconds) {
        (Some(seeds), _) => many(&setup, scenario, seeds.clone(), None, options.twice),
        (None, Some(seconds)) => {
            let until = clock::now() + Duration::from_secs(seconds);
            many(&setup, scenario, options.seed..u64::MAX, Some(until), false)
        }
        (None, None) => one(&setup, scenario, options.seed, options.trace),
    }
}

fn list() {
    for scenario in SCENARIOS {
        println!("{:12} {}", scenario.name, scenario.about);
    }
    println!("{:12} {}", sim::SCALE.0, sim::SCALE.1);
}

/// The default limit of a node. During a rollout a quarter more pods exist.
const PODS_PER_NODE: u32 = 110;

fn scale(size: Size) -> anyhow::Result<()> {
    let room = u32::from(size.nodes) * PODS_PER_NODE;
    anyhow::ensure!(
        size.pods + size.pods / 4 <= room,
        "{} nodes have room for {room} pods, and the rollout of {} pods needs a quarter more",
        size.nodes,
        size.pods,
    );
    let setup = SimulationSetup::prepare()?;
    println!("{} nodes, {} pods", size.nodes, size.pods);
    println!(
        "phase       simulated      CPU   CPU per pod     writes  CPU per write      peak memory"
    );
    sim::scale(&setup, size, &show)?;
    Ok(())
}

fn show(phase: &Phase) {
    let cpu = phase.cpu.as_secs_f64();
    let each = |count: u64| match count {
        0 => "-".to_owned(),
        count => format!("{:.0} µs", cpu * 1e6 / count as f64),
    };
    println!(
        "{:10} {:>8.0} s {cpu:>7.2} s {:>13} {:>10} {:>14} {:>13} MB{}",
        phase.name,
        phase.simulated.as_secs_f64(),
        each(phase.pods.into()),
        phase.writes,
        each(phase.writes),
        phase.peak_bytes / 1_000_000,
        if phase.unfinished { "  did not finish" } else { "" },
    );
}

fn one(
    setup: &SimulationSetup,
    scenario: &'static Scenario,
    seed: u64,
    trace: bool,
) -> anyhow::Result<()> {
    let began = clock::now();
    let outcome = sim::run(setup, scenario, seed, &Options { trace, ..Options::default() })?;
    let took = clock::now().duration_since(began);
    if outcome.violation.is_some() {
        return fail(scenario, &outcome);
    }
    outcome.trace.iter().for_each(|line| println!("{line}"));
    println!(
        "seed {seed} of {}: {} pods and {} containers in {:.0} simulated seconds, every rule kept \
         ({took:.3})",
        scenario.name,
        outcome.pods,
        outcome.containers,
        outcome.simulated.as_secs_f64(),
    );
    Ok(())
}

fn many(
    setup: &SimulationSetup,
    scenario: &'static Scenario,
    seeds: Range<u64>,
    until: Option<Timestamp>,
    twice: bool,
) -> anyhow::Result<()> {
    let began = clock::now();
    let options = Options { twice, ..Options::default() };
    let count = until.is_none().then(|| seeds.end.saturating_sub(seeds.start));
    let show = std::io::stderr().is_terminal();
    let go_on = |done: u64| {
        if show && done.is_multiple_of(50) {
            let of = count.map(|count| format!(" of {count}")).unwrap_or_default();
            eprint!("\r{done}{of} seeds");
            let _ = std::io::stderr().flush();
        }
        until.is_none_or(|until| clock::now() < until)
    };
    let first = seeds.start;
    let summary = sim::run_many(setup, scenario, seeds, &options, &go_on)?;
    if show {
        eprint!("\r\x1b[K");
    }
    let seconds = clock::now().duration_since(began).as_secs_f64().max(0.001);
    match &summary.failure {
        Some(outcome) => fail(scenario, outcome),
        None => {
            report(scenario, first, &summary, seconds);
            Ok(())
        }
    }
}

fn report(scenario: &Scenario, first: u64, summary: &Summary, seconds: f64) {
    println!(
        "{} seeds of {}, from {first} on: {} pods and {} containers ended, every rule kept; {:.0} simulated hours in \
         {seconds:.0} s ({:.0} seeds a second)",
        summary.seeds,
        scenario.name,
        summary.pods,
        summary.containers,
        summary.simulated.as_secs_f64() / 3600.0,
        summary.seeds as f64 / seconds,
    );
}

/// Prints everything that is needed to understand the violation and to repeat it.
fn fail(scenario: &Scenario, outcome: &Outcome) -> anyhow::Result<()> {
    outcome.trace.iter().for_each(|line| println!("{line}"));
    let (name, seed) = (scenario.name, outcome.seed);
    if let Some(violation) = &outcome.violation {
        let (rule, why) = (violation.broken.rule, &violation.broken.why);
        println!("\nseed {seed} of {name} breaks a rule after {:?}: {rule}", violation.at);
        println!("  {why}");
        println!("to repeat it: landfall-sim {name} --seed {seed} --trace");
    }
    anyhow::bail!("seed {seed} of scenario {name} breaks a rule")
}
