//! `landfall-sim`: a whole cluster without machines, on simulated time; what a seed tells, and whether it
//! kept the rules.
//!
//! A program of its own, so that a build of landfall does not include the simulation.

use anyhow::Context;
use clap::Parser;
use jiff::Timestamp;
use sim::{Ground, Options, Outcome, Phase, SCENARIOS, Scenario, Size, Summary};
use std::io::{IsTerminal, Write};
use std::ops::Range;
use std::process::ExitCode;
use std::time::Duration;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Run a whole cluster without machines, on simulated time, and check every ending
///
/// Server, controllers, scheduler and node agents are the real ones; machines, the network and the
/// clock are simulated, and one number, the seed, decides everything that happens: which pods there
/// are, what their containers do when they are asked to stop, who crashes when, which answer is
/// lost. The same seed always tells the same story, byte for byte. At every step the rules of
/// terminations are checked against what really happened.
///
///     landfall-sim --list                      what can be simulated
///     landfall-sim crash --seed 7 --story      one story, line by line
///     landfall-sim mix --seeds 0..10000        many stories, until one breaks a rule
///     landfall-sim mix --seed 7000 --for 120   as many as fit into two minutes, from seed 7000 on
///     landfall-sim scale --nodes 1000 --pods 20000   what a pod costs when there are many
///
/// A seed that breaks a rule is printed with its story and the command that tells it again.
#[derive(Parser)]
#[command(name = "landfall-sim", version, verbatim_doc_comment)]
struct Cli {
    /// What to simulate; see --list
    #[arg(default_value = "mix")]
    scenario: String,
    /// The one number that decides everything
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Many seeds, on all cores: A..B, without B
    #[arg(long, value_name = "A..B", value_parser = seeds, conflicts_with = "seed")]
    seeds: Option<Range<u64>>,
    /// Many seeds, on all cores, from --seed on, until this many seconds have passed
    #[arg(long = "for", value_name = "SECONDS", conflicts_with = "seeds")]
    seconds: Option<u64>,
    /// Print what happened even if no rule was broken
    #[arg(long)]
    story: bool,
    /// With --seeds: tell each twice and compare, byte by byte
    #[arg(long, requires = "seeds")]
    twice: bool,
    /// With `scale`: how many nodes; each takes at most 110 pods
    #[arg(long, value_name = "N", default_value_t = 20)]
    nodes: u16,
    /// With `scale`: how many pods
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pods: u32,
    /// Print the scenarios there are
    #[arg(long)]
    list: bool,
}

fn seeds(text: &str) -> Result<Range<u64>, String> {
    let range =
        text.split_once("..").and_then(|(from, to)| Some(from.parse().ok()?..to.parse().ok()?));
    range.ok_or_else(|| "write it as 0..100".to_owned())
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
        format!("there is no scenario {name:?}; `landfall-sim --list` shows those that there are")
    })?;
    let ground = Ground::lay()?;
    match (&options.seeds, options.seconds) {
        (Some(seeds), _) => many(&ground, scenario, seeds.clone(), None, options.twice),
        (None, Some(seconds)) => {
            let until = clock::now() + Duration::from_secs(seconds);
            many(&ground, scenario, options.seed..u64::MAX, Some(until), false)
        }
        (None, None) => one(&ground, scenario, options.seed, options.story),
    }
}

fn list() {
    for scenario in SCENARIOS {
        println!("{:12} {}", scenario.name, scenario.about);
    }
    println!("{:12} {}", sim::SCALE.0, sim::SCALE.1);
}

/// Rolled, there are a quarter more for a while.
const PODS_PER_NODE: u32 = 110;

fn scale(size: Size) -> anyhow::Result<()> {
    let room = u32::from(size.nodes) * PODS_PER_NODE;
    anyhow::ensure!(
        size.pods + size.pods / 4 <= room,
        "{} nodes have room for {room} pods, and while {} are rolled there are a quarter more",
        size.nodes,
        size.pods,
    );
    let ground = Ground::lay()?;
    println!("{} nodes, {} pods", size.nodes, size.pods);
    println!(
        "phase       simulated      CPU   CPU per pod     writes  CPU per write      peak memory"
    );
    sim::scale(&ground, size, &show)?;
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
        if phase.unfinished { "  did not end" } else { "" },
    );
}

fn one(ground: &Ground, scenario: &'static Scenario, seed: u64, story: bool) -> anyhow::Result<()> {
    let began = clock::now();
    let outcome = sim::run(ground, scenario, seed, &Options { story, ..Options::default() })?;
    let took = clock::now().duration_since(began);
    if outcome.violation.is_some() {
        return fail(scenario, &outcome);
    }
    outcome.story.iter().for_each(|line| println!("{line}"));
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
    ground: &Ground,
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
    let summary = sim::run_many(ground, scenario, seeds, &options, &go_on)?;
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

/// Says everything that is needed to understand it and to see it again.
fn fail(scenario: &Scenario, outcome: &Outcome) -> anyhow::Result<()> {
    outcome.story.iter().for_each(|line| println!("{line}"));
    let (name, seed) = (scenario.name, outcome.seed);
    if let Some(violation) = &outcome.violation {
        let (rule, why) = (violation.broken.rule, &violation.broken.why);
        println!("\nseed {seed} of {name} breaks a rule after {:?}: {rule}", violation.at);
        println!("  {why}");
        println!("see it again: landfall-sim {name} --seed {seed} --story");
    }
    anyhow::bail!("seed {seed} of scenario {name} breaks a rule")
}
