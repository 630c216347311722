//! `landfall-sim`: runs seeds, prints what happened and which rule was broken.
//!
//! It is a separate program, so that a build of landfall does not include the simulation.

use anyhow::Context;
use clap::Parser;
use jiff::Timestamp;
use sim::{Options, Outcome, Phase, Requests, SCENARIOS, Scenario, SimulationSetup, Size, Summary};
use std::io::{IsTerminal, Write};
use std::ops::{Range, RangeInclusive};
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
///     landfall-sim traffic --seeds 0..100      roll out Deployments behind Services, count lost requests
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
    /// With `traffic`: delay with which changes of Services and endpoints reach the packet rules of every
    /// node, such as 300ms or 100ms-2s [default: the seed chooses one per node]
    #[arg(long, value_name = "TIME[-TIME]", value_parser = delay_range)]
    proxy_delay: Option<DelayRange>,
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

/// The value of `--proxy-delay`, as text too, to print the command that repeats a run.
#[derive(Clone)]
struct DelayRange {
    text: String,
    range: RangeInclusive<Duration>,
}

fn delay_range(text: &str) -> Result<DelayRange, String> {
    let (from, to) = text.split_once('-').unwrap_or((text, text));
    let (from, to) = (duration(from)?, duration(to)?);
    if from > to {
        return Err("write the shorter time first, such as 100ms-2s".to_owned());
    }
    Ok(DelayRange { text: text.to_owned(), range: from..=to })
}

fn duration(text: &str) -> Result<Duration, String> {
    let parsed = text.parse::<jiff::SignedDuration>().map_err(|error| error.to_string())?;
    Duration::try_from(parsed).map_err(|_| "write a time such as 300ms or 2s".to_owned())
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
    anyhow::ensure!(
        options.proxy_delay.is_none() || name == "traffic",
        "only the scenario traffic has Service proxies, so --proxy-delay has no effect here"
    );
    let setup = SimulationSetup::prepare()?;
    let run_options = Options {
        trace: options.trace,
        twice: options.twice,
        proxy_delay: options.proxy_delay.as_ref().map(|delay| delay.range.clone()),
        ..Options::default()
    };
    let run = Run { setup, scenario, options: run_options, delay: options.proxy_delay.clone() };
    match (&options.seeds, options.seconds) {
        (Some(seeds), _) => run.many(seeds.clone(), None),
        (None, Some(seconds)) => {
            let until = clock::now() + Duration::from_secs(seconds);
            run.many(options.seed..u64::MAX, Some(until))
        }
        (None, None) => run.one(options.seed),
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

/// What the command line asks for.
struct Run {
    setup: SimulationSetup,
    scenario: &'static Scenario,
    options: Options,
    delay: Option<DelayRange>,
}

impl Run {
    fn one(&self, seed: u64) -> anyhow::Result<()> {
        let began = clock::now();
        let outcome = sim::run(&self.setup, self.scenario, seed, &self.options)?;
        let took = clock::now().duration_since(began);
        if outcome.violation.is_some() {
            return self.fail(&outcome);
        }
        outcome.trace.iter().for_each(|line| println!("{line}"));
        println!(
            "seed {seed} of {}: {} pods and {} containers in {:.0} simulated seconds, every rule kept \
             ({took:.3})",
            self.scenario.name,
            outcome.pods,
            outcome.containers,
            outcome.simulated.as_secs_f64(),
        );
        show_requests(&outcome.requests);
        Ok(())
    }

    fn many(&self, seeds: Range<u64>, until: Option<Timestamp>) -> anyhow::Result<()> {
        let began = clock::now();
        let options = Options { trace: false, ..self.options.clone() };
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
        let summary = sim::run_many(&self.setup, self.scenario, seeds, &options, &go_on)?;
        if show {
            eprint!("\r\x1b[K");
        }
        let seconds = clock::now().duration_since(began).as_secs_f64().max(0.001);
        match &summary.failure {
            Some(outcome) => self.fail(outcome),
            None => {
                report(self.scenario, first, &summary, seconds);
                Ok(())
            }
        }
    }

    /// Prints everything that is needed to understand the violation and to repeat it.
    fn fail(&self, outcome: &Outcome) -> anyhow::Result<()> {
        outcome.trace.iter().for_each(|line| println!("{line}"));
        let (name, seed) = (self.scenario.name, outcome.seed);
        if let Some(violation) = &outcome.violation {
            let (rule, why) = (violation.broken.rule, &violation.broken.why);
            let delay = self.delay.as_ref().map(|delay| format!(" --proxy-delay {}", delay.text));
            let delay = delay.unwrap_or_default();
            println!("\nseed {seed} of {name} breaks a rule after {:?}: {rule}", violation.at);
            println!("  {why}");
            println!("to repeat it: landfall-sim {name} --seed {seed}{delay} --trace");
        }
        anyhow::bail!("seed {seed} of scenario {name} breaks a rule")
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
    show_requests(&summary.requests);
}

/// Prints nothing if the scenario has no clients.
fn show_requests(requests: &Requests) {
    let Requests { sent, lost, rejected } = *requests;
    if sent > 0 {
        println!(
            "{sent} requests: {lost} lost, because their endpoint no longer listened ({:.2} %), {rejected} rejected, \
             because there was no endpoint",
            lost as f64 * 100.0 / sent as f64,
        );
    }
}
